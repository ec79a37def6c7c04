"""From a configuration to devices, seconds, and device-hours of one step: the smallest layout that fits, then a roofline."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost import memory as held
from faultproxy.proxy.cost import shape as dims
from faultproxy.proxy.cost import work
from faultproxy.proxy.cost.device import Device, Efficiency
from faultproxy.proxy.cost.memory import Layout, Memory
from faultproxy.proxy.cost.shape import Parameters, Shape
from faultproxy.proxy.cost.work import Workload

#: Servers beyond the first: powers of two and their halves between, as clusters are bought.
_SERVERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PIPELINES = (1, 2, 3, 4, 6, 8, 12, 16)
_TENSORS = (1, 2, 4, 8)
#: Placements whose rollout has devices of its own.
_APART = ("disaggregated", "asynchronous")
_SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: A layout, what a device holds in it, and the devices of a rollout copy.
Fitted = tuple[Layout, Memory, int]


#: Steps of the sum over a response.
_PIECES = 32


@dataclass(frozen=True)
class Setting:
    """Everything that an estimate rests on beside the model."""

    device: Device
    workload: Workload
    placement: str = "colocated"
    offload: str = "optimizer"
    rollout_bytes: int = 2
    efficiency: Efficiency = field(default_factory=Efficiency)


@dataclass(frozen=True)
class Estimate:
    """What one step takes; bytes a device, seconds, FLOPs, devices by group (`trainer` holds all where they share)."""

    shape: Shape
    parameters: Parameters
    layout: Layout
    memory: Memory
    shard: int
    groups: dict[str, int]
    flops: dict[str, float]
    depth: float
    seconds: dict[str, float]

    @property
    def devices(self) -> int:
        """Devices of all groups."""
        return sum(self.groups.values())

    @property
    def step(self) -> float:
        """Seconds of one step."""
        return self.seconds["step"]

    @property
    def device_hours(self) -> float:
        """Device-hours a step: devices x seconds / 3600."""
        return self.devices * self.step / 3600


def sizes(device: Device) -> Iterator[int]:
    """Cluster sizes from one device up: powers of two within a server, then whole servers."""
    size = 1
    while size < device.node:
        yield size
        size *= 2
    yield from (servers * device.node for servers in _SERVERS)


def layouts(s: Shape, devices: int, device: Device, sequence: int) -> Iterator[Layout]:
    """Valid layouts of a cluster, the least split first: TP within a server, CP while a rank keeps 1,024 tokens."""
    contexts = [cp for cp in (1, 2, 4, 8) if cp == 1 or sequence // cp >= 1024]
    experts = [ep for ep in _SHARDS if ep <= max(1, s.experts)]
    found = [
        Layout(devices, tp, pp, cp, ep)
        for tp in _TENSORS
        for pp in PIPELINES
        for cp in contexts
        for ep in experts
        if tp <= device.node
    ]
    yield from sorted((x for x in found if x.valid(s)), key=lambda x: (x.tp * x.pp * x.cp, x.pp, -x.ep))


def rollout_shard(s: Shape, setting: Setting) -> int:
    """Devices a rollout copy needs: the smallest power of two at which weights and the longest sequence's cache fit."""
    total, room = dims.parameters(s).total, setting.efficiency.rollout * setting.device.memory
    cache = held.kv_bytes(s, setting.workload.prompt + setting.workload.tail)
    for shard in _SHARDS:
        if total * setting.rollout_bytes / shard + cache / (1 if s.latent else min(shard, s.kv_heads)) <= room:
            return shard
    raise InputError(
        f"one rollout copy fits on no {_SHARDS[-1]} {setting.device.name}: shorten the response or choose a device with more memory"
    )


def fit(s: Shape, setting: Setting, devices: int, share: float, among: Sequence[Layout] | None = None) -> Fitted | None:
    """The least split layout of that many devices (the first `among` those given) that fits in a share of their memory, what it
    holds, and the devices a rollout copy has.

    None where none fits. A rollout copy is spread wider than it need be only where it stands beside the update.
    """
    w, least, apart = setting.workload, rollout_shard(s, setting), setting.placement in _APART
    room = share * setting.device.memory
    resident = setting.placement == "hybrid" or (setting.offload == "none" and not apart)
    for shard in (shard for shard in _SHARDS if shard == least or (shard > least and resident)):
        if shard > devices and not apart:
            return None
        tried = layouts(s, devices, setting.device, w.sequence) if among is None else (x for x in among if x.valid(s))
        for layout in tried:
            used = held.memory(s, w, layout, setting.placement, setting.offload, shard, setting.rollout_bytes)
            if used.training <= room:
                return layout, used, shard
    return None


