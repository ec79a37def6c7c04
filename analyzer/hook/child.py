"""The process in which a job is analysed: limits itself, then hands results to its parent as JSON lines on stdout.

Run as `python -P -m faultproxy.analyzer.hook.child analysis|publication REQUEST`: `publication` takes reports on stdin,
renders them without curves, and adds them to the lake. What is limited here: address space, processor time, core dumps, and
files (none may be written, but by the lake). The parent adds wall-clock time and resident memory, which no limit of a
process covers.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook.request import Request

#: Address space beside `memory`: libraries reserve some 2 GiB that they never touch.
_RESERVED = 3 << 30
#: prctl's number for "send me this signal when my parent dies".
_PDEATHSIG = 1


def limit(request: Request, writes: bool) -> None:
    """Bound this process before anything heavy is imported."""
    bounds = {
        resource.RLIMIT_AS: request.memory + _RESERVED,
        resource.RLIMIT_CPU: int(4 * request.seconds) + 10,
        resource.RLIMIT_CORE: 0,
    }
    if not writes:
        bounds[resource.RLIMIT_FSIZE] = 0
    for kind, value in bounds.items():
        with suppress(ValueError, OSError):  # a limit below ours is in force already
            resource.setrlimit(kind, (value, value))
    os.nice(5)
    with suppress(OSError, AttributeError):  # not Linux
        import ctypes

        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _work(work: str, request: Request) -> Iterator[tuple[str, Any]]:
    from faultproxy.analyzer.hook.analyse import analyse, rendered

    if work == "analysis":
        yield from analyse(request)
        return
    asked = json.load(sys.stdin)
    yield from rendered(asked["reports"], None, asked["render"])
    if request.lake:
        try:
            from faultproxy.analyzer.incidents.lake import append

            job = request.job | {"dir": request.folder}
            yield "lake", [append(request.lake, report, job) for report in asked["reports"]]
        except Exception as error:  # noqa: BLE001 - the files beside it stand
            yield "lost", {"lake": f"{type(error).__name__}: {error}"}


def main(work: str, asked: str) -> None:
    """Do one piece of work; what makes that impossible is a result too."""
    request = Request(**json.loads(asked))
    limit(request, writes=work == "publication")
    # What a library prints must not come between the results.
    results = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(name: str, value: Any) -> None:
        results.write(json.dumps([name, value]) + "\n")
        results.flush()

    try:
        for name, value in _work(work, request):
            tell(name, value)
    except InputError as error:
        tell("unreadable", str(error).splitlines())
    except MemoryError:
        tell("limited", "the memory limit was reached")
    except Exception as error:  # noqa: BLE001 - the parent goes on
        tell("failed", f"a bug in faultproxy ({type(error).__name__}: {error})")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # freeing what was read takes longer than it is worth
