"""Rewrites a tiny checkpoint as released quantised ones are laid out, for the round trips of families.py: fp8 with block scales
(DeepSeek-V3), mxfp4 (gpt-oss), int4 packed by compressed-tensors (Kimi-K2-Thinking)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK, GROUP = 16, 16
CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    "int4": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head", r"re:.*self_attn.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", r"re:.*shared_experts.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}}},
    },
}  # fmt: skip


def quantise(folder: Path, scheme: str) -> None:
    """Rewrite model.safetensors and config.json of a folder under a scheme of CONFIGS."""
    file, config = folder / "model.safetensors", folder / "config.json"
    rewrite: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]] = {"fp8": _fp8, "mxfp4": _mxfp4, "int4": _int4}[
        scheme
    ]
    tensors = load_file(file)
    save_file(
        {new: value.contiguous() for name in sorted(tensors) for new, value in rewrite(name, tensors[name])},
        file,
        {"format": "pt"},
    )
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": CONFIGS[scheme]}))


def _fp8(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """DeepSeek's: each BLOCK x BLOCK of a projection has one scale."""
    if not re.search(r"layers\.\d+\.(self_attn|mlp)\..*_proj(_with_mqa)?\.weight", name) and not re.search(
        r"_[ab]_proj", name
    ):
        yield name, weight
        return
    rows, columns = (-(-n // BLOCK) for n in weight.shape)
    padded = torch.zeros(rows * BLOCK, columns * BLOCK)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.view(rows, BLOCK, columns, BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-4) / 448
    values = (blocks / scale[:, None, :, None]).view(padded.shape)[: weight.shape[0], : weight.shape[1]]
    yield name, values.to(torch.float8_e4m3fn)
    yield f"{name}_scale_inv", scale


def _mxfp4(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """gpt-oss's: 32 weights share a power of two; drawn at random, since only that bits stay with their expert is asked."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield name, weight
        return
    experts, inner, outer = weight.shape
    drawn = torch.Generator().manual_seed(len(name) + int(re.findall(r"\d+", name)[0]))
    yield f"{name}_blocks", torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8, generator=drawn)
    yield f"{name}_scales", torch.randint(123, 127, (experts, outer, inner // 32), dtype=torch.uint8, generator=drawn)


def _int4(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """compressed-tensors': eight weights in an int32, a scale a group of GROUP, and the shape."""
    if not re.search(r"mlp\.experts\.\d+\..*_proj\.weight", name):
        yield name, weight
        return
    rows, columns = weight.shape
    groups = weight.view(rows, columns // GROUP, GROUP)
    scale = groups.abs().amax(-1).clamp(min=1e-4) / 7
    values = ((groups / scale[..., None]).round().clamp(-8, 7) + 8).view(rows, columns // 8, 8).to(torch.int32)
    packed = sum((values[..., n] << (4 * n) for n in range(1, 8)), values[..., 0])
    stem = name.removesuffix("weight")
    yield f"{stem}weight_packed", packed
    yield f"{stem}weight_scale", scale
    yield f"{stem}weight_shape", torch.tensor([rows, columns])
