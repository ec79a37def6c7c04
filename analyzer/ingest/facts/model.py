"""The shape of a model from its configuration, under whatever names its family uses.

The names follow the configuration classes of transformers and the arguments of Megatron-LM. Which layers route is stated
by a list, a period, a first and last layer, or by the family (all of them); where nothing states it, it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultproxy.analyzer.lazy import lazy

#: Sub-configurations that hold the language model of a larger one, and dbrx's feed-forward block.
_INNER = ("text_config", "llm_config", "language_config", "thinker_config", "ffn_config")
_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups"),
    "vocab": ("vocab_size",),
    "width": ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size", "ffn_hidden_size"),
    "experts": ("n_routed_experts", "num_routed_experts", "moe_num_experts", "num_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_router_topk", "moe_topk", "moe_top_k", "moe_k"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "groups": ("n_group", "num_expert_group", "moe_router_num_groups"),
    "top_groups": ("topk_group", "moe_router_group_topk"),
    "norm_top_k": ("norm_topk_prob", "moe_renormalize"),
    "scoring": ("scoring_func", "score_function", "moe_router_score_function"),
    "aux_coefficient": ("router_aux_loss_coef", "aux_loss_alpha"),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_layers"),
    "dtype": ("torch_dtype", "dtype"),
    "family": ("model_type",),
}  # fmt: skip
#: Families in which every layer routes and no key says so.
_ALL_ROUTE = {
    "mixtral", "phimoe", "minimax", "minimax_m2", "olmoe", "flex_olmo", "gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid",
    "dbrx", "hunyuan_v1_moe", "bailing_moe", "qwen3_5_moe", "qwen3_5_moe_text", "pangu_pro_moe", "longcat_flash",
}  # fmt: skip
MAX_LAYERS = 4096
#: Megatron's `--moe-layer-freq "([0]*3+[1]*58)"`: lists of 0 and 1, repeated and joined.
_PATTERN = lazy(r"\[([01, ]{1,9000})\](?:\s?\*\s?(\d{1,5}))?")


def is_model(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object is the configuration of a model and not some other `config.json`."""
    shape = _merged(config)
    return ("model_type" in config or "architectures" in config) and any(name in shape for name in _NAMES["layers"])


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about the model that a configuration (or a dump of arguments) states, without what it does not."""
    shape = _merged(config)
    found = {f"model.{fact}": _first(shape, names) for fact, names in _NAMES.items()}
    quantisation = shape.get("quantization_config") or config.get("quantization_config")
    if isinstance(quantisation, Mapping):
        found["model.quantisation"] = quantisation.get("quant_method")
    layers, experts = found["model.layers"], found["model.experts"]
    if type(layers) is int and 0 < layers <= MAX_LAYERS and type(experts) is int and experts > 1:
        routing = moe_layers(shape, layers)
        if routing is not None and len(routing):
            found["model.moe_layers"] = routing
            found["model.dense_layers"] = layers - len(routing)
    elif experts in (0, 1):
        found["model.experts"] = 0
    return {fact: value for fact, value in found.items() if value is not None}


def _merged(config: Mapping[str, Any]) -> dict[str, Any]:
    shape = dict(config)
    for name in _INNER:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            if isinstance(deeper := inner.get("text_config"), Mapping):
                inner = deeper
            shape.update({key: value for key, value in inner.items() if value is not None})
    return shape


def _first(shape: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        value = shape.get(name)
        if isinstance(value, list) and value:
            first = value[0]  # one number a layer, the same for all
            value = first if isinstance(first, (int, float)) and value.count(first) == len(value) else None
        if value is not None and not isinstance(value, (list, dict)):
            return value
    return None


def moe_layers(shape: Mapping[str, Any], layers: int) -> list[int] | None:
    """The absolute indices of the layers with a router, or None where the configuration does not say."""
    for name, routed in (("mlp_layer_types", ("sparse", "moe")), ("layers_block_type", ("moe",))):
        listed = shape.get(name)
        if isinstance(listed, list) and len(listed) == layers:
            return [layer for layer, word in enumerate(listed) if word in routed]
    listed = shape.get("moe_layers")
    if isinstance(listed, list) and listed:
        return sorted({layer for layer in listed if type(layer) is int and 0 <= layer < layers})
    step = _whole(shape, "interleave_moe_layer_step")
    if step:
        return list(range(step - 1, layers, step))
    pattern = _pattern(shape.get("moe_layer_freq"))
    if pattern is not None:
        return [layer for layer, routed in enumerate(pattern) if routed] if len(pattern) == layers else None
    period = _whole(shape, "expert_layer_period")
    if period:
        offset = _whole(shape, "expert_layer_offset") or 0
        return [layer for layer in range(layers) if layer % period == offset]
    if "moe_layer_start_index" in shape or "moe_layer_interval" in shape:
        first, last = _whole(shape, "moe_layer_start_index") or 0, shape.get("moe_layer_end_index")
        last = last if type(last) is int and last >= 0 else layers - 1
        every = _whole(shape, "moe_layer_interval") or 1
        return [layer for layer in range(layers) if first <= layer <= last and (layer + 1) % every == 0]
    if "decoder_sparse_step" in shape or "mlp_only_layers" in shape:
        every = _whole(shape, "decoder_sparse_step") or 1
        listed = shape.get("mlp_only_layers")
        dense = {layer for layer in listed if type(layer) is int} if isinstance(listed, list) else set()
        return [layer for layer in range(layers) if layer not in dense and (layer + 1) % every == 0]
    leading = next((shape[name] for name in ("first_k_dense_replace", "num_dense_layers") if name in shape), None)
    every = _whole(shape, "moe_layer_freq") or 1
    if type(leading) is int:
        return [layer for layer in range(layers) if layer >= leading and layer % every == 0]
    if "moe_layer_freq" in shape and type(shape["moe_layer_freq"]) is int:
        return list(range(0, layers, every))
    family = shape.get("model_type")
    return list(range(layers)) if isinstance(family, str) and family in _ALL_ROUTE else None


def _whole(shape: Mapping[str, Any], name: str) -> int | None:
    value = shape.get(name)
    return value if type(value) is int and value > 0 else None


def _pattern(value: Any) -> list[int] | None:
    if isinstance(value, list):
        return value if len(value) <= MAX_LAYERS and all(entry in (0, 1) for entry in value) else None
    if not isinstance(value, str) or len(value) > 20_000 or "[" not in value:
        return None
    found: list[int] = []
    for part in _PATTERN.finditer(value):
        piece = [int(digit) for digit in part[1] if digit in "01"]
        found += piece * min(int(part[2] or 1), MAX_LAYERS // max(1, len(piece)) + 1)
        if len(found) > MAX_LAYERS:
            return None
    rest = _PATTERN.sub("", value)
    return found if found and not rest.strip("()+ '\"") else None
