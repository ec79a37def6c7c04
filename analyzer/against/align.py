"""Lays two runs beside each other: which rows of each count, on what scale, and which point belongs to which.

- A restart undoes what came after it: of rows that two segments have, the later segment's count (`effective`).
- The scale is the step; tokens or samples seen where both runs log them and a step is another amount in each; the row
  where one of the logs has no step numbers.
- Logs that were written at different intervals: a point is held against the nearest earlier one of the good run, of the
  same signal, and only within that signal's own interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from faultproxy.analyzer.trace import BAD_STATES, Frame, Trace

#: Steps of two runs are alike when the tokens of one differ by less: batches of whole answers vary in length.
SAME_STEP = 0.05
_SEEN = (("tokens", "consumed_tokens"), ("samples", "consumed_samples"))


class Point(NamedTuple):
    """One logged value: where it stands on the common scale, and what it is. `value` is null unless it is a number."""

    x: float
    segment: int
    step: int
    value: float | None
    bad: bool


class Pair(NamedTuple):
    """A point of the run and the point of the good run that it is held against, which is the `at`-th of its signal."""

    here: Point
    good: Point
    at: int


class Alignment(NamedTuple):
    """How the two runs lie beside each other. `here` and `good` map (segment, step) to the common scale."""

    by: str
    here: dict[tuple[int, int], float]
    good: dict[tuple[int, int], float]
    points: int


def effective(trace: Trace, frame: Frame) -> list[int]:
    """Rows of `frame` that no restart undid, in order. Of a table of several runs: the rows of the last one."""
    own = rows_of(trace)
    segments = own.segments
    last = max(segments, default=0)
    if not last:
        return sorted(range(len(frame)), key=frame.steps.__getitem__)
    if trace.facts.get("segments_are_runs"):
        return sorted((row for row, s in enumerate(frame.segments) if s == last), key=frame.steps.__getitem__)
    starts: dict[int, int] = {}
    for segment, step in zip(segments, own.steps, strict=True):
        starts[segment] = min(step, starts.get(segment, step))
    undone: dict[int, float] = {}
    first = float("inf")
    for segment in sorted(starts, reverse=True):
        undone[segment] = first
        first = min(first, starts[segment])
    rows = [
        row
        for row, (segment, step) in enumerate(zip(frame.segments, frame.steps, strict=True))
        if step < undone.get(segment, float("inf"))
    ]
    return sorted(rows, key=lambda row: (frame.segments[row], frame.steps[row]))


def rows_of(trace: Trace) -> Frame:
    """The frame whose rows are the run's: that of the whole model, or, where only layers or ranks were logged, theirs."""
    return trace.frame if len(trace.frame) else trace.detail


def align(here: Trace, good: Trace) -> Alignment:
    """Choose the scale and put the rows of both runs on it."""
    rows = effective(here, rows_of(here)), effective(good, rows_of(good))
    if any(trace.facts.get("steps_are_rows") for trace in (here, good)):
        return _alignment("row", *(_by_row(trace, kept) for trace, kept in zip((here, good), rows, strict=True)))
    for name, signal in _SEEN:
        seen = [_seen(trace, kept, signal) for trace, kept in zip((here, good), rows, strict=True)]
        if all(seen):
            rates = [_rate(one) for one in seen]
            if min(rates) > 0 and max(rates) > (1 + SAME_STEP) * min(rates):
                return _alignment(name, *seen)
    return _alignment("step", *(_by_step(trace, kept) for trace, kept in zip((here, good), rows, strict=True)))


def _alignment(by: str, here: dict[tuple[int, int], float], good: dict[tuple[int, int], float]) -> Alignment:
    known = sorted(good.values())
    gap = _gap(known)
    points = sum(1 for x in here.values() if _nearest(known, x, gap) is not None)
    return Alignment(by, here, good, points)


def _by_step(trace: Trace, rows: Sequence[int]) -> dict[tuple[int, int], float]:
    frame = rows_of(trace)
    return {(frame.segments[row], frame.steps[row]): float(frame.steps[row]) for row in rows}


def _by_row(trace: Trace, rows: Sequence[int]) -> dict[tuple[int, int], float]:
    frame = rows_of(trace)
    places = dict.fromkeys((frame.segments[row], frame.steps[row]) for row in rows)
    return {place: float(number) for number, place in enumerate(places, 1)}


def _seen(trace: Trace, rows: Sequence[int], signal: str) -> dict[tuple[int, int], float]:
    """What was seen by each row, where that is logged and only grows; a row that does not say it takes the one before."""
    frame = rows_of(trace)
    column = next((c for key, c in frame.columns.items() if key.signal == signal and key.whole_model), None)
    found: dict[tuple[int, int], float] = {}
    held = None
    for row in rows if column is not None else ():
        cell = column.cell(row)  # type: ignore[union-attr]
        if cell is not None and cell.value is not None:
            if held is not None and cell.value < held:
                return {}
            held = cell.value
        if held is not None:
            found[frame.segments[row], frame.steps[row]] = held
    return found if len(set(found.values())) > 1 else {}


def _rate(seen: dict[tuple[int, int], float]) -> float:
    """Tokens or samples a step."""
    places = list(seen)
    steps = places[-1][1] - places[0][1]
    return (seen[places[-1]] - seen[places[0]]) / steps if steps > 0 else 0.0


def point(x: float, segment: int, step: int, value: float | None, state: str) -> Point:
    """A point; infinities and NaN that a reader left as numbers are not finite either."""
    finite = value is not None and value - value == 0.0
    return Point(x, segment, step, value if finite else None, not finite or state in BAD_STATES)


def pair(here: Sequence[Point], good: Sequence[Point]) -> Iterator[Pair]:
    """Each point of the run with the nearest earlier one of the good run, where there is one within its interval."""
    known = [p.x for p in good]
    gap = _gap(known)
    for one in here:
        at = _nearest(known, one.x, gap)
        if at is not None:
            yield Pair(one, good[at], at)


def _gap(xs: Sequence[float]) -> float:
    """The usual interval of a scale."""
    gaps = [b - a for a, b in pairwise(xs) if b > a]
    return median(gaps) if gaps else 1.0


def _nearest(known: Sequence[float], x: float, gap: float) -> int | None:
    at = bisect_right(known, x) - 1
    return at if at >= 0 and x - known[at] < gap else None
