"""Names the failure type of a lab run from what no user has: its healthy twin and hidden signals.

The twin shares program, seed, and every step before the onset, and at the onset step still the weights: what differs
there differs because of the fault alone. So each type is a comparison with the twin over the steps from the onset on,
in spreads between healthy runs (effect.py) and by a ratio or a difference that makes it worth a name. Of all types that
hold, the earliest in time wins; at one step process before numerics, routing, policy, optimisation, and the forward
pass before the gradient. A fault that moved none of the signals named for it beforehand is `healthy`, without effect.

The oracle is frozen: it shares nothing with the rules it will be used to judge, and what is in THRESHOLDS, ORDER, and
MILD changes only together with VERSION.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from faultproxy.proxy.lab import effect
from faultproxy.proxy.lab.effect import EFFECT, Array, Series
from faultproxy.proxy.lab.twin import Case, Found, mean, said
from faultproxy.proxy.run.config import FaultSpec

VERSION = "1"
#: Endings: `x` a ratio to the twin, `d` a difference from it, `s` a share of the steps from the onset on.
THRESHOLDS = {
    "same_x": 2e-3,  # equal at the onset step: exact there, but the corpus keeps 10 bits (half a unit is 5e-4)
    "nonfinite_s": 0.2,  # or at the last step; fewer, and over, is a recovered spike
    "scale_fall_x": 1 / 64,  # loss scale at the end: 6 halvings, where a search of the scale takes 1 or 2 in 16 steps
    "explosion_x": 10.0,  # gradient norm at the end; healthy seeds of one program stay within 3 of each other
    "gradient_scale_x": 1.5,  # gradient norm at the onset step with the forward pass unchanged; exact, so small
    "gradient_jump_x": 30.0,  # above it such a jump is an explosion to any reader of a log
    "frozen_x": 1e-3,  # gradient, update, advantage: next to nothing of the twin's
    "frozen_s": 0.5,  # every other update is skipped, or more
    "loss_x": 1.3,  # loss at the end: the level has changed
    "spike_x": 2.0,  # peak of the loss against its end, both over the twin: it came back by half
    "jump_x": 0.5,  # share of the final excess by which the loss rises at the first bad step: a jump, else a climb
    "gain_d": 0.03,  # reward a healthy twin must gain after the onset before "did not learn" means anything
    "gain_x": 0.05,  # the same for a loss, as a share of it
    "learned_x": 0.25,  # share of the twin's gain below which a run has learned nothing
    "evaluation_d": 0.1,  # held-out accuracy lost while the training loss is no worse
    "mismatch_x": 2.0,  # |log p| gap between engines; its healthy level is rounding, steady within 20 %
    "mismatch_d": 2e-3,  # nats: below it bf16 weights alone explain the gap
    "drift_x": 3.0,  # KL to the reference or to the old policy
    "drift_d": 0.01,  # nats: where every update is on-policy both are rounding errors of 0
    "entropy_fall_x": 0.4,  # entropy at the end; healthy learning halves it, but in the twin too
    "entropy_rise_x": 1.6,
    "no_advantage_s": 0.9,  # groups of equal rewards at the end,
    "no_advantage_d": 0.2,  # and that many more than in the twin
    "reward_x": 0.5,  # reward at the end against the level before the onset
    "reward_gap_d": 0.02,  # |seen - true reward|; 0 in the twin
    "gap_growth_x": 1.5,  # a gap that grew like this from onset to end was found by the policy: hacking
    "length_x": 1.2,  # response length, which the lab limits to little more than an answer
    "truncated_d": 0.15,  # share of responses cut at the limit
    "overlap_d": 0.1,  # chosen experts that no longer agree: 10 % change in a healthy update (arXiv 2507.18071)
    "dead_d": 0.25,  # experts without a token
    "router_entropy_x": 0.5,
    "load_x": 1.5,  # variation of the load, largest load
    "slow_x": 1.5,  # time of a step
    "moments_x": 0.5,  # moments at the onset step with the twin's gradient: the state was lost
}
#: At one step the first of these wins: families in order, in a family the forward pass and the more specific first.
ORDER = (
    "resume_mismatch", "slowdown", "data_fault",
    "nonfinite_loss", "loss_scale_collapse", "nonfinite_gradient", "gradient_explosion", "wrong_gradient_scale", "zero_gradient",
    "router_collapse", "expert_imbalance", "routing_mismatch", "aux_loss_interference",
    "reward_hacking", "reward_fault", "zero_advantage", "train_inference_mismatch", "policy_drift", "entropy_collapse",
    "entropy_explosion", "length_truncation", "length_runaway", "reward_collapse",
    "loss_divergence", "loss_spike", "overfitting", "no_learning",
)  # fmt: skip
#: Where no type holds in full, the signal here that moved most names it (`+` up, `-` down, `?` either way).
MILD = {
    "mismatch_logp_abs+": "train_inference_mismatch", "mismatch_prob_diff+": "train_inference_mismatch",
    "mismatch_k3+": "train_inference_mismatch", "act_norm_ratio@mean?": "train_inference_mismatch",
    "act_norm_ratio@last?": "train_inference_mismatch", "topk_overlap@mean-": "routing_mismatch",
    "topk_overlap@last-": "routing_mismatch", "moe_load_cv@mean+": "expert_imbalance",
    "moe_max_vio@mean+": "expert_imbalance", "moe_dead_frac@mean+": "expert_imbalance", "aux_loss+": "expert_imbalance",
    "grad_norm?": "wrong_gradient_scale", "grad_norm@mean?": "wrong_gradient_scale", "grad_norm@slope?": "wrong_gradient_scale",
    "grad_norm#spread+": "wrong_gradient_scale", "zero_grad_frac+": "zero_gradient", "update_ratio-": "zero_gradient",
    "update_ratio@mean-": "zero_gradient", "update_ratio@mean+": "policy_drift", "update_ratio+": "policy_drift",
    "kl_ref+": "policy_drift", "kl_old+": "policy_drift", "clip_frac+": "policy_drift",
    "entropy-": "entropy_collapse", "entropy+": "entropy_explosion", "zero_std_frac+": "zero_advantage",
    "truncated_frac+": "length_truncation", "true_reward-": "reward_collapse", "loss+": "loss_divergence",
    "accuracy-": "no_learning", "eval_accuracy-": "no_learning", "critic_value_loss+": "loss_divergence",
}  # fmt: skip
_T = THRESHOLDS
#: What the forward pass shows of the trainer's weights and inputs: where it equals the twin's, both do.
_FORWARD = ("entropy", "reward", "response_length", "accuracy", "act_norm@last", "kl_ref")
#: Types that only a run which samples answers can have.
_POLICY = ("policy_drift", "entropy_collapse", "entropy_explosion")
_LOSSES = ["loss", "policy_loss", "critic_value_loss", "aux_loss", "entropy"]


@dataclass(frozen=True)
class Label:
    """What a lab run is called. `also` are types that hold too, later or lower: most likely its consequences."""

    type: str
    first_bad_step: int | None
    reason: str
    no_effect: bool = False
    also: tuple[str, ...] = ()


def fingerprint() -> str:
    """16 digits of SHA-256 of the code that labels: another one may give other labels."""
    folder = Path(__file__).parent
    code = b"".join((folder / name).read_bytes() for name in ("effect.py", "oracle.py", "twin.py"))
    return hashlib.sha256(code).hexdigest()[:16]


def label(run: Series, twin: Series, effects: Mapping[str, float], fault: FaultSpec, onset: int) -> Label:
    """The failure type of a run with `fault` from step `onset` on; `effects` are those of effect.py.

    Of the fault only `moves` (the signals named beforehand), `kind` (a benign one must fail in full to be called failed),
    and `cause` (bad data that did nothing more specific is a data_fault) are read.
    """
    moves = fault.moves or dict.fromkeys(effects, "?")  # benign ones may name none
    named = [name for name, direction in moves.items() if effect.moved(effects, name, direction)]
    if not named:
        most = max(moves, key=lambda name: abs(effects.get(name, 0.0)), default="nothing")
        return Label(
            "healthy", None, f"no effect: {most} moved by {effects.get(most, 0.0):.1f} spreads", no_effect=True
        )
    case = Case(run, twin, effects, onset)
    found = {kind: hit for kind, test in _TESTS.items() if (hit := test(case)) is not None}
    if "step_time" not in fault.moves:  # else wall time only shows what the machine did beside
        found.pop("slowdown", None)
    if fault.kind == "benign":  # its reward is what is asked for, however it is shaped
        found.pop("reward_fault", None)
    elif not found:
        found = _mild(case, fault.cause == "data")
    if not found:
        most = max(named, key=lambda name: abs(effects[name]))
        return Label("healthy", None, f"{most} moved by {effects[most]:.1f} spreads, but nothing failed")
    first, *rest = sorted(found, key=lambda kind: (found[kind][0], ORDER.index(kind)))
    return Label(first, *found[first], also=tuple(rest))


def _mild(case: Case, data: bool) -> dict[str, tuple[int, str]]:
    signs = {"+": (1,), "-": (-1,), "?": (1, -1)}
    fitting = [key for key, kind in MILD.items() if case.has(key[:-1]) and (case.has("reward") or kind not in _POLICY)]
    moved = [(case.z(key[:-1], sign), key, sign) for key in fitting for sign in signs[key[-1]]]
    z, key, sign = max(moved, default=(0.0, "", 1))
    if z < EFFECT:
        return {}
    text = f"{key[:-1]} moved by {sign * z:.1f} spreads"
    return {"data_fault" if data else MILD[key]: (case.first(key[:-1], sign), text)}


# -- numerics ---------------------------------------------------------------------------------------------------------
def _gradients(case: Case) -> list[str]:
    """Columns of the actor's gradient norm: whole, by layer, by rank."""
    names = [name for name in case.run if name.split("@")[0].split("#")[0] == "grad_norm" and name in case.twin]
    return [name for name in names if not name.endswith(("@slope", "#spread"))]


