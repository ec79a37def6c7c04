"""Collects facts about a run from several sources; the source nearest to what ran wins, and a disagreement is said.

A fact is kept with its origin (`launch.sh:12`). A value that is no plain number, word, or flag of the kind the fact has is
not known (`auto`, `${oc.env:LR}`, `$LR`), and nothing is put in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isclose, isfinite
from typing import Any

from faultproxy.analyzer.facts import ORIGINS, nested
from faultproxy.analyzer.ingest.facts.names import ENUMERATED, FLAGS, LISTS, TEXTS
from faultproxy.analyzer.lazy import lazy

#: How near a source is to what ran, nearest first.
GIVEN, COMMAND, PRINTED, SCRIPT, YAML, JSON = range(6)
#: A value as a source has it, and its line (0 where lines mean nothing).
Leaf = tuple[Any, int]

_NUMBER = lazy(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$")
_WORDS = {"none": None, "null": None, "~": None, "": None, "true": True, "false": False}
_TYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16",
    "float32": "fp32", "fp32": "fp32", "float": "fp32", "float64": "fp64",
}  # fmt: skip
_DTYPES = {"precision.params", "precision.compute", "precision.rollout", "precision.gradients", "precision.router", "precision.kv_cache", "model.dtype"}  # fmt: skip
_MAX_TEXT, _MAX_LIST, _MAX_WARNINGS = 200, 1024, 4


def scalar(text: str) -> Any:
    """One token of a configuration as null, a flag, a number, or text without its quotes."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if len(text) < 6 and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) <= 40 and _NUMBER.match(text):
        try:
            return int(text)
        except ValueError:
            return float(text)
    return text


def kind(value: Any) -> str | None:
    """A number format in one spelling: `torch.bfloat16` is `bf16`."""
    if not isinstance(value, str):
        return None
    word = value.strip().lower().removeprefix("torch.").partition("-")[0]
    return _TYPES.get(word, word if re.fullmatch(r"(?:fp|int|mxfp|nvfp|float)\d\w{0,10}|hif\d\w{0,8}", word) else None)


class Found:
    """Facts by dotted key, each with its origin and how near that is to the run."""

    def __init__(self) -> None:
        self.mentioned: set[str] = set()  # names of configuration files that a command line or a printed config names
        self._held: dict[str, tuple[Any, str, int]] = {}
        self._clashes: dict[str, str] = {}

    def put(self, key: str, value: Any, origin: str, near: int) -> None:
        """Take a fact, unless its value is not of the fact's kind or a nearer source has said something else."""
        value = _fitting(key, value)
        if value is None:
            return
        held = self._held.get(key)
        if held is None:
            self._held[key] = (value, origin, near)
            return
        if not _same(held[0], value):
            first, second = (held, (value, origin, near)) if held[2] <= near else ((value, origin, near), held)
            if key not in self._clashes:
                self._clashes[key] = (
                    f"{key} is {first[0]} in {first[1]} and {second[0]} in {second[1]}; the first is used"
                )
        if near < held[2]:
            self._held[key] = (value, origin, near)

    def get(self, key: str) -> Any:
        """The value of a fact, or None."""
        held = self._held.get(key)
        return None if held is None else held[0]

    def derive(self, key: str, value: Any, *bases: str) -> None:
        """Add a fact that follows from others, with their origin."""
        held = [self._held[base] for base in bases if base in self._held]
        if key not in self._held and held and (value := _fitting(key, value)) is not None:
            self._held[key] = (value, held[0][1], held[0][2])

    def facts(self) -> dict[str, Any]:
        """The facts, nested, and `origins`; empty when nothing was found."""
        if not self._held:
            return {}
        found = nested({key: value for key, (value, _, _) in self._held.items()})
        found[ORIGINS] = {key: origin for key, (_, origin, _) in self._held.items()}
        return found

    def warnings(self) -> list[str]:
        """Sources that disagree, a line a fact."""
        lines = list(self._clashes.values())
        more = [f"{len(lines) - _MAX_WARNINGS} more facts differ between sources"] if len(lines) > _MAX_WARNINGS else []
        return lines[:_MAX_WARNINGS] + more


def _fitting(key: str, value: Any) -> Any:
    if key in _DTYPES:
        return kind(value)
    if key in LISTS:
        ok = isinstance(value, list) and len(value) <= _MAX_LIST and all(type(entry) is int for entry in value)
        return value if ok else None
    if key in FLAGS:
        return value if isinstance(value, bool) else None
    if key in ENUMERATED and isinstance(value, str):
        value = value.rpartition(".")[2].lower()  # `SchedulerType.COSINE`
    if key in TEXTS:
        known = isinstance(value, str) and value and len(value) <= _MAX_TEXT and "$" not in value
        return value if known and value.isprintable() else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if isfinite(value) and 0 <= value < 1e18 else None  # -1 is how trainers write "not set"
    except OverflowError:
        return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


def undotted(leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Values of the keys at the top, for readers that know a configuration's own names."""
    return {key: value for key, (value, _) in leaves.items() if "." not in key}
