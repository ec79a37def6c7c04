"""The proof of each rule: `rules/FAMILY/NAME.cases.toml`, short synthetic series and what the rule must say of them.

A series is written in the notation of promtool: `"1x29 20x2 1+0.2x60 nanx4 _"` is value x count, start+slope x count,
a word for what a writer left instead of a number, and `_` where it wrote nothing. `~a` swings a value by +a and -a in
turn, for rules that measure noise. The notation and the keys of a case stand in docs/rules.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isclose
from typing import Any

from faultproxy.analyzer.catalogue import Rule, catalogue
from faultproxy.analyzer.engine import Finding, Outcome, run
from faultproxy.analyzer.errors import RuleError
from faultproxy.analyzer.facts import nested
from faultproxy.analyzer.trace import (
    ABSENT,
    MASKED,
    NAN,
    NEG_INF,
    NONFINITE,
    POS_INF,
    QUANTISED,
    Cell,
    Column,
    Event,
    Frame,
    Key,
    Source,
    Trace,
)
from faultproxy.analyzer.vocabulary import signals

#: What must come of a case. `todo_` marks a known gap: the case states what would be right and must not pass yet.
VERDICTS = ("fires", "benign", "clean", "not_applicable", "todo_fires", "todo_clean")
_WORDS: dict[str, Cell | None] = {
    "nan": Cell(None, NAN),
    "inf": Cell(None, POS_INF),
    "-inf": Cell(None, NEG_INF),
    "nonfinite": Cell(None, NONFINITE),
    "absent": Cell(None, ABSENT),
    "masked": Cell(None, MASKED),
    "quantised0": Cell(0.0, QUANTISED),
    "_": None,
}
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_ITEM = re.compile(
    rf"(?:(?P<word>[a-z_-]+?0?)|(?P<start>{_NUMBER})(?P<slope>[+-]\d[\d.]*(?:e[+-]?\d+)?)?)"
    rf"(?:x(?P<count>\d+))?(?:~(?P<swing>{_NUMBER}))?\Z"
)
_STATS = ("max", "min", "std", "median", "p25", "p50", "p75", "p99")
#: Where the values of one layer, expert, rank or module go: the table in a case, and the field of the key.
_DETAIL = {"layers": "layer", "experts": "expert", "ranks": "rank", "modules": "module"}
_KEYS = {
    "name",
    "series",
    "steps",
    "segment",
    "events",
    "components",
    "facts",
    *_DETAIL,
    "good",
    "expect",
    "text",
    "reason",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of a cases file."""

    rule: Rule
    verdict: str
    name: str
    body: dict[str, Any]

    @property
    def id(self) -> str:
        """Reads as a sentence: `numerics/zero-gradient clean: one empty batch`."""
        return f"{self.rule.id} {self.verdict}: {self.name}"

    @property
    def todo(self) -> bool:
        """True for a known gap."""
        return self.verdict.startswith("todo_")


def series(text: str) -> list[Cell | None]:
    """Expand the notation into cells."""
    cells: list[Cell | None] = []
    for item in text.split():
        found = _ITEM.match(item)
        if not found or (found["word"] and found["word"] not in _WORDS):
            raise RuleError(
                f"{item!r} in {text!r} is not VALUExCOUNT, START+SLOPExCOUNT, either with ~SWING, or one of {', '.join(_WORDS)}"
            )
        count = int(found["count"] or 1)
        if found["word"]:
            cells += [_WORDS[found["word"]]] * count
            continue
        start, slope, swing = (float(found[part] or 0) for part in ("start", "slope", "swing"))
        cells += [Cell(start + slope * i + (swing if i % 2 == 0 else -swing)) for i in range(count)]
    return cells


def numbers(text: str | float) -> list[float | None]:
    """Expand the notation where only numbers (or `_`) make sense: steps, segments, fields of events."""
    if not isinstance(text, str):
        return [float(text)]
    return [None if cell is None else cell.value for cell in series(text)]


@cache
def _columns() -> dict[str, Key]:
    """Every column name a rule can use, as the key that has it; a signal's own name wins over a statistic of another."""
    found: dict[str, Key] = {}
    for stat in (None, *_STATS):
        for name, entry in signals().items():
            base = Key(entry.get("signal", name), entry.get("axis", "train"), entry.get("role"), stat)
            for key in (base, base._replace(axis="eval")):
                found.setdefault(key.column, key)
    return found


def column_key(name: str) -> Key | None:
    """The key whose column name is `name`, or None where the vocabulary has no such signal."""
    return _columns().get(name)


def trace(body: dict[str, Any]) -> Trace:
    """Build the trace a case describes. Without a single value or event nothing was read, so it has no source."""
    unknown = set(body) - _KEYS
    if unknown:
        raise RuleError(f"unknown key {', '.join(sorted(unknown))} in a case; allowed are {', '.join(sorted(_KEYS))}")
    whole: dict[Key, str] = {_key(name): text for name, text in body.get("series", {}).items()}
    for label, text in body.get("components", {}).items():
        whole[Key("reward_component", label=label)] = text
    detail: dict[Key, str] = {}
    for table, part in _DETAIL.items():
        for place, members in body.get(table, {}).items():
            where: dict[str, Any] = {part: place if part == "module" else int(place)}
            for name, text in members.items():
                detail[_key(name)._replace(**where)] = text
    cells = {key: series(text) for key, text in (whole | detail).items()}
    size = max((len(column) for column in cells.values()), default=0)
    built = Trace("case", facts=nested(body.get("facts", {})))
    steps = [int(value or 0) for value in numbers(body.get("steps", f"1+1x{size}"))] if size else []
    segments = [int(value or 0) for value in numbers(body.get("segment", f"0x{size}"))] if size else []
    if not len(steps) == len(segments) == size:
        raise RuleError(f"{size} rows of values, {len(steps)} steps, {len(segments)} segments: they must be equal")
    for frame, keys in ((built.frame, whole), (built.detail, detail)):
        if keys:
            _fill(frame, steps, segments, {key: cells[key] for key in keys})
    built.events = [event for entry in body.get("events", ()) for event in _events(entry)]
    if cells or built.events:
        built.sources = [Source("case.log", "case", "", rows=size)]
    return built


