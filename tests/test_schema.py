"""The canonical trace on disk: it loses nothing, says what is wrong with a file, and is written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from faultproxy.analyzer import canonical
from faultproxy.analyzer.canonical import ValuesWriter, read_samples, write_file, write_folder, write_samples
from faultproxy.analyzer.cli import faultproxy
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError, SchemaError
from faultproxy.analyzer.ingest import canonical as reader
from faultproxy.analyzer.ingest import ondisk, read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.schema import VALUES, arrow, validate
from faultproxy.analyzer.trace import NAN, QUANTISED, Cell, Column, Frame, Key, Trace
from faultproxy.analyzer.views import Views


# -- traces in several formats ----------------------------------------------------------------------------------------
def jsonl(folder: Path) -> Path:
    """A loss that turns NaN, written as bare NaN, with an unknown key and a restart."""
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2 - s / 50, "grad_norm": 1.0, "odd/key": s} for s in range(30)]
    rows += [{"step": s, "loss": float("nan"), "grad_norm": 1.0} for s in range(20, 60)]
    return _write(folder / "run.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n")


def verl(folder: Path) -> Path:
    lines = [
        f"step:{s} - actor/pg_loss:{0.1 / (s + 1):.3f} - actor/grad_norm:{'nan' if s > 40 else 0.5} - "
        f"critic/rewards/mean:0.{s:02d} - val-core/gsm8k/reward/mean@1:0.{s:02d} - response_length/max:{s + 100}.0"
        for s in range(1, 60)
    ]
    return _write(
        folder / "verl.log", "\n".join([*lines, "Traceback (most recent call last):", "ValueError: x"]) + "\n"
    )


def table(folder: Path) -> Path:
    rows = [f"{s},{1 / (s + 1)},{'' if s % 3 else 'inf'},0.000" for s in range(40)]
    return _write(folder / "run.csv", "\n".join(["step,loss,grad_norm,kl_ref", *rows]) + "\n")


def ranks(folder: Path) -> Path:
    """Four ranks, one of which turns NaN first."""
    run = folder / "job"
    run.mkdir()
    for rank in range(4):
        rows = [{"step": s, "loss": 1.0 + rank, "grad_norm": float("nan") if s > 20 + rank else 1.0} for s in range(40)]
        _write(run / f"rank_{rank}.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n")
    return run


def layers(folder: Path) -> Path:
    rows = [{"step": s, "loss": 1.0, **{f"moe/max_vio/layer_{i}": 1.0 + i * s for i in range(3)}} for s in range(30)]
    return _write(folder / "layers.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n")


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _report(trace: Trace) -> dict[str, Any]:
    """The diagnosis without what names files."""
    report = document(diagnose(trace))
    del report["run"]["sources"], report["reproduce"]
    return report


def _rows(path: Path, order: str = "") -> list[tuple[Any, ...]]:
    with duckdb.connect() as con:
        return con.execute(f"SELECT * FROM read_parquet('{path}') {order}").fetchall()


# -- round trips ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [jsonl, verl, table, ranks, layers])
@pytest.mark.parametrize("form", ["trace.parquet", "job.trace"])
def test_a_canonical_trace_gives_the_same_diagnosis_and_the_same_table_again(
    make: Callable[[Path], Path], form: str, tmp_path: Path
) -> None:
    write = write_file if form.endswith(".parquet") else write_folder
    original = read([str(make(tmp_path))])[0]
    write(original, tmp_path / form)
    again = read([str(tmp_path / form)])[0]
    assert _report(original) == _report(again)
    write(again, tmp_path / f"second-{form}")
    values = [
        tmp_path / name / ("" if form.endswith(".parquet") else "values.parquet") for name in (form, f"second-{form}")
    ]
    assert _rows(values[0]) == _rows(values[1])
    validate(values[0])


def test_rows_are_sorted_and_row_groups_end_where_the_signal_changes(tmp_path: Path) -> None:
    write_file(read([str(ranks(tmp_path))])[0], tmp_path / "a.parquet")
    order = (
        "ORDER BY run, signal, stat NULLS FIRST, layer NULLS FIRST, expert NULLS FIRST, rank NULLS FIRST, segment, step"
    )
    assert _rows(tmp_path / "a.parquet", order) == _rows(tmp_path / "a.parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    signals = [set(file.read_row_group(i)["signal"].to_pylist()) for i in range(file.num_row_groups)]
    assert signals == [{"grad_norm"}, {"loss"}]
    assert file.schema_arrow.field("signal").type == pa.dictionary(pa.int32(), pa.string())


def test_a_step_without_a_readable_value_and_column_order_survive(tmp_path: Path) -> None:
    frame = Frame([1, 2, 3], [0, 0, 0], [0, 0, 0], [1, 2, 3])
    frame.columns = {
        Key("entropy"): Column(Key("entropy"), "actor/entropy_loss", [1.0, None, 2.0]),
        Key("loss", role="actor"): Column(Key("loss", role="actor"), "actor/loss", [None, None, 5.0]),
        Key("loss"): Column(Key("loss"), "loss"),
    }
    write_file(Trace("r", frame), tmp_path / "a.parquet")
    again = read([str(tmp_path / "a.parquet")])[0]
    assert [1, 2, 3] == again.frame.steps
    assert list(frame.columns) == list(again.frame.columns)
    assert "actor/entropy_loss" == again.frame.columns[Key("entropy")].raw_key


def test_only_the_first_thousand_events_fit_a_lone_file_and_the_reader_says_so(tmp_path: Path) -> None:
    trace = read([str(jsonl(tmp_path))])[0]
    from faultproxy.analyzer.trace import Event

    trace.events = [Event("overflow", f"skip {i}", i) for i in range(1200)]
    assert 200 == write_file(trace, tmp_path / "a.parquet").dropped_events
    again = read([str(tmp_path / "a.parquet")])[0]
    assert trace.events[:1000] == again.events
    assert any("1000 of 1200 events" in warning for warning in again.warnings)
    write_folder(trace, tmp_path / "a.trace")
    assert trace.events == read([str(tmp_path / "a.trace")])[0].events


def test_parts_of_a_trace_folder_are_not_read_as_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write_folder(read([str(jsonl(tmp_path))])[0], tmp_path / "runs" / "a.trace")
    (trace,) = read([str(tmp_path / "runs")])
    assert [] == trace.warnings and len(trace.sources) == 2


# -- keys and precedence ----------------------------------------------------------------------------------------------
def test_a_key_is_written_once_and_an_exact_number_beats_a_rounded_zero(tmp_path: Path) -> None:
    key = Key("loss")
    column = Column(key, "loss", [0.0, 0.004, 7.0, 8.0], {0: QUANTISED})
    trace = Trace("r", Frame([1, 1, 2, 2], [0] * 4, [0] * 4, [1, 2, 3, 4], {key: column}))
    write_file(trace, tmp_path / "a.parquet")
    validate(tmp_path / "a.parquet")
    assert [(1, 0.004), (2, 7.0)] == [(row[3], row[12]) for row in _rows(tmp_path / "a.parquet")]
    assert ["2 values were written twice for one key; the canonical trace keeps one of each"] == trace.warnings


def test_indices_beyond_the_types_and_broken_text_are_kept_as_text(tmp_path: Path) -> None:
    key = Key("x\ud800", layer=99_999)
    detail = Frame([1], [0], [0], [1], {key: Column(key, "x", [1e300 * 1e300])})
    write_file(Trace("r", detail=detail), tmp_path / "a.parquet")
    (row,) = _rows(tmp_path / "a.parquet")
    assert ("layer[99999]", "x?", None, "pos_inf") == (row[7], row[9], row[12], row[13])


# -- validation -------------------------------------------------------------------------------------------------------
_GOOD: dict[str, Any] = {
    "run": "r", "segment": 0, "axis": "train", "step": 1, "signal": "loss", "value": 1.0, "state": "finite", "source": 0, "line": 1,
}  # fmt: skip


def _file(path: Path, *changes: dict[str, Any], schema: Any = None) -> Path:
    rows = [{**_GOOD, "step": n, **change} for n, change in enumerate(changes)]
    plain = pa.schema([pa.field(f.name, f.type) for f in (schema or arrow(VALUES))])  # nulls may be anywhere
    pq.write_table(pa.Table.from_pylist(rows, plain), path)
    return path


def test_every_content_problem_is_named_at_once(tmp_path: Path) -> None:
    path = _file(
        tmp_path / "bad.parquet",
        {"state": "weird"},
        {"state": NAN, "value": 2.0},
        {"value": None},
        {"step": -4},
        {"axis": "training"},
        {"value": float("nan")},
        {"signal": None},
        {"step": 50},
        {"step": 50, "stat": "mean"},
    )
    with pytest.raises(SchemaError) as caught:
        validate(path)
    text = str(caught.value)
    for part in (
        "unknown state 'weird'; allowed are finite, quantised",
        "a value beside state 'nan'",
        "no value though state says there is one",
        "negative step -4",
        "unknown axis 'training'",
        "NaN or infinity as a value",
        "null in column signal",
        "'loss' at step 50",
    ):
        assert part in text
    with pytest.raises(InputError, match="unknown state"):
        read([str(path)])


def test_missing_columns_and_wrong_types_are_named_at_once(tmp_path: Path) -> None:
    fields = [f for f in arrow(VALUES) if f.name not in ("raw", "module")]
    schema = pa.schema([pa.field("step", pa.float64()) if f.name == "step" else f for f in fields])
    with pytest.raises(SchemaError) as caught:
        validate(_file(tmp_path / "bad.parquet", {}, schema=schema))
    assert "missing columns: module, raw" in str(caught.value)
    assert "column step is DOUBLE, allowed is int64" in str(caught.value)


def test_a_file_of_several_runs_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "two.parquet", {"run": "a"}, {"run": "b"})
    validate(path)
    with pytest.raises(InputError, match="several runs .'a', 'b'."):
        read([str(path)])


@pytest.mark.parametrize("damage", [b"PAR1", b"PAR1" + b"\x01" * 500 + b"PAR1"])
def test_a_damaged_file_is_bad_input(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(damage)
    with pytest.raises(InputError, match=r"x\.parquet"):
        read([str(tmp_path / "x.parquet")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "not of schema 1"),
        ({"sources": [{"path": "x"}]}, "malformed"),
        ({"sources": [{"path": "x", "format": "y", "sha256": "z"}]}, "64 hex digits"),
        ({"columns": [[1, "train", None, None, None, "x"]]}, "must be text"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_malformed_run_facts_are_bad_input(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_folder(read([str(jsonl(tmp_path))])[0], tmp_path / "a.trace")
    facts = tmp_path / "a.trace" / "run.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **change}))
    with pytest.raises(InputError, match=said):
        read([str(tmp_path / "a.trace")])


def test_run_facts_and_events_may_be_missing(tmp_path: Path) -> None:
    path = _file(tmp_path / "plain.parquet", *[{"value": float(n)} for n in range(5)])
    trace = read([str(path)])[0]
    assert ("r", [0.0, 1.0, 2.0, 3.0, 4.0]) == (trace.run, trace.frame.columns[Key("loss")].values)
    assert [str(path)] == [source.path for source in trace.sources]


# -- atomicity --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["a.parquet", "a.trace"])
def test_nothing_is_left_when_writing_fails(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read([str(jsonl(tmp_path))])[0]
    before = sorted(tmp_path.iterdir())

    def fail(self: ValuesWriter, metadata: dict[str, str]) -> None:
        self._writer.close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(canonical.ValuesWriter, "close", fail)
    with pytest.raises(InputError, match="No space left"):
        (write_file if form == "a.parquet" else write_folder)(trace, tmp_path / form)
    assert before == sorted(tmp_path.iterdir())


def test_force_replaces_a_trace_but_never_a_foreign_folder(tmp_path: Path) -> None:
    trace = read([str(jsonl(tmp_path))])[0]
    write_folder(trace, tmp_path / "a.trace")
    with pytest.raises(InputError, match="exists already"):
        write_folder(trace, tmp_path / "a.trace")
    write_folder(trace, tmp_path / "a.trace", force=True)
    (tmp_path / "mine.trace").mkdir()
    _write(tmp_path / "mine.trace" / "thesis.txt", "x")
    with pytest.raises(InputError, match="none of ours"):
        write_folder(trace, tmp_path / "mine.trace", force=True)
    assert (tmp_path / "mine.trace" / "thesis.txt").exists()


# -- rollup and what stays on disk ------------------------------------------------------------------------------------
RANKS, STEPS = 5, 40


def _value(signal: str, rank: int, step: int) -> float | None:
    """Null means NaN: rank 2's gradient is bad from step 30 on."""
    return None if signal == "grad_norm" and rank == 2 and step >= 30 else 1.0 + rank * rank + step / 100


