"""The hook itself: it has a job analysed by child processes, writes what came of it, and says one line. It never raises.

It imports nothing heavy before the analysis has ended, so that it stands when that runs out of memory, and it goes on to the
next best thing at every step: a smaller budget when the first try ran into a limit, an inconclusive report when there is no
diagnosis, another folder when the first cannot be written, the line on stderr when none can.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from faultproxy.analyzer.cli import BAD_INPUT, DONE, INTERRUPTED, OUR_BUG
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook import outputs
from faultproxy.analyzer.hook.request import Reports, Request, worst
from faultproxy.analyzer.hook.supervise import Ended, supervise
from faultproxy.analyzer.report.clean import encodable, visible
from faultproxy.analyzer.report.text import headline

#: The tries: the share of the time that each gets (what is left is for what comes after), and bytes of text read whole.
TRIES = ((0.6, Request.budget), (0.3, Request.budget // 16))
#: Seconds for a page, a ticket, and the lake, from the JSON alone.
_PUBLICATION = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(request: Request) -> int:
    """Run the hook; whatever happens becomes a line on stderr and the exit code that `--strict` asks for."""
    try:
        folder = os.path.abspath(request.folder or "(no --job-dir)")
        out = os.path.abspath(request.out or Path(folder, outputs.FOLDER))
        job = encodable(request.job_id or Path(folder).name)
        return _Hook(replace(request, folder=folder, out=out, job_id=job)).run()
    except BaseException as error:  # noqa: BLE001 - a hook that raises fails the platform
        _say(f"no report ({type(error).__name__}: {error})")
        return OUR_BUG


class _Hook:
    """One run of the hook over one job."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.stopped_by: str | None = None
        self.code = DONE
        self.notes: list[str] = []  # what happened to the hook itself

    def run(self) -> int:
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        analysis = self._analysed()
        reports: Reports = analysis.results.get("reports") or [self._inconclusive(analysis)]
        views = self._views(analysis, reports)
        place = self._written(reports, views)
        said = headline(worst(reports)).replace(" \u00b7 ", ", ")
        said += f", {len(reports) - 1} more runs" if len(reports) > 1 else ""
        where = place / outputs.REPORT if place else "no file could be written"
        why = [] if "reports" in analysis.results else reports[0]["warnings"][:1]
        _say("; ".join([f"{said}: {where}", *why, *self.notes]))
        return INTERRUPTED if self.stopped_by else self.code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = signal.Signals(number).name

    def _child(self, work: str, text: str = "", **bounds: Any) -> Ended:
        return supervise(work, replace(self.request, **bounds), lambda: self.stopped_by, text)

    def _analysed(self) -> Ended:
        for share, budget in TRIES:
            ended = self._child("analysis", seconds=share * self.request.seconds, budget=budget)
            if "reports" in ended.results or not ended.limited:
                break
            limit = ended.reason
        if "reports" in ended.results:
            if budget != Request.budget:
                self.notes.append(f"{limit}; a second try read less of the large files")
            if ended.reason:
                self.notes.append(f"{ended.reason}; the diagnosis was complete by then")
        return ended

    def _inconclusive(self, ended: Ended) -> dict[str, Any]:
        """A report that says why there is none."""
        from faultproxy.analyzer.diagnose import fuse
        from faultproxy.analyzer.report.document import document
        from faultproxy.analyzer.trace import Trace

        self.code = BAD_INPUT if "unreadable" in ended.results else OUR_BUG
        why = ended.results.get("unreadable") or [ended.reason or "the analysis ended without a word"]
        facts = {"steps_are_rows": False, "job": self.request.job}
        name = Path(self.request.folder).name or "job"
        return document(fuse(Trace(name, facts=facts, warnings=[f"no diagnosis: {why[0]}", *why[1:]]), []))

    def _views(self, analysis: Ended, reports: Reports) -> dict[str, str]:
        """The page and the ticket, made from the JSON where the analysis did not get to them; and the lake."""
        found = {name: analysis.results[name] for name in outputs.VIEWS if name in analysis.results}
        lost = analysis.lost
        missing = [name for name in outputs.VIEWS if name not in found]
        wanted = [*missing, *(["lake"] if self.request.lake else [])]
        if wanted:
            asked = json.dumps({"reports": reports, "render": missing})
            ended = self._child("publication", asked, seconds=_PUBLICATION)
            found |= {name: ended.results[name] for name in missing if name in ended.results}
            done = {*ended.results, *ended.lost}
            late = {name: ended.reason for name in wanted if name not in done and ended.reason}
            lost = {name: why for name, why in (lost | ended.lost | late).items() if name not in found}
        self.notes += [f"{name}: {why}" for name, why in lost.items()]
        return {name: encodable(text) for name, text in found.items()}

    def _written(self, reports: Reports, views: dict[str, str]) -> Path | None:
        """Write to the first folder that takes the JSON; returns that folder."""

        def document(lost: list[str]) -> bytes:
            """In ASCII; what happened to the hook itself stands in the first report."""
            warnings = [*reports[0]["warnings"], *map(encodable, (*self.notes, *lost))]
            found = [reports[0] | {"warnings": warnings}, *reports[1:]]
            text = json.dumps(found[0] if len(found) == 1 else found, indent=2, allow_nan=False)
            return text.replace("\x7f", "\\u007f").encode() + b"\n"

        out = Path(self.request.out)
        for place in outputs.places(out, Path(self.request.folder)):
            try:
                self.notes += outputs.write(place, views, document, ours=place != out)
                return place
            except InputError as error:
                self.notes.append(str(error))
        self.code = self.code or BAD_INPUT
        return None


def _say(text: str) -> None:
    """The one line; a stderr that is closed or full changes nothing."""
    with suppress(OSError, ValueError, AttributeError):
        line = visible(f"faultproxy hook: {text}", 2000)
        sys.stderr.write(line.encode("ascii", "backslashreplace").decode() + "\n")
        sys.stderr.flush()
