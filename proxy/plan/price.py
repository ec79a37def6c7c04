"""What a cut model takes, under the original's parallel layout scaled down to it, and within a budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.estimate import PIPELINES, Estimate, Setting, estimate_in, fit, sizes
from faultproxy.proxy.cost.memory import Layout
from faultproxy.proxy.cost.shape import Shape
from faultproxy.proxy.plan.question import Degrees


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
    """An estimate on the fewest devices that fit, and whether the budget holds it."""

    estimate: Estimate
    fits: bool

    @property
    def layout(self) -> Layout:
        """The trainer's parallel layout."""
        return self.estimate.layout

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
        among = (
            [Layout(devices, degrees.tp, pp, degrees.cp, degrees.ep) for pp in _stages(degrees.pp)] if degrees else None
        )
        if (fitted := fit(shape, setting, devices, setting.efficiency.memory, among)) is None:
            continue
        found = estimate_in(shape, setting, *fitted)
        price = Price(found, budget.holds(found))
        smallest = smallest or price
        if price.fits or budget.seconds is None or found.devices > (budget.devices or found.devices):
            return price if price.fits else smallest
    if smallest is None:
        said = f"TP {degrees.tp}, CP {degrees.cp}, EP {degrees.ep}: " if degrees else ""
        raise InputError(
            f"{said}no cluster of {setting.device.name} holds the model; shorten the sequence or change --layout"
        )
    return smallest


def _stages(most: int) -> list[int]:
    """Stages of a pipeline that are tried, up to the original's."""
    return sorted({pp for pp in (*PIPELINES, most) if pp <= most})
