"""Gives layers their absolute index where a writer numbers them otherwise and the model's configuration is known.

verl numbers the layers that route, first to last: its `moe[3]` is layer 6 of a model whose first three layers are dense.
Megatron numbers all layers, writes 0 for dense ones, and puts the layers of multi-token prediction at the end. An index
that the configuration has no place for means that it is not this model's: then everything stays as written, and is said.
"""

from __future__ import annotations

from typing import Any

from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Column, Frame, Key, Trace

_ROUTED = lazy(r"moe\[(\d{1,9})\]")


def resolve(trace: Trace) -> None:
    """Move the columns of `trace.detail` to absolute layers, in place. Rows that stay on disk keep their numbers."""
    shape = trace.facts.get("model")
    if trace.table is not None or not isinstance(shape, dict):
        return
    layers, routing = shape.get("layers"), shape.get("moe_layers")
    if type(layers) is not int:
        return
    if isinstance(routing, list):
        _routed(trace, routing)
    _counted(trace, layers, shape.get("mtp_layers"), routing if isinstance(routing, list) else None)


def _routed(trace: Trace, routing: list[int]) -> None:
    """`moe[i]` is the i-th layer that routes."""
    found = {key: int(m[1]) for key in trace.detail.columns if key.module and (m := _ROUTED.fullmatch(key.module))}
    if not found:
        return
    if max(found.values()) >= len(routing):
        _foreign(trace, f"layer {max(found.values())} of those that route", f"{len(routing)} such layers")
        return
    _rename(trace.detail, {key: key._replace(module=None, layer=routing[at]) for key, at in found.items()})


def _counted(trace: Trace, layers: int, extra: Any, routing: list[int] | None) -> None:
    """Router signals that Megatron numbers over all layers, dense and multi-token ones included."""
    detail = trace.detail
    own = [key for key, c in detail.columns.items() if key.layer is not None and key.expert is None and _megatron(c)]
    if not own:
        return
    beyond = {key: (key.layer or 0) - layers for key in own if (key.layer or 0) >= layers}
    if beyond and max(beyond.values()) >= (extra if type(extra) is int else 0):
        _foreign(trace, f"layer {max(beyond.values()) + layers}", f"{layers} layers")
        return
    _rename(detail, {key: key._replace(module=f"mtp[{at}]", layer=None) for key, at in beyond.items()})
    if routing is None:
        return
    dense = [key for key in own if key not in beyond and key.layer not in routing]
    silent = [key for key in dense if not detail.columns[key].states and not any(detail.columns[key].values)]
    for key in silent:
        del detail.columns[key]
    if len(silent) < len(dense):
        _foreign(
            trace, f"router values of layer {min(k.layer or 0 for k in dense if k not in silent)}", "no router there"
        )


def _megatron(column: Column) -> bool:
    return column.raw_key.startswith(("moe/", "moe/moe/")) and "_layer_" in column.raw_key


def _rename(frame: Frame, names: dict[Key, Key]) -> None:
    for old, new in names.items():
        if new not in frame.columns:
            column = frame.columns.pop(old)
            column.key = new
            frame.columns[new] = column


def _foreign(trace: Trace, seen: str, stated: str) -> None:
    origins = trace.facts.get("origins")
    where = origins.get("model.layers", "the configuration") if isinstance(origins, dict) else "the configuration"
    trace.warnings.append(
        f"the log has {seen}, {where} states {stated}: it is not this model's, layers stay as numbered"
    )
