"""Number formats: exact rounding where the device lacks a type, and fp16's loss scaling.

A CPU runs fp16 and bf16 three times slower than fp32 and fp8 not at all, so there a format is emulated: values stay
float32 and are rounded, to the bit, where an engine would have stored them. On cuda and npu the engine uses the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.run.config import FORMATS

#: Values that share one fp8 scale, along the last dimension (MXFP8's block; DeepSeek uses 128 where a row has as many).
FP8_BLOCK = 32
#: Largest finite e4m3 value (OCP 8-bit floating point specification, 2023).
FP8_MAX = 448.0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def round_to(x: Tensor, fmt: str) -> Tensor:
    """The float32 tensor with every value rounded to nearest even in `fmt`; fp16 overflows to infinity as the type does.

    fp8 is e4m3 with one float32 scale a block of 32 values of the last dimension, amax / 448, as in blockwise recipes:
    it cannot overflow, and loses what is far below the largest value of its block. NaN and infinity stay.
    """
    if fmt == "fp32":
        return x
    if fmt == "fp8":
        return _fp8(x)
    if fmt not in DTYPES:
        raise InputError(f"{fmt!r} is no number format; allowed are {', '.join(FORMATS)}")
    return x.to(DTYPES[fmt]).to(x.dtype)


def _fp8(x: Tensor) -> Tensor:
    size = x.shape[-1]
    short = -size % FP8_BLOCK
    blocks = (
        nn.functional.pad(x, (0, short)).unflatten(-1, (-1, FP8_BLOCK))
        if short or size > FP8_BLOCK
        else x.unsqueeze(-2)
    )
    scale = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / FP8_MAX
    rounded = (blocks / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    return rounded.flatten(-2)[..., :size]


class _Round(torch.autograd.Function):
    """Rounds values on the way forward and gradients on the way back; differentiable twice (curvature)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: str) -> Tensor:
        """The rounded tensor."""
        ctx.fmt = "bf16" if fmt == "fp8" else fmt  # fp8 recipes keep the gradient in bf16 or e5m2
        return round_to(x, fmt)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The rounded gradient."""
        return rounding(gradients[0], ctx.fmt), None


def rounding(x: Tensor, fmt: str) -> Tensor:
    """`round_to` on the way forward, and of the gradient on the way back."""
    rounded: Tensor = _Round.apply(x, fmt)  # type: ignore[no-untyped-call]
    return rounded


def emulate(modules: Iterable[nn.Module], fmt: str) -> None:
    """Round what these modules return, as if they computed in `fmt`. Tuples: the first tensor (attention) is rounded."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (rounding(output[0], fmt), *output[1:])
        return rounding(output, fmt)

    if fmt != "fp32":
        for module in modules:
            module.register_forward_hook(hook)


class LossScaler:
    """Dynamic loss scaling as Megatron and Apex do it: halve on overflow and skip, double after a window without one."""

    def __init__(self, scale: float, window: int, minimum: float = 1.0, dynamic: bool = True) -> None:
        self.scale, self.window, self.minimum, self.dynamic = scale, window, minimum, dynamic
        self.since = 0

    def update(self, overflow: bool) -> bool:
        """Take note of one backward pass; True when its optimiser step must be skipped."""
        if not self.dynamic:
            return overflow
        if overflow:
            self.scale, self.since = max(self.minimum, self.scale / 2), 0
        else:
            self.since += 1
            if self.since >= self.window:
                self.scale, self.since = self.scale * 2, 0
        return overflow

    def state(self) -> tuple[float, int, bool]:
        """What a snapshot keeps."""
        return self.scale, self.since, self.dynamic

    def restore(self, state: tuple[float, int, bool]) -> None:
        """Go back to a state of `state()`."""
        self.scale, self.since, self.dynamic = state


def finite(tensors: Sequence[Tensor]) -> bool:
    """True when no value of any tensor is NaN or infinite (one device sync)."""
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(list(tensors), 1)).sum()))
