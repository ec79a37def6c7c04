"""Reads the run that others are compared with."""

from __future__ import annotations

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.trace import Trace

_SHOWN = 5


def read_good(path: str, model_config: str | None = None) -> Trace:
    """The one run at `path`. Should it have failed itself its warnings say so: it is used all the same."""
    if not path:
        raise InputError("no path: --against is empty; give the file or the folder of a good run")
    if path == "-":
        raise InputError("--against -: the good run cannot come from stdin; give a file or a folder")
    runs = read([path], model_config)
    if len(runs) > 1:
        names = ", ".join(run.run for run in runs[:_SHOWN]) + (", ..." if runs[_SHOWN:] else "")
        raise InputError(f"--against {path}: {len(runs)} runs in it ({names}); give one of them")
    found = diagnose(runs[0])
    if found.verdict == "failed":
        place = "" if found.first_bad_step is None else f" at step {found.first_bad_step}"
        runs[0].warnings.append(
            f"{runs[0].run} is no good run: {found.failure_type}{place} ({found.confidence:.2f}); compared all the same"
        )
    return runs[0]
