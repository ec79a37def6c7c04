"""Families as data: rows, what a config says by them, and what a tensor's name means."""

from __future__ import annotations

import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import faultproxy.proxy
from faultproxy.analyzer.errors import FaultproxyError, InputError
from faultproxy.proxy.families import families, find_family, read_families
from faultproxy.proxy.shape import place, read_shape

QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 6,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 6, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1, "scoring_func": "sigmoid",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "num_hidden_layers": 2, "num_local_experts": 32, "experts_per_token": 4, "num_experts_per_tok": 4,
    "layer_types": ["sliding_attention", "full_attention"], "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


def rows() -> dict[str, Any]:
    return tomllib.loads((Path(faultproxy.proxy.__path__[0]) / "families.toml").read_text("utf-8"))


def test_at_least_25_families_are_known_and_each_model_type_has_one() -> None:
    assert len(families()) >= 25
    for family in families().values():
        assert all(find_family({"model_type": model_type}) is family for model_type in family.model_types)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"exprts": ["a"]}, "row mixtral: 'exprts' is no key of a family; did you mean experts"),
        ({"experts": "a"}, "row mixtral: experts must be a list"),
        ({"router": [1]}, "row mixtral: router must be a list"),
        ({"like": "mixtrall"}, "row mixtral: like = 'mixtrall' is no other row"),
        ({"like": "phimoe"}, "row mixtral: like = 'mixtral' is no other row|row phimoe"),
        ({"scoring": "softmx"}, "row mixtral: scoring must be one of softmax"),
        ({"parts": []}, "row mixtral: has experts, so it needs parts or fused"),
        ({"fused": [{"name": "w", "axes": ["H"]}]}, "row mixtral: fused w needs one axis E"),
        ({"fused": [{"nme": "w", "axes": ["E"]}]}, "row mixtral: .*nme"),
        ({"router_axis": {"x": 1}}, "row mixtral: router_axis names x"),
        ({"model_types": ["mixtral", "jamba"]}, "both claim model_type 'jamba'"),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, Any], why: str) -> None:
    document = rows()
    document["family"]["mixtral"] |= change
    with pytest.raises(FaultproxyError, match=why):
        read_families(document)


def test_the_shape_of_a_flat_config() -> None:
    shape = read_shape(DEEPSEEK)
    assert (shape.layers, shape.experts, shape.sparse) == (6, (0, 0, 0, 256, 256, 256), (3, 4, 5))
    assert (shape.top_k[3], shape.groups, shape.top_groups, shape.mtp_layers, shape.quantisation) == (8, 8, 4, 1, "fp8")


def test_a_nested_text_config_is_the_one_that_counts() -> None:
    text = DEEPSEEK | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1}
    shape = read_shape({"model_type": "kimi_k25", "vision_config": {"num_hidden_layers": 27}, "text_config": text})
    assert (shape.family.name, shape.layers, shape.groups) == ("deepseek_v3", 6, 1)
    omni = read_shape({"model_type": "x", "thinker_config": {"model_type": "y", "text_config": QWEN3}})
    assert (omni.family.name, omni.layers) == ("qwen3_moe", 6)


@pytest.mark.parametrize(
    ("config", "sparse"),
    [
        (QWEN3 | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, (1, 5)),
        ({"model_type": "jamba", "num_hidden_layers": 6, "num_experts": 4, "num_experts_per_tok": 2}, (1, 3, 5)),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}, (1, 3)),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 1, "moe_layers": [2]}, (2,)),
        (
            {"model_type": "ernie4_5_moe", "num_hidden_layers": 6, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1,
             "moe_layer_end_index": 4, "moe_layer_interval": 2}, (1, 3),
        ),
        ({"model_type": "deepseek_v32", "num_hidden_layers": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse"]}, (1, 2)),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-E", "n_routed_experts": 4, "num_experts_per_tok": 2}, (1, 4)),
        ({"model_type": "deepseek_v2", "num_hidden_layers": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1, 0, 1]}, (1, 3)),
    ],
)  # fmt: skip
def test_which_layers_have_experts(config: dict[str, Any], sparse: tuple[int, ...]) -> None:
    assert read_shape(config).sparse == sparse


