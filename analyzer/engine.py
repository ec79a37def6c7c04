"""Runs the catalogue over a trace's views: each rule fires, is clean, is not applicable (and says why), or errs.

A rule's query returns one row a piece of evidence. Its first four columns are `step_start, step_end, observed, expected`;
it may add `segment, rank, layer, expert, signal, strength, role, source, line` and anything its text names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import duckdb

from faultproxy.analyzer.catalogue import FAMILY_OF, Rule, catalogue, rename_params, sql_params
from faultproxy.analyzer.trace import Trace
from faultproxy.analyzer.views import Views, declared

if TYPE_CHECKING:
    from faultproxy.analyzer.against import Comparison

#: Rows from which rules run abreast, and how many.
_ABREAST_FROM, _ABREAST = 20_000, 2
#: A rule that finds more islands than this shows the first ones; the count stays in the outcome.
MAX_FINDINGS = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of evidence, with where it stands in the trace and what it argues for."""

    rule: str
    failure_type: str | None
    role: str
    strength: float
    statement: str
    segment: int = 0
    step_start: int | None = None
    step_end: int | None = None
    observed: float | None = None
    expected: float | None = None
    signal: str | None = None
    rank: int | None = None
    layer: int | None = None
    expert: int | None = None
    source: str | None = None
    line: int | None = None
    votes: dict[str, float] = field(default_factory=dict)
    causes: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    supports: tuple[str, ...] = ()
    next_step: str | None = None

    @property
    def family(self) -> str:
        """Family of its failure type; a support finding has its rule's."""
        return FAMILY_OF.get(self.failure_type or "", self.rule.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule: `fires`, `clean`, `not_applicable`, or `error`; `reason` for the last two."""

    rule: Rule
    status: str
    findings: tuple[Finding, ...] = ()
    reason: str | None = None


def run(trace: Trace, rules: Sequence[Rule] | None = None, against: Comparison | None = None) -> list[Outcome]:
    """Run `rules` (default: the whole catalogue) over a trace, and over its comparison with a good run if there is one."""
    rules = catalogue() if rules is None else rules
    views = Views(trace, declared([rule for rule in rules if against is not None or rule.view != "against"]), against)
    lacking = {rule.id: _lacking(rule, views) for rule in rules}
    idle = _idle([rule for rule in rules if rule.guard and lacking[rule.id] is None], views)
    if len(trace.frame) < _ABREAST_FROM:
        return [_run(rule, views, views.con, lacking[rule.id], rule.id in idle) for rule in rules]
    from concurrent.futures import ThreadPoolExecutor

    # A query over one row group keeps one core busy; a cursor each, because a connection runs one query at a time.
    with ThreadPoolExecutor(_ABREAST) as pool:
        return list(
            pool.map(lambda rule: _run(rule, views, views.con.cursor(), lacking[rule.id], rule.id in idle), rules)
        )


def _idle(guarded: Sequence[Rule], views: Views) -> set[str]:
    """Rules whose guard holds in no row of `train`: all guards in one scan, instead of a query each.

    A guard that does not bind leaves its rule to run and to say what is wrong.
    """
    if not guarded:
        return set()
    bound: dict[str, Any] = {}
    for i, rule in enumerate(guarded):
        params = rule.params
        bound |= {f"{name}_{i}": params[name] for name in sql_params(str(rule.guard)) if name in params}
    tests = [f"coalesce(bool_or({rename_params(str(rule.guard), f'_{i}')}), false)" for i, rule in enumerate(guarded)]
    try:
        row = views.con.execute(f"SELECT {', '.join(tests)} FROM train", bound).fetchone()
    except (duckdb.Error, KeyError):
        return set()
    return {rule.id for rule, holds in zip(guarded, row or (), strict=True) if not holds}


def _run(rule: Rule, views: Views, con: duckdb.DuckDBPyConnection, lacking: str | None, idle: bool) -> Outcome:
    if lacking is not None:
        return Outcome(rule, "not_applicable", reason=lacking)
    if idle or (rule.kinds and not any(kind in views.counts["events"] for kind in rule.kinds)):
        return Outcome(rule, "clean")
    try:
        params = rule.params
        cursor = con.execute(rule.sql, {name: params[name] for name in sql_params(rule.sql)})
        columns = [entry[0] for entry in cursor.description or ()]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchmany(MAX_FINDINGS)]
    except (duckdb.Error, KeyError) as error:
        return Outcome(rule, "error", reason=f"rules/{rule.id.replace('-', '_')}.sql: {error}")
    findings = tuple(_finding(rule, row, views) for row in rows)
    return Outcome(rule, "fires" if findings else "clean", findings)


def _lacking(rule: Rule, views: Views) -> str | None:
    """Why the rule cannot be judged on this trace, or None."""
    if rule.view == "against" and "against" not in views.counts:
        return "no good run to compare with: --against"
    if rule.view == "events" and not rule.columns and not rule.any_of:
        return None if views.trace.sources or views.trace.events else "no text log among the sources"
    counts = views.counts["train" if rule.view == "events" else rule.view]
    for name in rule.columns:
        if not counts.get(name):
            return f"no {name} in this trace"
        if counts[name] < rule.min_rows:
            return f"{counts[name]} rows of {name}, {rule.min_rows} are needed"
    if rule.any_of:
        most = max(counts.get(name, 0) for name in rule.any_of)
        if not most:
            return f"none of {', '.join(rule.any_of)} in this trace"
        if most < rule.min_rows:
            return f"{most} rows of {' or '.join(rule.any_of)}, {rule.min_rows} are needed"
    return None


def _finding(rule: Rule, row: dict[str, Any], views: Views) -> Finding:
    segment = int(row.get("segment") or 0)
    start = row.get("step_start")
    place = (row["source"], row["line"]) if row.get("line") is not None else views.locate(segment, start)
    source = views.trace.sources[place[0]].path if place and place[0] < len(views.trace.sources) else None
    role = row.get("role") or rule.role
    return Finding(
        rule=rule.id,
        failure_type=rule.failure_type if role == "root" else None,
        role=role,
        strength=float(row["strength"] if row.get("strength") is not None else rule.strength),
        statement=render(rule.text["benign" if role == "benign" and "benign" in rule.text else "summary"], row),
        segment=segment,
        step_start=start,
        step_end=row.get("step_end"),
        observed=_number(row.get("observed")),
        expected=_number(row.get("expected")),
        signal=row.get("signal") or (rule.reads[0] if rule.reads else None),
        rank=row.get("rank"),
        layer=row.get("layer"),
        expert=row.get("expert"),
        source=source,
        line=place[1] if place and place[1] else None,
        votes=rule.votes if role != "benign" else {},
        causes=rule.causes if role != "benign" else {},
        why=rule.why,
        supports=rule.supports,
        next_step=render(rule.text["next_step"], row) if role == "root" else None,
    )


def _number(value: Any) -> float | None:
    """A plain finite float: queries also give integers and decimals."""
    number = None if value is None else float(value)
    return number if number is None or isfinite(number) else None


class _Missing(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def render(template: str, row: dict[str, Any]) -> str:
    """Fill a rule's text from an evidence row; a null shows as `?` whatever its format asks for."""
    shown = {key: _Unknown() if value is None else value for key, value in row.items()}
    start, end = row.get("step_start"), row.get("step_end")
    shown["steps"] = (
        "an unknown step" if start is None else f"step {start}" if end in (None, start) else f"steps {start}-{end}"
    )
    return template.format_map(_Missing(shown))


class _Unknown:
    def __format__(self, spec: str) -> str:
        return "?"
