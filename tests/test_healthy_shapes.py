"""Healthy runs whose logs have steps of their own (held values, stages, epochs, milestones) raise no alarm, at any length."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.proxy.lab import writers
from faultproxy.proxy.lab.writers import Run

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import curves, shapes


def _supervised(seed: int, steps: int) -> Run:
    return curves.evaluated(curves.pretrain(seed, steps, moe=True), seed, max(5, steps // 20))


RUNS = {
    "rl": (curves.rl, "run.jsonl", writers.verl_jsonl),
    "rl without KL": (lambda seed, steps: curves.rl(seed, steps, growth=2.2, gain=0.6, beta=False), "run.jsonl", writers.verl_jsonl),
    "pre-training": (_supervised, "run.log", writers.megatron),
}  # fmt: skip


@pytest.mark.parametrize("steps", [40, 150, 900])
@pytest.mark.parametrize("shape", shapes.SHAPES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_healthy_run_with_steps_of_its_own_is_healthy(tmp_path: Path, kind: str, shape: str, steps: int) -> None:
    make, name, write = RUNS[kind]
    path = tmp_path / name
    path.write_text(write(shapes.SHAPES[shape](make(steps, steps), steps)), encoding="utf-8")
    found = diagnose(read([str(path)])[0])
    assert found.verdict == "healthy", [(e.rule, e.statement) for e in found.evidence]
