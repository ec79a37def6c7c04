"""What a task is made of: prompts, right answers, and the reward of a response.

Legend: n items, P prompt tokens, R response tokens, W values before they are packed. Puzzles think in values from 0;
`prompt` and `answer` turn them into tokens, and a value of SEPARATOR becomes SEP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from faultproxy.proxy.run.config import BOS, EOS, FIRST_SYMBOL, PAD, SEP

SEPARATOR = SEP - FIRST_SYMBOL
#: exact: 1 or 0. prefix: share of the answer's tokens before the first wrong one, EOS counted, so 1 needs the right
#: length. length: right tokens before the first wrong one over the longest response, whatever length was shown.
CREDITS = ("exact", "prefix", "length")


@dataclass(frozen=True)
class Items:
    """Prompts [n, P] (filled with BOS on the left) and the answers [n, R] that are shown and rewarded (EOS, then PAD)."""

    prompts: Tensor
    answers: Tensor

    def __len__(self) -> int:
        return self.prompts.shape[0]

    def repeat(self, group: int) -> Items:
        """Every item `group` times, copies adjacent."""
        return Items(self.prompts.repeat_interleave(group, 0), self.answers.repeat_interleave(group, 0))

    def rows(self, index: Tensor | slice) -> Items:
        """The chosen rows."""
        return Items(self.prompts[index], self.answers[index])

    def to(self, device: torch.device | str) -> Items:
        """The same items on a device."""
        return Items(self.prompts.to(device), self.answers.to(device))


Maker = Callable[[int, torch.Generator], Items]


@dataclass(frozen=True)
class Task:
    """A source of items and their reward. Data values are the tokens FIRST_SYMBOL .. FIRST_SYMBOL + symbols - 1."""

    name: str
    symbols: int
    vocab: int
    prompt_length: int
    response_length: int
    credit: str
    make: Maker

    def sample(self, n: int, generator: torch.Generator) -> Items:
        """`n` fresh items: prompts [n, P], answers [n, R]."""
        return self.make(n, generator)

    def reward(self, items: Items, responses: Tensor, mask: Tensor) -> Tensor:
        """Float32 [n] in [0, 1] for responses [n, R], by the task's credit; `mask` [n, R] is True up to EOS."""
        said = responses.where(mask, PAD)
        if self.credit == "length":
            ahead = torch.arange(said.shape[1] - 1, device=said.device)
            wanted = (items.answers[:, :1] - FIRST_SYMBOL + ahead) % self.symbols + FIRST_SYMBOL
            return (said[:, :-1] == wanted).long().cumprod(1).float().mean(1)
        counted = items.answers != PAD
        right = ((said == items.answers) | ~counted).long().cumprod(1)
        if self.credit == "exact":
            return right[:, -1].float()
        return (right * counted).sum(1).float() / counted.sum(1)

    def corrupt(self, items: Items, generator: torch.Generator) -> Tensor:
        """Wrong answers [n, R] of the right length: one value, and each other one with probability 1/4, replaced."""
        answers = items.answers.cpu()
        values = answers >= FIRST_SYMBOL
        draw = torch.rand(answers.shape, generator=generator).masked_fill(~values, 2.0)
        wrong = values & ((draw == draw.amin(1, keepdim=True)) | (draw < 0.25))
        shift = torch.randint(1, self.symbols, answers.shape, generator=generator)
        other = (answers - FIRST_SYMBOL + shift) % self.symbols + FIRST_SYMBOL
        return torch.where(wrong, other, answers).to(items.answers.device)


Builder = Callable[..., tuple[int, Maker]]
#: Builders of every task: name -> (builder, its usual credit).
TASKS: dict[str, tuple[Builder, str]] = {}


def task(credit: str) -> Callable[[Builder], Builder]:
    """Register a builder under its own name."""

    def register(builder: Builder) -> Builder:
        TASKS[builder.__name__] = (builder, credit)
        return builder

    return register


def draw(high: int, n: int, width: int, generator: torch.Generator) -> Tensor:
    """Values [n, width], even over 0 .. high - 1."""
    return torch.randint(high, (n, width), generator=generator)


def some(least: int, most: int, n: int, width: int, generator: torch.Generator) -> Tensor:
    """Mask [n, width] that keeps the first `least` .. `most` places of a row, each number equally likely."""
    return torch.arange(width) < torch.randint(least, most + 1, (n, 1), generator=generator)


def distinct(high: int, n: int, width: int, generator: torch.Generator) -> Tensor:
    """Values [n, width] from 0 .. high - 1, no two alike in a row."""
    return torch.rand(n, high, generator=generator).argsort(1)[:, :width]


def prompt(values: Tensor, keep: Tensor | None = None) -> Tensor:
    """Tokens [n, W + 1]: BOS for what is not kept, then the kept values [n, W] in order, then SEP.

    Not PAD: its embedding is exactly zero, so is a row that sees nothing else, and the gradient of an RMSNorm at zero is
    1 / sqrt(eps) = 1000 times too large, in every layer again, which overflows fp16.
    """
    keep = torch.ones_like(values, dtype=torch.bool) if keep is None else keep
    tokens = (values + FIRST_SYMBOL).where(keep, BOS).gather(1, keep.int().argsort(dim=1, stable=True))
    return torch.nn.functional.pad(tokens, (0, 1), value=SEP)


def answer(values: Tensor, keep: Tensor | None = None) -> Tensor:
    """Tokens [n, W + 1]: the kept values [n, W] in order, EOS, then PAD."""
    keep = torch.ones_like(values, dtype=torch.bool) if keep is None else keep
    tokens = (values + FIRST_SYMBOL).where(keep, PAD).gather(1, (~keep).int().argsort(dim=1, stable=True))
    return torch.nn.functional.pad(tokens, (0, 1), value=PAD).scatter(1, keep.sum(1, keepdim=True), EOS)
