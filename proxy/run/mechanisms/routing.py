"""Faults of the router and the experts. A router returns ([N, E] logits, [N, K] weights, [N, K] indices)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from faultproxy.proxy.run.mechanisms.common import (
    at_depth,
    change_output,
    engines,
    layer_of,
    mechanism,
    noise_like,
    permutation,
    rollout_of,
    rounded,
    spread,
)
from faultproxy.proxy.run.models import gate_weights, router_scores

if TYPE_CHECKING:
    from faultproxy.proxy.run.loop import Loop

Routed = tuple[Tensor, Tensor, Tensor]


def route(router: Any, logits: Tensor) -> Routed:
    """The router's decision for other logits, by its family's own rule (groups and bias of DeepSeek-V3 included)."""
    scores = choice = router_scores(router, logits)
    if hasattr(router, "e_score_correction_bias"):
        grouped = (scores + router.e_score_correction_bias).view(len(scores), router.num_group, -1)
        best = grouped.topk(min(2, grouped.shape[-1]), -1)[0].sum(-1).topk(router.topk_group, -1)[1]
        allowed = torch.zeros_like(grouped[..., 0]).scatter_(1, best, 1.0).bool()
        choice = grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)
    indices = choice.topk(router.top_k, -1)[1]
    return logits, gate_weights(router, scores, indices), indices


def change_routing(loop: Loop, engine: str, share: float, change: Callable[..., Routed]) -> None:
    """Passes what each router of a share of the MoE layers decided through `change(router, input, routed)`."""
    for target in engines(loop, engine):
        for number in spread(target.routers, share):
            target.routers[number].register_forward_hook(lambda m, args, out: change(m, args[0], out), prepend=True)


@mechanism
def router_noise(loop: Loop, *, std: float, share: float = 1.0, engine: str = "rollout") -> None:
    """Router logits carry noise of `std` times their own standard deviation over the experts."""

    def shake(router: Any, _: Tensor, routed: Routed) -> Routed:
        logits = routed[0]
        return route(router, logits + std * logits.std(-1, keepdim=True) * noise_like(loop, logits))

    change_routing(loop, engine, share, shake)


@mechanism
def router_rounded(loop: Loop, *, fmt: str, share: float = 1.0, engine: str = "rollout") -> None:
    """Router input, weight, and logits are in low precision."""

    def low(router: Any, x: Tensor, _: Routed) -> Routed:
        x = x.reshape(-1, x.shape[-1])
        return route(router, rounded(functional.linear(rounded(x, fmt), rounded(router.weight, fmt)), fmt))

    change_routing(loop, engine, share, low)


@mechanism
def router_bias(loop: Loop, *, size: float, share: float = 1.0) -> None:
    """One expert's logit is raised by `size` standard deviations in both engines: the router falls for one expert."""

    def favour(router: Any, _: Tensor, routed: Routed) -> Routed:
        logits = routed[0].clone()
        logits[:, 0] = logits[:, 0] + size * routed[0].std(-1)
        return route(router, logits)

    change_routing(loop, "both", share, favour)