def _good(body: dict[str, Any]) -> Trace:
    """The good run of a case: its series by name, beside the tables that a case has too."""
    own = set(_DETAIL) | {"steps", "segment", "components", "facts"}
    series = {name: text for name, text in body.items() if name not in own}
    return trace({"series": series, **{name: body[name] for name in own & set(body)}})


def _key(name: str) -> Key:
    key = column_key(name)
    if key is None:
        raise RuleError(f"series {name!r} is no column of the vocabulary (signals.toml)")
    return key


def _fill(frame: Frame, steps: list[int], segments: list[int], cells: dict[Key, list[Cell | None]]) -> None:
    frame.steps, frame.segments = steps, segments
    frame.sources, frame.lines = [0] * len(steps), list(range(1, len(steps) + 1))
    for key, values in cells.items():
        column = frame.columns[key] = Column(key, key.column)
        for row, cell in enumerate(values):
            if cell is not None:
                column.put(row, cell)


def _events(entry: dict[str, Any]) -> Iterator[Event]:
    """One entry is one event, or as many as the longest notation among its fields."""
    fields = {name: numbers(entry[name]) for name in ("step", "segment", "rank", "value") if name in entry}
    for n in range(max((len(values) for values in fields.values()), default=1)):
        at = {name: values[n] if len(values) > 1 else values[0] for name, values in fields.items()}
        whole = {name: int(value) for name, value in at.items() if name != "value" and value is not None}
        yield Event(entry["kind"], entry.get("text", entry["kind"]), value=at.get("value"), **whole)


def cases(rule: Rule) -> list[Case]:
    """The cases of a rule, in the order of its file; none where the file is absent (an installed package has none)."""
    name = rule.id.partition("/")[2].replace("-", "_") + ".cases.toml"
    entry = files("faultproxy.rules").joinpath(rule.family, name)
    if not entry.is_file():
        return []
    try:
        data = tomllib.loads(entry.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"rules/{rule.family}/{name}: {error}") from error
    unknown = set(data) - set(VERDICTS)
    if unknown:
        raise RuleError(f"rules/{rule.family}/{name}: [[{unknown.pop()}]] is none of {', '.join(VERDICTS)}")
    found = [(verdict, body) for verdict in data for body in data[verdict]]
    if any("name" not in body for _, body in found):
        raise RuleError(
            f"rules/{rule.family}/{name}: a case has no name; say what it shows, such as 'one isolated spike'"
        )
    return [Case(rule, verdict, body["name"], body) for verdict, body in found]


def all_cases(rules: Sequence[Rule] | None = None) -> list[Case]:
    """Every case of `rules` (default: of the whole catalogue)."""
    return [case for rule in (catalogue() if rules is None else rules) for case in cases(rule)]


def evaluate(case: Case) -> Outcome:
    """Run the case's rule, alone, on the case's trace."""
    try:
        here = trace(case.body)
        if "good" not in case.body:
            return run(here, [case.rule])[0]
        from faultproxy.analyzer.against import compare

        return run(here, [case.rule], compare(here, _good(case.body["good"])))[0]
    except RuleError as error:
        raise RuleError(f"rules/{case.rule.id.replace('-', '_')}.cases.toml, {case.name!r}: {error}") from error


def problem(case: Case) -> str | None:
    """What is wrong with the rule's answer to a case, or None. A known gap is judged as what it ought to be."""
    outcome = evaluate(case)
    wanted = case.verdict.removeprefix("todo_")
    got = outcome.status
    if got == "fires" and all(f.role == "benign" for f in outcome.findings) and case.rule.role != "benign":
        got = "benign"
    if got != wanted:
        said = outcome.reason or "; ".join(f.statement for f in outcome.findings)
        return f"wanted {wanted}, got {got}" + (f" ({said})" if said else "")
    if "reason" in case.body and case.body["reason"] != outcome.reason:
        return f"reason is {outcome.reason!r}, wanted {case.body['reason']!r}"
    if "text" in case.body and case.body["text"] != outcome.findings[0].statement:
        return f"text is {outcome.findings[0].statement!r}, wanted {case.body['text']!r}"
    expected = case.body.get("expect")
    if expected is None:
        return None
    if len(expected) != len(outcome.findings):
        return f"{len(outcome.findings)} findings, wanted {len(expected)}"
    wrong = [_difference(finding, want) for finding, want in zip(outcome.findings, expected, strict=True)]
    return "; ".join(text for text in wrong if text) or None


def _difference(finding: Finding, want: dict[str, Any]) -> str:
    wrong = []
    for name, value in want.items():
        got = getattr(finding, name)
        same = isclose(got, value, rel_tol=1e-6) if isinstance(value, float) and got is not None else got == value
        if not same:
            wrong.append(f"{name} is {got!r}, wanted {value!r}")
    return ", ".join(wrong)
