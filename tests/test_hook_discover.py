"""What a job folder is taken for: its runs, its model, and what is left out by which name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook import discover as module
from faultproxy.analyzer.hook.discover import discover

sys.path.insert(0, str(Path(__file__).parent.parent / "fixtures"))

from generators import jobs

ROW = "step:1 - actor/grad_norm:1.0\n"


def runs(folder: Path) -> dict[str, list[str]]:
    return {name: [str(path.relative_to(folder)) for path in paths] for name, paths in discover(folder).runs.items()}


@pytest.mark.parametrize("layout", list(jobs.LAYOUTS))
def test_a_job_of_every_layout_is_one_run_with_its_log(tmp_path: Path, layout: str) -> None:
    text = '{"log_history": [{"step": 1}]}' if "states" in layout else "{'loss': 1.0}\n" * 8
    folder = jobs.build(tmp_path / "job", layout, text)
    found = discover(folder)
    assert list(found.runs) == ["job"]
    held = "".join(path.read_bytes().decode("latin-1") for path in found.runs["job"])
    assert text.splitlines()[-1] in held
    assert not any("checkpoint-1" in str(path) and path.suffix != ".json" for path in found.runs["job"])


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a.out", "logs/b.log", "wandb/run-1/files/output.log"], {"job": ["a.out", "logs/b.log", "wandb/run-1/files/output.log"]}),
        (["gpu-a1/x.log", "gpu-a2/x.log"], {"job": ["gpu-a1/x.log", "gpu-a2/x.log"]}),
        (["run_1/x.log", "run_2/x.log"], {"job/run_1": ["run_1/x.log"], "job/run_2": ["run_2/x.log"]}),
        (["slurm.out", "grpo-lr1e-6/x.log"], {"job": ["grpo-lr1e-6/x.log", "slurm.out"]}),
        (["slurm.out", "left/x.log", "right/y.log"], {"job": ["slurm.out"], "job/left": ["left/x.log"], "job/right": ["right/y.log"]}),
    ],
    ids=["parts", "nodes", "experiments", "the output folder", "two folders beside a log"],
)  # fmt: skip
def test_sub_folders_are_parts_nodes_or_runs(tmp_path: Path, names: list[str], wanted: dict[str, list[str]]) -> None:
    jobs.put(tmp_path / "job", dict.fromkeys(names, ROW))
    assert runs(tmp_path / "job") == wanted


def test_logs_of_other_jobs_in_the_folder_are_left_out_where_names_tell(tmp_path: Path) -> None:
    jobs.put(tmp_path, dict.fromkeys(["slurm-4710.out", "slurm-4711.out", "slurm-47110.out", "rank0.log", "err/4711.err", "err/9.err"], ROW))  # fmt: skip
    found = discover(tmp_path, job_id="4711")
    assert sorted(path.name for path in found.runs[tmp_path.name]) == ["4711.err", "rank0.log", "slurm-4711.out"]
    assert sorted(found.ignored["of another job"]) == ["err/9.err", "slurm-4710.out", "slurm-47110.out"]
    assert len(discover(tmp_path, job_id="9").runs[tmp_path.name]) == 6


def test_the_last_state_of_the_trainer_stands_for_all(tmp_path: Path) -> None:
    jobs.put(tmp_path, {f"out/checkpoint-{n}/trainer_state.json": '{"log_history": []}' for n in (5, 20, 100)})
    found = discover(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found.runs[tmp_path.name]] == ["out/checkpoint-100/trainer_state.json"]  # fmt: skip
    assert len(found.ignored["an earlier state of the trainer"]) == 2


def test_the_model_is_the_policy_of_the_last_checkpoint(tmp_path: Path) -> None:
    names = [f"ckpts/global_step_{n}/{part}/huggingface/config.json" for n in (9, 10) for part in ("actor", "critic")]
    jobs.put(tmp_path, dict.fromkeys(names, jobs.CONFIG) | {"config.json": '{"not": "a model"}'})
    said_by = {where for _, where in discover(tmp_path).model.values()}
    assert said_by == {f"{tmp_path}/ckpts/global_step_10/actor/huggingface/config.json"}


def test_what_is_left_out_is_named_with_its_reason(tmp_path: Path) -> None:
    jobs.litter(tmp_path)
    said = "\n".join(discover(tmp_path).warnings())
    for name, reason in {"control.pipe": "no regular file", "ray.sock": "no regular file", "loop": "a symbolic link to a folder", "latest.log": "cannot be opened", "empty.log": "empty", "core.4711": "core dumps", "train.py": "weights, code", "data": "training data", "rollout_data": "answers of the model"}.items():  # fmt: skip
        assert any(name in line and reason in line for line in said.splitlines()), name


def test_a_file_with_two_names_is_read_once_and_our_own_reports_never(tmp_path: Path) -> None:
    jobs.put(tmp_path, {"a.log": ROW, "faultproxy/diagnosis.json": "{}"})
    os.link(tmp_path / "a.log", tmp_path / "b.log")
    os.symlink("a.log", tmp_path / "c.log")
    jobs.put(tmp_path, {"ticket.md": "#", "diagnosis.json": "{}"})
    found = discover(tmp_path, tmp_path)
    assert [path.name for paths in found.runs.values() for path in paths] == ["a.log"] and found.warnings() == []


def test_endless_trees_are_cut_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    jobs.put(tmp_path, {f"logs/{n}.log": ROW for n in range(30)})
    assert "more than 10 files" in "\n".join(discover(tmp_path).warnings())


def test_many_files_left_out_are_counted(tmp_path: Path) -> None:
    jobs.put(tmp_path, {f"model-{n}.pt": b"x" for n in range(30)})
    assert any(line.endswith("model-4.pt and 25 more") for line in discover(tmp_path).warnings())


@pytest.mark.parametrize("name", ["missing", "file.txt", "x" * 300])
def test_no_folder_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(InputError, match="--job-dir"):
        discover(tmp_path / name)
