"""The device table (`devices.toml`) and the efficiencies that turn peaks into times."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from faultproxy.analyzer.errors import no_such


@dataclass(frozen=True)
class Device:
    """One device as frameworks count them: bytes, FLOP/s, bytes/s; `node` devices share a server."""

    name: str
    title: str
    memory: float
    bf16: float
    fp8: float
    bandwidth: float
    link: float
    network: float
    node: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Efficiency:
    """What share of each peak is reached; docs/cost.md says from what each was taken."""

    memory: float = 0.49  # of HBM that model state, activations, and logits may fill
    rollout: float = 0.8  # of HBM that rollout weights and KV cache may fill while the trainer sleeps
    train: float = 0.3  # of peak FLOP/s, counted as model FLOPs: recompute, bubbles, and all-to-all are inside
    forward: float = 0.4  # of peak FLOP/s, prefill and log-probabilities
    decode_flops: float = 0.5  # of peak FLOP/s while decoding
    decode_bytes: float = 0.6  # of HBM bandwidth while decoding
    link: float = 0.5  # of the link within a node, or the network between nodes, moving weights to the rollout
    layer_floor: float = 7.2e-4  # seconds a layer and decoding step cannot fall below: launches, collectives


@cache
def devices() -> dict[str, Device]:
    """All devices by name."""
    table = tomllib.loads(files("faultproxy.proxy").joinpath("devices.toml").read_text(encoding="utf-8"))
    return {
        name: Device(
            name, row["title"], row["memory"] * 1e9, row["bf16"] * 1e12, row["fp8"] * 1e12, row["bandwidth"] * 1e9,
            row["link"] * 1e9, row["network"] * 1e9, row["node"], tuple(row["sources"]),
        )
        for name, row in table.items()
    }  # fmt: skip


def device(name: str) -> Device:
    """The device of that name; raises InputError with the nearest names otherwise."""
    held = devices()
    if name not in held:
        raise no_such("device", name, held, ", ".join(held))
    return held[name]
