"""Reads command lines, as typed in a launch script or echoed in a log, into leaves; nothing is run or expanded.

A script's own plain assignments (`LR=1e-6`, `export TP=8`) stand in for `$LR`; what stays a variable is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from faultproxy.analyzer.ingest.facts.found import Leaf, scalar
from faultproxy.analyzer.ingest.facts.marks import LAUNCHERS
from faultproxy.analyzer.lazy import lazy

#: Longer commands and values are cut; real ones have some kilobytes.
MAX_COMMAND, _MAX_VALUE = 64 << 10, 8 << 10
_MAX_LINES = 20_000
#: Variables that one line may hold, and all text that they may expand to: `A=$A$A` doubles with every line.
_MAX_VARIABLES, _MAX_EXPANDED = 200, 4 << 20
_START = lazy(
    r"(?<![\w./~-])(?:[\w./~-]{0,200}/)?(?:torchrun|accelerate launch|deepspeed|llamafactory-cli train|(?:megatron )?swift \w+|megatron \w+|trl \w+|python[\d.]*)(?=\s)"
)
_TOKEN = lazy(r"""(?:[^\s"'\\]++|\\.|"(?:[^"\\]|\\.)*+"?|'[^']*+'?|\\)++""", re.DOTALL)
_OVERRIDE = lazy(r"\+{0,2}([A-Za-z_][\w/]*(?:\.[\w/]+)+|algorithm|trainer)=(.*)", re.DOTALL)
_ASSIGN = lazy(r"(?:export\s+)?([A-Za-z_]\w{0,100})=(.*)", re.DOTALL)
_VARIABLE = lazy(r"\$(?:\{([A-Za-z_]\w{0,100})(?::?[-=]([^{}$]{0,200}))?\}|([A-Za-z_]\w{0,100}))")
#: `$((1024 * 8))`: products and sums of plain numbers are worked out, nothing else is.
_SUM = lazy(r"\$\(\(([\d\s*+]{1,60})\)\)")
_ARRAY = lazy(r"\s*(?:export\s+)?([A-Za-z_]\w{0,100})=\(\s*$|\s*([A-Za-z_]\w{0,100})=\((.*)\)\s*$")


class Command(NamedTuple):
    """A command taken apart: settings by name, environment it was given, and the words that are neither."""

    settings: dict[str, Leaf]
    environment: dict[str, Leaf]
    words: list[str]


def command(text: str, line: int) -> Command | None:
    """One command line, or None when it starts no training or sets nothing."""
    start = _START.search(text[:MAX_COMMAND])
    if start is None:
        return None
    tokens = [_unquoted(token[0]) for token in _TOKEN.finditer(text[:MAX_COMMAND], start.start())]
    settings: dict[str, Leaf] = {}
    words: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        override = _OVERRIDE.fullmatch(token)
        if token.startswith("--") and len(token) > 2:
            name, equals, value = token[2:].partition("=")
            if not equals and at < len(tokens) and not _flag(tokens[at]):
                value, at = tokens[at], at + 1
                equals = "="
            settings.setdefault(name.replace("-", "_"), (scalar(value) if equals else True, line))
        elif override:
            settings[override[1]] = (scalar(override[2]), line)
        elif token == "-m":
            continue
        else:
            words.append(token)
    if len(settings) < 2:
        return None
    before = {
        m[1]: (scalar(m[2]), line) for t in _TOKEN.finditer(text, 0, start.start()) if (m := _ASSIGN.fullmatch(t[0]))
    }
    return Command(settings, before, words)


def _flag(token: str) -> bool:
    return token.startswith("-") and not re.match(r"-\.?\d", token) or bool(_OVERRIDE.fullmatch(token))


def _unquoted(token: str) -> str:
    if "'" in token or '"' in token:
        token = re.sub(r"""(?<!\\)["']""", "", token)
    return token.replace("\\\n", "")


def script(text: str) -> tuple[list[tuple[Command, int]], dict[str, Leaf]]:
    """The training commands of a shell script, and the variables it sets."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    found: list[tuple[Command, int]] = []
    spent = 0
    for number, logical in _logical(text):
        logical = _expanded(logical, values)
        if (spent := spent + len(logical)) > _MAX_EXPANDED:
            break
        array = _ARRAY.fullmatch(logical)
        assign = None if array else _ASSIGN.fullmatch(logical.strip())
        if array and array[3] is not None:
            values[array[2]] = array[3][:_MAX_VALUE]
        elif assign and not re.search(r"\s", _unquoted_gaps(assign[2])):
            values[assign[1]], lines[assign[1]] = _unquoted(assign[2])[:_MAX_VALUE], number
        elif any(word in logical for word in LAUNCHERS) and (read := command(logical, number)):
            found.append((read, number))
    return found, {name: (scalar(values[name]), line) for name, line in lines.items()}


def _unquoted_gaps(value: str) -> str:
    """The value with its quoted parts left out: a gap that remains makes the line a command with an environment."""
    return re.sub(r"""(['"])(?:(?!\1).)*+\1""", "", value, flags=re.DOTALL).strip()


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def known(variable: re.Match[str]) -> str:
        name = variable[1] or variable[3]
        return values.get(name, variable[2] if variable[2] is not None else variable[0])

    text = re.sub(r"""["']?\$\{([A-Za-z_]\w{0,100})\[[@*]\]\}["']?""", r"${\1}", text[:MAX_COMMAND])
    return _SUM.sub(_worked_out, _VARIABLE.sub(known, text, count=_MAX_VARIABLES)[:MAX_COMMAND])


def _worked_out(found: re.Match[str]) -> str:
    terms = [[factor.strip() for factor in term.split("*")] for term in found[1].split("+")]
    if not all(re.fullmatch(r"\d{1,9}", factor) for term in terms for factor in term):
        return found[0]
    return str(sum(prod(map(int, term)) for term in terms))


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines joined where a backslash or an open array goes on; comments between them are left out."""
    held: list[str] = []
    first = depth = 0
    for number, line in enumerate(text.split("\n")[:_MAX_LINES], 1):
        line = line.rstrip()
        if line.lstrip().startswith("#"):
            continue
        if not held:
            first, depth = number, 0
        if depth or not held and (opened := _ARRAY.fullmatch(line)) and opened[1]:
            depth += line.count("(") - line.count(")")
        held.append(line.removesuffix("\\"))
        if depth <= 0 and not line.endswith("\\"):
            yield first, " ".join(held)
            held = []
    if held:
        yield first, " ".join(held)
