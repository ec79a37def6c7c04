"""What a plan is asked for: the fault, where it lies, and what is known of the run, from a JSON report or by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

FACTORS = ("routing", "depth", "precision", "none", "undetermined")
#: A cause below half of the likeliest says nothing of where to look.
_LIKELY = 0.5


@cache
def rules() -> dict[str, Any]:
    """The tables of rules.toml."""
    return tomllib.loads((files("faultproxy.proxy.plan") / "rules.toml").read_text("utf-8"))


def needs() -> dict[str, str]:
    """What each failure type needs of the model."""
    return {kind: need for need, row in rules()["need"].items() for kind in row["types"]}


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees of the original's trainer."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1


@dataclass(frozen=True)
class Question:
    """`experts` are those that the diagnosis implicates, by layer (None: in whichever); `facts` are those of the report."""

    factor: str = "undetermined"
    failure_type: str | None = None
    layer: int | None = None
    experts: Mapping[int | None, tuple[int, ...]] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    degrees: Degrees | None = None

    @property
    def need(self) -> str | None:
        """The row of rules.toml for the failure type; None where it is not known."""
        return needs().get(self.failure_type or "")

    @property
    def deepest(self) -> int | None:
        """The last layer that the diagnosis names, for itself or for an expert."""
        return max((n for n in (self.layer, *self.experts) if n is not None), default=None)

    @property
    def devices(self) -> int | None:
        """Devices that the run had."""
        return _whole(_group(self.facts, "hardware").get("devices"))

    def vendor(self, device: str) -> str:
        """Of the run's devices where it says so, else of the device that the costs are for."""
        said = _group(self.facts, "hardware").get("vendor")
        return said if said in ("nvidia", "amd", "ascend") else "ascend" if device.startswith("ascend") else "nvidia"


def asked(report: Mapping[str, Any]) -> Question:
    """The question that a diagnosis (JSON v1) asks; one that is healthy or inconclusive is undetermined."""
    facts, failed = report["run"]["facts"], report["verdict"] == "failed"
    roots = [entry for entry in report["evidence"] if entry["role"] == "root"] if failed else []
    blamed = [(entry["layer"], entry["expert"]) for entry in (*roots, report) if entry["expert"] is not None]
    experts: dict[int | None, tuple[int, ...]] = {}
    for layer, expert in blamed:
        experts[layer] = tuple(sorted({*experts.get(layer, ()), expert}))
    named = [c for c in report["causes"] if c["cause"] != "unknown"]
    likely = tuple(c["cause"] for c in named if c["probability"] >= _LIKELY * named[0]["probability"])
    kind = report["failure_type"] if failed else None
    return Question(
        report["factor"] if failed else "undetermined", kind, report["layer"] if failed else None, experts, likely, facts, degrees(facts)
    )  # fmt: skip


def degrees(facts: Mapping[str, Any]) -> Degrees | None:
    """The trainer's parallel degrees, where the facts state any."""
    group = _group(facts, "parallelism")
    found = {name: size for name in ("tp", "pp", "cp", "ep") if (size := _whole(group.get(name)))}
    return Degrees(**found) if found else None


def stated(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the facts say of device and workload, by the names of faultproxy.proxy.cost.setting; lengths are their limits."""
    group, found = _group(facts, "hyperparameters"), dict[str, Any]()
    if facts.get("algorithm") == "ppo":
        found["algorithm"] = "ppo"
    if _group(facts, "hardware").get("vendor") == "ascend":
        found["device_name"] = "ascend-910b"
    for name, parts in (("batch", ("prompts", "group")), ("sequence", ("max_prompt_length", "max_response_length"))):
        pair = tuple(size for part in parts if (size := _whole(group.get(part))))
        if len(pair) == 2:
            found[name] = pair
    return found


def _group(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = facts.get(name)
    return group if isinstance(group, Mapping) else {}


def _whole(value: Any) -> int | None:
    """A count of devices, tokens, or ranks; facts come from files that nobody vouches for."""
    return value if type(value) is int and 0 < value <= 1 << 20 else None