def _split(folder: Path) -> Path:
    """A trace folder in which every value is split by rank; one signal also by layer."""
    rows = [
        {**_GOOD, "signal": signal, "layer": layer, "rank": rank, "step": step, "value": value, "state": "finite" if value is not None else NAN}
        for signal, layer in [("grad_norm", None), ("loss", None), ("moe_max_vio", 3), ("moe_max_vio", 7)]
        for rank in range(RANKS)
        for step in range(STEPS)
        for value in [_value(signal, rank, step)]
    ]  # fmt: skip
    folder.mkdir()
    writer = ValuesWriter(folder / "values.parquet")
    writer.write(pa.Table.from_pylist(rows, arrow(VALUES)))
    writer.close({})
    return folder


def test_the_rollup_is_what_a_hand_computation_gives(tmp_path: Path) -> None:
    trace = _split(tmp_path / "a.trace")
    canonical.rollup.write(trace / "values.parquet", trace / "rollup.parquet")
    with duckdb.connect() as con:
        found = con.execute(
            "SELECT step, n, bad, min, p50, max, argmax_rank, state, first_bad_step FROM read_parquet(?) "
            "WHERE kind = 'step' AND signal = 'grad_norm' ORDER BY step",
            [str(trace / "rollup.parquet")],
        ).fetchall()
        by_rank = con.execute(
            "SELECT rank, n, bad, first_bad_step FROM read_parquet(?) WHERE kind = 'rank' AND signal = 'grad_norm' ORDER BY rank",
            [str(trace / "rollup.parquet")],
        ).fetchall()
    expected = []
    for step in range(STEPS):
        values = [v for rank in range(RANKS) if (v := _value("grad_norm", rank, step)) is not None]
        bad = RANKS - len(values)
        expected.append(
            (
                step,
                RANKS,
                bad,
                min(values),
                median(values),
                max(values),
                4,
                NAN if bad else "finite",
                step if bad else None,
            )
        )
    assert expected == found
    assert [(r, STEPS, 10 if r == 2 else 0, 30 if r == 2 else None) for r in range(RANKS)] == by_rank


