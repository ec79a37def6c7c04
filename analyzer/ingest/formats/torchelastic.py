"""torchrun's last words: the block that names the rank that failed first, and those that failed after it.

    train.py FAILED
    Failures:
    [1]:
      rank      : 5 (local_rank: 5)
      exitcode  : -6 (pid: 4712)
    Root Cause (first observed failure):
    [0]:
      time      : 2026-08-01_10:41:07
      host      : node-3
      rank      : 3 (local_rank: 3)
      exitcode  : -9 (pid: 4710)
      error_file: <N/A>
      traceback : Signal 9 (SIGKILL) received by PID 4710

The root becomes `elastic_failure` with its rank and exit code, and where a signal ended it, what that signal means; the
others become `rank_exit`: they follow. torchrun before 1.10 writes `Root Cause:` first, `Other Failures:` after it, and `msg` for the last field.
Source: pytorch/pytorch torch/distributed/elastic/multiprocessing/errors/__init__.py.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.lazy import lazy

_ROOT = lazy(r"^\s{0,8}Root Cause(?: \(first observed failure\))?:\s*$")
_OTHERS = lazy(r"^\s{0,8}(?:Other )?Failures:\s*$")
_ENTRY = lazy(r"^\s{0,8}\[\d{1,6}\]:\s*$")
_FIELD = lazy(r"^\s{0,8}(?P<name>time|host|rank|exitcode|error_file|traceback|msg)\s{0,12}:\s?(?P<value>.*)$")
_BORDER = lazy(r"^\s{0,8}[=*]{5,}\s*$")
_NUMBER = lazy(r"-?\d{1,10}")
_KEY = "torchelastic"
#: What ended the first rank, where a signal did (the exit code is its negative).
_SIGNALS = {-9: "killed", -11: "segfault", -7: "segfault", -15: "stopped"}


def _parse(line: str, log: Log) -> bool:
    held = log.memory.get(_KEY)
    if held is None and "Root Cause" not in line and "ailures:" not in line:
        return False
    if _ROOT.match(line) or _OTHERS.match(line):
        _emit(log)
        log.memory[_KEY] = {"kind": "elastic_failure" if "Root" in line else "rank_exit", "line": log.line}
        return True
    if held is None:
        return False
    if _ENTRY.match(line):
        _emit(log)
        log.memory[_KEY] = {"kind": held["kind"], "line": log.line}
        return True
    if _BORDER.match(line):
        _emit(log)
        return True
    field = _FIELD.match(line)
    if field is None or field["name"] in held:
        return False
    held[field["name"]] = field["value"].strip()[:200]
    return True


def _emit(log: Log) -> None:
    """Close the entry being read, if any; one without a rank and an exit code is only a heading."""
    held = log.memory.pop(_KEY, None)
    if not held or not ("rank" in held or "exitcode" in held):
        if held and held["kind"] == "elastic_failure":
            log.memory[_KEY] = held  # its entry follows
        return
    rank, code = _NUMBER.match(held.get("rank", "")), _NUMBER.match(held.get("exitcode", ""))
    if rank and 0 <= int(rank[0]) < 10**6:
        log.rank = int(rank[0])
    said = held.get("traceback") or held.get("msg") or "no message"
    what = "Root Cause (first observed failure)" if held["kind"] == "elastic_failure" else "failed after the first"
    text = f"{what}: rank {held.get('rank', '?')} on {held.get('host', 'an unnamed host')}, exitcode {held.get('exitcode', '?')}: {said}"
    value = float(code[0]) if code else None
    where, log.line = log.line, held["line"]
    if held["kind"] == "elastic_failure" and value in _SIGNALS:
        log.event(_SIGNALS[int(value)], text, value)
    log.event(held["kind"], text, value)
    log.line = where


def _finish(log: Log) -> None:
    """Say what a block says that the log ends in."""
    _emit(log)
    if log.memory.pop(_KEY, None):
        log.event("elastic_failure", "Root Cause (first observed failure): the log ends here")


LINE = LineFormat(
    "torchelastic",
    ("Root Cause", "ailures:", "]:", "time", "host", "rank", "exitcode", "error_file", "traceback", "msg", "====", "****"),
    _parse,
    order=15,
    finish=_finish,
)  # fmt: skip
