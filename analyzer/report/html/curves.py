"""The curves of a page: which signals of a trace are plotted, and as few of their points as show the same picture.

A bucket of rows keeps its lowest and its highest value and its first row that is not finite, so no extreme and no NaN is
lost, whatever the length; around the first bad step the buckets are small. Steps of several segments overlap (a restart
goes back), so each segment is a line of its own. Values keep six digits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from statistics import median
from typing import Any, NamedTuple

from faultproxy.analyzer.trace import BAD_STATES, Column, Trace
from faultproxy.analyzer.views import Views

Report = dict[str, Any]
#: What a reader looks at first in any run, best first; fills the page where the evidence names few signals.
CONTEXT = (
    "loss", "policy_loss", "reward", "score", "grad_norm", "entropy", "kl_ref", "mismatch_kl", "eval_loss", "value_loss",
    "loss_scale", "response_length", "lr", "step_time", "throughput",
)  # fmt: skip
#: Plots of a report at most, and how many there should be even where the evidence names fewer.
MOST, ENOUGH = 12, 6
#: Segments drawn: those of the evidence, then the last ones.
SEGMENTS = 6
_PLACES = ("rank", "layer", "expert")
#: One signal of one segment in step order: steps, values, and the rows at which it was not finite.
Rows = tuple[Sequence[int], Sequence[float | None], Sequence[int]]


class Place(NamedTuple):
    """What one plot shows: a column as rules name it, of one rank, layer, or expert where those are not None."""

    signal: str
    rank: int | None = None
    layer: int | None = None
    expert: int | None = None

    @property
    def where(self) -> str:
        """`layer 3, expert 7`, or nothing for the whole model."""
        return ", ".join(f"{name} {getattr(self, name)}" for name in _PLACES if getattr(self, name) is not None)


class Line(NamedTuple):
    """One line of a plot. `y` is null where it breaks; `bad` are stretches (first step, last step, how many); `style` is a
    colour of the page, odd and dashed for what stands beside the signal itself."""

    name: str
    segment: int
    x: list[int]
    y: list[float | None]
    bad: list[tuple[int, int, int]]
    style: int = 0


class Plot(NamedTuple):
    """A figure: its lines, and the evidence (by number from 1) that it shows."""

    place: Place
    lines: list[Line]
    evidence: list[int]
    hidden: int = 0

    @property
    def title(self) -> str:
        """The signal, and the place where its own line is of one; a signal without detail is the whole model's."""
        own = self.place.where if self.lines[0].name == self.place.where else ""
        return f"{self.place.signal}, {own}" if own else self.place.signal

    @property
    def several(self) -> bool:
        """Whether it shows more than one segment."""
        return len({line.segment for line in self.lines}) > 1


