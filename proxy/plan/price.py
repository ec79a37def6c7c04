"""What a cut model takes, under the original's parallel layout scaled down to it, and within a budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost import memory as held
from faultproxy.proxy.cost.estimate import Estimate, Setting, estimate, fit, rollout_shard, sizes
from faultproxy.proxy.cost.memory import Layout
from faultproxy.proxy.cost.shape import Shape
from faultproxy.proxy.plan.question import Degrees

#: Placements whose rollout has devices of its own; the estimate chooses those.
_APART = ("disaggregated", "asynchronous")
#: Rollout copies that are tried: the fewest devices, and so many doublings.
_WIDER = 5
#: Stages of a pipeline that are tried, up to the original's.
_PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Budget:
    """What a proxy may take: devices, and seconds a step; None: anything. Memory a device is part of the setting."""

    devices: int | None = None
    seconds: float | None = None

    def holds(self, found: Estimate) -> bool:
        """Whether an estimate is inside."""
        return found.devices <= (self.devices or found.devices) and found.step <= (self.seconds or found.step)


@dataclass(frozen=True)
class Price:
    """An estimate on the fewest devices that fit, its layout, and whether the budget holds it."""

    estimate: Estimate
    layout: Layout
    fits: bool

    @property
    def parameters(self) -> int:
        """Parameters without prediction modules."""
        return self.estimate.parameters.total

    @property
    def work(self) -> float:
        """FLOPs a step."""
        return sum(self.estimate.flops.values())

    def document(self) -> dict[str, Any]:
        """Plain data; bytes are a device's."""
        found = self.estimate
        memory = max(found.memory.training, found.memory.rollout + found.memory.kv)
        return {"devices": found.devices, "seconds": found.step, "device_hours": found.device_hours, "memory_bytes": memory, "layout": asdict(self.layout)}  # fmt: skip


def scaled(degrees: Degrees, experts: int, kept: int) -> Degrees:
    """The degrees for `kept` of `experts` experts: expert parallelism shrinks so that a rank holds as many as before, or more."""
    ranks = max(1, kept * degrees.ep // experts) if experts else degrees.ep
    return replace(degrees, ep=max(n for n in range(1, ranks + 1) if kept % n == 0) if kept else 1)


def price(shape: Shape, setting: Setting, degrees: Degrees | None, budget: Budget) -> Price:
    """The fewest devices that hold the model, or more where only that meets the seconds of the budget.

    Raises:
        InputError: No cluster holds it.
    """
    smallest: Price | None = None
    for devices in sizes(setting.device):
        if (layout := _layout(shape, setting, degrees, devices)) is None:
            continue
        try:
            found = estimate(shape, setting, devices)
        except InputError:  # a layout that the estimate does not try
            continue
        price = Price(found, layout, budget.holds(found))
        smallest = smallest or price
        if price.fits or budget.seconds is None or found.devices > (budget.devices or found.devices):
            return price if price.fits else smallest
    if smallest is None:
        said = f"TP {degrees.tp}, CP {degrees.cp}, EP {degrees.ep}: " if degrees else ""
        raise InputError(
            f"{said}no cluster of {setting.device.name} holds the model; shorten the sequence or change --layout"
        )
    return smallest


def _shards(least: int, devices: int) -> list[int]:
    return [least << n for n in range(_WIDER) if least << n <= max(least, devices)]


def _layout(shape: Shape, setting: Setting, degrees: Degrees | None, devices: int) -> Layout | None:
    """The layout with the fewest stages that fits, with the rollout copy on more devices where it stands beside the update."""
    share = setting.efficiency.memory
    if degrees is None:
        found = fit(shape, setting, devices, share)
        return found[0] if found else None
    least, room = rollout_shard(shape, setting), share * setting.device.memory
    if least > devices and setting.placement not in _APART:
        return None
    w, stages = setting.workload, sorted({pp for pp in (*_PIPELINES, degrees.pp) if pp <= degrees.pp})
    for layout in (Layout(devices, degrees.tp, pp, degrees.cp, degrees.ep) for pp in stages):
        for shard in _shards(least, devices) if layout.valid(shape) else ():
            used = held.memory(shape, w, layout, setting.placement, setting.offload, shard, setting.rollout_bytes)
            if used.training <= room:
                return layout
    return None
