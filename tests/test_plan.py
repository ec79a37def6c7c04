"""Plans of public models: what each factor keeps, that each can be cut, that its layout divides, and what it costs."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.setting import setting
from faultproxy.proxy.cost.shape import shape_of
from faultproxy.proxy.cut import cut_model
from faultproxy.proxy.plan.plan import Plan, plans
from faultproxy.proxy.plan.price import Budget
from faultproxy.proxy.plan.question import FACTORS, Degrees, Question, needs, rules
from faultproxy.proxy.plan.show import headline
from faultproxy.proxy.shape import read_shape

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("plans_benchmark", ROOT / "benchmarks" / "plans.py")
assert SPEC and SPEC.loader
BENCHMARK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCHMARK)
QWEN = BENCHMARK.config_of("qwen3-30b-a3b")
DEEPSEEK = BENCHMARK.config_of("deepseek-v3")
DENSE = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "vocab_size": 152064, "intermediate_size": 18944,
}  # fmt: skip
#: Full attention in every fourth layer, from the fourth on.
HYBRID = QWEN | {"model_type": "qwen3_next", "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 512}  # fmt: skip
#: No closed form of its cost.
UNPRICED = {
    "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 99,
    "intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 2,
}  # fmt: skip


def size(plan: Plan) -> str:
    return headline(plan.document("x")).partition(":")[0]


def planned(config: dict[str, Any], question: Question, budget: Budget | None = None, **options: Any) -> list[Plan]:
    return plans(config, question, setting(options), budget)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", BENCHMARK.NAMES)
def test_every_plan_of_six_models_can_be_cut_keeps_a_choice_of_experts_and_has_a_layout_that_divides(
    name: str, factor: str
) -> None:
    config, question = BENCHMARK.config_of(name), BENCHMARK.question(name, factor)
    shape = read_shape(config)
    found = planned(config, question)
    assert found
    for plan in found:
        kept, most = plan.experts
        assert max(shape.top_k) < kept <= most
        assert plan.left is not None and plan.whole is not None
        again = cut_model(config, plan.recipe.layers or range(shape.layers), dict(plan.kept.cut.experts))
        assert again.config == plan.kept.cut.config
        assert plan.left.layout.valid(shape_of(again.config)) and kept % plan.left.layout.ep == 0
        assert plan.left.estimate.devices <= plan.whole.estimate.devices
        if factor == "depth":
            assert question.layer is not None and question.layer in range(plan.kept.layers)
        if plan.kept.layers < shape.layers:
            assert plan.recipe.layers == tuple(range(plan.kept.layers))


def test_the_committed_figures_are_what_the_benchmark_gives() -> None:
    held = json.loads((ROOT / "benchmarks" / "plans.json").read_text("utf-8"))
    assert json.loads(json.dumps(BENCHMARK.rows())) == held
    assert BENCHMARK.table(held) in (ROOT / "docs" / "plan.md").read_text("utf-8")


def test_every_failure_type_has_what_it_needs_of_the_model() -> None:
    from faultproxy.analyzer.catalogue import FAILURE_TYPES

    assert sorted(needs()) == sorted(kind for kinds in FAILURE_TYPES.values() for kind in kinds)
    assert set(rules()["lost"]) <= set(needs())


def test_routing_keeps_all_layers_or_all_experts_and_kernels_in_doubt_come_first_with_all_experts() -> None:
    sizes = [size(plan) for plan in planned(QWEN, Question("routing"))]
    assert sizes == ["48 of 48 layers, 16 of 128 experts", "12 of 48 layers, 128 of 128 experts"]
    assert [size(plan) for plan in planned(QWEN, Question("routing", causes=("operator",)))] == sizes[::-1]
    assert [size(plan) for plan in planned(QWEN, Question("precision", causes=("operator",)))][1:] == sizes[1:]


def test_a_known_bad_layer_cuts_routing_there() -> None:
    found = planned(QWEN, Question("routing", layer=9))
    assert [(plan.kept.layers, plan.kept.experts) for plan in found] == [(10, 16), (10, None)]


def test_depth_without_a_bad_layer_keeps_all_says_what_that_costs_and_offers_half() -> None:
    whole, half = planned(QWEN, Question("depth"))
    assert (whole.kept.layers, half.kept.layers) == (48, 24)
    assert "which saves no work" in " ".join(whole.warnings) and "halves the search" in half.title


def test_a_hybrid_model_keeps_the_first_layer_that_caches_keys_whatever_the_bad_layer_is() -> None:
    [fewer, exact] = planned(HYBRID, Question("depth", layer=1))
    assert (fewer.kept.layers, exact.kept.layers) == (4, 4)


def test_implicated_experts_are_kept_and_a_group_that_holds_many_of_them_raises_the_count() -> None:
    question = Question("routing", layer=20, experts={12: (0, 1, 2), None: (9,)})
    [plan, _] = planned(DEEPSEEK, question)
    assert plan.kept.experts == 32 and plan.recipe.keep[12] == (0, 1, 2, 9) and plan.recipe.keep[5] == (9,)
    assert set(plan.kept.cut.experts[12]) >= {0, 1, 2, 9}
    assert "--keep 12:0-2,9" in plan.command("x")


def test_layers_reach_the_last_implicated_expert() -> None:
    [plan] = planned(QWEN, Question("precision", "nonfinite_loss", experts={31: (5,)}))
    assert plan.kept.layers == 32 and 5 in plan.kept.cut.experts[31]


@pytest.mark.parametrize(
    ("question", "weights"),
    [
        (Question("precision", "loss_scale_collapse"), "random"),
        (Question("precision", "train_inference_mismatch"), "original"),
        (Question("precision"), "original"),
        (Question("none", "crash"), "random"),
        (Question("none", "reward_hacking"), "original"),
        (Question("routing", "crash"), "original"),
        (Question("depth", "gradient_explosion", layer=3), "original"),
    ],
)
def test_weights_are_drawn_only_where_no_trained_ones_are_needed_and_the_plan_says_why(question: Question, weights: str) -> None:  # fmt: skip
    plan = planned(QWEN, question)[0]
    assert plan.recipe.weights == weights and plan.weights_why
    assert ("--weights random" in plan.command("x")) == (weights == "random")


def test_an_undetermined_factor_gives_a_plan_for_each_once_the_cheapest_first() -> None:
    found = planned(QWEN, Question())
    hours = [plan.left.estimate.device_hours for plan in found if plan.left]
    assert (
        all(one <= 1.1 * other for one, other in pairwise(hours))
        and len({size(plan) for plan in found}) == len(found) == 3
    )
    assert {factor for plan in found for factor in plan.factors} == {"routing", "depth", "precision", "none"}


def test_a_dense_model_is_planned_without_a_router_and_a_routing_fault_of_it_is_refused() -> None:
    found = planned(DENSE, Question())
    assert all(plan.experts == (0, 0) and plan.recipe.experts is None for plan in found)
    assert not any("expert" in plan.title or "expert" in size(plan) for plan in found)
    [whole] = planned(DENSE, Question("none", "reward_hacking"))
    assert size(whole) == "28 of 28 layers" and "nothing is left out" in whole.warnings[0]
    assert all(plan.smaller for plan in found)
    with pytest.raises(InputError, match="has no router"):
        planned(DENSE, Question("routing"))


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question("depth", layer=48), "layer 48 is named"),
        (Question("routing", experts={3: (128,)}), "expert 128 is named"),
    ],
)
def test_a_diagnosis_of_another_model_is_refused(question: Question, said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(QWEN, question)


def test_a_family_without_a_closed_form_is_planned_with_the_reason_why_nothing_is_known_of_its_cost() -> None:
    [plan, *_] = planned(UNPRICED, Question("routing"))
    found = plan.document("x")
    assert (plan.kept.experts, found["cost"], found["devices"]) == (4, None, None)
    assert "no closed form" in found["unpriced"] and plan.fits


# -- the original's layout --------------------------------------------------------------------------------------------
def test_experts_a_rank_stay_for_a_routing_fault_and_two_ranks_keep_the_all_to_all() -> None:
    plan = planned(DEEPSEEK, Question("routing", degrees=Degrees(1, 16, 1, 32)))[0]
    assert plan.left is not None
    assert (plan.kept.experts, plan.left.layout.ep, plan.left.layout.tp) == (16, 2, 1)
    assert any("all-to-all over 32 ranks: 2 are left" in text for text in plan.cannot_reproduce)
    assert not any("a rank holds" in text for text in plan.warnings)


def test_fewer_experts_a_rank_are_the_first_thing_that_a_budget_takes() -> None:
    config, question = BENCHMARK.config_of("qwen3-235b-a22b"), Question("routing", degrees=Degrees(2, 16, 1, 4))
    loose, tight = (planned(config, question, budget)[0] for budget in (None, Budget(devices=16)))
    assert (loose.kept.experts, tight.kept.experts) == (64, 16)
    assert not any("a rank holds" in text for text in loose.warnings)
    assert any("a rank holds 16 experts instead of 32" in text for text in tight.warnings)


def test_tensor_parallelism_stays_unless_the_budget_of_devices_forbids_it() -> None:
    question = Question("depth", layer=20, degrees=Degrees(8, 12, 1, 8))
    loose = planned(DEEPSEEK, question)[0]
    tight = planned(DEEPSEEK, question, Budget(devices=4))[0]
    assert loose.left is not None and tight.left is not None
    assert (loose.left.layout.tp, tight.left.layout.tp) == (8, 2)
    assert any("TP 8 -> 2" in text for text in tight.warnings)


def test_other_expert_counts_are_warned_about_on_ascend_only() -> None:
    question = Question("routing")
    ascend, nvidia = (planned(DEEPSEEK, question, device_name=name) for name in ("ascend-a3-die", "h100"))
    assert any("npu_moe_gating_top_k" in text for text in ascend[0].warnings)
    assert not any("npu_moe_gating_top_k" in text for plan in (ascend[1], *nvidia) for text in plan.warnings)


@pytest.mark.parametrize("placement", ["colocated", "partial", "disaggregated", "fused", "hybrid", "asynchronous"])
def test_every_placement_is_priced_in_the_layout_of_the_run(placement: str) -> None:
    question = Question("routing", degrees=Degrees(8, 8, 1, 16))
    for plan in planned(DEEPSEEK, question, placement=placement, algorithm="ppo"):
        assert plan.left is not None and plan.left.layout.tp == 8
        assert 16 <= plan.experts[0] // plan.left.layout.ep


# -- budget -----------------------------------------------------------------------------------------------------------
def test_a_budget_shrinks_what_the_factor_allows_and_else_says_the_least_that_would_do() -> None:
    small = {"device_name": "h100"}
    free, bound = (planned(DEEPSEEK, Question("precision"), budget, **small)[0] for budget in (None, Budget(devices=1)))
    assert free.kept.layers == 16 and bound.kept.layers < 16 and bound.fits
    kept = planned(DEEPSEEK, Question("depth", layer=40), Budget(devices=1), **small)
    assert all(plan.kept.layers == 41 and not plan.fits for plan in kept)
    assert "beyond the budget: the least of this kind takes" in kept[0].warnings[0]


def test_seconds_are_met_with_more_devices_where_the_budget_has_them() -> None:
    slow = planned(QWEN, Question("precision"))[0]
    assert slow.left is not None
    wanted = slow.left.estimate.step / 3
    fast = planned(QWEN, Question("precision"), Budget(devices=8, seconds=wanted))[0]
    assert fast.left is not None and fast.fits
    assert fast.left.estimate.step <= wanted and slow.left.estimate.devices < fast.left.estimate.devices <= 8


def test_seconds_alone_give_no_proxy_more_devices_than_the_original_takes() -> None:
    for plan in planned(BENCHMARK.config_of("kimi-k2"), Question(), Budget(seconds=60)):
        assert plan.left is not None and plan.whole is not None
        assert plan.left.estimate.devices <= plan.whole.estimate.devices
