"""The `iteration N/M | key: value | ...` line: Megatron-LM, Megatron-DeepSpeed, and MindSpeed-LLM.

What is not printed matters as much as what is. A loss that is NaN fails the writer's guard (`>= 0.0`, or `> 0.0` in
MindSpeed and older Megatron) and its field is missing: the cell is `absent`, which the rules weigh with the gradient
norm and the skipped steps of the same row. A window whose every step was skipped prints the loss as 0, whatever it
was: `masked` where the count of NaN iterations says that it was bad (or is not printed), else `absent`.

MindSpeed-LLM is told from Megatron by fields only it prints; the fact `loss_guard` keeps which guard the writer has,
since behind `> 0` a loss of exactly 0 is missing too. A clock with microseconds is Megatron-LM of 2024 or later.

Of its kin, Megatron-LM before 2020 (and what was forked from it then: GLM, CPM) ties names to numbers with a blank
(`| lm loss 6.758929E+00 |`), nanotron shortens large numbers (`11.5K`), and NeMo counts an epoch's iterations anew and
prints the step beside them.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import MAX_KEY, NUMBER, masked_norm, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import ABSENT, MASKED, Cell
from faultproxy.analyzer.vocabulary import resolve

_HEAD = lazy(r"iteration:?\s+(?P<step>\d{1,15})\s*/\s*(?P<total>\d{1,15})\s*\|(?P<rest>.*)")
_VALID = lazy(r"valid(?:ation)?\S{0,40} loss at (?:iteration )?(?P<step>\d{1,15})?[^|]{0,200}\|(?P<rest>.*)")
_VALUE = lazy(rf"(?P<key>[^|:]{{1,100}}?)(?: (?:loss )?value|(?<=[ _]loss)):\s+(?P<value>{NUMBER})", re.IGNORECASE)
_BLANK = lazy(rf"\s*(?P<key>[A-Za-z][A-Za-z_ ()-]{{1,60}}?)\s+(?P<value>{NUMBER})\s*$")
_SHORT = lazy(r"\s*(?P<digits>\d{1,3}(?:\.\d{1,3})?)(?P<unit>[KMGTP])\s*$")
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_LOSSES = {"loss", "policy_loss"}
#: Only MindSpeed-LLM prints these (mindspeed_llm/training/training.py).
_MINDSPEED = ("core attn ratio", "fix-router or fix-sub-seq-length", "MindSpeed")
_CLOCK = lazy(r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\]")


def fields(rest: str, log: Log) -> dict[str, Cell]:
    """The `key: value` pairs between the bars; a part that is no number is counted as unparsed."""
    cells = {}
    for part in rest.split("|"):
        key, colon, token = part.rpartition(":")
        if not colon:
            blank = _BLANK.match(part)
            key, token = (blank["key"], blank["value"]) if blank else ("", "")
        if not key or len(key) > MAX_KEY:
            continue
        cell = number(token) or _shortened(token)
        if cell:
            cells[key.strip()] = cell
        else:
            log.source.unparsed += 1
    return cells


def _shortened(token: str) -> Cell | None:
    """nanotron's `85.8G`."""
    found = _SHORT.match(token)
    return Cell(float(found["digits"]) * _UNITS[found["unit"]], raw=token.strip()) if found else None


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if not head:
        return _validation(line, log)
    rest, whole = _uncut(head["rest"].rstrip(), log)
    cells = fields(rest, log)
    if not cells:
        return False
    step, total = int(head["step"]), int(head["total"])
    ours = cells.pop("global_step", None)
    if ours is None:
        log.fact("total_steps", total)
    elif ours.value is not None and ours.value >= 0:
        step = int(ours.value)
    _writer(line, log)
    losses: set[str] = log.memory.setdefault("megatron_losses", set())
    losses.update(key for key in cells if resolve(key).key.signal in _LOSSES)
    counts = {resolve(k).key.signal: c.value or 0.0 for k, c in cells.items()}
    skipped, nans = counts.get("skipped_steps", 0.0), counts.get("nan_steps", 1.0)
    for key in losses or ({"lm loss"} if "grad norm" in cells or "loss scale" in cells else ()):
        cell = cells.get(key)
        if cell is None and whole:
            cells[key] = Cell(None, ABSENT)
        elif cell is None:
            continue
        elif cell.value == 0.0 and skipped > 0:
            cells[key] = Cell(None, MASKED if nans > 0 else ABSENT, "0.0")
    for key in cells:
        if resolve(key).key.signal == "grad_norm":
            cells[key] = masked_norm(cells[key])
    log.row(step, cells.items(), "megatron-text")
    return True


def _uncut(rest: str, log: Log) -> tuple[str, bool]:
    """The fields of a line, and whether all are there: in one that a ticket cut off nothing is missing on purpose.

    The field in which it was cut may hold half a number, so it goes.
    """
    before, _, last = rest.rpartition("|")
    held: tuple[str, bool] | None = log.memory.get("megatron_last")
    name = (before.rpartition("|")[2] if rest.endswith("|") else last).partition(":")[0].strip()
    if rest.endswith("|"):
        log.memory["megatron_last"] = (name, True)
        return rest, True
    if held is not None and held[1]:
        whole = held[0] + ":" in rest  # something else was printed behind it
    else:
        whole = (held is None or held[0] == name) and number(last.rpartition(":")[2]) is not None
        log.memory["megatron_last"] = held or (name, False)
    return (rest, True) if whole else (before, False)


def _writer(line: str, log: Log) -> None:
    """Whose line it is and which guard its loss passed; MindSpeed-LLM may say so in any line, not only the first."""
    if any(mark in line for mark in _MINDSPEED):
        log.facts["framework"], log.facts["loss_guard"] = "mindspeed-llm", ">"
    elif "|DP=" in line or "reduced_train_loss" in line:
        log.fact("framework", "nanotron" if "|DP=" in line else "nemo")
    elif log.facts.get("framework") is None:
        log.fact("framework", "megatron")
        log.fact("loss_guard", ">=" if _CLOCK.search(line) else None)


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
