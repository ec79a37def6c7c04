"""Estimates as text: one column a model, the ratio where there are two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from faultproxy.proxy.cost.estimate import Setting

#: What each section of an estimate counts: divisor, unit, heading.
_UNITS = {
    "parameters": (1e9, "B", "parameters"),
    "memory_bytes": (1e9, "GB", "memory a device (host: of the whole job)"),
    "layout": (1, "", "layout of the trainer"),
    "groups": (1, "", "devices"),
    "flops": (1e15, "PFLOP", "work of a step"),
    "seconds": (1, "s", "time of a step"),
    "totals": (1, "", "in all"),
}


def _number(value: float, unit: str) -> str:
    """Three digits, and all of a larger whole: `30.5 B`, `0.0935`, `515,544`."""
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def render(found: Sequence[Mapping[str, Any]], setting: Setting, formulas: Mapping[str, str]) -> str:
    """The breakdown of one document, or of an original's and its proxy's with the share that is left."""
    d, w, e = setting.device, setting.workload, setting.efficiency
    names = ("model",) if len(found) == 1 else ("original", "proxy")
    lines = [
        f"{d.title}; {w.algorithm}, critic {w.critic}, {setting.placement}, offload {setting.offload}",
        f"{w.prompts:,} prompts x {w.group:,} rollouts of {w.prompt:,} + {w.response:,} tokens (longest {w.tail:,})",
        "",
        " " * 28 + "".join(f"{name:>14}" for name in names) + f"{'left':>9}" * (len(found) > 1),
    ]
    for section, (divisor, unit, heading) in _UNITS.items():
        lines.append(heading)
        for key in dict.fromkeys(key for one in found for key in one[section]):
            values = [one[section].get(key, 0) for one in found]
            if any(values):
                left = f"{values[-1] / values[0]:>9.3f}" if len(values) > 1 and values[0] else ""
                cells = "".join(f"{_number(value / divisor, unit):>14}" for value in values)
                lines.append(f"  {key.replace('_', ' '):<26}{cells}{left}")
    said = (
        f"The update fills {e.memory:.0%} of memory at most, the rollout {e.rollout:.0%}. Training reaches {e.train:.0%} of peak, forward "
        f"passes {e.forward:.0%}; decoding {e.decode_bytes:.0%} of bandwidth, {e.decode_flops:.0%} of peak, and no less than "
        f"{e.layer_floor * 1e3:g} ms a layer and token. Device counts lie within 2x of published clusters; seconds may be off by 7x (docs/cost.md)."
    )
    lines += ["", "assumed", *wrap(said, 110, initial_indent="  ", subsequent_indent="  "), "device"]
    lines += [f"  {source}" for source in d.sources]
    lines += ["formulas"] if formulas else []
    for name, text in formulas.items():
        lines += wrap(f"{name}: {text}", 110, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"
