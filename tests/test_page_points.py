"""What a plot keeps of a long line, and a heat map of many cells: extremes and what is not finite, in their order."""

from __future__ import annotations

from base64 import b64decode
from itertools import pairwise
from math import inf, isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultproxy.analyzer.report.html import curves, heat
from faultproxy.analyzer.report.html.curves import sample
from faultproxy.analyzer.trace import NAN, Column, Key, Trace

#: A row: a number, a value that was not finite, or nothing logged.
ROWS = st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.just("bad"), st.none()), max_size=400)


def _line(rows: list[Any]) -> tuple[list[int], list[float | None], list[int]]:
    values = [row if isinstance(row, float) else None for row in rows]
    return [3 * n + 5 for n in range(len(rows))], values, [n for n, row in enumerate(rows) if row == "bad"]


@given(ROWS, st.integers(12, 200), st.one_of(st.none(), st.integers(0, 1300)))
def test_a_sample_keeps_extremes_ends_and_every_stretch_that_is_not_finite(rows: list[Any], budget: int, focus: int | None) -> None:  # fmt: skip
    steps, values, bad = _line(rows)
    x, y, stretches = sample(steps, values, bad, budget, focus)
    assert x == sorted(set(x)) and len(x) == len(y) <= max(budget, 12) + 2
    held = dict(zip(steps, values, strict=True))
    assert all(value == held[step] for step, value in zip(x, y, strict=True))
    finite = [value for value in values if value is not None]
    drawn = [value for value in y if value is not None]
    assert (min(finite, default=0), max(finite, default=0)) == (min(drawn, default=0), max(drawn, default=0))
    for step, value in [*zip(steps, values, strict=True)][:: max(1, len(rows) - 1)]:
        assert value is None or step in x
    assert sum(count for *_, count in stretches) == len(bad)
    assert all(any(first <= steps[row] <= last for first, last, _ in stretches) for row in bad)
    assert [step for step, value in zip(x, y, strict=True) if value is None] == [first for first, *_ in stretches]
    for (_, before, _), (after, _, _) in pairwise(stretches):
        assert before < after and any(before <= step <= after for step in x)


@given(st.integers(300, 3000), st.integers(60, 300), st.integers(0, 3100))
def test_around_the_first_bad_step_every_row_is_kept(size: int, budget: int, focus: int) -> None:
    steps = list(range(size))
    values: list[float | None] = [float((n * 7919) % 101) for n in steps]
    x, _, _ = sample(steps, values, [], budget, focus)
    if budget < size and focus < size:
        reach = (budget - 2) // 9 // 2
        assert set(range(max(0, focus - reach + 1), min(size, focus + reach))) <= set(x)


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.0, 2.0], 1), ([1.0, 100.0], 3), ([0.0, 1.0, 1.0, 1.0, 1e9], 4), ([-1.0, 1.0], 1), ([0.0, 0.0], 1), ([], 1)],
)
def test_many_decades_get_a_logarithmic_axis_or_one_that_bears_zero(values: list[float], kind: int) -> None:
    assert curves.scale(values)[0] == kind


def test_segments_are_lines_of_their_own_and_those_of_the_evidence_are_drawn_first() -> None:
    trace = Trace("many restarts")
    trace.frame.steps = [step for _ in range(9) for step in range(5)]
    trace.frame.segments = [n for n in range(9) for _ in range(5)]
    trace.frame.columns[Key("loss")] = Column(Key("loss"), "loss", [1.0] * 45, {2: NAN})
    evidence = [{"signal": "loss", "rank": None, "layer": None, "expert": None, "segment": 1}]
    (plot,) = curves.plots(trace, {"evidence": evidence, "segment": 1, "first_bad_step": 2}, None, 1000)
    assert [line.segment for line in plot.lines] == [1, 4, 5, 6, 7, 8] and plot.hidden == 3 and plot.several


def _detailed(layers: int, steps: int, value: Any) -> tuple[Trace, dict[str, Any]]:
    trace = Trace("layered")
    trace.frame.steps, trace.frame.segments = list(range(steps)), [0] * steps
    trace.detail.steps, trace.detail.segments = list(range(steps)), [0] * steps
    trace.detail.sources = trace.detail.lines = [0] * steps
    for layer in range(layers):
        key = Key("grad_norm", layer=layer)
        column = trace.detail.columns[key] = Column(key, "")
        for step in range(steps):
            found = value(layer, step)
            column.values.append(found if isfinite(found) else None)
            if not isfinite(found):
                column.states[step] = NAN
    return trace, {"evidence": [], "segment": None, "first_bad_step": None}


def test_a_heat_map_keeps_what_stands_out_and_what_is_not_finite_when_cells_are_summed_up() -> None:
    layers, steps = 300, 500
    trace, report = _detailed(layers, steps, lambda layer, step: inf if (layer, step) == (7, 11) else 9.0 if (layer, step) == (200, 400) else 1.0)  # fmt: skip
    views = heat.opened(trace, report)
    assert views is not None
    (one,) = heat.maps(views, report)
    cells = b64decode(one.cells)
    rows, columns = len(one.names), len(one.spans)
    assert (one.axis, rows, columns) == ("layer", heat.ROWS, heat.COLUMNS) and len(cells) == rows * columns
    assert [at for at, level in enumerate(cells) if level == heat.BAD] == [(7 * rows // layers) * columns + 11 * columns // steps]  # fmt: skip
    assert [at for at, level in enumerate(cells) if level == heat.LEVELS] == [(200 * rows // layers) * columns + 400 * columns // steps]  # fmt: skip
    assert (one.low, one.high) == (1.0, 9.0)
    assert [row[0] for row in one.table[:2]] == ["7", "200"] and one.table[0][5] == 11


@pytest.mark.parametrize("pool", [[1.7e308, -1.7e308, 1.0], [-1e-300, 1.7e308, 0.0, 5e-324], [5e-324, 1.7e308]])
def test_the_largest_numbers_there_are_can_be_drawn(pool: list[float]) -> None:
    trace, report = _detailed(4, 30, lambda layer, step: pool[(layer * 7 + step) % len(pool)])
    views = heat.opened(trace, report)
    assert views is not None
    assert 0 not in b64decode(heat.maps(views, report)[0].cells)


def test_a_curve_of_one_layer_stands_beside_the_median_of_all() -> None:
    trace, report = _detailed(5, 30, lambda layer, step: float(10 * layer + (layer == 4) * step))
    report["evidence"] = [{"signal": "grad_norm", "rank": None, "layer": 4, "expert": None, "segment": 0}]
    (plot,) = curves.plots(trace, report, heat.opened(trace, report), 500)
    assert [line.name for line in plot.lines] == [
        "layer 4",
        "median of all layers",
    ] and plot.title == "grad_norm, layer 4"
    assert plot.lines[0].y[-1] == 69 and set(plot.lines[1].y) == {20.0}
