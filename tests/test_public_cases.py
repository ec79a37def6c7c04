"""Real public logs with labels, when the folder that holds them lies beside the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def scorer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_cases", ROOT / "benchmarks" / "cases.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", ["cases", "logs"])
def test_public_logs_reach_the_bars(folder: str) -> None:
    path = SHARED / folder
    if not (path / "labels.jsonl").is_file():
        pytest.skip(f"no labelled logs at ../shared/{folder}")
    whole, by_format, _ = scorer().score([path], verbose=True)
    assert whole.met(), whole.line()
    assert "unread" not in by_format


def test_a_constant_answer_does_not_reach_the_bars() -> None:
    """The share of factors alone proves nothing: always `none` scores high there and fails elsewhere."""
    module = scorer()
    known = [
        {"case": "a", "failure_type": "nonfinite_loss", "accepted_types": ["nonfinite_loss"], "factor": "precision", "accepted_factors": ["precision", "none"], "first_bad_step": 3},
        {"case": "b", "failure_type": "healthy", "accepted_types": ["healthy"], "factor": "none", "accepted_factors": ["none"], "first_bad_step": None},
    ]  # fmt: skip
    always_healthy = module.constant(known, "healthy", "none")
    assert (always_healthy.type_ok, always_healthy.factor_ok, always_healthy.met()) == (1, 2, False)
    always_precision = module.constant(known, "nonfinite_loss", "precision")
    assert (always_precision.wrong_positive, always_precision.false_alarms) == (1, 1)
