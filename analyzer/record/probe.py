"""What a model does inside, by layer: activations, routing, trainer against rollout, gradients, updates, moments.

Hooks keep references while `capture()` is open and compute nothing; each function below batches its arithmetic over all
layers and brings one small tensor to the host. Shapes: B answers, T positions of one forward, P prompt tokens, R response
tokens, H hidden, N = B * T tokens, E experts, K experts a token uses, L layers. Norms accumulate in float32, so fp16
tensors do not overflow them. A captured activation lives until its `Seen` goes, and capture does not follow activation
checkpointing, which runs the forward again inside backward: close it before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import hypot, inf, isfinite, isnan, nan, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: Parameters by decoder layer; -1 holds those outside the layers (embedding, final norm, head).
Groups = Mapping[int, Sequence[Tensor]]
#: Numbers by signal and layer: what `Recorder.log_layers` takes.
ByLayer = dict[str, dict[int, float]]


@dataclass
class Seen:
    """What the forwards of one capture left, by layer and in their order: [B, T, H]; router logits [N, E], indices [N, K]."""

    hidden: dict[int, list[Tensor]] = field(default_factory=dict)
    logits: dict[int, list[Tensor]] = field(default_factory=dict)
    indices: dict[int, list[Tensor]] = field(default_factory=dict)

    def take(self, rows: Tensor) -> None:
        """Keep these of the B rows, in this order; a row may come several times."""
        for layer, parts in self.hidden.items():
            size = len(parts[0])
            self.hidden[layer] = [part[rows] for part in parts]
            for held in (self.logits, self.indices):
                if layer in held:
                    held[layer] = [part.unflatten(0, (size, -1))[rows].flatten(0, 1) for part in held[layer]]


class Probe:
    """Watches decoder layers and routers; a router returns (logits [N, E], weights [N, K], indices [N, K])."""

    def __init__(self, layers: Sequence[nn.Module], routers: Mapping[int, nn.Module] | None = None) -> None:
        self.layers, self.routers = list(layers), dict(routers or {})

    @contextmanager
    def capture(self) -> Iterator[Seen]:
        """Collect the outputs of every forward until the end of the block.

        Hooks are added here, behind those that are there already, so that what those change is what is seen.
        """
        seen = Seen()
        handles = [
            module.register_forward_hook(partial(_keep_hidden, seen, layer)) for layer, module in enumerate(self.layers)
        ] + [module.register_forward_hook(partial(_keep_routes, seen, layer)) for layer, module in self.routers.items()]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def _keep_hidden(seen: Seen, layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
    hidden = output[0] if isinstance(output, tuple) else output
    seen.hidden.setdefault(layer, []).append(hidden.detach())


def _keep_routes(seen: Seen, layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
    logits, _, indices = output
    seen.logits.setdefault(layer, []).append(logits.detach())
    seen.indices.setdefault(layer, []).append(indices)


def _norms(tensors: Sequence[Tensor], order: float = 2.0) -> Tensor:
    """The norm of each tensor as float32 [n]."""
    return torch.stack(torch._foreach_norm(list(tensors), order, dtype=torch.float32))


def _joined(norms: Collection[float]) -> float:
    """The norm of a whole from those of its parts; NaN wins over infinity, which `hypot` would prefer."""
    return nan if any(map(isnan, norms)) else hypot(*norms)


def activation_stats(seen: Seen) -> dict[str, list[float]]:
    """act_absmax, act_norm (root mean square), nonfinite_act_frac (share of elements) of each layer, first to last."""
    layers = sorted(seen.hidden)
    tensors = [tensor for layer in layers for tensor in seen.hidden[layer]]
    norms, peaks = torch.stack([_norms(tensors), _norms(tensors, inf)]).tolist()
    bad = [0] * len(tensors)
    if not all(map(isfinite, peaks)):  # counting is the dear part, so only when there is something to count
        bad = torch.stack([(~tensor.isfinite()).sum() for tensor in tensors]).tolist()
    found: dict[str, list[float]] = {"act_absmax": [], "act_norm": [], "nonfinite_act_frac": []}
    end = 0
    for layer in layers:
        own = slice(end, end := end + len(seen.hidden[layer]))
        size = sum(tensor.numel() for tensor in tensors[own])
        found["act_absmax"].append(nan if any(map(isnan, peaks[own])) else max(peaks[own]))
        found["act_norm"].append(_joined(norms[own]) / sqrt(size))
        found["nonfinite_act_frac"].append(sum(bad[own]) / size)
    return found


def routing_stats(seen: Seen) -> tuple[ByLayer, dict[int, list[float]]]:
    """Statistics of the routers by layer, and the load of every expert; layers without a router are not in them.

    router_entropy: mean over tokens of the entropy of softmax(logits), nats. The load is an expert's share of the N * K
    assignments; moe_load_cv: its standard deviation over its mean; moe_max_vio: its maximum times E, minus 1 (MaxVio of
    Wang et al., arXiv:2408.15664); moe_dead_frac: share of experts without a token.
    """
    layers = sorted(seen.logits)
    if not layers:
        return {}, {}
    logits = torch.stack([torch.cat(seen.logits[layer]) for layer in layers]).float()  # [L, N, E]
    experts = logits.shape[-1]
    log_p = logits.log_softmax(-1)
    entropy = -torch.xlogy(log_p.exp(), log_p.exp()).sum(-1).mean(-1)
    indices = torch.stack([torch.cat(seen.indices[layer]) for layer in layers]).flatten(1).long()  # [L, N * K]
    load = logits.new_zeros(len(layers), experts).scatter_add_(
        1, indices, torch.ones_like(indices, dtype=torch.float32)
    )
    load /= indices.shape[1]
    mean = 1.0 / experts
    cv = (load - mean).square().mean(-1).sqrt() / mean
    vio, dead = load.amax(-1) / mean - 1.0, (load == 0).float().mean(-1)
    rows = torch.cat([torch.stack([entropy, cv, vio, dead], 1), load], 1).tolist()
    names = ("router_entropy", "moe_load_cv", "moe_max_vio", "moe_dead_frac")
    stats = {name: {layer: row[at] for layer, row in zip(layers, rows, strict=True)} for at, name in enumerate(names)}
    return stats, {layer: row[len(names) :] for layer, row in zip(layers, rows, strict=True)}


def compare(trainer: Seen, rollout: Seen, prompt_length: int, mask: Tensor) -> ByLayer:
    """Trainer against rollout on the same response tokens, by layer. `mask` is [B, R].

    act_norm_ratio: root mean square of the rollout's activations over the trainer's. topk_overlap: mean share of the K
    experts of a token that both engines chose (layers with a router). The rollout ran [B, P], then single tokens; the
    trainer ran [chunk, P + R], so its chunks join along B. Token i of the response is predicted at position P - 1 + i.
    """
    rows, columns = mask.nonzero(as_tuple=True)
    columns = columns + (prompt_length - 1)
    layers, routed = sorted(trainer.hidden), sorted(set(trainer.indices) & set(rollout.indices))
    here = [torch.cat(trainer.hidden[layer], 0)[rows, columns] for layer in layers]
    there = [torch.cat(rollout.hidden[layer], 1)[rows, columns] for layer in layers]
    found = [_norms(there) / _norms(here)]
    if routed:
        shapes = [[tensor.shape[:2] for tensor in seen.hidden[layers[0]]] for seen in (trainer, rollout)]
        chosen = torch.stack([_routes(trainer.indices[layer], shapes[0], 0)[rows, columns] for layer in routed])
        sampled = torch.stack([_routes(rollout.indices[layer], shapes[1], 1)[rows, columns] for layer in routed])
        found.append((chosen.unsqueeze(-1) == sampled.unsqueeze(-2)).any(-1).float().mean((1, 2)))
    numbers = torch.cat(found).tolist()
    result: ByLayer = {"act_norm_ratio": dict(zip(layers, numbers, strict=False))}
    if routed:
        result["topk_overlap"] = dict(zip(routed, numbers[len(layers) :], strict=True))
    return result


def _routes(indices: Sequence[Tensor], shapes: Sequence[Sequence[int]], dim: int) -> Tensor:
    """Indices [N, K] of each forward joined along the batch (dim 0) or the positions (dim 1): [B, T, K]."""
    return torch.cat([part.view(*shape, -1) for part, shape in zip(indices, shapes, strict=True)], dim)


class GradientStats(NamedTuple):
    """Gradient norms by layer and of the whole model; shares of its elements that are not finite or exactly zero."""

    grad_norm: dict[int, float]
    total: float
    nonfinite_grad_frac: float
    zero_grad_frac: float


def gradient_stats(groups: Groups) -> GradientStats:
    """Read `.grad` of every parameter that wants one; a missing gradient is a zero one, for its parameter learns nothing."""
    owned = [(layer, p) for layer, group in groups.items() for p in group if p.requires_grad]
    size = sum(p.numel() for _, p in owned)
    held = [(layer, p.grad.detach()) for layer, p in owned if p.grad is not None]
    if not held:
        return GradientStats({layer: 0.0 for layer in groups if layer >= 0}, 0.0, 0.0, 1.0 if size else 0.0)
    grads = [grad for _, grad in held]
    counts = torch.stack([torch.count_nonzero(grad) for grad in grads]).double()
    norms, nonzero = torch.stack([_norms(grads).double(), counts]).tolist()
    by_layer = _by_layer(groups, [layer for layer, _ in held], norms)
    total = _joined(by_layer.values())
    bad = 0
    if not isfinite(total):
        bad = int(torch.stack([(~grad.isfinite()).sum() for grad in grads]).sum())
    return GradientStats(
        {layer: norm for layer, norm in by_layer.items() if layer >= 0}, total, bad / size, 1.0 - sum(nonzero) / size
    )


def _by_layer(groups: Groups, owners: Iterable[int], norms: Iterable[float]) -> dict[int, float]:
    """Norms of tensors joined to one a layer."""
    parts: dict[int, list[float]] = {layer: [] for layer in groups}
    for layer, norm in zip(owners, norms, strict=True):
        parts[layer].append(norm)
    return {layer: _joined(part) for layer, part in parts.items()}


class UpdateMeter:
    """Measures an optimiser step: |change of the weights| / |weights before it| by layer. Holds a copy of the weights."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._owners = [layer for layer, group in groups.items() for _ in group]
        self._weights = [p.detach() for group in groups.values() for p in group]
        self._before = [torch.empty_like(weight) for weight in self._weights]

    def before(self) -> None:
        """Call right before the optimiser step."""
        torch._foreach_copy_(self._before, self._weights)

    def after(self) -> tuple[ByLayer, float]:
        """Call right after it: `update_ratio` by layer, and the norm of all weights now (`params_norm`)."""
        held = _norms(self._before)
        torch._foreach_sub_(self._before, self._weights)
        before, change, now = torch.stack([held, _norms(self._before), _norms(self._weights)]).tolist()
        weights, changes = (_by_layer(self._groups, self._owners, norms) for norms in (before, change))
        ratios = {layer: changes[layer] / weights[layer] for layer in self._groups if layer >= 0 and weights[layer]}
        return {"update_ratio": ratios}, _joined(now)

    def change(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """After `after()`: what the step added to these of the measured weights, in their order."""
        place = {weight.data_ptr(): at for at, weight in enumerate(self._weights)}
        return [-self._before[place[weight.data_ptr()]] for weight in weights]


#: Names of the first moment in the state of torch's optimisers; of the second, Adam's only.
_MOMENTS = {"moment1_norm": ("exp_avg", "momentum_buffer"), "moment2_norm": ("exp_avg_sq",)}


def moments(optimiser: Any, groups: Groups) -> ByLayer:
    """moment1_norm, moment2_norm by layer, of one optimiser or a sequence of them (Muon beside AdamW)."""
    several = optimiser if isinstance(optimiser, (list, tuple)) else [optimiser]
    states = {p: state for one in several for p, state in one.state.items()}
    result: ByLayer = {}
    for signal, names in _MOMENTS.items():
        held = [
            (layer, states[p][name])
            for layer, group in groups.items()
            for p in group
            for name in names
            if layer >= 0 and states.get(p, {}).get(name) is not None
        ]
        if held:
            norms = _by_layer(groups, [layer for layer, _ in held], _norms([moment for _, moment in held]).tolist())
            result[signal] = {layer: norms[layer] for layer, _ in held}
    return result
