"""Corpus checks: what must hold for the whole catalogue, beyond what loading needs. Run by `rules test` and the tests.

Each check is a small function from the rules to the sentences that are wrong; a sentence starts with the file it is
about. `rules.lock` is checked here too: a changed hash needs a changed version, so that a report's rules can be told apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import duckdb

from faultproxy.analyzer.catalogue import CAUSES, FACTORS, FAMILIES, FAMILY_OF, ROLES, VIEWS, Rule, hashes, sql_params
from faultproxy.analyzer.errors import InputError, RuleError
from faultproxy.analyzer.rulecases import cases, column_key, evaluate
from faultproxy.analyzer.trace import Trace
from faultproxy.analyzer.views import Views, declared

STATUSES = ("preview", "stable", "deprecated")
SEVERITIES = ("low", "medium", "high", "critical")
LEADING = ("step_start", "step_end", "observed", "expected")
TEXTS = ("summary", "means", "not_this", "next_step", "sources")
#: What a series says when it holds something that is not a plain number.
_STATE = re.compile(r"(?:^|\s)(?:nan|-?inf|nonfinite|absent|masked|quantised0)(?:x\d+)?(?=\s|$)")
Check = Callable[[Sequence[Rule]], Iterator[str]]


def _toml(rule: Rule) -> str:
    return f"rules/{rule.id.replace('-', '_')}.toml"


def _sql(rule: Rule) -> str:
    return f"rules/{rule.id.replace('-', '_')}.sql"


def ids(rules: Sequence[Rule]) -> Iterator[str]:
    """An id is unique and is the path, with - for _."""
    for rule_id, times in Counter(rule.id for rule in rules).items():
        if times > 1:
            yield f"id {rule_id} is used by {times} rules"
    paths = set(hashes())
    for rule in rules:
        if rule.id not in paths:
            yield f"id {rule.id} is not its path; allowed is FAMILY/NAME of its file with - for _"


def words(rules: Sequence[Rule]) -> Iterator[str]:
    """View, role, status, severity, failure type, votes, and causes are words of the contract."""
    for rule in rules:
        for what, value, allowed in (
            ("view", rule.view, VIEWS),
            ("role", rule.role, ROLES),
            ("status", rule.status, STATUSES),
            ("severity", rule.severity, SEVERITIES),
            ("family", rule.family, FAMILIES),
            *(("votes", key, FACTORS) for key in rule.votes),
            *(("causes", key, CAUSES) for key in rule.causes),
            *(("supports", key, tuple(FAMILY_OF)) for key in rule.supports),
        ):
            if value not in allowed:
                yield f"{_toml(rule)}: {what} {value!r} is none of {', '.join(allowed)}"


def roles(rules: Sequence[Rule]) -> Iterator[str]:
    """A root names its failure type, a support what it supports, a benign rule neither."""
    for rule in rules:
        if (rule.role == "root") != (rule.failure_type in FAMILY_OF):
            yield f"{_toml(rule)}: failure_type is {rule.failure_type!r} at role {rule.role}; a root rule, and only a root rule, names one of {', '.join(FAMILY_OF)}"
        if (rule.role == "support") != bool(rule.supports):
            yield f"{_toml(rule)}: supports is {list(rule.supports)} at role {rule.role}; a support rule, and only a support rule, names failure types"


def probabilities(rules: Sequence[Rule]) -> Iterator[str]:
    """Strength, votes and causes are probabilities; the causes of one rule sum to at most 1."""
    for rule in rules:
        for what, value in (("strength", rule.strength), *rule.votes.items(), *rule.causes.items()):
            if not 0 < value <= 1:
                yield f"{_toml(rule)}: {what} is {value}; allowed is above 0 up to 1"
        if sum(rule.causes.values()) > 1 + 1e-9:
            yield f"{_toml(rule)}: causes sum to {sum(rule.causes.values()):.3g}; at most 1 is allowed"


def reasons(rules: Sequence[Rule]) -> Iterator[str]:
    """Every vote and every cause has its reason, and nothing else has one."""
    for rule in rules:
        weighed = {*rule.votes, *rule.causes}
        for name in sorted(weighed - {name for name, why in rule.why.items() if why.strip()}):
            yield f"{_toml(rule)}: [why] lacks {name}; every vote and cause has a reason"
        for name in sorted(set(rule.why) - weighed):
            yield f"{_toml(rule)}: [why] explains {name}, which is neither a vote nor a cause"


def texts(rules: Sequence[Rule]) -> Iterator[str]:
    """Title and every text say something."""
    for rule in rules:
        for name, value in (("title", rule.title), *((name, rule.text.get(name)) for name in TEXTS)):
            if not value:
                yield f"{_toml(rule)}: {name} is empty; every rule has title, {', '.join(TEXTS)}"


def params(rules: Sequence[Rule]) -> Iterator[str]:
    """Every parameter has value, unit and why, and is used; every $name is a parameter."""
    for rule in rules:
        for name, note in rule.param_notes.items():
            if set(note) != {"value", "unit", "why"} or not note["unit"] or not note["why"]:
                yield f"{_toml(rule)}: parameter {name} has {', '.join(note)}; it needs value, unit, and why"
        used = sql_params(rule.sql)
        for name in sorted(set(rule.params) - used):
            yield f"{_toml(rule)}: parameter {name} is not used in the query"
        for name in sorted(used - set(rule.params)):
            yield f"{_sql(rule)}: ${name} is no parameter; declared are {', '.join(rule.params) or 'none'}"


def columns_declared(rules: Sequence[Rule]) -> Iterator[str]:
    """What is declared is in the vocabulary, once, and is read."""
    for rule in rules:
        for name in rule.reads:
            if column_key(name) is None:
                yield f"{_toml(rule)}: column {name} is no signal of signals.toml"
            if not re.search(rf"\b{name}(?:__state)?\b", rule.sql):
                yield f"{_toml(rule)}: column {name} is declared but the query does not read it"
        for name, times in Counter(rule.reads).items():
            if times > 1:
                yield f"{_toml(rule)}: column {name} is declared {times} times"


def queries(rules: Sequence[Rule]) -> Iterator[str]:
    """On empty views that offer only the declared columns the query binds and gives the four leading columns, no row."""
    for rule in rules:
        views = Views(Trace("empty"), declared([rule]))
        try:
            cursor = views.con.execute(rule.sql, {name: rule.params.get(name) for name in sql_params(rule.sql)})
        except duckdb.Error as error:
            yield f"{_sql(rule)}: {error} (columns it may read: {', '.join(rule.reads) or 'none'})"
            continue
        leading = tuple(entry[0] for entry in (cursor.description or ())[:4])
        if leading != LEADING:
            yield f"{_sql(rule)}: the first columns are {', '.join(leading)}; they must be {', '.join(LEADING)}"
        if cursor.fetchone() is not None:
            yield f"{_sql(rule)}: returns a row on an empty trace; zero rows mean clean"


def guards(rules: Sequence[Rule]) -> Iterator[str]:
    """A guard binds; at run time one that does not is passed over in silence."""
    for rule in rules:
        if rule.guard:
            views = Views(Trace("empty"), declared([rule]))
            try:
                bound = {name: rule.params.get(name) for name in sql_params(rule.guard)}
                views.con.execute(f"SELECT bool_or({rule.guard}) FROM train", bound)
            except duckdb.Error as error:
                yield f"{_toml(rule)}: guard {rule.guard!r}: {error} (columns it may read: {', '.join(rule.reads)})"


def proof(rules: Sequence[Rule]) -> Iterator[str]:
    """Every rule has the cases that prove it, and case names are unique."""
    for rule in rules:
        found = cases(rule)
        where = _toml(rule).replace(".toml", ".cases.toml")
        have = {case.verdict for case in found}
        need = {"fires", "clean", "not_applicable"} | ({"benign"} if "benign" in rule.text else set())
        for verdict in sorted(need - have):
            yield f"{where}: no [[{verdict}]] case"
        for verdict in sorted(need & {"fires", "benign"} & have):
            if not any("text" in case.body for case in found if case.verdict == verdict):
                yield f"{where}: no [[{verdict}]] case asserts the text"
        if not any("expect" in case.body for case in found if case.verdict == "fires"):
            yield f"{where}: no [[fires]] case asserts the evidence"
        if rule.reads and not any(_STATE.search(text) for case in found for text in _series(case.body)):
            yield f"{where}: no case with a value that is not a plain number (nan, masked, quantised0, ...)"
        for name, times in Counter((case.verdict, case.name) for case in found).items():
            if times > 1:
                yield f"{where}: {times} cases are called {name[1]!r}"


def _series(body: dict[str, object]) -> Iterator[str]:
    """Every series of a case, however deep it stands."""
    for value in body.values():
        if isinstance(value, dict):
            yield from _series(value)
        elif isinstance(value, str):
            yield value


def messages(rules: Sequence[Rule]) -> Iterator[str]:
    """The text renders without a hole for every case that finds something."""
    for rule in rules:
        for case in cases(rule):
            if case.verdict in ("fires", "benign"):
                for finding in evaluate(case).findings:
                    if "?" in finding.statement or "{" in finding.statement:
                        yield f"{_toml(rule)}: {case.name!r} renders as {finding.statement!r}"


def lock(rules: Sequence[Rule]) -> Iterator[str]:
    """`rules.lock` has every rule at its version and hash."""
    held = read_lock()
    now = hashes()
    for rule in rules:
        entry = held.get(rule.id)
        if entry is None:
            yield f"rules/rules.lock: {rule.id} is missing; run `faultproxy rules lock`"
        elif entry[1] != now.get(rule.id):
            todo = "raise its version, then run" if entry[0] == rule.version else "run"
            yield f"rules/rules.lock: {rule.id} has changed since version {entry[0]} was locked; {todo} `faultproxy rules lock`"
        elif entry[0] != rule.version:
            yield f"rules/rules.lock: {rule.id} is version {rule.version} with the content of {entry[0]}; run `faultproxy rules lock`"
    if len(rules) == len(now):
        for rule_id in sorted(set(held) - set(now)):
            yield f"rules/rules.lock: {rule_id} is no rule; run `faultproxy rules lock`"


CHECKS: tuple[Check, ...] = (
    ids, words, roles, probabilities, reasons, texts, params, columns_declared, queries, guards, proof, messages, lock,
)  # fmt: skip


def check(rules: Sequence[Rule]) -> list[str]:
    """Everything that is wrong with `rules`."""
    return [sentence for one in CHECKS for sentence in one(rules)]


# -- the lock ---------------------------------------------------------------------------------------------------------
def lock_path() -> Path:
    """Where `rules.lock` stands: beside the families, in a checkout."""
    return Path(str(files("faultproxy.rules").joinpath("rules.lock")))


def read_lock() -> dict[str, tuple[int, str]]:
    """(version, sha256) by id; empty before the first lock."""
    path = lock_path()
    if not path.exists():
        return {}
    held = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        parts = line.split()
        if len(parts) != 3 or not parts[1].isdigit():
            raise RuleError(
                f"rules/rules.lock, line {number}: {line!r} is not `id version sha256`; rewrite it with `faultproxy rules lock`"
            )
        held[parts[0]] = (int(parts[1]), parts[2])
    return held


def new_lock(rules: Sequence[Rule], held: dict[str, tuple[int, str]], same_version: bool = False) -> str:
    """The text of `rules.lock` for `rules`, or InputError where one changed without a new version."""
    now = hashes()
    stale = [r for r in rules if r.id in held and held[r.id][1] != now[r.id] and held[r.id][0] >= r.version]
    refused = [r for r in stale if not (same_version and r.status == "preview" and held[r.id][0] == r.version)]
    if refused:
        names = ", ".join(f"{r.id} (version {r.version}, {r.status})" for r in refused)
        raise InputError(
            f"changed without a new version: {names}; raise `version` in each .toml (--same-version keeps it, for preview rules only)"
        )
    return "".join(f"{r.id} {r.version} {now[r.id]}\n" for r in sorted(rules, key=lambda r: r.id))
