"""What the hook is asked to do with one job, and the reports that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Reports = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """One job to analyse; `seconds` and `memory` (bytes) bound the analysis, `budget` the bytes of text read whole."""

    folder: str
    #: Where the reports go: a folder `faultproxy` in the job's when none is named.
    out: str = ""
    exit_code: int | None = None
    #: The folder's name when the platform gives none.
    job_id: str = ""
    lake: str = ""
    seconds: float = 120.0
    memory: int = 4 << 30
    budget: int = 128 << 20

    @property
    def job(self) -> dict[str, Any]:
        """What the platform says of the job, as reports hold it."""
        return {"id": self.job_id, "exit_code": self.exit_code}


def worst(reports: Reports) -> dict[str, Any]:
    """The report that stands for all: the first run that failed."""
    return next((report for report in reports if report["verdict"] == "failed"), reports[0])
