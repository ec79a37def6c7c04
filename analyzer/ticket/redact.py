"""Hides secrets, host names, addresses, and people's names in text that leaves the cluster (patterns: redact.toml).

The same value gets the same placeholder, `<host-1>`, in every text that one Redactor sees, so that the text stays
readable. A name that a pattern found once (of a user in a home path, of a node in a launcher's line) is hidden
everywhere else too. Every pattern is linear in the text: bounded repeats, and no start inside a longer match.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

#: Escape sequences of terminals would stand between a token and its left edge.
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_PLACEHOLDER = re.compile(r"<[a-z]{2,6}-\d{1,9}>")
#: Names shorter than this are words too often to be hidden away from the place they were found in.
_LEAST_NAME = 4
_MOST_NAMES = 500
#: Start, end, place of the pattern in the table, and kind.
Span = tuple[int, int, int, str]


class Pattern(NamedTuple):
    """One entry of redact.toml; every group of the expression is hidden."""

    name: str
    kind: str
    expression: re.Pattern[str]
    mixed: bool


@cache
def table() -> dict[str, Any]:
    """redact.toml as it stands."""
    return tomllib.loads(files("faultproxy.analyzer.ticket").joinpath("redact.toml").read_text("utf-8"))


@cache
def patterns() -> tuple[Pattern, ...]:
    """All patterns, the first of them wins where two overlap."""
    entries = table()["pattern"]
    return tuple(Pattern(e["name"], e["kind"], re.compile(e["regex"]), e.get("mixed", False)) for e in entries)


@cache
def _keep(kind: str) -> tuple[frozenset[str], re.Pattern[str] | None]:
    entry = table()["keep"].get(kind, {})
    shape = entry.get("regex")
    return frozenset(word.lower() for word in entry.get("words", ())), re.compile(shape) if shape else None


@dataclass(slots=True)
class Redactor:
    """Redacts several texts with one set of placeholders; `counts` has the places hidden, by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    _placeholders: dict[str, dict[str, int]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _known: re.Pattern[str] | None = None
    _found: dict[str, list[Span]] = field(default_factory=dict)

    def learn(self, *texts: str) -> None:
        """Remember the names of people and machines in some texts; `text` hides them wherever they stand."""
        for plain in map(_plain, texts):
            for start, end, _, kind in self._spans(plain):
                name = plain[start:end].lower().partition("." if kind == "host" else " ")[0]
                # A machine without a number is a word (`api.corp.cn`), and a word stands in many places.
                named = kind == "user" or (kind == "host" and re.search(r"[a-z].{0,60}\d", name))
                rare = len(name) >= _LEAST_NAME and name not in _keep("name")[0]
                if named and rare and len(self._names) < _MOST_NAMES:
                    self._names.setdefault(name, kind)
        names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._known = re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])") if names else None

    def text(self, text: str) -> str:
        """The text with everything hidden that a pattern or a learned name finds."""
        plain = _plain(text)
        known = self._known.finditer(plain) if self._known else ()
        names = [(found.start(), found.end(), len(patterns()), self._names[found[0].lower()]) for found in known]
        parts, done = [], 0
        for start, end, kind in _merged([*self._spans(plain), *names]):
            parts += [plain[done:start], self._placeholder(kind, plain[start:end])]
            done = end
        return "".join((*parts, plain[done:])) if parts else text

    def everything(self, value: Any, named: str = "") -> Any:
        """A JSON value with every string in it redacted.

        What a setting (an object with `key`) is named for decides whether its value is a secret.
        """
        if isinstance(value, str):
            text = self.text(named + value)
            return text.removeprefix(named) if text.startswith(named) else self.text(value)
        if isinstance(value, dict):
            key = f"{value['key']}=" if isinstance(value.get("key"), str) else ""
            return {name: self.everything(inner, key) for name, inner in value.items()}
        return [self.everything(inner, named) for inner in value] if isinstance(value, list) else value

    def _spans(self, plain: str) -> list[Span]:
        if plain not in self._found:
            self._found[plain] = list(_spans(plain))
        return self._found[plain]

    def _placeholder(self, kind: str, value: str) -> str:
        self.counts[kind] += 1
        held = self._placeholders.setdefault(kind, {})
        return f"<{kind}-{held.setdefault(value.lower(), len(held) + 1)}>"


def redact(text: str) -> tuple[str, Counter[str]]:
    """One text without secrets and names, and how many places were hidden, by kind."""
    redactor = Redactor()
    redactor.learn(text)
    return redactor.text(text), redactor.counts


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def _plain(text: str) -> str:
    return _ANSI.sub("", text)


def _spans(text: str) -> Iterator[Span]:
    for order, pattern in enumerate(patterns()):
        for found in pattern.expression.finditer(text):
            for group in range(1, pattern.expression.groups + 1):
                value = found[group]
                if value and not _innocent(pattern, value):
                    yield found.start(group), found.end(group), order, pattern.kind


def _innocent(pattern: Pattern, value: str) -> bool:
    words, shape = _keep(pattern.kind)
    unmixed = pattern.mixed and not (re.search(r"\d", value) and re.search(r"[A-Za-z]", value))
    if unmixed or _PLACEHOLDER.fullmatch(value) or (pattern.name == "ipv6" and not _ipv6(value)):
        return True
    first, _, rest = value.lower().partition(".")
    if pattern.kind == "host" and rest and first in table()["keep"]["host"]["prefixes"]:
        value = rest
    return value.lower() in words or bool(shape and shape.fullmatch(value))


def _ipv6(value: str) -> bool:
    try:
        address = ipaddress.IPv6Address(value.partition("%")[0])
    except ValueError:
        return False
    # `rows[1::2]` is a slice.
    whole = value.count(":") > 2 or address.is_link_local or address.is_private
    return whole and not (address.is_loopback or address.is_unspecified)


def _merged(spans: list[Span]) -> list[tuple[int, int, str]]:
    """Spans without overlaps, left to right; of those that overlap the first pattern names the kind."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span[0] < found[-1][1]:
            start, end, *_ = last = found.pop()
            span = (start, max(end, span[1]), *min(last[2:], span[2:]))
        found.append(span)
    return [(start, end, kind) for start, end, _, kind in found]
