"""One RL step: sample answers with the rollout engine, reward them, score them with the trainer, and learn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from faultproxy.analyzer.record.probe import Seen, activation_stats, compare, routing_stats
from faultproxy.proxy.run import losses
from faultproxy.proxy.run.advantages import gae, group_advantages, token_rewards, whiten
from faultproxy.proxy.run.config import EOS, Batch
from faultproxy.proxy.run.items import Items
from faultproxy.proxy.run.loop import CURVATURE_ROWS, EVAL_EVERY, Loop, clip

#: Range of the value clip (TRL and verl cliprange_value).
VALUE_CLIP = 0.2


def rl_step(loop: Loop) -> None:
    """Sync, rollout, reward, old log-probabilities, advantages, updates; fills `loop.row`."""
    program = loop.program
    sync(loop)
    batch, rolled = rollout(loop)
    batch, seen = old(loop, batch)
    batch = advantages(loop, batch)
    shown = batch
    batch = loop.through("old", batch)
    # Lengths and gaps are of the answers as they were sampled, whatever mask the loss is given.
    describe(loop, replace(batch, mask=shown.mask), seen, rolled)
    loop.batch = batch
    rows = torch.arange(len(batch.prompts), device=loop.device)
    loop.bend(lambda: loss_of(loop, batch, rows[:CURVATURE_ROWS]))
    for _ in range(program.epochs):
        for part in rows.view(-1, batch.group).chunk(program.minibatches):
            tokens = batch.mask[part.flatten()].sum() / (program.ranks * program.accumulate)
            loop.learn(partial(loss_of, loop, batch, tokens=tokens), part.flatten(), batch.group)
            if loop.critic is not None:
                learn_value(loop, batch, part.flatten())
    if loop.step_number % EVAL_EVERY == 0:
        loop.held_out_row = {"accuracy": accuracy(loop)}


def sync(loop: Loop) -> None:
    """Hand the trainer's weights to the rollout engine, `staleness` versions old, each through the point `sync`."""
    assert loop.rollout is not None
    trainer = loop.trainer
    loop.versions.append(([p.detach().clone() for p in trainer.parameters], [b.clone() for b in trainer.buffers()]))
    weights, buffers = loop.versions[0]
    if loop.points["sync"]:
        weights = list(weights)
        for number, name in enumerate(trainer.names):
            for function in loop.points["sync"]:
                weights[number] = function(loop, name, weights[number])
    loop.rollout.load(weights, buffers)
    loop.row["staleness"] = float(len(loop.versions) - 1)


def rollout(loop: Loop) -> tuple[Batch, Seen]:
    """Sampled and rewarded answers, and what the rollout engine did inside."""
    assert loop.rollout is not None
    program, task = loop.program, loop.task
    asked = task.sample(program.prompts, loop.rng)
    shown = loop.through("batch", asked)
    items, truth = (part.repeat(program.group).to(loop.device) for part in (shown, right_answers(asked, shown)))
    with loop.rollout.probe.capture() as seen:
        responses, mask, logps = loop.rollout.sample(
            items.prompts, task.response_length, loop.sampling, program.temperature
        )
    none = torch.zeros(len(responses), device=loop.device)
    batch = Batch(items, program.group, items.prompts, responses, mask, logps, none, none, none, logps)
    if program.replay:
        batch.routes = {
            n: torch.cat([part.view(len(responses), -1, part.shape[-1]) for part in parts], 1)
            for n, parts in seen.indices.items()
        }
    loop.rollout_seen = seen
    batch = loop.through("rolled", batch)
    batch.true_rewards = task.reward(truth, batch.responses, batch.mask)
    batch.rewards = task.reward(items, batch.responses, batch.mask)
    return loop.through("reward", batch), seen


def right_answers(asked: Items, shown: Items) -> Items:
    """The shown prompts with the answers the task gave them; a prompt that was not asked keeps its row's answer."""
    same = (shown.prompts.unsqueeze(1) == asked.prompts.unsqueeze(0)).all(-1)
    rows = torch.where(same.any(1), same.float().argmax(1), torch.arange(len(asked)))
    return Items(shown.prompts, asked.answers[rows])


def old(loop: Loop, batch: Batch) -> tuple[Batch, Seen]:
    """The trainer's own log-probabilities of the answers before it learns from them, as verl recomputes them, and what
    the trainer did inside."""
    program, trainer = loop.program, loop.trainer
    with torch.no_grad():
        trainer.routes = routes_of(batch, slice(None))
        with trainer.probe.capture() as seen:
            logits = trainer.answer_logits(batch.prompts, batch.responses) / program.temperature
        trainer.routes = None
        batch.logp_old = losses.token_logps(logits, batch.responses)
        loop.row["entropy"] = losses.entropy_of(logits, batch.mask).sum() / batch.mask.sum()
        if loop.reference is not None:
            reference = loop.reference.answer_logits(batch.prompts, batch.responses) / program.temperature
            batch.logp_ref = losses.token_logps(reference, batch.responses)
        if loop.critic is not None:
            batch.values = values_of(loop, batch, slice(None))
    return batch, seen


def advantages(loop: Loop, batch: Batch) -> Batch:
    """Advantages [B, R]: relative to the group, or generalised advantage estimates where there is a critic."""
    program = loop.program
    tokens = token_rewards(batch.rewards, batch.mask)
    if program.algorithm in losses.KL_IN_REWARD:
        tokens = token_rewards(
            batch.rewards, batch.mask, logp_old=batch.logp_old, logp_ref=batch.logp_ref, beta=program.beta
        )
    if batch.values is None:
        relative = group_advantages(program.algorithm, tokens.sum(1), batch.group)
        batch.advantages = relative.unsqueeze(1).expand(batch.mask.shape)
    else:
        raw, batch.returns = gae(tokens, batch.values, batch.mask, program.gamma, program.lam)
        batch.advantages = whiten(raw, batch.mask)
    changed: Batch = loop.through("advantage", batch)
    return changed


