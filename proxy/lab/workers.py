"""Spreads programs over worker processes, and shows how far they are."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from faultproxy.analyzer.errors import FaultproxyError

#: Told after every run: its row (a failed one has an `error`). And after every program: its name.
Report = Callable[[dict[str, Any] | str], None]


def share(work: Callable[..., None], units: list[tuple[Any, ...]], workers: int, report: Report) -> None:
    """Call `work(*unit, report)` for every unit, in `workers` fresh processes of one thread each; 1 means in this one.

    `work` must be a function of a module. What a unit raises is raised here, and no further unit is begun.
    """
    import multiprocessing

    if workers < 2:
        for unit in units:
            work(*unit, report)
        return
    context = multiprocessing.get_context("spawn")  # a forked PyTorch may hang
    told = context.Queue()
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read by a worker when it starts
    pool = ProcessPoolExecutor(workers, context, _begin, (told,))
    try:
        pending = {pool.submit(_work, work, unit) for unit in units}
        while pending:
            try:
                report(told.get(timeout=1))
            except queue.Empty:
                for future in [future for future in pending if future.done()]:
                    pending.remove(future)
                    future.result()
    except BrokenProcessPool as error:
        raise FaultproxyError("a worker died, perhaps for want of memory; the same command continues") from error
    finally:
        pool.shutdown(cancel_futures=True)
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


_told: Any = None


def _begin(told: Any) -> None:
    """Keep a worker's queue, which cannot be sent with a unit, and end with the parent however that ends."""
    import multiprocessing

    global _told
    _told = told
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _work(work: Callable[..., None], unit: tuple[Any, ...]) -> None:
    work(*unit, _told.put)


@contextmanager
def progress(runs: int, programs: int) -> Iterator[Report]:
    """A bar with the time left on a terminal, else a line a program (click prints a label that changed); on stderr."""
    import click

    finished = failed = 0
    with click.progressbar(
        length=runs, label=f"{runs} runs to go", show_eta=True, show_pos=True, file=sys.stderr
    ) as bar:

        def report(told: dict[str, Any] | str) -> None:
            nonlocal finished, failed
            if isinstance(told, dict):
                failed += told["error"] is not None
                bar.update(1)
            else:
                finished += 1
                bar.label = f"{told} done, {finished} of {programs} programs, {failed} runs failed"
                bar.render_progress()

        yield report
