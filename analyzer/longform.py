"""The cells of a trace in memory as sorted rows of `values.parquet`, each key once.

Columns are ordered by key first, so only rows of one key need sorting. What the types cannot hold is kept as text: an
index beyond int16 moves to `module`, a lone surrogate becomes `?`, a number beyond a double's range an infinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite, isnan
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.schema import BARE, ROW_GROUP, VALUES, arrow
from faultproxy.analyzer.trace import FINITE, NAN, NEG_INF, POS_INF, QUANTISED, Cell, Column, Frame, Key, Trace

_INT16 = 2**15 - 1


class Rows:
    """The cells of a trace as sorted tables of about ROW_GROUP rows."""

    def __init__(self, trace: Trace, frames: list[Frame]) -> None:
        """Sort the keys of `frames`; `losers` counts values written twice for one key."""
        self.trace = trace
        self.losers = 0
        self._orders = {id(frame): _ordered(frame) for frame in frames}
        self._groups: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], Frame, Column, Key]]] = {}
        for frame in frames:
            for column in [*frame.columns.values(), *([_bare(frame)] if frame is trace.frame else [])]:
                key = _fitting(column.key)
                group = _nulls_first(key.signal, _stat(key), key.layer, key.expert, key.rank)
                inner = _nulls_first(key.axis, key.role, key.label, key.module)
                self._groups.setdefault(group, []).append((inner, frame, column, key))

    def tables(self) -> Iterator[Any]:
        """Arrow tables of about ROW_GROUP rows, in order."""
        import pyarrow as pa

        schema = arrow(VALUES)
        held: list[tuple[Any, ...]] = []
        for group in sorted(self._groups):
            held += self._group(self._groups[group])
            if len(held) >= ROW_GROUP:
                yield _table(held, schema, pa)
                held = []
        if held:
            yield _table(held, schema, pa)

    def _group(self, members: list[tuple[tuple[Any, ...], Frame, Column, Key]]) -> Iterable[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for inner, frame, column, key in members:
            last: tuple[int, int] | None = None
            for segment, step, at in self._orders[id(frame)]:
                cell = column.cell(at)
                if cell is None:
                    continue
                value, state, raw = _normal(cell)
                row = (
                    self.trace.run, segment, key.axis, step, key.rank, key.layer, key.expert, key.module, key.role, key.signal,
                    _stat(key), key.label, value, state, raw, frame.sources[at], frame.lines[at],
                )  # fmt: skip
                if last == (segment, step):
                    self.losers += 1
                    if rows[-1][1][13] == QUANTISED and state == FINITE:
                        rows[-1] = ((segment, step, inner), row)
                    continue
                last = (segment, step)
                rows.append(((segment, step, inner), row))
        if len(members) == 1:
            return [row for _, row in rows]
        rows.sort(key=lambda entry: entry[0])  # stable: of equal keys the frame's comes first
        kept: list[tuple[Any, ...]] = []
        before = None
        for place, row in rows:
            if place == before:
                self.losers += 1
                continue
            before = place
            kept.append(row)
        return kept


def _ordered(frame: Frame) -> list[tuple[int, int, int]]:
    if frame.segments and max(frame.segments) > _INT16:
        raise InputError(f"{max(frame.segments)} restarts in one trace; at most {_INT16} fit; its steps are no steps")
    return sorted(
        (segment, step, at) for at, (segment, step) in enumerate(zip(frame.segments, frame.steps, strict=True))
    )


def _bare(frame: Frame) -> Column:
    """A column that marks the rows without a value; see schema.BARE."""
    filled = {row for row, _, _ in frame.cells()}
    signal, axis, state = BARE
    column = Column(Key(signal, axis), signal)
    for row in range(len(frame)):
        if row not in filled:
            column.put(row, Cell(None, state))
    return column


def _fitting(key: Key) -> Key:
    """The key with indices that the types cannot hold moved to `module`, and text that is UTF-8."""
    layer, expert, module = key.layer, key.expert, key.module
    if layer is not None and layer > _INT16:
        layer, module = None, f"{module or ''}layer[{layer}]"
    if expert is not None and expert > _INT16:
        expert, module = None, f"{module or ''}expert[{expert}]"
    signal, axis, role, stat, label = (None if text is None else utf8(text) for text in key[:5])
    module = None if module is None else utf8(module)
    return Key(signal or "", axis or "", role, stat, label, layer, expert, module, key.rank)


def _stat(key: Key) -> str | None:
    return None if key.stat == "mean" else key.stat


def utf8(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates of broken JSON) replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _nulls_first(*parts: Any) -> tuple[Any, ...]:
    return tuple((part is not None, part) for part in parts)


def _normal(cell: Cell) -> tuple[float | None, str, str | None]:
    """Value, state, raw as the schema allows them; a number beyond a double's range is an infinity."""
    value, state, raw = cell.value, cell.state, cell.raw
    if value is None or state not in (FINITE, QUANTISED):
        value = None
    elif not isfinite(value):
        state = NAN if isnan(value) else POS_INF if value > 0 else NEG_INF
        value = None
    return value, state, None if raw is None else utf8(raw)


def _table(rows: list[tuple[Any, ...]], schema: Any, pa: Any) -> Any:
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