def routes_of(batch: Batch, rows: Tensor | slice) -> dict[int, Tensor] | None:
    """The rollout's experts for these rows, one position longer: the last token was never fed to the rollout."""
    if batch.routes is None:
        return None
    return {n: torch.cat([chosen[rows], chosen[rows][:, -1:]], 1) for n, chosen in batch.routes.items()}


def loss_of(loop: Loop, batch: Batch, rows: Tensor, tokens: Tensor | None = None) -> Tensor:
    """The policy loss of some rows of the batch; `tokens` divides token means (None: those of the rows, nothing recorded)."""
    program, trainer = loop.program, loop.trainer
    trainer.routes, trainer.routed = routes_of(batch, rows), [] if program.aux_coef else None
    logits = trainer.answer_logits(batch.prompts[rows], batch.responses[rows]) / program.temperature
    trainer.routes = None
    mask, logp = batch.mask[rows], losses.token_logps(logits, batch.responses[rows])
    weights = None
    if program.importance_cap is not None:
        weights = losses.importance_weights(
            batch.logp_old[rows], batch.logp_rollout[rows], mask, program.importance_cap
        )
    loss, stats = losses.policy_loss(
        program.algorithm, logp, batch.logp_old[rows], batch.advantages[rows], mask,
        clip_low=program.clip_low, clip_high=program.clip_high, response_length=mask.shape[1],
        logp_ref=None if batch.logp_ref is None else batch.logp_ref[rows], beta=program.beta,
        entropy=losses.entropy_of(logits, mask) if program.entropy_coef else None, entropy_coef=program.entropy_coef,
        importance=weights, tokens=mask.sum() if tokens is None else tokens,
    )  # fmt: skip
    if program.aux_coef:
        loss = loss + program.aux_coef * trainer.balance_loss()
    if tokens is not None:
        for name in ("kl_old", "clip_frac", "kl_ref"):
            if name in stats:
                loop.mean(name, stats[name])
    return loss


def values_of(loop: Loop, batch: Batch, rows: Tensor | slice) -> Tensor:
    """The critic's value [B, R] before each response token."""
    assert loop.critic is not None
    return loop.critic.answer_logits(batch.prompts[rows], batch.responses[rows]).squeeze(-1)


def learn_value(loop: Loop, batch: Batch, rows: Tensor) -> None:
    """One optimiser step of the critic."""
    assert (
        loop.critic is not None
        and loop.critic_optimiser is not None
        and batch.values is not None
        and batch.returns is not None
    )
    loss, _ = losses.value_loss(
        values_of(loop, batch, rows), batch.values[rows], batch.returns[rows], batch.mask[rows], VALUE_CLIP
    )
    gradients = torch.autograd.grad(loss, loop.critic.parameters, allow_unused=True)
    for master, gradient in zip(loop.critic.masters, gradients, strict=True):
        master.grad = gradient
    norm = clip(loop.critic.masters, loop.program.clip_grad)
    loop.critic_optimiser.step()
    loop.critic.refresh()
    loop.critic_row = {"value_loss": loss.detach(), "grad_norm": norm}


def describe(loop: Loop, batch: Batch, trainer: Seen, rolled: Seen) -> None:
    """What the batch and both engines show, before any update."""
    row, mask, rewards = loop.row, batch.mask, batch.rewards
    loop.balance({n: torch.cat(parts) for n, parts in trainer.indices.items()})
    if loop.recorder is None:
        return
    lengths, groups, inside = mask.sum(1).float(), rewards.view(-1, batch.group), batch.advantages[mask]
    spread = groups.std(1) if batch.group > 1 else rewards.new_zeros(len(groups))
    row |= {
        "reward": rewards.mean(), "reward:max": rewards.max(), "reward:min": rewards.min(), "reward_std": spread.mean(),
        "zero_std_frac": (spread < 1e-6).float().mean(), "advantage": inside.mean(), "advantage:max": inside.max(),
        "advantage:min": inside.min(), "response_length": lengths.mean(), "response_length:max": lengths.max(),
        "response_length:min": lengths.min(), "truncated_frac": (~((batch.responses == EOS) & mask).any(1)).float().mean(),
    }  # fmt: skip
    row |= losses.mismatch(batch.logp_rollout, batch.logp_old, mask)
    loop.hidden["true_reward"] = batch.true_rewards.mean()
    inner(loop, trainer)
    loop.layers |= compare(trainer, rolled, batch.prompts.shape[1], mask)


def inner(loop: Loop, seen: Seen) -> None:
    """What the trainer shows inside: activations and, where there are experts, routing."""
    every = range(len(loop.trainer.layers))
    loop.layers |= {name: dict(zip(every, values, strict=True)) for name, values in activation_stats(seen).items()}
    bad = loop.layers["nonfinite_act_frac"]
    loop.row["nonfinite_act_frac"] = sum(bad.values()) / len(bad)
    if seen.logits:
        by_layer, loop.loads = routing_stats(seen)
        loop.layers |= by_layer
        logits = [torch.cat(parts) for parts in seen.logits.values()]
        loop.row["aux_loss"] = losses.load_balancing_loss(logits, loop.trainer.top_k)


@torch.no_grad()
def accuracy(loop: Loop) -> Tensor:
    """Mean reward of greedy answers to held-out prompts."""
    items = loop.held_out
    responses, mask, _ = loop.trainer.sample(items.prompts, loop.task.response_length, loop.sampling, greedy=True)
    return loop.task.reward(items, responses, mask).mean()
