"""Faults of data, templates, masks, and token alignment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from faultproxy.proxy.run.config import EOS, FIRST_SYMBOL, PAD
from faultproxy.proxy.run.mechanisms.common import change_output, engines, mechanism, some_of

if TYPE_CHECKING:
    from faultproxy.proxy.run.config import Batch
    from faultproxy.proxy.run.loop import Loop


@mechanism
def answers_shuffled(loop: Loop, *, share: float) -> None:
    """A share of the prompts carries the answer of the next prompt."""

    def shuffle(loop: Loop, items: Any) -> Any:
        wrong = some_of(loop, items.answers, share)[:, None]
        return replace(items, answers=torch.where(wrong, items.answers.roll(1, 0), items.answers))

    loop.at("batch", shuffle)


@mechanism
def tokens_corrupted(loop: Loop, *, share: float, field: str = "prompts", steps: int = 0) -> None:
    """A share of the symbols in `prompts` or `answers` is random, in the first `steps` steps only where that is given."""
    last = loop.step_number + steps

    def corrupt(loop: Loop, items: Any) -> Any:
        if steps and loop.step_number > last:
            return items
        tokens = getattr(items, field)
        noise = torch.randint(FIRST_SYMBOL, loop.task.vocab, tokens.shape, generator=loop.faults_rng)
        hit = torch.rand(tokens.shape, generator=loop.faults_rng) < share
        return replace(items, **{field: torch.where(hit & (tokens >= FIRST_SYMBOL), noise, tokens)})

    loop.at("batch", corrupt)


@mechanism
def items_repeated(loop: Loop, *, kept: float) -> None:
    """Only a share `kept` of the drawn prompts is used, each several times."""

    def repeat(loop: Loop, items: Any) -> Any:
        return items.rows(torch.arange(len(items)) % max(1, round(kept * len(items))))

    def judge(loop: Loop, batch: Batch) -> Batch:  # these are the prompts that were asked, so their truth is known
        return replace(batch, true_rewards=loop.task.reward(batch.items, batch.responses, batch.mask))

    loop.at("batch", repeat)
    loop.at("reward", judge)


@mechanism
def shard_repeated(loop: Loop, *, share: float) -> None:
    """A share of every other rank's examples are those of the first rank, as without a distributed sampler."""

    def repeat(loop: Loop, items: Any) -> Any:
        own = torch.arange(len(items))
        first = own % -(-len(items) // loop.program.ranks)
        return items.rows(torch.where(some_of(loop, own, share), first, own))

    loop.at("batch", repeat)


@mechanism
def feature_infinite(loop: Loop, *, share: float) -> None:
    """A share of the sequences has a non-finite input feature at its first position, in the trainer."""

    def spoil(_: Tensor, out: Tensor) -> Tensor:
        hit = (
            some_of(loop, out, share)[:, None, None]
            & (torch.arange(out.shape[1], device=out.device) == 0)[None, :, None]
        )
        return out.masked_fill(hit, torch.inf)

    change_output(loop.trainer.embedding, spoil)


@mechanism
def prompt_template(loop: Loop, *, share: float) -> None:
    """A share of the answers is scored by the trainer behind another prompt end than the one they were sampled from."""

    def rewrite(loop: Loop, batch: Batch) -> Batch:
        prompts = batch.prompts.clone()
        prompts[some_of(loop, prompts, share), -1] = PAD
        return replace(batch, prompts=prompts)

    loop.at("rolled", rewrite)


@mechanism
def logps_shifted(loop: Loop, *, share: float) -> None:
    """A share of the answers has its rollout log-probabilities one token late."""

    def shift(loop: Loop, batch: Batch) -> Batch:
        hit = some_of(loop, batch.mask, share)[:, None]
        return replace(batch, logp_rollout=torch.where(hit, batch.logp_rollout.roll(1, 1), batch.logp_rollout))

    loop.at("rolled", shift)


@mechanism
def eos_suppressed(loop: Loop, *, size: float, engine: str = "both") -> None:
    """The logit of the end token is lowered by `size`: answers do not stop."""

    def lower(_: Tensor, logits: Tensor) -> Tensor:
        end = torch.arange(logits.shape[-1], device=logits.device) == EOS
        return logits - size * end

    for target in engines(loop, engine):
        change_output(target.head, lower)


@mechanism
def length_limit(loop: Loop, *, share: float) -> None:
    """Answers are cut at a share of the longest length, before they are rewarded."""

    def cut(_: Loop, batch: Batch) -> Batch:
        limit = max(1, int(share * batch.mask.shape[1]))
        kept = torch.arange(batch.mask.shape[1], device=batch.mask.device) < limit
        return replace(batch, mask=batch.mask & kept, responses=batch.responses.where(kept, PAD))

    loop.at("rolled", cut)


@mechanism
def padding_learnt(loop: Loop, *, share: float) -> None:
    """The mask of a share of the answers has all positions, padding included, once the reward is known."""
    loop.at("reward", lambda loop, batch: replace(batch, mask=batch.mask | some_of(loop, batch.mask, share)[:, None]))


@mechanism
def mask_shifted(loop: Loop, *, by: int) -> None:
    """The response mask ends `by` tokens too early, once the reward is known: ends of answers are never trained on."""

    def shift(_: Loop, batch: Batch) -> Batch:
        cut = min(by, batch.mask.shape[1] - 1)  # the longest answers keep a token
        return replace(batch, mask=batch.mask & functional.pad(batch.mask[:, cut:], (0, cut)))

    loop.at("reward", shift)
