"""A comparison as the object `against` of the JSON report: what went apart first, by signal, layer, and rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

from faultproxy.analyzer.against.compare import Comparison, Difference
from faultproxy.analyzer.against.config import ranked

MOST_DIVERGENCES, MOST_SETTINGS, MOST_NAMES = 20, 50, 200


def section(comparison: Comparison, failure_type: str | None) -> dict[str, Any]:
    """The object; `failure_type` decides which settings come first."""
    apart = sorted((one for one in comparison.series if one.step is not None), key=_order)
    first = [_divergence(one) for one in apart[:MOST_DIVERGENCES]]
    return {
        "run": comparison.good.run,
        "sources": [{"path": s.path, "format": s.format, "sha256": s.sha256} for s in comparison.good.sources],
        "aligned_by": comparison.by,
        "points": comparison.points,
        "signals": comparison.judged,
        "identical_points": comparison.identical,
        "first_difference": _first_difference(comparison),
        "first_divergence": first[0] if first else None,
        "divergences": first,
        "layers": _places(comparison.series, lambda one: one.layer, "layer"),
        "ranks": _places(comparison.series, lambda one: one.rank, "rank"),
        "speed": [dict(one) for one in comparison.speed],
        "only_here": list(comparison.only_here[:MOST_NAMES]),
        "only_good": list(comparison.only_good[:MOST_NAMES]),
        "config": [
            {"key": s.key, "here": s.here, "good": s.good, "why": s.why}
            for s in ranked(comparison.config, failure_type)[:MOST_SETTINGS]
        ],
        "warnings": list(comparison.warnings),
    }


def _first_difference(comparison: Comparison) -> dict[str, Any] | None:
    """Where two runs that were one first differ, and in what: the largest factors first, the whole model before its parts."""
    if comparison.twin is None:
        return None
    differing = [one for one in comparison.series if one.twin_value is not None or one.twin_good is not None]
    factors = {one: _factor(one) for one in differing}
    differing.sort(
        key=lambda one: (one.layer is not None or one.rank is not None, -abs(log(factors[one] or 1.0)), one.name)
    )
    return {
        "segment": comparison.twin[0],
        "step": comparison.twin[1],
        "signals": [
            {
                "signal": one.name,
                "layer": one.layer,
                "rank": one.rank,
                "value": one.twin_value,
                "good": one.twin_good,
                "ratio": factors[one],
            }
            for one in differing[:MOST_DIVERGENCES]
        ],
    }


def _factor(one: Difference) -> float | None:
    if one.twin_value is None or not one.twin_good or one.twin_value / one.twin_good <= 0:
        return None
    return one.twin_value / one.twin_good


def _order(one: Difference) -> tuple[float, float, str, int]:
    return (one.x or 0.0, -one.sigma, one.name, -1 if one.layer is None else one.layer)


def _divergence(one: Difference) -> dict[str, Any]:
    return {
        "signal": one.name,
        "segment": one.segment,
        "step": one.step,
        "layer": one.layer,
        "module": one.module,
        "rank": one.rank,
        "value": one.value,
        "good": one.good,
        "ratio": one.ratio,
        "difference": one.diff,
        "noise": one.noise,
        "size": one.sigma,
        "direction": "nonfinite" if one.nonfinite else "higher" if one.direction > 0 else "lower",
        "from_start": one.start,
    }


def _places(series: Sequence[Difference], place: Callable[[Difference], int | None], word: str) -> list[dict[str, Any]]:
    """By signal: the lowest layer (or rank) among those that went apart first, and how many did, of how many."""
    by_name: dict[str, list[Difference]] = {}
    for one in series:
        if place(one) is not None:
            by_name.setdefault(one.name, []).append(one)
    found = []
    for name, members in by_name.items():
        apart = [one for one in members if one.x is not None]
        if not apart:
            continue
        onset = min(one.x for one in apart if one.x is not None)
        first = min((one for one in apart if one.x == onset), key=lambda one: place(one) or 0)
        lower = [one for one in members if (place(one) or 0) < (place(first) or 0)]
        found.append(
            {
                "signal": name,
                word: place(first),
                "segment": first.segment,
                "step": first.step,
                "last": _last({place(one) or 0 for one in apart}, {place(one) or 0 for one in members}),
                "lower_clean": bool(lower) and all(one.x is None for one in lower),
                "apart": len(apart),
                "of": len(members),
                "size": first.sigma,
            }
        )
    return sorted(found, key=lambda entry: (entry["segment"], entry["step"], -entry["size"]))


def _last(apart: set[int], among: set[int]) -> int | None:
    """The highest of the layers (or ranks) that go apart where they are neighbours and some above agree, else null."""
    low, high = min(apart), max(apart)
    return high if max(among) > high and {one for one in among if low <= one <= high} == apart else None
