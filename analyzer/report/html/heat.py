"""Heat maps of what a trace holds by layer, expert, or rank: (layer, step) and so on, summed up to cells of a screen.

A cell is the median of its values, but their farthest from the map's middle where that is OUT times as far as cells'
farthest mostly are, and not finite where one was not: what stands out is not averaged away, and noise is no pattern.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from itertools import islice
from math import asinh, log
from statistics import median
from typing import Any, NamedTuple

from faultproxy.analyzer.report.html.curves import Report, bounded, scale
from faultproxy.analyzer.schema import quoted
from faultproxy.analyzer.trace import Trace
from faultproxy.analyzer.views import Views

#: Signals worth a map in any run, where the evidence names none; the first ones there are.
_LAYER = ("grad_norm", "act_absmax", "moe_load_cv", "router_entropy", "moe_max_vio", "act_norm", "update_ratio", "topk_overlap")  # fmt: skip
_EXPERT = ("expert_load",)
#: Maps a report at most, by axis; ranks only where the evidence names one.
_MOST = {"layer": 3, "expert": 2, "rank": 1}
#: Cells of one map at most.
ROWS, COLUMNS = 128, 240
#: A cell is one byte: 0 nothing logged, 255 not finite, else 1..LEVELS from lowest to highest.
LEVELS, BAD = 250, 255
OUT = 3.0
#: Rows of the table under a map.
TABLE = 12


class Map(NamedTuple):
    """A heat map: a name each row, (segment, first step, last step) each column, its cells as base64 with their scale.

    `table` has the rows that stand out: name, lowest, highest, last value, how many were not finite, and the first of these.
    """

    signal: str
    axis: str
    where: str
    evidence: list[int]
    table: list[tuple[Any, ...]]
    names: list[str]
    spans: list[tuple[int, int, int]]
    cells: str
    kind: int
    bend: float
    low: float
    high: float


def opened(trace: Trace, report: Report) -> Views | None:
    """The detail of a trace, for the signals that the page may show; None where nothing is split."""
    named = [entry["signal"] for entry in report["evidence"] if entry["signal"]]
    there = {key._replace(rank=None, layer=None, expert=None, module=None).column for key in trace.detail.columns}
    if not there:
        return None
    wanted = [name for name in dict.fromkeys((*named, *_LAYER, *_EXPERT)) if name in there]
    return Views(trace, {view: set(wanted) for view in _MOST})


def maps(views: Views, report: Report, share: float = 1.0) -> list[Map]:
    """The heat maps of a report, evidence first; `share` below 1 makes them fewer and smaller."""
    by_signal: dict[str, list[int]] = {}
    for number, entry in enumerate(report["evidence"], 1):
        if entry["signal"]:
            by_signal.setdefault(entry["signal"], []).append(number)
    found: list[Map] = []
    of_rank = dict.fromkeys(entry["signal"] for entry in report["evidence"] if entry["rank"] is not None)
    for axis, most in _MOST.items():
        names = of_rank if axis == "rank" else dict.fromkeys((*by_signal, *_LAYER, *_EXPERT))
        there = (name for name in names if views.counts[axis].get(name))
        made = (_map(views, axis, name, by_signal.get(name, []), report, share) for name in there)
        found += islice((one for one in made if one is not None), max(1, round(most * share)))
    return found


def _map(views: Views, axis: str, signal: str, numbers: list[int], report: Report, share: float) -> Map | None:
    con = views.con
    name, place, test, where = f"{axis}::VARCHAR", axis, f"{axis} IS NOT NULL", ""
    if axis == "layer":
        name, test = "coalesce(layer::VARCHAR, module)", "(layer IS NOT NULL OR module IS NOT NULL) AND expert IS NULL"
    elif axis == "expert":
        layer, where = _layer(views, signal, [report["evidence"][number - 1]["layer"] for number in numbers])
        test += f" AND {layer}"
    else:
        test += " AND layer IS NULL AND expert IS NULL"
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE one AS SELECT segment, step, {name} AS name, {place} AS place, max(value) AS value, "
        f"bool_or(bad(state)) AS odd FROM detail WHERE signal = ? AND {test} GROUP BY ALL HAVING odd OR max(value) IS NOT NULL",
        [signal],
    )
    for table, key, order in (("known", "name, place", "place, name"), ("moment", "segment, step", "segment, step")):
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT *, row_number() OVER (ORDER BY {order}) - 1 AS {table}_at "
            f"FROM (SELECT DISTINCT {key} FROM one)"
        )
    names, moments = con.execute("SELECT (SELECT count(*) FROM known), (SELECT count(*) FROM moment)").fetchall()[0]
    if names < 2 or moments < 2:
        return None
    height, width = min(names, max(8, int(ROWS * share))), min(moments, max(8, int(COLUMNS * share)))
    row, column = f"known_at * {height} // {names}", f"moment_at * {width} // {moments}"
    cells = con.execute(
        f"SELECT {row} AS r, {column} AS c, min(value), max(value), median(value), bool_or(odd) FROM one JOIN known USING (name) "
        "JOIN moment USING (segment, step) GROUP BY r, c"
    ).fetchall()
    spans = con.execute(
        "SELECT arg_min(segment, moment_at), arg_min(step, moment_at), arg_max(step, moment_at) FROM moment "
        f"GROUP BY {column} ORDER BY {column}"
    ).fetchall()
    labels = con.execute(
        f"SELECT arg_min(name, known_at), arg_max(name, known_at) FROM known GROUP BY {row} ORDER BY {row}"
    ).fetchall()
    shown = [first if first == last else f"{first}-{last}" for first, last in labels]
    return Map(signal, axis, where, numbers, _extremes(con), shown, spans, *_drawn(cells, height, width))


def _layer(views: Views, signal: str, layers: list[int | None]) -> tuple[str, str]:
    """The layer whose experts are shown: that of the evidence, else the one with the most uneven values."""
    named = next((layer for layer in layers if layer is not None), None)
    found = views.con.execute(
        "SELECT layer, module FROM detail WHERE signal = $1 AND expert IS NOT NULL AND (layer = $2 OR $2 IS NULL) "
        "GROUP BY layer, module ORDER BY max(value) / nullif(avg(value), 0) DESC NULLS LAST, layer, module LIMIT 1",
        [signal, named],
    ).fetchone()
    layer, module = found or (None, None)
    if layer is not None:
        return f"layer = {layer:d}", f"layer {layer}" + ("" if named is not None else ", the most uneven one")
    return ("layer IS NULL AND module IS NULL", "") if module is None else (f"module = {quoted(module)}", module)


def _drawn(cells: list[tuple[Any, ...]], height: int, width: int) -> tuple[str, int, float, float, float]:
    """The cells as base64 bytes, the kind of scale with its bend, and the values at its two ends."""
    finite = [bounded(value) for cell in cells for value in cell[2:4] if value is not None] or [0.0]
    kind, bend = scale(finite)
    by_kind: dict[int, Callable[[float], float]] = {1: float, 3: log, 4: lambda value: asinh(value / bend)}
    f, low, high = by_kind[kind], min(finite), max(finite)
    bottom, reach = f(low), f(high) - f(low) or 1.0
    held = {
        (row, column): [f(bounded(value)) for value in values]
        for row, column, *values, _ in cells
        if values[0] is not None
    }
    middle = median([values[2] for values in held.values()]) if held else 0.0
    far = {at: max(values[:2], key=lambda value: abs(value - middle)) for at, values in held.items()}
    usual = median([abs(value - middle) for value in far.values()]) if far else 0.0
    grid = bytearray(height * width)
    for at, values in held.items():
        value = far[at] if abs(far[at] - middle) > OUT * usual else values[2]
        grid[at[0] * width + at[1]] = 1 + round((LEVELS - 1) * (value - bottom) / reach)
    for row, column, *_, odd in cells:
        if odd:
            grid[row * width + column] = BAD
    return b64encode(grid).decode(), kind, bend, low, high


def _extremes(con: Any) -> list[tuple[Any, ...]]:
    """The rows of the map that stand out, for the table: not finite ones first, then by distance from the median row."""
    rows = con.execute(
        "SELECT name, min(value), max(value), arg_max(value, (segment, step)), count(*) FILTER (odd), min(step) FILTER (odd), "
        "median(value) FROM one JOIN known USING (name) GROUP BY name, known_at ORDER BY known_at"
    ).fetchall()
    middle = median([row[6] for row in rows if row[6] is not None] or [0.0])

    def out(row: tuple[Any, ...]) -> tuple[int, float]:
        return row[4], max((abs(value - middle) for value in row[1:3] if value is not None), default=0.0)

    return [row[:6] for row in sorted(rows, key=out, reverse=True)[:TABLE]]
