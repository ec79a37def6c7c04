"""Which bytes of a checkpoint go where in the proxy's shards, decided before the first is copied.

The same checkpoint and cut always give the same shards: tensors by new layer, within a layer as they lie in the source, so that
neighbours stay neighbours and one copy moves many. Within a shard wider types come first, as safetensors itself writes them: the format
has no padding, and a reader refuses an fp32 tensor that starts at an odd byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.checkpoint import BITS, Checkpoint, StoredTensor
from faultproxy.proxy.cut import Cut, check_complete, decide

#: Most bytes of tensors in a shard; a larger tensor has one of its own.
SHARD_BYTES = 5 * 10**9
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor of the proxy: rows `runs` of `axis` of one of the checkpoint, or all of it."""

    source: StoredTensor
    name: str
    shape: tuple[int, ...]
    axis: int
    runs: tuple[tuple[int, int], ...]
    size: int

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Bytes of the source's file that make this tensor, in order."""
        start, stop = self.source.start, self.source.stop
        if not self.runs:
            yield start, stop
            return
        outer, rows = prod(self.source.shape[: self.axis]), self.source.shape[self.axis]
        row = (stop - start) // (outer * rows)
        for n in range(outer):
            base = start + n * rows * row
            for first, last in self.runs:
                yield base + first * row, base + last * row


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of the proxy: its header, and the tensors that follow it."""

    file: str
    header: bytes
    tensors: tuple[Kept, ...]
    size: int


def lay_out(checkpoint: Checkpoint, cut: Cut, limit: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """The shards of a proxy.

    Raises:
        InputError: The checkpoint lacks what the cut keeps, or has a tensor that cannot be cut.
    """
    check_complete(cut, checkpoint.tensors)
    ordered = sorted(_kept(checkpoint, cut), key=lambda pair: (pair[0], pair[1].source.file, pair[1].source.start))
    groups: list[list[Kept]] = []
    room = 0
    for _, tensor in ordered:
        if not groups or tensor.size > room:
            groups.append([])
            room = limit
        groups[-1].append(tensor)
        room -= tensor.size
    names = [f"model-{n:05d}-of-{len(groups):05d}.safetensors" for n in range(1, len(groups) + 1)]
    return tuple(_shard(file, group) for file, group in zip(names, groups, strict=True))


def index(shards: Iterable[Shard]) -> dict[str, object]:
    """The document of model.safetensors.index.json."""
    tensors = [(shard.file, tensor) for shard in shards for tensor in shard.tensors]
    return {
        "metadata": {"total_size": sum(tensor.size for _, tensor in tensors)},
        "weight_map": {tensor.name: file for file, tensor in sorted(tensors, key=lambda pair: pair[1].name)},
    }


def parameters(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> int:
    """Parameters in tensors of these names, types, and shapes; packed ones count what they hold, scales and tables nothing."""
    count = 0
    for name, dtype, shape in tensors:
        if name.endswith(
            ("_scale", "_scale_inv", "_scales", "_shape", "_zero_point", ".scales", ".qzeros", ".g_idx", ".scale")
        ):
            continue
        packed = {"I32": 8, "U8": 2}.get(dtype, 1) if name.endswith(("_packed", "_blocks", ".qweight")) else 1
        count += prod(shape) * packed * (dtype not in ("I64", "BOOL"))
    return count


def _kept(checkpoint: Checkpoint, cut: Cut) -> Iterator[tuple[int, Kept]]:
    seen: set[str] = set()
    for tensor in checkpoint.tensors.values():
        decision = decide(cut, tensor.name, tensor.shape)
        if not decision.name:
            continue
        if decision.name in seen:
            raise InputError(
                f"two tensors would be named {visible(decision.name)} in the proxy; is a layer stored twice?"
            )
        seen.add(decision.name)
        size, shape = tensor.stop - tensor.start, tensor.shape
        if decision.runs:
            rows = prod(shape[: decision.axis + 1])
            if size % rows:
                raise InputError(f"{visible(tensor.name)}: a row of {size}/{rows} bytes cannot be cut out")
            count = sum(stop - start for start, stop in decision.runs)
            shape = (*shape[: decision.axis], count, *shape[decision.axis + 1 :])
            size = size // tensor.shape[decision.axis] * count
        layer = cut.shape.family.layer_name.fullmatch(decision.name)
        yield int(layer[2]) if layer else -1, Kept(tensor, decision.name, shape, decision.axis, decision.runs, size)


def _shard(file: str, tensors: list[Kept]) -> Shard:
    tensors = sorted(tensors, key=lambda tensor: -BITS[tensor.source.dtype])
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        described[tensor.name] = {
            "dtype": tensor.source.dtype,
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    header = len(text).to_bytes(8, "little") + text
    return Shard(file, header, tuple(tensors), len(header) + at)
