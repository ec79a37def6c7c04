"""Judges one signal of two runs: from when on does it stay apart, and by how much against the good run's own noise.

- Signals that the good run keeps above 0 are compared by their logarithm (a norm that doubles is as far off as one that
  halves), shares and the others as they are.
- The good run's noise is 1.4826 times the median size of its steps from point to point over sqrt 2; at least the width
  of the digits it was written with, WANDER of the way its running median goes, and a share of its size (FLOOR). A
  run with other seeds is a little ahead or behind, so a point is apart only by what it lies outside the band that the
  good run's running median covers within REACH of its length.
- Two healthy runs differ in level too. That is what their first points show; where they do, only what lies outside
  the band with and without that offset counts. What is apart from the first point on needs START times the bound.
- Fewer than FEWEST points that both runs have show nothing, nor does a good run whose noise is no number (values at the
  end of what a float holds): such a signal is not judged, and a warning says so.
- Apart for good: from there on at least half of the points are beyond the bound (`share_left` in the rules), all to one
  side; or from there on one run is not finite where the other is.

Of 353 pairs of healthy runs of the lab 3 % have a signal of the whole model apart by this, 4 % one of a layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf, isfinite, log
from statistics import median
from sys import float_info
from typing import NamedTuple

from faultproxy.analyzer.against.align import Pair, Point

#: Least noise: of a signal of the whole model, of one layer or rank (seeds differ there by percents, for good), both as
#: a share of its size; of a signal that is a share (0.01 is one in a hundred); of one that may be 0.
FLOOR, FLOOR_PLACED, FLOOR_SHARE, FLOOR_ZERO = 0.02, 0.05, 0.01, 1e-3
WANDER, REACH = 0.1, 0.15
#: In noises: for LASTING points, and for LONG ones, which are apart by chance less easily; of one of many layers or ranks
#: PLACED times as much. Fewer points must be FEW times as far.
BOUND, LASTING, BOUND_LONG, LONG = 5.0, 3, 3.5, 8
PLACED, START, FEW = 2.0, 2.0, 4.0
#: Least points of the good run that are held against one of this run.
FEWEST = 5
#: The farthest that a finite point is, in noises; inf is for what is not finite.
FARTHEST = 1e300
#: Points that are not finite: one is what a loss scale skips.
LASTING_BAD = 2
#: A value that fell to nothing counts as this much of the good run's least.
LEAST = 1e-3
#: Share of the points, and the most, that show how two runs differ from the start.
EARLY_SHARE, EARLY_MOST = 0.2, 8
#: Why a signal is not judged.
TOO_FEW = f"too few points to compare (fewer than {FEWEST} that both runs have)"
NO_NOISE = "noise of the good run not measurable (values too large)"
_WINDOW = 2  # points to either side of a running median


class Apart(NamedTuple):
    """From which of the pairs on a signal is apart (null: it is not), how far in noises, and to which side.

    `unjudged` says why it could not be told.
    """

    at: int | None
    start: bool
    sigma: float
    noise: float
    direction: int
    logarithm: bool
    unjudged: str | None = None


def judge(pairs: Sequence[Pair], good: Sequence[Point], share: bool = False, placed: bool = False) -> Apart:
    """Compare the points of one signal; `good` is all that the good run logged of it. `sigma` is inf where not finite."""
    scale = Scale(good, share, placed)
    if not scale.measured:
        return Apart(None, False, 0.0, 0.0, 0, scale.logarithm, NO_NOISE)
    strict = PLACED if placed else 1.0
    offset = scale.offset(pairs)
    sigmas = [scale.sigma(pair, offset) for pair in pairs]
    found = min(filter(None, (_side(sigmas, sign, strict) for sign in (1, -1))), default=None)
    start = False
    if found is None and offset:
        sigmas = [scale.sigma(pair, 0.0) for pair in pairs]
        found = _side(sigmas, 1 if offset > 0 else -1, START * strict)
        start = found is not None and found[0] <= 1
        found = found if start else None
    nonfinite = _for_good([pair.here.bad != pair.good.bad for pair in pairs])
    lasting = nonfinite is not None and sum(p.here.bad != p.good.bad for p in pairs[nonfinite:]) >= LASTING_BAD
    if nonfinite is not None and lasting and (found is None or nonfinite <= found[0]):
        return Apart(nonfinite, False, inf, scale.noise, 1 if pairs[nonfinite].here.bad else -1, scale.logarithm)
    if found is None:
        return Apart(None, False, 0.0, scale.noise, 0, scale.logarithm)
    at, sign = found
    return Apart(at, start or at == 0, abs(median(sigmas[at:])), scale.noise, sign, scale.logarithm)


def _side(sigmas: Sequence[float], sign: int, strict: float) -> tuple[int, int] | None:
    """The place from which on the points are beyond a bound on one side, `strict` times as far as usual."""
    found = []
    for bound, lasting in ((strict * BOUND, LASTING), (strict * BOUND_LONG, LONG)):
        flags = [sign * sigma >= bound for sigma in sigmas]
        at = _for_good(flags)
        if at is not None and (sum(flags[at:]) >= lasting or sign * sigmas[at] >= FEW * bound):
            found.append(at)
    return (min(found), sign) if found else None


def _for_good(flags: Sequence[bool]) -> int | None:
    """First flagged place from which on at least half of the places are flagged."""
    found, held = None, 0
    for at in range(len(flags) - 1, -1, -1):
        held += flags[at]
        if flags[at] and 2 * held >= len(flags) - at:
            found = at
    return found


class Scale:
    """The good run's values as a band with a noise."""

    def __init__(self, good: Sequence[Point], share: bool = False, placed: bool = False) -> None:
        """Measure what the good run logged, in order: of a `share`, of one layer or rank (`placed`), or of neither."""
        values = [p.value for p in good if p.value is not None]
        self.logarithm = bool(values) and min(values) > 0 and not share
        self._least = max(min(values) * LEAST, float_info.min) if self.logarithm else 0.0
        shown = [self.shown(v) for v in values]
        smooth = [median(shown[max(0, i - _WINDOW) : i + _WINDOW + 1]) for i in range(len(shown))]
        steps = [abs(b - a) for a, b in pairwise(shown)]
        usual = 1.0 if self.logarithm else median([abs(v) for v in values] or [0.0])
        zero = 0.0 if self.logarithm else FLOOR_ZERO
        floor = FLOOR_SHARE if share else max((FLOOR_PLACED if placed else FLOOR) * usual, zero)
        wander = WANDER * (max(smooth) - min(smooth)) if smooth else 0.0
        noises = 1.4826 * median(steps) / 2**0.5 if steps else 0.0, floor, wander, _digits(shown)
        self.noise, self.measured = max(noises), isfinite(sum(noises))
        reach = max(2, round(REACH * len(values)))
        self._low, self._high = ([sign * v for v in _highest([sign * v for v in smooth], reach)] for sign in (-1, 1))
        self._place = list(accumulate((p.value is not None for p in good), initial=0))

    def shown(self, value: float) -> float:
        """The value on the scale that it is compared on."""
        return log(max(value, self._least)) if self.logarithm else value

    def offset(self, pairs: Sequence[Pair]) -> float:
        """How far the run is off in its first points."""
        early = pairs[: min(EARLY_MOST, int(EARLY_SHARE * len(pairs)))]
        gaps = [
            self.shown(p.here.value) - self.shown(p.good.value)
            for p in early
            if p.here.value is not None and p.good.value is not None
        ]
        return median(gaps) if len(gaps) >= LASTING else 0.0

    def sigma(self, pair: Pair, offset: float) -> float:
        """How far outside the band a point is, in noises, with `offset` counted in its favour; 0 inside."""
        if pair.here.value is None or pair.good.value is None:
            return 0.0
        place = self._place[pair.at]
        shown, own = self.shown(pair.here.value), self.shown(pair.good.value)
        low = min(self._low[place], own) + min(0.0, offset)
        high = max(self._high[place], own) + max(0.0, offset)
        sigma = (max(shown - high, 0.0) + min(shown - low, 0.0)) / self.noise
        return max(-FARTHEST, min(sigma, FARTHEST))


def _highest(values: Sequence[float], reach: int) -> list[float]:
    """The highest of the values within `reach` places of each place."""
    found: list[float] = []
    queue: deque[int] = deque()
    for at in range(len(values) + reach):
        if at < len(values):
            while queue and values[queue[-1]] <= values[at]:
                queue.pop()
            queue.append(at)
        if at >= reach:
            while queue[0] < at - 2 * reach:
                queue.popleft()
            found.append(values[queue[0]])
    return found


def _digits(shown: Sequence[float]) -> float:
    """The width of the last digit where a signal was written with so few that most values repeat."""
    distinct = sorted(set(shown))
    if len(distinct) < 2 or 2 * len(distinct) > len(shown):
        return 0.0
    return min(b - a for a, b in pairwise(distinct))
