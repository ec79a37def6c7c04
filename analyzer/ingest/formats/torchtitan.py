"""torchtitan's step line: colours (gone by now), thousands separators, and units of their own.

    [titan] 2025-07-08 15:15:43,543 - root - INFO - step:  2  loss: 12.0093  grad_norm:  0.5745
        memory: 65.54GiB(68.99%)  tps: 69,111  tflops: 28.68  mfu: 2.90%                         (one line)
    validate step: 10  loss:  4.5012  memory: 65.54GiB(68.99%)  tps: 69,111

Anonymous loops print `step: 2  loss: 1.2` too; only with `memory: ...GiB`, `tps:`, or the logger's name it is torchtitan.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_HEAD = lazy(
    r"(?P<eval>validat\w{1,4}:? {1,2}|evaluation: {1,2})?(?<![\w/])step:\s{0,12}(?P<step>\d[\d,]{0,18})\s{1,4}(?P<rest>\S.*)"
)
_FIELD = lazy(r"(?<![\w/])(?P<key>[A-Za-z][\w/]{0,60}):\s{0,12}(?P<token>[^\s(]{1,40})")
_OWN = ("GiB", "tps:", "[titan]")


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if head is None or "loss:" not in head["rest"] or not any(mark in line for mark in _OWN):
        return False
    cells: dict[str, Cell] = {}
    for found in _FIELD.finditer(head["rest"]):
        key, token = found["key"], found["token"]
        cell = number(token.removesuffix("GiB").removesuffix("%"))
        if cell is not None:
            cells[f"{key}(%)" if token.endswith("%") else key] = cell
    if "loss" not in cells:
        return False
    log.fact("framework", "torchtitan")
    log.row(int(head["step"].replace(",", "")), cells.items(), LINE.name, axis="eval" if head["eval"] else None)
    return True


LINE = LineFormat("torchtitan-console", ("step:",), _parse, order=12)
