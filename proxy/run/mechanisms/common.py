"""The registry of mechanisms, and the few ways in which they reach into a running loop.

A mechanism is called once, at the onset, and from then on acts through hooks and points. It draws from `loop.faults_rng` only,
so that the twin's data and sampling streams stay as they are. Hooks are prepended: the recorder's own hooks then see what the
fault made of an output, not what it was before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from faultproxy.proxy.run.precision import round_to

if TYPE_CHECKING:
    from faultproxy.proxy.run.engine import Engine
    from faultproxy.proxy.run.loop import Loop

MECHANISMS: dict[str, Callable[..., None]] = {}


def mechanism(function: Callable[..., None]) -> Callable[..., None]:
    """Registers a mechanism under its function's name; keyword arguments are what faults.toml may set."""
    MECHANISMS[function.__name__] = function
    return function


def engines(loop: Loop, name: str) -> list[Engine]:
    """The engines called `rollout`, `trainer`, or `both`; a supervised loop has no rollout engine."""
    found = {"rollout": (loop.rollout,), "trainer": (loop.trainer,), "both": (loop.trainer, loop.rollout)}[name]
    return [engine for engine in found if engine is not None]


def rollout_of(loop: Loop) -> Engine:
    """The rollout engine of a loop that has one (faults that need it say `needs = ["rl"]`)."""
    assert loop.rollout is not None
    return loop.rollout


def part(module: Any, name: str) -> Any:
    """A part of a Hugging Face layer, such as `self_attn` or `mlp`, whose class torch cannot tell."""
    return getattr(module, name)


def at_depth(loop: Loop, depth: float) -> int:
    """Index of the layer at a depth from 0 (first) to 1 (last)."""
    return round(depth * (len(loop.trainer.layers) - 1))


def spread(among: Iterable[int], share: float) -> list[int]:
    """A share of the given layers (at least one), evenly spread and starting at the first."""
    numbers = sorted(among)
    count = max(1, round(share * len(numbers)))
    return [numbers[i * len(numbers) // count] for i in range(count)]


def happens(loop: Loop, share: float) -> bool:
    """True with the given probability."""
    return torch.rand(1, generator=loop.faults_rng).item() < share


def some_of(loop: Loop, like: Tensor, share: float) -> Tensor:
    """[len(like)] bool, each True with the given probability, where `like` lives."""
    return (torch.rand(len(like), generator=loop.faults_rng) < share).to(like.device)


def noise_like(loop: Loop, like: Tensor) -> Tensor:
    """Standard normal noise of the shape, type, and device of a tensor."""
    return torch.randn(like.shape, generator=loop.faults_rng).to(like)


def permutation(loop: Loop, n: int) -> Tensor:
    """A random order of 0..n-1."""
    return torch.randperm(n, generator=loop.faults_rng)


def rounded(x: Tensor, fmt: str) -> Tensor:
    """`x` in a lower precision, its gradient passed straight through. `int4` has one scale a block of 32 values."""
    if fmt == "int4":
        blocks = x.detach().reshape(-1, 32 if x.numel() % 32 == 0 else x.shape[-1])
        scale = (blocks.abs().amax(1, keepdim=True) / 7).clamp_min(1e-12)
        low = ((blocks / scale).round() * scale).reshape(x.shape)
    else:
        low = round_to(x.detach(), fmt)
    return low if not x.requires_grad else x + (low - x).detach()


def keep_bits(x: Tensor, bits: int) -> Tensor:
    """`x` with so many mantissa bits behind the leading one (bf16 7, e4m3 3), round to nearest, range unlimited."""
    mantissa, exponent = torch.frexp(x)
    step = 2.0 ** (bits + 1)
    return torch.ldexp((mantissa * step).round() / step, exponent)


def change_output(module: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replaces a module's output (the first of a tuple) by `change(input, output)`."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        entered = args[0] if args else kwargs["hidden_states"]
        return (change(entered, out[0]), *out[1:]) if isinstance(out, tuple) else change(entered, out)

    module.register_forward_hook(hook, with_kwargs=True, prepend=True)


def change_input(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Replaces the first positional input of a module."""
    module.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]), prepend=True)


def change_gradient(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Replaces the gradient that enters a module's backward; its forward stays as it is."""

    def watch(_: Tensor, out: Tensor) -> Tensor:
        if out.requires_grad:
            out.register_hook(change)
        return out

    change_output(module, watch)


def layer_numbers(loop: Loop) -> list[int]:
    """Layer of each trainer parameter, in the order of the gradients; -1 outside the layers."""
    return [layer_of(name) for name in loop.trainer.names]


def layer_of(name: str) -> int:
    """Layer in a parameter's name; -1 where it has none."""
    found = re.search(r"\blayers\.(\d+)\.", name)
    return int(found[1]) if found else -1
