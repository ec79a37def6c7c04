"""The analysis of one job inside the bounds that its caller sets: reads, searches huge logs, diagnoses, renders.

It runs in a process of its own (child.py), which may be killed at any moment, so results are handed out as soon as they
are there: the reports first, then the page, then the ticket.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from faultproxy.analyzer.cli import planned
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook.discover import discover
from faultproxy.analyzer.hook.outputs import VIEWS
from faultproxy.analyzer.hook.request import Reports, Request, worst
from faultproxy.analyzer.ingest import Run, facts, huge, read_file, read_run
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.report.clean import encodable
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.trace import Event, Trace

#: Bytes from which a text log is read in part, and at least; bytes of its head and tail in the search, and at the end.
LARGE, LEAST = 64 << 20, 1 << 20
SEARCH_ENDS, ENDS = 512 << 10, 4 << 20
#: Rounds of the search, those at most until it is known how far apart rows are, bytes read, and the share of the time.
ROUNDS, MEASURING, MOST_READ, SHARE = 16, 2, 300 << 20, 0.5
#: Files of one family (alike but for a number) beyond the first are read at both ends only: their steps are its steps.
_DIGITS = re.compile(r"\d+")
#: A file with so few metric rows is none of the run's logs where another has so many in another format.
_STRAY, _LOG = 2, 10
#: What an exit code says where the log says nothing: 128 + the signal.
_SIGNALS = {134: ("segfault", "SIGABRT"), 135: ("segfault", "SIGBUS"), 137: ("killed", "SIGKILL"), 139: ("segfault", "SIGSEGV"), 143: ("stopped", "SIGTERM")}  # fmt: skip
#: Warnings about files without a metric that are shown one by one.
_EMPTY, _SHOWN = ": no metric row and no known event in it", 8


def analyse(request: Request) -> Iterator[tuple[str, Any]]:
    """Yield (`reports`, list), then what `rendered` yields. Raises InputError when nothing in the folder could be read."""
    until = time.monotonic() + SHARE * request.seconds
    job = discover(Path(request.folder), Path(request.out), request.job_id)
    reports, traces, problems = [], [], []
    for name, paths in job.runs.items():
        files, notes = opened(paths, request.budget)
        try:
            trace = read_job(Run(name, files, job.folder), job.model, until)
        except InputError as error:
            problems += [*notes, *str(error).splitlines()]
            continue
        trace.warnings += notes
        _add_exit(trace, request)
        reports.append(planned(_report(trace, files) | {"reproduce": request.reproduce}))
        traces.append(trace)
    if not reports:
        problems = problems or ["no file in it could be a log (looked for text, JSON, CSV, Parquet)"]
        raise InputError("\n".join([*_shortened(problems), *job.warnings()]))
    warnings = [*_shortened(reports[0]["warnings"] + problems), *job.warnings()]
    if reports[0]["verdict"] == "healthy" and request.exit_code:
        warnings.append(f"the job ended with exit code {request.exit_code}, and nothing in its logs says why: they may end early")  # fmt: skip
    reports[0]["warnings"] = [encodable(warning) for warning in warnings]
    yield "reports", reports
    yield from rendered(reports, traces)


def rendered(reports: Reports, traces: list[Trace] | None, views: Iterable[str] = VIEWS) -> Iterator[tuple[str, Any]]:
    """Yield (name, text) of the page and the ticket; what fails is lost alone: (`lost`, {name: why})."""
    for name in views:
        try:
            if name == "report.html":
                from faultproxy.analyzer.report.html import page

                text = page.render(reports, traces)
            else:
                from faultproxy.analyzer.ticket.render import render

                ticket = render(worst(reports), "github", others=reports)
                text = f"# {ticket.title}\n\n{ticket.body.rstrip()}\n"
        except Exception as error:  # noqa: BLE001 - the diagnosis stands whatever its views do
            yield "lost", {name: f"{type(error).__name__}: {error}"}
        else:
            yield name, text


def opened(paths: list[Path], budget: int) -> tuple[list[File], list[str]]:
    """The files of a run, those larger than their share of `budget` (bytes of text) in stretches; and what is too large."""
    found: list[File] = []
    notes: list[str] = []
    many = sum(path.exists() and path.stat().st_size > LEAST for path in paths)
    bound = max(LEAST, min(LARGE, budget // max(1, many)))
    families: set[str] = set()
    for path in paths:
        file = File(path)
        with suppress(OSError, InputError):  # it cannot be opened, or went away: reading it says so
            if huge.is_large_text(file, bound):
                family = _DIGITS.sub("#", str(path))
                file = huge.Sampled(path, min(SEARCH_ENDS, bound // 4), 0 if family in families else huge.WINDOWS)
                families.add(family)
            elif file.size > budget and path.suffix != ".parquet":
                notes.append(f"{path}: {file.size / 1e6:,.0f} MB that can only be read whole (compressed, or one JSON document): unpack it, or write JSON lines")  # fmt: skip
                continue
        found.append(file)
    return found, notes


def read_job(run: Run, shape: facts.Given, until: float) -> Trace:
    """Read a run whose huge files are searched first, each alone, until a moment of the monotonic clock."""
    for file in run.files:
        if isinstance(file, huge.Sampled) and file.windows:
            trace = search(run._replace(files=[file]), file, shape, until)
            if trace and len(run.files) == 1:
                return trace
    try:
        return _without_strays(run, shape, read_run(run, shape))
    except (InputError, MemoryError):
        raise
    except Exception:  # a reader that fails costs its file alone; what no single file explains is raised again
        broken = {str(file.path): why for file in run.files if (why := _breaks(file))}
        if not broken:
            raise
        return _read_without(run, shape, broken)


def _breaks(file: File) -> str | None:
    """How the reader of a file fails on it, if it does."""
    try:
        read_file(file, 0)
    except InputError:
        return None
    except Exception as error:  # noqa: BLE001 - told to the reader of the report
        return f"its reader failed ({type(error).__name__}: {error})"
    return None


def _without_strays(run: Run, shape: facts.Given, trace: Trace) -> Trace:
    """The trace without files that show a row or two of another kind than the log: half a JSON file, a summary, a result."""
    kinds = {source.path: (source.format.split("+")[0], Path(source.path).suffix) for source in trace.sources}
    most = max(trace.sources, key=lambda source: source.rows)
    few = {source.path for source in trace.sources if 0 < source.rows <= _STRAY}
    strays = {path for path in few if kinds[path] != kinds[most.path]}
    strays -= {trace.sources[event.source].path for event in trace.events}
    if most.rows < _LOG or not strays:
        return trace
    return _read_without(run, shape, dict.fromkeys(strays, f"a row or two of another kind than {most.path}"))


def _read_without(run: Run, shape: facts.Given, left_out: dict[str, str]) -> Trace:
    """Read a run without some of its files, and say why."""
    trace = read_run(run._replace(files=[file for file in run.files if str(file.path) not in left_out]), shape)
    trace.warnings += [f"{path}: left out: {why}" for path, why in sorted(left_out.items())]
    return trace


def search(run: Run, file: huge.Sampled, shape: facts.Given, until: float) -> Trace | None:
    """Read more of the huge file of a run until what precedes the onset of its failure was read without a gap.

    Returns the last reading; None when the file holds no row and no event.
    """
    trace = None
    for round_ in range(ROUNDS):
        try:
            trace = read_run(run, shape)
        except InputError:
            return None
        if round_ < MEASURING and file.measure(trace.frame.lines):
            continue
        if time.monotonic() > until or file.read_bytes > MOST_READ or round_ == ROUNDS - 1:
            break  # before more is planned: what is planned is said to be read
        found = diagnose(trace)
        planned = file.narrow(trace, (found.segment, found.first_bad_step))
        if planned != "divided":
            # All but the end of the search is done on short ends: what is read is read again each round.
            grown = [file.add(0, ENDS), file.add(file.total - ENDS, ENDS)]
            if not planned and not any(grown):
                break
    return trace


def _add_exit(trace: Trace, request: Request) -> None:
    """Let a signal that the platform saw stand as an event after the last step, where no log says how the job ended."""
    code, frame = request.exit_code, trace.frame
    seen = 128 - code if code and code < 0 else code
    trace.facts["job"] = request.job
    last = (frame.segments[-1], frame.steps[-1]) if len(frame) else (0, 0)
    said = any(event.kind != "silence" and event.step is not None and (event.segment, event.step) >= last for event in trace.events)  # fmt: skip
    if seen in _SIGNALS and not said:
        kind, signal = _SIGNALS[seen]
        text = f"the platform reports exit code {code} ({signal})"
        trace.events.append(Event(kind, text, last[1] if len(frame) else None, last[0]))


def _report(trace: Trace, files: list[File]) -> dict[str, Any]:
    """The report, without lines (and steps that are counted) that hold in the stretches read only."""
    sampled = {str(file.path): file for file in files if isinstance(file, huge.Sampled)}
    trace.warnings += [file.searched() for file in sampled.values()]
    report = document(diagnose(trace))
    counted = sampled and report["run"]["facts"].get("steps_are_rows")
    if counted:
        report["first_bad_step"] = None
    for piece in report["evidence"]:
        file = sampled.get(piece["source"])
        if file is not None and piece["line"] is not None and not file.true_line(piece["line"]):
            piece["line"] = None
            if counted:
                piece["step_start"] = piece["step_end"] = None
    return report


def _shortened(warnings: list[str]) -> list[str]:
    """Warnings with the names of files without a metric counted from the ninth on."""
    more = set([warning for warning in warnings if warning.endswith(_EMPTY)][_SHOWN:])
    kept = [warning for warning in warnings if warning not in more]
    return kept + ([f"{len(more)} more files hold no metric row and no known event"] if more else [])
