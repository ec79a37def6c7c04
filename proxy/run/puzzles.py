"""Verifiable puzzles: the answer follows from the prompt, so the reward is a comparison.

A builder's arguments are sizes; it returns the number of data symbols and a function that makes items. Short on
purpose: a prompt of 4-12 tokens and a response of 2-8 keep a step of a tiny model near 0.1 s on one core.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from faultproxy.proxy.run.items import SEPARATOR, Items, Maker, answer, distinct, draw, prompt, some, task

Generator = torch.Generator


def mapped(
    symbols: int, length: int, change: Callable[[Tensor], Tensor], least: int | None = None
) -> tuple[int, Maker]:
    """A puzzle on one list of `least` .. `length` values, whose answer keeps the list's length."""

    def make(n: int, rng: Generator) -> Items:
        values, keep = draw(symbols, n, length, rng), some(least or length, length, n, length, rng)
        return Items(prompt(values, keep), answer(change(values), keep))

    return symbols, make


@task("prefix")
def copy(symbols: int = 12, length: int = 6, least: int = 2) -> tuple[int, Maker]:
    """The list again; its length varies."""
    return mapped(symbols, length, lambda values: values, least)


@task("prefix")
def successor(symbols: int = 12, length: int = 5, least: int = 2, by: int = 1) -> tuple[int, Maker]:
    """Every value plus `by`, modulo the symbols; the list's length varies."""
    return mapped(symbols, length, lambda values: (values + by) % symbols, least)


@task("exact")
def cipher(symbols: int = 16, length: int = 4, key: int = 0) -> tuple[int, Maker]:
    """Every value through one fixed permutation."""
    permutation = torch.randperm(symbols, generator=Generator().manual_seed(key))
    return mapped(symbols, length, lambda values: permutation[values])


@task("prefix")
def reverse(symbols: int = 12, length: int = 5) -> tuple[int, Maker]:
    """The list from its end."""
    return mapped(symbols, length, lambda values: values.flip(1))


@task("prefix")
def sort(symbols: int = 10, length: int = 4) -> tuple[int, Maker]:
    """The list, smallest first."""
    return mapped(symbols, length, lambda values: values.sort(1).values)


@task("prefix")
def parity(length: int = 6) -> tuple[int, Maker]:
    """After each bit, whether the ones so far are odd."""
    return mapped(2, length, lambda bits: bits.cumsum(1) % 2)


@task("exact")
def rotate(symbols: int = 10, length: int = 4) -> tuple[int, Maker]:
    """The list turned left by the number that stands before it."""

    def make(n: int, rng: Generator) -> Items:
        values, by = draw(symbols, n, length, rng), draw(length, n, 1, rng)
        turned = values.gather(1, (torch.arange(length) + by) % length)
        return Items(prompt(torch.cat([by, values], 1)), answer(turned))

    return symbols, make


@task("prefix")
def interleave(symbols: int = 10, length: int = 3) -> tuple[int, Maker]:
    """Two lists, taken in turn."""

    def make(n: int, rng: Generator) -> Items:
        left, right = draw(symbols, n, length, rng), draw(symbols, n, length, rng)
        between = torch.full((n, 1), SEPARATOR)
        return Items(prompt(torch.cat([left, between, right], 1)), answer(torch.stack([left, right], 2).flatten(1)))

    return symbols, make


@task("exact")
def dedupe(symbols: int = 6, length: int = 5) -> tuple[int, Maker]:
    """The list without what occurred before."""

    def make(n: int, rng: Generator) -> Items:
        values = draw(symbols, n, length, rng)
        again = (values[:, :, None] == values[:, None, :]).tril(-1).any(2)
        return Items(prompt(values), answer(values, ~again))

    return symbols, make


@task("prefix")
def below(symbols: int = 10, length: int = 5) -> tuple[int, Maker]:
    """The values of a list that are smaller than the number before it; at least one is."""

    def make(n: int, rng: Generator) -> Items:
        pivot, values = 1 + draw(symbols - 1, n, 1, rng), draw(symbols, n, length, rng)
        values[:, :1] %= pivot
        return Items(prompt(torch.cat([pivot, values], 1)), answer(values, values < pivot))

    return symbols, make


@task("exact")
def repeat(symbols: int = 10, times: int = 3) -> tuple[int, Maker]:
    """A pair of values, as often as the number after it says."""

    def make(n: int, rng: Generator) -> Items:
        pair, count = draw(symbols, n, 2, rng), draw(times, n, 1, rng)
        return Items(
            prompt(torch.cat([pair, count], 1)),
            answer(pair.repeat(1, times), torch.arange(2 * times) < 2 * (count + 1)),
        )

    return symbols, make


@task("prefix")
def brackets(kinds: int = 3, length: int = 7, depth: int = 5) -> tuple[int, Maker]:
    """Close all that is open. Opening bracket k is value k, its closing one kinds + k."""

    def make(n: int, rng: Generator) -> Items:
        seen, stack = torch.empty(n, length, dtype=torch.long), torch.zeros(n, depth + 1, dtype=torch.long)
        height, row = torch.zeros(n, dtype=torch.long), torch.arange(n)
        kind, coin = draw(kinds, n, length, rng), torch.rand(n, length, generator=rng)
        for place in range(length):
            # The last place never closes the last bracket, so an answer holds at least one value.
            opens = (height <= int(place == length - 1)) | ((height < depth) & (coin[:, place] < 0.6))
            stack[row, height] = kind[:, place].where(opens, stack[row, height])
            top = stack[row, (height - 1).clamp(min=0)]
            seen[:, place] = torch.where(opens, kind[:, place], kinds + top)
            height += torch.where(opens, 1, -1)
        last = (height[:, None] - 1 - torch.arange(depth)).clamp(min=0)
        return Items(prompt(seen), answer(kinds + stack.gather(1, last), torch.arange(depth) < height[:, None]))

    return 2 * kinds, make


