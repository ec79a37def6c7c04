"""`faultproxy proxy plan` on the command line: what it takes, what it writes, what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.cli import main
from faultproxy.proxy.plan.question import Degrees, asked, degrees, stated

CONFIG = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}  # fmt: skip
GOLDEN = Path(__file__).parent / "golden" / "diagnosis-v1.json"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["faultproxy", "proxy", "plan", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_first_line_is_the_answer_and_the_build_command_is_near(capsys: Any, monkeypatch: Any) -> None:
    code, out, _ = run(capsys, monkeypatch, "config.json", "--factor", "routing", "--source", "hf://Qwen/Qwen3-30B-A3B")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("48 of 48 layers, 16 of 128 experts: 8 -> 1 h100, ")
    assert (
        lines[2]
        == "  build        faultproxy proxy build hf://Qwen/Qwen3-30B-A3B proxy-48-layers-16-experts --experts 16"
    )
    assert "no weights lie beside" not in out and "costs are of an assumed grpo step" in out and len(lines) < 45
    assert max(map(len, lines)) <= 118


def test_a_diagnosis_gives_factor_layer_and_facts_and_options_win_over_both(capsys: Any, monkeypatch: Any, here: Path) -> None:  # fmt: skip
    diagnosis = json.loads(GOLDEN.read_text("utf-8"))
    facts = {"hyperparameters": {"prompts": 64, "group": 8, "max_prompt_length": 512, "max_response_length": 2048}, "hardware": {"vendor": "ascend", "devices": 128}, "precision": {"compute": "fp16", "overflow_mode": "saturation"}, "parallelism": {"tp": 2, "ep": 8}}  # fmt: skip
    diagnosis["run"]["facts"] |= facts
    (here / "d.json").write_text(json.dumps([diagnosis | {"verdict": "healthy", "failure_type": "healthy", "family": "none", "factor": "none", "first_bad_step": None}, diagnosis]), encoding="utf-8")  # fmt: skip
    words = ("config.json", "--diagnosis", "d.json", "--format", "json")
    code, out, err = run(capsys, monkeypatch, *words)
    assert code == 0, err
    body = json.loads(out)
    assert (body["question"]["factor"], body["question"]["failure_type"]) == (
        diagnosis["factor"],
        diagnosis["failure_type"],
    )
    work = body["setting"]["workload"]
    assert (work["prompts"], work["group"], work["prompt"], work["response"]) == (64, 8, 512, 2048)
    assert body["setting"]["device"]["name"] == "ascend-910b" and body["question"]["degrees"]["ep"] == 8
    plan = body["plans"][0]
    assert plan["environment"]["INF_NAN_MODE_ENABLE"] == "0" and plan["precision"]["compute"]["value"] == "fp16"
    told = (
        *words,
        "--factor",
        "depth",
        "--layer",
        "7",
        "--device",
        "h20",
        "--batch",
        "32",
        "4",
        "--layout",
        "1,1,1,1",
        "--expert",
        "3:5",
    )
    body = json.loads(run(capsys, monkeypatch, *told)[1])
    assert (body["question"]["factor"], body["question"]["layer"], body["question"]["experts"]) == (
        "depth",
        7,
        {"3": [5]},
    )
    assert (body["setting"]["device"]["name"], body["setting"]["workload"]["prompts"]) == ("h20", 32)
    assert body["plans"][0]["layers_kept"] == list(range(8))


def test_the_output_file_is_written_once(capsys: Any, monkeypatch: Any, here: Path) -> None:
    words = ("config.json", "--output", "plan.txt")
    assert run(capsys, monkeypatch, *words)[:2] == (0, "")
    assert "device-hours a step" in (here / "plan.txt").read_text("utf-8")
    code, _, err = run(capsys, monkeypatch, *words)
    assert code == 2 and "--force" in err
    assert run(capsys, monkeypatch, *words, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "no model configuration can be read there (No such file or directory)"),
        (("broken.json",), "error: broken.json: is no model configuration"),
        (("config.json", "--layer", "48"), "this model has 48"),
        (("config.json", "--layout", "1,2,3"), "write four numbers"),
        (
            ("config.json", "--layout", "1,2,3,\u0663\u0663\u0663\u0663\u0663\u0663\u0663\u0663\u0663"),
            "write four numbers",
        ),
        (("config.json", "--type", "loss_scale_colapse"), "loss_scale_collapse"),
        (("config.json", "--expert", "3"), "LAYER:NUMBERS"),
        (("config.json", "--expert", "3:128"), "expert 128 is named"),
        (("config.json", "--device", "h10"), "h100"),
        (("config.json", "--diagnosis", "config.json"), "none of schema 1"),
        (("config.json", "--memory", "0"), "memory"),
    ],
)
def test_bad_input_is_exit_2_and_says_what_is_allowed(words: tuple[str, ...], said: str, capsys: Any, monkeypatch: Any) -> None:  # fmt: skip
    Path("broken.json").write_text("{}", encoding="utf-8")
    code, out, err = run(capsys, monkeypatch, *words)
    assert (code, out) == (2, "") and said in err


@pytest.mark.parametrize(
    "change",
    [
        {"factor": "luck"}, {"layer": "3"}, {"layer": -1}, {"failure_type": ["hang"]}, {"evidence": None}, {"evidence": [1]}, {"causes": [{}]},
        {"causes": 3}, {"run": {}}, {"run": {"facts": 1}}, {"layer": 1, "expert": "x"}, {"layer": [1], "expert": 2}, {"verdict": ["failed"]},
    ],
)  # fmt: skip
def test_a_report_is_taken_without_the_extra_ticket_and_what_is_none_is_refused(change: dict[str, Any], capsys: Any, monkeypatch: Any) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    report = json.loads(GOLDEN.read_text("utf-8"))
    Path("healthy.json").write_text(json.dumps(report | {"verdict": "healthy"}), encoding="utf-8")
    code, out, err = run(capsys, monkeypatch, "config.json", "--diagnosis", "healthy.json")
    assert code == 0 and out and "names no failure" in err
    Path("good.json").write_text(json.dumps(report), encoding="utf-8")
    Path("bad.json").write_text(json.dumps(report | change), encoding="utf-8")
    assert run(capsys, monkeypatch, "config.json", "--diagnosis", "good.json")[0] == 0
    code, out, err = run(capsys, monkeypatch, "config.json", "--diagnosis", "bad.json")
    if change != {"verdict": ["failed"]}:  # that of no run that failed: undetermined
        assert (code, out) == (2, "") and "none of schema 1" in err


@pytest.mark.parametrize("value", [0, -1, 1 << 40, 1.5, True, "8", None, [8]])
def test_facts_that_are_no_counts_are_not_taken(value: Any) -> None:
    facts = {"parallelism": {"tp": value}, "hyperparameters": {"prompts": value, "group": 4}, "hardware": value}
    assert degrees(facts) is None and stated(facts) == {}
    assert degrees({"parallelism": {"tp": 4}}) == Degrees(tp=4)


def test_experts_and_layers_that_the_evidence_names_are_implicated() -> None:
    report = json.loads(GOLDEN.read_text("utf-8"))
    entry = report["evidence"][0] | {"role": "root"}
    report["evidence"] = [entry | {"layer": 3, "expert": 7}, entry | {"layer": 3, "expert": 2}, entry | {"layer": None, "expert": 4}, entry | {"role": "benign", "layer": 1, "expert": 1}]  # fmt: skip
    assert dict(asked(report).experts) == {3: (2, 7), None: (4,)}
