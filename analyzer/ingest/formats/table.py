"""Tables: CSV, TSV, semicolon, aligned columns, and Markdown or notebook tables with `|`; wide (a column a metric) or long (step, name, value).

The header must have at least two columns, one of them a known signal or a step, and the rows numbers. A `run` column
makes each run a segment of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

from faultproxy.analyzer.errors import UnreadableError
from faultproxy.analyzer.ingest.formats.dictline import add, step_from
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import NONFINITE, Cell
from faultproxy.analyzer.vocabulary import resolve

STEP = {
    "step",
    "steps",
    "global_step",
    "global step",
    "iteration",
    "iter",
    "_step",
    "current_steps",
    "train_step",
    "update",
}
_RULE = lazy(r"^[\s|:+\-=]+$")
#: Aligned columns, as notebooks print them.
_SPACES = "  "
_WIDE = lazy(r"\s{2,}")
#: Markdown: `**nan**`.
_EMPHASIS = lazy(r"[*_`]{1,3}([^*_`]{1,200})[*_`]{1,3}$")
_LONG = ({"metric", "key", "name", "tag", "signal"}, {"value"})


def _delimiter(line: str) -> str | None:
    best = max(",\t;|", key=line.count)
    if line.count(best) >= 1:
        return best
    return _SPACES if _WIDE.search(line.strip()) else None


def _header(text: str) -> tuple[str, list[str]] | None:
    lines = [line for line in text.split("\n")[:40] if line.strip() and not _RULE.match(line)]
    if len(lines) < 2 or (delimiter := _delimiter(lines[0])) is None:
        return None
    names, first = split(lines[0], delimiter), split(lines[1], delimiter)
    if len(names) < 2 or abs(len(names) - len(first)) > 1 or any(len(name) > 200 for name in names):
        return None
    if any(number(name) for name in names if name) or len({n for n in names if n}) < 2:
        return None
    low = {name.lower() for name in names}
    known = any(resolve(name).known for name in names) or low & STEP or (low & _LONG[0] and low & _LONG[1])
    if not known or not any(number(cell) for cell in first):
        return None
    return delimiter, names


def split(line: str, delimiter: str) -> list[str]:
    """The cells of one line, stripped; none where the line cannot be taken apart."""
    if delimiter == _SPACES:
        return _WIDE.split(line.strip())
    if delimiter == "|":
        return [_plain(cell.strip()) for cell in line.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:  # a carriage return in the middle, a field of more than 128 KiB
        return []


def _plain(token: str) -> str:
    found = _EMPHASIS.match(token)
    return found[1].strip() if found else token


def _sniff(head: bytes, file: File) -> bool:
    if head[:1] in b"{[":
        return False
    return _header(head.decode("utf-8", errors="replace")) is not None


def _rows(file: File, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for count, line in enumerate(file.lines(), 1):
        if line.strip() and not _RULE.match(line):
            yield count, split(line, delimiter)


def _read(file: File, log: Log) -> None:
    found = _header(file.head().decode("utf-8", errors="replace"))
    if found is None:
        raise UnreadableError(f"{file.path}: the table's header changed while it was read")
    delimiter, names = found
    low = [name.lower() for name in names]
    run_column = next((i for i, name in enumerate(low) if name in ("run", "run_id", "run_name", "run name")), None)
    step_column = next((i for i, name in enumerate(low) if name in STEP), None)
    name_column = next((i for i, name in enumerate(low) if name in _LONG[0]), None)
    value_column = next((i for i, name in enumerate(low) if name in _LONG[1]), None)
    long = name_column is not None and value_column is not None
    run = None
    for count, row in _rows(file, delimiter):
        log.line = count
        if row == names or len(row) < min(2, len(names)):
            continue
        if len(row) > len(names):
            log.source.unparsed += 1
        step_cell = number(row[step_column]) if step_column is not None and step_column < len(row) else None
        step = (
            int(step_cell.value)
            if step_cell and step_cell.value is not None and step_cell.value == int(step_cell.value)
            else None
        )
        if run_column is not None and run_column < len(row) and row[run_column] != run:
            if run is not None and (step is None or (log.step is not None and step > log.step)):
                log.restart()
                log.fact("segments_are_runs", True)
            run = row[run_column]
        if long:
            assert name_column is not None and value_column is not None
            cell = number(row[value_column]) if value_column < len(row) and name_column < len(row) else None
            if cell:
                log.row(step, [(row[name_column], cell)], "table")
            continue
        cells: dict[str, Cell] = {}
        for i, (name, token) in enumerate(zip(names, row, strict=False)):
            if i in (step_column, run_column) or not name:
                continue
            cell = number(token)
            if cell and not (cell.state == NONFINITE and resolve(name).key.signal not in ("loss", "grad_norm")):
                cells[name] = cell
        if not cells:
            log.source.unparsed += 1
            continue
        add(cells, step if step is not None else step_from(cells), log, "table")


FILE = FileFormat("table", _sniff, _read, order=50)
