"""Cuts: what becomes of tensors and config, and the silent failures that are refused with the nearest valid choice."""

from __future__ import annotations

import contextlib
import random
import re
from copy import deepcopy
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cut import check_complete, cut_model, decide
from faultproxy.proxy.families import families

QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "mlp_only_layers": [2], "max_window_layers": 6,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 6, "first_k_dense_replace": 3, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "ignore": ["lm_head", "model.layers.4.mlp.gate", "model.layers.5.mlp.experts.9.up_proj", "model.layers.6.eh_proj", "re:.*layers\\.3\\..*"]},
}  # fmt: skip
NEXT: dict[str, Any] = {"model_type": "qwen3_next", "num_hidden_layers": 8, "num_experts": 8, "num_experts_per_tok": 2}
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "num_hidden_layers": 4, "moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {"model_type": "gpt_oss", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2}  # fmt: skip
DSA: dict[str, Any] = {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "indexer_types": ["full", "full", "shared", "full"],
}  # fmt: skip
EACH = [0, 1, 4, 5, 8, 9, 12, 13]


def test_every_alias_and_index_of_the_config_follows_the_cut() -> None:
    cut = cut_model(QWEN3, [0, 2, 5], {0: [1, 3, 4], 5: [0, 6, 7]})
    wanted = {
        "num_hidden_layers": 3,
        "num_experts": 3,
        "num_local_experts": 3,
        "mlp_only_layers": [1],
        "max_window_layers": 3,
    }
    assert {key: cut.config[key] for key in wanted} == wanted
    assert QWEN3["num_experts"] == 8
    assert cut.warnings == ()


def test_names_and_rows_of_tensors_follow_the_cut() -> None:
    cut = cut_model(QWEN3, [0, 2, 5], {0: [1, 3, 4], 5: [0, 6, 7]})
    assert decide(cut, "model.layers.5.mlp.gate.weight", (8, 4)).runs == ((0, 1), (6, 8))
    assert (
        decide(cut, "model.layers.5.mlp.experts.6.up_proj.weight", (3, 4)).name
        == "model.layers.2.mlp.experts.1.up_proj.weight"
    )
    assert decide(cut, "model.layers.5.mlp.experts.5.up_proj.weight", (3, 4)).action == "drop"
    assert decide(cut, "model.layers.4.input_layernorm.weight", (4,)).action == "drop"
    assert decide(cut, "model.layers.2.mlp.gate_proj.weight", (4, 4)).name == "model.layers.1.mlp.gate_proj.weight"
    assert decide(cut, "lm_head.weight", (9, 4)).action == "keep"
    with pytest.raises(InputError, match="axis 0 must count 8 experts"):
        decide(cut, "model.layers.5.mlp.gate.weight", (7, 4))
    with pytest.raises(InputError, match="expert 8 of 8"):
        decide(cut, "model.layers.5.mlp.experts.8.up_proj.weight", (3, 4))


def test_dense_first_mtp_and_quantisation_names_follow_the_cut() -> None:
    cut = cut_model(DEEPSEEK, [0, 4, 5], {4: EACH, 5: EACH})
    assert (cut.config["first_k_dense_replace"], cut.config["num_nextn_predict_layers"], cut.config["n_group"]) == (
        1,
        0,
        4,
    )
    assert cut.config["quantization_config"]["ignore"] == [
        "lm_head",
        "model.layers.1.mlp.gate",
        "model.layers.2.mlp.experts.5.up_proj",
    ]
    assert decide(cut, "model.layers.6.eh_proj.weight", (4, 8)).action == "drop"


