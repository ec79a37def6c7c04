"""mlx-lm and its descendants (LoRA, DPO, GRPO trainers on Apple silicon).

    Iter 1: Val loss 2.858, Val took 9.123s
    Iter 10: Train loss 2.103, Learning Rate 1.000e-05, It/sec 0.512, Tokens/sec 412.3, Trained Tokens 8120, Peak mem 14.2 GB

Three fixed decimals: a loss of `0.000` is `quantised`. `It/sec` becomes the time of an iteration, `Peak mem` is decimal
gigabytes. The validation loss is taken before the iteration it is printed under, and goes to the eval axis.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_HEAD = lazy(r"(?:^|\s)Iter (?P<step>\d{1,15})(?: \([^()]{1,20}\))?: (?P<rest>(?:Train|Val) loss .{1,2000})")
_FIELD = lazy(rf"\s*(?P<key>[A-Za-z][\w/ -]{{1,60}}?) (?P<value>{NUMBER}),?(?P<unit> GB|s)?[.]?\s*$")


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if head is None:
        return False
    cells: dict[str, Cell] = {}
    for part in head["rest"].split(", "):
        field = _FIELD.match(part)
        cell = number(field["value"]) if field else None
        if field is None or cell is None or field["key"] == "Val took":
            continue
        key = field["key"]
        if key == "It/sec":
            if cell.value:
                cells["step_time"] = Cell(1.0 / cell.value, raw=field["value"])
        else:
            cells["Peak mem (GB)" if key == "Peak mem" else key] = cell
    if not cells.keys() & {"Train loss", "Val loss"}:
        return False
    log.fact("framework", "mlx-lm")
    log.row(int(head["step"]), cells.items(), LINE.name)
    return True


LINE = LineFormat("mlx-console", ("Train loss ", "Val loss "), _parse, order=44)
