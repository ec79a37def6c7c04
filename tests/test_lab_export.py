"""Exports of the lab, read back by the project's own readers: same values, right places, non-finite steps still seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.trace import BAD_STATES, NAN, Cell, Column, Frame, Key, Trace
from faultproxy.analyzer.vocabulary import resolve, signals
from faultproxy.proxy.lab.export import FORMATS, LEVELS, export, formats_for, kind

STEPS, LAYERS, EXPERTS, EVERY = 40, 3, 4, 4
MISMATCH = (
    "mismatch_prob_diff", "mismatch_prob_diff:max", "mismatch_prob_diff:std", "mismatch_pearson", "mismatch_kl", "mismatch_k3",
    "mismatch_logp_abs", "mismatch_is_mean", "mismatch_ess_raw", "mismatch_ppl_gap",
)  # fmt: skip
MONITORED = ("params_norm", "update_ratio", "nonfinite_grad_frac", "nonfinite_act_frac", "zero_grad_frac", "curvature_top", "curvature_along_update")  # fmt: skip
LAYERED = ("grad_norm", "act_absmax", "act_norm", "update_ratio", "moment1_norm", "moment2_norm", "nonfinite_act_frac")
ROUTED = ("router_entropy", "moe_load_cv", "moe_max_vio", "moe_dead_frac")
RL = (
    "policy_loss", "entropy", "grad_norm", "lr", "reward", "reward:max", "reward:min", "reward_std", "zero_std_frac", "advantage",
    "advantage:max", "advantage:min", "kl_ref", "kl_old", "clip_frac", "response_length", "response_length:max",
    "response_length:min", "truncated_frac", "staleness", "step_time", "aux_loss", "eval:accuracy",
)  # fmt: skip
#: What the plain console or file of each framework shows of all that is recorded.
PLAIN = {
    ("verl", "rl"): set(RL) - {"reward_std", "zero_std_frac", "aux_loss"},
    ("verl", "critic"): {*RL, "critic:value_loss", "critic:grad_norm"} - {"reward_std", "zero_std_frac", "aux_loss"},
    ("verl", "supervised"): {"loss", "grad_norm", "lr"},
    ("trl", "rl"): set(RL) - {"reward:max", "reward:min", "advantage", "advantage:max", "advantage:min", "kl_old", "staleness"},
    ("trl", "preference"): {"loss", "grad_norm", "lr", "reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy", "step_time", "accuracy", "aux_loss"},
    ("hf", "supervised"): {"loss", "grad_norm", "lr", "eval:accuracy"},
    ("megatron", "supervised"): {"loss", "grad_norm", "lr", "aux_loss", "loss_scale", "skipped_steps", "step_time"},
    ("swift", "supervised"): {"loss", "grad_norm", "lr", "accuracy", "step_time", "eval:accuracy"},
}  # fmt: skip
_FAMILY = {"verl-console": "verl", "verl-jsonl": "verl", "trl": "trl", "hf": "hf", "megatron": "megatron", "ms-swift": "swift", "trainer-state": "hf"}  # fmt: skip
#: Bookkeeping that a framework writes beside the metrics and the vocabulary leaves alone.
UNKNOWN = {
    "training/global_step", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "percentage",
}  # fmt: skip


def key_of(name: str) -> Key:
    """`reward:max`, `critic:grad_norm`, `eval:accuracy` as a key."""
    head, _, rest = name.partition(":")
    if head == "critic":
        return Key(rest, role="critic")
    return Key(rest, axis="eval") if head == "eval" else Key(head, stat=rest or None)


def healthy(name: str, step: int, place: int = 0) -> float:
    """A quiet value that tells signals, steps, and places apart to four digits."""
    key = key_of(name)
    low = {
        "policy_loss": 0.02, "mismatch_pearson": 0.995, "mismatch_ess_raw": 0.98, "mismatch_is_mean": 1.0, "mismatch_ppl_gap": 1.0,
        "response_length": 9.0, "params_norm": 31.0, "advantage": 1.0, "loss_scale": 1024.0, "loss": 2.0, "lr": 1e-4,
        "act_absmax": 5.0, "act_norm": 1.0, "act_norm_ratio": 1.0, "grad_norm": 0.9, "aux_loss": 1.0, "router_entropy": 1.2,
        "topk_overlap": 0.98, "reward": 0.5, "reward_std": 0.3, "entropy": 0.5, "accuracy": 0.5, "truncated_frac": 0.02,
    }.get(key.signal, 0.004)  # fmt: skip
    if key.signal in ("skipped_steps", "nonfinite_grad_frac", "nonfinite_act_frac", "staleness", "zero_std_frac"):
        return 0.0
    if key.signal in ("loss_scale", "lr", "step_time"):  # ms-swift shows the mean time of a step over the run
        return low
    if key.stat == "min":
        low *= -1.0 if key.signal == "advantage" else 0.5
    if key.stat == "max":
        low *= 2
    learned = 0.01 * step if name == "loss" else 0.0
    return round(low * (1 + 0.001 * (step * 7 % 5) + 0.01 * place) - learned, 7)


def put(frame: Frame, key: Key, cells: Iterable[tuple[int, Cell]]) -> None:
    column = frame.columns[key] = Column(key, key.signal)
    for row, cell in cells:
        column.put(row, cell)


def make(of: str) -> Trace:
    """A trace of one kind with every signal of the recorder: decoder layer 0 is dense, the others route."""
    trace = Trace("lab/healthy/s1", facts={"hyperparameters": {"prompts": 8, "group": 8}})
    for frame in (trace.frame, trace.detail):
        frame.steps, frame.segments = list(range(1, STEPS + 1)), [0] * STEPS
        frame.sources, frame.lines = [0] * STEPS, [0] * STEPS
    rl = of in ("rl", "critic")
    plain: set[str] = {name for (_, kind), names in PLAIN.items() if kind == of for name in names}
    if rl:
        plain |= {*RL, *MISMATCH}
    layered = [*LAYERED, *(["act_norm_ratio"] if rl else [])]
    for name in sorted(plain | {"step_time", *MONITORED}):
        at = range(7, STEPS, 8) if name.startswith("eval:") else range(STEPS)
        put(trace.frame, key_of(name), [(row, Cell(healthy(name, row + 1))) for row in at])
    for layer in range(LAYERS):
        for name in [*layered, *(ROUTED if layer else ()), *(["topk_overlap"] if layer and rl else [])]:
            put(
                trace.detail,
                Key(name, layer=layer),
                [(row, Cell(healthy(name, row + 1, layer))) for row in range(STEPS)],
            )
        for expert in range(EXPERTS) if layer else ():
            cells = [(row, Cell(0.2 + 0.01 * expert + 0.03 * layer)) for row in range(EVERY - 1, STEPS, EVERY)]
            put(trace.detail, Key("expert_load", layer=layer, expert=expert), cells)
    put(trace.detail, Key("grad_norm", rank=1), [(row, Cell(1.0)) for row in range(STEPS)])
    put(trace.frame, Key("true_reward", axis="system", label="hidden"), [(row, Cell(0.125)) for row in range(STEPS)])
    put(
        trace.frame, Key("weights_nonfinite", axis="system", label="hidden"), [(row, Cell(0.0)) for row in range(STEPS)]
    )
    return trace


def back(folder: Path, trace: Trace, format: str, level: int) -> Trace:
    path = folder / FORMATS[format].file
    path.write_text(export(trace, format, level), encoding="utf-8")
    (found,) = read([str(path)])
    assert found.sources[0].unparsed == 0
    return found


def cells(trace: Trace) -> dict[Key, dict[int, Cell]]:
    found: dict[Key, dict[int, Cell]] = {}
    for frame in (trace.frame, trace.detail):
        for row, column, cell in frame.cells():
            found.setdefault(column.key, {})[frame.steps[row]] = cell
    return found


def expected(trace: Trace, format: str, level: int) -> set[Key]:
    of = kind(trace)
    family = "trl" if format in ("ms-swift", "trainer-state") and of != "supervised" else _FAMILY[format]
    keys = {key_of(name) for name in PLAIN[family, of]}
    for key in cells(trace):
        routing = key.signal in (*ROUTED, "topk_overlap", "expert_load")
        if key.rank is None and key.label is None and (
            (level > 1 and key.signal.startswith("mismatch_"))
            or (level > 2 and not routing and (key.layer is not None or key.signal in MONITORED))
            or (level > 3 and (routing or key.signal == "aux_loss"))
        ):  # fmt: skip
            keys.add(key)
    return keys


def as_read(key: Key, format: str, of: str) -> Key:
    """verl names its evaluation by data source, and counts only the layers that route."""
    if format.startswith("verl") and of != "supervised":
        if key.axis == "eval":
            return key._replace(label="lab/acc")
        if key.signal == "moe_max_vio" and key.layer is not None:
            return key._replace(layer=None, module=f"moe[{key.layer - 1}]")
    return key


def close(got: float, wanted: float, format: str, signal: str) -> bool:
    """Equal within the digits that the framework prints."""
    digits = {
        "megatron": {"grad_norm": 5.1e-4, "params_norm": 5.1e-4, "step_time": 5.1e-5},
        "ms-swift": {"loss": 5.1e-5, "policy_loss": 5.1e-5},
    }.get(format, {})
    return math.isclose(
        got, wanted, rel_tol=6e-4 if format in ("trl", "hf") else 1e-6, abs_tol=digits.get(signal, 6e-9)
    )


CASES = [
    (of, format)
    for of in ("rl", "critic", "preference", "supervised")
    for format in FORMATS
    if of in FORMATS[format].kinds
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("of, format", CASES)
def test_a_trace_comes_back_as_it_was(tmp_path: Path, of: str, format: str, level: int) -> None:
    trace = make(of)
    found = back(tmp_path, trace, format, level)
    assert found.frame.steps == list(range(1, STEPS + 1))
    assert set(found.unrecognised) <= UNKNOWN
    got, given = cells(found), cells(trace)
    ours = {as_read(key, format, of) for key in given}
    assert {key for key in got if key in ours} == {as_read(key, format, of) for key in expected(trace, format, level)}
    for key in expected(trace, format, level):
        column = got[as_read(key, format, of)]
        assert set(column) == set(given[key]), key
        for step, cell in given[key].items():
            assert cell.value is not None and column[step].value is not None
            assert close(column[step].value or 0.0, cell.value, format, key.signal), (key, step, column[step], cell)
    assert not [key for key in got if key.axis == "system" or key.label == "hidden" or key.rank is not None]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("of, format", CASES)
def test_what_a_monitor_adds_makes_no_rule_fire(tmp_path: Path, of: str, format: str, level: int) -> None:
    found = diagnose(back(tmp_path, make(of), format, level))
    assert found.verdict == "healthy", [finding.summary for finding in found.findings]


@pytest.mark.parametrize("of, format", CASES)
def test_a_nonfinite_step_is_seen_as_the_framework_hides_it(tmp_path: Path, of: str, format: str) -> None:
    trace = make(of)
    for name in ("loss", "policy_loss", "grad_norm", "entropy", "kl_ref"):
        if column := trace.frame.columns.get(Key(name)):
            for row in range(29, STEPS):
                column.put(row, Cell(None, NAN))
    for column in trace.detail.columns.values():
        if column.key.signal == "grad_norm" and column.key.layer is not None:
            column.put(29, Cell(None, NAN))
    text = export(trace, format, 3)
    hidden = {
        "verl-console": "/grad_norm:nan " if of == "supervised" else "actor/grad_norm:np.float64(nan) ",
        "verl-jsonl": '/grad_norm":null', "megatron": "| grad norm: nan |", "trl": "'grad_norm': 'nan'", "hf": "'grad_norm': 'nan'",
        "trainer-state": '"grad_norm": NaN', "ms-swift": '"grad_norm": NaN',
    }  # fmt: skip
    assert hidden[format] in text
    found = back(tmp_path, trace, format, 3)
    got = cells(found)
    assert got[Key("grad_norm")][30].state in BAD_STATES and got[Key("grad_norm")][29].value is not None
    assert got[Key("grad_norm", layer=1)][30].state in BAD_STATES
    if format == "megatron":
        assert "lm loss" not in text.splitlines()[-1]
    diagnosis = diagnose(found)
    assert (diagnosis.failure_type, diagnosis.first_bad_step) in {
        (t, 30) for t in ("nonfinite_loss", "nonfinite_gradient")
    }


def test_a_skipped_fp16_step_leaves_megatron_without_loss_and_norm() -> None:
    trace = make("supervised")
    for name, value in (("skipped_steps", 1.0), ("grad_norm", None), ("loss", None), ("loss_scale", 512.0)):
        trace.frame.columns[Key(name)].put(9, Cell(value) if value is not None else Cell(None, NAN))
    line = export(trace, "megatron", 1).splitlines()[9]
    assert "lm loss: 0.000000E+00 |" in line and "grad norm" not in line and "loss scale: 512.0 |" in line
    assert "number of skipped iterations:   1 | number of nan iterations:   1 |" in line


def test_formats_that_do_not_fit_are_refused_with_those_that_do() -> None:
    assert formats_for(make("critic")) == ["verl-console", "verl-jsonl"]
    assert formats_for(make("preference")) == ["trl", "trainer-state", "ms-swift"]
    with pytest.raises(
        InputError, match="a run of kind preference has no megatron log; it fits trl, trainer-state, ms-swift"
    ):
        export(make("preference"), "megatron", 1)
    with pytest.raises(InputError, match="no export as 'wandb' at level 1; formats are verl-console, .*levels 1 to 4"):
        export(make("rl"), "wandb", 1)
    with pytest.raises(InputError, match="at level 5"):
        export(make("rl"), "trl", 5)
    with pytest.raises(InputError, match="no step with a loss"):
        export(Trace("empty"), "hf", 1)


def test_every_recorded_signal_is_a_name_of_its_own() -> None:
    names = {key.signal for of in ("rl", "critic", "preference", "supervised") for key in cells(make(of))}
    names |= {"weights_norm_ratio", "mismatch_ess_raw"}
    for name in names:
        entry = signals()[name]
        found = resolve(name)
        assert found.known and found.key.signal == name and found.scale == 1.0, name
        assert entry["unit"] and entry["meaning"], name
    assert resolve("mismatch_ess_raw").key != resolve("mismatch_ess").key