def test_fused_and_quantised_tensors_are_cut_by_expert() -> None:
    config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 1}
    cut = cut_model(config, [0], {0: [0, 2, 3]})
    inside = "model.layers.0.mlp.experts."
    for name, shape in (
        ("gate_up_proj_blocks", (4, 6, 2, 16)),
        ("gate_up_proj_scales", (4, 6, 2)),
        ("down_proj_bias", (4, 2)),
    ):
        assert (decide(cut, inside + name, shape).axis, decide(cut, inside + name, shape).runs) == (0, ((0, 1), (2, 4)))
    assert decide(cut, inside + "down_proj_input_scale", (1,)).action == "keep"
    dbrx = {"model_type": "dbrx", "n_layers": 1, "ffn_config": {"moe_num_experts": 4, "moe_top_k": 1}}
    cut = cut_model(dbrx, [0], {0: [1, 3]})
    assert decide(cut, "transformer.blocks.0.ffn.experts.mlp.w1", (20, 3)).runs == ((5, 10), (15, 20))
    assert cut.config["ffn_config"]["moe_num_experts"] == 2


def test_a_bias_along_its_second_axis_and_rows_of_experts_without_weights() -> None:
    cut = cut_model(ERNIE, [0, 1, 3], {1: [0, 1, 5], 3: [2, 3, 4]})
    assert cut.config["moe_layer_end_index"] == -1
    assert decide(cut, "model.layers.3.mlp.moe_statics.e_score_correction_bias", (1, 8)).axis == 1
    longcat = {
        "model_type": "longcat_flash",
        "num_layers": 1,
        "num_hidden_layers": 2,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    }
    cut = cut_model(longcat, [0], {0: [1, 2]})
    assert decide(cut, "model.layers.0.mlp.router.classifier.weight", (6, 3)).runs == ((1, 3), (4, 6))
    assert (
        decide(cut, "model.layers.0.mlp.experts.5.up_proj.weight", (3, 4)).name
        == "model.layers.0.mlp.experts.3.up_proj.weight"
    )


