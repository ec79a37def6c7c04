"""What machines, launchers, and side formats leave behind: kinds, ranks, steps, and values of what they say."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.ingest.formats import router
from faultproxy.analyzer.ingest.markers import ASIDES, EXACT, LAST, WORDS, cann
from faultproxy.analyzer.trace import Event, Key, Trace

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import machines

#: Kinds that are no verdict's root: they say what followed, or where to look.
ASIDE = {"teardown", "rank_exit", "crash_loop", "collective_progress", "flight_recorder", "plog_error", "rerun_exit"}
LOSS = Key("loss")


def load(folder: Path, text: str, name: str = "run.log") -> Trace:
    path = folder / name
    path.write_text(text)
    (trace,) = read([str(path)])
    return trace


def said(folder: Path, text: str) -> list[Event]:
    """The events of a text behind twenty healthy steps."""
    return [e for e in load(folder, machines.console(20) + text).events if e.kind != "silence"]


def series(trace: Trace, key: Key = LOSS) -> list[float | None]:
    return trace.frame.columns[key].values


@pytest.mark.parametrize(
    ("line", "kind", "rank", "value"), [case[1:] for case in machines.LINES], ids=[case[0] for case in machines.LINES]
)
def test_what_a_line_says(tmp_path: Path, line: str, kind: str, rank: int | None, value: float | None) -> None:  # fmt: skip
    (event,) = (e for e in said(tmp_path, line + "\n") if e.kind != "exception")
    assert (event.kind, event.rank, event.value) == (kind, rank, value)
    assert event.line == 21


def test_lines_of_healthy_runs_name_no_failure(tmp_path: Path) -> None:
    assert [(e.kind, e.text) for e in said(tmp_path, "\n".join(machines.HARMLESS) + "\n")] == []


def test_an_error_code_is_explained_in_its_event(tmp_path: Path) -> None:
    (event,) = said(tmp_path, "NPU function error: aclrtSynchronizeStream, error code is 507054\n")
    assert event.text.startswith("507054 (a multi-bit ECC error in the HBM): NPU function error")


def test_a_code_without_a_row_takes_its_familys_kind(tmp_path: Path) -> None:
    found = said(tmp_path, "EI0077: [PID: 1] x\nEZ4321: [PID: 1] x\nNPU function error: x, error code is 507099\n")
    assert [e.kind for e in found] == ["collective_error", "device_error", "device_error"]


def test_every_code_says_why_it_is_of_its_kind() -> None:
    assert all(code.meaning and code.why for code in (*cann.CODES.values(), *cann.FAMILIES.values()))


def test_torchrun_names_the_first_rank_and_the_others_follow(tmp_path: Path) -> None:
    found = said(tmp_path, machines.torchrun((3, -9), [(5, -6), (11, 1)]))
    by_kind = {kind: [e for e in found if e.kind == kind] for kind in {e.kind for e in found}}
    (root,), (killed,) = by_kind["elastic_failure"], [e for e in by_kind["killed"] if "Root Cause" in e.text]
    assert (root.rank, root.value, killed.rank) == (3, -9.0, 3)
    assert "rank 3 (local_rank: 3) on node-0, exitcode -9 (pid: 4003): Signal 9 (SIGKILL)" in root.text
    assert [(e.rank, e.value) for e in by_kind["rank_exit"]] == [(5, -6.0), (11, 1.0)]
    # What the agent ends after the first failure was not stopped from outside.
    assert "stopped" not in by_kind and len(by_kind["teardown"]) == 7


@pytest.mark.parametrize("cut", [1, 20, 60, 100, 200, 260])
def test_a_torchrun_block_that_is_cut_off_still_names_a_failure(tmp_path: Path, cut: int) -> None:
    text = machines.torchrun((3, 1), teardown=False)
    head = text.index("Root Cause")
    found = said(tmp_path, text[: head + len("Root Cause (first observed failure):") + cut])
    (root,) = (e for e in found if e.kind == "elastic_failure")
    assert root.rank in (None, 3)


def test_torchrun_before_1_10_is_read(tmp_path: Path) -> None:
    text = "Root Cause:\n[0]:\n  time: 2021-06-28_11:32:31\n  rank: 1 (local_rank: 1)\n  exitcode: 1 (pid: 33)\n  error_file: <N/A>\n  msg: \"Process failed with exitcode 1\"\nOther Failures:\n[1]:\n  time: 2021-06-28_11:32:31\n  rank: 0 (local_rank: 0)\n  exitcode: 1 (pid: 32)\n  error_file: <N/A>\n  msg: \"Process failed with exitcode 1\"\n*******\n"  # fmt: skip
    found = said(tmp_path, text)
    assert [(e.kind, e.rank, e.value) for e in found] == [("elastic_failure", 1, 1.0), ("rank_exit", 0, 1.0)]


def test_the_watchdog_gives_rank_and_sequence_number(tmp_path: Path) -> None:
    found = said(tmp_path, machines.watchdog({0: 1202, 3: 1187}))
    timeouts = [(e.rank, e.value) for e in found if e.kind == "collective_timeout" and e.value]
    progress = {e.rank: e.value for e in found if e.kind == "collective_progress"}
    assert timeouts == [(0, 1203.0), (3, 1188.0)]
    assert progress == {0: 1202.0, 3: 1187.0}


@pytest.mark.parametrize(
    ("verdict", "kinds"),
    [
        ("transient", ["rerun_unexpected", "hardware_transient", "rerun_exit"]),
        ("persistent", ["rerun_unexpected", "rerun_reproducible", "rerun_exit", "hardware_error"]),
        ("application", ["rerun_unexpected", "rerun_reproducible", "rerun_exit", "application_error"]),
    ],
)
def test_the_rerun_machine_separates_hardware_from_program(tmp_path: Path, verdict: str, kinds: list[str]) -> None:
    found = said(tmp_path, machines.rerun(verdict))
    assert [e.kind for e in found] == kinds
    assert {(e.rank, e.step) for e in found if e.kind != "rerun_exit"} == {(3, 41)}
    assert [e.value for e in found if e.kind == "rerun_exit"] == [17.0 if verdict == "transient" else 16.0]


@pytest.mark.parametrize("style", ["RerunValidationStatus.{}", "{}"])
def test_the_rerun_machines_tracker_file_is_read_alone(tmp_path: Path, style: str) -> None:
    status = {
        "RERUN_DISABLED": "rerun_unexpected",
        "INITIAL_RUN": "rerun_unexpected",
        "FIRST_RERUN_NOT_REPRODUCIBLE": "hardware_transient",
        "FIRST_RERUN_REPRODUCIBLE": "rerun_reproducible",
        "SECOND_RERUN_NOT_REPRODUCIBLE": "hardware_error",
        "SECOND_RERUN_REPRODUCIBLE": "application_error",
    }
    names = [style.format(name if "." in style else name.lower()) for name in status]
    found = load(tmp_path, machines.tracker(names), "rejected.txt").events
    assert [(e.kind, e.rank, e.step) for e in found] == [(kind, 5, 120) for kind in status.values()]


def test_an_underflow_dump_names_the_first_module_and_each_layers_largest_output(tmp_path: Path) -> None:
    trace = load(tmp_path, machines.underflow(4))
    (event,) = (e for e in trace.events if e.kind == "nonfinite_module")
    assert (event.step, event.line) == (4, 2)
    assert "encoder.block.2.layer.1.dropout (output)" in event.text
    assert "62700 in encoder.block.2.layer.1.DenseReluDense.wo (output), near the largest 16-bit float" in event.text
    cells = {c.key.layer: c.cell(0) for c in trace.detail.columns.values() if c.key.signal == "act_absmax"}
    first, second = cells[1], cells[2]
    assert first is not None and first.value == 510.0
    assert second is not None and second.state == "pos_inf"


def test_an_underflow_dump_in_a_training_log_lies_at_its_last_step(tmp_path: Path) -> None:
    trace = load(tmp_path, machines.console(20) + machines.underflow(7, last="nan"))
    assert trace.frame.steps == list(range(1, 21)) and set(trace.frame.segments) == {0}
    assert [(e.kind, e.step) for e in trace.events] == [("nonfinite_module", 20), ("nonfinite_text", 20)]
    assert all("encoder.block.2.layer.1.dropout (output)" in e.text for e in trace.events)


@pytest.mark.parametrize("form", ["console", "tuple", "json"])
def test_dllogger_is_read_in_each_form(tmp_path: Path, form: str) -> None:
    values = machines.losses(30)
    trace = load(tmp_path, machines.dllogger(values, form))
    assert trace.frame.steps == list(range(30))
    assert series(trace) == pytest.approx(values, abs=1e-4)
    assert "dllogger" in trace.sources[0].format


@pytest.mark.parametrize("form", ["console", "json"])
def test_dlloggers_iterations_go_on_over_epochs(tmp_path: Path, form: str) -> None:
    values = machines.losses(30)
    trace = load(tmp_path, machines.dllogger(values, form, per_epoch=10))
    assert trace.frame.steps == list(range(30)) and set(trace.frame.segments) == {0}
    assert series(trace) == pytest.approx(values, abs=1e-4)
    if form == "console":
        evaluated = [x for x in series(trace, Key("loss", axis="eval")) if x is not None]
        assert evaluated == pytest.approx([values[i] + 0.1 for i in (9, 19, 29)], abs=1e-4)


def test_dlloggers_stream_survives_a_cut_and_a_nan(tmp_path: Path) -> None:
    text = machines.dllogger([3.0, float("nan"), 2.9], "json")
    trace = load(tmp_path, text[:-30] + "\nDLLL not json\nDLLL [1]\n")
    column = trace.frame.columns[LOSS]
    assert trace.frame.steps == [0, 1] and column.states == {1: "nan"}


def test_lightnings_table_keeps_train_validation_and_epoch_apart(tmp_path: Path) -> None:
    values = machines.losses(30)
    trace = load(tmp_path, machines.lightning(values), "metrics.csv")
    assert trace.sources[0].format == "lightning-csv"
    assert series(trace) == pytest.approx(values, abs=1e-6)
    evaluated = [x for x in series(trace, Key("loss", axis="eval")) if x is not None]
    assert evaluated == pytest.approx([values[i] + 0.1 for i in (9, 19, 29)], abs=1e-6)
    assert (
        set(trace.frame.segments) == {0}
        and Key("grad_norm") in trace.frame.columns
        and Key("lr") in trace.frame.columns
    )


def test_a_table_without_lightnings_marks_is_a_plain_table(tmp_path: Path) -> None:
    assert load(tmp_path, "epoch,step,loss\n0,1,2.0\n0,2,1.9\n", "metrics.csv").sources[0].format == "table"


def test_a_table_in_a_markdown_report_is_read_by_name(tmp_path: Path) -> None:
    values = machines.losses(12)
    trace = load(tmp_path, machines.markdown(values), "report.md")
    assert trace.frame.steps == [10 * i for i in range(1, 13)]
    assert series(trace) == pytest.approx(values, abs=1e-4)
    assert series(trace, Key("grad_norm")) == [1.0] * 12


def test_a_markdown_report_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(tmp_path, "# Notes\n\n| option | value |\n|---|---|\n| lr | 0.1 |\n", "report.md")


def test_a_notebooks_progress_table_and_error_are_read(tmp_path: Path) -> None:
    values = machines.losses(12)
    text = machines.notebook(values, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    trace = load(tmp_path, text, "train.ipynb")
    assert trace.frame.steps == [10 * i for i in range(1, 13)]
    assert series(trace) == pytest.approx(values, abs=1e-6)
    assert [(e.kind, e.step) for e in trace.events] == [("out_of_memory", 120)]


def test_a_notebook_on_one_line_and_its_printed_rows_are_read(tmp_path: Path) -> None:
    text = json.dumps(json.loads(machines.notebook([], stream=machines.console(15))))
    assert load(tmp_path, text, "train.ipynb").frame.steps == list(range(1, 16))


def test_a_routing_trace_gives_each_layers_balance(tmp_path: Path) -> None:
    trace = load(tmp_path, machines.router_trace(5, layers=2, experts=8), "router_trace_rank0.jsonl")
    values = {c.key: c.values for c in trace.detail.columns.values()}
    assert values[Key("moe_dead_frac", layer=1)] == [0.0] * 5
    assert values[Key("moe_load_cv", layer=0)] == pytest.approx([0.0] * 5)
    assert values[Key("expert_load", layer=1, expert=7)] == pytest.approx([1 / 8] * 5)
    assert len(trace.frame) == 0


def test_experts_that_get_nothing_are_dead(tmp_path: Path) -> None:
    trace = load(tmp_path, machines.router_trace(4, experts=8, dead=4), "router_trace_rank0.jsonl")
    column = trace.detail.columns[Key("moe_dead_frac", layer=1)]
    assert column.values == [0.5] * 4
    assert trace.detail.columns[Key("moe_max_vio", layer=1)].values == pytest.approx([1.0] * 4)


def test_two_stages_of_one_step_are_compared(tmp_path: Path) -> None:
    text = machines.router_trace(3, layers=1, stages=("training", "inference"), moved=4)
    trace = load(tmp_path, text, "router_trace_rank0.jsonl")
    assert trace.detail.columns[Key("topk_overlap", layer=0)].values == pytest.approx([1 - 4 / 16 / 2] * 3)


def test_gpatchs_lines_and_files_are_read(tmp_path: Path) -> None:
    text = machines.console(3) + machines.moe_dist(2, 5, 48, 64) + "\n"
    trace = load(tmp_path, text)
    assert trace.detail.columns[Key("moe_dead_frac", layer=5)].values == [0.25]
    assert trace.frame.steps == [1, 2, 3]
    record = {"step": 7, "mbs": 0, "layer": 1, "tokens_per_expert": [8, 4, 0, 4], "recompute_factor": 2, "pp_rank": 0}
    trace = load(tmp_path, json.dumps(record) + "\n", "pp0.jsonl")
    assert trace.detail.columns[Key("moe_max_vio", layer=1)].values == [1.0]
    assert trace.detail.columns[Key("expert_load", layer=1, expert=0)].values == [0.5]


HOSTILE = {
    "huge indices": '{"step": 1, "layer": 1, "top_indices": [[99999999999999999999, -5, 3, 4]]}\n',
    "huge step and layer": '{"step": 1e400, "layer": 99999999, "top_indices": [[1]]}\n{"step": 99999999999999999999999, "layer": 1, "top_indices": [[1]]}\n',
    "wrong types": '{"step": 1, "layer": 1, "top_indices": [[{"a": []}], 7, null]}\n{"step": true, "layer": "x", "top_indices": 3}\n{"top_indices": {}}\n',
    "deep": '{"step": 1, "layer": 1, "top_indices": ' + "[" * 100_000 + "\n",
    "cut": machines.router_trace(3)[:-40],
    "counts": '{"step": 1, "layer": 1, "tokens_per_expert": [NaN, Infinity, "x", 3, 1], "recompute_factor": 0}\n',
    "many stages": "".join(f'{{"step": 1, "layer": 1, "stage": "s{i}", "top_indices": [[1, 2]]}}\n' for i in range(2000)),
    "notebook of nothing": '{"cells": [null, 3, {"cell_type": "code", "outputs": [null, {"output_type": "stream", "text": [1, null]}, {"output_type": "x", "data": 3}]}]}',
    "notebook cut off": machines.notebook(machines.losses(5))[:-50],
    "notebook of tags": '{"cells": [{"cell_type": "code", "outputs": [{"output_type": "display_data", "data": {"text/html": "' + "<td><tr><table" * 20_000 + '"}}]}]}',
    "million columns": "epoch,step,train_loss_step," + ",".join(f"m{i}_step" for i in range(200_000)) + "\n0,1,2.0\n",
    "wide markdown": "|" + "a|" * 200_000 + "\n|" + "---|" * 200_000 + "\n" + "|1" * 100_000 + "\n",
    "dashes": "|" + "-" * 300_000 + "\n" + "| step | loss |\n|" + "-" * 190 + "x|\n",
    "dllogger": "DLL 2026-08-01 10:00:00 - " + "Epoch: 1 " * 50_000 + "\nDLL 2026-08-01 10:00:00 - (" + "1, " * 50_000 + ") loss : 1\nDLLL " + '{"a":' * 50_000 + "\n",
    "dump": "Detected inf/nan during batch_number=1\nabs min  abs max  metadata\n" + "".join(f"{'':17} m.{i} Linear\n1.0e+00 2.0e+00 output\n" for i in range(10_000)) + " " * 100_000 + "e+\n",
    "torchrun": "Root Cause (first observed failure):\n[0]:\n  rank      : " + "9" * 100_000 + "\n  exitcode  : " + "-" * 100_000 + "\n" + "Failures:\n" * 2000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_and_hostile_files_are_bounded(tmp_path: Path, name: str) -> None:
    started = time.monotonic()
    try:
        trace = load(tmp_path, HOSTILE[name], "metrics.ipynb" if "notebook" in name else "metrics.log")
    except InputError:
        return
    finally:
        assert time.monotonic() - started < 10
    layers = {c.key.layer for c in trace.detail.columns.values()}
    assert len(layers) <= 2_001 and max((n for n in layers if n is not None), default=0) < 100_000


def test_a_routing_trace_of_many_steps_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_COUNTS", 10_000)
    monkeypatch.setattr(router, "MAX_LOADS", 1_000)
    text = "".join(
        json.dumps({"step": 2 * s + 1, "layer": 0, "top_indices": [[s % 7, 99]]}) + "\n" for s in range(1000)
    )
    trace = load(tmp_path, text, "router_trace_rank0.jsonl")
    assert any("one step in 16 was kept" in warning for warning in trace.warnings)
    kept = trace.detail.steps
    assert 50 < len(kept) <= 72 and kept[0] == 1 and kept[-1] > 1900
    assert (
        sum(c.key.expert is not None and x is not None for c in trace.detail.columns.values() for x in c.values)
        <= 1_100
    )


@pytest.mark.parametrize("filler", ["", "Rank 3] ", "GPU NCCL ", "loss is ", "1 ", "  ", "[a"])
def test_expressions_take_time_linear_in_the_line(filler: str) -> None:
    for row in (*EXACT, *WORDS, *LAST, *ASIDES):
        line = ((row.hint + filler) * 20_000)[:100_000] + "\x00"
        started = time.perf_counter()
        row.pattern.search(line)
        cann.find(line)
        assert time.perf_counter() - started < 1, (row, filler)


@pytest.mark.parametrize("rows", [0, 3])
def test_dlloggers_loss_scale_is_a_series_with_and_without_rows(tmp_path: Path, rows: int) -> None:
    scales = "".join(f"DLL 2026-08-01 10:00:0{i}.179484 - PARAMETER loss_scale : {2.0**s}\n" for i, s in enumerate((19, 18, 17)))  # fmt: skip
    trace = load(tmp_path, scales + machines.dllogger(machines.losses(rows)) if rows else scales)
    values = trace.frame.columns[Key("loss_scale")].values
    assert values == ([2.0**17] if rows else [2.0**19, 2.0**18, 2.0**17])
    assert trace.frame.steps == ([0, 1, 2] if rows else [1, 2, 3])
