"""Text logs: strips what launchers put before a line, keeps the clock, and offers each line to the line formats."""

from __future__ import annotations

from calendar import timegm
from collections import deque

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import plain
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Event

#: Ray actors, torchrun local ranks, srun labels: `(TaskRunner pid=1, ip=..)`, `[default7]:`, `[rank0]:`, `12: `.
_RAY = lazy(r"^\((?P<actor>[\w.<>: ]+?) pid=\d+(?:, ip=[\w.:]+)?\) ?")
_RANK = lazy(r"^\[(?:rank|default)(?P<rank>\d{1,6})\]:? ?")
_SRUN = lazy(r"^\s{0,6}(?P<rank>\d{1,5}): (?=\s*(?:\[|iteration|step|Traceback|\w+Error))")
#: pdsh, with which DeepSpeed starts its nodes: `worker-0: {'loss': ...`.
_HOST = lazy(
    r"^(?P<host>\d{1,3}(?:\.\d{1,3}){3}|(?:node|gpu|host|worker|dgx|server|nid)[\w.-]{0,30}\d): (?=\s*(?:[\[{]|iteration|samples/sec|step|Traceback|\w+Error))"
)
#: Lines of other nodes among which a line of this one is looked for.
_NODES = 64
_RAY_REPEAT = lazy(r"\s?\[repeated \d+x across cluster\].*$")
#: A progress bar, `12/100 [00:31<...`: Hugging Face prints the step nowhere else.
_BAR = lazy(r"(?<![\d.])(\d{1,12})/(\d{1,12}) \[")
_CLOCK = lazy(r"(?<!\d)(20\d\d)-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
#: A metric row's own clock is near its start; deeper text may quote any date.
_CLOCK_REACH = 120


def read_text(file: File, log: Log, formats: list[LineFormat], patience: int | None = None) -> None:
    """Offer every line to `formats` in order; the first that owns it consumes it.

    With `patience` reading stops after that many lines when none of them was a row.
    """
    log.memory["lines"] = file.lines  # a reader may look ahead
    for count, physical in enumerate(file.lines(), 1):
        if patience is not None and count > patience and not log.source.rows:
            log.source.truncated = True
            break
        log.line = count
        if "\r" in physical:
            for part in physical.split("\r"):
                if part:
                    _line(part, log, formats)
        else:
            _line(physical, log, formats)
    for format in formats:
        if format.finish:
            format.finish(log)
    _silence(log)


def _line(line: str, log: Log, formats: list[LineFormat]) -> None:
    line = plain(line)
    if ": " in line[:60] and (host := _HOST.match(line)):
        line = line[host.end() :]
        if _said_before(host["host"], line, log):
            return
    line, rank = unprefixed(line)
    log.rank = log.file_rank if rank is None else rank
    if "[" in line:
        for bar in _BAR.finditer(line):
            log.bar = (int(bar[1]), int(bar[2]))
    rows = log.source.rows
    for format in formats:
        for hint in format.hints:
            if hint in line:
                break
        else:
            continue
        if format.parse(line, log):
            break
    _tick(line, log, metric=log.source.rows > rows)


def _said_before(host: str, line: str, log: Log) -> bool:
    """Whether another node printed just this line: every node of a job prints the same metrics."""
    lines: deque[tuple[str, str]] = log.memory.setdefault("nodes", deque(maxlen=_NODES))
    if any(other == line and by != host for by, other in lines):
        return True
    lines.append((host, line))
    return False


def unprefixed(line: str) -> tuple[str, int | None]:
    """The line without what a launcher put before it, and the rank that stood there."""
    rank = None
    if line[:1] == "(" and (ray := _RAY.match(line)):
        line = line[ray.end() :]
        if "[repeated" in line:
            line = _RAY_REPEAT.sub("", line)
    if line[:1] == "[" and (local := _RANK.match(line)):
        rank = int(local["rank"])
        line = line[local.end() :]
    elif line[:1].isdigit() or line[:1] == " ":
        srun = _SRUN.match(line)
        if srun:
            rank = int(srun["rank"])
            line = line[srun.end() :]
    return line, rank


def _tick(line: str, log: Log, metric: bool) -> None:
    found = _CLOCK.search(line[:_CLOCK_REACH]) if "-" in line[:_CLOCK_REACH] else None
    if found:
        year, month, day, hour, minute, second = map(int, found.groups())
        if 1 <= month <= 12 and 1 <= day <= 31:
            log.memory["clock"] = timegm((year, month, day, hour, minute, second, 0, 0, 0))
            log.memory["clock_line"] = log.line
            if not metric and "metric_clock" not in log.memory:
                log.memory["metric_clock"] = log.memory["clock"]
    if metric:
        # Without a clock of its own the row borrows the next one in the log.
        log.memory.pop("metric_clock", None)
        if found:
            log.memory["metric_clock"] = log.memory.get("clock")


def _silence(log: Log) -> None:
    """Say how long the log went on after its last metric row (seconds), when clocks tell."""
    since, until = log.memory.get("metric_clock"), log.memory.get("clock")
    if since is None or until is None or not log.source.rows or until <= since:
        return
    text = f"the log goes on for {(until - since) / 60:.0f} minutes after its last metric row"
    log.events.append(
        Event(
            "silence",
            text,
            log.step,
            log.frame.segments[-1] if log.frame.segments else 0,
            None,
            float(until - since),
            log.index,
            log.memory["clock_line"],
        )
    )
