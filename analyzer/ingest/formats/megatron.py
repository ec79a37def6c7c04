"""The `iteration N/M | key: value | ...` line: Megatron-LM, Megatron-DeepSpeed, MindSpeed-LLM and -RL.

What is not printed matters as much as what is. A loss that is NaN fails the writer's guard (`>= 0.0`, or `> 0.0` in
MindSpeed and older Megatron) and its field is missing: the cell is `absent`, which the rules weigh with the gradient
norm and the skipped steps of the same row. A window whose every step was skipped prints the loss as 0, whatever it
was: `masked` where the count of NaN iterations says that it was bad (or is not printed), else `absent`.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import MAX_KEY, NUMBER, masked_norm, number
from faultproxy.analyzer.trace import ABSENT, MASKED, Cell
from faultproxy.analyzer.vocabulary import resolve

_HEAD = re.compile(r"iteration:?\s+(?P<step>\d{1,15})\s*/\s*(?P<total>\d{1,15})\s*\|(?P<rest>.*)")
_VALID = re.compile(r"valid(?:ation)?\S{0,40} loss at (?:iteration )?(?P<step>\d{1,15})?[^|]{0,200}\|(?P<rest>.*)")
_VALUE = re.compile(rf"(?P<key>[^|:]{{1,100}}?) (?:loss )?value:\s+(?P<value>{NUMBER})")
_LOSSES = {"loss", "policy_loss"}


def _fields(rest: str, log: Log) -> dict[str, Cell]:
    cells = {}
    for part in rest.split("|"):
        key, colon, token = part.rpartition(":")
        if not colon or len(key) > MAX_KEY:
            continue
        cell = number(token)
        if cell:
            cells[key.strip()] = cell
        else:
            log.source.unparsed += 1
    return cells


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if not head:
        return _validation(line, log)
    cells = _fields(head["rest"], log)
    if not cells:
        return False
    log.fact("framework", "megatron")
    log.fact("total_steps", int(head["total"]))
    losses: set[str] = log.memory.setdefault("megatron_losses", set())
    losses.update(key for key in cells if resolve(key).key.signal in _LOSSES)
    counts = {resolve(k).key.signal: c.value or 0.0 for k, c in cells.items()}
    skipped, nans = counts.get("skipped_steps", 0.0), counts.get("nan_steps", 1.0)
    for key in losses or ({"lm loss"} if "grad norm" in cells or "loss scale" in cells else ()):
        cell = cells.get(key)
        if cell is None:
            cells[key] = Cell(None, ABSENT)
        elif cell.value == 0.0 and skipped > 0:
            cells[key] = Cell(None, MASKED if nans > 0 else ABSENT, "0.0")
    for key in cells:
        if resolve(key).key.signal == "grad_norm":
            cells[key] = masked_norm(cells[key])
    log.row(int(head["step"]), cells.items(), "megatron-text")
    return True


def _validation(line: str, log: Log) -> bool:
    found = _VALID.search(line)
    if not found:
        return False
    cells = []
    for part in found["rest"].split("|"):
        value = _VALUE.search(part)
        cell = number(value["value"]) if value else None
        if value and cell:
            cells.append((value["key"].strip() + (" loss" if not value["key"].strip().endswith("loss") else ""), cell))
    if not cells or (found["step"] is None and log.step is None):
        return False
    log.row(int(found["step"]) if found["step"] else log.step, cells, "megatron-text", axis="eval")
    return True


LINE = LineFormat("megatron-text", ("iteration", "loss at"), _parse, order=20)
