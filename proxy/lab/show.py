"""Shows a run beside its healthy twin: sparklines for a terminal, or one page of plots that works offline.

The signals that moved most come first, with the z of effect.py. What is not finite is a `!`, or a mark at the top edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from faultproxy import __version__
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.lab import effect
from faultproxy.proxy.lab.effect import EFFECT, Array, Series

_BLOCKS = [chr(0x2581 + level) for level in range(8)]
#: Size of a plot in pixels.
_WIDE, _HIGH = 340, 110
#: Positive values over more than this ratio are drawn on a logarithmic axis.
_DECADES = 50.0


def fork(run: Series, twin: Series) -> int | None:
    """First step at which the two differ in what they recorded (but the wall time); None where nothing does, 1 for runs
    that share no signal."""
    shared = [name for name in run if name in twin and not name.startswith("step_time")]
    pairs = [(run[name], twin[name]) for name in shared]
    apart = [np.flatnonzero(~np.isclose(a[: len(b)], b[: len(a)], rtol=1e-12, equal_nan=True)) for a, b in pairs]
    return min((int(steps[0]) + 1 for steps in apart if len(steps)), default=None if shared else 1)


def order(run: Series, effects: Mapping[str, float]) -> list[str]:
    """Signals worth a line: whole-model ones and summaries, the most moved first, then in the order recorded."""
    shown = [name for name in effect.summaries(run) if not _single(name)]
    return sorted(shown, key=lambda name: -abs(effects.get(name, 0.0)))


def _single(name: str) -> bool:
    """True for one layer (its summaries are shown) but `@0`, and for one rank."""
    _, at, place = name.replace("#", "@").partition("@")
    return bool(at) and place.isdigit() and not name.endswith("@0")


def text(
    run: Series,
    twin: Series | None,
    effects: Mapping[str, float],
    onset: int | None = None,
    limit: int = 24,
    width: int = 120,
) -> str:
    """A table of sparklines: `limit` signals (0: all) in `width` columns. Run and twin of a line share one scale."""
    own, like = effect.summaries(run), effect.summaries(twin) if twin is not None else {}
    names = order(run, effects)
    picked = names[: limit or None]
    steps = max((len(values) for values in own.values()), default=0)
    wide = max((len(visible(name)) for name in picked), default=0)
    # Beside two sparklines stand the name, z (8), and the range (24).
    spark = max(8, min(steps, (width - wide - 32) // (1 if twin is None else 2) - 2))
    heads = ["signal".ljust(wide), "run".ljust(spark)]
    if twin is not None:
        heads = [heads[0], "     z", heads[1], "healthy twin".ljust(spark)]
    lines = ["  ".join([*heads, f"{steps} steps" + (f", fault from {onset}" if onset is not None else "")])]
    for name in picked:
        curves = [own[name], *([like[name]] if name in like else [])]
        low, high, log = _axis(curves)
        cells = [visible(name).ljust(wide)]
        if twin is not None:
            cells.append(f"{effects[name]:6.1f}" if name in effects else "     -")
        cells += [_spark(curve, low, high, log, spark).ljust(spark) for curve in curves]
        cells += [" " * spark] if twin is not None and name not in like else []
        lines.append("  ".join([*cells, f"{low:.3g} .. {high:.3g}{' log' if log else ''}"]))
    if len(names) > len(picked):
        lines.append(f"{len(names) - len(picked)} more signals")
    return "\n".join(lines) + "\n"


def _axis(curves: Sequence[Array]) -> tuple[float, float, bool]:
    """Lowest and highest finite value of the curves, and whether their axis is logarithmic."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 0.0, False
    low, high = float(values.min()), float(values.max())
    return low, high, low > 0 and high > _DECADES * low


