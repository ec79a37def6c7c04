"""New weights for `--weights random`: each tensor drawn from a normal distribution with the mean and deviation of the original's.

Block c of a tensor depends on the seed, the tensor's original name, and c alone, so that a build can go on anywhere. What is no matrix (norms,
biases, the correction of a router) and what hardly varies is copied: a model with a drawn norm would fail in a way of its own. So are
tables of whole numbers. Quantised weights are refused, since a scale drawn apart from its weights means nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.build.copy import BLOCK
from faultproxy.proxy.build.layout import Kept
from faultproxy.proxy.checkpoint import BITS, Checkpoint
from faultproxy.proxy.choose.stored import decode
from faultproxy.proxy.shape import ModelShape

_FLOATS = ("F64", "F32", "F16", "BF16")
_NUMBERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")
#: Statistics come from so many pieces of so many elements, evenly spread: the deviation of a normal tensor to about 1 %. Far away, each
#: piece is a request.
_PIECES, _ELEMENTS = 2, 8192
#: Nothing that a sum of squares, or eight deviations of float32, overflows.
_HUGE = 1e30
#: Numbers drawn at once.
_DRAWN = 2**20


def check_drawable(shape: ModelShape, checkpoint: Checkpoint) -> None:
    """Refuses a model whose weights are no plain floating point numbers."""
    kinds = {tensor.dtype for tensor in checkpoint.tensors.values()} - {*_FLOATS, *_NUMBERS}
    if shape.quantisation or kinds:
        what = visible(shape.quantisation or ", ".join(sorted(kinds)), 40)
        raise InputError(
            f"weights are quantised ({what}), and a drawn scale means nothing without its weights; build with --weights original, or from a "
            "bf16 copy of the checkpoint"
        )


def drawn(checkpoint: Checkpoint, tensor: Kept, seed: int, skip: int = 0) -> Iterator[bytes]:
    """The bytes of a tensor of the proxy, block by block, without the first `skip` ones, which a resumed build has on disk."""
    found = _statistics(checkpoint, tensor) if _varies(tensor) else None
    if found is None:
        for start, stop in tensor.ranges():
            passed = min(skip, stop - start)
            skip -= passed
            for at in range(start + passed, stop, BLOCK):
                yield checkpoint.source.read(tensor.source.file, at, min(at + BLOCK, stop))
        return
    width = BITS[tensor.source.dtype] // 8
    first, skip = divmod(skip, _DRAWN * width)
    for block in range(first, -(-tensor.size // (_DRAWN * width))):
        count = min(_DRAWN, tensor.size // width - block * _DRAWN)
        yield _numbers(tensor, seed, block, count, *found)[skip:]
        skip = 0


def _varies(tensor: Kept) -> bool:
    axes = sum(size > 1 for size in tensor.source.shape)
    named = tensor.name.endswith(("bias", "norm.weight", "layernorm.weight", "A_log", "dt_bias", "_decay"))
    return axes > 1 and not named and tensor.source.dtype in _FLOATS


def _statistics(checkpoint: Checkpoint, tensor: Kept) -> tuple[float, float] | None:
    """Mean and deviation of the original; None where it hardly varies."""
    import numpy as np

    width = BITS[tensor.source.dtype] // 8
    count = (tensor.source.stop - tensor.source.start) // width
    step = max(_ELEMENTS, count // _PIECES)
    pieces = [
        decode(tensor.source.dtype, checkpoint.read(tensor.source.name, at * width, min(count, at + _ELEMENTS) * width))
        for at in range(0, count, step)
    ]
    values = np.concatenate(pieces).astype(np.float64)
    if not (np.abs(values) < _HUGE).all():
        raise InputError(
            f"{visible(tensor.source.name)} holds values that are no numbers or beyond {_HUGE:g}; random weights cannot be scaled like it"
        )
    mean, deviation = float(values.mean()), float(values.std())
    return (mean, deviation) if deviation > 1e-3 * abs(mean) else None


def _numbers(tensor: Kept, seed: int, block: int, count: int, mean: float, deviation: float) -> bytes:
    import numpy as np

    key = hashlib.sha256(f"{seed} {block} {tensor.source.name}".encode()).digest()[:16]
    values = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).standard_normal(count, np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    if tensor.source.dtype == "BF16":
        bits = values.view(np.uint32)
        # To the nearest, ties to even; a normal number is finite.
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    if tensor.source.dtype == "F16":
        np.clip(values, -65504, 65504, out=values)
    return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[tensor.source.dtype]).tobytes()
