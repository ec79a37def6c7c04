"""The settings in which two runs differ, those first that can explain the failure.

Settings are the facts that the readers found (launch lines, printed configurations, files beside the log). Which of them
can explain what is data: `relevance.toml`. A setting that only one of the logs shows is no difference: it may be the log
that differs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

#: Settings compared, characters of a value, and how deep facts may be nested.
MOST, LONGEST, DEEPEST = 5_000, 200, 8


_PLAIN = (str, int, float)
#: Facts about the facts.
_META = ("origins", "conflicts")


class Setting(NamedTuple):
    """One setting that differs, with why it may matter and the failure types that it can bring about."""

    key: str
    here: str
    good: str
    why: str | None
    types: tuple[str, ...]
    place: int


def differences(here: dict[str, Any], good: dict[str, Any]) -> tuple[Setting, ...]:
    """Settings of both runs with different values, in the order of `relevance.toml`."""
    left, right = ({key: value for key, value in flat(facts) if not key.startswith(_META)} for facts in (here, good))
    found = []
    for key in sorted(set(left) & set(right)):
        if _text(left[key]) == _text(right[key]) or _ignored().search(_plain(key)):
            continue
        place, why, types = _relevance(_plain(key))
        found.append(Setting(key, _text(left[key]), _text(right[key]), why, types, place))
    return tuple(sorted(found, key=lambda setting: (setting.place, setting.key)))


def ranked(settings: Sequence[Setting], failure_type: str | None) -> list[Setting]:
    """The settings with those first that can bring about `failure_type`."""
    return sorted(settings, key=lambda s: (failure_type not in s.types, s.place, s.key))


def flat(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Dotted names of the leaves: plain values and lists of them. What is unknown (null) is none."""
    if isinstance(value, dict) and depth < DEEPEST:
        for number, (key, inner) in enumerate(value.items()):
            if number >= MOST:
                return
            yield from flat(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif prefix and (
        isinstance(value, _PLAIN) or isinstance(value, list | tuple) and all(isinstance(v, _PLAIN) for v in value)
    ):
        yield prefix, value


def _text(value: Any) -> str:
    """A value as one would write it; numbers are equal whatever their type (`1`, `1.0`, `1e0`)."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip()
    try:
        if isinstance(value, int | float):
            return f"{value:.12g}"
        return f"{float(text):.12g}" if len(text) <= 30 else text[:LONGEST]
    except (ValueError, OverflowError):  # a word; an integer of hundreds of digits
        lower = text.lower()
        return lower if lower in ("true", "false", "none") else text[:LONGEST]


def _plain(key: str) -> str:
    return re.sub(r"[\s.\-]+", "_", key.lower())


def _relevance(key: str) -> tuple[int, str | None, tuple[str, ...]]:
    table, _ = _table()
    for place, (pattern, why, types) in enumerate(table):
        if pattern.search(key):
            return place, why, types
    return len(table), None, ()


def _ignored() -> re.Pattern[str]:
    return _table()[1]


@cache
def _table() -> tuple[tuple[tuple[re.Pattern[str], str, tuple[str, ...]], ...], re.Pattern[str]]:
    data = tomllib.loads(files("faultproxy.analyzer.against").joinpath("relevance.toml").read_text(encoding="utf-8"))
    settings = tuple((re.compile(s["key"]), s["why"], tuple(s["types"])) for s in data["setting"])
    return settings, re.compile(data["ignored"])