def smallest(s: Shape, setting: Setting) -> Fitted:
    """The fewest devices on which the update and one rollout copy fit, their layout, memory, and the rollout shard."""
    for devices in sizes(setting.device):
        if found := fit(s, setting, devices, setting.efficiency.memory):
            return found
    raise InputError(
        f"{dims.parameters(s).total / 1e9:,.1f} B parameters fit on no cluster of up to {_SERVERS[-1] * setting.device.node:,} "
        f"{setting.device.name}: shorten the sequence, offload the optimizer, or choose a device with more memory"
    )


def touched(s: Shape, p: Parameters, batch: float) -> float:
    """Parameters read by a decoding step of a batch: all but routed experts and embedding, and E (1 - (1 - k/E)^n) experts.

    Derivation: the experts that at least one of n tokens picks when routing is even; uneven routing touches fewer.
    """
    share = 1 - (1 - s.top_k / s.experts) ** batch if s.experts else 0
    return p.total - p.routed - (0 if s.tied else p.embedding) + p.routed * share


def decode_seconds(s: Shape, p: Parameters, setting: Setting, shard: int, batch: float, context: float) -> float:
    """Seconds of one decoding step of one rollout copy: the slowest of reading, computing, and launching.

    Bytes = weights touched + n KV(c), over shard x HBM bandwidth; FLOPs = n decode, over shard x peak (llm-analysis' roofline).
    """
    e, d = setting.efficiency, setting.device
    read = touched(s, p, batch) * setting.rollout_bytes + batch * held.kv_bytes(s, context)
    peak = d.fp8 if setting.rollout_bytes == 1 and d.fp8 else d.bf16
    return max(
        read / (shard * d.bandwidth * e.decode_bytes),
        batch * work.decode_flops(s, context) / (shard * peak * e.decode_flops),
        s.layers * e.layer_floor,
    )


