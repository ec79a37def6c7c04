"""Cuts a model down to chosen layers and experts: what becomes of each tensor, and the config.json of what is left.

Nothing is loaded: a decision is a new name and row ranges of one axis, so that a copy of bytes suffices. Layers and experts keep their
order. Frameworks accept some cuts and then compute something else: groups that a reshape mixes, a top-k that picks masked experts,
positions whose period no longer fits. Such a cut is refused with the nearest that is right. As a last check the edited config is read
again and must describe exactly the layers and experts that were kept. Layers of multi-token prediction are always dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.edit import edit_config
from faultproxy.proxy.families import Config
from faultproxy.proxy.shape import ModelShape, layer_list, place, places, read_shape


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a tensor: dropped (`name` empty), kept whole (no `runs`), or cut to the row ranges `runs` of `axis`."""

    name: str = ""
    axis: int = 0
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def action(self) -> str:
        """`drop`, `keep`, or `slice`."""
        return "drop" if not self.name else "slice" if self.runs else "keep"


@dataclass(frozen=True)
class Cut:
    """Kept layers and, by original layer, kept experts of a model; the config that describes them, and what to know about it."""

    shape: ModelShape
    layers: tuple[int, ...]
    experts: Mapping[int, tuple[int, ...]]
    config: Config
    warnings: tuple[str, ...]

    @cached_property
    def new_layer(self) -> dict[int, int]:
        """New number of each kept layer."""
        return {old: new for new, old in enumerate(self.layers)}

    @cached_property
    def new_expert(self) -> dict[int, dict[int, int]]:
        """By original layer, new number of each kept expert, experts without weights included."""
        zero = self.shape.zero_experts
        every = {
            n: (*kept, *range(self.shape.experts[n], self.shape.experts[n] + zero)) for n, kept in self.experts.items()
        }
        return {n: {old: new for new, old in enumerate(ids)} for n, ids in every.items()}


def cut_model(config: Config, layers: Sequence[int], experts: Mapping[int, Sequence[int]] | None = None) -> Cut:
    """The cut of a model to `layers`, and to `experts` of each layer (original numbers; a layer that is not named keeps all).

    Raises:
        InputError: The cut cannot be made or would compute something else; the message names the nearest that can.
    """
    shape = read_shape(config)
    if not layers or list(layers) != sorted(set(layers) & set(range(shape.layers))):
        raise InputError(
            f"keep at least one layer of 0 to {shape.layers - 1}, in order, each once; got {list(layers)[:20]}"
        )
    given = experts or {}
    if odd := sorted(set(given) - (set(layers) & set(shape.sparse))):
        raise InputError(f"layers {odd[:20]} have no experts or are not kept; with experts: {shape.sparse[:99]}")
    kept = {n: tuple(given.get(n, range(shape.experts[n]))) for n in layers if shape.experts[n]}
    warnings: list[str] = []
    groups = _check_experts(shape, kept, warnings)
    _check_attention(shape, layers)
    _check_lists(config, shape, layers, warnings)
    made, doubts = edit_config(config, shape, layers, kept, groups)
    again = read_shape(made, shape.family)
    _check_pattern(shape, layers, again)
    if again.experts != tuple(len(kept.get(n, ())) for n in layers) or (again.groups, again.top_groups) != groups:
        raise InputError(f"row {shape.family.name} is wrong: the edited config gives {again.experts} experts")
    return Cut(shape, tuple(layers), kept, made, (*warnings, *doubts))


