"""What must hold for every input: tokens, readers, and the log they fill, under generated text and bytes."""

from __future__ import annotations

import gzip
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faultproxy.analyzer.errors import FaultproxyError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import natural
from faultproxy.analyzer.ingest.tokens import native, number, pairs
from faultproxy.analyzer.trace import FINITE, QUANTISED, STATES, Cell, Frame, Source, Trace

#: The same examples on every machine: a failure in CI is one that anybody can repeat.
FIXED = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])  # fmt: skip

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.one_of(st.integers(0, 50), st.integers(-5, 2**64))
KEYS = st.sampled_from(["loss", "grad_norm", "actor/grad_norm", "critic/rewards/mean", "eval/loss", "rollout/moe/max_vio/layer_3", "mystery", "lr", "train/loss"])  # fmt: skip
CELLS = st.one_of(FLOATS.map(Cell), st.sampled_from(STATES[2:]).map(lambda state: Cell(None, state)))
WORDS = ["step:1 - ", "actor/grad_norm:", "nan", "1.0", "np.float64(", ")", "{'", "': ", "'loss'", "iteration 3/ 9 |", " lm loss: ", " | ", '{"step":', '"data":{', "}}", "\n", "\r", "\x1b[31m", "step,loss", ",", "[rank1]: ", "(A pid=1) ", "Error: ", "CUDA out of memory", '[{"step":1,"loss":2}', "]", "loss=", " ", "\t", "9" * 20, "-1", "\x00"]  # fmt: skip
#: Text that looks enough like a log to get past the first test of each reader.
LOGLIKE = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=5)), max_size=80).map("".join)


def _read(data: bytes, name: str = "run.log") -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        (trace,) = read([str(path)])
        return trace


def _frames(trace: Trace) -> tuple[object, ...]:
    """What a trace says about values, without paths, hashes, and line numbers."""
    return tuple(
        (
            frame.steps,
            frame.segments,
            {key: [column.cell(row) for row in range(len(frame))] for key, column in frame.columns.items()},
        )
        for frame in (trace.frame, trace.detail)
    )


def _sound(frame: Frame) -> None:
    rows = len(frame.steps)
    assert {len(frame.segments), len(frame.sources), len(frame.lines)} == {rows}
    for column in frame.columns.values():
        assert len(column.values) <= rows
        assert all(0 <= row < len(column.values) for row in (*column.states, *column.raws))
        for row, value in enumerate(column.values):
            cell = column.cell(row)
            if cell is not None:
                assert (value is not None) == (cell.state in (FINITE, QUANTISED))
                assert value is None or math.isfinite(value)


# -- tokens -----------------------------------------------------------------------------------------------------------
@FIXED
@given(FLOATS)
def test_number_reads_what_repr_writes(value: float) -> None:
    cell = number(repr(value))
    assert cell is not None and (cell.value, cell.state) == (value, FINITE)


@FIXED
@given(st.floats(), st.sampled_from(["{}", "'{}'", "np.float64({})", "tensor({})", "tensor({}, device='cuda:0')", " {} "]))  # fmt: skip
def test_wrapped_numbers_are_the_number(value: float, form: str) -> None:
    cell = number(form.format(value).strip("'"))
    assert cell is not None
    assert cell.value == (value if math.isfinite(value) else None)


@FIXED
@given(st.one_of(st.text(), LOGLIKE, st.from_regex(r"[+-]?[\d.,eE]{1,30}%?", fullmatch=True)))
def test_number_never_raises_and_states_agree(token: str) -> None:
    for cell in (number(token), native(token)):
        assert cell is None or (cell.value is not None) == (cell.state in (FINITE, QUANTISED))
        assert cell is None or cell.value is None or math.isfinite(cell.value)


@FIXED
@given(st.one_of(st.integers(), FLOATS, st.floats(), st.booleans(), st.none(), st.lists(st.integers()), st.just(10**5000)))  # fmt: skip
def test_native_never_raises(value: object) -> None:
    cell = native(value)
    assert cell is None or cell.value is None or math.isfinite(cell.value)


@FIXED
@given(st.one_of(st.text(), LOGLIKE))
def test_pairs_terminate_and_come_from_the_text(text: str) -> None:
    found = list(pairs(text))
    assert len(found) <= len(text)
    assert all(key in text and token in text for key, token in found)


@FIXED
@given(st.dictionaries(st.from_regex(r"[a-z_/]{1,20}", fullmatch=True), st.floats(), max_size=6))
def test_pairs_read_a_printed_dict(values: dict[str, float]) -> None:
    found = {key: number(token) for key, token in pairs(str(values))}
    assert {key: cell.value for key, cell in found.items() if cell} == {k: v if math.isfinite(v) else None for k, v in values.items()}  # fmt: skip


@FIXED
@given(st.lists(st.text(max_size=12), max_size=8))
def test_natural_order_takes_any_name(names: list[str]) -> None:
    assert len(sorted(names, key=natural)) == len(names)


