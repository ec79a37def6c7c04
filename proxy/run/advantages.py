"""Rewards to advantages: group baselines, the per-token reward with its KL penalty, GAE and whitening.

Shapes: B answers of at most R tokens; `mask` [B, R] is True on response tokens (up to and including EOS).
Non-finite rewards and values stay non-finite, as in verl: TRL 1.16 drops a NaN reward from its group (nanmean, then
nan_to_num), and a lab that hid a NaN could not teach what one does. Padding never counts, whatever stands there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faultproxy.analyzer.errors import InputError


def group_advantages(kind: str, rewards: Tensor, group: int) -> Tensor:
    """[B] advantages of answers against the other answers of their prompt (adjacent, `group` of them).

    grpo, dapo, gspo: (r - mean) / (std + 1e-4), std with Bessel's correction (2402.03300 sec. 4.1.2; TRL "group").
    dr_grpo: r - mean (2503.20783 sec. 3.2). rloo: r - mean of the others (2402.14740 sec. 2.2; TRL RLOOTrainer).
    """
    if group < 2 or len(rewards) % group:
        raise InputError(
            f"{kind}: {len(rewards)} answers in groups of {group}; a group baseline needs whole groups of 2 or more: "
            "raise `group` or use ppo"
        )
    grouped = rewards.view(-1, group)
    centred = grouped - grouped.mean(1, keepdim=True)
    if kind in ("grpo", "dapo", "gspo"):
        centred = centred / (grouped.std(1, keepdim=True) + 1e-4)
    elif kind == "rloo":
        centred = grouped - (grouped.sum(1, keepdim=True) - grouped) / (group - 1)
    elif kind != "dr_grpo":
        raise InputError(f"{kind!r} has no group advantage; allowed are grpo, dapo, gspo, dr_grpo, rloo")
    return centred.reshape(-1)


def token_rewards(
    rewards: Tensor, mask: Tensor, *, logp_old: Tensor | None = None, logp_ref: Tensor | None = None, beta: float = 0.0
) -> Tensor:
    """[B, R] rewards: the answer's reward on its last token, minus beta * (logp_old - logp_ref) on every token.

    The k1 penalty of PPO (1909.08593 sec. 2; TRL kl_estimator="k1"; verl apply_kl_penalty "kl"). Its sum over tokens is
    the sequence reward of RLOO (TRL RLOOTrainer: rewards - beta * sum kl).
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = position == mask.sum(1, keepdim=True) - 1
    scores = torch.where(last, rewards[:, None], 0.0)
    if logp_old is None or logp_ref is None or beta == 0.0:
        return scores
    return scores - beta * torch.where(mask, logp_old - logp_ref, 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """[B, R] advantages and returns = advantages + values, from per-token rewards and values [B, R].

    Generalised advantage estimation (1506.02438 eq. 16), the value after the last token 0 (TRL PPOTrainer.train, verl
    compute_gae_advantage_return). Not whitened: both of them pass the advantages, not the returns, through `whiten`.
    """
    values = torch.where(mask, values, 0.0)
    following = torch.nn.functional.pad(values[:, 1:], (0, 1))
    delta = torch.where(mask, rewards, 0.0) + gamma * following - values
    running = torch.zeros_like(delta[:, 0])
    backwards = []
    for column in reversed(delta.unbind(1)):
        running = torch.add(column, running, alpha=gamma * lam)
        backwards.append(running)
    advantages = torch.stack(backwards[::-1], 1)
    return torch.where(mask, advantages, 0.0), torch.where(mask, advantages + values, 0.0)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """[B, R] shifted and scaled to mean 0 and variance 1 over response tokens, 0 on padding (TRL and verl masked_whiten)."""
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum() / count
    centred = torch.where(mask, values - mean, 0.0)
    return centred * torch.rsqrt(centred.square().sum() / (count - 1) + 1e-8)