def _nonfinite_gradient(case: Case) -> Found:
    found = case.nonfinite([*_gradients(case), "critic_grad_norm"], _T["nonfinite_s"])
    # A dynamic loss scale steps down over skipped updates and goes on, with an odd one when it tries to grow: its work.
    if found is not None and case.has("skipped_steps"):
        skipped = case.pair("skipped_steps")[0] > 0
        after = skipped[int(np.argmax(skipped)) :]
        resumed = after[int(np.argmin(after)) :]
        if not resumed[0] and resumed.mean() <= _T["nonfinite_s"]:
            return None
    return found


def _loss_scale(case: Case) -> Found:
    if not case.has("loss_scale") or not case.has("skipped_steps"):
        return None
    (run, twin), skipped = case.end("loss_scale"), case.pair("skipped_steps")[0] > 0
    if run > _T["scale_fall_x"] * twin or not skipped.any():
        return None
    return case.onset + int(np.argmax(skipped)), said("loss_scale", run, twin)


def _jump(case: Case) -> float:
    """The ratio farthest from 1 of a gradient norm to the twin's at the onset step; 1 where weights or inputs differ."""
    pairs = [case.start(name) for name in _FORWARD if case.has(name)]
    if any(abs(run - twin) > _T["same_x"] * max(abs(twin), 1e-6) for run, twin in pairs):
        return 1.0
    norms = [case.start(name) for name in _gradients(case)]
    ratios = [run / twin for run, twin in norms if 0 < run < np.inf and 0 < twin < np.inf]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=1.0)


