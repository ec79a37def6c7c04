"""The config.json of a cut model: every count, list, and layer number in it, under every alias, as raw JSON.

Edited as data and not through a config class, which would write another version's names and defaults.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.families import Config, holders
from faultproxy.proxy.shape import ModelShape, places

Layers = Sequence[int]
Experts = Mapping[int, tuple[int, ...]]
# A layer's or expert's number in a module name, plain or in a regular expression.
_NUMBERED = re.compile(r"(?<![A-Za-z0-9_])(layers|blocks|experts)(\\?\.)(\d{1,6})(?!\d)")


def edit_config(
    config: Config, shape: ModelShape, layers: Layers, experts: Experts, groups: tuple[int, int]
) -> tuple[Config, list[str]]:
    """The config of the kept layers and experts, of `groups` groups and chosen ones, and what in it may need a look."""
    family, made = shape.family, copy.deepcopy(config)
    warnings: list[str] = []
    counts = [len(experts.get(n, ())) for n in layers]

    def put(keys: Collection[str], new: Any) -> None:
        for path, holder, last in places(made, family, tuple(keys)):
            holder[last] = new(holder[last], path) if callable(new) else new

    for path, holder in holders(made, family.nested):
        for key, old in holder.items():
            if key in family.per_layer and isinstance(old, (list, str)) and len(old) >= shape.layers:
                chosen = [old[n] for n in layers]
                holder[key] = "".join(chosen) if isinstance(old, str) else chosen
            elif (
                isinstance(old, list)
                and len(old) == shape.layers > 3
                and key not in (*family.not_per_layer, *family.sparse_index)
            ):
                warnings.append(f"{path}{visible(key, 60)} has one entry a layer, but was not cut; check it")
    dense = [n for n, layer in enumerate(layers) if not shape.experts[layer]]
    put(family.layers, len(layers))
    put(family.layers_twice, 2 * len(layers))
    put(
        family.sparse_index,
        lambda old, path: [n for n, layer in enumerate(layers) if layer in _as(list, old, path)],
    )
    if places(made, family, family.dense_index):
        # A list of dense layers can say any pattern, so that the period is no longer needed.
        put(family.dense_index, dense)
        put(family.step, 1)
    put(
        family.index_from_one,
        lambda old, path: [n + 1 for n, layer in enumerate(layers) if layer + 1 in _as(list, old, path)],
    )
    put(
        (*family.dense_first, *family.leading),
        lambda old, path: sum(layer < _as(int, old, path) for layer in layers),
    )
    # -1 is the last layer.
    put(family.last_sparse, lambda old, path: max(-1, sum(layer <= _as(int, old, path) for layer in layers) - 1))
    put(family.experts, lambda old, _: counts if isinstance(old, list) else max(counts) or old)
    put(family.mtp, 0)
    if shape.groups > 1 and not family.grouped_by_top_k:
        put(family.groups, groups[0])
        put(family.top_groups, groups[1])
    put(("quantization_config", "compression_config"), lambda old, _: _renumbered(layers, experts, old, warnings))
    return made, warnings


def _as(kind: type, old: Any, path: str) -> Any:
    if type(old) is not kind:
        raise InputError(f"{path} = {visible(str(old), 60)}; needed is of type {kind.__name__}")
    return old


def _renumbered(layers: Layers, experts: Experts, node: Any, warnings: list[str]) -> Any:
    """A quantisation config with the layers and experts in its module names renumbered, and the names of dropped ones left out."""
    if isinstance(node, dict):
        named = {
            _rename(layers, experts, key, warnings): _renumbered(layers, experts, inner, warnings)
            for key, inner in node.items()
        }
        return {key: inner for key, inner in named.items() if key is not None}
    if isinstance(node, list):
        return [new for new in (_renumbered(layers, experts, inner, warnings) for inner in node) if new is not None]
    return _rename(layers, experts, node, warnings) if isinstance(node, str) else node


def _rename(layers: Layers, experts: Experts, name: str, warnings: list[str]) -> str | None:
    layer: int | None = None
    dropped = False

    def new(found: re.Match[str]) -> str:
        nonlocal layer, dropped
        kept: Sequence[int] = layers if found[1] != "experts" else experts.get(layer, ()) if layer is not None else ()
        old = int(found[3])
        layer = layer if found[1] == "experts" else old
        dropped |= old not in kept
        return f"{found[1]}{found[2]}{kept.index(old) if old in kept else old}"

    renamed = _NUMBERED.sub(new, name)
    if name.startswith("re:") and not _NUMBERED.search(name) and re.search(r"\d", name.partition("layers")[2]):
        warnings.append(f"layers in quantisation pattern {visible(name, 80)} were not renumbered; check it")
    return None if dropped else renamed
