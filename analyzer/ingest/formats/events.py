"""What a process says when it dies, stalls, or skips: tracebacks, watchdogs, out of memory, hardware, launchers.

What is looked for are the rows of `ingest/markers`; this reader finds the row that names a line, the error code in it,
or the exception it is, and fills the event's rank, step, and value from the line where the row says how.

A ticket cuts tracebacks: one whose head is missing is known by its frames, and one in which the log ends is an exception
whose name nobody can read.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.markers import ASIDES, EXACT, HINTS, LAST, WORDS, Marker, cann
from faultproxy.analyzer.lazy import lazy

_EXCEPTION = lazy(
    r"^(?:E\s+)?(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Killed|OutOfMemory)|Exception))(?:\([\w.]+\))?(?::\s*(?P<message>.*))?$"
)
_FRAME = lazy(r"\s{1,8}File \"[^\"\n]{1,400}(?:\", line \d|$)")
_NOISE = lazy(r"\bignored\b|\bWARN|Retry|retrying|\bcaught\b", re.IGNORECASE)
#: Who speaks, where the row does not say: `[PG 3 Rank 4]`, torch_npu's `RankID:4` (-1: not known).
_RANK = lazy(r"\bRank (\d{1,6})\]|\bRankID:(\d{1,6})\b")
#: A line of this many values is a row, whatever stands in it: its reader and the rules judge the number that is not finite.
_VALUES, _ROW = lazy(r"\w\s?[=:]\s{0,8}[-+]?(?:\d|nan\b|inf\b)", re.IGNORECASE), 3
_SAID = ("nonfinite_text", "nonfinite_gradient_text")
#: Kinds that an exception's own line may also hold without being one.
_BESIDE = ("resumed", "completed")
#: Lines behind a traceback's head within which a bare exception name belongs to it.
_REACH = 200
#: Lines behind the last frame at which the log may end within its traceback: the frame's code, and the marks below it.
_CODE = 3
#: Longer lines are no exception's (the message is quoted, and a pathological one would cost time).
_LONGEST = 4000


def _parse(line: str, log: Log) -> bool:
    if line.startswith("Traceback (most recent call last)"):
        log.memory["traceback"] = log.memory["frame"] = log.line
        return True
    if 'File "' in line and _FRAME.match(line):
        log.memory.setdefault("traceback", log.line)
        log.memory["frame"] = log.line
        return True
    raised = _EXCEPTION.match(line) if len(line) < _LONGEST and not line[:1].isspace() else None
    for row in ASIDES:
        if row.hint in line:
            _try(row, line, log)
    for row in EXACT:
        if row.hint in line and _try(row, line, log):
            return True
    code = cann.find(line) if any(hint in line for hint in cann.HINTS) else None
    if code and code[1].why != cann.FRAME:
        return _code(*code, line, log)
    for row in WORDS:
        if row.hint in line and _try(row, line, log) and not (raised and row.kind in _BESIDE):
            return True
    if code:
        return _code(*code, line, log)
    for row in LAST:
        if row.hint in line and _try(row, line, log):
            return True
    behind = log.line - log.memory.get("traceback", -_REACH) < _REACH
    if raised and (behind or raised["message"]) and not _NOISE.search(line[:60]):
        log.event("exception", line.strip())
        return True
    return False


def _finish(log: Log) -> None:
    """Say that the log ends within a traceback."""
    frame = log.memory.pop("frame", None)
    if frame is not None and log.line - frame <= _CODE and not any(event.line > frame for event in log.events[-_CODE:]):
        log.event("exception", "Traceback (most recent call last): no exception is named before the log ends")


def _try(row: Marker, line: str, log: Log) -> bool:
    found = row.pattern.search(line)
    if found is None or (row.kind in _SAID and len(_VALUES.findall(line[:_LONGEST])) >= _ROW):
        return False
    named = found.groupdict()
    _speaker(named.get("rank"), line, log)
    step, value = named.get("step"), named.get("value")
    log.event(row.kind, line.strip(), float(value) if value else row.value, int(step) if step else None)
    return True


def _code(name: str, code: cann.Code, line: str, log: Log) -> bool:
    _speaker(None, line, log)
    log.event(code.kind, f"{name} ({code.meaning}): {line.strip()}")
    return True


def _speaker(rank: str | None, line: str, log: Log) -> None:
    """Set the line's rank to what the line itself says (the text reader resets it with every line)."""
    if rank is None and (found := _RANK.search(line[:_LONGEST])):
        rank = found[1] or found[2]
    if rank is not None:
        log.rank = int(rank)


LINE = LineFormat("process-events", (*HINTS, "Traceback", 'File "', "Error", "Exception", "Exit", "Interrupt"), _parse, order=80, finish=_finish)  # fmt: skip
