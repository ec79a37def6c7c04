"""Shapes, parameters, memory, and work of proxy/cost against public totals and hand arithmetic."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost import memory as held
from faultproxy.proxy.cost import work
from faultproxy.proxy.cost.memory import Layout
from faultproxy.proxy.cost.shape import Shape, attention_parameters, linear_parameters, parameters, shape_of
from faultproxy.proxy.cost.work import Workload, workload

MODELS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent.parent / "benchmarks" / "cost_models.toml").read_text(encoding="utf-8")
)["models"]
QWEN = MODELS["qwen3-30b-a3b"]["config"]
#: Small enough to work out by hand: 2 layers, width 8, 2 heads of 4, 1 key head, 10 words, dense width 16.
TINY = Shape("llama", 2, 8, 2, 1, 4, 10, 16)


@pytest.mark.parametrize("name", MODELS)
def test_the_closed_form_gives_the_public_parameters(name: str) -> None:
    model = MODELS[name]
    assert getattr(parameters(shape_of(model["config"])), model["what"]) == pytest.approx(model["total"], rel=1e-4)


def test_a_dense_decoder_by_hand() -> None:
    """Attention 8x8 + 2x8x4 + 8x8 = 192; block 3x8x16 = 384; norms 5x8; tables 2x80."""
    p = parameters(TINY)
    assert (p.attention, p.dense, p.norms, p.embedding, p.head) == (2 * 192, 2 * 384, 40, 80, 80)
    assert p.total == 1352 and p.active == 2 * (192 + 384) + 80


def test_latent_attention_by_hand() -> None:
    s = Shape("deepseek_v3", 1, 8, 2, 2, 4, 10, 16, kv_rank=4, q_rank=6, rope_dim=2, nope_dim=3, value_dim=5)
    assert attention_parameters(s) == (8 * 6 + 6 + 6 * 2 * 5) + (8 * 6 + 4 + 4 * 2 * 8) + 2 * 5 * 8
    assert s.kv_elements == 6 and s.score_dims == 2 * 10 and s.decode_dims == 2 * 10


def test_linear_attention_by_hand() -> None:
    """Width 8; 1 key and 2 value heads of 3 and 5: k 3, v 10. Its state is 2 x 3 x 5 and three inputs of a convolution over 2 k + v = 16."""
    s = Shape(
        "qwen3_next", 4, 8, 2, 1, 4, 10, 16, linear_layers=3, linear_heads=(1, 2), linear_dims=(3, 5), convolution=4
    )
    assert linear_parameters(s) == 8 * (6 + 20 + 4) + 16 * 4 + 4 + 5 + 10 * 8
    assert parameters(s).attention == attention_parameters(s) + 3 * linear_parameters(s)
    assert held.kv_bytes(s, 1000) - held.kv_bytes(s, 0) == 2 * 2 * 4 * 1000
    assert held.kv_bytes(s, 0) == 4 * 3 * (30 + 48)


def test_fewer_experts_save_parameters_and_no_work() -> None:
    whole, half = shape_of(QWEN), shape_of(QWEN | {"num_experts": 64})
    assert parameters(half).total / 1e9 == pytest.approx(16.03, abs=0.01)
    assert work.forward_flops(half, 4096) == pytest.approx(work.forward_flops(whole, 4096), rel=0.003)


def test_tied_embeddings_have_no_head() -> None:
    assert parameters(shape_of(QWEN | {"tie_word_embeddings": True})).head == 0


def test_a_text_model_inside_a_multimodal_one_is_found() -> None:
    assert shape_of({"model_type": "qwen3_vl_moe", "text_config": QWEN}) == shape_of(QWEN)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": "wide"}, "hidden_size or d_model or n_embd = wide; needed is a count"),
        ({"vocab_size": None}, "vocab_size = None"),
        ({"hidden_size": -1}, "n_embd = -1"),
        ({"num_attention_heads": 0}, "0 heads"),
        ({"num_hidden_layers": 50_000}, "50000 layers"),
        ({"num_experts_per_tok": 129}, "129 of 128 experts"),
        ({"layer_types": ["linear_attention"] * 48}, "linear_attention"),
        ({"model_type": "granitemoehybrid"}, "state-space layers: no closed form"),
        ({"model_type": "gpt_neox"}, "blocks without a gate: no closed form"),
    ],
)
def test_a_config_without_a_closed_form_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        shape_of(QWEN | change)


_JUNK = (None, True, -1, 0, 3, 2**40, 1.5, float("nan"), "\u202e" * 500, [1], [[]], {"model_type": 3})


@pytest.mark.parametrize("key", [*QWEN, "kv_lora_rank", "text_config", "layer_types", "sliding_window"])
def test_any_config_is_read_or_refused(key: str) -> None:
    for junk in _JUNK:
        try:
            assert parameters(shape_of(QWEN | {key: junk})).total > 0
        except InputError as error:
            assert len(str(error)) < 400 and "\u202e" not in str(error)


def test_work_is_that_of_the_published_formula() -> None:
    """arXiv 2608.27046: C_f = 2 L (4 d^2 + 2 d dff + m d) + 2 V d for multi-head attention and two matrices, here three."""
    s, m = Shape("mha", 2, 8, 2, 2, 4, 10, 16), 12
    assert work.forward_flops(s, m) == 2 * 2 * (4 * 64 + 3 * 8 * 16 + m * 8) + 2 * 10 * 8
    w = Workload(prompts=3, group=5, prompt=4, response=8)
    assert work.training_flops(s, w) == 15 * 12 * 3 * work.forward_flops(s, 12)


def test_training_flops_are_verls() -> None:
    """verl's flops_counter: 6 N tokens + 6 (sum seq^2) head_dim heads L, causal; its N leaves out nothing but norms and biases."""
    s, w = shape_of(QWEN), Workload(prompts=1, group=1, prompt=1024, response=3072)
    n = 48 * (2048 * 8 * 768 * 3 + 2048 * 128 + 2048 * 128 * (32 + 4 + 4 + 32)) + 151936 * 2048
    assert work.training_flops(s, w) == pytest.approx(6 * n * 4096 + 6 * 4096**2 * 128 * 32 * 48, rel=1e-3)


