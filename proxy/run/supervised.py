"""One supervised step: pre-training, fine-tuning, classification, or preference pairs (DPO)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from faultproxy.proxy.run import losses
from faultproxy.proxy.run.config import PAD
from faultproxy.proxy.run.items import Items
from faultproxy.proxy.run.loop import CURVATURE_ROWS, EVAL_EVERY, Loop
from faultproxy.proxy.run.rl import accuracy, inner


def supervised_step(loop: Loop) -> None:
    """Draw a batch, learn from it, and evaluate every few steps; fills `loop.row`."""
    program = loop.program
    items = loop.through("batch", loop.task.sample(program.prompts * program.group, loop.rng)).to(loop.device)
    rows = torch.arange(len(items), device=loop.device)
    loss = _preference(loop, items) if program.algorithm == "dpo" else _likelihood(loop, items)
    with torch.no_grad(), loop.trainer.probe.capture() as seen:
        loss(rows, False)
    loop.balance({n: torch.cat(parts) for n, parts in seen.indices.items()})
    if loop.recorder is not None:
        inner(loop, seen)
    loop.bend(lambda: loss(rows[:CURVATURE_ROWS], False))
    for _ in range(program.epochs):
        for part in rows.chunk(program.minibatches):
            loop.learn(lambda chosen: loss(chosen, True), part, 1)
    if loop.step_number % EVAL_EVERY == 0:
        loop.held_out_row = evaluation(loop)


#: (rows of the batch, take note of the scalars) -> the loss.
Loss = Callable[[Tensor, bool], Tensor]


def _likelihood(loop: Loop, items: Items) -> Loss:
    """Mean negative log-likelihood of the answer tokens."""
    mask = items.answers != PAD
    program = loop.program

    def loss(rows: Tensor, record: bool) -> Tensor:
        loop.trainer.routed = [] if program.aux_coef else None
        logits = loop.trainer.answer_logits(items.prompts[rows], items.answers[rows])
        value, stats = losses.sft_loss(logits, items.answers[rows], mask[rows])
        if program.aux_coef:
            value = value + program.aux_coef * loop.trainer.balance_loss()
        if record:
            loop.mean("accuracy", stats["accuracy"])
            loop.mean("entropy", losses.entropy_of(logits.detach(), mask[rows]).sum() / mask[rows].sum())
        return value

    return loss


def _preference(loop: Loop, items: Items) -> Loss:
    """DPO: the right answer against a corrupted one, both scored against the frozen reference."""
    assert loop.reference is not None
    wrong = loop.task.corrupt(items, loop.rng)
    both = torch.stack([items.answers, wrong], 1)
    mask = both != PAD
    with torch.no_grad():
        logits = loop.reference.answer_logits(items.prompts.repeat_interleave(2, 0), both.flatten(0, 1))
        reference = (losses.token_logps(logits, both.flatten(0, 1)).view(mask.shape) * mask).sum(-1)

    def loss(rows: Tensor, record: bool) -> Tensor:
        answers = both[rows].flatten(0, 1)
        logits = loop.trainer.answer_logits(items.prompts[rows].repeat_interleave(2, 0), answers)
        logps = (losses.token_logps(logits, answers).view(mask[rows].shape) * mask[rows]).sum(-1)
        value, stats = losses.dpo_loss(
            logps[:, 0], logps[:, 1], reference[rows, 0], reference[rows, 1], loop.program.beta or 0.1
        )
        if record:
            for name in ("reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"):
                loop.mean(name, stats[name])
            kept = mask[rows].flatten(0, 1)
            loop.mean("entropy", losses.entropy_of(logits.detach(), kept).sum() / kept.sum())
        return value

    return loss


def evaluation(loop: Loop) -> dict[str, Tensor]:
    """Held-out loss, and the mean reward of greedy answers where the task has one right answer."""
    items = loop.held_out
    with torch.no_grad():
        logits = loop.trainer.answer_logits(items.prompts, items.answers)
        found = {"loss": losses.sft_loss(logits, items.answers, items.answers != PAD)[0]}
    if loop.program.algorithm != "pretrain":
        found["accuracy"] = accuracy(loop)
    return found
