"""The signals that two runs both log, one after the other, each as pairs of points.

Per-expert values are left out: which expert does what is a matter of the seed. Where a canonical trace keeps its layers
and ranks on disk they are read by one query each; from MOST_ON_DISK rows on they are left out with a warning, and of a
signal with more than MOST points every n-th is compared, beside all that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from faultproxy.analyzer.against.align import Alignment, Pair, Point, effective, pair, point
from faultproxy.analyzer.trace import BAD_STATES, Cell, Column, Frame, Trace
from faultproxy.analyzer.vocabulary import signals

MOST, MOST_ON_DISK = 10_000, 400_000
Identity = tuple[str, int | None, str | None, int | None]
Scale = dict[tuple[int, int], float]


class Piece(NamedTuple):
    """One signal that both runs log: its name for rules, what it is, and its points."""

    name: str
    signal: str
    stat: str | None
    layer: int | None
    module: str | None
    rank: int | None
    pairs: list[Pair]
    good: list[Point]

    @property
    def placed(self) -> bool:
        """True for a value of one layer, module, or rank."""
        return (self.layer, self.module, self.rank) != (None, None, None)


def pieces(here: Trace, good: Trace, alignment: Alignment, warnings: list[str]) -> Iterator[Piece]:
    """Every signal of the vocabulary that both runs have at one place; `warnings` gets what was left out."""
    for left, right in ((here.frame, good.frame), (here.detail, good.detail)):
        yield from _of_frames(here, left, good, right, alignment)
    if here.table is not None or good.table is not None:
        sides = [_stored(trace, scale, warnings) for trace, scale in ((here, alignment.here), (good, alignment.good))]
        for identity in sorted(set(sides[0]) & set(sides[1]), key=str):
            name, layer, module, rank = identity
            yield _piece(name, name, None, layer, module, rank, sides[0][identity], sides[1][identity])


def _of_frames(here: Trace, left: Frame, good: Trace, right: Frame, alignment: Alignment) -> Iterator[Piece]:
    if not left.columns or not right.columns:
        return
    places, others = (
        {row: place for place, row in enumerate(effective(trace, frame))}
        for trace, frame in ((here, left), (good, right))
    )
    units = vocabulary()
    known = {key: column for key, column in right.columns.items() if key.expert is None}
    for key, column in left.columns.items():
        other = known.get(key)
        if other is None or key.signal not in units:
            continue
        yield _piece(
            key.column, key.signal, key.stat, key.layer, key.module, key.rank,
            _points(column, left, places, alignment.here), _points(other, right, others, alignment.good),
        )  # fmt: skip


def _piece(
    name: str, signal: str, stat: str | None, layer: int | None, module: str | None, rank: int | None,
    points: list[Point], good: list[Point],
) -> Piece:  # fmt: skip
    return Piece(name, signal, stat, layer, module, rank, list(pair(points, good)), good)


def _points(column: Column, frame: Frame, places: dict[int, int], scale: Scale) -> list[Point]:
    """What a column holds in the rows that have a place, on the common scale; only its filled cells are visited."""
    filled = {row for row, value in enumerate(column.values) if value is not None}
    filled |= {row for row, state in column.states.items() if state in BAD_STATES}
    every = -(-len(places) // MOST)
    found = []
    for number, row in sorted((places[row], row) for row in filled if row in places):
        step = frame.segments[row], frame.steps[row]
        if step in scale and (number % every == 0 or column.states.get(row) in BAD_STATES):
            cell = column.cell(row) or Cell(None)
            found.append(point(scale[step], *step, cell.value, cell.state))
    return found


def _stored(trace: Trace, scale: Scale, warnings: list[str]) -> dict[Identity, list[Point]]:
    """Points by layer, module, and rank of a trace whose values of these are on disk, or in memory."""
    found: dict[Identity, list[Point]] = {}
    if trace.table is None:
        for row, column, cell in trace.detail.cells():
            place = trace.detail.segments[row], trace.detail.steps[row]
            key = column.key
            if key.expert is None and place in scale and (cell.value is not None or cell.state in BAD_STATES):
                identity = key.column, key.layer, key.module, key.rank
                found.setdefault(identity, []).append(point(scale[place], *place, cell.value, cell.state))
    else:
        for name, layer, module, rank, segment, step, value, state in _rows(trace, warnings):
            if (segment, step) in scale:
                x = scale[segment, step]
                found.setdefault((name, layer, module, rank), []).append(point(x, segment, step, value, state))
    for points in found.values():
        points.sort(key=lambda p: (p.x, p.segment))
    return found


def _rows(
    trace: Trace, warnings: list[str]
) -> Sequence[tuple[str, int | None, str | None, int | None, int, int, float | None, str]]:
    from faultproxy.analyzer.schema import connect, settings

    con = connect({"threads": 2, **settings()})
    where = f"FROM ({trace.table}) WHERE expert IS NULL AND (value IS NOT NULL OR state IN {BAD_STATES})"
    try:
        [(size,)] = con.execute(f"SELECT count(*) {where}").fetchall()
        if size > MOST_ON_DISK:
            warnings.append(
                f"layers and ranks of {trace.run} not compared: {size} values, at most {MOST_ON_DISK} are; cut the trace"
            )
            return []
        rows: Sequence[tuple[str, int | None, str | None, int | None, int, int, float | None, str]] = con.execute(
            f"SELECT signal, layer, module, rank, segment, step, value, state {where}"
        ).fetchall()
        return rows
    finally:
        con.close()


def vocabulary() -> dict[str, str]:
    """Unit by signal."""
    return {entry.get("signal", name): entry["unit"] for name, entry in signals().items()}