def _height(values: Array, low: float, high: float, log: bool) -> Array:
    """Values as 0 to 1 of their axis; NaN and infinities as they are."""
    if log:
        values, low, high = np.where(values > 0, np.log(np.maximum(values, 1e-300)), values), np.log(low), np.log(high)
    return np.asarray((values - low) / (high - low) if high > low else np.where(np.isfinite(values), 0.5, values))


def _spark(values: Array, low: float, high: float, log: bool, width: int) -> str:
    height = _height(values, low, high, log)
    drawn = ""
    for part in np.array_split(height, min(len(height), width)) if len(height) else []:
        finite = part[np.isfinite(part)]
        drawn += "!" if np.isinf(part).any() else _BLOCKS[min(7, int(finite.mean() * 8))] if len(finite) else " "
    return drawn


_STYLE = """
:root { color-scheme: light dark; --run: #c2410c; --twin: #64748b; --line: #94a3b855; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); }
figure { margin: 0; } figcaption { font-family: ui-monospace, monospace; font-size: 12px; overflow-wrap: anywhere; }
svg { width: 100%; border: 1px solid var(--line); } polyline { fill: none; stroke-width: 1.6; }
.run { stroke: var(--run); } .twin { stroke: var(--twin); stroke-dasharray: 4 3; } .onset { stroke: var(--line); }
.bad { fill: var(--run); } .moved { font-weight: 700; } .key { color: var(--run); } small { opacity: .75; }
"""


def html(
    title: str, run: Series, twin: Series | None, effects: Mapping[str, float], onset: int | None, notes: Sequence[str]
) -> str:
    """One page without scripts or anything to load; `notes` are lines under the title. All text is escaped."""
    own, like = effect.summaries(run), effect.summaries(twin) if twin is not None else {}
    figures = [_figure(name, own[name], like.get(name), effects.get(name), onset) for name in order(run, effects)]
    head = "".join(f"<p>{escape(visible(note))}</p>" for note in notes)
    drawn = "<span class=key>run</span>" + (", dashed: healthy twin" if twin is not None else "")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(visible(title))}</title><style>{_STYLE}</style></head><body><h1>{escape(visible(title))}</h1>{head}"
        f"<p>{drawn}. z in spreads between healthy runs, {EFFECT:g} or more in bold; a vertical line marks the first step that differs.</p>"
        f"<main>\n{''.join(figures)}</main><p><small>faultproxy {escape(__version__)}</small></p></body></html>\n"
    )


def _figure(name: str, run: Array, twin: Array | None, z: float | None, onset: int | None) -> str:
    curves = [run] if twin is None else [twin, run]
    low, high, log = _axis(curves)
    steps = max(map(len, curves))
    lines = []
    if onset is not None and onset > 1:
        x = _x(onset - 1, steps)
        lines.append(f'<line class="onset" x1="{x}" x2="{x}" y1="0" y2="{_HIGH}"/>')
    for kind, curve in zip(("run",) if twin is None else ("twin", "run"), curves, strict=True):
        height = _height(curve, low, high, log)
        points = [
            f"{_x(at, steps)},{_HIGH - 5 - height[at] * (_HIGH - 10):.1f}" for at in np.flatnonzero(np.isfinite(height))
        ]
        lines.append(f'<polyline class="{kind}" points="{" ".join(points)}"/>')
        if kind == "run":
            lines += [
                f'<circle class="bad" cx="{_x(at, steps)}" cy="4" r="3"/>' for at in np.flatnonzero(np.isinf(curve))
            ]
    moved = "" if z is None else f" <span{' class=moved' if abs(z) >= EFFECT else ''}>z {z:.1f}</span>"
    label = escape(visible(name))
    return (
        f"<figure><figcaption>{label}{moved} <small>{low:.3g} to {high:.3g}{', log' if log else ''}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{label}">{"".join(lines)}</svg></figure>\n'
    )


def _x(at: int | np.intp, steps: int) -> str:
    return f"{5 + int(at) * (_WIDE - 10) / max(1, steps - 1):.1f}"
