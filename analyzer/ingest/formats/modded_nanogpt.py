"""modded-nanogpt's speed-run lines, which parameter-golf and others print too; most log the validation loss only.

    step:100/1390 train_loss:4.1234 train_time:14230ms step_avg:142.30ms
    step:125/1390 val_loss:4.0213 train_time:17790ms step_avg:142.32ms

`step_avg` is milliseconds, taken from train lines; before anything is timed it prints as `nanms`, which is no failure and is left out, as is the
clock `train_time`.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import FINITE, Cell

_HEAD = lazy(r"(?:^|\s)step:(?P<step>\d{1,15})/(?P<total>\d{1,15}) (?P<rest>.{1,2000})")
_FIELD = lazy(r"(?P<key>[A-Za-z][\w/]{0,60}):(?P<token>[^\s:]{1,40})(?=\s|$)")


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if head is None:
        return False
    cells: dict[str, Cell] = {}
    for found in _FIELD.finditer(head["rest"]):
        cell = number(found["token"].removesuffix("ms"))
        if cell and found["key"] != "train_time" and (found["key"] != "step_avg" or cell.state == FINITE):
            cells[found["key"]] = cell
    if not cells.keys() & {"train_loss", "val_loss"}:
        return False
    if "train_loss" not in cells and log.memory.get("modded_trains"):
        cells.pop("step_avg", None)  # the train line of this step has it
    log.memory["modded_trains"] = log.memory.get("modded_trains") or "train_loss" in cells
    log.fact("framework", "modded-nanogpt")
    log.fact("total_steps", int(head["total"]))
    log.row(int(head["step"]), cells.items(), LINE.name)
    return True


LINE = LineFormat("modded-nanogpt-console", ("train_time:", "step_avg:"), _parse, order=11)
