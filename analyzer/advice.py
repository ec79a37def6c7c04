"""What a trace could not show and how to switch it on (`coverage.toml`), and the checks that narrow the causes (`checks.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.trace import Trace

if TYPE_CHECKING:
    from faultproxy.analyzer.engine import Outcome

#: Causes below this probability are not worth a check.
_OPEN = 0.08
_MOST = 3


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files("faultproxy.analyzer").joinpath(name).read_text(encoding="utf-8"))


def not_judged(trace: Trace, outcomes: Iterable[Outcome] = ()) -> tuple[dict[str, Any], ...]:
    """The areas of `coverage.toml` for which the trace holds no signal: what, needs, how (for its framework, if known).

    A factor whose signals stand by layer is judged only where a rule that votes for it read some of them: of the layers
    of a run, its overlap says nothing of a backward pass, and its moments are read by nobody. A comparison judges a factor
    only where it found something: that no rule fired may mean that no layer was compared.
    """
    judged = {
        factor
        for outcome in outcomes
        if (outcome.status == "fires" and outcome.rule.view == "against")
        or (outcome.status in ("fires", "clean") and outcome.rule.view in ("layer", "expert"))
        for factor in outcome.rule.votes
    }
    present = {key.signal for frame in (trace.frame, trace.detail) for key in frame.columns}
    if trace.events or any(
        "text" in s.format or "console" in s.format or s.format == "key-value" for s in trace.sources
    ):
        present.add("text")
    if any(event.kind in ("overflow", "loss_scale_floor") for event in trace.events):
        present.add("loss_scale")
    rl = trace.facts.get("algorithm") in ("rl", "ppo")
    framework = trace.facts.get("framework")
    return tuple(
        {"what": area["what"], "needs": area["needs"], "how": area.get("by", {}).get(framework, area["how"])}
        for area in _table("coverage.toml")["area"]
        if (area["when"] == "any" or rl)
        and (area["by_rules"] not in judged if area.get("by_rules") else not present & set(area["needs"]))
    )


def next_checks(kind: str, causes: tuple[tuple[str, float], ...]) -> tuple[dict[str, Any], ...]:
    """The cheapest checks for a failure type that tell its likeliest cause from another that is still open."""
    likely = causes[0][0] if causes else None
    still_open = {cause for cause, probability in causes if probability >= _OPEN} - {"unknown"}
    found = []
    for check in _table("checks.toml")["check"]:
        separates = [cause for cause in check["separates"] if cause in still_open]
        if kind in check["types"] and len(separates) >= 2 and likely in separates:
            found.append({"check": check["check"], "separates": separates, "cost": check["cost"]})
    return tuple(found[:_MOST])
