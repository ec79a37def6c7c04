"""MindSpeed-RL's metric line (Megatron's shape, verl's names, four fixed decimals).

    [2026-08-01 10:00:00] iteration: 5 / 1000 | actor/pg_loss : 0.0123 | actor/lr : 1.000000e-06 | grad_norm : nan |

Nothing is left out: a number that is not finite prints as `nan` or `inf`. A zero of `%.4f` is `quantised`. A line that
was broken at a ` | ` on its way into a ticket goes on with the next one.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.formats.megatron import fields
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.vocabulary import resolve

_HEAD = lazy(r"iteration:\s{0,9}(?P<step>\d{1,15})\s{0,9}/\s{0,9}(?P<total>\d{1,15})\s{0,9}\|(?P<rest>.*)")


def _parse(line: str, log: Log) -> bool:
    head = _HEAD.search(line)
    if head is None:
        if log.memory.get("mindspeed_rl") != log.line - 1 or "|" not in line:
            return False
        cells = fields(line, log)
        if not any(resolve(key).known for key in cells):
            return False
        log.memory["mindspeed_rl"] = log.line
        log.row(log.step, cells.items(), LINE.name)
        return True
    if " : " not in head["rest"]:
        return False  # Megatron's own lines have no space before the colon
    cells = fields(head["rest"], log)
    if not cells:
        return False
    log.fact("framework", "mindspeed-rl")
    log.fact("total_steps", int(head["total"]))
    log.memory["mindspeed_rl"] = log.line
    log.row(int(head["step"]), cells.items(), LINE.name)
    return True


LINE = LineFormat("mindspeed-rl-console", ("iteration:", " : "), _parse, order=18)