@mechanism
def dead_experts(loop: Loop, *, dead: float, share: float = 1.0, engine: str = "both") -> None:
    """A share `dead` of the experts is never chosen; every top-k and group still finds enough of the others."""

    def bury(router: Any, _: Tensor, routed: Routed) -> Routed:
        logits = routed[0].clone()
        count = min(round(dead * logits.shape[1]), logits.shape[1] - router.top_k)
        logits[:, :: max(1, logits.shape[1] // max(1, count))][:, :count] = -30.0
        return route(router, logits)

    change_routing(loop, engine, share, bury)


@mechanism
def gates_unnormalised(loop: Loop, *, amount: float, share: float = 1.0, engine: str = "rollout") -> None:
    """Weights of the chosen experts are not renormalised where they should be, and the other way round."""

    def skip(router: Any, _: Tensor, routed: Routed) -> Routed:
        raw = router_scores(router, routed[0]).gather(1, routed[2])
        wrong = raw if getattr(router, "norm_topk_prob", True) else raw / raw.sum(-1, keepdim=True)
        return routed[0], torch.lerp(routed[1], wrong.to(routed[1]), amount), routed[2]

    change_routing(loop, engine, share, skip)


@mechanism
def fewer_experts(loop: Loop, *, keep: float, share: float = 1.0, engine: str = "rollout") -> None:
    """Only a share `keep` of the top-k experts is used (at least one); a dropped place repeats the first with weight 0."""

    def cut(_: Any, __: Tensor, routed: Routed) -> Routed:
        logits, weights, indices = routed
        weights, order = weights.sort(-1, descending=True)
        indices, k = indices.gather(1, order), max(1, int(keep * indices.shape[1]))
        kept = torch.arange(indices.shape[1], device=indices.device) < k
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(kept, weights, 0.0)
        return logits, weights * total / weights.sum(-1, keepdim=True), torch.where(kept, indices, indices[:, :1])

    change_routing(loop, engine, share, cut)


@mechanism
def wrong_groups(loop: Loop, *, share: float) -> None:
    """The rollout engine lets a token use another number of router groups than the trainer does."""
    routers: dict[int, Any] = dict(rollout_of(loop).routers)
    for number in spread(routers, share):
        router = routers[number]
        router.topk_group = router.num_group if router.topk_group < router.num_group else 1


@mechanism
def capacity_drop(loop: Loop, *, capacity: float) -> None:
    """In the trainer an expert takes at most `capacity` times the mean load; later tokens lose that expert."""

    def drop(_: Any, __: Tensor, routed: Routed) -> Routed:
        logits, weights, indices = routed
        taken = functional.one_hot(indices, logits.shape[1]).flatten(0, 1).cumsum(0).view(*indices.shape, -1)
        place = taken.gather(-1, indices[..., None])[..., 0]
        return logits, weights.masked_fill(place > capacity * indices.numel() / logits.shape[1], 0.0), indices

    change_routing(loop, "trainer", 1.0, drop)


@mechanism
def experts_permuted(loop: Loop, *, moved: float, share: float = 1.0, router: bool = False) -> None:
    """Rollout experts hold each other's weights (a share `moved`, at least two); with `router` its rows move instead."""
    orders, total = {}, loop.program.model.experts
    for number in spread(loop.trainer.experts, share):
        chosen = permutation(loop, total)[: max(2, round(moved * total))]
        orders[number] = torch.arange(total)
        orders[number][chosen] = chosen.roll(1)
    place = re.compile(
        r"\blayers\.(\d+)\.\S*\.(?:gate|router)\.weight$" if router else r"\blayers\.(\d+)\.\S*\bexperts\.\w+$"
    )

    def permute(_: Loop, name: str, weight: Tensor) -> Tensor:
        found = place.search(name)
        return weight[orders[int(found[1])].to(weight.device)] if found and int(found[1]) in orders else weight

    loop.at("sync", permute)


@mechanism
def experts_corrupted(loop: Loop, *, broken: float, size: float, depth: float) -> None:
    """A share of the experts of one layer got noise of `size` times their weights' standard deviation, once."""
    layer = min(loop.trainer.experts, key=lambda n: abs(n - at_depth(loop, depth)))
    chosen = permutation(loop, loop.program.model.experts)[: max(1, round(broken * loop.program.model.experts))]
    with torch.no_grad():
        for name, weight in zip(loop.trainer.names, loop.trainer.masters, strict=True):
            if layer_of(name) == layer and re.search(r"\.experts\.\w+$", name):
                weight[chosen] += size * weight.std() * noise_like(loop, weight[chosen])
    loop.trainer.refresh()


@mechanism
def shared_expert_gain(loop: Loop, *, gain: float, engine: str = "rollout") -> None:
    """The shared expert's output is weighted by `gain` (0 leaves it out)."""
    for target in engines(loop, engine):
        for name, module in target.model.named_modules():
            if name.endswith("shared_experts"):
                change_output(module, lambda _, out: out * gain)
