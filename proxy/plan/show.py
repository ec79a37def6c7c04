"""Plans as text: the first line is the answer, then how to build it, then why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.cost.setting import DEFAULTS

if TYPE_CHECKING:
    from faultproxy.proxy.cost.estimate import Setting

_WIDTH, _LABEL = 118, 15
#: Characters of one entry: facts of a report may be of any length.
_MOST = 1000


def headline(plan: Mapping[str, Any]) -> str:
    """`12 of 48 layers, 16 of 128 experts: 8 -> 1 h100, 16.8 -> 0.5 device-hours a step (97 % less)` of a plan as plain data."""
    size = f"{len(plan['layers_kept'])} of {plan['layers']} layers"
    size += f", {plan['experts_kept']} of {plan['experts']} experts" if plan["experts"] else ""
    if plan["devices"] is None or plan["devices_original"] is None:
        return f"{size}; cost not known"
    before, after = plan["device_hours_per_step_original"], plan["device_hours_per_step"]
    change = f"{abs(1 - after / before):.0%} {'less' if after <= before else 'more'}"
    change = "no less" if change.startswith("0%") else change
    hours = f"{before:.3g} -> {after:.3g} device-hours a step ({change})"
    beyond = "" if plan["fits"] else ", BEYOND THE BUDGET"
    return f"{size}: {plan['devices_original']:,} -> {plan['devices']:,} {plan['device']}, {hours}{beyond}"


def priced(setting: Setting, run: int | None = None) -> str:
    """What the costs are of, in words, and what of it is assumed; `run`: the devices that the run had."""
    w = setting.workload
    batch, lengths = (w.prompts, w.group) == DEFAULTS["batch"], (w.prompt, w.response) == DEFAULTS["sequence"]
    rollouts = f"{w.prompts:,} x {w.group:,}{' (assumed)' if batch and not lengths else ''} rollouts"
    tokens = f"{w.prompt:,} + {w.response:,}{' (assumed)' if lengths and not batch else ''} tokens"
    said = f"{'an assumed' if batch and lengths else 'a'} {w.algorithm} step of {rollouts}, {tokens}, on the fewest {setting.device.name} that hold it"
    return said + (f"; the run had {run:,} device{'s' * (run > 1)}" if run else "")


def render(found: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """All plans, the recommended first, and what to know of all; what holds for each of them is said once, at the end."""
    told = [list(_parts(plan)) for plan in found]
    common = [entry for entry in told[0] if all(entry in parts for parts in told)]
    lines = []
    for at, (plan, parts) in enumerate(zip(found, told, strict=True)):
        lines += ["", f"{at + 1}. {headline(plan)}"] if at else [headline(plan)]
        lines += _entry(
            "for", f"factor{'s' * (len(plan['factors']) > 1)} {', '.join(plan['factors'])}: {plan['title']}"
        )
        lines.append(f"  {'build':<{_LABEL - 2}}{visible(plan['command'])}")
        lines += _entries([entry for entry in parts if entry not in common])
    lines += ["", "all of them"] if len(found) > 1 and common else []
    lines += _entries([*common, *(("note", note) for note in notes)])
    return "\n".join(lines) + "\n"


def _parts(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from (("keeps", text) for text in plan["keeps"])
    yield from (("saves", text) for text in plan["saves"])
    yield "weights", f"{plan['weights']}: {plan['weights_why']}"
    if plan["unpriced"]:
        yield "cost", plan["unpriced"]
    if plan["cost"]:
        layout, cost = plan["cost"]["layout"], plan["cost"]
        degrees = ", ".join(f"{name.upper()} {layout[name]}" for name in ("tp", "pp", "cp", "ep"))
        yield "layout", f"{degrees}; {cost['memory_bytes'] / 1e9:.3g} GB a device, {cost['seconds']:,.0f} s a step"
    yield from (("not in it", text) for text in plan["cannot_reproduce"])
    yield from (("mind", text) for text in plan["warnings"])
    settings = plan["precision"].items()
    known = [f"{name} {str(row['value']).lower()}" for name, row in settings if row["value"] is not None]
    unknown = [name for name, row in settings if row["value"] is None]
    if known:
        yield "match", ", ".join(known)
    if unknown:
        yield "match yours", f"{', '.join(unknown)} (--format json says where each is set)"
    if plan["environment"]:
        yield "in both runs", " ".join(f"{name}={value}" for name, value in plan["environment"].items())


def _entries(entries: Sequence[tuple[str, str]]) -> list[str]:
    """A label stands at its first entry only."""
    labels = ["", *(label for label, _ in entries)]
    return [
        line
        for (label, text), last in zip(entries, labels, strict=False)
        for line in _entry("" if label == last else label, text)
    ]


def _entry(label: str, text: str) -> list[str]:
    return wrap(visible(text, _MOST), _WIDTH, initial_indent=f"  {label:<{_LABEL - 2}}", subsequent_indent=" " * _LABEL, break_long_words=False, break_on_hyphens=False)  # fmt: skip
