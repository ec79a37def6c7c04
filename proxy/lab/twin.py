"""A run beside its healthy twin, from the onset on: the comparisons that the oracle is made of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from faultproxy.proxy.lab import effect
from faultproxy.proxy.lab.effect import EFFECT, Array, Series

#: What a comparison finds: the first bad step and a reason; None where nothing is found.
Found = tuple[int, str] | None


class Case:
    """Both runs, what moved by how much (`effects` of effect.py), and the first step with the fault.

    "End" is the last quarter of the steps from the onset on, at least 4. A sign is 1 for "more" and -1 for "less".
    """

    def __init__(self, run: Series, twin: Series, effects: Mapping[str, float], onset: int) -> None:
        self.run, self.twin = effect.summaries(run), effect.summaries(twin)
        self.effects, self.onset = effects, onset

    def has(self, name: str) -> bool:
        """True where both runs log the signal after the onset, the twin with a finite value."""
        return name in self.run and name in self.twin and bool(np.isfinite(self.twin[name][self.onset - 1 :]).any())

    def pair(self, name: str) -> tuple[Array, Array]:
        """Run and twin from the onset on, equally long."""
        run, twin = (values[name][self.onset - 1 :] for values in (self.run, self.twin))
        return run[: len(twin)], twin[: len(run)]

    def z(self, name: str, sign: int = 1) -> float:
        """Spreads by which a signal moved in the direction of `sign`; 0 for one that is not there."""
        return sign * self.effects.get(name, 0.0)

    def start(self, name: str) -> tuple[float, float]:
        """Run and twin at the onset step."""
        run, twin = self.pair(name)
        return float(run[0]), float(twin[0])

    def end(self, name: str) -> tuple[float, float]:
        """Mean of run and twin over the end; NaN where no value there is finite."""
        run, twin = self.pair(name)
        last = max(4, len(twin) // 4)
        return mean(run[-last:]), mean(twin[-last:])

    def before(self, name: str) -> float:
        """Mean over the 6 steps before the onset, which run and twin share."""
        return mean(self.twin[name][max(0, self.onset - 7) : self.onset - 1])

    def first(self, name: str, sign: int) -> int:
        """Step from which on the run is away from the twin, in y of effect.py: the change point of their difference.

        It is where sum / sqrt(steps) of what follows is largest, or an earlier step that comes within 10 % of that and is
        itself half as far away as what follows: a jump is found where it happens, a climb a third of the way up.
        """
        run, twin = (effect.scaled(values, self.twin[name]) for values in self.pair(name))
        logged = np.flatnonzero(np.isfinite(run) & np.isfinite(twin))
        if not len(logged):
            return self.onset
        distance = sign * (run - twin)[logged]
        weight = np.cumsum(distance[::-1])[::-1] / np.sqrt(np.arange(len(logged), 0, -1))
        best = int(np.argmax(weight))
        near = (weight >= 0.9 * weight[best]) & (distance >= 0.5 * distance[best:].mean())
        near[best] = True
        return self.onset + int(logged[np.argmax(near)])

    def ratio(self, name: str, least: float, sign: int = 1, least_d: float = 0.0) -> Found:
        """Holds where a signal moved and its end is at least `least` times the twin's (`sign` -1: at most), and
        `least_d` away from it."""
        if not self.has(name) or self.z(name, sign) < EFFECT:
            return None
        run, twin = self.end(name)
        held = run >= least * twin if sign > 0 else run <= least * twin
        return (self.first(name, sign), said(name, run, twin)) if held and abs(run - twin) >= least_d else None

    def apart(self, name: str, least: float, sign: int = 1) -> Found:
        """Holds where a signal moved and its end differs from the twin's by at least `least`."""
        if not self.has(name) or self.z(name, sign) < EFFECT:
            return None
        run, twin = self.end(name)
        return (self.first(name, sign), said(name, run, twin)) if sign * (run - twin) >= least else None

    def nonfinite(self, names: list[str], share: float) -> Found:
        """Holds where a signal is not finite at its last step, or at `share` of the steps, and the twin's is."""
        found: list[tuple[int, str]] = []
        for name in names:
            if name in self.run and name in self.twin:
                run, twin = self.pair(name)
                bad, logged = np.isinf(run) & ~np.isinf(twin), np.flatnonzero(~np.isnan(run))
                if bad.any() and (bad[logged[-1]] or bad.sum() >= share * len(logged)):
                    text = f"{name} is not finite at {bad.sum()} of {len(logged)} steps"
                    found.append((self.onset + int(np.argmax(bad)), text))
        return min(found, key=lambda one: one[0], default=None)

    def layer(self, name: str, sign: int) -> str:
        """The column of the layer whose signal moved most in the direction; of equals, by its end."""
        found = [key for key in self.effects if key.startswith(f"{name}@") and key[len(name) + 1 :].isdigit()]
        return max(
            found,
            key=lambda key: (self.z(key, sign), sign * float(np.subtract(*self.end(key)))),
            default=f"{name}@mean",
        )


def mean(values: Array) -> float:
    """Mean of the finite values; NaN where there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def said(name: str, run: float, twin: float, where: str = "at the end") -> str:
    """The two numbers in words."""
    return f"{name} {run:.4g} {where}, twin {twin:.4g}"
