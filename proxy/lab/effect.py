"""How far a faulty run moves from its healthy twin, in units of what separates healthy runs of the same program.

A run is a dict of arrays, one entry a step: entry `s - 1` is step `s`, NaN is "not logged", an infinity is "logged, but
not finite" (whatever kind of non-finite it was). Names are those of `Key.column`; a layer's signal is `grad_norm@3`, a
rank's `grad_norm#1`.

For each signal, over the steps from the onset on, with x scaled as y = asinh(x / s):

    z_mean = (mean y of the fault - mean y of the twin) / spread of mean y between healthy runs
    z_peak = half of the same with the highest (where it rose) or the lowest (where it fell) y of the window
    z      = z_mean, or z_peak where z_mean is no effect and the smaller; within +-99
    z      = +99 for any non-finite value that the twin does not have

asinh is linear near 0 and logarithmic far away, so one formula serves norms over decades and signed advantages. s is
a tenth of the healthy median |x| where healthy values are all positive (the log part then begins at a tenth of the
ordinary, so that a fall shows as well as a rise), else the median itself, else 1e-3 (a signal that is 0 in health).

    spread = (1 + 2 / (n - 1)) * max(1.4826 MAD, std / 2, step noise / sqrt(steps), 1e-3)

n healthy runs are 3 to 16 (1 counts as 2). MAD withstands one odd seed, but the MAD of 3 numbers is the smaller of two gaps, hence std / 2
beneath it; the step noise (1.4826 MAD of the differences of consecutive steps / sqrt 2) is what one run's mean is
uncertain by, however alike the seeds came out; 1e-3 (0.1 % of a positive signal) keeps a constant from giving infinite
z. The factor in front is close to t / normal at 95 % for n - 1 degrees of freedom (2 against 2.2 at n = 3, 1.13
against 1.09 at n = 16). The peak counts half: it is noisier, and a second chance
to find something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.trace import BAD_STATES, NEG_INF, Key, Trace

Array = NDArray[np.float64]
#: One run: signal to [steps].
Series = Mapping[str, Array]

#: An effect is at least this many spreads, and none is more than CAP.
EFFECT, CAP = 3.0, 99.0
#: Least spread, in units of y, and the scale of a signal that healthy runs leave at 0.
FLOOR, ZERO_SCALE = 1e-3, 1e-3
HIDDEN = "[hidden]"
#: Arrays have an entry a step, logged or not: lab runs have some 30, and no log of millions is to fill the memory.
MAX_STEPS = 20_000
#: Per-layer signals over decades: their slope is that of the logarithm.
_LOG_SLOPE = {"grad_norm", "act_absmax", "act_norm", "update_ratio", "moment1_norm", "moment2_norm"}


def series(table: Any) -> dict[str, Array]:
    """The rows of one run (canonical values, a pyarrow table) as arrays; per-expert rows are left out.

    Hidden signals come under their plain name (`true_reward`).
    """
    import pyarrow.compute as pc

    table = table.filter(pc.is_null(table["expert"]))
    names = ("signal", "axis", "role", "stat", "label", "layer", "rank", "step", "value", "state")
    return _arrays(zip(*(table[name].to_pylist() for name in names), strict=True))


def series_of(trace: Trace) -> dict[str, Array]:
    """The same of a trace in memory, whichever log it was read from."""
    return _arrays(
        (
            key.signal,
            key.axis,
            key.role,
            key.stat,
            key.label,
            key.layer,
            key.rank,
            frame.steps[row],
            cell.value,
            cell.state,
        )
        for frame in (trace.frame, trace.detail)
        for row, column, cell in frame.cells()
        if (key := column.key).expert is None and key.module is None
    )


def _arrays(cells: Iterable[tuple[Any, ...]]) -> dict[str, Array]:
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for *identity, step, value, state in cells:
        if step < 1:
            continue
        number = (
            value if value is not None else -np.inf if state == NEG_INF else np.inf if state in BAD_STATES else np.nan
        )
        found.setdefault(tuple(identity), {})[step] = number
    last = max((max(by_step) for by_step in found.values()), default=0)
    if last > MAX_STEPS:
        raise InputError(f"the run ends at step {last}; at most {MAX_STEPS} can be compared step by step; cut the log")
    run = {}
    for (signal, axis, role, stat, label, layer, rank), by_step in found.items():
        name = Key(signal, axis, role, stat, label).column.removesuffix(HIDDEN)
        values = np.full(last, np.nan)
        values[np.array([*by_step]) - 1] = [*by_step.values()]
        run[name + ("" if layer is None else f"@{layer}") + ("" if rank is None else f"#{rank}")] = values
    return run


def summaries(run: Series) -> dict[str, Array]:
    """The run with summaries of what it has by layer or by rank.

    Of layers: `@0` and `@last` (the first and last layer that has the signal), `@mean`, and `@slope` (least squares, from
    the first layer to the last; of the logarithm for norms). Of ranks: `#spread`, (max - min) / mean size.
    """
    full = {name.removesuffix(HIDDEN): np.asarray(values, dtype=np.float64) for name, values in run.items()}
    layers: dict[str, dict[int, Array]] = {}
    ranks: dict[str, list[Array]] = {}
    for name, values in full.items():
        signal, at, layer = name.partition("@")
        if at and layer.isdigit():
            layers.setdefault(signal, {})[int(layer)] = values
        signal, at, _ = name.partition("#")
        if at:
            ranks.setdefault(signal, []).append(values)
    for signal, by_layer in layers.items():
        order = sorted(by_layer)
        stack = _stack([by_layer[layer] for layer in order])
        full |= {f"{signal}@0": stack[0], f"{signal}@last": stack[-1], f"{signal}@mean": _mean(stack)}
        if len(order) > 1:
            place = np.array(order, dtype=np.float64)
            place = (place - place.mean()) / (place[-1] - place[0])
            y = np.log(np.maximum(stack, 1e-30)) if signal in _LOG_SLOPE else stack
            y = np.where(np.isfinite(stack).all(0), y, np.nan)
            full[f"{signal}@slope"] = (place[:, None] * y).sum(0) / (place**2).sum()
    for signal, by_rank in ranks.items():
        stack = _stack(by_rank)
        clean = np.where(np.isfinite(stack).all(0), stack, np.nan)
        full[f"{signal}#spread"] = (clean.max(0) - clean.min(0)) / np.maximum(np.abs(clean).mean(0), 1e-12)
    return full


def effects(fault: Series, twin: Series, healthy: Sequence[Series], onset: int) -> dict[str, float]:
    """Signed z of every signal that the fault, its twin, and a healthy run log from step `onset` on.

    `healthy` are runs of the program with other seeds; the twin may be among them. Of one alone the step noise counts.
    """
    if not healthy:
        raise InputError("got no healthy run; a spread needs at least 1, better 3 or more; simulate some seeds")
    runs = [summaries(run) for run in (fault, twin, *healthy)]
    names = sorted(set(runs[0]) & set(runs[1]))
    steps = max((len(run[name]) for run in runs for name in names if name in run), default=0)
    if onset < 1 or onset > steps:
        raise InputError(f"onset {onset} is no step of the run; allowed are 1 to {steps}")
    none = np.full(0, np.nan)
    x = np.stack([_stack([run.get(name, none) for name in names], steps) for run in runs])[:, :, onset - 1 :]
    logged = np.asarray(np.isfinite(x).any(2))
    kept = logged[1] & logged[2:].any(0) & ~np.isnan(x[0]).all(1)
    x, names = x[:, kept], [name for name, keep in zip(names, kept, strict=True) if keep]
    finite, bad = np.isfinite(x), np.isinf(x)

    y = np.arcsinh(np.where(finite, x, np.nan) / _scale(x[2:])[None, :, None])
    steps_logged = finite.sum(2)
    some = np.maximum(steps_logged, 1)
    mean = np.where(steps_logged > 0, np.where(finite, y, 0).sum(2) / some, np.nan)
    high = np.where(steps_logged > 0, np.where(finite, y, -np.inf).max(2), np.nan)
    low = np.where(steps_logged > 0, np.where(finite, y, np.inf).min(2), np.nan)
    noise = step_noise(y[2:])
    z_mean = (mean[0] - mean[1]) / _spread(mean[2:], noise / np.sqrt(np.median(some[2:], 0)))
    # The maximum of a window has about half the noise of one step.
    rise = (high[0] - high[1]) / _spread(high[2:], noise / 2)
    fall = (low[0] - low[1]) / _spread(low[2:], noise / 2)
    peak = np.where(rise > -fall, np.maximum(rise, 0), np.minimum(fall, 0)) / 2
    z = np.where((np.abs(z_mean) < EFFECT) & (np.abs(peak) > np.abs(z_mean)), peak, z_mean)
    z = np.where(bad[0].mean(1) > bad[1].mean(1), CAP, np.clip(np.nan_to_num(z), -CAP, CAP))
    return {name: round(float(value), 3) for name, value in zip(names, z, strict=True)}


def moved(found: Mapping[str, float], signal: str, direction: str = "?") -> bool:
    """True where the signal moved by at least EFFECT spreads: up (`+`), down (`-`), or either way (`?`)."""
    z = found.get(signal, 0.0)
    return {"+": z >= EFFECT, "-": z <= -EFFECT, "?": abs(z) >= EFFECT}[direction]


def scaled(values: Array, like: Array) -> Array:
    """y of `values` with the scale of one healthy run `like`; what is not finite becomes NaN."""
    return np.asarray(np.arcsinh(np.where(np.isfinite(values), values, np.nan) / _scale(like[None, None])[0]))


def step_noise(y: Array) -> Array:
    """Noise of one step of [runs, signals, steps]: median over runs, 0 where no two consecutive steps are logged."""
    differences = np.abs(np.diff(y, axis=2))
    return np.nan_to_num(_median(_median(differences, 2) * 1.4826 / np.sqrt(2), 0))


def _scale(healthy: Array) -> Array:
    """s of each signal from [runs, signals, steps]."""
    finite = np.isfinite(healthy)
    size = np.abs(np.where(finite, healthy, np.nan)).transpose(1, 0, 2).reshape(healthy.shape[1], -1)
    median = np.nan_to_num(_median(size, 1))
    positive = (np.where(finite, healthy, np.inf) > 0).all((0, 2))
    return np.where(median > 0, np.where(positive, median / 10, median), ZERO_SCALE)


def _spread(values: Array, noise: Array) -> Array:
    """Spread of [runs, signals] between runs; see the head of this file."""
    count = np.isfinite(values).sum(0)
    n = np.maximum(count, 2)
    deviation = np.abs(values - _median(values, 0))
    mean = np.nansum(values, 0) / np.maximum(count, 1)
    std = np.sqrt(np.nansum((values - mean) ** 2, 0) / (n - 1))
    floors = [1.4826 * _median(deviation, 0), std / 2, noise, np.full_like(noise, FLOOR)]
    return np.asarray((1 + 2 / (n - 1)) * np.maximum.reduce(floors))


def _median(values: Array, axis: int) -> Array:
    """Median of what is not NaN; NaN where nothing is (numpy's own warns there)."""
    ordered = np.sort(values, axis)  # NaN last
    count = np.isfinite(values).sum(axis)
    below = np.expand_dims(np.maximum(count - 1, 0) // 2, axis)
    above = np.expand_dims(np.minimum(count // 2, max(values.shape[axis] - 1, 0)), axis)
    if not values.shape[axis]:
        return np.full(count.shape, np.nan)
    pair = np.take_along_axis(ordered, below, axis) + np.take_along_axis(ordered, above, axis)
    return np.where(count > 0, pair.squeeze(axis) / 2, np.nan)


def _mean(stack: Array) -> Array:
    """Mean over the first axis of what is logged; infinite where any is."""
    logged = ~np.isnan(stack)
    total = np.where(logged & np.isfinite(stack), stack, 0).sum(0) / np.maximum(logged.sum(0), 1)
    return np.where(np.isinf(stack).any(0), np.inf, np.where(logged.any(0), total, np.nan))


def _stack(arrays: Sequence[Array], steps: int | None = None) -> Array:
    """[arrays, steps], short ones padded with NaN."""
    length = max((len(array) for array in arrays), default=0) if steps is None else steps
    stacked = np.full((len(arrays), length), np.nan)
    for row, array in zip(stacked, arrays, strict=True):
        row[: len(array)] = array[:length]
    return stacked
