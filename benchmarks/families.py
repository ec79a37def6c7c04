"""Round trip of every family that transformers builds: `python benchmarks/families.py [--only TYPE ...] [--save]`.

A tiny random model is saved, cut in experts and depth by `faultproxy proxy build` without torch, and loaded again. Asked
is that no key is missing or unexpected, and that the logits equal those of the original in which the router's logits of dropped
experts are set to -inf (and their selection bias to -1e9), and dropped layers hand on what they get. `max_diff` is the largest
difference of a logit (a router of fewer rows is multiplied in another order, so the last bits differ), `unmasked_diff` the same with
nothing masked: what the test would see if experts were mixed up. `experts_equal` counts the layers whose experts, fed what the cut
model's router sends them, give the same bits as the original's. Quantised rows need accelerate and compressed-tensors. `--save` writes benchmarks/families.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.build import build as build_proxy
from faultproxy.proxy.checkpoint import read_checkpoint, read_json
from faultproxy.proxy.cut import Cut, cut_model
from faultproxy.proxy.families import find_family
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.shape import read_shape
from faultproxy.proxy.source import open_source

sys.path.insert(0, str(Path(__file__).parent))
from quantise import quantise

EXPERTS, GROUPS, TOP_K = 16, 4, 4
# Given to every config that has the field. No width equals the number of experts, so a router is known by its shape.
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "moe_intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS, "moe_num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K, "num_experts_per_token": TOP_K, "moe_k": TOP_K, "moe_topk": TOP_K, "n_group": GROUPS,
    "topk_group": 2, "num_expert_group": GROUPS, "kv_lora_rank": 20, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "qk_head_dim": 16, "first_k_dense_replace": 2, "num_dense_layers": 2, "n_shared_experts": 1, "o_lora_rank": 20,
    "num_shared_experts": 1, "moe_num_shared_experts": 1, "shared_expert_intermediate_size": 24, "index_n_heads": 2, "o_groups": 2,
    "index_head_dim": 8, "index_topk": 4, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_dt_rank": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 48, "zero_expert_num": 4, "moe_shared_expert_intermediate_size": 24, "intermediate_size_mlp": 48,
    "shared_intermediate_size": 24, "tie_word_embeddings": False, "initializer_range": 0.3, "use_mamba_kernels": False,
    "block_size": 16, "short_conv_kernel_size": 4, "norm_topk_prob": True,
}  # fmt: skip
HYBRID = ["mamba", "attention"] * 4
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
# model_type -> what differs: config fields, kept layers, and `whole` where experts cannot be cut.
CASES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "phimoe": {"config": {"num_experts_per_tok": 2}},
    "minimax": {},
    "minimax_m2": {},
    "qwen2_moe": {"config": {"norm_topk_prob": False, "decoder_sparse_step": 2}},
    "qwen3_moe": {"config": {"mlp_only_layers": [3]}},
    "qwen3_next": {"layers": [0, 2, 3, 4]},
    "qwen3_5_moe_text": {"layers": [0, 2, 3, 4]},
    "deepseek_v2": {"config": {"topk_method": "group_limited_greedy", "norm_topk_prob": False}},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "deepseek_v4": {"config": {"head_dim": 16}, "layers": [3, 4, 6]},
    "dots1": {},
    "solar_open": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "glm_moe_dsa": {},
    "axk1": {},
    "mimo_v2_flash": {"config": {"num_key_value_heads": 2}},
    "kimi_linear": {"config": {"linear_head_dim": 8, "linear_num_heads": 4}, "layers": [0, 2, 4, 7]},
    "olmoe": {"config": {"norm_topk_prob": False}},
    "flex_olmo": {},
    "gpt_oss": {},
    "ernie4_5_moe": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granitemoehybrid": {"config": {"layer_types": HYBRID}},
    "dbrx": {
        "config": {
            "d_model": 32, "n_heads": 4, "n_layers": 8, "max_seq_len": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "attn_config": {"kv_n_heads": 4, "rope_theta": 1e4, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": EXPERTS, "moe_top_k": TOP_K},
        },
    },
    "jamba": {"layers": [0, 1, 2, 3, 4, 7]},
    "llama4_text": {"config": {"interleave_moe_layer_step": 2, "num_experts_per_tok": 1}},
    "hunyuan_v1_moe": {},
    "bailing_hybrid": {"layers": [0, 2, 5, 7]},
    "sarvam_moe": {},
    "sarvam_mla": {},
    "axk2": {},
    "flint": {},
    "mellum": {},
    "lfm2_moe": {"config": {"layer_types": ["conv", "full_attention"] * 4}},
    "nemotron_h": {
        "config": {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe", "full_attention", "moe"],
            "num_hidden_layers": ...,
        },
        "layers": [0, 2, 3, 5, 7],
    },
    "exaone_moe": {},
    "afmoe": {},
    "hy_v3": {},
    "laguna": {"config": {"num_attention_heads_per_layer": [4] * 8}},
    "cohere2_moe": {},
    "longcat_flash": {"config": {"num_layers": 8, "num_hidden_layers": 16}},
    "qwen3_vl_moe": {"vision": VISION | {"deepstack_visual_indexes": [0]}, "config": {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}},
    "qwen3_5_moe": {"vision": VISION, "layers": [0, 2, 3, 4]},
    "glm4v_moe": {
        "vision": {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32},
        "config": {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 0]}},
    },
    "kimi_k25": {"vision": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}},
    "llama4": {
        "vision": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 28},
        "config": {"num_experts_per_tok": 1},
    },
    "jetmoe": {"whole": True, "config": {"num_experts_per_tok": 2, "num_key_value_heads": 2}},
    # Quantised on disk, computed in float32.
    "gpt_oss+mxfp4": {"config": {"intermediate_size": 64}},
    "deepseek_v3+fp8": {},
    "qwen3_moe+fp8": {},
    "deepseek_v3+int4": {"config": {"moe_intermediate_size": 32}},
    # Without experts: depth alone.
    **{name: {} for name in ("llama", "mistral", "phi3", "glm", "granite", "seed_oss", "smollm3", "ernie4_5", "olmo2", "hunyuan_v1_dense", "qwen2", "qwen3", "gpt_neox", "starcoder2", "phi")},
    "qwen3_5_text": {"layers": [0, 2, 3, 4]},
    "gemma2": {"layers": [0, 3, 4, 7]},
    "gemma3_text": {"layers": [0, 2, 3, 5]},
    "exaone4": {"config": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"]}},
    "olmo3": {"config": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"]}},
    "qwen2_5_vl": {
        "vision": {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32, "fullatt_block_indexes": [1]},
        "config": {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]}},
    },
    "qwen3_vl": {"vision": VISION | {"deepstack_visual_indexes": [0]}, "config": {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}},
}  # fmt: skip


def build(model_type: str, case: dict[str, Any]) -> Any:
    """A tiny model with random weights, random selection biases included."""
    kind = transformers.CONFIG_MAPPING[model_type.partition("+")[0]]
    whole = kind()
    text = whole.text_config if "vision" in case else whole
    given = {key: value for key, value in SMALL.items() if key in text.to_dict() or key in dir(text)} | case.get(
        "config", {}
    )
    given = {key: value for key, value in given.items() if value is not ...}
    config = kind(text_config=given, vision_config=case["vision"]) if "vision" in case else kind(**given)
    torch.manual_seed(0)
    model = _auto(model_type).from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            if _bias(name) or name.endswith("router.bias"):
                # Positive: 4.57 fills masked groups with 0, which would win over a negative score and bias.
                tensor.uniform_(0.1, 0.3)
    return model


def _auto(model_type: str) -> Any:
    return (
        transformers.AutoModelForImageTextToText if "vision" in CASES[model_type] else transformers.AutoModelForCausalLM
    )


def cut_folder(source: Path, target: Path, layers: list[int], experts: dict[int, list[int]]) -> Cut:
    """Build a proxy of exactly these layers and experts."""
    keep = {n: tuple(ids) for n, ids in experts.items()}
    recipe = Recipe(tuple(layers), budgets={n: len(ids) for n, ids in keep.items()}, keep=keep, method="first")
    made = build_proxy(read_checkpoint(open_source(str(source))), recipe, target)
    kept = {int(n): tuple(ids) for n, ids in made.document["kept"]["experts"].items()}
    if kept | keep != kept:
        raise RuntimeError(f"{keep} was asked for, {kept} kept")
    return cut_model(read_json(source / "config.json"), layers, kept)


class Masked(TorchFunctionMode):
    """Sets the logits of dropped experts to -inf wherever a router's weight is multiplied."""

    def __init__(self, dropped: dict[int, list[int]]) -> None:
        self.dropped = dropped
        self.used: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("linear", "matmul", "__matmul__"):
            for one in args:
                rows = self.dropped.get(one.data_ptr()) if isinstance(one, Tensor) else None
                if rows is not None:
                    self.used.add(one.data_ptr())
                    out = out.index_fill(-1, torch.tensor(rows, dtype=torch.long), float("-inf"))
        return out


