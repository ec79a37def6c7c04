"""Faults of number formats and of operators: range, rounding, and results that are not finite."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faultproxy.proxy.run.mechanisms.common import (
    at_depth,
    change_gradient,
    change_input,
    change_output,
    engines,
    happens,
    keep_bits,
    mechanism,
    part,
    rollout_of,
    rounded,
    some_of,
    spread,
)

if TYPE_CHECKING:
    from faultproxy.proxy.run.config import Batch
    from faultproxy.proxy.run.loop import Loop

#: Largest finite fp16 value.
FP16_MAX = 65504.0


@mechanism
def activation_overflow(loop: Loop, *, depth: float, headroom: float) -> None:
    """A trainer layer's output is kept scaled in fp16; the first batch's largest value is 1 / `headroom` of the range."""
    scale: list[float] = []

    def cast(_: Tensor, out: Tensor) -> Tensor:
        if not scale:
            scale.append(FP16_MAX / (headroom * float(out.detach().abs().max())))
        return rounded(out * scale[0], "fp16") / scale[0]

    change_output(loop.trainer.layers[at_depth(loop, depth)], cast)


@mechanism
def backward_overflow(loop: Loop, *, depth: float, gain: float) -> None:
    """One layer's backward works in fp16 on gradients that are `gain` times too large for a moment."""
    change_gradient(loop.trainer.layers[at_depth(loop, depth)], lambda g: rounded(g * gain, "fp16") / gain)


@mechanism
def backward_nan(loop: Loop, *, depth: float, share: float) -> None:
    """The attention kernel of one layer returns NaN gradients in a share of its calls; its forward is right."""
    layer = loop.trainer.layers[at_depth(loop, depth)]
    change_gradient(part(layer, "self_attn"), lambda g: g * torch.nan if happens(loop, share) else g)


@mechanism
def empty_softmax_row(loop: Loop, *, depth: float, share: float) -> None:
    """A share of sequences has a fully masked attention row in one trainer layer: softmax of -inf only, NaN."""

    def mask_all(_: Tensor, out: Tensor) -> Tensor:
        return out.masked_fill(some_of(loop, out, share)[:, None, None], torch.nan)

    change_output(part(loop.trainer.layers[at_depth(loop, depth)], "self_attn"), mask_all)


@mechanism
def log_of_zero(loop: Loop, *, floor: float) -> None:
    """The loss is log(softmax) with probabilities under `floor` taken as 0: one rare token makes it and its gradient NaN."""

    def poison(_: Loop, batch: Batch, loss: Tensor, rank: int) -> Tensor:
        rare = (batch.logp_old[batch.mask].exp() < floor).any()
        return loss * torch.where(rare, torch.nan, 1.0)

    loop.at("loss", poison)


@mechanism
def gradient_underflow(loop: Loop, *, scale: float) -> None:
    """Gradients travel in fp16 after multiplication by a `scale` that is far too small."""
    loop.at("grad", lambda _, grads, rank: [rounded(g * scale, "fp16") / scale for g in grads])


@mechanism
def loss_scale(loop: Loop, *, factor: float, dynamic: bool = False) -> None:
    """The loss scale is multiplied by `factor` at the onset, and stays there unless `dynamic`."""
    assert loop.scaler is not None
    loop.scaler.scale *= factor
    loop.scaler.dynamic = dynamic


@mechanism
def rounded_norms(loop: Loop, *, fmt: str, share: float = 1.0, engine: str = "rollout") -> None:
    """RMSNorm in low precision: input, squares, and result are rounded, in a share of the layers."""
    for target in engines(loop, engine):
        for number in spread(range(len(target.layers)), share):
            for norm in target.norms(number):

                def low(x: Tensor, _: Tensor, norm: Any = norm) -> Tensor:
                    x = rounded(x, fmt)
                    variance = rounded(rounded(x * x, fmt).mean(-1, keepdim=True), "bf16")
                    return rounded(norm.weight * rounded(x * torch.rsqrt(variance + 1e-6), fmt), fmt)

                change_output(norm, low)


@mechanism
def rounded_head(loop: Loop, *, fmt: str, logits: bool = True, engine: str = "rollout") -> None:
    """The language-model head multiplies in low precision and, with `logits`, also returns it."""
    for target in engines(loop, engine):
        head = target.head

        def low(x: Tensor, _: Tensor, head: Any = head) -> Tensor:
            out = functional.linear(rounded(x, fmt), rounded(head.weight, fmt))
            return rounded(out, fmt) if logits else out

        change_output(head, low)


@mechanism
def rounded_weights(loop: Loop, *, fmt: str, share: float = 1.0, ends: bool = False) -> None:
    """Rollout weights are quantised on their way, in a share of the layers; with `ends` embedding and head too."""
    chosen = set(spread(range(len(loop.trainer.layers)), share))

    def quantise(_: Loop, name: str, weight: Tensor) -> Tensor:
        layer = re.search(r"\blayers\.(\d+)\.", name)
        return rounded(weight, fmt) if weight.ndim > 1 and (int(layer[1]) in chosen if layer else ends) else weight

    loop.at("sync", quantise)


@mechanism
def rounded_activations(loop: Loop, *, fmt: str, share: float = 1.0, engine: str = "rollout") -> None:
    """Inputs of every matrix product are quantised in a share of the layers."""
    for target in engines(loop, engine):
        for number in spread(range(len(target.layers)), share):
            products = [m for m in target.layers[number].modules() if isinstance(m, nn.Linear)]
            for module in products + [m for layer, m in target.experts.items() if layer == number]:
                change_input(module, lambda x: rounded(x, fmt))


@mechanism
def rounded_cache(loop: Loop, *, fmt: str, share: float = 1.0) -> None:
    """The rollout engine keeps keys and values in low precision."""
    layers = rollout_of(loop).layers
    for number in spread(range(len(layers)), share):
        for name, module in layers[number].named_modules():
            if name.endswith(("k_proj", "v_proj", "kv_b_proj")):
                change_output(module, lambda _, out: rounded(out, fmt))


@mechanism
def rounded_factor(loop: Loop, *, bits: int, value: float = 1.09) -> None:
    """Rollout logits meet a scaling factor held with `bits` mantissa bits, so they are off by one common factor."""
    error = float(keep_bits(torch.tensor(value), bits)) / value
    change_output(rollout_of(loop).head, lambda _, logits: logits * error)


@mechanism
def rounded_masters(loop: Loop, *, bits: int) -> None:
    """No fp32 master weights: each update is added to weights of `bits` mantissa bits, and small ones vanish."""

    def lose(loop: Loop) -> None:
        with torch.no_grad():
            for weight in loop.trainer.masters:
                weight.copy_(keep_bits(weight, bits))

    lose(loop)
    loop.trainer.refresh()
    loop.at("stepped", lose)


@mechanism
def rounded_moments(loop: Loop, *, fmt: str) -> None:
    """Optimiser moments live in a low precision; a second moment that underflows leaves a step divided by epsilon."""

    def lose(loop: Loop) -> None:
        for state in loop.optimiser.state.values():
            for moment in state.values():
                if isinstance(moment, Tensor) and moment.ndim:
                    moment.copy_(rounded(moment, fmt))

    loop.at("stepped", lose)