def _off(jump: float) -> bool:
    return max(jump, 1 / jump) >= _T["gradient_scale_x"]


def _explosion(case: Case) -> Found:
    jump = _jump(case)
    if jump >= _T["gradient_jump_x"]:
        return case.onset, f"a gradient norm is {jump:.3g} times the twin's at the onset"
    return None if _off(jump) else case.ratio("grad_norm", _T["explosion_x"])


def _gradient_scale(case: Case) -> Found:
    jump = _jump(case)
    if not _off(jump) or jump >= _T["gradient_jump_x"] or _zero_advantage(case) or _aux_interferes(case):
        return None
    return case.onset, f"a gradient norm is {jump:.3g} times the twin's at the onset, with its weights and inputs"


def _zero_gradient(case: Case) -> Found:
    if _zero_advantage(case):  # an objective without a signal has no gradient: that is the advantage's failure
        return None
    for name in ("grad_norm", "update_ratio", "update_ratio@mean"):
        if case.has(name):
            run, twin = case.pair(name)
            gone = (twin > 0) & (run <= _T["frozen_x"] * twin)
            if gone.mean() >= _T["frozen_s"]:
                return case.onset + int(np.argmax(gone)), f"{name} is 0 at {gone.sum()} of {len(gone)} steps"
    return None