def plots(trace: Trace, report: Report, views: Views | None, points: int, most: int = MOST) -> list[Plot]:
    """The plots of a report, evidence first. `views` holds the detail; `points` is the budget of all of them."""
    chosen: dict[Place, list[int]] = {}
    for number, entry in enumerate(report["evidence"], 1):
        if entry["signal"] is not None:
            place = Place(entry["signal"], entry["rank"], entry["layer"], entry["expert"])
            chosen.setdefault(place, []).append(number)
    whole = {column.key.column: column for column in trace.frame.columns.values()}
    named = {place.signal for place in chosen}
    others = [name for name in dict.fromkeys((*CONTEXT, *whole)) if name in whole and name not in named]
    chosen |= {Place(name): [] for name in others[: max(0, ENOUGH - len(chosen))]}
    share = max(60, points // max(1, min(most, len(chosen))))
    lines = ((place, dict(_lines(trace, place, whole.get(place.signal), views))) for place in chosen)
    made = (_plot(found, place, chosen[place], report, share) for place, found in lines)
    return list(islice((plot for plot in made if plot.lines), most))


def _plot(lines: dict[str, dict[int, Rows]], place: Place, numbers: list[int], report: Report, points: int) -> Plot:
    wanted = {report["evidence"][number - 1].get("segment") or 0 for number in numbers}
    there = sorted({segment for parts in lines.values() for segment in parts}, reverse=True)
    shown = sorted(sorted(there, key=lambda segment: segment not in wanted)[:SEGMENTS])
    made = []
    for kind, (name, parts) in enumerate(lines.items()):
        for at, segment in enumerate(shown):
            if segment in parts:
                focus = report["first_bad_step"] if segment == (report["segment"] or 0) else None
                kept = sample(*parts[segment], points // (len(lines) * len(shown)), focus)
                made.append(Line(name, segment, *kept, (2 * at + kind) % 6))
    return Plot(place, made, numbers, len(there) - len(shown))


def _lines(
    trace: Trace, place: Place, whole: Column | None, views: Views | None
) -> Iterator[tuple[str, dict[int, Rows]]]:
    """The lines of a plot by name: the place itself, beside it the median of its peers."""
    axis = next((name for name in reversed(_PLACES) if getattr(place, name) is not None), None)
    if views is not None and axis is not None:
        own = [(name, getattr(place, name)) for name in _PLACES if getattr(place, name) is not None]
        rows = _detail(views, place.signal, "max(value)", own)
        if rows:
            yield place.where, rows
            peers = _detail(views, place.signal, "median(value)", own[:-1], f"{axis} IS NOT NULL", "bool_and")
            yield f"median of all {axis}s", peers
            return
    if whole is not None:
        yield place.signal, _whole(trace, whole)
    elif views is not None:
        rows = _detail(views, place.signal, "median(value)", [])
        if rows:
            yield "median of all", rows
            yield "highest of all", _detail(views, place.signal, "max(value)", [])


def _detail(
    views: Views, signal: str, value: str, own: list[tuple[str, int]], test: str = "true", odd: str = "bool_or"
) -> dict[int, Rows]:
    where = " AND ".join([test, *(f"{name} = {number:d}" for name, number in own)])
    found = views.con.execute(
        f"SELECT segment, list(step ORDER BY step), list(value ORDER BY step), list(bad ORDER BY step) FROM (SELECT segment, step, "
        f"CASE WHEN {odd}(bad(state)) THEN NULL ELSE {value} END AS value, {odd}(bad(state)) AS bad FROM detail "
        f"WHERE signal = ? AND {where} GROUP BY segment, step) GROUP BY segment ORDER BY segment",
        [signal],
    ).fetchall()
    return {segment: (steps, values, [at for at, odd in enumerate(bad) if odd]) for segment, steps, values, bad in found}  # fmt: skip


def _whole(trace: Trace, column: Column) -> dict[int, Rows]:
    """A column of the frame by segment; segments ascend, and in each its steps."""
    frame = trace.frame
    found: dict[int, Rows] = {}
    bad = sorted(row for row, state in column.states.items() if state in BAD_STATES)
    for segment in sorted(set(frame.segments)):
        first, end = bisect_left(frame.segments, segment), bisect_right(frame.segments, segment)
        values = column.values[first:end]
        values += [None] * (end - first - len(values))
        inside = [row - first for row in bad[bisect_left(bad, first) : bisect_left(bad, end)]]
        if inside or any(value is not None for value in values):
            found[segment] = (frame.steps[first:end], values, inside)
    return found


def sample(
    steps: Sequence[int], values: Sequence[float | None], bad: Sequence[int], budget: int, focus: int | None = None
) -> tuple[list[int], list[float | None], list[tuple[int, int, int]]]:
    """At most `budget` (12 at least) points of a line, and the stretches of it that are not finite.

    The lowest and highest value of every bucket are kept, and a null at its first bad row, which breaks the line.
    """
    size = len(steps)
    near = None if focus is None else bisect_left(steps, focus)
    edges = [*range(size + 1)] if size <= budget else _edges(size, max(2, (budget - 2) // 3), near)
    x: list[int] = []
    y: list[float | None] = []
    stretches: list[tuple[int, int, int]] = []
    solid = False  # whether nothing finite came since the last stretch began
    for first, end in pairwise(edges):
        part = values[first:end]
        finite = [value for value in part if value is not None]
        kept: dict[int, float | None] = {first + part.index(value): value for value in finite and (min(finite), max(finite))}  # fmt: skip
        kept |= {row: values[row] for row in (0, size - 1) if first <= row < end and values[row] is not None}
        odd = bad[bisect_left(bad, first) : bisect_left(bad, end)]
        if odd and solid and not finite:
            start, _, count = stretches.pop()
            stretches.append((start, steps[odd[-1]], count + len(odd)))
        elif odd:
            kept[odd[0]] = None
            stretches.append((steps[odd[0]], steps[odd[-1]], len(odd)))
        solid = (solid or bool(odd)) and not finite
        x += [steps[row] for row in sorted(kept)]
        y += [kept[row] for row in sorted(kept)]
    return x, y, stretches


def _edges(size: int, buckets: int, near: int | None) -> list[int]:
    """Bucket borders: rows around `near` singly, with a third of the buckets, and the rest evenly."""
    if near is None or buckets < 12:
        return sorted({size * at // buckets for at in range(buckets + 1)})
    fine = buckets // 3
    low, high = max(0, near - fine // 2), min(size, near + fine // 2)
    left = (buckets - fine) * low // max(1, low + size - high)
    before = {low * at // max(1, left) for at in range(left + 1)}
    right = buckets - fine - left
    after = {high + (size - high) * at // max(1, right) for at in range(right + 1)}
    return sorted({0, size} | before | set(range(low, high + 1)) | after)


def scale(values: Sequence[float]) -> tuple[int, float]:
    """The axis for such values: 1 linear, 3 logarithmic, 4 arcsinh (many decades with zero or both signs) and where it bends."""
    sizes = sorted(abs(value) for value in values if value)
    if not sizes:
        return 1, 1.0
    middle = max(median(sizes), sizes[-1] * 1e-290)  # a quotient of the two stays a number
    if min(values) > 0:
        return (3 if sizes[-1] > 50 * sizes[0] else 1), middle
    return (4 if sizes[-1] > 1000 * middle else 1), middle


def bounded(value: float) -> float:
    """Within what a plot can scale: a double's own limits overflow when an axis is padded or two values are subtracted."""
    return max(-1e300, min(1e300, value))
