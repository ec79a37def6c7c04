"""Four families through benchmarks/families.py: saved, cut in experts and depth without torch, loaded, and compared with the original."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("benchmark_families", ROOT / "benchmarks" / "families.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small lose by being shared out
    yield module
    torch.set_num_threads(threads)


# One expert a tensor with a dense layer by list; groups with a bias and dense layers first; fused; nested hybrid of lists and states.
@pytest.mark.parametrize("model_type", ["qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next"])
def test_a_cut_model_loads_whole_and_computes_what_the_original_does_without_the_dropped(
    study: ModuleType, model_type: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = study.round_trip(model_type)
    same, _, layers = row["experts_equal"].partition(" of ")
    assert (row["missing"], row["unexpected"], row["finite"], row["experts"]) == (0, 0, True, "16 -> 8")
    assert same == layers
    assert row["max_diff"] < 1e-3 * row["largest_logit"]
    assert row["unmasked_diff"] > 0.1 * row["largest_logit"]
