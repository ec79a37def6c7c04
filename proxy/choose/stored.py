"""What a choice reads of a checkpoint: the rows of routers, and sums over the weights of each expert. Nothing is held but results.

Plain floats and both fp8 formats are decoded in numpy, fp8 with its scales by block or tensor. Packed formats (mxfp4, int4) are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.checkpoint import BITS, Checkpoint
from faultproxy.proxy.shape import ModelShape, place

#: Bytes decoded at a time: what a core's cache holds is summed four times faster than what it does not.
CHUNK_BYTES = 1 << 19
#: More than the router of any public model: 512 experts of width 7168 in float32 are 15 MB.
MAX_ROUTER_BYTES = 1 << 28
_PLAIN = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "F8_E4M3": "u1", "F8_E5M2": "u1"}
#: What a scale's name has after the weight's, less a last `weight`.
_SCALES = ("weight_scale_inv", "weight_scale", "_scale_inv", "_scale", "_weight_scale")


def decode(dtype: str, data: bytes) -> Any:
    """Float32 numbers (float64 for F64) of little-endian bytes of a type in `_PLAIN`."""
    import numpy as np

    raw = np.frombuffer(data, _PLAIN[dtype])
    if dtype == "BF16":
        wide = np.empty(raw.shape, np.uint32)
        np.left_shift(raw, 16, out=wide, dtype=np.uint32, casting="unsafe")
        return wide.view(np.float32)
    if dtype == "F8_E5M2":  # the upper byte of a float16
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    if dtype == "F8_E4M3":
        code = np.arange(256)
        exponent, fraction = (code >> 3) & 15, code & 7
        size = np.where(exponent > 0, (1 + fraction / 8) * 2.0 ** (exponent - 7), fraction / 8 * 2.0**-6)
        size[(code & 127) == 127] = np.nan
        return np.where(code < 128, size, -size).astype(np.float32)[raw]
    return raw.astype(np.float64 if dtype == "F64" else np.float32)


class Stored:
    """The routers and experts of a checkpoint by layer."""

    def __init__(self, checkpoint: Checkpoint, shape: ModelShape) -> None:
        self.checkpoint, self.shape = checkpoint, shape
        self._routers: dict[int, str] = {}
        #: By layer and expert (None: a tensor of all experts): names of its weights.
        self._weights: dict[tuple[int, int | None], list[str]] = {}
        for name, tensor in checkpoint.tensors.items():
            found = place(shape, name)
            if found.layer is None or len(tensor.shape) < 2 or not prod(tensor.shape):
                continue
            if found.kind == "router" and name.endswith(".weight") and len(tensor.shape) == 2 and found.axis == 0:
                self._routers[found.layer] = name
            elif found.kind in ("expert", "fused") and (found.companion in ("weight", "") or _packed(found.companion)):
                self._weights.setdefault((found.layer, found.expert), []).append(name)

    def has_routers(self, layers: Sequence[int]) -> bool:
        """Whether the rows of these layers' routers can be read."""
        return all(n in self._routers and self.checkpoint.tensors[self._routers[n]].dtype in _PLAIN for n in layers)

    def router(self, layer: int) -> Any:
        """[E, H] rows of a layer's router, in float64; rows of experts without weights are left out.

        Raises:
            InputError: There is none, or none that can be read.
        """
        import numpy as np

        if not self.has_routers([layer]):
            raise InputError(
                f"layer {layer} has no router in a plain number format; choose with --method random or first"
            )
        name = self._routers[layer]
        tensor, experts = self.checkpoint.tensors[name], self.shape.experts[layer]
        if tensor.shape[0] != experts + self.shape.zero_experts or tensor.stop - tensor.start > MAX_ROUTER_BYTES:
            raise InputError(
                f"{visible(name)} has shape {list(tensor.shape)}; needed are {experts} rows; config.json is another model's"
            )
        rows = decode(tensor.dtype, self.checkpoint.read(name)).reshape(tensor.shape)[:experts]
        return np.nan_to_num(rows.astype(np.float64), posinf=0.0, neginf=0.0).clip(-1e30, 1e30)

    def undecodable(self, layers: Sequence[int]) -> str:
        """Why the weights of these layers' experts cannot be summed; empty where they can."""
        held = [name for (layer, _), names in self._weights.items() if layer in layers for name in names]
        for name in held:
            if (dtype := self.checkpoint.tensors[name].dtype) not in _PLAIN or _packed(name):
                return f"{visible(name)} is {dtype}, which is not decoded"
        return "" if held else "the checkpoint has no weights of experts"

    def sums(self, layer: int) -> tuple[Any, Any, Any]:
        """By expert of a layer [E]: the sum of |w|, the sum of w^2, and the number of its weights; biases and what is not finite count 0."""
        import numpy as np

        experts = self.shape.experts[layer]
        found = np.zeros((3, experts))
        for expert in range(experts):
            for name in self._weights.get((layer, expert), ()):
                found[:, expert] += self._sums(name, 0, 1)
            for name in self._weights.get((layer, None), ()):
                found[:, expert] += self._sums(name, expert, experts)
        return found[0], found[1], found[2]

    def _sums(self, name: str, part: int, parts: int) -> Any:
        """Sums over one of `parts` equal parts of a tensor along its first axis."""
        import numpy as np

        tensor = self.checkpoint.tensors[name]
        if tensor.shape[0] % parts:
            raise InputError(
                f"{visible(name)} has shape {list(tensor.shape)}; it must count {parts} experts; config.json is another model's"
            )
        columns = tensor.shape[-1]
        rows = prod(tensor.shape[:-1]) // parts
        width = columns * BITS[tensor.dtype] // 8
        scale = self._scale(name, part, parts)
        step = max(1, CHUNK_BYTES // width)
        total = np.zeros(3)
        for row in range(0, rows, step):
            stop, start = min(rows, row + step), part * rows
            found = decode(tensor.dtype, self.checkpoint.read(name, (start + row) * width, (start + stop) * width))
            if scale is not None:
                high, wide = ceil(rows / scale.shape[0]), ceil(columns / scale.shape[1])
                by_row = scale[np.arange(row, stop) // high]
                found = (found.reshape(stop - row, columns) * by_row[:, np.arange(columns) // wide]).ravel()
            with np.errstate(over="ignore", invalid="ignore"):
                size = np.abs(found)
                absolute, square = float(size.sum()), float(np.square(size, out=size).sum())
            if not np.isfinite(absolute + square):
                found = np.nan_to_num(found.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
                absolute, square = float(np.abs(found).sum()), float(np.square(found).sum())
            total += (absolute, square, len(found))
        return total

    def _scale(self, name: str, part: int, parts: int) -> Any:
        """[R, C] scales of a tensor or of one of its parts, each for a block of weights; None where it has none."""
        stem = name.removesuffix("weight")
        for suffix in _SCALES:
            held = self.checkpoint.tensors.get(stem + suffix)
            if held and held.dtype in _PLAIN and 0 < prod(held.shape) <= prod(self.checkpoint.tensors[name].shape):
                found = decode(held.dtype, self.checkpoint.read(held.name)).reshape(held.shape or (1,))
                found = found[part : part + 1] if parts > 1 and len(found) == parts else found
                return found.reshape(-1, found.shape[-1] if found.ndim > 1 else 1)
        return None


def _packed(companion: str) -> bool:
    return companion.endswith(("_packed", "_blocks", "qweight"))
