"""How many layers and experts to keep: wishes in words, and the nearest choice that `cut_model` accepts.

Layers are always leading ones: what reaches a layer then took the original's way, and no pattern of a hybrid model shifts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cut import Cut, cut_model
from faultproxy.proxy.families import Config
from faultproxy.proxy.shape import ModelShape

#: How far beyond a wish the nearest valid choice may lie: layers (a period of hybrid attention is 4 to 8), and steps of experts.
_LAYERS, _STEPS = 16, 4
#: Parts of the layers that are few, and fewer.
_SHARES = (4, 8)
Keep = Mapping[int | None, tuple[int, ...]]


@dataclass(frozen=True)
class Kept:
    """`layers` leading layers with `experts` each (None: all), and the cut that shows it can be made."""

    layers: int
    experts: int | None
    cut: Cut


def fewer_layers(shape: ModelShape) -> tuple[int, ...]:
    """A quarter of the layers, an eighth, the fewest: each with every kind of layer, at least two where there are two."""
    kinds = [(bool(n), shape.attention[at] if shape.attention else "") for at, n in enumerate(shape.experts)]
    least = max(min(2, shape.layers), max(kinds.index(kind) + 1 for kind in set(kinds)))
    return tuple(dict.fromkeys([*(max(least, ceil(shape.layers / share)) for share in _SHARES), least]))


def expert_count(shape: ModelShape, how: str, each: int = 0) -> int | None:
    """Experts a layer: `twice` top-k, a `quarter`, the `floor` (the fewest above top-k), or None for `all` and where none is saved.

    The same number of each group; and `each` experts a rank on two ranks or more, where that is at most half of all: with
    fewer ranks there is no all-to-all.
    """
    most, top_k = max(shape.experts), max(shape.top_k)
    if how == "all" or not most:
        return None
    least = shape.groups * max(2 if shape.family.group_score == "top2" else 1, ceil(top_k / shape.top_groups))
    wanted = {"floor": top_k + 1, "twice": 2 * top_k, "quarter": max(2 * top_k, most // 4)}[how]
    wanted = _up(max(wanted, least if shape.groups > 1 else 0), shape.groups)
    if each and how != "floor" and (whole := _up(max(wanted, 2 * each), lcm(shape.groups, each))) <= most // 2:
        wanted = whole
    return wanted if wanted < most else None


def reach(config: Config, shape: ModelShape, layers: int, experts: int | None, keep: Keep) -> Kept:
    """The nearest choice to `layers` and `experts` that can be cut, with the implicated experts of `keep` in it.

    Raises:
        InputError: None can be; the message is that of the wish itself.
    """
    refused: InputError | None = None
    if experts is not None:
        held = [shape.groups * _fullest(shape, ids) for ids in kept_ids(shape, shape.layers, keep).values()]
        experts = max([experts, *held])
    counts = [] if experts is None else [experts + step * shape.groups for step in range(_STEPS)]
    for count in (*(n for n in counts if n < max(shape.experts)), None):
        for length in range(layers, min(shape.layers, layers + _LAYERS) + 1):
            try:
                return Kept(length, count, cut_model(config, range(length), _sample(shape, length, count, keep)))
            except InputError as error:
                refused = refused or error
    assert refused is not None
    raise refused


def kept_ids(shape: ModelShape, layers: int, keep: Keep) -> dict[int, tuple[int, ...]]:
    """The implicated experts by layer; those of an unknown layer are kept in all."""
    anywhere = keep.get(None, ())
    found = {n: tuple(sorted({*anywhere, *keep.get(n, ())})) for n in range(layers) if shape.experts[n]}
    return {n: ids for n, ids in found.items() if ids}


def _up(count: int, step: int) -> int:
    return ceil(count / step) * step


def _fullest(shape: ModelShape, ids: Sequence[int]) -> int:
    size = max(1, max(shape.experts) // shape.groups)
    groups = [n // size for n in ids]
    return max((groups.count(group) for group in set(groups)), default=0)


def _sample(shape: ModelShape, layers: int, count: int | None, keep: Keep) -> dict[int, tuple[int, ...]]:
    """Some choice of `count` experts in each layer; which ones `proxy build` keeps is not for a plan to say."""
    if count is None:
        return {}
    named, found = kept_ids(shape, layers, keep), {}
    for layer in (n for n in range(layers) if shape.experts[n] > count):
        size, each = shape.experts[layer] // shape.groups, count // shape.groups
        ids: list[int] = []
        for group in range(shape.groups):
            inside = range(group * size, (group + 1) * size)
            wanted = [n for n in named.get(layer, ()) if n in inside]
            ids += sorted([*wanted, *(n for n in inside if n not in wanted)][:each])
        found[layer] = tuple(ids)
    return found
