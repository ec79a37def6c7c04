"""What happens where a trace is larger than memory allows, or a rule cannot run: a partial answer that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from faultproxy.analyzer.catalogue import catalogue
from faultproxy.analyzer.diagnose import diagnose, fuse
from faultproxy.analyzer.engine import run
from faultproxy.analyzer.ingest import log as logs
from faultproxy.analyzer.ingest import read


def write(path: Path, count: int, bad: set[int]) -> str:
    rows = [
        {"step": s, "loss": float("nan") if s in bad else 2 + 100 / (s + 50) + s % 7 / 100, "grad_norm": 1 + s % 5 / 10}
        for s in range(1, count + 1)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def test_rows_beyond_the_bound_are_thinned_evenly_and_bad_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_ROWS", 100)
    bad = set(range(901, 1001))
    (trace,) = read([write(tmp_path / "run.jsonl", 1000, bad)])
    frame = trace.frame
    assert len(frame) <= 2 * 100
    assert frame.steps == sorted(set(frame.steps))
    loss = next(column for key, column in frame.columns.items() if key.signal == "loss")
    early = [s for s in frame.steps if s <= 900]
    assert max(b - a for a, b in pairwise(early)) <= 64  # even, not the first hundred
    assert loss.states and all(frame.steps[row] in bad for row in loss.states)
    assert any("too many rows" in warning for warning in trace.warnings)
    found = diagnose(trace)
    assert (found.failure_type, found.first_bad_step) == ("nonfinite_loss", 901)


def test_short_traces_are_never_thinned(tmp_path: Path) -> None:
    (trace,) = read([write(tmp_path / "run.jsonl", 1000, set())])
    assert len(trace.frame) == 1000
    assert not trace.warnings


def test_a_trace_on_which_a_rule_cannot_run_is_not_called_healthy(tmp_path: Path) -> None:
    (trace,) = read([write(tmp_path / "run.jsonl", 200, set())])
    assert diagnose(trace).verdict == "healthy"
    broken = [
        replace(rule, sql="SELECT no_such_column FROM train", guard=None)
        if rule.id == "optimisation/loss-spike"
        else rule
        for rule in catalogue()
    ]
    found = fuse(trace, run(trace, broken))
    assert (found.verdict, found.failure_type, found.factor) == ("inconclusive", None, "undetermined")
    assert any("a rule could not run" in warning for warning in found.warnings)
