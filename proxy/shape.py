"""What one model's config.json says of its layers and experts, and what each of its tensors is, by the row of its family.

A number that a config gives under several names, or both on top and in a nested text_config, must be the same everywhere: frameworks
read different ones (transformers 5.24 saves qwen3_moe with num_local_experts; 4.57 reads that file with its default of 128), so a
stale alias is refused and never resolved by guessing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.families import Config, Family, Keys, companions, find_family, holders

#: Ten times what public models have (126 layers), and four times (512 experts): a config is not to decide how long it takes.
MAX_LAYERS, MAX_EXPERTS = 1000, 2048


@dataclass(frozen=True, slots=True)
class Place:
    """What a tensor is: `router`, `expert`, `fused`, `table`, `shared`, `layer`, `mtp`, or `global` (outside of all layers)."""

    kind: str
    layer: int | None = None
    expert: int | None = None
    part: str = ""
    companion: str = ""
    axis: int = 0
    stacked: bool = False


@dataclass(frozen=True)
class ModelShape:
    """What a config says of its layers and experts; tuples have one entry a layer, 0 experts (and top-k) for a dense one."""

    family: Family
    layers: int
    experts: tuple[int, ...]
    top_k: tuple[int, ...]
    attention: Keys
    hashed: tuple[int, ...]
    groups: int
    top_groups: int
    zero_experts: int
    mtp_layers: int
    renormalised: bool
    quantisation: str

    @cached_property
    def placed(self) -> dict[str, Place]:
        """What `place` has found, by name: choosing, cutting, and checking ask for each tensor again."""
        return {}

    @property
    def sparse(self) -> tuple[int, ...]:
        """The layers that have experts."""
        return tuple(n for n, experts in enumerate(self.experts) if experts)


def places(config: Config, family: Family, keys: Keys) -> list[tuple[str, Config, str]]:
    """Every place where a config gives one of the keys and is not null: (dotted path, dict, last key)."""
    found = []
    for path, holder in holders(config, family.nested):
        for key in keys:
            *way, last = key.split(".")
            inner: Any = holder
            for step in way:
                inner = inner.get(step) if isinstance(inner, dict) else None
            if isinstance(inner, dict) and inner.get(last) is not None:
                found.append((path + key, inner, last))
    return found


def value(config: Config, family: Family, keys: Keys) -> Any:
    """What a config gives under any of the keys, else the family's default, else None.

    Raises:
        InputError: Two keys give different values; the message has all of them.
    """
    found = [(path, holder[last]) for path, holder, last in places(config, family, keys)]
    if any(other != found[0][1] for _, other in found):
        listed = ", ".join(f"{path} = {visible(str(other), 60)}" for path, other in found)
        raise InputError(f"this {family.name} config disagrees with itself: {listed}; make all equal")
    return found[0][1] if found else next((family.defaults[key] for key in keys if key in family.defaults), None)


def number(config: Config, family: Family, keys: Keys, default: int | None = None) -> int:
    """The whole number from 0 that a config gives under any of the keys."""
    found = value(config, family, keys)
    if found is None and default is not None:
        return default
    if type(found) is not int or not 0 <= found < 1_000_000:
        raise InputError(f"{family.name}: {' or '.join(keys)} = {visible(str(found), 60)}; needed is a count")
    return found


def read_shape(config: Config, family: Family | None = None) -> ModelShape:
    """Layers, experts, routing, and attention that a config.json describes.

    Raises:
        InputError: Unknown family, a number that is missing or no count, or aliases that disagree.
    """
    family = family or find_family(config)
    listed = layer_list(config, family, family.sparse_lists) or layer_list(config, family, family.attention_lists)
    layers = number(config, family, family.layers, len(listed) or None)
    if not 0 < layers <= MAX_LAYERS:
        raise InputError(f"{family.name}: {layers} layers; between 1 and {MAX_LAYERS} are possible")
    sparse = _sparse(config, family, layers)
    hashed = layer_list(config, family, family.sparse_lists, layers)
    quantised = [
        holder[last] for _, holder, last in places(config, family, ("quantization_config", "compression_config"))
    ]
    renormalise = (
        value(config, family, (family.renormalise,)) if "_" in family.renormalise else family.renormalise == "always"
    )
    groups, top_groups = (
        number(config, family, family.groups, 1) or 1,
        number(config, family, family.top_groups, 1) or 1,
    )
    if family.grouped_by_top_k:
        groups = top_groups = number(config, family, family.top_k)
    return ModelShape(
        family, layers, tuple(n if on else 0 for n, on in zip(_each(config, family, family.experts, layers), sparse, strict=True)),
        _each(config, family, family.top_k, layers), _attention(config, family, layers),
        tuple(n for n, what in enumerate(hashed) if what in family.hashed), groups, top_groups,
        number(config, family, family.zero_experts, 0), number(config, family, family.mtp, 0),
        bool(renormalise) or family.scoring == "sigmoid",
        next((str(q.get("quant_method", "unknown")) for q in quantised if isinstance(q, dict)), ""),
    )  # fmt: skip


def place(shape: ModelShape, name: str) -> Place:
    """What the tensor of this name is.

    Raises:
        InputError: The name speaks of experts or a router in a way that the family's row does not know: guessing would leave it uncut.
    """
    if (known := shape.placed.get(name)) is None:
        known = shape.placed[name] = _place(shape, name)
    return known


def _place(shape: ModelShape, name: str) -> Place:
    family = shape.family
    if name.startswith(family.mtp_prefixes):
        return Place("mtp")
    if not (found := family.layer_name.fullmatch(name)):
        return Place("global")
    layer, rest = int(found[2]), found[3]
    if layer >= shape.layers:
        return Place("mtp", layer)
    if not family.block or not rest.startswith(inside := family.block + "."):
        return Place("layer", layer)
    part = rest.removeprefix(inside)
    if part in family.router:
        return Place("router", layer, part=part, axis=family.router_axis.get(part, 0))
    if part in family.tables:
        return Place("table", layer, part=part)
    if part.startswith(tuple(f"{shared}." for shared in family.shared)):
        return Place("shared", layer, part=part)
    if (one := family.expert_name.fullmatch(rest)) and one[4] in companions()["expert"]:
        return Place("expert", layer, int(one[2]), one[3], one[4])
    for fused in family.fused:
        if part.startswith(fused.name) and (suffix := part.removeprefix(fused.name)) in companions()["fused"]:
            return Place("fused", layer, None, fused.name, suffix, fused.axis, fused.stacked)
    if "expert" in part or part.startswith(tuple(router.partition(".")[0] + "." for router in family.router)):
        raise InputError(f"{visible(name)}: no tensor of a router or expert of {family.name} (docs/families.md)")
    return Place("layer", layer)


def _each(config: Config, family: Family, keys: Keys, layers: int) -> tuple[int, ...]:
    """One count a layer, of a key that gives one number or a list; none for a family without experts."""
    if not family.experts:
        return (0,) * layers
    found = value(config, family, keys)
    if not isinstance(found, list):
        if (each := number(config, family, keys)) > MAX_EXPERTS:
            raise InputError(f"{family.name}: {' or '.join(keys)} = {each}; at most {MAX_EXPERTS} are possible")
        return (each,) * layers
    if len(found) != layers or not all(type(n) is int and 0 < n <= MAX_EXPERTS for n in found):
        raise InputError(f"{family.name}: {' or '.join(keys)} is no list of {layers} counts, one a layer")
    return tuple(found)


def layer_list(config: Config, family: Family, keys: Keys, layers: int = 0) -> Keys:
    """What a list, or a string with one character a layer, says of each layer; empty when the config has none."""
    for path, holder, last in places(config, family, keys):
        found = holder[last]
        if isinstance(found, (list, str)) and found:
            if layers and len(found) != layers:
                raise InputError(f"{path} has {len(found)} entries for {layers} layers; make them equal")
            return tuple(map(str, found))
    return ()


def _indices(config: Config, family: Family, keys: Keys) -> set[int] | None:
    found = value(config, family, keys)
    if found is not None and not (isinstance(found, list) and all(type(n) is int for n in found)):
        raise InputError(f"{family.name}: {' or '.join(keys)} is no list of layer numbers")
    return None if found is None else set(found)


def _sparse(config: Config, family: Family, layers: int) -> list[bool]:
    if listed := layer_list(config, family, family.sparse_lists, layers):
        return [what in family.sparse_values for what in listed]
    if (chosen := _indices(config, family, family.sparse_index)) is not None:
        return [n in chosen for n in range(layers)]
    dense = _indices(config, family, family.dense_index) or set()
    first, step = number(config, family, family.dense_first, 0), max(1, number(config, family, family.step, 1))
    ends = value(config, family, family.last_sparse)
    last = ends if type(ends) is int and ends >= 0 else layers
    if often := layer_list(config, family, family.frequency, layers):
        return [on not in ("0", "False") for on in often]
    every = max(1, number(config, family, family.frequency, 1))
    on = [first <= n <= last and n not in dense and (n + 1) % step == 0 and n % every == 0 for n in range(layers)]
    return [a and b for a, b in zip(on, _periodic(config, family, family.period, layers), strict=True)]


def _periodic(config: Config, family: Family, keys: Keys, layers: int) -> list[bool]:
    if not keys:
        return [True] * layers
    period, offset = number(config, family, keys[:1]), number(config, family, keys[1:])
    return [n % max(1, period) == offset for n in range(layers)]


def _attention(config: Config, family: Family, layers: int) -> Keys:
    """The kind of attention of each layer; empty where the config does not say or the family has one kind."""
    if listed := layer_list(config, family, family.attention_lists, layers):
        return listed
    if family.attention_index and (full := _indices(config, family, (family.attention_index,))) is not None:
        return tuple("full_attention" if n + 1 in full else "linear_attention" for n in range(layers))
    if family.attention_step and (step := number(config, family, family.attention_step, 0)):
        return tuple(family.attention_between if (n + 1) % step else "full_attention" for n in range(layers))
    if family.attention_period:
        full_layers = _periodic(config, family, family.attention_period, layers)
        return tuple("full_attention" if on else "linear_attention" for on in full_layers)
    return ()