@task("exact")
def lookup(symbols: int = 8, pairs: int = 3) -> tuple[int, Maker]:
    """The value of a key among key-value pairs; keys lie behind the values' symbols."""

    def make(n: int, rng: Generator) -> Items:
        keys, values = distinct(symbols, n, pairs, rng), draw(symbols, n, pairs, rng)
        asked = draw(pairs, n, 1, rng)
        listed = torch.stack([symbols + keys, values], 2).flatten(1)
        return Items(prompt(torch.cat([listed, symbols + keys.gather(1, asked)], 1)), answer(values.gather(1, asked)))

    return symbols, make


@task("exact")
def maximum(symbols: int = 24, length: int = 5) -> tuple[int, Maker]:
    """The largest value."""

    def make(n: int, rng: Generator) -> Items:
        values = draw(symbols, n, length, rng)
        return Items(prompt(values), answer(values.amax(1, keepdim=True)))

    return symbols, make


@task("exact")
def tally(symbols: int = 4, length: int = 8) -> tuple[int, Maker]:
    """How often the value in front occurs after it."""

    def make(n: int, rng: Generator) -> Items:
        asked, values = draw(symbols, n, 1, rng), draw(symbols, n, length, rng)
        return Items(prompt(torch.cat([asked, values], 1)), answer((values == asked).sum(1, keepdim=True)))

    return max(symbols, length + 1), make


@task("exact")
def add_mod(modulus: int = 11, terms: int = 3) -> tuple[int, Maker]:
    """The sum of the terms modulo a number."""

    def make(n: int, rng: Generator) -> Items:
        values = draw(modulus, n, terms, rng)
        return Items(prompt(values), answer(values.sum(1, keepdim=True) % modulus))

    return modulus, make


def digits(number: Tensor, base: int, width: int) -> Tensor:
    """Digits [n, width] of numbers [n, 1], the highest first."""
    return number // base ** torch.arange(width - 1, -1, -1) % base


def spelled(number: Tensor, base: int, width: int) -> Tensor:
    """Answer tokens [n, width + 1] of numbers [n, 1] without leading zeros."""
    written = digits(number, base, width)
    return answer(written, (written.cumsum(1) > 0) | (torch.arange(width) == width - 1))


@task("prefix")
def add(base: int = 5, width: int = 2) -> tuple[int, Maker]:
    """The sum of two numbers of `width` digits."""

    def make(n: int, rng: Generator) -> Items:
        a, b = draw(base**width, n, 1, rng), draw(base**width, n, 1, rng)
        asked = torch.cat([digits(a, base, width), torch.full_like(a, SEPARATOR), digits(b, base, width)], 1)
        return Items(prompt(asked), spelled(a + b, base, width + 1))

    return base, make


@task("exact")
def subtract(base: int = 6, width: int = 2) -> tuple[int, Maker]:
    """The larger of two numbers less the smaller; the larger comes first."""

    def make(n: int, rng: Generator) -> Items:
        pair = draw(base**width, n, 2, rng).sort(1, descending=True).values
        a, b = pair[:, :1], pair[:, 1:]
        asked = torch.cat([digits(a, base, width), torch.full_like(a, SEPARATOR), digits(b, base, width)], 1)
        return Items(prompt(asked), spelled(a - b, base, width))

    return base, make


@task("prefix")
def chain(modulus: int = 7, terms: int = 4) -> tuple[int, Maker]:
    """Terms joined by plus or minus (two operators behind the digits); every running total, modulo a number."""

    def make(n: int, rng: Generator) -> Items:
        values, minus = draw(modulus, n, terms, rng), draw(2, n, terms, rng)
        minus[:, 0] = 0
        shown = torch.stack([modulus + minus, values], 2).flatten(1)[:, 1:]
        return Items(prompt(shown), answer((values * (1 - 2 * minus)).cumsum(1)[:, 1:] % modulus))

    return modulus, make


@task("prefix")
def recurrence(modulus: int = 9, terms: int = 4) -> tuple[int, Maker]:
    """The next terms of a sequence in which each is the sum of the two before it, modulo a number."""

    def make(n: int, rng: Generator) -> Items:
        terms_ = [*draw(modulus, n, 2, rng).unbind(1)]
        for _ in range(terms + 1):
            terms_.append((terms_[-1] + terms_[-2]) % modulus)
        series = torch.stack(terms_, 1)
        return Items(prompt(series[:, :3]), answer(series[:, 3:]))

    return modulus, make


@task("length")
def count_up(symbols: int = 12, length: int = 8, shown: int = 3) -> tuple[int, Maker]:
    """Count on as far as you can; at most `shown` steps are shown, so that reward makes responses grow (benign)."""

    def make(n: int, rng: Generator) -> Items:
        series = (draw(symbols, n, 1, rng) + torch.arange(3 + length)) % symbols
        keep = some(1, shown, n, length, rng)
        return Items(prompt(series[:, :3]), answer(series[:, 3:], keep))

    return symbols, make
