"""Metric tables in Markdown: a header, a rule, and rows with `|`, anywhere in a text (a report, a ticket, a notebook).

    | Step | Training Loss | Validation Loss |
    |-----:|--------------:|:---------------:|
    |  500 |        2.3110 | No log          |

A table counts when its header names a step or a known signal beside numbers; tables that compare runs or settings do
not. A table whose steps start again is another segment, as everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from faultproxy.analyzer.ingest.formats.dictline import add, step_from
from faultproxy.analyzer.ingest.formats.table import STEP, split
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import MAX_KEY, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import NONFINITE, Cell
from faultproxy.analyzer.vocabulary import resolve

_RULE = lazy(r"^\s{0,8}\|?(?:\s{0,40}:?-{2,200}:?\s{0,40}\|){1,500}(?:\s{0,40}:?-{2,200}:?\s{0,40})?$")
#: A wider table is no metric table a person reads.
MAX_COLUMNS = 500
_LONGEST = 100_000
_KEY = "markdown"


class _Line(NamedTuple):
    """The last line with a `|`: the columns of the table it belongs to, or its text where it may be a header."""

    number: int
    names: list[str] | None
    text: str


def _parse(line: str, log: Log) -> bool:
    """Own the rule and the rows; the line above the rule is looked at when the rule comes."""
    if len(line) > _LONGEST or line.count("|") > MAX_COLUMNS:
        log.memory.pop(_KEY, None)
        return False
    above: _Line | None = log.memory.get(_KEY)
    log.memory[_KEY] = _Line(log.line, None, line)
    if above is None or above.number != log.line - 1:
        return False
    if above.names is not None:
        log.memory[_KEY] = _Line(log.line, above.names, "")
        return _row(line, above.names, log)
    if _RULE.match(line) and (names := _header(above.text)):
        log.memory[_KEY] = _Line(log.line, names, "")
        return True
    return False


def _header(line: str) -> list[str] | None:
    names = split(line, "|")
    if len(names) < 2 or any(len(name) > MAX_KEY for name in names) or any(number(name) for name in names if name):
        return None
    stepped = any(name.lower() in STEP for name in names)
    signals = [name for name in names if name and resolve(name).known and resolve(name).key.signal != "epoch"]
    return names if signals and (stepped or names[0].lower() == "epoch") else None


def _row(line: str, names: list[str], log: Log) -> bool:
    cells: dict[str, Cell] = {}
    step = None
    for name, token in zip(names, split(line, "|"), strict=False):
        cell = number(token) if name else None
        if cell is None or cell.state == NONFINITE:
            continue
        if name.lower() in STEP and cell.value is not None and cell.value == int(cell.value):
            step = int(cell.value)
        else:
            cells[name] = cell
    if not cells:
        log.source.unparsed += 1
        return True
    return add(cells, step if step is not None else step_from(cells), log, "markdown-table")


LINE = LineFormat("markdown-table", ("|",), _parse, order=60)
