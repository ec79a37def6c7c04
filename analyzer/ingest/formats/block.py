"""One record over several lines, a pair a line: printed dicts, verl lines broken at ` - `, and metric blocks.

Metric blocks are those of Hugging Face, NeMo-RL, OLMo-core, and Composer.

    {                                  step:1                        ***** eval metrics *****
        'train/step': 0,                - actor/entropy:0.36           epoch     =    5.0
        'train/loss': 9.5e-07,          - actor/pg_loss:0.05           eval_loss =    nan
    }

Tickets quote logs this way, often without the first or the last line. Two neighbouring lines of one shape make a
record; the next line of another shape (or the end of the file) closes it.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.formats.dictline import ANCHORS, add, step_from
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

_SHAPES = (
    re.compile(r"""^\s*(['"])(?P<key>[^'"]{1,200})\1\s*:\s*(['"]?)(?P<token>[^'",{}\[\]]{1,80})\3\s*,?\s*\}?,?\s*$"""),
    re.compile(r"^\s*(?:- )?(?P<key>[A-Za-z_][\w.@-]{0,80}/[\w./@-]{1,200}):\s?(?P<token>\S{1,80})\s*(?:#.*)?$"),
    re.compile(r"^\s*(?P<key>[A-Za-z]\w{1,80})\s+=\s+(?P<token>\S{1,80})\s*$"),
    re.compile(r"^\s*\u2022 (?P<key>[A-Z][\w ]{1,60}): (?P<token>[\w.+-]{1,40})\s*$"),
    re.compile(r"^\s+(?P<key>[A-Za-z][\w/ ().-]{1,80})=(?P<token>\S{1,40})\s*$"),
    re.compile(r"^\s*(?:Train|Eval) (?P<key>[A-Za-z]\S{1,80}): (?P<token>\S{1,40})\s*$"),
)
_STEP_ALONE = re.compile(
    r"(?:^|\s)(?:step:(?P<verl>\d{1,15})|Step (?P<nemo>\d{1,15})/\d+.*|\[(?:step|batch)=(?P<olmo>[\d,]{1,18})/.*)\s*$"
)
_NAMES = ("multi-line-dict", "verl-console", "metrics-block", "nemo-rl-console", "olmo-console", "composer-console")


def _parse(line: str, log: Log) -> bool:
    alone = _STEP_ALONE.search(line)
    if alone:
        _finish(log)
        log.memory["block_step"] = int((alone["verl"] or alone["nemo"] or alone["olmo"]).replace(",", "") or 0)
        return False
    for shape, pattern in enumerate(_SHAPES):
        found = pattern.match(line)
        if not found:
            continue
        held = log.memory.get("block")
        if held is not None and (held[0] != shape or held[3] != log.line - 1):
            _finish(log)
            held = None
        if held is None:
            held = log.memory["block"] = [shape, log.line, {}, log.line]
        held[3] = log.line
        cell = number(found["token"])
        if cell:
            held[2][found["key"]] = cell
        return bool(cell)
    if "block" in log.memory:
        _finish(log)
    return False


def _finish(log: Log) -> None:
    """Close the record that is open, if any."""
    held = log.memory.pop("block", None)
    step = log.memory.pop("block_step", None)
    if held is None or len(held[2]) < 2:
        return
    shape, first, cells, _ = held
    if not any(resolve(key).key.signal in ANCHORS for key in cells):
        return  # configs are printed this way too
    line, log.line = log.line, first
    _record(cells, step, shape, log)
    log.line = line


def _record(cells: dict[str, Cell], step: int | None, shape: int, log: Log) -> None:
    summary = [key for key in cells if key.startswith("train_")]
    if shape == 2 and summary:  # means over the whole run, not a step
        log.event("completed", "the trainer printed its run summary")
        return
    own = step_from(cells)
    if cells:
        add(cells, step if step is not None else own, log, _NAMES[shape])


LINE = LineFormat(
    "multi-line-record", ("'", '"', "/", "=", "step:", "Step ", "\u2022", ": "), _parse, order=40, finish=_finish
)