@pytest.mark.parametrize("summed", [False, True], ids=["from the values", "from the rollup"])
@pytest.mark.parametrize("sampled", [False, True], ids=["all steps", "chosen steps"])
def test_a_large_file_gives_the_views_that_a_small_one_gives(
    summed: bool, sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _split(tmp_path / "a.trace")
    names = {"rank": {"grad_norm"}, "layer": {"moe_max_vio"}, "train": {"grad_norm", "loss"}}
    small = read([str(path)])[0]
    assert small.table is None and small.facts[canonical.DERIVED]
    monkeypatch.setattr(reader, "DETAIL", 10)
    if sampled:
        monkeypatch.setattr(ondisk, "SAMPLE_FROM", 10)
    if summed:
        canonical.rollup.write(path / "values.parquet", path / "rollup.parquet")
    large = read([str(path)])[0]
    assert large.table is not None
    queries = {
        "train": "SELECT segment, step, grad_norm, grad_norm__state, loss FROM train ORDER BY step",
        "rank": "SELECT step, rank, grad_norm, grad_norm__state FROM rank WHERE step >= 30 ORDER BY ALL",
        "layer": "SELECT step, layer, moe_max_vio, moe_max_vio__state FROM layer ORDER BY ALL",
    }
    for query in queries.values():
        assert Views(small, names).con.execute(query).fetchall() == Views(large, names).con.execute(query).fetchall()
    ours, theirs = _report(large), _report(small)
    assert (ours["verdict"], ours["failure_type"], ours["rank"]) == ("failed", "nonfinite_gradient", 2)
    assert theirs == ours


def test_the_frame_of_a_run_split_by_rank_is_the_median_and_the_worst_state(tmp_path: Path) -> None:
    trace = read([str(_split(tmp_path / "a.trace"))])[0]
    loss, grad = (trace.frame.columns[Key(name)] for name in ("loss", "grad_norm"))
    assert Cell(median(float(_value("loss", r, 7) or 0) for r in range(RANKS))) == loss.cell(7)
    assert Cell(None, NAN) == grad.cell(30)


def test_a_large_trace_is_written_again_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _split(tmp_path / "a.trace")
    monkeypatch.setattr(reader, "DETAIL", 10)
    written = write_folder(read([str(path)])[0], tmp_path / "b.trace")
    assert written.rollup and written.values == RANKS * STEPS * 4
    assert _rows(path / "values.parquet") == _rows(tmp_path / "b.trace" / "values.parquet")


# -- other Parquet, samples, the command ------------------------------------------------------------------------------
def test_a_wide_parquet_table_is_read_and_its_nulls_are_not_logged(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"step": [1, 2, 3, 4], "loss": [1.0, float("nan"), None, 0.5], "eval_loss": [None, None, 2.0, None]}),
        tmp_path / "wide.parquet",
    )
    trace = read([str(tmp_path / "wide.parquet")])[0]
    loss = trace.frame.columns[Key("loss")]
    assert [Cell(1.0), Cell(None, NAN, "NaN"), None, Cell(0.5)] == [loss.cell(row) for row in range(4)]


