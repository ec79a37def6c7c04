"""Loads the rule catalogue: every `rules/FAMILY/NAME.toml` with its `NAME.sql`. The contract is docs/rules.md.

Loading checks only what a run needs; `check` (tests, `rules test`) checks the rest: ids, parameters, columns, text.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from faultproxy.analyzer.errors import RuleError

VIEWS = ("train", "component", "layer", "expert", "rank", "events", "against")
FAMILIES = ("process", "numerics", "routing", "policy", "optimisation")
#: Failure types by family (docs/diagnosis.md). A rule names one; a new one is added here and in the JSON schema.
FAILURE_TYPES = {
    "numerics": ("nonfinite_loss", "nonfinite_gradient", "loss_scale_collapse", "gradient_explosion", "zero_gradient", "wrong_gradient_scale"),
    "optimisation": ("loss_divergence", "loss_spike", "no_learning", "overfitting"),
    "policy": ("train_inference_mismatch", "policy_drift", "entropy_collapse", "entropy_explosion", "zero_advantage", "reward_collapse", "reward_hacking", "reward_fault", "length_runaway", "length_truncation"),
    "routing": ("routing_mismatch", "router_collapse", "expert_imbalance", "aux_loss_interference"),
    "process": ("out_of_memory", "hang", "slowdown", "hardware_fault", "data_fault", "config_error", "resume_mismatch", "crash"),
}  # fmt: skip
FAMILY_OF = {kind: family for family, kinds in FAILURE_TYPES.items() for kind in kinds}
FACTORS = ("depth", "routing", "precision", "none")
CAUSES = ("precision", "operator", "framework", "hyperparameter", "data", "reward", "config", "hardware", "unknown")
ROLES = ("root", "benign", "support")
_PARAM = re.compile(r"\$([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as its files state it. `strength` is P(failure type | the rule fires), before any row says otherwise."""

    id: str
    title: str
    view: str
    sql: str
    failure_type: str | None
    role: str
    strength: float
    version: int
    status: str
    severity: str
    columns: tuple[str, ...]
    any_of: tuple[str, ...]
    optional: tuple[str, ...]
    kinds: tuple[str, ...]
    supports: tuple[str, ...]
    min_rows: int
    guard: str | None
    votes: dict[str, float]
    causes: dict[str, float]
    #: `[params]`, `[why]`, and `[text]` as written. Most rules do not apply to most traces, and parsing was half of start-up.
    tables: str = ""

    @property
    def param_notes(self) -> dict[str, dict[str, Any]]:
        """Every parameter as its table: value, unit, and why."""
        return self._table("params")

    @property
    def params(self) -> dict[str, Any]:
        """The values bound as `$name`."""
        return {name: note["value"] for name, note in self.param_notes.items()}

    @property
    def text(self) -> dict[str, Any]:
        """`summary`, `means`, `not_this`, `next_step`, `sources`, and `benign` where there is one."""
        return self._table("text")

    @property
    def why(self) -> dict[str, str]:
        """The reason of each vote and cause."""
        return self._table("why")

    def _table(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = _parsed(self.tables).get(name, {})
            return found
        except tomllib.TOMLDecodeError as error:
            raise RuleError(f"rules/{self.id.replace('-', '_')}.toml: {error}") from error

    @property
    def family(self) -> str:
        """The folder it lives in."""
        return self.id.partition("/")[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """Every signal column its query may name."""
        return (*self.columns, *self.any_of, *self.optional)


@cache
def _parsed(toml: str) -> dict[str, Any]:
    return tomllib.loads(toml)


def _rule(family: str, name: str, toml: str, sql: str) -> Rule:
    where = f"rules/{family}/{name}.toml"
    head, bracket, tables = toml.partition("\n[")
    if "\n[text]" not in toml:
        raise RuleError(f"{where}: [text] is missing; it says what the rule found, in words")
    try:
        data = tomllib.loads(head)
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{where}: {error}") from error
    try:
        return Rule(
            id=data["id"],
            title=data["title"],
            view=data["view"],
            sql=sql,
            failure_type=data.get("failure_type"),
            role=data.get("role", "root"),
            strength=float(data.get("strength", 0.8)),
            version=int(data["version"]),
            status=data["status"],
            severity=data["severity"],
            columns=tuple(data.get("columns", ())),
            any_of=tuple(data.get("any_of", ())),
            optional=tuple(data.get("optional", ())),
            kinds=tuple(data.get("kinds", ())),
            supports=tuple(data.get("supports", ())),
            min_rows=int(data.get("min_rows", 1)),
            guard=data.get("guard"),
            votes=data.get("votes", {}),
            causes=data.get("causes", {}),
            tables=bracket + tables,
        )
    except KeyError as error:
        raise RuleError(
            f"{where}: {error} is missing; every rule has id, title, view, version, status, severity, and [text]"
        ) from error


@cache
def _files() -> tuple[tuple[str, str, str, str], ...]:
    return tuple(_read())


def _read() -> Iterator[tuple[str, str, str, str]]:
    for family in FAMILIES:
        folder = files("faultproxy.rules").joinpath(family)
        if not folder.is_dir():
            continue
        for entry in sorted(folder.iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".toml") and not entry.name.endswith(".cases.toml"):
                name = entry.name.removesuffix(".toml")
                try:
                    sql = folder.joinpath(name + ".sql").read_text(encoding="utf-8")
                except OSError as error:
                    raise RuleError(
                        f"rules/{family}/{name}.sql is missing; a rule is a .toml and a .sql of one name"
                    ) from error
                yield family, name, entry.read_text(encoding="utf-8"), sql


@cache
def catalogue() -> tuple[Rule, ...]:
    """All rules, families in precedence order, names sorted."""
    return tuple(_rule(*found) for found in _files())


@cache
def hashes() -> dict[str, str]:
    """sha256 of each rule's .toml and .sql together, by id."""
    found = {}
    for family, name, toml, sql in _files():
        found[f"{family}/{name.replace('_', '-')}"] = hashlib.sha256(f"{toml}\0{sql}".encode()).hexdigest()
    return found


def fingerprint() -> str:
    """One hash over the whole catalogue: it stands in every report as `tool.rules`."""
    return hashlib.sha256("".join(f"{key}={value};" for key, value in sorted(hashes().items())).encode()).hexdigest()


def sql_params(sql: str) -> set[str]:
    """The `$name` parameters a query uses."""
    return set(_PARAM.findall(sql))


def rename_params(sql: str, suffix: str) -> str:
    """The same SQL with every `$name` as `$name` + suffix, so that several queries can share one statement."""
    return _PARAM.sub(lambda found: f"${found[1]}{suffix}", sql)
