"""Compares a run with a good one, signal by signal: what `--against` reports, and the view `against` of the rules.

Beside where each signal goes apart for good (divergence.py) it says where the runs first differ at all. Runs with the
same seed and inputs are equal, number for number, until the fault acts; at that step the weights are still the same, so
what differs there differs by the fault alone, and a ratio there is exact. `twin` is true where that holds: the first
points of all signals are equal or, for a fault that is there from the start, the first forward pass is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf, isinf
from statistics import median
from typing import Any, NamedTuple

from faultproxy.analyzer.against.align import Alignment, Pair, align, rows_of
from faultproxy.analyzer.against.config import Setting, differences
from faultproxy.analyzer.against.divergence import FEWEST, TOO_FEW, Apart, judge
from faultproxy.analyzer.against.multiples import Multiple, multiples
from faultproxy.analyzer.against.pieces import Piece, pieces, vocabulary
from faultproxy.analyzer.trace import Key, Trace

#: Equal as printed; and equal but for the order of sums on the device.
EXACT, SAME = 1e-6, 2e-3
#: Equal points at the start that make two runs one until they differ.
TWIN = 3
#: The forward pass of the actor: equal weights and inputs give equal values.
FORWARD = ("entropy", "reward", "score", "response_length", "accuracy", "kl_ref", "loss")
_FEWEST, _FEWEST_AT_START = 2, 3
#: Of the signals of the forward pass those that no two runs share by chance, as they do a mean of a few rewards.
_CONTINUOUS = ("entropy", "loss")
#: Equal in any two runs of one configuration.
_SCHEDULED = ("lr", "epoch", "loss_scale", "staleness")
#: Their level says nothing (0 by construction) or counts the steps: compared only as far as they are finite.
_NO_LEVEL = ("policy_loss", "advantage", "epoch", "curvature_top", "curvature_along_update")
_COUNTERS = ("consumed_tokens", "consumed_samples")
#: What depends on the machine: reported apart, never a divergence.
_MACHINE = ("s", "tokens/s", "TFLOP/s", "GiB")
#: Points that show a level: before the divergence, and at the end.
_BEFORE, _END, _LEAST_END = 8, 0.25, 4
#: Signals that a warning names.
_NAMED = 5


class Difference(NamedTuple):
    """One signal (of one layer or rank) of both runs. The fields are the columns of the view; docs/rules.md has them."""

    name: str
    signal: str
    stat: str | None
    layer: int | None
    module: str | None
    rank: int | None
    points: int
    segment: int
    step: int | None
    x: float | None
    value: float | None
    good: float | None
    nonfinite: bool
    ratio: float | None
    diff: float | None
    noise: float
    sigma: float
    direction: int
    start: bool
    before: float | None
    good_before: float | None
    ending: float | None
    good_ending: float | None
    twin: bool = False
    twin_segment: int | None = None
    twin_step: int | None = None
    twin_value: float | None = None
    twin_good: float | None = None


class Comparison(NamedTuple):
    """A run beside a good one; of its series so many were `judged`. `twin` is the first (segment, step) at which two runs that were one differ."""

    good: Trace
    by: str
    points: int
    identical: int
    twin: tuple[int, int] | None
    series: tuple[Difference, ...]
    speed: tuple[dict[str, Any], ...]
    only_here: tuple[str, ...]
    only_good: tuple[str, ...]
    config: tuple[Setting, ...]
    multiples: tuple[Multiple, ...]
    warnings: tuple[str, ...]
    judged: int


class _Found(NamedTuple):
    """A difference or why there can be none, the first pair of all, and the first two that are not equal; `lively` where the first ones vary."""

    difference: Difference
    unjudged: str | None
    first: Pair
    third: float
    lively: bool
    exact: Pair | None
    same: Pair | None


def compare(here: Trace, good: Trace) -> Comparison:
    """Compare a run with a good one. Where they have nothing in common a warning says so and nothing is compared."""
    alignment = align(here, good)
    warnings: list[str] = []
    units = vocabulary()
    found: list[_Found] = []
    speed: list[dict[str, Any]] = []
    for piece in pieces(here, good, alignment, warnings):
        if piece.pairs and units[piece.signal] in _MACHINE:
            speed += _speed(piece)
        elif piece.pairs and piece.signal not in _COUNTERS:
            found.append(_found(piece, units[piece.signal] == "fraction"))
    if not found:
        warnings.append(_nothing(here, good, alignment))
    warnings += _unjudged(found)
    moment = _moment(found)
    names = [
        {_name(key) for frame in (t.frame, t.detail) for key in frame.columns if key.signal in units}
        for t in (here, good)
    ]
    return Comparison(
        good=good,
        by=alignment.by,
        points=alignment.points,
        identical=sum(x < moment[0] for x in alignment.here.values()) if moment else 0,
        twin=moment[1:] if moment else None,
        series=tuple(_with_moment(one, moment) for one in found),
        speed=tuple(speed),
        only_here=tuple(sorted(names[0] - names[1])),
        only_good=tuple(sorted(names[1] - names[0])),
        config=differences(here.facts, good.facts),
        multiples=multiples(here.facts),
        warnings=(*good.warnings, *warnings),
        judged=sum(not one.unjudged for one in found),
    )


def _name(key: Key) -> str:
    return key.column + (" by layer" if key.layer is not None or key.module else "" if key.rank is None else " by rank")


def _found(piece: Piece, share: bool) -> _Found:
    exact = next((p for p in piece.pairs if not _equal(p, EXACT)), None)
    same = next((p for p in piece.pairs if not _equal(p, SAME)), None) if exact else None
    few = len({p.at for p in piece.pairs}) < FEWEST
    apart = judge(piece.pairs, piece.good, share, piece.placed) if exact and not few else None
    unjudged = TOO_FEW if few else apart.unjudged if apart else None
    if apart and piece.signal in _NO_LEVEL and not isinf(apart.sigma):
        apart = None
    head = piece.pairs[:TWIN]
    lively = len({p.here.value for p in head}) > 1 and piece.signal not in _SCHEDULED
    third = head[-1].here.x if len(head) == TWIN else inf
    return _Found(_difference(piece, apart), unjudged, head[0], third, lively, exact, same)


def _unjudged(found: Sequence[_Found]) -> Iterator[str]:
    """What could not be judged, by reason."""
    names: dict[str, Counter[str]] = {}
    for one in found:
        if one.unjudged:
            names.setdefault(one.unjudged, Counter())[one.difference.name] += 1
    for reason, some in names.items():
        shown = [f"{name} ({n:,} layers or ranks)" if n > 1 else name for name, n in some.most_common(_NAMED)]
        more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
        yield f"{reason}: {', '.join(shown)}{more}"


def _equal(pair: Pair, tolerance: float) -> bool:
    here, good = pair.here.value, pair.good.value
    if here is None or good is None:
        return pair.here.bad == pair.good.bad
    return here == good or abs(here - good) <= tolerance * max(abs(here), abs(good))


def _difference(piece: Piece, apart: Apart | None) -> Difference:
    at = apart.at if apart else None
    pairs = piece.pairs
    onset = pairs[at] if at is not None else None
    left = [p for p in pairs[at or 0 :] if p.here.value is not None and p.good.value is not None]
    ratios = [p.here.value / p.good.value for p in left if p.here.value is not None and p.good.value]
    diffs = [p.here.value - p.good.value for p in left if p.here.value is not None and p.good.value is not None]
    early = pairs[max(0, at - _BEFORE) : at] if at else pairs[: max(_LEAST_END, round(_END * len(pairs)))]
    late = left[-max(_LEAST_END, round(_END * len(left))) :]
    return Difference(
        piece.name, piece.signal, piece.stat, piece.layer, piece.module, piece.rank,
        points=len(pairs),
        segment=onset.here.segment if onset else 0,
        step=onset.here.step if onset else None,
        x=onset.here.x if onset else None,
        value=onset.here.value if onset else None,
        good=onset.good.value if onset else None,
        nonfinite=bool(apart and onset and isinf(apart.sigma)),
        ratio=median(ratios) if onset and ratios else None,
        diff=median(diffs) if onset and diffs else None,
        noise=apart.noise if apart else 0.0,
        sigma=apart.sigma if apart else 0.0,
        direction=apart.direction if apart else 0,
        start=bool(apart and apart.start),
        before=_middle(p.here.value for p in early),
        good_before=_middle(p.good.value for p in early),
        ending=_middle(p.here.value for p in late),
        good_ending=_middle(p.good.value for p in late),
    )  # fmt: skip


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _moment(found: Sequence[_Found]) -> tuple[float, int, int] | None:
    """Where runs that were one first differ, as (x, segment, step); None where they never were one, or never differ."""
    for tolerance in ("exact", "same"):
        firsts = [
            (p.here.x, p.here.segment, p.here.step) for one in found if (p := getattr(one, tolerance)) is not None
        ]
        if not firsts:
            return None
        moment = min(firsts)
        if sum(one.lively and one.third < moment[0] for one in found) >= _FEWEST:
            return moment
    alike = {
        one.difference.signal
        for one in found
        if one.difference.name in FORWARD
        and one.first.here.value
        and (one.exact is None or one.exact.here.x > one.first.here.x)
    }
    start = min(one.first.here.x for one in found)
    sure = len(alike - {"score"}) >= _FEWEST_AT_START and not alike.isdisjoint(_CONTINUOUS)
    return moment if sure and moment[0] == start else None


def _with_moment(one: _Found, moment: tuple[float, int, int] | None) -> Difference:
    """The difference with what the signal was at the moment: its own values where it differs there, else equal ones."""
    if moment is None:
        return one.difference
    pair = next((p for p in (one.exact, one.same) if p is not None and p.here.x == moment[0]), None)
    return one.difference._replace(
        twin=True,
        twin_segment=moment[1],
        twin_step=moment[2],
        twin_value=pair.here.value if pair else None,
        twin_good=pair.good.value if pair else None,
    )


def _speed(piece: Piece) -> list[dict[str, Any]]:
    if piece.placed or piece.stat not in (None, "mean"):
        return []
    here, good = _middle(p.here.value for p in piece.pairs), _middle(p.good.value for p in piece.pairs)
    if here is None or not good:
        return []
    return [{"signal": piece.name, "here": here, "good": good, "ratio": here / good}]


def _nothing(here: Trace, good: Trace, alignment: Alignment) -> str:
    for trace, who in ((here, "this run"), (good, "it")):
        if not len(rows_of(trace)):
            return f"nothing to compare with {good.run}: {who} logged no metric"
    if not alignment.points:
        spans = [f"{min(rows_of(t).steps)} to {max(rows_of(t).steps)}" for t in (here, good)]
        return f"nothing to compare with {good.run}: steps {spans[0]} here, {spans[1]} there"
    return f"nothing to compare with {good.run}: the runs log no known signal in common"