@pytest.mark.parametrize(
    ("config", "layers", "experts", "why"),
    [
        (QWEN3, [], {}, "keep at least one layer of 0 to 5"),
        (QWEN3, [3, 1], {}, "in order, each once"),
        (QWEN3, [0, 6], {}, "of 0 to 5"),
        (QWEN3, [0, 2], {2: [0, 1]}, r"layers \[2\] have no experts"),
        (QWEN3, [0], {0: [1, 1, 2]}, "each once, in order"),
        (QWEN3, [0], {0: [1]}, "keep at least 2"),
        (QWEN3, [0, 1], {0: [0, 1, 2]}, "one expert count holds for all layers.*keep 8 in each, or 3"),
        (DEEPSEEK, [3], {3: [0, 1, 4, 5, 8, 9]}, "keep 2 of each"),
        (DEEPSEEK, [3], {3: [0, 4, 8, 12]}, "at least 2: keep 2 of each"),
        (DEEPSEEK, [3], {3: [0, 1, 2, 3, 4, 8, 12, 13]}, "reshape into groups needs the same number of each.*keep 2 of each"),
        (DEEPSEEK | {"num_experts_per_tok": 6}, [3], {3: EACH}, "top-6.*at least 3: keep 3 of each"),
        (DEEPSEEK, [2, 3, 4], {3: [0, 1, 2, 3, 4, 5, 6, 7], 4: EACH}, r"keep experts of \[2, 4\] groups.*keep 4 groups in each"),
        (DEEPSEEK | {"n_routed_experts": 18}, [3], {3: EACH}, "same number of each"),
        (NEXT, [0, 1, 2], {}, "no kept layer has attention that caches keys.*keep layer 3 too"),
        (NEXT, [0, 3, 4, 7], {}, r"decides by position.*keep \[0, 2, 4, 7\]"),
        ({"model_type": "jamba", "num_hidden_layers": 8, "num_experts": 4, "num_experts_per_tok": 2}, [0, 2, 4, 6], {}, "keep at least 5 layers"),
        ({"model_type": "jetmoe", "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}, [0], {0: [0, 1]}, "cannot be cut"),
        (
            {"model_type": "deepseek_v4", "num_hidden_layers": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "mlp_layer_types": ["hash_moe", "moe", "moe"]},
            [0, 1], {0: [0, 1, 2], 1: [0, 1, 2]}, r"table of token ids.*layers of \[1, 2\]",
        ),
        (GPT_OSS, [0, 2, 3], {}, r"decides by position.*keep \[0, 1, 2\]"),
        ({"model_type": "smollm3", "num_hidden_layers": 8, "no_rope_layers": []}, [0, 3], {}, r"decides by position"),
        ({"model_type": "glm4_moe_lite", "num_hidden_layers": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}, [1, 2], {}, "by position"),
        ({"model_type": "flint", "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2}, [0, 1], {}, "without layer_types.*keep all layers"),
        (DSA, [0, 2, 3], {}, "layer 2 attends to the tokens that layer 1 picks; keep layer 1 too"),
        ({"model_type": "pangu_pro_moe", "num_hidden_layers": 1, "num_experts": 8, "num_experts_per_tok": 4}, [0], {0: [0, 1, 2, 4]}, "keep 1 of each"),
    ],
)  # fmt: skip
def test_a_cut_that_would_compute_something_else_is_refused_with_the_nearest_valid_one(
    config: dict[str, Any], layers: list[int], experts: dict[int, list[int]], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        cut_model(config, layers, experts)


@pytest.mark.parametrize("layers", [[0, 3, 4, 7], [3, 5, 6, 7], [0, 1, 2, 6, 7], [4, 5, 6, 7], [1, 3, 5, 7]])
def test_the_layers_named_instead_are_a_cut_that_works(layers: list[int]) -> None:
    try:
        cut_model(NEXT, layers)
    except InputError as error:
        named = re.search(r"keep \[([\d, ]+)\]", str(error))
        assert named
        assert len(cut_model(NEXT, [int(n) for n in named[1].split(",")]).layers) == len(layers)


def test_a_period_is_met_when_kept_layers_fit_it() -> None:
    cut = cut_model(NEXT, [0, 1, 4, 7], {n: [0, 1, 2] for n in (0, 1, 4, 7)})
    assert (cut.config["num_hidden_layers"], cut.config["num_experts"]) == (4, 3)


def test_a_list_of_layer_types_frees_the_cut_from_the_period_and_is_cut_with_it() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
    assert cut_model(NEXT | {"layer_types": kinds}, [3, 6]).config["layer_types"] == [
        "full_attention",
        "linear_attention",
    ]
    pattern = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "ME*-E",
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    }
    assert cut_model(pattern, [1, 2, 4]).config["hybrid_override_pattern"] == "E*E"
    linear = {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}
    kimi = {
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "linear_attn_config": linear,
    }
    assert cut_model(kimi, [0, 3]).config["linear_attn_config"] == {"full_attn_layers": [2], "kda_layers": [1]}


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (GPT_OSS, [0, 3]),
        (GPT_OSS | {"layer_types": ["sliding_attention", "full_attention"] * 2}, [1, 2]),
        ({"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}, [0, 3]),
        (DSA, [1, 2]),
    ],
)
def test_a_list_of_layers_or_positions_that_fit_are_cut(config: dict[str, Any], layers: list[int]) -> None:
    made = cut_model(config, layers).config
    lists = {key: [value[n] for n in layers] for key, value in config.items() if isinstance(value, list)}
    assert made | lists == made


def test_experts_of_a_layer_with_a_table_of_token_ids_are_kept_whatever_the_config_says() -> None:
    config = {"model_type": "deepseek_v4", "num_hidden_layers": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
    assert decide(cut_model(config, [0]), "layers.0.ffn.gate.tid2eid", (64, 2)).action == "keep"
    with pytest.raises(InputError, match="table of token ids; keep all its experts"):
        decide(cut_model(config, [0], {0: [0, 1, 2]}), "layers.0.ffn.gate.tid2eid", (64, 2))


def test_a_decoder_step_becomes_a_list_of_dense_layers() -> None:
    made = cut_model(QWEN3 | {"decoder_sparse_step": 2, "mlp_only_layers": []}, [0, 1, 3]).config
    assert (made["decoder_sparse_step"], made["mlp_only_layers"]) == (1, [0])


@pytest.mark.parametrize(
    ("config", "layers", "experts", "why"),
    [
        (QWEN3 | {"norm_topk_prob": False}, [0], {0: [0, 1, 2]}, "not renormalised: those of kept experts grow"),
        (QWEN3, [0], {0: [0, 1]}, "the router no longer chooses"),
        (DEEPSEEK, [3], {3: [0, 1, 2, 3, 12, 13, 14, 15]}, r"groups are dropped \(2 of 4 left, 1 chosen\)"),
        (QWEN3 | {"per_layer_secret": [1, 2, 3, 4, 5, 6]}, [0], {}, "per_layer_secret has one entry a layer"),
        (DEEPSEEK | {"quantization_config": {"ignore": ["re:.*layers\\.(0|1)\\."]}}, [3], {}, "were not renumbered"),
        (
            {"model_type": "minimax", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
            [0, 1],
            {},
            "linear attention decays by depth",
        ),
    ],
)
def test_what_a_cut_changes_beyond_its_size_is_said(
    config: dict[str, Any], layers: list[int], experts: dict[int, list[int]], why: str
) -> None:
    [found] = cut_model(config, layers, experts).warnings
    assert re.search(why, found)


def test_dropped_groups_are_counted_down() -> None:
    cut = cut_model(DEEPSEEK, [3], {3: [0, 1, 2, 3, 12, 13, 14, 15]})
    assert (cut.config["n_group"], cut.config["topk_group"]) == (2, 1)


def test_a_cut_to_dense_layers_leaves_the_expert_count_alone() -> None:
    assert cut_model(DEEPSEEK, [0, 2]).config["n_routed_experts"] == 16


ODD: list[Any] = [
    None, True, -1, 0, 2, 10**30, 1.5, float("nan"), "", "abcd", [], [1], [None] * 4, [1] * 4, ["full_attention"] * 4, {}, {"a": 1}, [[1]], [True] * 4,
]  # fmt: skip


@pytest.mark.parametrize("name", families())
def test_any_config_is_cut_or_refused_and_never_crashes(name: str) -> None:
    family, chance = families()[name], random.Random(name)
    keys = sorted(
        {key for found in vars(family).values() if isinstance(found, tuple) for key in found if isinstance(key, str)}
    )
    sound = (("layers", 4), ("experts", 8), ("top_k", 2), ("dense_first", 1), ("groups", 4), ("top_groups", 2))
    for _ in range(60):
        config: dict[str, Any] = {"model_type": family.model_types[0], "num_hidden_layers": 4}
        values = [(key, number) for role, number in sound for key in getattr(family, role)[:1]]
        for key, value in [*values, *((key, chance.choice(ODD)) for key in chance.sample(keys, 2))]:
            *way, last = key.split(".")
            inner = config
            for step in way:
                inner[step] = inner.get(step) if isinstance(inner.get(step), dict) else {}
                inner = inner[step]
            inner[last] = value
        given = deepcopy(config)
        with contextlib.suppress(InputError):
            cut_model(
                config,
                chance.choice([[0], [1, 3], [0, 1, 2, 3], [0, 7]]),
                chance.choice([None, {3: [0, 2, 4, 6]}, {1: [9]}]),
            )
        assert repr(config) == repr(given), "the caller's config is never changed"


def test_a_checkpoint_without_a_router_or_a_kept_expert_is_refused() -> None:
    cut = cut_model(QWEN3, [0], {0: [1, 2]})
    names = ["model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.1.up_proj.weight"]
    with pytest.raises(InputError, match=r"no experts \[2\] of layer 0"):
        check_complete(cut, names)
    with pytest.raises(InputError, match="no router of layer 0"):
        check_complete(cut, names[1:])
    check_complete(cut, [*names, "model.layers.0.mlp.experts.2.up_proj.weight"])
