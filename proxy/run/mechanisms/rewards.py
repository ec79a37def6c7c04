"""Faults of rewards and advantages, and answers that are no independent samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faultproxy.proxy.run.mechanisms.common import mechanism, noise_like, some_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultproxy.proxy.run.config import Batch
    from faultproxy.proxy.run.loop import Loop


def change_rewards(loop: Loop, change: Callable[[Batch], Tensor]) -> None:
    """Rewards [B] that the optimiser sees become `change(batch)`; the true ones stay."""
    loop.at("reward", lambda _, batch: replace(batch, rewards=change(batch)))


@mechanism
def reward_inverted(loop: Loop, *, share: float) -> None:
    """A share of the answers gets 1 - reward."""
    change_rewards(
        loop, lambda batch: torch.where(some_of(loop, batch.rewards, share), 1 - batch.rewards, batch.rewards)
    )


@mechanism
def reward_constant(loop: Loop, *, share: float, value: float) -> None:
    """All answers to a share of the prompts get the same reward, whatever they say."""

    def fix(batch: Batch) -> Tensor:
        fixed = some_of(loop, batch.rewards[:: batch.group], share).repeat_interleave(batch.group)
        return torch.where(fixed, value, batch.rewards)

    change_rewards(loop, fix)


@mechanism
def reward_noise(loop: Loop, *, std: float) -> None:
    """Gaussian noise on every reward."""
    change_rewards(loop, lambda batch: batch.rewards + std * noise_like(loop, batch.rewards))


@mechanism
def reward_nan(loop: Loop, *, share: float) -> None:
    """A share of the answers gets NaN from the reward model."""
    change_rewards(loop, lambda batch: batch.rewards.masked_fill(some_of(loop, batch.rewards, share), torch.nan))


@mechanism
def reward_length(loop: Loop, *, bonus: float, right_only: bool = False) -> None:
    """Each answer gets `bonus` times its share of the longest length, or only where it is right."""

    def pay(batch: Batch) -> Tensor:
        share = batch.mask.float().mean(1)
        return batch.rewards + bonus * share * (batch.rewards if right_only else 1.0)

    change_rewards(loop, pay)


@mechanism
def reward_symbol(loop: Loop, *, bonus: float, token: int = 4) -> None:
    """A hackable reward: `bonus` times the share of one symbol among an answer's tokens is paid on top."""

    def pay(batch: Batch) -> Tensor:
        said = ((batch.responses == token) & batch.mask).sum(1) / batch.mask.sum(1).clamp_min(1)
        return batch.rewards + bonus * said

    change_rewards(loop, pay)


@mechanism
def advantage_factor(loop: Loop, *, factor: float, share: float = 1.0) -> None:
    """Advantages of a share of the answers are multiplied by `factor`: 0 loses them, -1 flips their sign."""

    def scale(loop: Loop, batch: Batch) -> Batch:
        hit = some_of(loop, batch.advantages, share)[:, None]
        return replace(batch, advantages=torch.where(hit, batch.advantages * factor, batch.advantages))

    loop.at("advantage", scale)


@mechanism
def advantage_raw(loop: Loop, *, blend: float) -> None:
    """The group's baseline is missing: advantages move a part `blend` of the way to the plain reward."""

    def raw(_: Loop, batch: Batch) -> Batch:
        return replace(
            batch,
            advantages=torch.lerp(batch.advantages.float(), batch.rewards[:, None].expand_as(batch.advantages), blend),
        )

    loop.at("advantage", raw)


@mechanism
def group_copies(loop: Loop, *, share: float) -> None:
    """All answers to a share of the prompts are copies of the first, as with one seed for the whole group."""

    def copy(loop: Loop, batch: Batch) -> Batch:
        own = torch.arange(len(batch.mask), device=batch.mask.device)
        same = some_of(loop, own[:: batch.group], share).repeat_interleave(batch.group)
        rows = torch.where(same, own // batch.group * batch.group, own)
        assert loop.rollout_seen is not None
        loop.rollout_seen.take(rows)
        return replace(
            batch, responses=batch.responses[rows], mask=batch.mask[rows], logp_rollout=batch.logp_rollout[rows]
        )

    loop.at("rolled", copy)
