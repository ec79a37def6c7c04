"""Run facts as a table of dotted keys: `{"model": {"layers": 48}}` is the row `model.layers`, `48`, 48.0.

What the names mean is in docs/trace.md. Rules read the table; their cases state facts by the same dotted keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

#: Where a fact was read, beside the facts and never one of them.
ORIGINS = "origins"
#: Names that the lab's programs, trainer_state.json, and a log's overflow lines use for what is known under another name.
_ALIASES = {
    "precision.trainer_compute": "precision.compute",
    "precision.rollout_compute": "precision.rollout",
    "hyperparameters.loss_scale": "precision.initial_scale",
    "hyperparameters.beta": "hyperparameters.kl_coef",
    "max_steps": "total_steps",
    "num_train_epochs": "hyperparameters.epochs",
    "train_batch_size": "hyperparameters.micro_batch",
    "loss_scaling": "precision.loss_scaling",
}
#: Facts come from files nobody vouches for; more than this are no facts.
_MOST, _TEXT, _DEPTH = 1000, 400, 8

Row = tuple[str, str, float | None]


def flat(facts: Mapping[str, Any]) -> list[Row]:
    """Every known fact as (dotted key, text, number or None); a boolean is 1 or 0, a list its JSON text."""
    rows: dict[str, Row] = {}
    for key, value in _leaves(facts, "", 0):
        if len(rows) >= _MOST:
            break
        rows.setdefault(key, _row(key, value))
    for old, new in _ALIASES.items():
        if old in rows and new not in rows:
            rows[new] = (new, *rows[old][1:])
    return list(rows.values())


def _row(key: str, value: Any) -> Row:
    if isinstance(value, bool):
        return key, str(value).lower(), float(value)
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            return key, "", None
        return key, f"{value!r}"[:_TEXT], number if isfinite(number) else None
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return key, text.encode("utf-8", "replace").decode()[:_TEXT], None


def _leaves(facts: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if value is None or (not depth and name == ORIGINS):
            continue
        key = f"{prefix}{name}"[:_TEXT]
        if isinstance(value, Mapping):
            if depth < _DEPTH:
                yield from _leaves(value, f"{key}.", depth + 1)
        else:
            yield key, value


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse for keys of at most two parts: `{"model.layers": 48}` becomes `{"model": {"layers": 48}}`."""
    found: dict[str, Any] = {}
    for key, value in dotted.items():
        group, dot, name = key.partition(".")
        if dot:
            inner = found.setdefault(group, {})
            if isinstance(inner, dict):
                inner[name] = value
        else:
            found[key] = value
    return found


def fill(facts: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add what `facts` does not hold yet, leaf by leaf; what is there stays."""
    for name, value in more.items():
        held = facts.get(name)
        if isinstance(held, dict) and isinstance(value, Mapping):
            fill(held, value)
        elif held is None and value is not None:
            facts[name] = {**value} if isinstance(value, Mapping) else value