def test_experts_and_top_k_may_differ_by_layer() -> None:
    shape = read_shape(
        {"model_type": "hunyuan_v1_moe", "num_hidden_layers": 2, "num_experts": [4, 8], "moe_topk": [1, 2]}
    )
    assert (shape.experts, shape.top_k) == ((4, 8), (1, 2))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (QWEN3 | {"num_local_experts": 128}, "disagrees with itself: num_experts = 8, num_local_experts = 128"),
        (
            {"model_type": "qwen3_vl_moe", "num_experts": 4, "text_config": QWEN3},
            "text_config.num_experts = 8, num_experts = 4",
        ),
        (QWEN3 | {"num_experts": None}, "num_experts or num_local_experts = None"),
        (QWEN3 | {"num_experts": "8"}, "needed is a count"),
        (QWEN3 | {"num_experts": 4096, "num_local_experts": 4096}, "4096; at most 2048 are possible"),
        (QWEN3 | {"num_hidden_layers": 10**9}, "needed is a count"),
        (QWEN3 | {"num_hidden_layers": 0}, "between 1 and 1000"),
        (QWEN3 | {"layer_types": ["full_attention"] * 5}, "layer_types has 5 entries for 6 layers"),
        (QWEN3 | {"mlp_only_layers": "3"}, "no list of layer numbers"),
        ({"model_type": "qwen3_mo"}, "did you mean qwen3_moe"),
        ({}, "no model_type of a known family"),
        (
            QWEN3 | {"quantization_config": reduce(lambda inner, _: [inner], range(60), [])},
            "nests deeper than the 50 levels",
        ),
        ({"model_type": ["\x1b[31m"]}, "known family"),
    ],
)
def test_a_config_that_cannot_be_trusted_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_shape(config)


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (DEEPSEEK, "model.embed_tokens.weight", ("global", None, None, "")),
        (DEEPSEEK, "model.layers.1.mlp.gate_proj.weight", ("layer", 1, None, "")),
        (DEEPSEEK, "model.layers.4.mlp.gate.weight", ("router", 4, None, "")),
        (DEEPSEEK, "model.layers.4.mlp.gate.e_score_correction_bias", ("router", 4, None, "")),
        (DEEPSEEK, "model.layers.4.mlp.experts.255.down_proj.weight_scale_inv", ("expert", 4, 255, "weight_scale_inv")),
        (DEEPSEEK, "model.layers.4.mlp.experts.7.up_proj.weight_packed", ("expert", 4, 7, "weight_packed")),
        (DEEPSEEK, "model.layers.4.mlp.shared_experts.up_proj.weight", ("shared", 4, None, "")),
        (DEEPSEEK, "model.layers.6.mlp.experts.0.up_proj.weight", ("mtp", 6, None, "")),
        (DEEPSEEK, "mtp.layers.0.x", ("mtp", None, None, "")),
        (DEEPSEEK, "vision_tower.encoder.layers.3.mlp.gate.weight", ("global", None, None, "")),
        (GPT_OSS, "model.layers.0.mlp.experts.gate_up_proj_blocks", ("fused", 0, None, "_blocks")),
        (GPT_OSS, "model.layers.0.mlp.experts.down_proj_bias", ("fused", 0, None, "_bias")),
        (GPT_OSS, "model.layers.1.mlp.router.bias", ("router", 1, None, "")),
    ],
)
def test_what_a_tensor_is(config: dict[str, Any], name: str, expected: tuple[Any, ...]) -> None:
    found = place(read_shape(config), name)
    assert (found.kind, found.layer, found.expert, found.companion) == expected


@pytest.mark.parametrize(
    "name",
    [
        "mlp.experts.0.w9.weight",
        "mlp.experts.0.up_proj.weight_secret",
        "mlp.experts.gate_up_proj",
        "mlp.gate.scale",
        "mlp.experts.x.up_proj.weight",
        "mlp.experts.01.up_proj.weight",
        "mlp.experts.\u0663.up_proj.weight",
    ],
)
def test_an_unknown_tensor_of_a_router_or_expert_is_refused_and_not_copied_uncut(name: str) -> None:
    with pytest.raises(InputError, match="no tensor of a router or expert"):
        place(read_shape(DEEPSEEK), f"model.layers.4.{name}")


def test_fused_layouts_say_where_gate_and_up_lie() -> None:
    layouts = {
        name: next((one.name, one.axes, one.gate_up) for one in families()[name].fused)
        for name in ("qwen3_5_moe", "qwen3_vl_moe", "gpt_oss")
    }
    assert layouts == {
        "qwen3_5_moe": ("experts.gate_up_proj", ("E", "2I", "H"), "halves"),
        "qwen3_vl_moe": ("experts.gate_up_proj", ("E", "H", "2I"), "halves"),
        "gpt_oss": ("experts.gate_up_proj", ("E", "H", "2I"), "interleaved"),
    }