def test_a_window_caps_context_and_cache() -> None:
    full = Shape("x", 2, 8, 2, 1, 4, 10, 16)
    half = Shape("x", 2, 8, 2, 1, 4, 10, 16, window=100, windowed=1)
    assert work.context_flops(half, 1000, 16) == work.context_flops(full, 1000, 16) * 1100 / 2000
    assert held.kv_bytes(half, 1000) == held.kv_bytes(full, 1000) * 1100 / 2000


def test_activations_keep_a_checkpoint_a_layer_and_one_layer_live() -> None:
    """100 tokens, width 8, 2 layers: 2 x 8 x 2 kept, 18 x 8 + 4 x 16 live; logits 4 x 10; all over TP 2."""
    assert held.activation_bytes(TINY, 100, Layout(2, tp=2)) == 100 * (32 + 208) / 2
    assert held.logit_bytes(TINY, 100, Layout(2, tp=2)) == 100 * 40 / 2


def test_the_cache_of_public_models() -> None:
    assert held.kv_bytes(shape_of(QWEN), 1) == 98_304
    assert held.kv_bytes(shape_of(MODELS["deepseek-v3"]["config"]), 1) == 70_272


@pytest.mark.parametrize(("algorithm", "passes"), [("grpo", 2), ("ppo", 3), ("dapo", 1), ("reinforce", 1)])
def test_each_algorithm_assesses_with_its_own_models(algorithm: str, passes: int) -> None:
    assert work.assessments(workload(algorithm)) == passes


def test_a_separate_critic_doubles_training_and_a_shared_one_does_not() -> None:
    base, shared, separate = (
        work.training_flops(TINY, workload("ppo", critic=c)) for c in ("none", "shared", "separate")
    )
    assert (shared, separate) == (base, 2 * base)


@pytest.mark.parametrize(
    ("placement", "length"),
    [("colocated", 20), ("hybrid", 20), ("partial", 17), ("disaggregated", 17), ("fused", 14), ("asynchronous", 13)],
)
def test_placements_change_the_critical_path(placement: str, length: float) -> None:
    assert work.combine(placement, 10, [1, 3], [2, 4]) == length


def test_bytes_a_parameter_are_megatrons() -> None:
    """18 bytes on one device; 6 + 12 / DP with the optimiser over data parallel; 6 where it waits on the host."""
    p = parameters(TINY)

    def each(layout: Layout, offload: str = "none") -> float:
        return sum(held.state_bytes(p, TINY, layout, offload)) / p.total

    assert each(Layout(1)) == 18
    assert each(Layout(4)) == 6 + 12 / 4
    assert each(Layout(4, zero=2)) == 2 + 16 / 4
    assert each(Layout(4, zero=3)) == 18 / 4
    assert each(Layout(4), "optimizer") == 6


def test_experts_are_divided_by_ep_and_the_rest_is_not() -> None:
    s = shape_of(QWEN)
    p = parameters(s)
    rest, experts = held.shares(p, s, Layout(8, ep=8))
    assert (rest, experts) == (p.total - p.routed, p.routed / 8)
    assert held.shares(p, s, Layout(8, ep=4, pp=2))[1] == p.routed / 8
    assert held.shares(p, s, Layout(5, pp=5))[1] == pytest.approx(p.routed * 10 / 48)


@pytest.mark.parametrize(
    "layout",
    [Layout(8, tp=3), Layout(8, ep=16), Layout(96, ep=96), Layout(64, pp=64), Layout(8, tp=2, pp=2, cp=4)],
)
def test_degrees_that_divide_nothing_are_no_layout(layout: Layout) -> None:
    assert not layout.valid(shape_of(QWEN))
