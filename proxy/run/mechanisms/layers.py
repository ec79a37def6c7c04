"""Faults of single layers or of a profile over the layers: forward gain, skipped layers, a wrong backward, broken weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faultproxy.proxy.run.mechanisms.common import (
    at_depth,
    change_gradient,
    change_output,
    engines,
    layer_numbers,
    layer_of,
    mechanism,
    noise_like,
    part,
    rollout_of,
    spread,
)

if TYPE_CHECKING:
    from faultproxy.proxy.run.loop import Loop


@mechanism
def layer_gain(loop: Loop, *, gain: float, start: float = 0.0, stop: float = 1.0, engine: str = "rollout") -> None:
    """What each layer between two depths adds to the residual stream is multiplied by `gain` (0 skips the layer)."""
    for target in engines(loop, engine):
        for layer in target.layers[at_depth(loop, start) : at_depth(loop, stop) + 1]:
            change_output(layer, lambda x, out: x + gain * (out - x))


@mechanism
def layer_noise(loop: Loop, *, size: float, start: float, engine: str = "rollout") -> None:
    """Every layer from depth `start` on returns its output with relative noise of `size`."""
    for target in engines(loop, engine):
        for layer in target.layers[at_depth(loop, start) :]:
            change_output(layer, lambda _, out: out + size * out.detach().std() * noise_like(loop, out))


@mechanism
def activations_masked(loop: Loop, *, ratio: float, share: float, engine: str = "trainer") -> None:
    """In a share of the layers a part `ratio` of the feed-forward output's channels is zero."""
    for target in engines(loop, engine):
        for number in spread(range(len(target.layers)), share):

            def mask(_: Tensor, out: Tensor) -> Tensor:
                kept = torch.arange(out.shape[-1], device=out.device) >= ratio * out.shape[-1]
                return out * kept

            change_output(part(target.layers[number], "mlp"), mask)


@mechanism
def backward_scale(loop: Loop, *, factor: float, start: float = 0.0, stop: float = 1.0) -> None:
    """The backward of each layer between two depths multiplies the gradient by `factor`; layers below get the product."""
    for layer in loop.trainer.layers[at_depth(loop, start) : at_depth(loop, stop) + 1]:
        change_gradient(layer, lambda g: g * factor)


@mechanism
def layer_gradient(loop: Loop, *, factor: float, depth: float) -> None:
    """One layer's own weight gradients are multiplied by `factor`; what flows on to other layers is right."""
    chosen, numbers = at_depth(loop, depth), layer_numbers(loop)
    loop.at(
        "grad", lambda _, grads, rank: [g * factor if n == chosen else g for g, n in zip(grads, numbers, strict=True)]
    )


@mechanism
def lr_by_depth(loop: Loop, *, ratio: float) -> None:
    """A layer's update is multiplied by `ratio` to the power of its depth (0 first layer, 1 last)."""
    numbers, last = layer_numbers(loop), max(1, len(loop.trainer.layers) - 1)
    before: list[Tensor] = []

    def keep(loop: Loop) -> bool:
        before[:] = [weight.detach().clone() for weight in loop.trainer.masters]
        return True

    def stretch(loop: Loop) -> None:
        with torch.no_grad():
            for weight, old, number in zip(loop.trainer.masters, before, numbers, strict=True):
                if number >= 0:
                    weight.add_((weight - old) * (ratio ** (number / last) - 1))

    loop.at("update", keep)
    loop.at("stepped", stretch)


@mechanism
def layer_reset(loop: Loop, *, blend: float, depth: float) -> None:
    """One layer's matrices move, once, a part `blend` of the way to fresh noise of their own spread."""
    chosen = at_depth(loop, depth)
    with torch.no_grad():
        for weight, number in zip(loop.trainer.masters, layer_numbers(loop), strict=True):
            if number == chosen and weight.ndim > 1:
                weight.lerp_(weight.std() * noise_like(loop, weight), blend)
    loop.trainer.refresh()


@mechanism
def attention_growth(loop: Loop, *, growth: float, start: float = 0.0, stop: float = 1.0) -> None:
    """Attention logits of the layers between two depths grow by the factor `growth` a step, in both engines."""
    grown = slice(at_depth(loop, start), at_depth(loop, stop) + 1)

    def grow(loop: Loop, items: object) -> object:
        for engine in engines(loop, "both"):
            for layer in engine.layers[grown]:
                part(layer, "self_attn").scaling *= growth
        return items

    loop.at("batch", grow)


@mechanism
def layer_stale(loop: Loop, *, start: float, stop: float) -> None:
    """Rollout layers between two depths are never synchronised again."""
    first, last = at_depth(loop, start), at_depth(loop, stop)

    def hold(loop: Loop, name: str, weight: Tensor) -> Tensor:
        return rollout_of(loop).weight(name).clone() if first <= layer_of(name) <= last else weight

    loop.at("sync", hold)
