"""`analyze` beside a model's configuration plans a proxy, and the commands that it prints work as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import analyze, faultproxy
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.report.text import render as text
from faultproxy.analyzer.ticket.render import render as ticket
from faultproxy.proxy.plan import beside
from faultproxy.proxy.plan.beside import attach, config_path, source_of
from faultproxy.proxy.recipe import Recipe, read_numbers

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints

DEMO = Path(__file__).parent.parent / "fixtures" / "demo" / "loss_scale_collapse.log"
#: The demo states the sizes of its own model.
LOG = "".join(line for line in DEMO.read_text("utf-8").splitlines(keepends=True) if not re.search("num_|topk", line))
CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 8, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
    "vocab_size": 32, "intermediate_size": 16, "moe_intermediate_size": 4, "num_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": True,
}  # fmt: skip


def job(folder: Path, config: Any = CONFIG, weights: bool = False) -> Path:
    """A folder with the failed log, the model's configuration, and its weights."""
    folder.mkdir()
    (folder / "run.log").write_text(LOG, encoding="utf-8")
    if weights:
        return checkpoints.moe(folder, layers=8, experts=16, files=False)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def report(folder: Path, **changes: Any) -> dict[str, Any]:
    found = document(diagnose(read([str(folder / "run.log")])[0])) | changes
    assert found["verdict"] == "failed"
    attach(found)
    return found


def shell(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Run as a person would who copies it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        check=False,
        shell=True,
        cwd=where,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PATH": path},
    )


def commands(found: dict[str, Any], verb: str) -> list[str]:
    return [entry["command"] for entry in found["reproduce"] if f"proxy {verb} " in entry["command"]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": "routing", "failure_type": "router_collapse", "layer": None},
        {"factor": "depth", "failure_type": "gradient_explosion", "layer": 4},
        {"factor": "undetermined"},
        {
            "factor": "routing",
            "failure_type": "router_collapse",
            "layer": None,
            "causes": [{"cause": "operator", "probability": 0.5}],
        },
        {"factor": "routing", "failure_type": "expert_imbalance", "layer": 2, "expert": 5},
        {"factor": "routing", "failure_type": "expert_imbalance", "layer": None, "expert": 5},
    ],
    ids=lambda changes: ", ".join(map(str, changes.values())) or "as diagnosed",
)
def test_the_build_and_plan_commands_work_as_printed(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    folder = job(tmp_path / "a job; with $HOME's name", weights=True)
    monkeypatch.chdir(tmp_path)
    found = report(Path(folder.name), **changes)
    plan = found["proxy"]
    [build], [again] = commands(found, "build"), commands(found, "plan")
    built = shell(build, tmp_path)
    assert built.returncode == 0, built.stderr
    out = tmp_path / plan["command"].split("--")[0].split()[-1]
    made, proxy = (json.loads((out / name).read_text("utf-8")) for name in ("config.json", "proxy.json"))
    assert (made["num_hidden_layers"], made["num_experts"]) == (len(plan["layers_kept"]), plan["experts_kept"])
    assert proxy["kept"]["layers"] == plan["layers_kept"]
    planned = shell(f"{again} --format json", tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["plans"][0]["command"] == build


def test_the_report_is_valid_and_text_and_ticket_have_the_plan_and_its_command(tmp_path: Path, schema_problems: Any) -> None:  # fmt: skip
    found = report(job(tmp_path / "job", weights=True))
    assert schema_problems(json.loads(json.dumps(found))) == []
    plan, [build] = found["proxy"], commands(found, "build")
    assert plan["summary"].startswith("2 of 8 layers, 4 of 16 experts: 1 -> 1 h100, ")
    assert plan["note"] is None and plan["refused"] is None and plan["weights"] == "random"
    assert read_numbers("0-1") == tuple(plan["layers_kept"])
    shown = text([found])
    assert f"  proxy        {plan['summary']}; random weights\n{' ' * 15}for factor precision: fewer layers" in shown
    assert re.search(r"\n {15}plan 1 of \d, for factor ", text([report(tmp_path / "job", factor="undetermined")]))
    assert f"reproduce    {build}\n" in shown
    for site in ("github", "plain"):
        body = ticket(found, site, hide=False).body
        assert build in body and plan["weights_why"][:40] in body


def test_the_hook_of_a_dead_job_plans_too_and_still_says_how_to_repeat_it(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", weights=True)
    assert shell(f"faultproxy hook run --job-dir {folder} --exit-code 1", tmp_path).returncode == 0
    found = json.loads((folder / "faultproxy" / "diagnosis.json").read_text("utf-8"))
    assert [entry["command"].split()[1:3] for entry in found["reproduce"]] == [
        ["hook", "run"], ["proxy", "build"], ["proxy", "plan"],
    ]  # fmt: skip
    assert found["proxy"]["command"] in (folder / "faultproxy" / "ticket.md").read_text("utf-8")


def test_a_healthy_run_and_one_without_a_configuration_have_no_plan(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "config.json").unlink()
    assert report(folder)["proxy"] is None
    healthy = {"verdict": "healthy", "run": {"facts": {"origins": {"model.family": "config.json"}}}, "proxy": None}
    attach(healthy)
    assert healthy["proxy"] is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIG | {"model_type": "no_such"}, "model_type"),
        (CONFIG | {"num_local_experts": 8}, "disagrees with itself"),
        (CONFIG | {"num_experts": 2000, "num_hidden_layers": 1000}, "experts in all"),
        (CONFIG | {"num_experts_per_tok": 0}, "0 of 16 experts a token"),
    ],
)
def test_a_configuration_that_cannot_be_planned_leaves_the_diagnosis_and_says_why(config: Any, said: str, tmp_path: Path, schema_problems: Any) -> None:  # fmt: skip
    found = report(job(tmp_path / "job", config))
    assert said in found["proxy"]["refused"] and schema_problems(found) == []
    assert "none planned: " in text([found]) and not commands(found, "build")