# -- readers ----------------------------------------------------------------------------------------------------------
@FIXED
@pytest.mark.parametrize("name", ["run.log", "run.jsonl", "run.csv", "run.json", "run.parquet", "run.log.gz", "run.log.zst"])  # fmt: skip
@given(data=st.one_of(st.binary(max_size=400), LOGLIKE.map(lambda text: text.encode("utf-8", "replace"))))
def test_any_file_is_read_or_refused(name: str, data: bytes) -> None:
    try:
        trace = _read(data, name)
    except FaultproxyError as error:
        assert str(error)
    else:
        _sound(trace.frame)
        _sound(trace.detail)


def _verl(values: list[float]) -> list[str]:
    return [f"step:{i} - actor/grad_norm:{v} - actor/pg_loss:0.5" for i, v in enumerate(values, 1)]


def _hf(values: list[float]) -> list[str]:
    return [str({"loss": v, "grad_norm": 1.0, "step": i}) for i, v in enumerate(values, 1)]


def _megatron(values: list[float]) -> list[str]:
    return [f" iteration {i}/ 99 | lm loss: {abs(v)} | grad norm: {v} |" for i, v in enumerate(values, 1)]


def _jsonl(values: list[float]) -> list[str]:
    return [f'{{"step":{i},"data":{{"actor/grad_norm":{v!r}}}}}' for i, v in enumerate(values, 1)]


def _csv(values: list[float]) -> list[str]:
    return ["step,loss", *(f"{i},{v}" for i, v in enumerate(values, 1))]


WRITERS = [_verl, _hf, _megatron, _jsonl, _csv]
VALUES = st.lists(FLOATS, min_size=2, max_size=12)


@FIXED
@pytest.mark.parametrize("write", [_verl, _hf, _megatron])
@given(values=VALUES, prefix=st.sampled_from(["(TaskRunner pid=4242) ", "(WorkerDict pid=1, ip=10.0.0.1) ", "\x1b[36m(Main pid=9)\x1b[0m "]))  # fmt: skip
def test_launcher_prefixes_and_colours_change_nothing(
    write: Callable[[list[float]], list[str]], values: list[float], prefix: str
) -> None:
    lines = write(values)
    coloured = [prefix + re.sub(r"(\d+)", "\x1b[1m\\1\x1b[0m", line, count=1) for line in lines]
    assert _frames(_read("\n".join(coloured).encode())) == _frames(_read("\n".join(lines).encode()))


@FIXED
@pytest.mark.parametrize("write", WRITERS)
@given(values=VALUES)
def test_line_ends_compression_and_encoding_change_nothing(
    write: Callable[[list[float]], list[str]], values: list[float]
) -> None:
    import zstandard

    lines = write(values)
    text = "\n".join(lines) + "\n"
    expected = _frames(_read(text.encode()))
    assert _frames(_read(text.replace("\n", "\r\n").encode())) == expected
    assert _frames(_read(gzip.compress(text.encode()), "run.log.gz")) == expected
    assert _frames(_read(zstandard.compress(text.encode()), "run.log.zst")) == expected
    assert _frames(_read(b"\xef\xbb\xbf" + text.encode())) == expected
    assert _frames(_read(text.encode("utf-16"))) == expected


# -- the log ----------------------------------------------------------------------------------------------------------
@FIXED
@given(st.lists(st.tuples(st.one_of(STEPS, st.none()), st.dictionaries(KEYS, CELLS, max_size=5), st.sampled_from([None, "eval"]), st.sampled_from([None, 0, 1])), max_size=30))  # fmt: skip
def test_log_keeps_its_columns_straight(records: list[tuple[int | None, dict[str, Cell], str | None, int | None]]) -> None:  # fmt: skip
    log = Log(0, Source("x", "text", ""))
    for step, cells, axis, rank in records:
        log.rank = rank
        log.row(step, cells.items(), "test", axis=axis)
    log.close()
    for frame in (log.frame, log.detail):
        rows = len(frame.steps)
        assert {len(frame.segments), len(frame.sources), len(frame.lines)} == {rows}
        assert all(len(column.values) <= rows for column in frame.columns.values())
    places = list(zip(log.frame.segments, log.frame.steps, strict=True))
    assert places == sorted(set(places)), "steps ascend within a segment, segments follow each other"


@FIXED
@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.lists(st.one_of(FLOATS, st.floats(), st.none(), st.integers(-(10**400), 10**400)), min_size=25, max_size=25))  # fmt: skip
def test_rows_by_column_equal_rows_one_by_one(steps: list[int], values: list[float | None]) -> None:
    fast, slow = Log(0, Source("x", "text", "")), Log(0, Source("x", "text", ""))
    columns = [values[: len(steps)], values[::-1][: len(steps)]]
    keys = ["actor/grad_norm", "mystery"]
    fast.rows(steps, keys, columns, list(range(len(steps))), "test")
    for i, step in enumerate(steps):
        slow.line = i
        slow.row(step, [(k, c) for k, v in zip(keys, columns, strict=True) if (c := native(v[i]))], "test")
    assert fast.frame.steps == slow.frame.steps
    assert [[column.cell(row) for row in range(len(fast.frame))] for column in fast.frame.columns.values()] == [
        [column.cell(row) for row in range(len(slow.frame))] for column in slow.frame.columns.values()
    ]
