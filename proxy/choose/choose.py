"""Which experts of each layer a proxy keeps: one interface for every method of docs/pruning.md.

The number a layer and a group keeps is settled first, by the same check that a cut makes, so that what cannot be cut is refused before
anything is read. Implicated experts are kept whatever the method. Ties go to the lower number; the same input gives the same choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.checkpoint import Checkpoint
from faultproxy.proxy.choose.calibration import Calibration, Routing
from faultproxy.proxy.choose.medoids import k_medoids
from faultproxy.proxy.choose.stored import Stored
from faultproxy.proxy.choose.views import fuse, length, steady, views
from faultproxy.proxy.cut import cut_model
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.shape import ModelShape

#: The experts that stay of a group, given the group, those of it that must stay, and how many stay.
Pick = Callable[[range, Sequence[int], int], list[int]]


@dataclass(frozen=True)
class Chosen:
    """Kept experts by original layer, ascending; the method that chose (`all`: there was nothing to choose), and why in one line."""

    experts: dict[int, tuple[int, ...]]
    method: str
    why: str


@dataclass(frozen=True)
class _Quota:
    """Of one layer: experts of each group, how many of them stay, and which must."""

    size: int
    counts: tuple[int, ...]
    forced: tuple[int, ...]

    def apply(self, pick: Pick) -> tuple[int, ...]:
        groups = [range(n * self.size, (n + 1) * self.size) for n in range(len(self.counts))]
        forced = [[e for e in self.forced if e in group] for group in groups]
        return tuple(sorted(e for given in zip(groups, forced, self.counts, strict=True) for e in pick(*given)))


def choose_experts(
    checkpoint: Checkpoint, shape: ModelShape, recipe: Recipe, table: Calibration | None = None
) -> Chosen:
    """The experts that `recipe` asks to keep, by layer; reads no more of the checkpoint than its method needs.

    Raises:
        InputError: The recipe cannot be met (the message names the nearest that can), or its method lacks what it needs.
    """
    layers = recipe.layers or tuple(range(shape.layers))
    sparse = [n for n in layers if 0 <= n < shape.layers and shape.experts[n]]
    if odd := sorted((set(recipe.budgets) | set(recipe.keep)) - set(sparse)):
        raise InputError(f"layers {odd[:20]} have no experts to choose from, or are dropped; those kept: {sparse[:99]}")
    quotas = {n: _quota(shape, recipe, n) for n in sparse}
    kept = {n: quota.apply(_by_score(range(0, -shape.experts[n], -1))) for n, quota in quotas.items()}
    cut_model(checkpoint.config, list(layers), kept)
    cut = [n for n in sparse if len(kept[n]) < shape.experts[n]]
    if not cut:
        return Chosen(kept, "all", "every expert is kept" if sparse else "no kept layer has experts")
    routing = table.layers if table is not None else {}
    for n in cut if table is not None else ():
        if (held := len(routing[n].frequency) if n in routing else 0) != shape.experts[n]:
            raise InputError(
                f"the table has {held} experts of layer {n}, the model {shape.experts[n]}; is it another's?"
            )
    stored = Stored(checkpoint, shape)
    method, why = _method(stored, recipe, table, cut)
    if forced := sum(map(len, recipe.keep.values())):
        why += f"; {forced} named experts are kept whatever it says"
    picks = {n: _pick(method, stored, routing.get(n), n, recipe.seed) for n in cut}
    return Chosen(kept | {n: quotas[n].apply(pick) for n, pick in picks.items()}, method, why)


def _quota(shape: ModelShape, recipe: Recipe, layer: int) -> _Quota:
    experts, forced = shape.experts[layer], recipe.keep.get(layer, ())
    count = recipe.budgets.get(layer, experts if recipe.experts is None else recipe.experts)
    if wrong := [e for e in forced if not 0 <= e < experts]:
        raise InputError(f"layer {layer} has experts 0 to {experts - 1}; {wrong[:20]} cannot be kept")
    if not 0 < count <= experts:
        raise InputError(f"layer {layer} has {experts} experts, not {count}; keep {min(max(count, 1), experts)}")
    groups = shape.groups if experts % shape.groups == 0 else 1
    size = experts // groups
    counts = tuple(count // groups + (n < count % groups) for n in range(groups))
    asked = [sum(e // size == n for e in forced) for n in range(groups)]
    if any(wanted > stay for wanted, stay in zip(asked, counts, strict=True)):
        raise InputError(
            f"layer {layer}: {max(asked)} experts to keep are of one {'group' if groups > 1 else 'layer'}, of which {min(counts)} stay; "
            f"keep {max(asked) * groups} experts or more"
        )
    return _Quota(size, counts, tuple(forced))


def _method(stored: Stored, recipe: Recipe, table: Calibration | None, cut: list[int]) -> tuple[str, str]:
    """The method to use and why, from the one asked for and what there is to use."""
    asked, more, local = recipe.method, "", stored.checkpoint.source.local is not None
    norms = table is not None and all(table.layers[n].gate_norm is not None for n in cut)
    if asked == "auto":
        usual = (
            ("router", "the best measured") if stored.has_routers(cut) else ("first", "as there is no router to read")
        )
        asked, why = ("gate-norm" if norms else "frequency", "the best measured") if table is not None else usual
        more = f", {why}"
    if (table is None and asked in ("frequency", "gate-norm")) or (asked == "gate-norm" and not norms):
        raise InputError(
            f"--method {asked} needs a table that has it: `faultproxy proxy calibrate` makes one; or take auto"
        )
    if asked == "weights" and not local:
        raise InputError(
            "--method weights reads every expert, most of the model; take --method router, or a local copy"
        )
    if asked == "weights" and (reason := stored.undecodable(cut)):
        asked, more = "router", f", as {reason}"
    tokens = f" over {table.tokens:,} tokens" if table is not None and table.tokens else ""
    sizes = "sizes of weights" if local and asked == "fused" and not stored.undecodable(cut) else "no weights"
    said = {
        "frequency": f"tokens an expert got{tokens}",
        "gate-norm": f"gate times output norm{tokens}",
        "router": "length of router rows less their mean",
        "weights": "mean over root mean square of weights",
        "fused": f"K-Medoids over router rows, {f'routing{tokens}' if table is not None else sizes}",
        "random": f"drawn with seed {recipe.seed}",
        "first": "lowest numbers",
    }
    return asked, f"{asked}: {said[asked]}{more}"


def _pick(method: str, stored: Stored, routing: Routing | None, layer: int, seed: int) -> Pick:
    """The choice in the groups of one layer."""
    experts = stored.shape.experts[layer]
    if method == "fused":
        return _fused(stored, routing, layer)
    if method == "first":
        return _by_score(range(0, -experts, -1))
    if method == "random":
        drawn = random.Random(f"{seed} {layer}")
        return _by_score([drawn.random() for _ in range(experts)])
    if method == "weights":
        absolute, square, count = stored.sums(layer)
        count = count.clip(1.0)
        # AIMER (arXiv 2603.18492): experts whose weights are all of one size are pruned first.
        return _by_score(-steady(absolute / count / (square / count).clip(1e-300) ** 0.5))
    if method == "router":
        return _by_score(steady(length(stored.router(layer))))
    assert routing is not None
    return _by_score(steady(routing.frequency if method == "frequency" else routing.gate_norm))


def _by_score(score: Any) -> Pick:
    """The highest scores of a group."""

    def pick(group: range, forced: Sequence[int], count: int) -> list[int]:
        free = sorted((e for e in group if e not in forced), key=lambda e: (-score[e], e))
        return [*forced, *free[: count - len(forced)]]

    return pick


def _fused(stored: Stored, routing: Routing | None, layer: int) -> Pick:
    """Medoids of a group, over all views there are, weighted by what the detour of an expert's tokens costs."""
    rows = stored.router(layer) if stored.has_routers([layer]) else None
    if not (found := views(rows, routing)):
        raise InputError(
            f"layer {layer}: neither router nor table says how alike its experts are; take frequency or first"
        )
    if routing is None:
        worth = length(rows)
        if stored.checkpoint.source.local is not None and not stored.undecodable([layer]):
            _, square, count = stored.sums(layer)
            worth = worth * square / count.clip(1.0)
        # Length of the row stands for an expert's tokens, size of its weights for its output; the power is the lab's best.
        start = worth = steady(worth) ** 4
    else:
        start, worth = routing.frequency, routing.frequency if routing.gate_norm is None else routing.gate_norm
    # A trace of worth for experts without tokens: one that is left over goes to what it is most alike.
    distance, worth, begin = fuse(found), steady(worth) + 1e-9, _by_score(steady(start))

    def pick(group: range, forced: Sequence[int], count: int) -> list[int]:
        own = slice(group.start, group.stop)
        first = [e - group.start for e in begin(group, forced, count)]
        return [group.start + e for e in k_medoids(distance[own, own], first, len(forced), worth[own])[0]]

    return pick
