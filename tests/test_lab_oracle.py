"""Effects and the labelling oracle on hand-made curves: one healthy world, and what each failure changes in it."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.lab import effect, oracle, twin
from faultproxy.proxy.run.config import FaultSpec

STEPS, ONSET, LAYERS = 32, 12, 4
#: Level of each signal at the first and at the last step, and its noise: a share of it. `@` is one a layer.
COMMON = {
    "grad_norm": (1.0, 1.0, 0.2), "entropy": (1.2, 0.8, 0.05), "lr": (3e-4, 3e-4, 0.0), "update_ratio": (1e-3, 1e-3, 0.05),
    "step_time": (0.2, 0.2, 0.05), "grad_norm@": (0.5, 0.5, 0.2), "act_norm@": (1.0, 1.0, 0.01),
    "moment2_norm@": (0.1, 0.1, 0.1), "weights_nonfinite": (0.0, 0.0, 0.0),
}  # fmt: skip
RL = COMMON | {
    "policy_loss": (0.01, 0.01, 2.0), "reward": (0.3, 0.6, 0.1), "advantage_max": (2.0, 2.0, 0.05), "kl_ref": (0.01, 0.02, 0.2),
    "kl_old": (1e-3, 1e-3, 0.2), "zero_std_frac": (0.2, 0.25, 0.2), "response_length": (6.0, 6.0, 0.03),
    "truncated_frac": (0.05, 0.05, 0.2), "mismatch_logp_abs": (3e-3, 3e-3, 0.05), "aux_loss": (1.1, 1.1, 0.02),
    "topk_overlap@": (0.99, 0.99, 0.002), "moe_load_cv@": (0.4, 0.4, 0.1), "moe_max_vio@": (0.8, 0.8, 0.1),
    "moe_dead_frac@": (0.05, 0.05, 0.1), "router_entropy@": (1.8, 1.8, 0.02),
}  # fmt: skip
FP16 = RL | {"loss_scale": (65536.0, 65536.0, 0.0), "skipped_steps": (0.0, 0.0, 0.0)}
SFT = COMMON | {"loss": (2.0, 0.5, 0.05), "accuracy": (0.3, 0.8, 0.03), "eval_accuracy": (0.3, 0.8, 0.02)}


def healthy(levels: dict[str, tuple[float, float, float]], seed: int) -> dict[str, Any]:
    rng, run = np.random.default_rng(seed), {}
    for name, (first, last, noise) in levels.items():
        for column in [f"{name}{layer}" for layer in range(LAYERS)] if name.endswith("@") else [name]:
            level = np.linspace(first, last, STEPS) * (1 + 0.3 * noise * rng.normal())
            run[column] = level * (1 + noise * rng.normal(size=STEPS))
    if "reward" in run:
        run["true_reward"] = run["reward"].copy()
    if "eval_accuracy" in run:
        run["eval_accuracy"][np.arange(STEPS) % 8 != 7] = np.nan
    return run


Change = Callable[[Any], Any]
INF, ZERO = (lambda x: np.full_like(x, np.inf)), (lambda x: 0 * x)


def times(factor: float) -> Change:
    return lambda x: x * factor


def to(value: float) -> Change:
    return lambda x: np.full_like(x, value)


def ramp(end: float, start: float = 1.0) -> Change:
    """Multiply by a factor that goes from `start` at the onset step to `end`, in equal ratios."""
    return lambda x: x * np.geomspace(start, end, len(x))


def at(*places: int, value: float) -> Change:
    """Set single steps, counted from the onset."""

    def change(x: Any) -> Any:
        x = x.copy()
        x[list(places)] = value
        return x

    return change


#: Name, healthy levels, what the fault does from the onset on (a name that ends in @ means every layer), and the label.
CASES: list[tuple[str, dict[str, Any], dict[str, Change], str, int | None]] = [
    ("loss and gradient NaN for good", RL, {"policy_loss": INF, "grad_norm": INF}, "nonfinite_loss", 12),
    ("the gradient alone is NaN", RL, {"grad_norm": at(*range(3, 21), value=np.inf)}, "nonfinite_gradient", 15),
    ("the scale halves at every step", FP16, {"loss_scale": ramp(2.0**-20), "skipped_steps": to(1.0), "grad_norm": INF}, "loss_scale_collapse", 12),
    ("a static scale overflows", FP16, {"skipped_steps": to(1.0), "grad_norm": INF}, "nonfinite_gradient", 12),
    ("norm x 100 at once", RL, {"grad_norm": times(100), "grad_norm@": times(100)}, "gradient_explosion", 12),
    ("norm grows a thousandfold", RL, {"grad_norm": ramp(1e3), "entropy": ramp(1.3)}, "gradient_explosion", None),
    ("every gradient x 3", RL, {"grad_norm": times(3), "grad_norm@": times(3)}, "wrong_gradient_scale", 12),
    ("one layer's gradient x 4", RL, {"grad_norm": times(1.3), "grad_norm@2": times(4)}, "wrong_gradient_scale", 12),
    ("lower layers starve", RL, {"grad_norm": times(0.7), "grad_norm@0": times(5e-4)}, "wrong_gradient_scale", 12),
    ("updates skipped", RL, {"update_ratio": ZERO, "reward": ramp(0.6), "true_reward": ramp(0.6)}, "zero_gradient", 12),
    ("loss climbs", SFT, {"loss": ramp(8.0), "accuracy": ramp(0.3)}, "loss_divergence", None),
    ("loss jumps and stays", SFT, {"loss": times(2.5), "accuracy": times(0.5)}, "loss_spike", 12),
    ("the log ends in a peak", SFT, {"loss": at(18, 19, value=9.0)}, "loss_spike", 30),
    ("loss stays where it was", SFT, {"loss": lambda x: 0 * x + 1.45, "accuracy": to(0.45)}, "no_learning", None),
    ("held-out accuracy falls", SFT, {"eval_accuracy": times(0.5)}, "overfitting", None),
    ("rollout and trainer disagree", RL, {"mismatch_logp_abs": times(10)}, "train_inference_mismatch", 12),
    ("policy leaves its reference", RL, {"kl_ref": ramp(30.0)}, "policy_drift", None),
    ("entropy collapses", RL, {"entropy": ramp(0.05)}, "entropy_collapse", None),
    ("entropy explodes", RL, {"entropy": ramp(4.0)}, "entropy_explosion", None),
    ("all rewards of a group equal", RL, {"zero_std_frac": to(1.0), "advantage_max": ZERO, "grad_norm": ZERO}, "zero_advantage", 12),
    ("reward falls to nothing", RL, {"reward": ramp(0.02), "true_reward": ramp(0.02)}, "reward_collapse", None),
    ("reward never rises again", RL, {"reward": to(0.33), "true_reward": to(0.33)}, "no_learning", None),
    ("seen reward up, true reward down", RL, {"reward": ramp(1.6), "true_reward": ramp(0.1)}, "reward_hacking", None),
    ("reward inverted", RL, {"reward": lambda x: 1 - x + 0.2, "true_reward": ramp(0.3)}, "reward_fault", 12),
    ("answers grow and are cut", RL, {"response_length": ramp(2.0), "truncated_frac": ramp(16.0)}, "length_runaway", None),
    ("the limit is too short", RL, {"response_length": times(0.8), "truncated_frac": to(0.7)}, "length_truncation", 12),
    ("experts differ, probabilities with them", RL, {"topk_overlap@": times(0.6), "mismatch_logp_abs": times(30)}, "routing_mismatch", 12),
    ("one expert takes all in one layer", RL, {"moe_load_cv@1": times(6), "moe_dead_frac@1": to(0.8), "router_entropy@1": times(0.2)}, "router_collapse", 12),
    ("uneven load, no expert dead", RL, {"moe_load_cv@3": times(3), "moe_max_vio@3": times(3)}, "expert_imbalance", 12),
    ("balance at the cost of the task", RL, {"aux_loss": times(0.92), "reward": times(0.6), "true_reward": times(0.6), "grad_norm": times(2)}, "aux_loss_interference", None),
    ("every step takes twice as long", RL, {"step_time": times(2.0)}, "slowdown", 12),
    ("optimiser state lost", RL, {"moment2_norm@": ramp(0.9, 0.05)}, "resume_mismatch", 12),
    ("a little mismatch", RL, {"mismatch_logp_abs": times(1.5)}, "train_inference_mismatch", 12),
    ("something moved that is no failure", RL, {"act_norm@": times(1.2), "lr": times(1.5)}, "healthy", None),
    ("answers grow and it pays", RL, {"response_length": ramp(1.6), "reward": ramp(1.3), "true_reward": ramp(1.3)}, "healthy", None),
    ("one NaN that is over", RL, {"policy_loss": at(4, value=np.inf)}, "healthy", None),
    ("a spike that is over", SFT, {"loss": at(4, value=6.0)}, "healthy", None),
]  # fmt: skip


def broken(run: dict[str, Any], changes: dict[str, Change]) -> dict[str, Any]:
    run = dict(run)
    for name, change in changes.items():
        for column in [key for key in run if key == name or (name[-1] == "@" and key.startswith(name))]:
            run[column] = np.concatenate([run[column][: ONSET - 1], change(run[column][ONSET - 1 :])])
    return run


def fault(moves: dict[str, str], kind: str = "fault", cause: str = "framework") -> FaultSpec:
    return FaultSpec("x", "x", "x", "none", cause, ({},), "actor", moves, "x", kind=kind)


@pytest.mark.parametrize(
    ("levels", "changes", "kind", "step"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_oracle_names(levels: dict[str, Any], changes: dict[str, Change], kind: str, step: int | None) -> None:
    seeds = [healthy(levels, seed) for seed in range(6)]
    run = broken(seeds[0], changes)
    moves = dict.fromkeys([f"{name}0" if name[-1] == "@" else name for name in changes], "?")
    found = effect.effects(run, seeds[0], seeds, ONSET)
    spec = fault(moves, "benign" if kind == "healthy" else "fault")
    label = oracle.label(run, seeds[0], found, spec, ONSET)
    assert (label.type, label.no_effect) == (kind, False), (label, {name: found[name] for name in moves})
    assert label.first_bad_step == step or (step is None and (kind == "healthy") == (label.first_bad_step is None))
    if step is None and label.first_bad_step is not None:
        assert ONSET <= label.first_bad_step <= STEPS


def test_every_type_the_oracle_can_give_has_a_case_and_a_place_in_the_order() -> None:
    named = {case[3] for case in CASES} - {"healthy"}
    assert set(oracle._TESTS) == named == set(oracle.ORDER) - {"data_fault"}
    assert set(oracle.MILD.values()) <= named


def test_a_fault_that_moves_nothing_it_names_is_healthy_without_effect() -> None:
    seeds = [healthy(RL, seed) for seed in range(6)]
    run = broken(seeds[0], {"entropy": times(0.1), "reward": times(1.02)})
    found = effect.effects(run, seeds[0], seeds, ONSET)
    label = oracle.label(run, seeds[0], found, fault({"reward": "-", "entropy": "+"}), ONSET)
    assert (label.type, label.no_effect, label.first_bad_step) == ("healthy", True, None)


def test_bad_data_without_a_symptom_of_its_own_is_a_data_fault() -> None:
    seeds = [healthy(SFT, seed) for seed in range(6)]
    run = broken(seeds[0], {"loss": times(1.25)})
    found = effect.effects(run, seeds[0], seeds, ONSET)
    assert oracle.label(run, seeds[0], found, fault({"loss": "+"}, cause="data"), ONSET).type == "data_fault"


def test_of_two_failures_the_earlier_wins_and_the_other_is_kept() -> None:
    seeds = [healthy(RL, seed) for seed in range(6)]
    late = at(*range(10, 21), value=np.inf)
    run = broken(seeds[0], {"mismatch_logp_abs": times(10), "policy_loss": late, "grad_norm": late})
    found = effect.effects(run, seeds[0], seeds, ONSET)
    label = oracle.label(run, seeds[0], found, fault({"mismatch_logp_abs": "+"}), ONSET)
    assert (label.type, label.first_bad_step) == ("train_inference_mismatch", 12)
    assert label.also == ("nonfinite_loss", "nonfinite_gradient")


def test_thresholds_change_only_with_the_version() -> None:
    frozen = json.dumps([oracle.THRESHOLDS, oracle.ORDER, oracle.MILD]).encode()
    assert (oracle.VERSION, hashlib.sha256(frozen).hexdigest()[:16]) == ("1", "80d26fc1fc8dc8a8")


def test_the_oracle_shares_nothing_with_what_it_judges() -> None:
    for module in (oracle, effect, twin):
        source = inspect.getsource(module)
        assert not [word for word in ("faultproxy.rules", "diagnose", "analyzer.engine", "catalogue") if word in source]


# -- effects ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seeds", [3, 8, 16])
def test_two_healthy_runs_rarely_differ_and_a_tripled_norm_mostly_shows(seeds: int) -> None:
    false, true = [], []
    for at_seed in range(0, 400, 20):
        runs = [healthy(RL, at_seed + seed) for seed in range(seeds)]
        other = healthy(RL, at_seed + 19)
        false += [abs(z) >= effect.EFFECT for z in effect.effects(other, runs[0], runs, ONSET).values()]
        tripled = broken(runs[0], {"grad_norm": times(3), "kl_ref": times(3)})
        found = effect.effects(tripled, runs[0], runs, ONSET)
        true += [effect.moved(found, "grad_norm", "+"), effect.moved(found, "kl_ref", "+")]
    assert np.mean(false) < 0.04  # 3.4 % where two runs share nothing: their difference has sqrt 2 spreads
    assert np.mean(true) > 0.9


def test_constants_and_non_finite_values_give_finite_effects() -> None:
    seeds = [healthy(RL, seed) for seed in range(4)]
    run = broken(
        seeds[0], {"lr": times(30), "policy_loss": at(3, value=-np.inf), "weights_nonfinite": at(20, value=1.0)}
    )
    found = effect.effects(run, seeds[0], seeds, ONSET)
    assert found["lr"] == found["policy_loss"] == effect.CAP and found["weights_nonfinite"] >= effect.EFFECT
    assert found["update_ratio"] == 0 and not effect.moved(found, "update_ratio") and not effect.moved(found, "no_such")
    assert effect.moved(found, "lr", "+") and not effect.moved(found, "lr", "-") and effect.moved(found, "lr", "?")


def test_layers_and_ranks_are_summed_up() -> None:
    run = {
        "grad_norm@1": np.array([1.0, 1.0]),
        "grad_norm@3": np.array([np.e, np.inf]),
        "loss#0": np.ones(2),
        "loss#1": np.array([3.0, 1.0]),
    }
    full = effect.summaries(run)
    assert full["grad_norm@0"].tolist() == [1, 1] and full["grad_norm@last"].tolist() == [np.e, np.inf]
    assert full["grad_norm@mean"].tolist() == [(1 + np.e) / 2, np.inf]
    assert full["grad_norm@slope"][0] == pytest.approx(1.0) and np.isnan(full["grad_norm@slope"][1])
    assert full["loss#spread"].tolist() == [1.0, 0.0]


def test_a_table_becomes_arrays_with_gaps_and_infinities() -> None:
    pa = pytest.importorskip("pyarrow")
    from faultproxy.analyzer.schema import VALUES, arrow

    base = dict.fromkeys(VALUES) | {"run": "r", "segment": 0, "axis": "train", "state": "finite"}
    rows = [
        {"signal": "loss", "step": 1, "value": 2.0}, {"signal": "loss", "step": 3, "state": "nan"},
        {"signal": "grad_norm", "role": "critic", "step": 2, "value": 1.0}, {"signal": "act_norm", "layer": 1, "step": 1, "value": 4.0},
        {"signal": "true_reward", "axis": "system", "label": "hidden", "step": 1, "value": 0.5},
        {"signal": "expert_load", "layer": 1, "expert": 0, "step": 1, "value": 0.5}, {"signal": "loss", "rank": 1, "step": 1, "state": "neg_inf"},
    ]  # fmt: skip
    run = effect.series(pa.Table.from_pylist([base | row for row in rows], arrow(VALUES)))
    assert set(run) == {"loss", "critic_grad_norm", "act_norm@1", "true_reward", "loss#1"}
    np.testing.assert_array_equal(run["loss"], [2.0, np.nan, np.inf])
    np.testing.assert_array_equal(run["loss#1"], [-np.inf, np.nan, np.nan])


def test_too_few_healthy_runs_and_a_wrong_onset_are_said() -> None:
    runs = [healthy(SFT, seed) for seed in range(3)]
    with pytest.raises(InputError, match="needs at least 1"):
        effect.effects(runs[0], runs[0], [], ONSET)
    with pytest.raises(InputError, match="allowed are 1 to 32"):
        effect.effects(runs[0], runs[0], runs, 33)