def test_a_long_parquet_table_is_read(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"step": [1, 1, 2], "metric": ["loss", "grad_norm", "loss"], "value": [1.0, 3.0, 0.5]}),
        tmp_path / "long.parquet",
    )
    trace = read([str(tmp_path / "long.parquet")])[0]
    assert {"loss": [1.0, 0.5], "grad_norm": [3.0]} == {k.column: c.values for k, c in trace.frame.columns.items()}


def test_a_parquet_table_without_a_step_says_what_is_needed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"loss": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="without a step column; got loss"):
        read([str(tmp_path / "x.parquet")])


def test_samples_survive(tmp_path: Path) -> None:
    row = {
        "run": "r",
        "segment": 0,
        "step": 1,
        "sample": 0,
        "reward": 0.5,
        "logp_train": [-0.5, -1.0],
        "mask": [True, False],
    }
    write_samples(tmp_path / "samples.parquet", [row])
    (again,) = read_samples(tmp_path / "samples.parquet")
    assert row == {name: value for name, value in again.items() if value is not None}


def test_the_command_writes_each_form_and_refuses_several_runs_in_one(tmp_path: Path) -> None:
    first, second = str(jsonl(tmp_path)), str(table(tmp_path))

    def run(*args: str) -> Any:
        return CliRunner().invoke(faultproxy, ["ingest", *args])

    done = run(first, "-o", str(tmp_path / "a.parquet"))
    assert (0, "") == (done.exit_code, done.stdout)
    assert "a.parquet: run run.jsonl" in done.stderr
    assert 0 == run(first, second, "-o", f"{tmp_path}/out/").exit_code
    assert ["run.csv.trace", "run.jsonl.trace"] == sorted(p.name for p in (tmp_path / "out").iterdir())
    assert "got 2 runs" in str(run(first, second, "-o", str(tmp_path / "b.trace")).exception)
    assert "allowed are NAME.parquet" in str(run(first, "-o", str(tmp_path / "b.json")).exception)


def test_analyze_of_a_log_does_not_import_arrow(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from faultproxy.analyzer.cli import faultproxy; from faultproxy.analyzer.ingest import read; "
        "from faultproxy.analyzer.diagnose import diagnose; diagnose(read([sys.argv[1]])[0]); print('pyarrow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(jsonl(tmp_path))], capture_output=True, text=True, check=True
    )
    assert "False" == done.stdout.strip()