# -- routing ----------------------------------------------------------------------------------------------------------
def _router_collapse(case: Case) -> Found:
    uneven = case.ratio(case.layer("moe_load_cv", 1), _T["load_x"])
    narrow = case.ratio(case.layer("router_entropy", -1), _T["router_entropy_x"], -1)
    return uneven and (case.apart(case.layer("moe_dead_frac", 1), _T["dead_d"]) or narrow)


def _imbalance(case: Case) -> Found:
    if _router_collapse(case):
        return None
    return _earliest(*(case.ratio(case.layer(name, 1), _T["load_x"]) for name in ("moe_load_cv", "moe_max_vio")))


def _aux_interferes(case: Case) -> Found:
    """The balancing loss wins over the task: routing more even than the twin's, the task worse or the gradient its own."""
    return case.ratio("aux_loss", 1.0, -1) if _worse(case) or _off(_jump(case)) else None


# -- policy -----------------------------------------------------------------------------------------------------------
def _worse(case: Case) -> bool:
    return max(case.z("true_reward", -1), case.z("reward", -1), case.z("loss")) >= EFFECT


def _entropy(case: Case, least: float, sign: int) -> Found:
    """Of policies only; a supervised model, or one that has stopped to learn, merely keeps the entropy it had."""
    if not (case.has("reward") and case.has("entropy")):
        return None
    away = sign * (case.end("entropy")[0] - case.before("entropy")) > 0
    return case.ratio("entropy", least, sign) if away else None


def _zero_advantage(case: Case) -> Found:
    groups = case.apart("zero_std_frac", _T["no_advantage_d"])
    if groups and case.end("zero_std_frac")[0] < _T["no_advantage_s"]:
        groups = None
    return groups or case.ratio("advantage_max", _T["frozen_x"], -1)


def _gap(case: Case) -> Array:
    """|seen - true reward| beyond the twin's, from the onset on; empty where it is nothing."""
    if not (case.has("reward") and case.has("true_reward")):
        return np.empty(0)
    (seen, seen_twin), (true, true_twin) = case.pair("reward"), case.pair("true_reward")
    gap = np.abs(seen - true) - np.abs(seen_twin - true_twin)
    return gap if mean(gap) >= _T["reward_gap_d"] else np.empty(0)


def _reward_hacking(case: Case) -> Found:
    """The seen reward rises, the true one falls, and the gap was small at the onset: the policy found it."""
    gap = _gap(case)
    if not len(gap) or case.z("reward") < EFFECT or case.z("true_reward", -1) < EFFECT:
        return None
    if mean(gap[-4:]) < _T["gap_growth_x"] * mean(gap[:2]):
        return None
    text = f"{said('reward', *case.end('reward'))}; {said('true_reward', *case.end('true_reward'))}"
    return case.onset + int(np.argmax(gap >= _T["reward_gap_d"])), text


def _reward_fault(case: Case) -> Found:
    gap = _gap(case)
    if not len(gap) or _reward_hacking(case):
        return None
    return case.onset + int(
        np.argmax(gap >= _T["reward_gap_d"])
    ), f"the seen reward is {mean(gap):.3g} off the true one"


def _runaway(case: Case) -> Found:
    longer = case.ratio("response_length", _T["length_x"])
    # Growth that pays is learning: it must cost reward or run into the limit.
    return longer if _worse(case) or case.apart("truncated_frac", _T["truncated_d"]) else None


def _truncation(case: Case) -> Found:
    return None if case.ratio("response_length", _T["length_x"]) else case.apart("truncated_frac", _T["truncated_d"])


def _reward_collapse(case: Case) -> Found:
    if not case.has("reward") or case.z("reward", -1) < EFFECT:
        return None
    run, before = case.end("reward")[0], case.before("reward")
    text = f"reward {run:.3g} at the end, {before:.3g} before the onset"
    return (case.first("reward", -1), text) if run <= _T["reward_x"] * before else None


