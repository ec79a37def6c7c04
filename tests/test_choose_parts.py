"""The parts of a choice: K-Medoids against all choices there are, and what is read of stored weights."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.checkpoint import read_checkpoint
from faultproxy.proxy.choose.medoids import k_medoids
from faultproxy.proxy.choose.stored import Stored, decode
from faultproxy.proxy.shape import read_shape
from faultproxy.proxy.source import open_source


def points(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    at = rng.standard_normal((n, 2))
    return np.linalg.norm(at[:, None] - at[None], axis=-1), rng.random(n)


def loss(distance: Any, weight: Any, medoids: Any) -> float:
    return float((distance[:, list(medoids)].min(1) * weight).sum())


@pytest.mark.parametrize("seed", range(12))
def test_no_single_swap_improves_the_medoids_and_no_choice_is_much_better(seed: int) -> None:
    n, k, fixed = 9, 1 + seed % 5, seed % 2
    distance, weight = points(n, seed)
    start = list(range(k))
    fixed = min(fixed, k)
    found, reached = k_medoids(distance, start, fixed, weight)
    assert found[:fixed] == start[:fixed]
    assert reached == pytest.approx(loss(distance, weight, found))
    others = [m for m in range(n) if m not in found]
    for place, other in itertools.product(range(fixed, k), others):
        assert reached <= loss(distance, weight, [*found[:place], other, *found[place + 1 :]]) + 1e-9
    free = [m for m in range(n) if m not in start[:fixed]]
    best = min(loss(distance, weight, [*start[:fixed], *rest]) for rest in itertools.combinations(free, k - fixed))
    assert best - 1e-9 <= reached <= 1.05 * best


def test_medoids_lie_one_in_each_of_well_separated_clusters() -> None:
    rng = np.random.default_rng(3)
    at = rng.standard_normal((60, 3)) + 50 * np.repeat(np.eye(3), 20, 0)
    found, _ = k_medoids(np.linalg.norm(at[:, None] - at[None], axis=-1), [0, 1, 2])
    assert sorted(m // 20 for m in found) == [0, 1, 2]


def test_points_that_are_all_alike_keep_their_medoids() -> None:
    assert k_medoids(np.zeros((5, 5)), [3, 1]) == ([3, 1], 0.0)
    assert k_medoids(np.ones((5, 5)) - np.eye(5), [4, 0, 2], weight=np.ones(5)) == ([4, 0, 2], 2.0)


@pytest.mark.parametrize(("start", "fixed"), [([], 0), ([0, 0], 0), ([0, 9], 0), ([0, 1], 3), (list(range(6)), 0)])
def test_medoids_that_are_no_points_are_our_own_error(start: list[int], fixed: int) -> None:
    with pytest.raises(ValueError, match="medoids"):
        k_medoids(np.zeros((5, 5)), start, fixed)


@pytest.mark.parametrize(
    ("dtype", "torch_name"),
    [
        ("BF16", "bfloat16"),
        ("F16", "float16"),
        ("F32", "float32"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
    ],
)
def test_numbers_are_decoded_as_torch_does(dtype: str, torch_name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, torch_name)
    codes = torch.arange(256, dtype=torch.uint8)
    raw = (
        codes.view(kind)
        if dtype.startswith("F8")
        else torch.cat([torch.randn(999), torch.tensor([0.0, -0.0, 1e-40, torch.inf])]).to(kind)
    )
    data = raw.view(torch.uint8).numpy().tobytes()
    np.testing.assert_array_equal(decode(dtype, data), raw.float().numpy())


def stored(folder: Path, config: dict[str, Any], arrays: dict[str, tuple[str, Any]]) -> Stored:
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    (folder / "config.json").write_text(json.dumps(config))
    found = read_checkpoint(open_source(str(folder)))
    return Stored(found, read_shape(found.config))


QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 2, "num_experts_per_tok": 1}
NEXT = {
    "model_type": "qwen3_5_moe",
    "num_hidden_layers": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "full_attention_interval": 1,
}
DBRX = {"model_type": "dbrx", "n_layers": 1, "ffn_config": {"moe_num_experts": 2, "moe_top_k": 1}}


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "name", "shape"),
    [
        (NEXT, "model.layers.0.mlp.experts.gate_up_proj", (2, 6, 5)),
        (DBRX, "transformer.blocks.0.ffn.experts.mlp.w1", (8, 5)),
        (QWEN, "model.layers.0.mlp.experts.{}.up_proj.weight", (300, 999)),
    ],
)
def test_sums_are_of_each_expert_whatever_the_layout(
    tmp_path: Path, config: dict[str, Any], name: str, shape: tuple[int, ...]
) -> None:
    each = "{}" in name
    arrays = (
        {name.format(e): ("F32", floats(*shape) * (e + 1)) for e in range(2)}
        if each
        else {name: ("F32", floats(*shape))}
    )
    parts = [array for _, array in arrays.values()] if each else np.split(arrays[name][1], 2)
    absolute, square, count = stored(tmp_path, config, arrays).sums(0)
    np.testing.assert_allclose(absolute, [np.abs(part).sum(dtype=np.float64) for part in parts], rtol=1e-5)
    np.testing.assert_allclose(square, [np.square(part).sum(dtype=np.float64) for part in parts], rtol=1e-5)
    assert count.tolist() == [part.size for part in parts]


def test_fp8_is_scaled_by_its_blocks_and_what_is_not_finite_counts_as_zero(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.{}.up_proj.weight"
    ones = np.full((4, 6), 0x38, np.uint8)  # 1.0 in e4m3
    ones[0, 0] = 0x7F  # NaN
    scale = np.array([[1, 2], [3, 4]], np.float32)
    arrays = {
        name.format(0): ("F8_E4M3", ones),
        name.format(0) + "_scale_inv": ("F32", scale),
        name.format(1): ("F8_E4M3", ones),
    }
    absolute, square, count = stored(tmp_path, QWEN, arrays).sums(0)
    assert absolute.tolist() == [6 * (1 + 2 + 3 + 4) - 1, 23]
    assert square.tolist() == [6 * (1 + 4 + 9 + 16) - 1, 23]
    assert count.tolist() == [24, 24]


def test_tensors_that_do_not_count_the_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must count 2 experts"):
        stored(tmp_path, NEXT, {"model.layers.0.mlp.experts.gate_up_proj": ("F32", floats(3, 4, 5))}).sums(0)
    with pytest.raises(InputError, match="needed are 2 rows"):
        stored(tmp_path, QWEN, {"model.layers.0.mlp.gate.weight": ("F32", floats(3, 5))}).router(0)
    empty = stored(
        tmp_path, QWEN, {"model.layers.0.mlp.experts.0.up_proj.weight": ("F32", np.zeros((1 << 50, 0), np.float32))}
    )
    assert empty.sums(0)[2].tolist() == [0, 0]
    assert empty.undecodable([0]) == "the checkpoint has no weights of experts"


def test_the_choice_does_not_depend_on_the_number_of_threads() -> None:
    code = (
        "import numpy as np; from faultproxy.proxy.choose.medoids import k_medoids; from faultproxy.proxy.choose.views import angles, fuse, steady, length\n"
        "x = np.random.default_rng(0).standard_normal((256, 3000)); d = fuse({'router': angles(x), 'context': angles(x[:, :64])})\n"
        "print(d.sum(), k_medoids(d, range(64), 0, steady(length(x))))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": n},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for n in ("1", "2")
    }
    assert len(said) == 1
