"""Clusters, seconds, and the command of proxy/cost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import faultproxy
from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.device import Device, Efficiency, device, devices
from faultproxy.proxy.cost.estimate import (
    Setting,
    decode_seconds,
    document,
    estimate,
    formulas,
    generation_seconds,
    rollout_shard,
    sizes,
    touched,
)
from faultproxy.proxy.cost.shape import Shape, parameters, shape_of
from faultproxy.proxy.cost.work import workload

FACTS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent.parent / "benchmarks" / "cost_models.toml").read_text(encoding="utf-8")
)
QWEN = FACTS["models"]["qwen3-30b-a3b"]["config"]


def _setting(name: str = "h20", algorithm: str = "grpo", **changes: Any) -> Setting:
    return Setting(device(name), workload(algorithm), **changes)


def test_every_device_has_sources_and_a_chip_is_two_dies() -> None:
    held = devices()
    assert set(held) == {"ascend-910b", "ascend-a3-die", "ascend-a3-chip", "h20", "a100", "h100", "h200"}
    assert all(d.sources and d.memory and d.bf16 and d.bandwidth and d.link and d.network for d in held.values())
    die, chip = held["ascend-a3-die"], held["ascend-a3-chip"]
    assert (chip.memory, chip.bf16, chip.bandwidth) == (2 * die.memory, 2 * die.bf16, 2 * die.bandwidth)
    assert chip.node * 2 == die.node


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean h100"):
        device("h10")


@pytest.mark.parametrize("point", FACTS["clusters"], ids=lambda p: f"{p['model']} on {p['device']}")
def test_the_smallest_published_cluster_is_within_a_factor_of_two(point: dict[str, Any]) -> None:
    """With the shipped share of memory; benchmarks/cost.py fits it without the cluster it is asked for."""
    work = workload("grpo", prompt=1024, response=point["packed"] - 1024, packed=point["packed"])
    found = estimate(shape_of(FACTS["models"][point["model"]]["config"]), Setting(device(point["device"]), work))
    assert 0.5 <= found.devices / point["devices"] <= 2


def test_clusters_grow_by_servers() -> None:
    assert list(sizes(device("h20")))[:9] == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert list(sizes(device("ascend-a3-die")))[:6] == [1, 2, 4, 8, 16, 32]


def test_fewer_experts_need_fewer_devices() -> None:
    whole, cut = (estimate(shape_of(QWEN | {"num_experts": n}), _setting()) for n in (128, 16))
    assert cut.devices < whole.devices and cut.flops["training"] == pytest.approx(whole.flops["training"], rel=0.01)


def test_fewer_layers_save_work() -> None:
    whole, cut = (estimate(shape_of(QWEN | {"num_hidden_layers": n}), _setting(), 16) for n in (48, 24))
    assert cut.step < 0.6 * whole.step and cut.depth < 0.6 * whole.depth


def test_without_offload_the_optimiser_needs_more_devices() -> None:
    off, on = (estimate(shape_of(QWEN), _setting(offload=offload)) for offload in ("none", "optimizer"))
    assert off.devices > on.devices and off.memory.optimiser > 0 == on.memory.optimiser
    assert off.memory.host == 0 < on.memory.host


@pytest.mark.parametrize(
    ("placement", "groups"),
    [
        ("colocated", {"trainer"}),
        ("fused", {"trainer"}),
        ("hybrid", {"trainer"}),
        ("partial", {"trainer", "critic", "assessment"}),
        ("disaggregated", {"trainer", "critic", "rollout", "assessment"}),
        ("asynchronous", {"trainer", "critic", "rollout", "assessment"}),
    ],
)
def test_each_placement_has_its_groups(placement: str, groups: set[str]) -> None:
    found = estimate(shape_of(QWEN), _setting(algorithm="ppo", placement=placement))
    assert set(found.groups) == groups and found.device_hours == found.devices * found.step / 3600


def test_hybrid_holds_the_resharded_copy_and_asynchronous_a_shadow() -> None:
    plain, hybrid, asynchronous = (
        estimate(shape_of(QWEN), _setting(placement=p), 64) for p in ("colocated", "hybrid", "asynchronous")
    )
    assert plain.memory.others == 0
    assert hybrid.memory.others == hybrid.memory.rollout
    assert asynchronous.memory.others == asynchronous.memory.weights


def test_too_few_devices_are_refused_with_the_fewest() -> None:
    with pytest.raises(InputError, match=r"no layout of 1 h20 holds the model; \d+ are the fewest"):
        estimate(shape_of(QWEN), _setting(), 1)


def test_a_model_that_fits_nowhere_says_so() -> None:
    huge = Shape("llama", 4000, 100_000, 64, 64, 1000, 100_000, 400_000)
    with pytest.raises(InputError, match="fits on no"):
        estimate(huge, _setting())


def test_a_token_touches_its_experts_and_a_large_batch_all() -> None:
    s = shape_of(QWEN)
    p = parameters(s)
    resident = p.total - p.routed - p.embedding
    assert touched(s, p, 1) == pytest.approx(resident + p.routed * 8 / 128)
    assert touched(s, p, 10_000) == pytest.approx(p.total - p.embedding)


def test_decoding_is_bound_by_what_is_slowest() -> None:
    s, toy = Shape("x", 1, 8, 2, 1, 4, 10, 16), Device("toy", "", 1e9, 1e6, 0, 1e3, 1, 1, 8, ())
    p = parameters(s)
    even = Efficiency(decode_flops=1, decode_bytes=1, layer_floor=0)
    read = (p.total - p.embedding) * 2 + 2 * 2 * 4 * 10  # weights, and 10 tokens of a cache of 2 x 1 x 4 elements
    assert decode_seconds(s, p, Setting(toy, workload("grpo"), efficiency=even), 1, 1, 10) == read / 1e3
    slow = Efficiency(layer_floor=9)
    assert decode_seconds(s, p, Setting(toy, workload("grpo"), efficiency=slow), 1, 1, 10) == 9


def test_every_formula_is_stated() -> None:
    assert all(len(text) > 40 for text in formulas().values()) and "state_bytes" in formulas()


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(faultproxy, ["proxy", "cost", *arguments])
    if isinstance(result.exception, InputError):
        return 2, str(result.exception)
    return result.exit_code, result.output


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "proxy.json").write_text(json.dumps(QWEN | {"num_experts": 48}))
    return path


def test_the_command_shows_original_and_proxy(original: Path) -> None:
    code, text = _run(str(original), "--against", str(original.parent / "proxy.json"), "--device", "ascend-a3-die")
    assert code == 0
    assert "30.5 B        12.4 B    0.406" in text and "formulas" not in text
    assert "formulas" in _run(str(original), "--formulas")[1]


def test_the_command_writes_json(original: Path) -> None:
    code, text = _run(str(original / "config.json"), "--format", "json", "--rollout", "fp8", "--critic", "shared")
    body = json.loads(text)
    assert code == 0 and body["schema"] == 1 and body["proxy"] is None
    assert body["original"]["parameters"]["total"] == 30_532_122_624
    assert body["setting"]["workload"]["critic"] == "shared" and body["setting"]["rollout_bytes"] == 1
    assert set(body["original"]) == set(document(estimate(shape_of(QWEN), _setting())))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "x"}', '{"model_type": "gpt2", "n_layer": 2}'])
def test_what_is_no_configuration_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    code, text = _run(str(tmp_path))
    assert code == 2 and str(tmp_path) in text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    code, text = _run(str(tmp_path / "none.json"))
    assert code == 2 and "no model configuration can be read there" in text


def test_a_rollout_copy_has_room_for_its_cache_where_the_fewest_devices_that_hold_it_leave_none() -> None:
    """DeepSeek-V3 with 32 experts: 198 GB of weights fit on four dies of 64 GB with room for one sequence at a time."""
    used = _setting("ascend-a3-die")
    s = shape_of(FACTS["models"]["deepseek-v3"]["config"] | {"n_routed_experts": 32, "n_group": 1, "topk_group": 1})
    found = estimate(s, used, 16)
    assert rollout_shard(s, used) == 4 and found.shard > 4
    narrow = generation_seconds(s, found.parameters, used, 16, 4)
    assert found.seconds["generation"] < narrow / 5
    assert found.memory.rollout == pytest.approx(2 * found.parameters.total / found.shard)


def test_the_documented_tables_are_those_the_benchmark_wrote() -> None:
    root = Path(__file__).parent.parent
    page = (root / "docs" / "cost.md").read_text(encoding="utf-8")
    found = json.loads((root / "benchmarks" / "cost.json").read_text(encoding="utf-8"))
    for row in found["clusters"]:
        shown = f"| {row['published']} | {row['ours']} | {row['ratio']:.2f} | {row['share_fitted_on_others']:.2f} |"
        assert shown in page, row["model"]
    for row in found["pairs"]:
        same, least = row["ours_at_published_devices"], row["ours_smallest"]
        assert f"{same['seconds'][0]} to {same['seconds'][1]}, {same['hours_ratio']} |" in page
        assert f"{least['seconds'][0]} to {least['seconds'][1]}, {least['hours_ratio']} |" in page
    counted = [row for row in found["counted"] if "counted" in row]
    exact = sum(row["counted"] == row["ours"] for row in counted)
    assert f"Of {len(counted)} model types" in page and f"exact for {exact}" in page
    assert all(abs(row["error_percent"]) < 1 for row in counted)
    assert all(abs(row["error_percent"]) <= 0.5 for row in found["parameters"])