def test_a_configuration_of_another_model_than_the_log_states_is_refused(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "run.log").write_bytes(DEMO.read_bytes())
    assert "states 8 for layers and the run 48" in report(folder)["proxy"]["refused"]


def test_a_bug_of_the_planner_does_not_cost_the_diagnosis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(beside, "_section", broken)
    assert "a bug in faultproxy (ZeroDivisionError)" in report(job(tmp_path / "job"))["proxy"]["refused"]


@pytest.mark.parametrize("target", ["gone", "folder", "pipe", "log"])
def test_what_the_facts_name_is_only_read_when_it_is_a_small_file_of_a_model(target: str, tmp_path: Path) -> None:
    found = report(job(tmp_path / "job")) | {"proxy": None}
    path = tmp_path / "x.json"
    if target == "folder":
        path.mkdir()
    elif target == "pipe":
        os.mkfifo(path)
    elif target == "log":
        path.write_text("{}\n{}", encoding="utf-8")
    found["run"]["facts"]["origins"] = {"model.family": str(path)}
    attach(found)
    assert found["proxy"] is None
    assert config_path({"origins": [1]}) is None and config_path({"origins": {"model.family": "train.sh:3"}}) is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("Qwen/Qwen3-30B-A3B", "hf://Qwen/Qwen3-30B-A3B"),
        ("/models/q 3", "/models/q 3"),
        ("a\x1b[31mb", None),
        (7, None),
        (None, None),
    ],
)
def test_weights_are_where_the_run_took_its_model_from_or_are_said_to_be_missing(name: Any, source: str | None, tmp_path: Path) -> None:  # fmt: skip
    where, note = source_of(str(job(tmp_path / "job") / "config.json"), {"model": {"name": name}})
    assert where == (source or str(tmp_path / "job")) and bool(note) == (source is None)


def test_without_weights_only_a_plan_of_random_ones_names_a_folder(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    drawn = report(folder)["proxy"]
    assert drawn["command"].split()[3] == str(folder) and "faultproxy[proxy]" in drawn["note"]
    copied = report(folder, factor="depth", layer=3)["proxy"]
    assert copied["command"].split()[3] == "WEIGHTS" and "in the place of WEIGHTS" in copied["note"]


def test_a_failure_that_needs_the_whole_model_has_no_plan_and_says_so(tmp_path: Path) -> None:
    dense = {name: value for name, value in CONFIG.items() if "expert" not in name} | {"model_type": "qwen3"}
    found = report(job(tmp_path / "job", dense), factor="none", failure_type="reward_hacking")
    assert "nothing of this model can be left out" in found["proxy"]["refused"]
    assert not commands(found, "build") and not commands(found, "plan")


def test_the_plan_command_repeats_the_layout_device_and_workload_of_the_run(tmp_path: Path) -> None:
    found = document(diagnose(read([str(job(tmp_path / "job", weights=True).parent / "job" / "run.log")])[0]))
    sizes = {"prompts": 64, "group": 8, "max_prompt_length": 512, "max_response_length": 2048}
    found["run"]["facts"] |= {
        "hyperparameters": sizes,
        "hardware": {"vendor": "ascend"},
        "parallelism": {"tp": 1, "ep": 2},
    }
    attach(found)
    [told] = commands(found, "plan")
    assert "--layout 1,1,1,2 --device ascend-910b --batch 64 8 --sequence 512 2048" in told
    assert "a grpo step of 64 x 8 rollouts, 512 + 2,048 tokens, on" in text([found])
    again = json.loads(shell(f"{told} --format json", tmp_path).stdout)["plans"][0]
    assert {name: found["proxy"][name] for name in ("command", "cost", "cost_original", "warnings")} == {
        name: again[name] for name in ("command", "cost", "cost_original", "warnings")
    }


@pytest.mark.parametrize("change", [{"refused": ""}, {"summary": None}, {"keeps": [1]}, {"others": [{}]}, {"layers_kept": [-1]}])  # fmt: skip
def test_a_report_whose_plan_is_none_of_ours_is_refused_or_shown_and_never_a_crash(change: Any, tmp_path: Path, schema_problems: Any) -> None:  # fmt: skip
    found = report(job(tmp_path / "job"))
    found["proxy"] = {"config": "x", **change} if change == {"refused": ""} else found["proxy"] | change
    if change == {"refused": ""}:
        assert schema_problems(found) == [] and "none planned: " in ticket(found, "plain").body
    else:
        assert schema_problems(found)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("faultproxy proxy build /models/q proxy-2-layers --layers 0-1 --weights random", True),
        ("faultproxy proxy build hf://Qwen/Qwen3-30B-A3B proxy-2-layers-4-experts --experts 4 --keep 1:3", True),
        ("faultproxy proxy build /models/q /home/me/.ssh", False),
        ("faultproxy proxy build /models/q proxy-2-layers --force", False),
        ("faultproxy proxy build https://evil.example/q proxy-2-layers", False),
        ("faultproxy proxy build /models/q proxy-2-layers --experts many", False),
        ("faultproxy proxy plan config.json --factor depth --layer 3", True),
        ("faultproxy proxy plan config.json -o /etc/passwd", False),
        ("faultproxy proxy plan config.json; rm x", False),
    ],
)
def test_a_ticket_shows_only_builds_that_write_a_new_folder_here(command: str, shown: bool, tmp_path: Path) -> None:
    found = report(job(tmp_path / "job")) | {"reproduce": [{"title": "t", "command": command}]}
    assert (command in ticket(found, "plain", hide=False).body) == shown