def round_trip(model_type: str) -> dict[str, Any]:
    """Save, cut, load, compare; see the head of this file."""
    case = CASES[model_type]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "whole", Path(folder) / "cut"
        build(model_type, case).save_pretrained(source)
        if scheme := model_type.partition("+")[2]:
            quantise(source, scheme)
        shape = read_shape(read_json(source / "config.json"))
        layers = case.get("layers", [0, 3, 4, 7])
        # Another half of each group in each layer.
        size = EXPERTS // GROUPS
        kept = {
            n: [g * size + k for g in range(GROUPS) for k in sorted({(n + g) % size, (n + g + 1 + n % 2) % size})]
            for n in layers
        }
        experts = {} if case.get("whole") else {n: kept[n] for n in layers if shape.experts[n]}
        cut = cut_folder(source, target, layers, experts)
        whole, _ = _load(model_type, source)
        small, info = _load(model_type, target)
        tokens = torch.randint(3, 64, (4, 24), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            equal = _experts_equal(whole, small, cut, tokens)
            _pass_dropped(whole, cut)
            plain = _logits(whole, tokens)
            wanted = _masked_logits(whole, cut, tokens)
            got = _logits(small, tokens)
    return {
        "model_type": model_type, "family": find_family(cut.config).name, "layers": f"{shape.layers} -> {len(layers)}",
        "experts": f"{max(shape.experts)} -> {max(map(len, cut.experts.values()), default=0)}", "missing": len(info["missing_keys"]),
        "unexpected": len(info["unexpected_keys"]), "finite": bool(torch.isfinite(got).all()),
        "experts_equal": equal, "max_diff": float((got - wanted).abs().max()), "unmasked_diff": float((got - plain).abs().max()),
        "largest_logit": float(wanted.abs().max()), "warnings": list(cut.warnings),
    }  # fmt: skip


def _load(model_type: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    model, info = _auto(model_type).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval(), info


def _logits(model: Any, tokens: Tensor) -> Tensor:
    # llama4 with vision fails without an image; its language model is a whole causal model of its own.
    model = model.language_model if hasattr(getattr(model, "language_model", None), "lm_head") else model
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _bias(name: str) -> bool:
    return name.endswith(("e_score_correction_bias", "expert_bias", "ffn.gate.bias", "mlp.gate.bias"))


def _router(name: str, tensor: Tensor, zero: int) -> bool:
    named = re.search(r"\.(gate|router|classifier|wg|layer)\.weight$", name)
    return bool(named) and tensor.dim() == 2 and len(tensor) == EXPERTS + zero


def _masked_logits(model: Any, cut: Cut, tokens: Tensor) -> Tensor:
    zero = cut.shape.zero_experts
    dropped: dict[int, list[int]] = {}
    for name, tensor in _tensors(model).items():
        found = re.search(r"\.(?:layers|blocks)\.(\d+)\.(.*)", name)
        if not found or int(found[1]) not in cut.experts or tensor.shape[-1] == 0:
            continue
        rows = sorted(set(range(EXPERTS)) - set(cut.experts[int(found[1])]))
        if _bias(name):
            tensor[..., rows] = -1e9
        elif _router(name, tensor, zero):
            dropped[tensor.data_ptr()] = rows
    mask = Masked(dropped)
    with mask:
        logits = _logits(model, tokens)
    if mask.used != dropped.keys() or len(dropped) < len(cut.experts):
        raise RuntimeError(f"{len(mask.used)} of {len(cut.experts)} routers masked; the comparison would mean nothing")
    return logits


def _layers(model: Any, count: int) -> nn.ModuleList:
    named = [
        (name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count
    ]
    [stack] = [part for name, part in named if name.endswith(("layers", "blocks"))]
    return stack


def _experts_equal(whole: Any, small: Any, cut: Cut, tokens: Tensor) -> str:
    """In how many layers the experts give the same bits as the original's, on what the cut model's router sends them."""
    if transformers.__version__.startswith("4."):
        return "-"  # its experts are lists of modules, or take weights of all experts
    asked: dict[int, tuple[str, tuple[Any, ...], dict[str, Any], Tensor]] = {}
    for n, layer in enumerate(_layers(small, len(cut.layers))):
        for name, part in layer.named_modules():
            if name.endswith(".experts") and "self_att" not in name and not isinstance(part, nn.ModuleList):
                part.register_forward_hook(
                    lambda _, args, named, out, n=n, name=name: asked.update({n: (name, args, named, out)}),
                    with_kwargs=True,
                )
    _logits(small, tokens)
    same = 0
    for n, (name, args, named, out) in asked.items():
        kept, zero = cut.experts[cut.layers[n]], cut.shape.zero_experts
        old = torch.tensor([*kept, *range(EXPERTS, EXPERTS + zero)])

        def original(a: Any, old: Tensor = old) -> Any:
            return old[a] if isinstance(a, Tensor) and not a.is_floating_point() else a

        experts = dict(_layers(whole, cut.shape.layers)[cut.layers[n]].named_modules())[name]
        if len(args) + len(named) == 1:  # llama4 hands on what each expert gets, expert by expert
            experts = copy.deepcopy(experts)
            for weights in experts.parameters():
                weights.data = weights.data[old]
            same += torch.equal(experts(*args), out)
        else:
            same += torch.equal(experts(*map(original, args), **{key: original(a) for key, a in named.items()}), out)
    return f"{same} of {len(asked)}" if asked else "-"


def _pass_dropped(model: Any, cut: Cut) -> None:
    for n, layer in enumerate(_layers(model, cut.shape.layers)):
        if n not in cut.layers:
            layer.register_forward_hook(_pass_on, with_kwargs=True)


def _pass_on(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    before = args[0] if args else kwargs["hidden_states"]
    return (before, *output[1:]) if isinstance(output, tuple) else before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # matrices this small lose by being shared out
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = []
    for model_type in options.only:
        try:
            row = round_trip(model_type)
        except ERRORS as error:
            row = {"model_type": model_type, "error": f"{type(error).__name__}: {error}"[:300]}
        rows.append(row)
        print(
            " ".join(f"{row[key]!s:>{width}}" for key, width in COLUMNS.items()) if "error" not in row else row,
            flush=True,
        )
    if options.save:
        path = Path(__file__).with_suffix(".json")
        results = json.loads(path.read_text()) if path.exists() else {}
        results[f"transformers {transformers.__version__}"] = rows
        path.write_text(json.dumps(results, indent=1) + "\n")


ERRORS = (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError, InputError)
COLUMNS = {
    "model_type": 18,
    "family": 17,
    "layers": 7,
    "experts": 8,
    "missing": 2,
    "unexpected": 2,
    "finite": 6,
    "experts_equal": 7,
    "max_diff": 23,
    "unmasked_diff": 19,
    "largest_logit": 18,
}

if __name__ == "__main__":
    main()
