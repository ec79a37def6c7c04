"""verl console line: `step:83 - actor/pg_loss:0.0123 - actor/grad_norm:np.float64(nan) - ...`.

Releases before 2025-07-04 print three decimals, so `0.000` is `quantised` (the shared tokenizer sees to that).
A non-finite gradient norm makes verl's engines skip the update and print only `WARN: grad_norm is not finite: ...`.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy

_STEP = lazy(r"(?:^|\s)step:(\d{1,15})(?= - | *$)")


def _parse(line: str, log: Log) -> bool:
    found = _STEP.search(line)
    if not found:
        return False
    cells = []
    for part in line[found.end() :].split(" - "):
        key, colon, token = part.rpartition(":")
        if colon and (cell := number(token)):
            cells.append((key.strip(), cell))
        elif colon:
            log.source.unparsed += 1
    if not cells:
        return False
    log.fact("framework", "verl")
    log.row(int(found[1]), cells, "verl-console")
    return True


LINE = LineFormat("verl-console", ("step:",), _parse, order=10)
