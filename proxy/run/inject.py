"""The faults of the lab: what each one is (faults.toml), and how it gets into a loop (mechanisms/).

Reading the catalogue needs no torch; only `inject` and `mechanisms` do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from faultproxy.analyzer.errors import InputError, no_such
from faultproxy.proxy.run.config import FaultSpec, build

if TYPE_CHECKING:
    from faultproxy.proxy.run.loop import Loop


@cache
def _by_name() -> dict[str, FaultSpec]:
    rows = tomllib.loads(files("faultproxy.proxy.run").joinpath("faults.toml").read_text(encoding="utf-8"))
    tuples = ("levels", "clean", "needs")
    return {
        name: build(FaultSpec, {k: tuple(v) if k in tuples else v for k, v in row.items()} | {"name": name}, f"faults.toml, {name}")
        for name, row in rows.items()
    }  # fmt: skip


def faults() -> list[FaultSpec]:
    """Every fault, in the order of faults.toml."""
    return list(_by_name().values())


def fault(name: str) -> FaultSpec:
    """The fault called `name`; an unknown name is an InputError with the nearest ones."""
    known = _by_name()
    if name not in known:
        raise no_such("fault", name, known, "`faultproxy lab list --faults`")
    return known[name]


def mechanisms() -> dict[str, Callable[..., None]]:
    """Every mechanism by name: a function of a loop and the keyword arguments that faults.toml sets."""
    from faultproxy.proxy.run.mechanisms import data, gradients, layers, numerics, rewards, routing, settings  # noqa: F401
    from faultproxy.proxy.run.mechanisms.common import MECHANISMS

    return MECHANISMS


def inject(loop: Loop, fault: FaultSpec, severity: int) -> None:
    """Let a fault act on the loop from its next step on; call once. `severity` is 0 (mild), 1, or 2 (strong).

    A loop restored from a snapshot knows nothing of a fault: inject after `restore`.
    """
    if not 0 <= severity < len(fault.levels):
        raise InputError(f"{fault.name}: severity {severity}; allowed are 0 (mild) to {len(fault.levels) - 1} (strong)")
    if not fault.fits(loop.program):
        missing = ", ".join(fault.lacking(loop.program))
        raise InputError(
            f"{fault.name} does not fit {loop.program.name}: it lacks {missing}; choose a program that fits"
        )
    mechanisms()[fault.mechanism](loop, **fault.levels[severity])