def generation_seconds(s: Shape, p: Parameters, setting: Setting, devices: int, shard: int) -> float:
    """Seconds to generate all rollouts: prefill, then decoding while responses end one by one.

    Of n rollouts a copy, n (1 - t / longest)^a still run at token t, with a = longest / mean - 1 so that the mean holds: an
    assumed shape of the tail (ours). What the KV cache cannot hold at once waits its turn.
    """
    w, d, e = setting.workload, setting.device, setting.efficiency
    batch = w.rollouts / max(1, devices // shard)
    free = shard * e.rollout * d.memory - p.total * setting.rollout_bytes
    running = max(1.0, min(batch, free / held.kv_bytes(s, w.sequence)))
    prefill = w.rollouts * w.prompt * work.forward_flops(s, w.prompt) / (devices * d.bf16 * e.forward)
    decode = 0.0
    for piece in range(_PIECES):
        done = (piece + 0.5) / _PIECES
        alive = max(1.0, running * (1 - done) ** (w.tail / w.response - 1))
        decode += w.tail / _PIECES * decode_seconds(s, p, setting, shard, alive, w.prompt + done * w.tail)
    return prefill + max(1.0, batch / running) * decode


def estimate(s: Shape, setting: Setting, devices: int | None = None) -> Estimate:
    """What a step takes on the smallest cluster that fits, or on a trainer group of `devices` (up to all their memory)."""
    share = setting.efficiency.memory
    found = (
        smallest(s, setting) if devices is None else fit(s, setting, devices, share) or fit(s, setting, devices, 1.0)
    )
    if found is None:
        least = smallest(s, setting)[0].devices
        raise InputError(
            f"no layout of {devices:,} {setting.device.name} holds the model; {least:,} are the fewest that do"
        )
    return estimate_in(s, setting, *found)


def estimate_in(s: Shape, setting: Setting, layout: Layout, used: Memory, shard: int) -> Estimate:
    """What a step takes in a layout that `fit` found.

    A rollout copy has as many devices as generate fastest: the fewest that hold it may leave hardly any room for the cache.
    Where rollout or assessment have devices of their own, their groups are those with the fewest device-hours a step.
    """
    w = setting.workload
    if setting.placement not in _APART:
        p, least = dims.parameters(s), shard
        wider = [n for n in _SHARDS if n == least or least < n <= layout.devices]
        shard = min(wider, key=lambda n: generation_seconds(s, p, setting, layout.devices, n))
        used = held.memory(s, w, layout, setting.placement, setting.offload, shard, setting.rollout_bytes)
    copies = [shard * 2**n for n in range(11) if shard * 2**n <= max(shard, 8 * layout.devices)]
    rollouts = copies if setting.placement in _APART else [0]
    assessors = copies if w.reference + w.reward_model and setting.placement in (*_APART, "partial") else [0]
    found_all = [_on(s, setting, layout, used, shard, r, a) for r in rollouts for a in assessors]
    return min(found_all, key=lambda e: (e.device_hours, e.devices))


def _on(s: Shape, setting: Setting, layout: Layout, used: Memory, shard: int, rollout: int, assessors: int) -> Estimate:
    """The estimate for given groups; 0 devices: the stage runs on the trainer's."""
    p, w, d, e = dims.parameters(s), setting.workload, setting.device, setting.efficiency
    apart = setting.placement in (*_APART, "partial")
    critic = layout.devices if apart and w.critic == "separate" else 0
    groups = {"trainer": layout.devices, "critic": critic, "rollout": rollout, "assessment": assessors}
    flops = {
        "generation": work.generation_flops(s, w),
        "assessment": work.assessment_flops(s, w),
        "training": work.training_flops(s, w),
    }
    passes, trained = work.assessments(w), 1 + (w.critic == "separate")
    frozen = w.reference + w.reward_model
    generation = generation_seconds(s, p, setting, rollout or layout.devices, shard)
    forward = flops["assessment"] / passes / (d.bf16 * e.forward)
    assess = [forward / layout.devices] * (passes - frozen) + [forward / (assessors or layout.devices)] * frozen
    train = [flops["training"] / trained / (layout.devices * d.bf16 * e.train)] * trained
    wire = d.link if sum(groups.values()) <= d.node else d.network
    reshard = used.rollout / (wire * e.link)
    seconds = {"generation": generation, "assessment": sum(assess), "training": sum(train), "reshard": reshard}
    if not apart:  # one after the other on the same devices, whatever the critical path allows
        assess, train = [sum(assess)], [sum(train)]
    seconds["step"] = work.combine(setting.placement, generation, assess, train) + reshard
    held_groups = {name: count for name, count in groups.items() if count}
    return Estimate(s, p, layout, used, shard, held_groups, flops, work.depth(s, w, setting.placement), seconds)


def document(found: Estimate, counted: int | None = None) -> dict[str, Any]:
    """An estimate as plain data: elements, bytes, FLOPs, seconds; `counted` parameters are those of the checkpoint's headers."""
    p, layout = found.parameters, found.layout
    return {
        "shape": asdict(found.shape),
        "parameters": ({} if counted is None else {"counted": counted}) | {"total": p.total, "stored": p.stored, **asdict(p)},
        "memory_bytes": {**asdict(found.memory), "training": found.memory.training},
        "layout": asdict(layout) | {"dp": layout.dp, "experts_per_rank": found.shape.experts // layout.ep, "rollout_shard": found.shard},
        "groups": found.groups,
        "flops": found.flops,
        "seconds": found.seconds,
        "totals": {"devices": found.devices, "device_hours": found.device_hours, "depth": found.depth},
    }  # fmt: skip


def formulas() -> Mapping[str, str]:
    """Every formula an estimate uses, by name: its form, unit, and source as its docstring states them."""
    used = (
        dims.attention_parameters, dims.linear_parameters, dims.expert_parameters, dims.parameters, held.shares, held.state_bytes, held.activation_bytes,
        held.logit_bytes, held.kv_bytes, held.memory, work.forward_flops, work.decode_flops, work.generation_flops, work.assessment_flops,
        work.training_flops, work.depth, work.combine, touched, decode_seconds, generation_seconds,
    )  # fmt: skip
    return {f.__name__: " ".join((inspect.getdoc(f) or "").split()) for f in used}
