"""fp16 overflow lines of DeepSpeed (new and old), Apex, and fairseq, and DeepSpeed's own step line.

    [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32
    ... Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1
    ... [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]
    Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0          (Apex)
    | WARNING: overflow detected, setting loss scale to: 0.0625                              (fairseq)

Each becomes an `overflow` event whose value is the scale after it (null for bf16, where nothing is scaled).
A handful at the start is the normal search of the dynamic scale; the rules decide, not this reader. In DeepSpeed-Chat
the step lines come from two engines with counters of their own: of those only the learning rate is taken, into the row
that is being read.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_OVERFLOW = lazy(
    r"OVERFLOW!|dynamic loss scale overflow|[Gg]rad(?:ient)? overflow|[Oo]verflow detected|overflow, still update"
    r"|[Ll]oss scaler reducing loss scale|Reducing dynamic loss scale"
)
_SCALE = lazy(
    rf"(?:reducing (?:loss scale )?to|setting loss scale to:?|dynamic loss scale from \S+ to|loss scale adjust to)\s*(?P<to>{NUMBER})"
)
_ATTEMPTED = lazy(rf"Attempted loss scale: (?P<from>{NUMBER})")
_FLOOR = lazy(r"loss scale already at minimum|[Mm]inimum loss scale reached")
#: Lines within which equal values are one overflow.
_SAME = 3
_STEP = lazy(r"(?:^|\s|\])step=(?P<step>\d{1,15}), skipped=(?P<skipped>\d{1,15}), lr=\[(?P<lr>[^\],]+)")


def _parse(line: str, log: Log) -> bool:
    if _FLOOR.search(line):
        log.event("loss_scale_floor", line.strip())
        return True
    if _OVERFLOW.search(line):
        scale = _SCALE.search(line) or _ATTEMPTED.search(line)
        cell = number(scale.group(1)) if scale else None
        value = cell.value if cell else None
        near, last = log.memory.get("overflow", (-9, None))
        log.memory["overflow"] = (log.line, value)
        if log.line - near <= _SAME and value == last and "Attempted" not in line and "Gradient" not in line:
            return True  # some versions say one overflow in two or three lines
        log.fact("loss_scaling", "dynamic" if cell else None)
        log.event("overflow", line.strip(), value)
        log.formats.setdefault("overflow-text", 0)
        return True
    found = _STEP.search(line)
    if not found:
        return False
    cells = [("skipped", Cell(float(found["skipped"])))]
    lr = number(found["lr"])
    if lr:
        cells.append(("lr", lr))
    if "dschat" in log.memory:
        if lr and log.step is not None and log.memory.get("dschat_lr") != log.step:
            log.memory["dschat_lr"] = log.step  # the actor's engine speaks first, then the critic's
            log.row(log.step, [("lr", lr)], "deepspeed-text")
        return True
    log.row(int(found["step"]), cells, "deepspeed-text")
    return True


LINE = LineFormat("deepspeed-text", ("verflow", "OVERFLOW", "loss scale", "skipped="), _parse, order=15)
