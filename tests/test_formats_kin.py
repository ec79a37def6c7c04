"""Kin of well-known loops, and lines that a ticket cut off: what is read, and what must not be concluded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.trace import Key, Trace
from faultproxy.proxy.lab.writers import Run, megatron

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import consoles, curves, kin
from generators.faults import nonfinite

KIN = {
    "megatron 2019": (kin.megatron_2019, "megatron-text", "megatron", 1),
    "nanotron": (kin.nanotron, "megatron-text", "nanotron", 1),
    "nemo": (kin.nemo, "megatron-text", "nemo", 0),
    "llama2.c": (kin.llama2c, "nanogpt-console", "nanogpt", 0),
}


def sft(steps: int = 200) -> Run:
    return curves.evaluated(curves.pretrain(4, steps), 4)


def trace(folder: Path, text: str) -> Trace:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    (found,) = read([str(path)])
    return found


def series(found: Trace, signal: str, axis: str = "train") -> dict[int, float | None]:
    column = found.frame.columns[Key(signal, axis=axis)]
    return {found.frame.steps[row]: value for row, value in enumerate(column.values) if column.cell(row) is not None}


@pytest.mark.parametrize("name", KIN)
def test_every_row_is_read_at_its_step(tmp_path: Path, name: str) -> None:
    write, format, framework, first = KIN[name]
    run = sft()
    found = trace(tmp_path, write(run))
    got = series(found, "loss")
    assert list(got) == list(range(first, first + 200)) and found.sources[0].unparsed == 0
    assert list(got.values()) == pytest.approx([row["loss"] for row in run], rel=0.01)
    assert found.sources[0].format.split("+")[0] == format and found.facts["framework"] == framework
    assert diagnose(found).verdict == "healthy"


@pytest.mark.parametrize("name", KIN)
def test_a_loss_that_is_not_finite_is_found_at_its_step(tmp_path: Path, name: str) -> None:
    write, _, _, first = KIN[name]
    got = diagnose(trace(tmp_path, write(nonfinite(sft(), 150, keys=("loss",)))))
    assert (got.failure_type, got.first_bad_step) == ("nonfinite_loss", 149 + first)


def test_the_validation_loss_of_2019_has_no_word_value(tmp_path: Path) -> None:
    run = sft()
    got = series(trace(tmp_path, kin.megatron_2019(run)), "loss", "eval")
    assert got == pytest.approx({int(row["step"]): row["eval_loss"] for row in run if "eval_loss" in row}, rel=1e-5)


def test_shortened_numbers_have_their_size(tmp_path: Path) -> None:
    run = sft(20)
    got = series(trace(tmp_path, kin.nanotron(run)), "consumed_tokens")
    assert got[20] == pytest.approx(run[-1]["tokens"], rel=0.01)


@pytest.mark.parametrize("write", [kin.nemo, kin.nanotron, megatron], ids=["nemo", "nanotron", "megatron"])
@pytest.mark.parametrize("kept", [0.35, 0.5, 0.65, 0.9])
def test_a_line_that_was_cut_off_hides_nothing_on_purpose(
    tmp_path: Path, write: Callable[[Run], str], kept: float
) -> None:
    *lines, last = write(sft(30)).splitlines()
    found = trace(tmp_path, "\n".join([*lines, last[: int(len(last) * kept)]]) + "\n")
    assert diagnose(found).verdict == "healthy"
    losses = [value for value in series(found, "loss").values() if value is not None]
    assert len(losses) >= 29 and min(losses) > 1.5


def test_a_missing_loss_is_still_missing_in_the_last_line(tmp_path: Path) -> None:
    text = megatron(nonfinite(sft(30), 30, keys=("loss", "grad_norm"), value=math.nan))
    assert diagnose(trace(tmp_path, text)).failure_type in ("nonfinite_loss", "nonfinite_gradient")


def test_a_clock_in_every_row_is_no_run_summary(tmp_path: Path) -> None:
    rows = [
        {
            "loss": f"{row['loss']:.4g}",
            "grad_norm": f"{row['grad_norm']:.4g}",
            "epoch": "0.1",
            "train_runtime": f"{at}.5",
        }
        for at, row in enumerate(sft(20))
    ]
    found = trace(tmp_path, "\n".join(map(str, rows)) + "\n")
    assert len(found.frame) == 20 and not found.events


def test_a_row_cut_before_its_step_does_not_overwrite_the_row_before(tmp_path: Path) -> None:
    row = (
        "{{'loss': 2.0{n}, 'grad_norm': {norm}, 'epoch': 0.0, 'global_step/max_steps': '{n}/90', 'memory(GiB)': 6.5}}\n"
    )
    bar = "Train:   4%|#         | {n}/90 [00:14<02:00, 14.58s/it]\n"
    text = "".join(row.format(n=n, norm=1.5) + bar.format(n=n) for n in range(1, 5))
    found = trace(tmp_path, text + row.format(n=5, norm="nan")[:42])
    assert series(found, "grad_norm") == {1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5, 5: None}


TRACEBACK = """Traceback (most recent call last):
  File "/opt/app/train.py", line 30, in <module>
    main()
  File "/opt/app/train.py", line 12, in main
    loss.backward()
