"""Faults between loss and optimiser: normalisation, the reduction over ranks, and what hardware does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faultproxy.proxy.run.mechanisms.common import happens, mechanism, permutation

if TYPE_CHECKING:
    from faultproxy.proxy.run.loop import Loop

#: Exponent field of a float32: bits 23 to 30.
_EXPONENT = range(23, 31)


@mechanism
def loss_factor(loop: Loop, *, factor: float) -> None:
    """The loss is a sum where it should be a mean (over tokens or accumulation steps): `factor` times too large."""
    loop.at("loss", lambda _, batch, loss, rank: loss * factor)


@mechanism
def reduced_sum(loop: Loop, *, times: int) -> None:
    """Gradients are summed over ranks instead of averaged, `times` times (once a group of ranks that contains the other)."""
    loop.at("reduce", lambda loop, grads: torch._foreach_mul(grads, float(loop.program.ranks**times)))


@mechanism
def rank_weight(loop: Loop, *, weight: float, rank: int = 1) -> None:
    """One rank's gradient enters the reduction with a weight: 0 drops it, 2 counts it twice."""
    loop.at("grad", lambda _, grads, own: torch._foreach_mul(grads, weight) if own == rank else grads)


@mechanism
def rank_nan(loop: Loop, *, share: float, rank: int = 1) -> None:
    """A broken device: in a share of the steps one gradient tensor of one rank is NaN."""

    def break_one(loop: Loop, grads: list[Tensor], own: int) -> list[Tensor]:
        if own == rank and happens(loop, share):
            grads = [g.clone() for g in grads]
            grads[len(grads) // 2].fill_(torch.nan)
        return grads

    loop.at("grad", break_one)


@mechanism
def rank_corrupted(loop: Loop, *, size: float, share: float, rank: int = 1) -> None:
    """Silent corruption: in a share of the steps some values of one rank's gradients become `size` times the largest."""

    def corrupt(loop: Loop, grads: list[Tensor], own: int) -> list[Tensor]:
        if own != rank or not happens(loop, share):
            return grads
        bad = permutation(loop, len(grads))[: max(1, len(grads) // 8)].tolist()
        grads = [g.clone() for g in grads]
        for number in bad:
            grads[number].view(-1)[0] += size * grads[number].abs().max()
        return grads

    loop.at("grad", corrupt)


@mechanism
def gradients_stale(loop: Loop, *, share: float) -> None:
    """A race of communication and backward: a share of the reduced tensors still holds the sum of earlier steps."""
    kept: dict[int, Tensor] = {}

    def race(loop: Loop, grads: list[Tensor]) -> list[Tensor]:
        late = set(permutation(loop, len(grads))[: round(share * len(grads))].tolist())
        for number, gradient in enumerate(grads):
            kept[number] = gradient + kept[number] if number in kept and number in late else gradient.clone()
        return [kept[number].clone() for number in range(len(grads))]

    loop.at("reduce", race)


@mechanism
def bit_flip(loop: Loop, *, bit: int, count: int) -> None:
    """One exponent bit of `count` random trainer weights is flipped, once, as failing memory does."""
    if bit not in _EXPONENT:
        raise ValueError(f"bit {bit} is no exponent bit of a float32 (23 to 30)")
    with torch.no_grad():
        for weight in (loop.trainer.masters[i] for i in permutation(loop, len(loop.trainer.masters))[:count].tolist()):
            place = torch.randint(weight.numel(), (1,), generator=loop.faults_rng).item()
            bits = weight.data.view(-1).view(torch.int32)
            bits[place] ^= 1 << bit
    loop.trainer.refresh()
