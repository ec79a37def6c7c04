"""Turns a recorded trace into the log that a framework would have left of the same run, at four levels of observability.

    1  scalars that a plain console shows      3  + per layer, and scalars of the same monitor (update ratio, curvature)
    2  + rollout against trainer               4  + router and experts

A signal that the framework logs itself keeps the framework's key, and at level 1 nothing else is shown. What no framework
logs appears from level 2 on under the key of a monitor beside it, which signals.toml resolves. Values split by rank are in
no such log (one rank writes it), nor is what only the lab knows (label `hidden`, axis `system`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.trace import ABSENT, NEG_INF, POS_INF, Cell, Key, Trace
from faultproxy.proxy.lab import writers
from faultproxy.proxy.lab.writers import Row, Run

LEVELS = (1, 2, 3, 4)
#: Column of a trace to row key of the writers, where the two differ.
_ROW = {
    "reward": "reward_mean", "advantage": "advantage_mean", "kl_ref": "kl", "critic_value_loss": "value_loss",
    "response_length": "length_mean", "response_length_max": "length_max", "response_length_min": "length_min",
    "mismatch_prob_diff": "prob_diff_mean", "mismatch_prob_diff_max": "prob_diff_max", "mismatch_prob_diff_std": "prob_diff_std",
    "skipped_steps": "skipped",
}  # fmt: skip
#: Whole-model signals that only a monitor shows.
_MONITORED = {
    "params_norm", "update_ratio", "nonfinite_grad_frac", "zero_grad_frac", "nonfinite_act_frac", "act_absmax", "act_norm",
    "act_norm_ratio", "moment1_norm", "moment2_norm", "curvature_top", "curvature_along_update",
}  # fmt: skip
_ROUTING = {"topk_overlap", "router_entropy", "moe_load_cv", "moe_max_vio", "moe_dead_frac", "expert_load", "aux_loss"}
#: verl's own key of the largest load violation; it numbers the layers that route, and adds their mean and maximum.
_VIOLATION = "rollout/moe/max_vio/"
#: What a row must hold for every writer: a step of a second, nothing scaled, nothing skipped.
_PLAIN: Row = {"step_time": 1.0, "loss_scale": 1.0, "skipped": 0.0}
#: Samples a step where the run facts name none.
_BATCH = 64


class Format(NamedTuple):
    """A log that can be written: kinds of run it fits, its usual file name, and its writer.

    `names` and `supervised` hold the row keys that the framework names itself (RL and preference runs; supervised runs),
    `monitor` the prefixes of a monitor's keys at levels 2, 3, and 4, `joint` what joins a name with its layer and expert.
    """

    kinds: tuple[str, ...]
    file: str
    write: Callable[[Run, Sequence[str]], str]
    names: Mapping[str, str]
    supervised: Mapping[str, str]
    monitor: tuple[str, str, str]
    joint: str = "/"


def _verl_console(run: Run, extra: Sequence[str]) -> str:
    """The engine warns of every gradient norm that is not finite."""
    bad = {int(row["step"]) for row in run if not math.isfinite(row.get("grad_norm", 0.0))}
    return writers.verl_console(run, warn=bad, extra=extra)


def _history(run: Run, extra: Sequence[str]) -> list[Row]:
    names = writers.HF if "loss" in run[0] and "reward_margin" not in run[0] else writers.TRL
    return writers.history(run, names, digits=False, extra=extra)


def _console(run: Run, extra: Sequence[str]) -> str:
    return writers.hf_console(_history(run, extra), run, version=5, bar=True)


def _state(run: Run, extra: Sequence[str]) -> str:
    return writers.trainer_state(_history(run, extra), run)


def _verl(write: Callable[[Run, Sequence[str]], str], file: str) -> Format:
    prefixes = ("rollout_corr/", "actor/", "moe/")
    return Format(("rl", "critic", "supervised"), file, write, writers.VERL, writers.VERL_SFT, prefixes)


def _trainer(kinds: tuple[str, ...], file: str, write: Callable[[Run, Sequence[str]], str]) -> Format:
    return Format(kinds, file, write, writers.TRL, writers.HF, ("sampling/", "", "moe/"))


#: By name. TRL logs PPO under other names than GRPO, so a run with a critic fits verl only.
FORMATS = {
    "verl-console": _verl(_verl_console, "run.log"),
    "verl-jsonl": _verl(lambda run, extra: writers.verl_jsonl(run, extra=extra), "experiment.jsonl"),
    "trl": _trainer(("rl", "preference"), "train.log", _console),
    "hf": _trainer(("supervised",), "train.log", _console),
    "trainer-state": _trainer(("rl", "preference", "supervised"), "trainer_state.json", _state),
    "megatron": Format(
        ("supervised",), "train.log", lambda run, extra: writers.megatron(run, extra=extra), {}, writers.MEGATRON, ("", "", "moe/"), "_"
    ),
    "ms-swift": Format(
        ("rl", "preference", "supervised"), "logging.jsonl", lambda run, extra: writers.ms_swift(run, nan_filter=True, extra=extra),
        writers.SWIFT, writers.SWIFT_SFT, ("rollout_correction/", "", "moe/"),
    ),
}  # fmt: skip


def kind(trace: Trace) -> str:
    """`critic` (RL with a value model), `rl`, `preference`, or `supervised`, by what the trace holds."""
    columns = {key.column for key in trace.frame.columns}
    found = {"critic_value_loss": "critic", "reward": "rl", "reward_margin": "preference"}
    return next((name for column, name in found.items() if column in columns), "supervised")


def formats_for(trace: Trace) -> list[str]:
    """The formats whose framework runs such a program."""
    return [name for name, format in FORMATS.items() if kind(trace) in format.kinds]


def export(trace: Trace, format: str, level: int) -> str:
    """The text that the framework of `format` would have logged at `level` (1 to 4).

    Raises InputError for an unknown format or level, a format that does not fit the run, and a trace without a loss.
    """
    if format not in FORMATS or level not in LEVELS:
        raise InputError(
            f"no export as {format!r} at level {level}; formats are {', '.join(FORMATS)}, levels 1 to {LEVELS[-1]}"
        )
    chosen = FORMATS[format]
    if kind(trace) not in chosen.kinds:
        raise InputError(
            f"{trace.run}: a run of kind {kind(trace)} has no {format} log; it fits {', '.join(formats_for(trace))}"
        )
    if trace.table is not None:
        raise InputError(f"{trace.run}: too large to export: its layers are still on disk; export a shorter run")
    keys, extra = _keys(trace, chosen, level)
    run = _run(trace, keys)
    if not run:
        raise InputError(f"{trace.run}: no step with a loss, so there is no log to write")
    return chosen.write(run, extra + _summarise(run))


def _keys(trace: Trace, format: Format, level: int) -> tuple[dict[Key, str], list[str]]:
    """What is shown under which row key; those that the writer prints as they are come as a list too."""
    supervised = kind(trace) == "supervised"
    names = format.supervised if supervised else format.names
    columns = [key for frame in (trace.frame, trace.detail) for key in frame.columns]
    routing = sorted({key.layer for key in columns if key.signal == "moe_max_vio" and key.layer is not None})
    shown: dict[Key, str] = {}
    extra = []
    for key in sorted(columns, key=lambda key: (key.signal, key.stat or "", key.layer or 0, key.expert or 0)):
        if key.label or key.module or key.rank is not None or key.axis not in ("train", "eval"):
            continue
        row_key = _ROW.get(key.column, key.column) if key.whole_model else None
        needs = _level(key, row_key in names)
        if needs > level:
            continue
        if row_key is not None and (needs == 1 or row_key in names):
            shown[key] = row_key
            continue
        if key.signal == "moe_max_vio" and key.layer is not None and names is writers.VERL:
            shown[key] = f"{_VIOLATION}layer_{routing.index(key.layer)}"
        else:
            signal = key.signal.removeprefix("moe_") if needs == 4 else key.signal
            parts = {"layer_": key.layer, "expert_": key.expert}
            places = [f"{part}{number}" for part, number in parts.items() if number is not None]
            shown[key] = format.joint.join(
                [format.monitor[needs - 2] + signal, *([key.stat] if key.stat else []), *places]
            )
        extra.append(shown[key])
    return shown, extra


def _level(key: Key, named: bool) -> int:
    if key.signal.startswith("mismatch_"):
        return 2
    if key.signal in _ROUTING and not named:
        return 4
    return 3 if key.layer is not None or key.signal in _MONITORED else 1


def _run(trace: Trace, keys: Mapping[Key, str]) -> Run:
    """The steps that have a loss, in order, as rows of the writers."""
    rows: dict[tuple[int, int], Row] = {}
    for frame in (trace.frame, trace.detail):
        for at, column, cell in frame.cells():
            name, value = keys.get(column.key), _number(cell)
            if name is not None and value is not None:
                rows.setdefault((frame.segments[at], frame.steps[at]), {})[name] = value
    given: dict[str, Any] = trace.facts.get("hyperparameters") or {}
    batch = given.get("prompts", _BATCH) * given.get("group", 1)
    run = [
        _PLAIN | {"step": step, "batch": batch} | row
        for (_, step), row in sorted(rows.items())
        if _loss(row) is not None
    ]
    for row in run:
        # Megatron counts what is not finite only where the step is skipped.
        row["nan"] = float(bool(row["skipped"]) and not math.isfinite(_loss(row) or 0.0))
        # verl logs the score beside the reward; they are one where nothing is subtracted.
        row |= {
            name.replace("reward", "score"): row[name]
            for name in ("reward_mean", "reward_max", "reward_min")
            if name in row
        }
    return run


def _loss(row: Row) -> float | None:
    return row.get("loss", row.get("policy_loss"))


def _number(cell: Cell) -> float | None:
    """The value a writer gets; None where nothing was logged."""
    if cell.value is not None:
        return cell.value
    return None if cell.state == ABSENT else {POS_INF: math.inf, NEG_INF: -math.inf}.get(cell.state, math.nan)


def _summarise(run: Run) -> list[str]:
    """Add verl's mean and maximum over its routing layers; returns the keys that were added."""
    added: dict[str, None] = {}
    for row in run:
        values = [value for name, value in row.items() if name.startswith(_VIOLATION)]
        if values:
            both = {f"{_VIOLATION}max": max(values), f"{_VIOLATION}avg": sum(values) / len(values)}
            row |= both
            added |= dict.fromkeys(both)
    return list(added)