"""


@pytest.mark.parametrize("kept", [3, 4, 5])
def test_a_log_that_ends_in_a_traceback_has_crashed(tmp_path: Path, kept: int) -> None:
    got = diagnose(trace(tmp_path, megatron(sft(30)) + "".join(TRACEBACK.splitlines(True)[:kept])))
    assert (got.failure_type, got.first_bad_step) == ("crash", 30)


def test_a_traceback_without_its_head_is_known_by_its_frames(tmp_path: Path) -> None:
    found = trace(tmp_path, "".join(TRACEBACK.splitlines(True)[1:]) + "some.package.errors.ChildFailedError: \n")
    assert [event.kind for event in found.events] == ["exception"] and "ChildFailedError" in found.events[0].text


def test_a_traceback_that_training_goes_on_after_is_no_end(tmp_path: Path) -> None:
    head, *rest = megatron(sft(60)).splitlines(True)
    assert diagnose(trace(tmp_path, head + TRACEBACK + "".join(rest))).verdict == "healthy"


@pytest.mark.parametrize("last", ["ValueError: not enough values", "torch.OutOfMemoryError: CUDA out of memory."])
def test_a_named_exception_is_said_once(tmp_path: Path, last: str) -> None:
    found = trace(tmp_path, megatron(sft(30)) + TRACEBACK + last + "\n")
    assert len(found.events) == 1


def test_a_plain_exception_counts(tmp_path: Path) -> None:
    text = TRACEBACK + "Exception: Skipped 50 iterations in a row due to Overflow - Exiting training.\n"
    assert [event.kind for event in trace(tmp_path, text).events] == ["exception"]


@pytest.mark.parametrize(
    "line", ["Killed", "/var/spool/slurmd/job/slurm_script: line 28:  8156 Killed     python3 main.py"]
)
def test_the_shell_says_that_a_signal_ended_the_run(tmp_path: Path, line: str) -> None:
    found = trace(tmp_path, megatron(sft(30)) + line + "\n")
    assert [(event.kind, event.step, event.value) for event in found.events] == [("killed", 30, 137.0)]
    assert diagnose(found).failure_type == "crash"


def test_the_loss_of_a_cut_line_of_nanogpt_counts(tmp_path: Path) -> None:
    text = consoles.nanogpt(sft(30)) + "iter 30: loss nan, time 13\n"
    got = diagnose(trace(tmp_path, text))
    assert (got.failure_type, got.first_bad_step) == ("nonfinite_loss", 30)


@pytest.mark.parametrize("host", ["10.96.202.{}", "worker-{}", "gpu25{}"])
def test_what_every_node_prints_is_one_row(tmp_path: Path, host: str) -> None:
    rows = [str({"loss": round(row["loss"], 4), "epoch": 0.0}) for row in sft(20)]
    lines = [f"{host.format((at + node) % 3)}: {row}" for at, row in enumerate(rows) for node in range(3)]
    found = trace(tmp_path, "\n".join(lines) + "\n")
    assert len(found.frame) == 20


def test_what_a_node_prints_twice_is_two_rows(tmp_path: Path) -> None:
    row = "{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.66}"
    found = trace(tmp_path, f"worker-0: {row}\nworker-1: {row}\n" * 4)
    assert len(found.frame) == 4


def test_a_number_that_is_not_finite_under_an_unknown_name_is_said(tmp_path: Path) -> None:
    rows = [f"step {n} | loss 2.{n} | lr 1e-3 | zorble_q {'inf' if n > 6 else n / 7}" for n in range(1, 10)]
    found = trace(tmp_path, "\n".join(rows) + "\n")
    assert any("not finite under a name that no rule judges: zorble_q (from step 7)" in note for note in found.warnings)


def test_a_table_that_stresses_its_numbers(tmp_path: Path) -> None:
    rows = [f"| {n} | {2 - n / 100:.2f} | 1.{n} |" for n in range(0, 60, 10)] + ["| **60** | **nan** | `inf` |"]
    found = trace(tmp_path, "| step | **loss** | grad_norm |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    got = diagnose(found)
    assert found.frame.steps[-1] == 60
    assert (got.failure_type, got.first_bad_step) == ("nonfinite_loss", 60)


@pytest.mark.parametrize(
    "line, kind",
    [
        ("WARNING:root:grad_norm became NaN. Stopping training.", "nonfinite_gradient_text"),
        ("the gradients contain NaN on rank 1", "nonfinite_gradient_text"),
        ("grad norm is 1.2, loss = nan", "nonfinite_text"),
        ("loss is nan at step 3", "nonfinite_text"),
    ],
)
def test_a_message_says_what_was_not_finite(tmp_path: Path, line: str, kind: str) -> None:
    assert [event.kind for event in trace(tmp_path, line + "\n").events] == [kind]
