"""OLMo and OLMo-core: a progress line, then one indented `name=value` a line (ConsoleLoggerCallback).

    2025-01-01 00:00:00.123  INFO  [step=10/1000,epoch=1,eta=1:02:03]
        train/CE loss=7.123
        train/block 3/load imbalance=1.421
        optim/total grad norm=0.8123

    2025-01-01 00:09:00.000  INFO  Finished LM evals in 31.2 seconds. Metrics:
        c4_en-validation/CE loss=3.213

`load imbalance` is the largest expert's load over the mean load, so 1 is balanced: it is the violation plus one
(olmo_core/nn/moe/router.py), and is read as that. Numbers above 1,000 carry separators and no decimals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import FINITE, Cell

_HEAD = lazy(r"\[step=(?P<step>\d[\d,]{0,18})/(?P<total>[\d,?]{1,19}),epoch=")
_PAIR = lazy(r"\s{0,60}(?P<key>[A-Za-z][\w/ ().@:-]{1,120})=(?P<token>\S{1,40})\s*$")
_EVALS = lazy(r"Finished .{1,120} evals? in ")
_IMBALANCE = lazy(r"train/block (?P<layer>\d{1,6})/load imbalance$")
#: Lines of other ranks that may stand between two pairs.
_GAP = 50


@dataclass(slots=True)
class _Open:
    """The record being read: its step and axis, its first and last line, its rank, and its cells."""

    step: int
    axis: str | None
    first: int
    last: int
    rank: int | None
    cells: dict[str, Cell] = field(default_factory=dict)


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line) if "[step=" in line else None
    held: _Open | None = log.memory.get("olmo")
    if head:
        _finish(log)
        log.memory["olmo"] = _Open(int(head["step"].replace(",", "")), None, log.line, log.line, log.rank)
        if head["total"].replace(",", "").isdigit():
            log.memory["olmo_total"] = int(head["total"].replace(",", ""))
        return True
    ours = held is not None and log.rank == held.rank and log.line - held.last <= _GAP
    pair = _PAIR.match(line) if ours else None
    if held is None or pair is None:
        # A crash must find the row of its step: what is no pair ends the record, unless another rank cuts in.
        _finish(log)
        if held is not None and log.rank != held.rank:
            log.memory["olmo"] = _Open(held.step, held.axis, held.first, held.last, held.rank)
        if log.facts.get("framework") == "olmo-core" and log.step is not None and _EVALS.search(line):
            log.memory["olmo"] = _Open(log.step, "eval", log.line, log.line, log.rank)
            return True
        return False
    held.last = log.line
    key, cell = pair["key"], number(pair["token"])
    block = _IMBALANCE.match(key)
    if block and cell and cell.value is not None:
        key, cell = f"moe/max_vio/layer_{block['layer']}", Cell(cell.value - 1.0, FINITE, pair["token"])
    if cell:
        held.cells[key] = cell
    return True


def _finish(log: Log) -> None:
    """Close the record that is open; a progress line alone is no row."""
    held: _Open | None = log.memory.pop("olmo", None)
    if held is None or not held.cells:
        return
    log.fact("framework", "olmo-core")
    log.fact("total_steps", log.memory.get("olmo_total"))
    with log.placed(held.first, held.rank):
        log.row(held.step, held.cells.items(), LINE.name, axis=held.axis)


LINE = LineFormat("olmo-console", ("=", ":"), _parse, order=34, finish=_finish)
