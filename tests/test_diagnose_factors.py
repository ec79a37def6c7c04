"""Which factor a gap between rollout and trainer is put down to, how a path is said, and what was not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from faultproxy.analyzer.catalogue import catalogue
from faultproxy.analyzer.diagnose import GENERAL, LATE, Diagnosis, diagnose, fuse
from faultproxy.analyzer.engine import Finding, Outcome
from faultproxy.analyzer.rulecases import trace
from faultproxy.analyzer.trace import Trace

BEFORE, AFTER = 12, 16


def _shifts(before: float, after: float, swing: float = 0.0) -> str:
    """A level that holds for twelve rows and another that holds for sixteen."""
    return f"{before}x{BEFORE}~{swing * before} {after}x{AFTER}~{swing * after}"


def _run(
    norms: Sequence[float] = (),
    overlaps: Sequence[float | None] = (),
    tail: float = 1.6,
    series: Mapping[str, str] = MappingProxyType({}),
) -> Diagnosis:
    """The diagnosis of a run whose engines part in the thirteenth row: late norm ratio and overlap of each layer."""
    gap = {
        "reward": "0.4x28",
        "grad_norm": "1x28",
        "mismatch_logp_abs": _shifts(0.002, 0.06, 0.1),
        "mismatch_prob_diff": _shifts(0.001, 0.03),
        "mismatch_prob_diff_std": _shifts(0.002, 0.03 * tail),
        "mismatch_kl": _shifts(0.0001, 0.008),
        "mismatch_k3": _shifts(0.0001, 0.008),
        "mismatch_pearson": _shifts(0.9999, 0.99),
    }
    layers: dict[str, dict[str, str]] = {str(n): {"act_norm_ratio": _shifts(1, norm)} for n, norm in enumerate(norms)}
    for n, overlap in enumerate(overlaps):
        if overlap is not None:
            layers[str(n)]["topk_overlap"] = _shifts(0.998, overlap)
    return diagnose(trace({"series": gap | dict(series), "layers": layers}))


SAME = (1.0, 1.0, 1.0, 1.0)
ROUNDED = (1.003, 0.997, 0.995, 0.993)
ROUTED = (None, 0.998, 0.998, 0.998)


# -- where the engines part -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("norms", "overlaps", "factor", "path", "cause"),
    [
        (ROUNDED, (), "precision", ("precision",), "precision"),
        (SAME, (), "precision", ("precision",), "precision"),
        ((1.003, 0.995, 0.99, 0.985), (None, 0.96, 0.95, 0.94), "precision", ("precision", "routing"), "precision"),
        ((1.0, 1.0, 0.8, 0.78), (), "depth", ("depth",), "framework"),
        ((1.0, 1.0, 0.8, 0.78), (None, 0.998, 0.998, 0.7), "depth", ("depth", "routing"), "framework"),
        ((1.0, 0.9, 0.85, 0.8), (None, 0.998, 0.9, 0.88), "routing", ("routing",), "framework"),
        ((1.0, 0.97, 0.95, 0.93), (None, 0.6, 0.6, 0.6), "routing", ("routing",), "framework"),
    ],
    ids=["small from the first layer", "after the last layer", "rounding that flips routers", "from layer 2 on",
         "from layer 2 on, which flips the router above", "at the experts of the first routed layer", "at the first router"],
)  # fmt: skip
def test_the_place_where_the_engines_part_names_the_factor(
    norms: Sequence[float], overlaps: Sequence[float | None], factor: str, path: tuple[str, ...], cause: str
) -> None:
    found = _run(norms, overlaps)
    assert found.failure_type in ("train_inference_mismatch", "routing_mismatch")
    assert (found.factor, found.path, found.causes[0][0]) == (factor, path, cause)


def test_one_gain_for_all_layers_is_depth_while_the_log_probabilities_hardly_move() -> None:
    found = _run((1.05, 1.05, 1.051, 1.05), series={"mismatch_logp_abs": _shifts(0.002, 0.005, 0.05)})
    assert (found.failure_type, found.factor, found.causes[0][0]) == ("train_inference_mismatch", "depth", "operator")


@pytest.mark.parametrize(
    ("series", "tail", "cause"),
    [
        ({}, 0.4, "config"),
        ({"mismatch_kl": _shifts(0.0, 1e-5), "mismatch_k3": _shifts(1e-4, 1.0)}, 1.6, "data"),
        ({"mismatch_kl": _shifts(1e-4, 0.055)}, 5.0, "data"),
        ({"mismatch_logp_abs": f"0.0002x{BEFORE} " + "0.03 0.0002 " * (AFTER // 2)}, 1.6, "framework"),
    ],
    ids=["all tokens off alike", "k1 near zero beside k3", "one way, in few tokens", "comes and goes"],
)
@pytest.mark.parametrize("norms", [(), SAME], ids=["scalars", "layers"])
def test_the_shape_of_the_gap_says_that_no_factor_is_involved(
    norms: Sequence[float], series: dict[str, str], tail: float, cause: str
) -> None:
    found = _run(norms, tail=tail, series=series)
    assert (found.factor, found.path, found.causes[0][0]) == ("none", (), cause)


def test_stale_weights_are_told_by_growth_and_stale_layers_by_where_it_starts() -> None:
    growing = {"mismatch_logp_abs": f"0.002x{BEFORE} 0.02+0.02x{AFTER}"}
    assert _run((1.02, 1.03, 1.03, 1.04), series=growing).factor == "none"
    assert _run((1.0, 1.0, 1.03, 1.04), series=growing).factor == "depth"


# -- what is hidden stays undetermined --------------------------------------------------------------------------------
def test_a_gap_of_scalars_alone_has_no_factor() -> None:
    found = _run()
    assert (found.failure_type, found.factor) == ("train_inference_mismatch", "undetermined")
    assert {"depth", "routing"} <= {area["what"] for area in found.not_judged}


def test_a_step_at_the_second_layer_is_no_depth_while_routers_are_hidden() -> None:
    assert _run((1.0, 0.9, 0.88, 0.85)).factor == "undetermined"


def test_layers_that_no_rule_reads_judge_nothing() -> None:
    series = {"loss": "2x28", "grad_norm": "1x28"}
    blind = diagnose(
        trace({"series": series, "layers": {"0": {"moment1_norm": "1x28"}, "1": {"moment1_norm": "1x28"}}})
    )
    assert {"depth", "routing"} <= {area["what"] for area in blind.not_judged}
    seen = diagnose(trace({"series": series, "layers": {"0": {"topk_overlap": "1x28"}, "1": {"topk_overlap": "1x28"}}}))
    assert not {"depth", "routing"} & {area["what"] for area in seen.not_judged}


def test_a_healthy_run_with_every_signal_is_healthy() -> None:
    quiet = {name: "0.001x28~0.0002" for name in ("mismatch_logp_abs", "mismatch_prob_diff", "mismatch_k3")}
    layers = {str(n): {"act_norm_ratio": "1x28~0.001", "topk_overlap": "0.99x28~0.005"} for n in range(4)}
    assert diagnose(trace({"series": quiet | {"reward": "0.4x28"}, "layers": layers})).verdict == "healthy"


def test_a_healthy_spike_before_the_fault_is_not_its_first_step() -> None:
    spiky = {"mismatch_logp_abs": f"0.002x6 0.05 0.002x{BEFORE - 7} 0.06x{AFTER}"}
    assert _run(ROUNDED, series=spiky).first_bad_step == BEFORE + 1


# -- fusion -----------------------------------------------------------------------------------------------------------
def _finding(rule: str, strength: float = 0.8, **changes: Any) -> Finding:
    made: dict[str, Any] = {
        "failure_type": "train_inference_mismatch",
        "role": "root",
        "statement": rule,
        "step_start": 3,
    }
    return Finding(rule=rule, strength=strength, **(made | changes))


def _fused(*findings: Finding) -> Diagnosis:
    rule = next(rule for rule in catalogue() if rule.id == "policy/mismatch-kl")
    return fuse(Trace("made"), [Outcome(rule, "fires", findings)])


def test_rules_that_know_only_the_type_count_as_half_a_rule_beside_one_that_knows_the_factor() -> None:
    support = {"failure_type": None, "role": "support", "supports": ("train_inference_mismatch",)}
    known = _finding("policy/a", 1.0, votes={"precision": 0.9}, causes={"precision": 1.0}, **support)
    general = [_finding(f"policy/{name}", 1.0, causes={"framework": 1.0}) for name in "bcd"]
    causes = dict(_fused(known, *general).causes)
    assert causes["framework"] == pytest.approx(GENERAL / (1.0 + GENERAL + 0.1), abs=1e-3)
    assert causes["precision"] > causes["framework"]
    alone = dict(_fused(*general).causes)
    assert alone["framework"] == pytest.approx(3.0 / 3.1, abs=1e-3)


@pytest.mark.parametrize(("begins", "factor"), [(2 + LATE, "depth"), (3 + LATE, "undetermined")])
def test_support_that_begins_long_after_the_root_says_nothing_of_its_factor(begins: int, factor: str) -> None:
    support = {"failure_type": None, "role": "support", "supports": ("train_inference_mismatch",)}
    made = trace({"series": {"loss": "1x20"}})
    rule = next(rule for rule in catalogue() if rule.id == "policy/mismatch-kl")
    late = _finding("policy/b", 1.0, votes={"depth": 0.9}, **support | {"step_start": begins})
    assert fuse(made, [Outcome(rule, "fires", (_finding("policy/a", step_start=2), late))]).factor == factor


@pytest.mark.parametrize(
    ("votes", "path"),
    [({"precision": 0.9}, ("precision", "routing")), ({"depth": 0.9}, ("depth", "routing")), ({"none": 0.9}, ()), ({"routing": 0.9}, ("routing",))],
)  # fmt: skip
def test_a_path_goes_on_to_routing_where_another_factor_flips_routers(
    votes: dict[str, float], path: tuple[str, ...]
) -> None:
    flips = _finding("routing/flips", 0.5, failure_type=None, role="support", supports=("train_inference_mismatch",))
    assert _fused(_finding("policy/a", votes=votes), flips).path == path
    assert _fused(_finding("policy/a", votes=votes)).path == path[:1]
