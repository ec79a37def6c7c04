"""Synthetic logs, byte for byte as each framework writes them: every non-finite encoding, healthy runs, whole faults."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
if str(FIXTURES) not in sys.path:  # fixtures/generators is no installed package
    sys.path.insert(0, str(FIXTURES))

from generators import cases, curves, encodings

SEEDS = (0, 1)


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixtures_generate", FIXTURES / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _diagnosis(folder: Path, name: str, text: str) -> dict[str, Any]:
    path = folder / name
    path.write_bytes(text.encode())
    (trace,) = read([str(path)])
    return document(diagnose(trace))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", encodings.ENCODINGS)
def test_nonfinite_is_found_at_its_step(tmp_path: Path, name: str, seed: int) -> None:
    encoding = encodings.ENCODINGS[name]
    found = _diagnosis(tmp_path, encoding.file, encoding.write(seed, True))
    assert (found["failure_type"] in ("nonfinite_loss", "nonfinite_gradient"), found["first_bad_step"]) == (True, encodings.TURN), found  # fmt: skip


@pytest.mark.parametrize("name", list(encodings.ENCODINGS))
def test_same_run_without_the_fault_is_healthy(tmp_path: Path, name: str) -> None:
    encoding = encodings.ENCODINGS[name]
    found = _diagnosis(tmp_path, encoding.file, encoding.write(3, False))
    assert found["verdict"] == "healthy", found


@pytest.mark.parametrize("kind, name", [("rl", n) for n in cases.RL_FORMATS] + [("sft", n) for n in cases.SFT_FORMATS])
def test_healthy_run_in_every_format(tmp_path: Path, kind: str, name: str) -> None:
    run = curves.rl(4) if kind == "rl" else curves.evaluated(curves.pretrain(5, moe=True), 5)
    file, write = cases.FORMATS[name]
    found = _diagnosis(tmp_path, file, write(run))
    assert found["verdict"] == "healthy", found
    assert found["run"]["sources"][0]["unparsed"] == 0


@pytest.mark.parametrize(
    "name, format, seed",
    [(name, format, seed) for name, case in cases.CASES.items() for format in case.formats for seed in SEEDS],
)
def test_whole_run_gets_its_failure_type(tmp_path: Path, name: str, format: str, seed: int) -> None:
    case = cases.CASES[name]
    file, write = cases.FORMATS[format]
    found = _diagnosis(tmp_path, file, write(case.run(seed)) + case.tail)
    assert found["failure_type"] == case.expected, found


def test_scale_collapse_after_a_divergence_is_a_consequence(tmp_path: Path) -> None:
    case = cases.CASES["scale falls after a divergence"]
    file, write = cases.FORMATS["megatron"]
    found = _diagnosis(tmp_path, file, write(case.run(0)))
    assert {e["role"] for e in found["evidence"] if e["rule"] == "numerics/loss-scale-fall"} == {"consequence"}


def test_demo_log_is_what_the_generator_prints() -> None:
    generate = _generate()
    assert generate.demo() == generate.DEMO.read_text(encoding="utf-8")


def test_demo_log_is_a_scale_collapse_from_its_first_overflow(tmp_path: Path) -> None:
    generate = _generate()
    found = _diagnosis(tmp_path, "run.log", generate.demo())
    assert (found["failure_type"], found["first_bad_step"]) == ("loss_scale_collapse", generate.ONSET)


def test_demo_log_names_precision_as_its_factor(tmp_path: Path) -> None:
    generate = _generate()
    assert _diagnosis(tmp_path, "run.log", generate.demo())["factor"] == "precision"
