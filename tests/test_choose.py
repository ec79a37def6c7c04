"""Which experts are kept: every method on small checkpoints, what is refused, and that named experts stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.checkpoint import Checkpoint, read_checkpoint
from faultproxy.proxy.choose import choose_experts
from faultproxy.proxy.choose.calibration import Calibration, Routing
from faultproxy.proxy.cut import cut_model, decide
from faultproxy.proxy.recipe import METHODS, Recipe, read_recipe
from faultproxy.proxy.shape import read_shape
from faultproxy.proxy.source import open_source

QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
HIDDEN, WIDTH = 12, 6


def checkpoint(
    folder: Path, config: dict[str, Any], change: Any = None, types: dict[str, str] | None = None
) -> Checkpoint:
    """A checkpoint of random float32 weights; `change` edits the arrays by name, `types` names the dtype of raw arrays."""
    rng = np.random.default_rng(1)
    shape = read_shape(config)
    arrays: dict[str, Any] = {"lm_head.weight": rng.standard_normal((4, HIDDEN))}
    for n in shape.sparse:
        for name in shape.family.router:
            size = (shape.experts[n], HIDDEN) if name.endswith("weight") else (shape.experts[n],)
            arrays[f"model.layers.{n}.mlp.{name}"] = rng.standard_normal(size)
        for e in range(shape.experts[n]):
            for part in shape.family.parts:
                arrays[f"model.layers.{n}.mlp.experts.{e}.{part}.weight"] = rng.standard_normal((WIDTH, HIDDEN))
    if change is not None:
        change(arrays)
    header, data = {}, b""
    for name, array in arrays.items():
        raw = array.tobytes() if types and name in types else np.asarray(array, np.float32).tobytes()
        header[name] = {
            "dtype": (types or {}).get(name, "F32"),
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    (folder / "config.json").write_text(json.dumps(config))
    return read_checkpoint(open_source(str(folder)))


def table(config: dict[str, Any], **frequency: Any) -> Calibration:
    """Random routing for each layer with experts; `layer_N` gives the frequencies of a layer."""
    rng = np.random.default_rng(2)
    layers = {}
    for n in read_shape(config).sparse:
        experts = read_shape(config).experts[n]
        together = rng.integers(0, 9, (experts, experts)).astype(float)
        together = together + together.T
        np.fill_diagonal(together, 0.0)
        counts = np.asarray(frequency.get(f"layer_{n}", rng.integers(1, 99, experts)), float)
        layers[n] = Routing(counts, counts * rng.random(experts), together, rng.standard_normal((experts, 5)))
    return Calibration(layers, 1000, "table.parquet")


def chosen(model: Checkpoint, given: Calibration | None = None, **recipe: Any) -> Any:
    return choose_experts(model, read_shape(model.config), Recipe(**recipe), given)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("config", [QWEN, DEEPSEEK], ids=["qwen", "groups"])
def test_every_method_makes_a_choice_that_can_be_cut_and_keeps_the_named_experts(
    tmp_path: Path, config: dict[str, Any], method: str, calibrated: bool
) -> None:
    model = checkpoint(tmp_path, config)
    given = table(config) if calibrated else None
    keep = {1: (3, 6)}
    count = 4 if config is QWEN else 8
    if method in ("frequency", "gate-norm") and not calibrated:
        with pytest.raises(InputError, match="needs a table"):
            chosen(model, given, experts=count, method=method)
        return
    found = chosen(model, given, experts=count, keep=keep, method=method)
    assert found == chosen(model, given, experts=count, keep=keep, method=method)
    layers = range(config["num_hidden_layers"])
    cut = cut_model(config, list(layers), found.experts)
    assert {n: len(ids) for n, ids in cut.experts.items()} == dict.fromkeys(read_shape(config).sparse, count)
    assert set(keep[1]) <= set(found.experts[1])
    assert found.why.endswith("; 2 named experts are kept whatever it says")
    if config is DEEPSEEK:
        assert [sum(e // 4 == group for e in found.experts[1]) for group in range(4)] == [2, 2, 2, 2]


def test_methods_keep_what_they_say(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        for e in (2, 5):
            arrays["model.layers.1.mlp.gate.weight"][e] *= 50
        for e in (0, 7):  # weights of one size are what the score of `weights` prunes first
            for part in ("gate_proj", "up_proj", "down_proj"):
                arrays[f"model.layers.1.mlp.experts.{e}.{part}.weight"] = np.ones((WIDTH, HIDDEN))

    model = checkpoint(tmp_path, QWEN, change)
    given = table(QWEN, layer_1=[1, 1, 1, 90, 1, 1, 80, 1])
    assert chosen(model, given, experts=3, method="first").experts == {1: (0, 1, 2), 2: (0, 1, 2)}
    assert chosen(model, given, layers=(0, 1), experts=2, method="frequency").experts == {1: (3, 6)}
    assert chosen(model, given, layers=(0, 1), experts=2, method="router").experts == {1: (2, 5)}
    assert chosen(model, given, layers=(0, 1), experts=6, method="weights").experts == {1: (1, 2, 3, 4, 5, 6)}
    draws = {chosen(model, None, experts=4, method="random", seed=seed).experts[1] for seed in range(6)}
    assert len(draws) > 1


def test_fused_keeps_one_of_two_experts_that_are_alike_where_frequency_keeps_both(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        rows = np.zeros((8, HIDDEN))
        rows[[0, 1], 0], rows[[2, 3], 1], rows[[4, 5], 2], rows[[6, 7], 3] = 1.0, 1.0, 1.0, 1.0
        arrays["model.layers.1.mlp.gate.weight"] = rows + 1e-3 * np.arange(8)[:, None]

    model = checkpoint(tmp_path, QWEN, change)
    counts = np.array([50.0, 49, 48, 47, 20, 19, 18, 17])
    given = Calibration({1: Routing(counts), 2: Routing(counts)}, 0, "loads.parquet")
    assert chosen(model, given, layers=(0, 1), experts=4, method="frequency").experts == {1: (0, 1, 2, 3)}
    assert chosen(model, given, layers=(0, 1), experts=4, method="fused").experts == {1: (0, 2, 4, 6)}


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-14])
def test_noise_in_the_last_bits_changes_no_choice(tmp_path: Path, factor: float) -> None:
    model = checkpoint(tmp_path, QWEN, lambda arrays: None)
    plain = table(QWEN, layer_1=[5] * 8, layer_2=[7] * 8)
    noisy = Calibration(
        {
            n: Routing(r.frequency * np.linspace(1, factor, 8), None, r.together, r.prototype)
            for n, r in plain.layers.items()
        },
        0,
        "t",
    )
    assert chosen(model, noisy, experts=4, method="frequency").experts == {1: (0, 1, 2, 3), 2: (0, 1, 2, 3)}
    calm = Calibration(
        {n: Routing(r.frequency, None, r.together, r.prototype) for n, r in plain.layers.items()}, 0, "t"
    )
    assert (
        chosen(model, noisy, experts=4, method="fused").experts
        == chosen(model, calm, experts=4, method="fused").experts
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, 0.0])
@pytest.mark.parametrize("method", ["router", "fused"])
def test_rows_of_a_broken_router_make_a_choice_without_a_warning(tmp_path: Path, method: str, value: float) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["model.layers.1.mlp.gate.weight"][:] = value
        arrays["model.layers.2.mlp.gate.weight"][3] = value

    found = chosen(checkpoint(tmp_path, QWEN, change), None, experts=4, method=method)
    assert [len(ids) for ids in found.experts.values()] == [4, 4]


def test_auto_takes_gate_norm_then_frequency_then_routers_then_the_first(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "whole", QWEN)
    loads = Calibration({n: Routing(np.arange(8.0)) for n in (1, 2)}, 0, "loads.parquet")
    bare = checkpoint(
        tmp_path / "bare", QWEN, lambda arrays: [arrays.pop(f"model.layers.{n}.mlp.gate.weight") for n in (1, 2)]
    )
    methods = [
        chosen(*given, experts=4).method
        for given in ((model, table(QWEN)), (model, loads), (model, None), (bare, None))
    ]
    assert methods == ["gate-norm", "frequency", "router", "first"]
    assert chosen(model, None).method == "all"
    assert chosen(model, None, layers=(0,), experts=4).experts == {}
    with pytest.raises(InputError, match="no router in a plain number format"):
        chosen(bare, None, experts=4, method="router")


def test_only_the_routers_are_read_without_a_table(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, QWEN)
    before = model.source.fetched
    chosen(model, None, experts=4)
    assert model.source.fetched - before == 2 * 8 * HIDDEN * 4
    chosen(model, table(QWEN), experts=4)
    assert model.source.fetched - before == 2 * 8 * HIDDEN * 4


def test_weights_that_are_packed_fall_back_to_the_routers_and_say_so(tmp_path: Path) -> None:
    name = "model.layers.2.mlp.experts.4.up_proj.weight_packed"
    model = checkpoint(tmp_path, QWEN, lambda arrays: arrays.update({name: np.zeros((4, 4), np.int32)}), {name: "I32"})
    found = chosen(model, None, experts=4, method="weights")
    assert (found.method, found.experts) == ("router", chosen(model, None, experts=4, method="router").experts)
    assert f"{name} is I32, which is not decoded" in found.why


@pytest.mark.parametrize(
    ("config", "recipe", "why"),
    [
        (QWEN, {"experts": 9}, "has 8 experts, not 9; keep 8"),
        (QWEN, {"experts": 1}, "each token needs 2; keep at least 2"),
        (QWEN, {"experts": 4, "keep": {0: (1,)}}, r"layers \[0\] have no experts to choose from"),
        (QWEN, {"experts": 4, "keep": {1: (8,)}}, r"\[8\] cannot be kept"),
        (QWEN, {"experts": 2, "keep": {1: (1, 2, 3)}}, "keep 3 experts or more"),
        (QWEN, {"budgets": {1: 4}}, "one expert count holds for all layers"),
        (QWEN, {"layers": (1, 7), "experts": 4}, "keep at least one layer of 0 to 2"),
        (DEEPSEEK, {"experts": 6}, "keep 2 of each"),
        (DEEPSEEK, {"experts": 4}, "at least 2: keep 2 of each"),
        (DEEPSEEK, {"experts": 8, "keep": {1: (0, 1, 2)}}, "of one group, of which 2 stay; keep 12 experts or more"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_nearest_that_can(
    tmp_path: Path, config: dict[str, Any], recipe: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        chosen(checkpoint(tmp_path, config), table(config), **recipe)


@pytest.mark.parametrize(
    "change",
    [{"experts": ""}, {"experts": False}, {"layers": [0.5]}, {"keep": {"0": "1"}}, {"seed": -1}, {"method": []}],
)
def test_a_recipe_of_a_plan_that_was_changed_by_hand_is_refused(change: dict[str, Any]) -> None:
    document = Recipe((0, 2), 4, keep={0: (1,)}).document()
    assert read_recipe(document) == Recipe((0, 2), 4, keep={0: (1,)})
    with pytest.raises(InputError, match=r"its recipe is not one|is no method"):
        read_recipe(document | change)


def test_a_table_of_another_model_is_refused(tmp_path: Path) -> None:
    model = checkpoint(tmp_path, QWEN)
    with pytest.raises(InputError, match="4 experts of layer 2, the model 8"):
        chosen(model, Calibration({1: Routing(np.ones(8)), 2: Routing(np.ones(4))}, 0, "t"), experts=4)
    with pytest.raises(InputError, match="gate-norm needs a table that has it"):
        chosen(model, Calibration({n: Routing(np.ones(8)) for n in (1, 2)}, 0, "t"), experts=4, method="gate-norm")


def test_budgets_by_layer_hold_where_the_family_has_a_count_a_layer(tmp_path: Path) -> None:
    config = {
        "model_type": "hunyuan_v1_moe",
        "num_hidden_layers": 2,
        "num_experts": [4, 8],
        "moe_topk": [1, 2],
        "moe_intermediate_size": [6, 6],
    }
    model = checkpoint(tmp_path, config)
    assert {n: len(ids) for n, ids in chosen(model, None, budgets={0: 2, 1: 3}).experts.items()} == {0: 2, 1: 3}


@pytest.mark.parametrize("method", ["auto", "router", "fused", "weights", "frequency", "random"])
def test_a_fault_planted_in_one_expert_survives_where_it_is_named_and_random_loses_it(
    tmp_path: Path, method: str
) -> None:
    """Expert 11 of layer 1 holds an infinity: only a proxy that keeps its bytes can overflow as the original does."""
    name = "model.layers.1.mlp.experts.11.down_proj.weight"
    model = checkpoint(tmp_path, DEEPSEEK, lambda arrays: arrays.update({name: np.full((WIDTH, HIDDEN), np.inf)}))
    counts = np.where(np.arange(16) == 11, 0.0, 9.0)

    def survives(**recipe: Any) -> bool:
        found = chosen(model, table(DEEPSEEK, layer_1=counts), experts=8, **recipe)
        kept = [
            n
            for n in model.tensors
            if decide(cut_model(DEEPSEEK, [0, 1], found.experts), n, model.tensors[n].shape).name
        ]
        return any(np.isinf(np.frombuffer(model.read(n), np.float32)).any() for n in kept)

    lost = [seed for seed in range(8) if not survives(method="random", seed=seed)]
    assert lost
    assert all(survives(method=method, keep={1: (11,)}, seed=seed) for seed in lost)
