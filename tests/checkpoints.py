"""Checkpoints of a few kilobytes, written byte by byte: a Qwen3-MoE in two shards, whose fp32 router makes types of two widths."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from random import Random
from typing import Any

HIDDEN, WIDTH = 8, 4
Entry = tuple[str, list[int]]
#: What lies beside the weights and goes along.
SIDE_FILES = (
    "tokenizer.json",
    "generation_config.json",
    "chat_template.jinja",
    "modeling_mine.py",
    "merges.txt",
    "LICENSE",
)


def write_shard(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A .safetensors file, tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def moe(
    folder: Path, layers: int = 4, experts: int = 8, dtype: str = "BF16", files: bool = True, seed: int = 0
) -> Path:
    """A folder with config, two shards, their index, and what lies beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": layers, "num_experts": experts, "num_experts_per_tok": 2,
        "hidden_size": HIDDEN, "moe_intermediate_size": WIDTH, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 4, "vocab_size": 32, "norm_topk_prob": True, "tie_word_embeddings": True, "mlp_only_layers": [], "decoder_sparse_step": 1,
        "auto_map": {"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    named: dict[str, Entry] = {
        "model.embed_tokens.weight": (dtype, [32, HIDDEN]),
        "model.norm.weight": (dtype, [HIDDEN]),
    }
    for n in range(layers):
        inside: dict[str, Entry] = {"input_layernorm": (dtype, [HIDDEN]), "self_attn.q_proj": (dtype, [HIDDEN, HIDDEN])}
        for e in sorted(range(experts), key=str):  # as transformers writes them
            for part in ("gate_proj", "up_proj"):
                inside[f"mlp.experts.{e}.{part}"] = (dtype, [WIDTH, HIDDEN])
            inside[f"mlp.experts.{e}.down_proj"] = (dtype, [HIDDEN, WIDTH])
        inside["mlp.gate"] = ("F32", [experts, HIDDEN])
        named |= {f"model.layers.{n}.{name}.weight": entry for name, entry in inside.items()}
    draw = Random(seed)
    tensors = {name: (kind, shape, _numbers(draw, kind, prod(shape))) for name, (kind, shape) in named.items()}
    half = len(tensors) // 2
    shards = {
        "model-00001-of-00002.safetensors": list(tensors)[:half],
        "model-00002-of-00002.safetensors": list(tensors)[half:],
    }
    for file, names in shards.items():
        write_shard(
            folder / file, {name: tensors[name] for name in sorted(names, key=lambda name: tensors[name][0] != "F32")}
        )
    weights = {name: file for file, names in shards.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    if files:
        for name in SIDE_FILES:
            (folder / name).write_text(f"the text of {name}")
        for name in ("README.md", "optimizer.pt", "trainer_state.json"):
            (folder / name).write_text("not of the model")
    return folder


def _numbers(draw: Random, dtype: str, count: int) -> bytes:
    """Small floating point numbers: bits of bf16, or of fp32 with the lower half zero."""
    halves = (draw.choice((0x3C00, 0xBC00)) + draw.randrange(256) for _ in range(count))
    width = {"BF16": 2, "F16": 2, "F32": 4}.get(dtype, 1)
    return b"".join(half.to_bytes(2, "little").rjust(width, b"\0")[-width:] for half in halves)
