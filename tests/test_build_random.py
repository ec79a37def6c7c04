"""Weights drawn anew: as wide as the original's, the same for one seed, and only where that means something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.build import build
from faultproxy.proxy.checkpoint import Checkpoint, read_checkpoint
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.source import open_source

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints


def read(folder: Path) -> Checkpoint:
    return read_checkpoint(open_source(str(folder)))


def wide(folder: Path, dtype: str, deviation: float = 2) -> Path:
    """A checkpoint of one layer whose down projections have mean 0.5 and, but for other wishes, deviation 2."""
    checkpoints.moe(folder, layers=1)
    shard = {}
    draw = np.random.default_rng(0)
    for name, tensor in read(folder).tensors.items():
        shard[name] = (tensor.dtype, list(tensor.shape), read(folder).read(name))
        if "down_proj" in name:
            values = draw.normal(0.5, deviation, (64, 512)).astype(np.float32)
            bits = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
            data = {"BF16": bits, "F16": values.clip(-65504, 65504).astype("<f2").tobytes(), "F32": values.tobytes()}[
                dtype
            ]
            shard[name] = (dtype, [64, 512], data)
    for path in folder.glob("model*"):
        path.unlink()
    checkpoints.write_shard(
        folder / "model.safetensors", dict(sorted(shard.items(), key=lambda one: one[1][0] != "F32"))
    )
    return folder


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    data, dtype = checkpoint.read(name), checkpoint.tensors[name].dtype
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_drawn_weights_have_the_mean_and_deviation_of_the_originals(tmp_path: Path, dtype: str) -> None:
    whole = wide(tmp_path / "whole", dtype)
    build(read(whole), Recipe(experts=4, method="first", weights="random"), tmp_path / "proxy")
    proxy = read(tmp_path / "proxy")
    name = "model.layers.0.mlp.experts.3.down_proj.weight"
    found = values(proxy, name)
    assert abs(found.mean() - 0.5) < 0.1 and abs(found.std() - 2) < 0.1
    assert not np.isin(found[:100], values(read(whole), name)[:100]).all()
    assert not np.array_equal(found, values(proxy, name.replace("3.down", "2.down")))
    norm = "model.layers.0.input_layernorm.weight"
    assert proxy.read(norm) == read(whole).read(norm)


def test_a_seed_gives_the_same_weights_whatever_else_is_kept(tmp_path: Path) -> None:
    whole = read(checkpoints.moe(tmp_path / "whole"))
    for name, layers, seed in (("a", (0, 2), 1), ("b", (2,), 1), ("c", (2,), 2)):
        build(whole, Recipe(layers, experts=4, method="first", weights="random", seed=seed), tmp_path / name)
    drawn = {name: read(tmp_path / name) for name in "abc"}
    expert = "model.layers.{}.mlp.experts.1.up_proj.weight"
    same = drawn["a"].read(expert.format(1))
    assert same == drawn["b"].read(expert.format(0))
    assert same != drawn["c"].read(expert.format(0))


def test_weights_that_would_overflow_are_refused_or_held_at_the_largest_number(tmp_path: Path) -> None:
    recipe = Recipe(experts=4, method="first", weights="random")
    with pytest.raises(InputError, match="down_proj.weight holds values that are no numbers or beyond"):
        build(read(wide(tmp_path / "huge", "F32", 1e35)), recipe, tmp_path / "refused")
    build(read(wide(tmp_path / "half", "F16", 16_000)), recipe, tmp_path / "drawn")
    assert np.isfinite(values(read(tmp_path / "drawn"), "model.layers.0.mlp.experts.3.down_proj.weight")).all()


def test_quantised_weights_are_not_drawn(tmp_path: Path) -> None:
    whole = read(checkpoints.moe(tmp_path / "whole", dtype="F8_E4M3"))
    build(whole, Recipe(experts=4, method="first"), tmp_path / "copied")
    with pytest.raises(InputError, match=r"quantised \(F8_E4M3\).*--weights original"):
        build(whole, Recipe(experts=4, method="first", weights="random"), tmp_path / "drawn")
