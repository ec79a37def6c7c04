"""Rules as short articles: `faultproxy rules explain ID` on the terminal, and all of them as the page docs/catalogue.md.

An article is its sections in the order a reader asks: what was seen, what it means, what it is not, what to do next, why
the rule decides as it does, and who says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

from faultproxy.analyzer.catalogue import FAILURE_TYPES, FAMILIES, Rule

#: A placeholder of a rule's text with its format, `{observed:.3g}`; an explanation shows its name alone.
_PLACE = re.compile(r"\{(\w+)[^}]*\}")
_WIDTH = 96
#: What each role does, for a reader who does not know the word.
_ROLES = {"root": "names the failure", "support": "argues for", "benign": "explains, accuses nobody"}


def sections(rule: Rule, example: str | None = None) -> Iterator[tuple[str, str | list[str]]]:
    """The article of a rule as (heading, paragraph or list of items); `example` is a sentence it said of a known series."""
    text = rule.text
    yield "It says", _PLACE.sub(r"<\1>", text["summary"]) if example is None else f'"{example}"'
    yield "What it means", text["means"]
    yield "What it is not", text["not_this"]
    if text.get("benign"):
        yield "It says of the harmless kind", _PLACE.sub(r"<\1>", text["benign"])
    yield "What to do", text["next_step"]
    for heading, weights in (("Votes for the factor", rule.votes), ("Causes", rule.causes)):
        if weights:
            yield heading, [_weight(name, weight, rule.why) for name, weight in _heaviest(weights)]
    if rule.params:
        yield (
            "Thresholds",
            [
                f"{name} = {_value(note['value'])} {note['unit']}: {note['why']}"
                for name, note in rule.param_notes.items()
            ],
        )
    yield "Reads", _reads(rule)
    yield "Sources", "; ".join(text["sources"])


def article(rule: Rule, example: str | None = None) -> str:
    """The article in lines of a terminal's width."""
    parts = [f"{rule.id}  ({_about(rule)}, {rule.severity}, {rule.status}, version {rule.version})", rule.title]
    parts = [fill(part, _WIDTH) for part in parts]
    for heading, body in sections(rule, example):
        if isinstance(body, str):
            parts.append(fill(f"{heading}.  {body}", _WIDTH))
        else:
            items = (fill(f"  {item}", _WIDTH, subsequent_indent="    ") for item in body)
            parts.append("\n".join((f"{heading}.", *items)))
    return "\n\n".join(parts)


def page(rules: Sequence[Rule], examples: Mapping[str, str]) -> str:
    """The catalogue in Markdown: every failure type with the rules that name it, then every rule's article."""
    named = {kind: [r for r in rules if r.failure_type == kind] for kinds in FAILURE_TYPES.values() for kind in kinds}
    lines = [
        "# The catalogue of rules",
        "",
        f"Written by `FAULTPROXY_UPDATE_DOCS=1 python -m pytest tests/test_docs.py` from `rules/`: {len(rules)} rules. What the parts of",
        "a rule are: [rules.md](rules.md). How findings become a diagnosis: [diagnosis.md](diagnosis.md). `faultproxy rules explain ID` prints one article.",
        "",
        "| failure type | family | rules that name it |",
        "|---|---|---|",
    ]
    for family in FAMILIES:
        for kind in FAILURE_TYPES[family]:
            links = ", ".join(_link(rule) for rule in named[kind]) or "no rule: never named"
            lines.append(f"| {kind} | {family} | {links} |")
    support = ", ".join(_link(rule) for rule in rules if rule.failure_type is None)
    lines.append(f"| none of its own | | {support} |")
    for family in FAMILIES:
        lines += ["", f"## {family.capitalize()}"]
        for rule in (rule for rule in rules if rule.family == family):
            lines += ["", f"### {rule.id}", "", f"**{rule.title}.** *{_about(rule)}; {rule.severity}, {rule.status}, version {rule.version}.*"]  # fmt: skip
            for heading, body in sections(rule, examples.get(rule.id)):
                if isinstance(body, str):
                    lines += ["", f"*{heading}.* {_escaped(body)}"]
                else:
                    lines += ["", f"*{heading}.*", "", *(f"- {_escaped(item)}" for item in body)]
    return "\n".join(lines) + "\n"


def _about(rule: Rule) -> str:
    return " ".join(filter(None, (_ROLES[rule.role], rule.failure_type or " or ".join(rule.supports))))


def _heaviest(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda entry: -entry[1])


def _weight(name: str, weight: float, why: Mapping[str, str]) -> str:
    return f"{name} {weight:g}" + (f": {why[name]}" if name in why else "")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _reads(rule: Rule) -> str:
    groups = (("", rule.columns), ("one of ", rule.any_of), ("if there: ", rule.optional), ("events: ", rule.kinds))
    read = "; ".join(label + ", ".join(names) for label, names in groups if names)
    return f"{read} (view {rule.view}, at least {rule.min_rows} row{'s' * (rule.min_rows > 1)})"


def _link(rule: Rule) -> str:
    return f"[{rule.id}](#{rule.id.replace('/', '')})"


def _escaped(text: str) -> str:
    """Angle brackets of placeholders are no HTML, and a bar is no table."""
    return text.replace("<", "\\<").replace("*", "\\*")
