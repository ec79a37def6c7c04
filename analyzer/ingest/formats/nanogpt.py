"""nanoGPT and llama2.c: a line an iteration, and the estimates of both splits every few hundred.

    iter 0: loss 4.2874, time 36580.53ms, mfu -100.00%
    0 | loss 4.2874 | lr 0.000000e+00 | 36580.53ms | mfu -100.00%
    step 0: train loss 4.2874, val loss 4.2823

`time` is milliseconds, `mfu` a percentage that is -100 for the first five iterations (nothing measured yet). The
validation loss goes to the eval axis. The train loss of a `step` line is an estimate over many batches: it is read only
where a file holds no `iter` line, whose loss is the optimiser's own.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_ITER = lazy(rf"(?:^|\s)iter (?P<step>\d{{1,15}}): loss (?P<loss>{NUMBER}),(?P<rest>.{{0,400}})")
_SPLITS = lazy(rf"(?:^|\s)step (?P<step>\d{{1,15}}): train loss (?P<train>{NUMBER}), val loss (?P<val>{NUMBER})")
_BARS = lazy(rf"^(?P<step>\d{{1,15}}) \| loss (?P<loss>{NUMBER}) \| (?P<rest>lr {NUMBER} \| {NUMBER}ms\b.{{0,200}})")
_FIELD = lazy(rf"\s*(?P<key>[a-z][a-z_ ]{{0,40}}?):?\s+(?P<value>{NUMBER})\s?(?P<unit>ms|s|%)?\s*$")


def _parse(line: str, log: Log) -> bool:
    found = _ITER.search(line) or (_BARS.match(line) if " | loss " in line else None)
    if found:
        cells = _cells(found)
        if "time(ms)" not in cells and not log.memory.get("nanogpt_iterations"):
            return False  # a descendant with fields of its own: the general reader's
        held = log.memory.pop("nanogpt_held", None)
        log.memory["nanogpt_iterations"] = True
        _splits(held, log, estimate=False)
        log.fact("framework", "nanogpt")
        log.row(int(found["step"]), cells.items(), LINE.name)
        return True
    found = _SPLITS.search(line)
    if found is None:
        return False
    if log.memory.get("nanogpt_iterations"):
        _splits((found, log.line, log.rank), log, estimate=False)
    else:  # whether `iter` lines follow decides what the train loss of this one means
        held, log.memory["nanogpt_held"] = log.memory.get("nanogpt_held"), (found, log.line, log.rank)
        _splits(held, log, estimate=True)
    return True


def _cells(found: re.Match[str]) -> dict[str, Cell]:
    cells = {}
    loss = number(found["loss"])
    if loss:
        cells["loss"] = loss
    for part in found["rest"].replace("|", ",").split(","):
        pair = _FIELD.match(
            "time " + part if found.re.pattern == _BARS.pattern and part.rstrip().endswith("ms") else part
        )
        cell = number(pair["value"]) if pair else None
        if pair is None or cell is None or (pair["unit"] == "%" and (cell.value or 0.0) < 0):
            continue
        cells[pair["key"] + (f"({pair['unit']})" if pair["unit"] else "")] = cell
    return cells


def _splits(held: tuple[re.Match[str], int, int | None] | None, log: Log, estimate: bool) -> None:
    if held is None:
        return
    found, line, rank = held
    log.fact("framework", "nanogpt")
    train, val = number(found["train"]), number(found["val"])
    with log.placed(line, rank):
        if estimate and train:
            log.row(int(found["step"]), [("train loss", train)], LINE.name)
        if val:
            log.row(int(found["step"]), [("loss", val)], LINE.name, axis="eval")


def _finish(log: Log) -> None:
    _splits(log.memory.pop("nanogpt_held", None), log, estimate=True)


LINE = LineFormat("nanogpt-console", (": loss ", ": train loss ", " | loss "), _parse, order=42, finish=_finish)
