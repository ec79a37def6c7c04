"""Runs child.py in a process group of its own, within wall-clock time and resident memory, and ends the whole group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from faultproxy.analyzer.hook.request import Request

#: Seconds between two looks at clock, memory, and signals, and those that a killed process may take to end.
_TICK, _DYING = 0.05, 5.0
#: A node has hundreds of cores, and a library that starts a thread on each asks for gigabytes of address space.
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # fmt: skip


@dataclass
class Ended:
    """What a child handed out by name, what failed in it, and why it ended early (None: it did not)."""

    results: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    #: Whether that was a limit, so that reading less may help.
    limited: bool = False


def supervise(work: str, request: Request, stopped: Callable[[], str | None], text: str = "") -> Ended:
    """Run one child to its end, or to the first limit; `stopped` names the signal that asks us to stop."""
    ended = Ended()
    command = [sys.executable or "python3", "-P", "-m", "faultproxy.analyzer.hook.child", work, json.dumps(asdict(request))]  # fmt: skip
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True,
            env={**os.environ, **_ENVIRONMENT},
        )  # fmt: skip
    except OSError as error:
        ended.reason = f"the {work} could not be started ({error})"
        return ended
    results = messages = b""
    given: bytes | None = text.encode()
    until = time.monotonic() + request.seconds
    try:
        while ended.reason is None:
            with suppress(subprocess.TimeoutExpired):
                results, messages = child.communicate(given, timeout=_TICK)
                break
            given = None  # it is passed once, however often the rest is asked for
            if name := stopped():
                ended.reason = f"the hook was stopped by {name}"
            elif limit := _exceeded(child.pid, request, until):
                ended.reason, ended.limited = f"the {work} took {limit}", True
    finally:
        # The group outlives its leader where a library left processes behind.
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    if ended.reason is not None:
        try:
            results, messages = child.communicate(timeout=_DYING)
        except subprocess.TimeoutExpired as error:  # it waits for a file system that hangs: no signal reaches it
            results = error.output or b""
            ended.reason += "; its process cannot be ended"
    for name, value in map(json.loads, results.split(b"\n")[:-1]):  # behind the last break is what a kill cut off
        if name == "lost":
            ended.lost |= value
        elif name in ("failed", "limited"):
            ended.reason, ended.limited = value, name == "limited"
        else:
            ended.results[name] = value
    if ended.reason is None and child.returncode:
        last = messages.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        ended.reason = f"{subprocess.CalledProcessError(child.returncode, work)} ({last[0]})"
        # A library that gets no memory ends its process in its own way.
        starved = any(word in messages.lower() for word in (b"alloc", b"memory"))
        ended.limited = starved or child.returncode in (-signal.SIGKILL, -signal.SIGXCPU)
    return ended


def _exceeded(pid: int, request: Request, until: float) -> str | None:
    """The limit that a process has passed."""
    if time.monotonic() > until:
        return f"longer than its time limit ({request.seconds:.0f} s)"
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            resident = int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has ended, or the system does not tell
        return None
    return f"more than its memory limit ({request.memory >> 20} MiB)" if resident > request.memory else None
