"""Models of every family, small, from a `ModelSpec`; or any causal language model from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.run.config import BOS, EOS, FAMILIES, PAD, ModelSpec


def build(spec: ModelSpec, vocab: int, positions: int, seed: int) -> Any:
    """A Hugging Face causal LM in float32 with eager attention (SDPA has no double backward on a CPU).

    `positions` is the longest sequence in tokens. The same spec and seed give the same weights.
    """
    import transformers

    if spec.path is not None:
        return _load(spec.path)
    if spec.family not in FAMILIES:
        raise InputError(f"{spec.family!r} is no model family; allowed are {', '.join(FAMILIES)}")
    if spec.experts and spec.top_k > spec.experts:
        raise InputError(f"top_k {spec.top_k} of {spec.experts} experts; at most {spec.experts} can be chosen")
    shape: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": spec.hidden, "num_hidden_layers": spec.layers, "max_position_embeddings": positions,
        "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads, "head_dim": spec.hidden // spec.heads,
        "intermediate_size": spec.width, "attn_implementation": "eager", "pad_token_id": PAD, "bos_token_id": BOS,
        "eos_token_id": EOS, "tie_word_embeddings": False,
        # Default 0.02 suits a width of thousands; this keeps the variance of a projection at these widths.
        "initializer_range": spec.hidden**-0.5 * 0.6,
    }  # fmt: skip
    if spec.experts:
        shape |= _experts(spec)
    stem = {"qwen3_moe": "Qwen3Moe", "mixtral": "Mixtral", "deepseek_v3": "DeepseekV3", "olmoe": "Olmoe", "qwen3": "Qwen3", "llama": "Llama"}  # fmt: skip
    config = getattr(transformers, f"{stem[spec.family]}Config")(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{stem[spec.family]}ForCausalLM")(config)
    if spec.experts:
        model.set_experts_implementation("grouped_mm")
    return model.eval()


def _experts(spec: ModelSpec) -> dict[str, Any]:
    common = {"num_experts_per_tok": spec.top_k, "moe_intermediate_size": spec.width, "output_router_logits": False}
    if spec.family == "mixtral":
        return common | {"num_local_experts": spec.experts, "sliding_window": None}
    if spec.family == "deepseek_v3":
        rope = spec.hidden // spec.heads // 2
        return common | {
            "n_routed_experts": spec.experts, "n_group": spec.groups, "topk_group": spec.top_groups, "kv_lora_rank": spec.hidden // 2,
            "q_lora_rank": None, "qk_rope_head_dim": rope, "qk_nope_head_dim": rope, "v_head_dim": spec.hidden // spec.heads,
            "num_key_value_heads": spec.heads, "head_dim": rope, "first_k_dense_replace": spec.dense_layers,
            "n_shared_experts": spec.shared_experts, "norm_topk_prob": spec.norm_top_k, "routed_scaling_factor": 1.0,
            "intermediate_size": 2 * spec.width,
        }  # fmt: skip
    return common | {"num_experts": spec.experts, "norm_topk_prob": spec.norm_top_k and spec.family != "olmoe"}


def _load(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    if not (Path(path) / "config.json").is_file():
        raise InputError(f"{path}: no config.json in it; give the folder of a Hugging Face checkpoint")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, dtype=torch.float32, attn_implementation="eager"
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be loaded as a causal language model ({error})") from error
    return model.eval()


def decoder(model: Any) -> Any:
    """The module that holds `layers`, `norm`, and `embed_tokens`."""
    return getattr(model.model, "language_model", model.model)


def routers(layers: nn.ModuleList) -> dict[int, nn.Module]:
    """Routers by layer. In every family here one returns (logits [N, E], weights [N, K], indices [N, K])."""
    found = {}
    for number, layer in enumerate(layers):
        for module in layer.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                found[number] = module
    return found


def router_scores(router: Any, logits: Tensor) -> Tensor:
    """[N, E] what the family makes of logits: sigmoid where the router has a selection bias (DeepSeek), else softmax."""
    return logits.float().sigmoid() if hasattr(router, "e_score_correction_bias") else logits.float().softmax(-1)


def gate_weights(router: Any, scores: Tensor, chosen: Tensor) -> Tensor:
    """[N, K] weights of the chosen experts, renormalised and scaled as the family does."""
    weights = scores.gather(1, chosen)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    scaled: Tensor = weights * getattr(router, "routed_scaling_factor", 1.0)
    return scaled


def experts(layers: nn.ModuleList) -> dict[int, nn.Module]:
    """Expert banks by layer: modules with `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I]."""
    found = {}
    for number, layer in enumerate(layers):
        for module in layer.modules():
            if isinstance(getattr(module, "gate_up_proj", None), nn.Parameter):
                found[number] = module
    return found