def decide(cut: Cut, name: str, tensor_shape: Sequence[int]) -> Decision:
    """What becomes of the tensor of this name and shape.

    Raises:
        InputError: The name or shape does not fit the family; slicing it by guess would mix experts.
    """
    found = place(cut.shape, name)
    if found.kind == "global":
        return Decision(name)
    if found.kind == "mtp" or found.layer not in cut.new_layer:
        return Decision()
    layer, parts = found.layer, cut.shape.family.layer_name.fullmatch(name)
    assert layer is not None and parts
    renamed = f"{parts[1]}.{cut.new_layer[layer]}.{parts[3]}"
    # A scale for a whole fused tensor has no axis of experts.
    scalar = found.kind == "fused" and found.companion and all(size == 1 for size in tensor_shape)
    if found.kind == "table" and len(cut.experts.get(layer, ())) < cut.shape.experts[layer]:
        raise InputError(f"layer {layer} routes by a table of token ids; keep all its experts, or cut layers")
    if layer not in cut.experts or scalar or found.kind in ("layer", "shared", "table"):
        return Decision(renamed)
    new, count = cut.new_expert[layer], cut.shape.experts[layer] + cut.shape.zero_experts
    if found.expert is not None:
        if found.expert >= count:
            raise InputError(f"{visible(name)} is expert {found.expert} of {count}; config.json is another model's")
        path = f"{cut.shape.family.block}.experts."
        inside = renamed.replace(f"{path}{found.expert}.", f"{path}{new.get(found.expert)}.", 1)
        return Decision(inside) if found.expert in new else Decision()
    kept = list(new) if found.kind == "router" else list(cut.experts[layer])
    count = count if found.kind == "router" else cut.shape.experts[layer]
    size = tensor_shape[found.axis] if found.axis < len(tensor_shape) else 0
    rows = size // count if found.stacked else 1
    if not size or size != rows * count:
        raise InputError(f"{visible(name)}: axis {found.axis} must count {count} experts, not {size}")
    return Decision(renamed, found.axis, _runs(kept, rows))


def check_complete(cut: Cut, names: Iterable[str]) -> None:
    """Refuses a checkpoint that lacks the router or a kept expert of a kept layer."""
    routers: set[int] = set()
    seen: dict[int, set[int]] = {}
    for found in (place(cut.shape, name) for name in names):
        if found.kind == "router" and found.layer is not None:
            routers.add(found.layer)
        elif found.kind in ("expert", "fused") and found.layer is not None:
            seen.setdefault(found.layer, set()).update(
                cut.experts.get(found.layer, ()) if found.expert is None else (found.expert,)
            )
    for layer, kept in cut.experts.items():
        if layer not in routers or set(kept) - seen.get(layer, set()):
            lacking = "router" if layer not in routers else f"experts {sorted(set(kept) - seen.get(layer, set()))[:20]}"
            raise InputError(f"the checkpoint has no {lacking} of layer {layer}; is a shard missing?")


def _runs(kept: Sequence[int], rows: int) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for n in kept:
        if runs and runs[-1][1] == n * rows:
            runs[-1] = (runs[-1][0], (n + 1) * rows)
        else:
            runs.append((n * rows, (n + 1) * rows))
    return tuple(runs)


def _check_experts(shape: ModelShape, kept: Mapping[int, tuple[int, ...]], warnings: list[str]) -> tuple[int, int]:
    """The number of groups, and of groups chosen, that are left."""
    family = shape.family
    for layer, ids in kept.items():
        if list(ids) != sorted(set(ids) & set(range(shape.experts[layer]))):
            raise InputError(
                f"layer {layer}: keep experts of 0 to {shape.experts[layer] - 1}, each once, in order; got {ids[:20]}"
            )
        floor = max(shape.top_k[layer], 2 if family.group_score == "top2" else 1)
        if len(ids) < floor:
            raise InputError(f"layer {layer} keeps {len(ids)} experts; each token needs {floor}; keep at least {floor}")
    cut = [layer for layer, ids in kept.items() if len(ids) < shape.experts[layer]]
    if not cut:
        return shape.groups, shape.top_groups
    if family.whole_experts:
        raise InputError(f"experts of {family.name} cannot be cut: {family.whole_experts}; keep all and cut layers")
    if hashed := sorted(set(cut) & set(shape.hashed)):
        free = [n for n in shape.sparse if n not in shape.hashed]
        raise InputError(f"layers {hashed} route by a table of token ids; keep all experts, or layers of {free}")
    counts = {layer: len(ids) for layer, ids in kept.items()}
    if len(set(counts.values())) > 1 and len(set(shape.experts) - {0}) == 1:
        least, most = min(counts.values()), max(counts.values())
        raise InputError(f"one expert count holds for all layers, not {counts}; keep {most} in each, or {least}")
    if any(counts[layer] == shape.top_k[layer] for layer in cut):
        warnings.append("as many experts as each token uses are kept: the router no longer chooses")
    if not shape.renormalised:
        warnings.append(
            "router weights are a softmax over all experts, not renormalised: those of kept experts grow by the share of the dropped; "
            "to keep them, keep all experts and cut layers"
        )
    return _check_groups(shape, kept, warnings) if shape.groups > 1 else (shape.groups, shape.top_groups)


