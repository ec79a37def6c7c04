"""Bytes a device holds: weights, gradients, optimiser, activations, logits, KV cache, under a parallel layout.

Sources: Megatron-LM theoretical_memory_usage.py (18 bytes a parameter, optimiser over data parallel; expert data
parallel = devices / (EP PP)), DeepSpeed's ZeRO estimators, arXiv 2205.05198 (activations), 2608.27046 (what is divided by what).
"""

from __future__ import annotations

from dataclasses import dataclass

from faultproxy.proxy.cost.shape import Parameters, Shape, parameters
from faultproxy.proxy.cost.work import Workload

#: Bytes a parameter: bf16 weights; fp32 gradient; fp32 master weights and the two moments of Adam.
WEIGHT, GRADIENT, OPTIMISER = 2, 4, 12


@dataclass(frozen=True)
class Layout:
    """Parallel degrees over `devices`; `zero` is the stage (1: optimiser, 2: and gradients, 3: and weights)."""

    devices: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 1

    @property
    def dp(self) -> int:
        """Data-parallel copies: devices / (TP PP CP)."""
        return self.devices // (self.tp * self.pp * self.cp)

    @property
    def expert_dp(self) -> int:
        """Copies of an expert: devices / (EP PP), expert tensor parallel 1."""
        return self.devices // (self.ep * self.pp)

    def valid(self, s: Shape) -> bool:
        """Whether the degrees divide the devices, the heads, and the experts, and no stage is without a layer."""
        whole = self.devices % (self.tp * self.pp * self.cp) == 0 and self.devices % (self.ep * self.pp) == 0
        return whole and s.heads % self.tp == 0 and self.pp <= s.layers and (s.experts or self.ep) % self.ep == 0


@dataclass(frozen=True)
class Memory:
    """Bytes a device while training, bytes a device while generating, and bytes of host memory of the whole job."""

    weights: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    others: float
    rollout: float
    kv: float
    host: float

    @property
    def training(self) -> float:
        """Bytes a device during the update."""
        return self.weights + self.gradients + self.optimiser + self.activations + self.logits + self.others


def shares(p: Parameters, s: Shape, layout: Layout) -> tuple[float, float]:
    """Parameters of the fullest stage a device holds: (all but routed experts, routed experts).

    Layers are divided by TP and PP (the fullest stage has ceil(L / PP)), embedding or head by TP, experts by EP and PP. Source: arXiv 2608.27046 (sharding).
    """
    stage = -(-s.layers // layout.pp) / s.layers
    rest = (p.attention + p.dense + p.shared) / layout.tp + p.router + p.norms
    table = (p.embedding + p.head if layout.pp == 1 else max(p.embedding, p.head)) / layout.tp
    return rest * stage + table, p.routed * stage / layout.ep


def state_bytes(p: Parameters, s: Shape, layout: Layout, offload: str) -> tuple[float, float, float]:
    """Bytes a device of weights, gradients, optimiser of one trained model.

    2, 4, 12 bytes a parameter; ZeRO divides the optimiser by the copies, from stage 2 the gradients, from stage 3 the
    weights. Offloading moves the optimiser to the host. Sources: Megatron-LM theoretical_memory_usage.py, arXiv 1910.02054.
    """
    weights = gradients = optimiser = 0.0
    for count, copies in zip(shares(p, s, layout), (layout.dp * layout.cp, layout.expert_dp), strict=True):
        weights += WEIGHT * count / (copies if layout.zero >= 3 else 1)
        gradients += GRADIENT * count / (copies if layout.zero >= 2 else 1)
        optimiser += OPTIMISER * count / (copies if layout.zero >= 1 else 1) if offload == "none" else 0
    return weights, gradients, optimiser


def activation_bytes(s: Shape, tokens: float, layout: Layout) -> float:
    """Bytes a device of activations for micro-batches of `tokens` tokens a CP rank, sequence parallel over TP, full recompute.

    2 H a token and layer are kept (a stage's layers times micro-batches in flight = all L), and one layer is live with
    H (18 + 4 ffn / H) bytes a token, ffn being what a token activates. Source: arXiv 2205.05198.
    """
    width = s.top_k * s.expert_width + s.shared_width if s.moe_layers else s.dense_width
    return tokens * (2 * s.hidden * s.layers + 18 * s.hidden + 4 * width) / layout.tp


def logit_bytes(s: Shape, tokens: float, layout: Layout) -> float:
    """Bytes a device of fp32 logits: 4 V a token, over TP (Megatron-LM's vocabulary-parallel cross entropy)."""
    return 4 * s.vocab * tokens / layout.tp


def kv_bytes(s: Shape, tokens: float) -> float:
    """Bytes of bf16 KV cache of one sequence: 2 L (2 nkv hd) a token, 2 L (kvl + rope) for MLA (2405.04434); windows capped; linear
    attention keeps a state of fp32 whatever the length."""
    cached = 2 * s.kv_elements * (s.attending * tokens + s.windowed * min(tokens, s.window))
    return cached + 4 * s.linear_layers * s.state_elements


def memory(s: Shape, w: Workload, layout: Layout, placement: str, offload: str, shard: int, rollout_bytes: int) -> Memory:  # fmt: skip
    """Everything a device holds; `shard` devices share one rollout copy of `rollout_bytes` a parameter.

    Frozen models (reference, reward) cost 2 bytes a parameter, on the host while offloaded; a separate critic is trained
    as the policy is, a shared one is a row; an asynchronous trainer keeps a shadow of its weights. `kv` is one longest sequence a rollout copy: less and nothing can run. Source: arXiv 2608.27046 (M_G, M_A, M_T).
    """
    p = parameters(s)
    weights, gradients, optimiser = state_bytes(p, s, layout, offload)
    frozen, trained = w.reference + w.reward_model, 1 + (w.critic == "separate")
    apart = placement in ("partial", "disaggregated", "asynchronous")
    others = 0.0 if offload != "none" or apart else frozen * weights
    if trained > 1 and not apart and offload == "none":
        others += weights + gradients + optimiser
    tokens = max(w.packed, w.sequence / layout.cp)
    rollout = p.total * rollout_bytes / shard
    if placement == "hybrid" or (placement in ("colocated", "fused") and offload == "none"):
        others += rollout  # the resharded copy stands beside the trainer's weights
    if placement == "asynchronous":
        others += weights
    host = 0.0 if offload == "none" else p.total * (trained * OPTIMISER + (frozen + trained) * WEIGHT)
    return Memory(
        weights, gradients, optimiser, activation_bytes(s, tokens, layout), logit_bytes(s, tokens, layout), others,
        rollout, kv_bytes(s, w.prompt + w.tail) / (1 if s.latent else min(shard, s.kv_heads)), host,
    )  # fmt: skip