def test_analyze_plans_for_a_device_and_a_budget_and_says_when_it_cannot(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    arguments = ["--device", "h20", "--budget", "2", "--format", "json"]
    ran = CliRunner().invoke(analyze, [str(folder / "run.log"), *arguments])
    found = json.loads(ran.stdout)["proxy"]
    assert (found["device"], found["fits"], ran.stderr) == ("h20", True, "")
    [told] = commands(json.loads(ran.stdout), "plan")
    assert told.endswith("--devices 2 --device h20") and shell(told, tmp_path).returncode == 0
    assert told in ticket(json.loads(ran.stdout), "plain", hide=False).body
    (folder / "config.json").unlink()
    assert "--model-config" in CliRunner().invoke(analyze, [str(folder / "run.log"), *arguments]).stderr
    with pytest.raises(InputError, match="did you mean h20"):
        CliRunner().invoke(analyze, ["x.log", "--device", "h2"], catch_exceptions=False)


def test_a_plan_in_a_file_is_built_by_its_number(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", weights=True)
    (tmp_path / "report.json").write_text(json.dumps(report(folder)), encoding="utf-8")
    planned = [
        "proxy",
        "plan",
        str(folder),
        "--factor",
        "routing",
        "--expert",
        "3:5",
        "--format",
        "json",
        "-o",
        str(tmp_path / "plans.json"),
    ]
    assert CliRunner().invoke(faultproxy, planned).exit_code == 0
    plans = json.loads((tmp_path / "plans.json").read_text("utf-8"))["plans"]
    for name, number, wanted in (
        ("report.json", 1, report(folder)["proxy"]),
        ("plans.json", 1, plans[0]),
        ("plans.json", 2, plans[1]),
    ):
        out = tmp_path / f"{name}-{number}"
        words = ["proxy", "build", str(folder), str(out), "--plan", str(tmp_path / name), "--number", str(number)]
        ran = CliRunner().invoke(faultproxy, words)
        assert ran.exit_code == 0, ran.output
        made = json.loads((out / "proxy.json").read_text("utf-8"))
        assert (made["recipe"], made["kept"]["layers"]) == (wanted["recipe"], wanted["layers_kept"])
        assert len(made["plan"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("body", "more", "why"),
    [
        ({"plans": [{"recipe": Recipe().document()}]}, ["--experts", "4"], "leave out the options"),
        ({"plans": [{"recipe": Recipe().document()}]}, ["--number", "2"], "has 1 plans, not 2"),
        ({"proxy": {"refused": "no", "config": "x"}}, [], "its recipe is not one"),
        ({"proxy": None}, [], "has 0 plans"),
        ({"plans": [{"recipe": Recipe().document() | {"layers": [10**9]}}]}, [], "its recipe is not one"),
        ({"plans": [{"recipe": Recipe().document() | {"keep": {"a": [1]}}}]}, [], "its recipe is not one"),
        ({"plans": [{"recipe": Recipe().document() | {"method": "\x1b[31m"}}]}, [], "is no method"),
    ],
)
def test_a_file_without_that_plan_is_refused(tmp_path: Path, body: dict[str, Any], more: list[str], why: str) -> None:
    (tmp_path / "p.json").write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(InputError, match=why):
        words = ["proxy", "build", "nowhere", "out", "--plan", str(tmp_path / "p.json"), *more]
        CliRunner().invoke(faultproxy, words, catch_exceptions=False)


@pytest.mark.parametrize("inner", ["model", "huggingface", "hf"])
def test_the_configuration_may_lie_in_the_folder_of_the_model(tmp_path: Path, inner: str) -> None:
    folder = job(tmp_path / "job")
    (folder / inner).mkdir()
    (folder / "config.json").rename(folder / inner / "config.json")
    assert report(folder)["proxy"]["config"] == str(folder / inner / "config.json")
