"""Every framework's own log, format-faithful: steps, values, axes, units, facts, and what was not finite at its step."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.trace import BAD_STATES, MASKED, NAN, QUANTISED, Key, Trace
from faultproxy.proxy.lab.writers import Run

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import cases, consoles, curves, faults, frameworks

TURN = 150
FRAMEWORKS = frameworks.FRAMEWORKS


def healthy(kind: str, seed: int = 4) -> Run:
    return curves.rl(seed) if kind == "rl" else curves.evaluated(curves.pretrain(seed), seed)


def trace(folder: Path, text: str, file: str = "train.log") -> Trace:
    path = folder / file
    path.write_bytes(text.encode())
    (found,) = read([str(path)])
    return found


def report(folder: Path, text: str, file: str = "train.log") -> dict[str, Any]:
    return document(diagnose(trace(folder, text, file)))


def series(found: Trace, signal: str, axis: str = "train", **parts: Any) -> dict[int, float | None]:
    """Step to value of a whole-model signal."""
    column = found.frame.columns[Key(signal, axis=axis, **parts)]
    return {found.frame.steps[row]: value for row, value in enumerate(column.values) if column.cell(row) is not None}


def state(found: Trace, signal: str, step: int, **parts: Any) -> str:
    cell = found.frame.columns[Key(signal, **parts)].cell(found.frame.steps.index(step))
    assert cell is not None
    return cell.state


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_steps_values_format_and_framework(tmp_path: Path, name: str) -> None:
    of = FRAMEWORKS[name]
    run = healthy(of.kind)
    found = trace(tmp_path, of.write(run), of.file)
    source = found.sources[0]
    assert (source.format.split("+")[0], found.facts["framework"], source.unparsed) == (of.format, of.framework, 0)
    assert (set(found.frame.segments), found.facts["steps_are_rows"], found.warnings) == ({0}, False, [])
    signal = "policy_loss" if of.kind == "rl" else "loss"
    got = series(found, signal)
    assert set(got) == {int(row["step"]) + of.shift for row in run}
    for row in run:
        value = got[int(row["step"]) + of.shift]
        assert value == pytest.approx(row[signal], abs=0.51 * 10**-of.decimals if of.decimals else 0)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_healthy_run_is_healthy(tmp_path: Path, name: str) -> None:
    of = FRAMEWORKS[name]
    found = report(tmp_path, of.write(healthy(of.kind)), of.file)
    assert found["verdict"] == "healthy", found


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nonfinite_is_found_at_its_step(tmp_path: Path, name: str, value: float) -> None:
    of = FRAMEWORKS[name]
    if of.framework == "olmo-core" and math.isinf(value):
        pytest.skip("format_float of OLMo-core raises on an infinity: nothing reaches the log")
    run = faults.nonfinite(healthy(of.kind), TURN, value=value)
    found = report(tmp_path, of.write(run), of.file)
    assert found["failure_type"] in ("nonfinite_loss", "nonfinite_gradient"), found
    assert found["first_bad_step"] == TURN + of.shift, found


@pytest.mark.parametrize(
    "name", [name for name, of in FRAMEWORKS.items() if of.kind == "sft" and of.framework != "olmo-core"]
)
def test_evaluation_stays_on_its_own_axis(tmp_path: Path, name: str) -> None:
    of = FRAMEWORKS[name]
    run = healthy("sft")
    found = trace(tmp_path, of.write(run), of.file)
    if of.framework == "fairseq":
        assert ("eval" in {key.axis for key in found.frame.columns}) == ("without" not in name)
        return
    expected = {int(row["step"]) + of.shift: row["eval_loss"] for row in run if "eval_loss" in row}
    got = series(found, "loss", "eval")
    assert {step: got[step] for step in expected} == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "name, signal, of_row",
    [
        ("torchtitan", "mfu", lambda row: round(2097152 / row["step_time"]) / 9000 / 100),
        ("torchtitan", "tokens_per_s", lambda row: round(2097152 / row["step_time"])),
        ("torchtitan", "memory", lambda row: row["memory"]),
        ("nanogpt", "step_time", lambda row: row["step_time"]),
        ("llm.c", "step_time", lambda row: row["step_time"]),
        ("llm.c", "mfu", lambda row: 0.403),
        ("mlx-lm", "step_time", lambda row: row["step_time"]),
        ("mlx-lm", "memory", lambda row: row["memory"] * 1e9 / 2**30),
        ("nemo-rl", "step_time", lambda row: row["step_time"]),
        ("nemo-rl", "gen_time", lambda row: row["gen_time"]),
        ("mindspeed-rl", "gen_time", lambda row: row["gen_time"]),
        ("deepspeed-chat", "gen_time", lambda row: row["gen_time"]),
        ("deepspeed-chat", "reward", lambda row: row["reward_mean"]),
        ("openrlhf", "mismatch_kl", lambda row: row["mismatch_kl"]),
        ("fairseq", "grad_norm", lambda row: row["grad_norm"]),
    ],
)  # fmt: skip
def test_units(tmp_path: Path, name: str, signal: str, of_row: Callable[[dict[str, float]], float]) -> None:
    of = FRAMEWORKS[name]
    run = healthy(of.kind)
    got = series(trace(tmp_path, of.write(run), of.file), signal)
    for row in run[20::40]:
        assert got[int(row["step"]) + of.shift] == pytest.approx(of_row(row), rel=0.02), row["step"]


# -- two axes: slime and miles ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps, ahead", [(1, 0), (1, 2), (4, 0), (4, 1), (4, 3)])
def test_slime_rollouts_stand_at_their_first_step(tmp_path: Path, steps: int, ahead: int) -> None:
    run = healthy("rl")
    found = trace(tmp_path, frameworks.slime(run, steps=steps, ahead=ahead))
    assert set(found.frame.segments) == {0} and found.frame.steps == list(range(200))
    for signal, key in (("reward", "reward_mean"), ("response_length", "length_mean")):
        got = series(found, signal)
        assert got == {at: run[at][key] for at in range(0, 200, steps)}
    assert found.facts["steps_per_rollout"] == steps


def test_slime_critic_stands_in_the_actor_s_rows(tmp_path: Path) -> None:
    run = curves.rl(4, critic=True)
    found = trace(tmp_path, frameworks.slime(run, steps=4, critic=True))
    got = series(found, "value_loss", role="critic")
    assert got == {at: row["value_loss"] for at, row in enumerate(run)} and set(found.frame.segments) == {0}


def test_slime_critic_may_report_after_the_actor(tmp_path: Path) -> None:
    lines = []
    for start in range(0, 40, 4):
        lines += [f"step {s}: {{'train/pg_loss': 0.1, 'train/grad_norm': 0.3}}" for s in range(start, start + 4)]
        lines += [f"critic-step {s}: {{'train/critic-value_loss': {s}}}" for s in range(start, start + 4)]
    found = trace(tmp_path, "\n".join(lines))
    assert set(found.frame.segments) == {0}
    assert series(found, "value_loss", role="critic") == {s: float(s) for s in range(40)}


def test_slime_restart_is_a_segment_and_keeps_its_rollouts(tmp_path: Path) -> None:
    run = healthy("rl")
    whole = frameworks.slime(run, steps=4).splitlines()
    again = next(at for at, line in enumerate(whole) if " perf 30:" in line)
    end = next(at for at, line in enumerate(whole) if " step 150:" in line)
    found = trace(tmp_path, "\n".join(whole[:end] + whole[again:]))
    assert sorted(set(found.frame.segments)) == [0, 1]
    column = found.frame.columns[Key("reward")]
    second = [row for row, segment in enumerate(found.frame.segments) if segment == 1]
    assert [found.frame.steps[row] for row in second if column.cell(row)] == list(range(120, 200, 4))


def test_rollouts_of_a_log_without_steps_are_its_steps(tmp_path: Path) -> None:
    lines = [f"perf {r}: {{'rollout/response_len/mean': {600 + r}, 'perf/rollout_time': 31.0}}" for r in range(3, 30)]
    found = trace(tmp_path, "\n".join(lines))
    assert series(found, "response_length") == {r: 600.0 + r for r in range(3, 30)}


def test_a_rollout_that_was_never_trained_on_is_kept(tmp_path: Path) -> None:
    run = healthy("rl")[:80]
    text = frameworks.slime(run, steps=4) + "perf 20: {'rollout/response_len/mean': 4096.0}\n"
    assert series(trace(tmp_path, text), "response_length")[80] == 4096.0


@pytest.mark.parametrize("at", [60, 61, 90, 130])
def test_a_dict_broken_over_lines_is_one_record(tmp_path: Path, at: int) -> None:
    whole = frameworks.slime(healthy("rl")[:20], prefix=False).splitlines()
    broken = [part for line in whole for part in (line[:at], line[at:]) if part.strip()]
    assert trace(tmp_path, "\n".join(broken)).frame.columns.keys() == trace(tmp_path, "\n".join(whole), "b.log").frame.columns.keys()  # fmt: skip


def test_a_pretty_printed_dict_is_one_record(tmp_path: Path) -> None:
    text = "```\n[2026-08-01 10:00:00] model.py:9 - step 3: {\n    'train/pg_loss': nan,\n    'train/grad_norm': 0.3\n}\n```\n"
    found = trace(tmp_path, text)
    assert (found.frame.steps, state(found, "policy_loss", 3), series(found, "grad_norm")) == ([3], NAN, {3: 0.3})


def test_a_dict_that_was_cut_off_gives_what_it_has_and_the_traceback_behind_it(tmp_path: Path) -> None:
    text = (
        "step 3: {'train/pg_loss': 0.1, 'train/grad_norm': 0.3}\nstep 4: {'train/pg_loss': 0.2, 'train/gr\n"
        "Traceback (most recent call last):\n  File 'a.py', line 1\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    )
    found = trace(tmp_path, text)
    assert series(found, "policy_loss") == {3: 0.1, 4: 0.2}
    assert "out_of_memory" in {event.kind for event in found.events}


def test_evaluations_between_bare_steps_stand_at_the_step_of_their_number(tmp_path: Path) -> None:
    lines = [f"step {s}: {{'train/pg_loss': 0.1, 'train/grad_norm': 0.3}}" for s in range(40)]
    lines[21:21] = ["eval 20: {'eval/aime': 0.31}"]
    found = trace(tmp_path, "\n".join(lines))
    assert found.frame.steps == list(range(40)) and set(found.frame.segments) == {0}
    held = next(column for key, column in found.frame.columns.items() if key.axis == "eval")
    assert held.values == [None] * 20 + [0.31]


# -- OpenRLHF -----------------------------------------------------------------------------------------------------------
def test_openrlhf_masked_norm_and_bars_of_the_step_it_died_in(tmp_path: Path) -> None:
    run = faults.nonfinite(healthy("rl"), TURN)
    found = trace(tmp_path, frameworks.openrlhf(run))
    assert state(found, "grad_norm", TURN) == MASKED and state(found, "policy_loss", TURN) == NAN
    cut = frameworks.openrlhf(run).splitlines()
    end = next(at for at, line in enumerate(cut) if f"Global step {TURN}:" in line)
    died = document(diagnose(trace(tmp_path, "\n".join(cut[:end]))))
    assert died["first_bad_step"] == TURN


def test_openrlhf_zero_norm_is_said_not_believed(tmp_path: Path) -> None:
    found = report(tmp_path, frameworks.openrlhf(healthy("rl"), zero=True))
    assert any("actor_grad_norm is exactly 0 in 200 rows" in w for w in found["warnings"])
    quiet = report(tmp_path, frameworks.openrlhf(healthy("rl")))
    assert not any("OpenRLHF" in w for w in quiet["warnings"])


def test_openrlhf_bars_alone_are_counted_rows(tmp_path: Path) -> None:
    found = trace(tmp_path, frameworks.bar_only(healthy("rl")))
    assert found.facts["framework"] == "openrlhf" and found.facts["steps_are_rows"] and len(found.frame) == 200


def test_openrlhf_evaluation(tmp_path: Path) -> None:
    text = frameworks.openrlhf(healthy("rl")[:30], bars=False)
    text += "INFO ppo_trainer.py:601] \u2728 Evaluation completed in 0:00:31, global_step 30, eval_metrics: {'eval_aime_pass1': 0.31}\n"
    found = trace(tmp_path, text)
    held = [column for key, column in found.frame.columns.items() if key.axis == "eval"]
    assert [(column.raw_key, column.values[-1]) for column in held] == [("eval_aime_pass1", 0.31)]


# -- what no reader can recover ---------------------------------------------------------------------------------------------
def test_trl_means_of_the_finite_part_are_said_where_one_was_not_finite(tmp_path: Path) -> None:
    row = "{{'loss': 0.1, 'grad_norm': 0.2, 'reward': 0.5, 'frac_reward_zero_std': 0.1, 'kl': {}, 'epoch': 0.1}}"
    lines = [row.format(0.01) for _ in range(20)]
    assert not any("TRL" in w for w in trace(tmp_path, "\n".join(lines)).warnings)
    found = trace(tmp_path, "\n".join([*lines, row.format("None")]))
    assert any("TRL drops NaNs" in w for w in found.warnings) and found.facts["trainer"] == "trl"


def test_nemo_rl_sentinel_is_said(tmp_path: Path) -> None:
    head = "step,train/loss,train/grad_norm,train/probs_ratio_max\n"
    rows = "".join(f"{s},0.01,0.2,{-1.0 if s == 15 else 1.4}\n" for s in range(1, 31))
    found = trace(tmp_path, head + rows, "metrics.csv")
    assert any("probs_ratio_max is -1.0 in 1 rows (first at step 15)" in w for w in found.warnings)


# -- details of one format each ---------------------------------------------------------------------------------------------
def test_mindspeed_rl_zero_is_quantised_and_a_broken_line_goes_on(tmp_path: Path) -> None:
    text = "[2026-08-01 10:00:00] iteration: 5 / 1000 | actor/pg_loss : 0.0000 | actor/lr : 1.000000e-06 |\ngrad_norm : 0.3100 | grpo/rewards/mean : 0.5000 | \n"
    found = trace(tmp_path, text)
    assert state(found, "policy_loss", 5) == QUANTISED and series(found, "grad_norm") == {5: 0.31}
    assert found.facts["total_steps"] == 1000


def test_megatron_guards_are_told_apart(tmp_path: Path) -> None:
    line = " iteration        {}/    1000 | consumed samples: 320 | lm loss: 8.1E+00 | loss scale: 1.0 | grad norm: 1.2 |{}"
    new = "\n".join("[2026-08-01 10:00:00.000000]" + line.format(s, "") for s in range(1, 4))
    found = trace(tmp_path, new)
    assert (found.facts["framework"], found.facts["loss_guard"]) == ("megatron", ">=")
    old = "\n".join("[2026-08-01 10:00:00]" + line.format(s, " core attn ratio (%): 12.1 |") for s in range(1, 4))
    found = trace(tmp_path, old)
    assert (found.facts["framework"], found.facts["loss_guard"]) == ("mindspeed-llm", ">")


def test_nemo_rl_blocks_without_their_heads_are_counted(tmp_path: Path) -> None:
    found = trace(tmp_path, frameworks.nemo_rl(healthy("rl"), heads=False))
    assert found.facts["steps_are_rows"] and len(found.frame) == 200 and found.facts["framework"] == "nemo-rl"


def test_nemo_rl_validation_is_of_its_step(tmp_path: Path) -> None:
    run = healthy("rl")
    got = series(trace(tmp_path, frameworks.nemo_rl(run)), "accuracy", "eval")
    assert got == pytest.approx({s: run[s - 1]["reward_mean"] / 2 for s in range(20, 201, 20)}, abs=1e-4)


def test_olmo_imbalance_is_the_violation_by_layer(tmp_path: Path) -> None:
    found = trace(tmp_path, consoles.olmo(healthy("sft")))
    for layer in range(3):
        column = found.detail.columns[Key("moe_max_vio", layer=layer)]
        assert column.values[0] == pytest.approx(0.25 + layer / 8, abs=1e-3)


def test_nanogpt_estimates_alone_are_both_axes(tmp_path: Path) -> None:
    run = healthy("sft")
    found = trace(tmp_path, consoles.nanogpt(run, iterations=False))
    assert set(series(found, "loss")) == set(series(found, "loss", "eval")) == set(range(19, 200, 20))


def test_a_time_before_anything_is_timed_is_no_failure(tmp_path: Path) -> None:
    found = trace(tmp_path, consoles.modded_nanogpt(healthy("sft")))
    assert not any(s in BAD_STATES for column in found.frame.columns.values() for s in column.states.values())
    assert found.facts["total_steps"] == 200


def test_deepspeed_chat_epochs_and_engines_do_not_restart_the_steps(tmp_path: Path) -> None:
    run = curves.rl(4, critic=True)
    found = trace(tmp_path, frameworks.deepspeed_chat(run, epochs=4))
    assert found.frame.steps == list(range(200)) and set(found.frame.segments) == {0}
    assert series(found, "value_loss", role="critic")[150] == run[150]["value_loss"]
    assert set(series(found, "lr").values()) <= {row["lr"] for row in run}


def test_deepspeed_chat_losses_of_every_rank_are_split(tmp_path: Path) -> None:
    lines = []
    for epoch in range(2):
        for step in range(20):
            lines += [f"Epoch: {epoch}, Step: {step}, Rank: {rank}, loss = {3 - step / 50 + rank}" for rank in range(2)]
        lines.append(
            "[2026-08-01 10:00:00,018] [INFO] [logging.py:96:log_dist] [Rank 0] step=5, skipped=0, lr=[1e-05], mom=[]"
        )
    found = trace(tmp_path, "\n".join(lines))
    assert found.frame.steps == list(range(40)) and set(found.frame.segments) == {0}
    assert found.detail.columns[Key("loss", rank=1)].values[0] == 4.0


@pytest.mark.parametrize("style", ["simple", "json"])
def test_fairseq_overflows_are_events_between_rows(tmp_path: Path, style: str) -> None:
    run = faults.scale_search(healthy("sft"))
    found = trace(tmp_path, consoles.fairseq(run, style=style))
    skipped = [int(row["step"]) for row in run if row["skipped"]]
    events = [event for event in found.events if event.kind == "overflow"]
    assert len(events) == len(skipped) and not set(series(found, "loss")) & set(skipped)
    assert document(diagnose(found))["verdict"] == "healthy"


def test_fairseq_epoch_means_are_read_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    run = healthy("sft")
    both = consoles.fairseq(run)
    alone = "\n".join(line for line in both.splitlines() if "train_inner" not in line)
    assert series(trace(tmp_path, both), "loss")[50] == pytest.approx(run[49]["loss"], abs=1e-3)
    mean = sum(row["loss"] for row in run[:50]) / 50
    assert series(trace(tmp_path, alone), "loss")[50] == pytest.approx(mean, abs=1e-3)


def test_ms_swift_console_gives_its_own_step(tmp_path: Path) -> None:
    rows = [
        f"{{'loss': {3 - s / 50}, 'grad_norm': 0.5, 'epoch': 0.1, 'global_step/max_steps': '{5 * s}/400'}}"
        for s in range(1, 30)
    ]
    found = trace(tmp_path, "\n".join(rows))
    assert (found.frame.steps, found.facts["framework"]) == (list(range(5, 150, 5)), "ms-swift")


@pytest.mark.parametrize(
    "line",
    [
        "step: 2  loss: 1.2  grad_norm: 0.3",  # shaped like torchtitan, anybody's
        "iter 3: loss 2.1, val 0.3",
        "Iter 3: something else 2.1",
    ],
)
def test_an_anonymous_loop_gets_no_framework(tmp_path: Path, line: str) -> None:
    text = f"{line}\nstep: 3  loss: 1.1  grad_norm: 0.3\nstep: 4  loss: 1.0  grad_norm: 0.3"
    assert "framework" not in trace(tmp_path, text).facts


def test_olmo_evaluations_and_crashes_belong_to_the_step_before(tmp_path: Path) -> None:
    text = consoles.olmo(healthy("sft")[:30])
    text += "2025-01-01 INFO Finished LM evals in 31.2 seconds. Metrics:\n    c4_en-validation/CE loss=3.213\n"
    text += "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    found = trace(tmp_path, text)
    assert series(found, "loss", "eval") == {30: 3.213}
    assert {event.step for event in found.events} == {30}


@pytest.mark.parametrize("write", [consoles.olmo, lambda run: frameworks.nemo_rl([{**r, "policy_loss": r["loss"], "mismatch_kl": 0.001, "reward_mean": 0.5, "length_mean": 9.0, "gen_time": 1.0} for r in run])], ids=["olmo", "nemo"])  # fmt: skip
def test_a_record_belongs_to_the_rank_that_printed_it(tmp_path: Path, write: Callable[[Run], str]) -> None:
    lines = [f"[rank0]:{line}" for line in write(healthy("sft")[:30]).splitlines()]
    lines = [
        part
        for line in lines
        for part in ((line, "[rank3]: a=1 loaded: x") if "tep" in line and "/" in line else (line,))
    ]
    lines.insert(len(lines), "[rank3]: done: 1")
    found = trace(tmp_path, "\n".join(lines))
    assert found.frame.steps == list(range(1, 31)) and not found.facts["steps_are_rows"]
    assert all(len(column.values) == 30 for column in found.frame.columns.values() if column.key.axis == "train")


def test_nemo_rl_performance_bullets_are_no_timings(tmp_path: Path) -> None:
    more = "\n\U0001f50d Performance Metrics:\n  \u2022 Mean Total Tokens per Sample: 204.01\n    - E2E (Tokens/sec/gpu): 28.69\n"
    text = "".join(frameworks.nemo_rl([row]) + more for row in healthy("rl")[:20])
    found = trace(tmp_path, text)
    assert found.frame.steps == list(range(1, 21)) and found.unrecognised == []


@pytest.mark.parametrize(
    "format, framework",
    [
        ("verl console new", "verl"), ("verl jsonl new", "verl"), ("hf console 4", None), ("hf console 5 bar", None), ("trainer_state", "hf"),
        ("ms-swift", "ms-swift"), ("llamafactory", "llama-factory"), ("megatron", "megatron"), ("megatron-deepspeed", "megatron"), ("csv", None),
    ],
)  # fmt: skip
def test_the_other_frameworks_are_still_told(tmp_path: Path, format: str, framework: str | None) -> None:
    file, write = cases.FORMATS[format]
    run = healthy("rl" if format in cases.RL_FORMATS else "sft")
    found = trace(tmp_path, write(run), file)
    assert found.facts.get("framework") == framework
    assert found.facts.get("trainer") == ("trl" if format.startswith("hf console") else None)
