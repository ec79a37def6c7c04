"""One record over several lines, a pair a line: printed dicts, verl lines broken at ` - `, and metric blocks.

Metric blocks are those of Hugging Face and Composer (NeMo-RL and OLMo-core have readers of their own).

    {                                  step:1                        ***** eval metrics *****
        'train/step': 0,                - actor/entropy:0.36           epoch     =    5.0
        'train/loss': 9.5e-07,          - actor/pg_loss:0.05           eval_loss =    nan
    }

Tickets quote logs this way, often without the first or the last line. Two neighbouring lines of one shape make a
record; the next line of another shape (or the end of the file) closes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from faultproxy.analyzer.ingest.formats.dictline import ANCHORS, add, step_from
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

#: Format name and shape of one line; a record is a run of lines of one shape.
_SHAPES = {
    "multi-line-dict": lazy(
        r"""^\s*(['"])(?P<key>[^'"]{1,200})\1\s*:\s*(['"]?)(?P<token>[^'",{}\[\]]{1,80})\3\s*,?\s*\}?,?\s*$"""
    ),
    "verl-console": lazy(
        r"^\s*(?:- )?(?P<key>[A-Za-z_][\w.@-]{0,80}/[\w./@-]{1,200}):\s?(?P<token>\S{1,80})\s*(?:#.*)?$"
    ),
    "metrics-block": lazy(r"^\s*(?P<key>[A-Za-z]\w{1,80})\s+=\s+(?P<token>\S{1,80})\s*$"),
    "metrics-block-tight": lazy(r"^\s+(?P<key>[A-Za-z][\w/ ().-]{1,80})=(?P<token>\S{1,40})\s*$"),
    "composer-console": lazy(r"^\s*(?:Train|Eval) (?P<key>[A-Za-z]\S{1,80}): (?P<token>\S{1,40})\s*$"),
}
#: A line that gives the step of the record below it.
_STEP_ALONE = lazy(
    r"(?:^|\s)(?:step:(?P<verl>\d{1,15})|Step (?P<count>\d{1,15})/\d+.*|\[(?:step|batch)=(?P<bracket>\d[\d,]{0,17})/.*)\s*$"
)


@dataclass(slots=True)
class _Open:
    """The record being collected: its shape, first and last line, rank, and the pairs so far."""

    shape: str
    first: int
    last: int
    rank: int | None
    cells: dict[str, Cell] = field(default_factory=dict)


def _parse(line: str, log: Log) -> bool:
    alone = _STEP_ALONE.search(line)
    if alone:
        _finish(log)
        log.memory["block_step"] = int((alone["verl"] or alone["count"] or alone["bracket"]).replace(",", ""))
        return False
    for shape, pattern in _SHAPES.items():
        found = pattern.match(line)
        if not found:
            continue
        held: _Open | None = log.memory.get("block")
        if held is not None and (held.shape != shape or held.last != log.line - 1):
            _finish(log)
            held = None
        if held is None:
            held = log.memory["block"] = _Open(shape, log.line, log.line, log.rank)
        held.last = log.line
        cell = number(found["token"])
        if cell:
            held.cells[found["key"]] = cell
        return bool(cell)
    if "block" in log.memory:
        _finish(log)
    return False


def _finish(log: Log) -> None:
    """Close the record that is open, if any; configs are printed this way too, so it must hold a metric."""
    held: _Open | None = log.memory.pop("block", None)
    step = log.memory.pop("block_step", None)
    if held is None or len(held.cells) < 2 or not any(resolve(key).key.signal in ANCHORS for key in held.cells):
        return
    if held.shape == "metrics-block" and any(key.startswith("train_") for key in held.cells):
        log.event("completed", "the trainer printed its run summary")  # means over the whole run, not a step
        return
    own = step_from(held.cells)
    if held.cells:
        with log.placed(held.first, held.rank):
            add(held.cells, own if step is None else step, log, held.shape)


LINE = LineFormat("multi-line-record", ("'", '"', "/", "=", "step:", "Step ", ": "), _parse, order=40, finish=_finish)