def _check_groups(shape: ModelShape, kept: Mapping[int, tuple[int, ...]], warnings: list[str]) -> tuple[int, int]:
    least, tops, uses = 2 if shape.family.group_score == "top2" else 1, shape.top_groups, set()
    for layer, ids in kept.items():
        size, rest = divmod(shape.experts[layer], shape.groups)
        held = [sum(n // size == group for n in ids) for group in range(shape.groups)] if not rest else []
        used = [count for count in held if count]
        tops = max(1, shape.top_groups * len(used) // shape.groups)
        uses.add(len(used))
        need = max(least, ceil(shape.top_k[layer] / tops))
        if len(set(used)) != 1 or used[0] < need or (len(used) < shape.groups and shape.family.grouped_by_top_k):
            least_of_all = max(least, ceil(shape.top_k[layer] / shape.top_groups))
            each = min(size, max(least_of_all, round(len(ids) / shape.groups)))
            raise InputError(
                f"layer {layer} keeps {held or len(ids)} of its {shape.groups} groups, of which {shape.top_groups} are chosen for top-"
                f"{shape.top_k[layer]}; the reshape into groups needs the same number of each, at least {least_of_all}: keep {each} of each"
            )
    if len(uses) != 1:
        raise InputError(f"layers keep experts of {sorted(uses)} groups; keep {max(uses)} groups in each")
    if (left := uses.pop()) < shape.groups:
        warnings.append(f"groups are dropped ({left} of {shape.groups} left, {tops} chosen): routing changes")
    return (left, tops) if left < shape.groups else (shape.groups, shape.top_groups)


def _check_attention(shape: ModelShape, layers: Sequence[int]) -> None:
    attends = [n for n, kind in enumerate(shape.attention) if kind in shape.family.attends]
    if attends and not set(attends) & set(layers):
        near = min(attends, key=lambda n: min(abs(n - kept) for kept in layers))
        raise InputError(f"no kept layer has attention that caches keys; keep layer {near} too")


def _check_lists(config: Config, shape: ModelShape, layers: Sequence[int], warnings: list[str]) -> None:
    """What a layer takes from its number, or from a layer before it."""
    family = shape.family
    if len(layers) < shape.layers and family.listed and not places(config, family, family.listed):
        raise InputError(
            f"without {' or '.join(family.listed)} in its config.json {family.name} decides by position what each layer is, and a cut would "
            "change it; write the list there, or keep all layers and cut experts"
        )
    owner = -1
    for n, what in enumerate(layer_list(config, family, family.borrows, shape.layers)):
        if what not in ("shared", "S"):
            owner = n
        elif n in layers and owner not in layers:
            raise InputError(f"layer {n} attends to the tokens that layer {owner} picks; keep layer {owner} too")
    if len(layers) < shape.layers and any(shape.attention[n] in family.depth_scaled for n in layers if shape.attention):
        warnings.append(
            "linear attention decays by depth: kept layers compute something else unless the checkpoint stores slope_rate"
        )


def _check_pattern(shape: ModelShape, layers: Sequence[int], again: ModelShape) -> None:
    def kind(of: ModelShape, n: int) -> tuple[bool, str]:
        return bool(of.experts[n]), of.attention[n] if of.attention else ""

    if [kind(shape, n) for n in layers] == [kind(again, n) for n in range(len(layers))]:
        return
    # Positions take layers of their kind, nearest first, but none so late that a later position finds no layer.
    latest: list[int] = []
    end = shape.layers
    for n in reversed(range(len(layers))):
        end = max((m for m in range(end) if kind(shape, m) == kind(again, n)), default=-1)
        latest.insert(0, end)
    near: list[int] = []
    for n, wanted in enumerate(layers):
        free = [m for m in range(near[-1] + 1 if near else 0, latest[n] + 1) if kind(shape, m) == kind(again, n)]
        near += sorted(free, key=lambda m: (abs(m - wanted), m))[:1]
    attends = [n for n, what in enumerate(shape.attention) if what in shape.family.attends]
    if attends and not set(again.attention) & set(shape.family.attends):
        hint = f"keep at least {attends[0] + 1} layers: position {attends[0]} is the first that caches keys"
    else:
        hint = f"keep {near}" if len(near) == len(layers) else f"keep fewer than {len(layers)} layers"
    raise InputError(
        f"{shape.family.name} decides by position which layers have experts or attention, and layers {list(layers)[:50]} would change "
        f"their kind; {hint}"
    )