# -- optimisation -----------------------------------------------------------------------------------------------------
def _climb(case: Case, jumped: bool) -> Found:
    """A loss that left the twin's in a jump (or not) and is above it for good, or ends in a peak."""
    for name in ("loss", "critic_value_loss"):
        if case.has(name) and case.z(name) >= EFFECT:
            (run, twin), (end, level), first = case.pair(name), case.end(name), case.first(name, 1)
            over = np.where(np.isfinite(run - twin), run - twin, 0.0)
            rise = mean(case.run[name][first - 1 : first + 1]) - mean(case.run[name][max(0, first - 4) : first - 1])
            if (rise >= _T["jump_x"] * (end - level)) != jumped:
                continue
            ends_in_peak = np.argmax(over) >= len(over) - 3 and over.max() >= _T["spike_x"] * max(end - level, 0.0)
            # A loss that merely stops to fall is above the twin's too: a climb ends above where it began.
            climbs = end >= _T["loss_x"] * level and (jumped or end >= case.before(name))
            if climbs or (jumped and ends_in_peak):
                return first, said(name, end, level)
    return None


def _overfitting(case: Case) -> Found:
    if not case.has("loss") or case.z("loss") >= EFFECT:
        return None
    run, twin = case.end("loss")
    return case.apart("eval_accuracy", _T["evaluation_d"], -1) if run <= (1 + _T["gain_x"]) * twin else None


def _no_learning(case: Case) -> Found:
    for name, sign in (("true_reward", 1), ("loss", -1)):
        if case.has(name) and case.z(name, -sign) >= EFFECT:
            before, (run, twin) = case.before(name), case.end(name)
            gained, wanted = sign * (run - before), sign * (twin - before)
            if wanted >= (_T["gain_d"] if sign > 0 else _T["gain_x"] * before) and gained < _T["learned_x"] * wanted:
                return case.first(name, -sign), f"{name} got better by {gained:.3g}, in the twin by {wanted:.3g}"
    return None


def _resume(case: Case) -> Found:
    """Moments of the optimiser lost at the onset step, with a gradient that is the twin's."""
    name = "moment2_norm@mean" if case.has("moment2_norm@mean") else "moment1_norm@mean"
    if not (case.has(name) and case.has("grad_norm")) or case.z(name, -1) < EFFECT:
        return None
    (run, twin), (own, like) = case.start(name), case.start("grad_norm")
    lost = run <= _T["moments_x"] * twin and abs(own - like) <= _T["same_x"] * like
    return (case.onset, said(name, run, twin, "at the onset")) if lost else None


def _earliest(*found: Found) -> Found:
    return min((one for one in found if one is not None), key=lambda one: one[0], default=None)


_TESTS: dict[str, Callable[[Case], Found]] = {
    "resume_mismatch": _resume,
    "slowdown": lambda case: case.ratio("step_time", _T["slow_x"]),
    "nonfinite_loss": lambda case: case.nonfinite(_LOSSES, _T["nonfinite_s"]),
    "loss_scale_collapse": _loss_scale,
    "nonfinite_gradient": _nonfinite_gradient,
    "gradient_explosion": _explosion,
    "wrong_gradient_scale": _gradient_scale,
    "zero_gradient": _zero_gradient,
    "router_collapse": _router_collapse,
    "expert_imbalance": _imbalance,
    "routing_mismatch": lambda case: case.apart("topk_overlap@mean", _T["overlap_d"], -1),
    "aux_loss_interference": _aux_interferes,
    "reward_hacking": _reward_hacking,
    "reward_fault": _reward_fault,
    "zero_advantage": _zero_advantage,
    "train_inference_mismatch": lambda case: case.ratio(
        "mismatch_logp_abs", _T["mismatch_x"], least_d=_T["mismatch_d"]
    ),
    "length_truncation": _truncation,
    "length_runaway": _runaway,
    "entropy_collapse": lambda case: _entropy(case, _T["entropy_fall_x"], -1),
    "entropy_explosion": lambda case: _entropy(case, _T["entropy_rise_x"], 1),
    "policy_drift": lambda case: _earliest(
        *(case.ratio(name, _T["drift_x"], least_d=_T["drift_d"]) for name in ("kl_ref", "kl_old"))
    ),
    "reward_collapse": _reward_collapse,
    "loss_divergence": lambda case: _climb(case, jumped=False),
    "loss_spike": lambda case: _climb(case, jumped=True),
    "overfitting": _overfitting,
    "no_learning": _no_learning,
}
