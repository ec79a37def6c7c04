"""What a job folder is taken for: ranks, restarts, one run or several, and what in it is no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report import markdown, sarif
from faultproxy.analyzer.report.document import document, dumps
from faultproxy.analyzer.report.html import page
from faultproxy.analyzer.report.text import render
from faultproxy.analyzer.ticket import render as ticket

OOM = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"
)


def rows(first: int, last: int, shift: float = 0.0) -> str:
    """Rows of a healthy loss; `shift` makes another rank's values."""
    return "\n".join(
        f"step: {s}  loss: {3 - s / 50 + shift:.4f}  grad_norm: {1 + s % 3 / 10 + shift:.4f}"
        for s in range(first, last + 1)
    )


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def reports(path: Path) -> list[dict[str, Any]]:
    return [document(diagnose(trace)) for trace in read([str(path)])]


def test_a_run_that_fails_restarts_and_fails_the_same_way_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join([rows(1, 40), OOM, rows(21, 60), OOM]) + "\n")
    (found,) = reports(path)
    assert (found["failure_type"], found["first_bad_step"], found["segment"]) == ("out_of_memory", 60, 1)


def test_a_restart_that_worked_leaves_the_failure_behind(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join([rows(1, 40), OOM, rows(21, 80)]) + "\n")
    (found,) = reports(path)
    assert found["verdict"] == "healthy"
    assert "out of memory" in found["evidence"][0]["statement"]


@pytest.mark.parametrize("layout", ["attempt_0/{}/stderr.log", "job-node-{}.out", "rank{}.log", "node{}/train.log"])
def test_files_side_by_side_are_ranks_and_the_one_that_dies_is_the_root(tmp_path: Path, layout: str) -> None:
    tail = {rank: OOM if rank == 2 else WATCHDOG for rank in range(4)}
    write(tmp_path, {layout.format(rank): rows(1, 30, rank / 10) + "\n" + tail[rank] for rank in range(4)})
    (found,) = reports(tmp_path)
    assert (found["failure_type"], found["rank"], found["segment"]) == ("out_of_memory", 2, 0)
    assert [e["rule"] for e in found["evidence"] if e["role"] == "consequence"] == ["process/collective-timeout"]


def test_one_rank_that_is_not_finite_is_seen_whichever_file_comes_first(tmp_path: Path) -> None:
    bad = rows(1, 20, 0.3) + "\n" + "\n".join(f"step: {s}  loss: nan  grad_norm: nan" for s in range(21, 31))
    write(tmp_path, {f"rank{rank}.log": bad if rank == 3 else rows(1, 30, rank / 10) for rank in range(4)})
    (found,) = reports(tmp_path)
    assert (found["failure_type"], found["first_bad_step"], found["rank"], found["factor"]) == (
        "nonfinite_loss",
        21,
        3,
        "none",
    )


def test_console_and_tracker_of_one_run_are_one_run(tmp_path: Path) -> None:
    lines = [f'{{"step": {s}, "loss": {3 - s / 50:.4f}, "grad_norm": {1 + s % 3 / 10:.4f}}}' for s in range(1, 31)]
    write(tmp_path, {"console.log": rows(1, 30), "metrics.jsonl": "\n".join(lines)})
    (found,) = reports(tmp_path)
    assert (found["verdict"], found["run"]["steps"]) == ("healthy", 30)


def test_experiments_in_folders_of_their_own_get_a_report_each(tmp_path: Path) -> None:
    write(tmp_path, {"run_lr1/train.log": rows(1, 30) + "\n" + OOM, "run_lr2/train.log": rows(1, 30)})
    assert [r["verdict"] for r in reports(tmp_path)] == ["failed", "healthy"]


def test_our_own_reports_in_the_folder_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"train.log": rows(1, 30) + "\n" + OOM})
    first = reports(tmp_path)
    write(tmp_path, {"diagnosis.json": dumps(first), "report.txt": render(first)})
    (again,) = reports(tmp_path)
    assert (again["failure_type"], again["first_bad_step"], len(again["run"]["sources"])) == ("out_of_memory", 30, 1)
    with pytest.raises(InputError, match="a report of faultproxy"):
        read([str(tmp_path / "diagnosis.json")])


@pytest.mark.parametrize("to", ["text", "markdown", "html", "sarif", "github", "plain"])
def test_a_report_in_any_form_is_no_trace(tmp_path: Path, to: str) -> None:
    write(tmp_path, {"train.log": rows(1, 30) + "\n" + OOM})
    (first,) = reports(tmp_path)
    made = {"text": render, "markdown": markdown.render, "html": page.render, "sarif": sarif.render}
    posted = ticket.render(first, to) if to not in made else None
    text = f"# {posted.title}\n\n{posted.body}" if posted else made[to]([first])
    with pytest.raises(InputError, match="a report of faultproxy"):
        read([str(write(tmp_path, {"out.txt": text}) / "out.txt")])


@pytest.mark.parametrize(("names", "runs"), [(("48113", "48114"), 2), (("0", "1"), 1), (("rank_0", "rank_1"), 1)])
def test_folders_named_by_the_numbers_of_jobs_are_runs_of_their_own(
    tmp_path: Path, names: tuple[str, ...], runs: int
) -> None:
    write(tmp_path, {f"{name}/train.log": rows(1, 30, n / 10) for n, name in enumerate(names)})
    assert len(reports(tmp_path)) == runs


def test_a_path_that_is_missing_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    write(tmp_path, {"a.log": rows(1, 30)})
    (trace,) = read([str(tmp_path / "a.log"), str(tmp_path / "nope")])
    assert any("nope: no such file" in warning for warning in trace.warnings)
