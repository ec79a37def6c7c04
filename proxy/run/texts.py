"""Texts to model (the prompt is BOS alone) and sequences to classify (the response is a label and EOS)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from faultproxy.proxy.run.config import BOS
from faultproxy.proxy.run.items import Items, Maker, answer, distinct, draw, prompt, task

Generator = torch.Generator


def text(symbols: int, write: Callable[[int, Generator], Tensor]) -> tuple[int, Maker]:
    """A language-model task from a function that writes values [n, W]."""

    def make(n: int, rng: Generator) -> Items:
        return Items(torch.full((n, 1), BOS), answer(write(n, rng)))

    return symbols, make


@task("prefix")
def markov(symbols: int = 16, length: int = 12, sharpness: float = 2.0, key: int = 0) -> tuple[int, Maker]:
    """A fixed random Markov chain; the logits of its transitions are normal with spread `sharpness`."""
    logits = torch.randn(symbols, symbols, generator=Generator().manual_seed(key)) * sharpness
    edges = logits.softmax(1).cumsum(1)
    edges[:, -1] = 1.0

    def write(n: int, rng: Generator) -> Tensor:
        values = [torch.randint(symbols, (n,), generator=rng)]
        for _ in range(length - 1):
            values.append((torch.rand(n, 1, generator=rng) >= edges[values[-1]]).sum(1))
        return torch.stack(values, 1)

    return text(symbols, write)


@task("prefix")
def induction(symbols: int = 12, block: int = 5, copies: int = 3) -> tuple[int, Maker]:
    """A block of distinct values, over and over: only the first copy is a surprise."""
    return text(symbols, lambda n, rng: distinct(symbols, n, block, rng).repeat(1, copies))


@task("prefix")
def progression(symbols: int = 16, length: int = 10, strides: int = 4) -> tuple[int, Maker]:
    """A start and a stride of at most `strides`, modulo the symbols: two values give the rest."""
    return text(
        symbols,
        lambda n, rng: (draw(symbols, n, 1, rng) + (1 + draw(strides, n, 1, rng)) * torch.arange(length)) % symbols,
    )


def labelled(symbols: int, make: Callable[[int, Generator], tuple[Tensor, Tensor]]) -> tuple[int, Maker]:
    """A classification task from a function that makes values [n, W] and labels [n]; labels are the first values."""

    def items(n: int, rng: Generator) -> Items:
        values, labels = make(n, rng)
        return Items(prompt(values), answer(labels[:, None]))

    return symbols, items


@task("exact")
def majority(kinds: int = 3, length: int = 9) -> tuple[int, Maker]:
    """Which value is the most frequent; the lowest of those that are."""

    def make(n: int, rng: Generator) -> tuple[Tensor, Tensor]:
        values = draw(kinds, n, length, rng)
        return values, one_hot(values, kinds).sum(1).argmax(1)

    return labelled(kinds, make)


@task("exact")
def order(symbols: int = 10, length: int = 8) -> tuple[int, Maker]:
    """Which of two marked values, 0 and 1, comes first in a list of others."""

    def make(n: int, rng: Generator) -> tuple[Tensor, Tensor]:
        values, places = 2 + draw(symbols - 2, n, length, rng), distinct(length, n, 2, rng)
        return values.scatter(1, places, torch.tensor([[0, 1]]).expand(n, 2)), (places[:, 1] < places[:, 0]).long()

    return labelled(symbols, make)


@task("exact")
def motif(symbols: int = 4, length: int = 8) -> tuple[int, Maker]:
    """How often (0, 1, or more: 2) the value 0 is followed at once by the value 1."""

    def make(n: int, rng: Generator) -> tuple[Tensor, Tensor]:
        values = draw(symbols, n, length, rng)
        return values, ((values[:, :-1] == 0) & (values[:, 1:] == 1)).sum(1).clamp(max=2)

    return labelled(symbols, make)
