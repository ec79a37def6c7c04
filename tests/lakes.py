"""Incidents for the tests of the lake: one report in many jobs, and how to read them back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from faultproxy.analyzer.incidents import query
from faultproxy.analyzer.incidents.lake import append
from faultproxy.analyzer.incidents.store import open_store

GOLDEN = Path(__file__).parent / "golden" / "diagnosis-v1.json"
REPORT, NOON = json.loads(GOLDEN.read_text("utf-8")), "2026-03-04T12:00:00+00:00"


def add(url: str | Path, job: str = "1", time: Any = NOON, **changes: Any) -> str:
    return append(str(url), copy.deepcopy(REPORT) | changes, {"id": job, "time": time, "node": "n1"})


def rows(url: str | Path, **filters: Any) -> list[dict[str, Any]]:
    return query.listed(query.open_lake(open_store(str(url)), text=filters.get("text")), filters, 1000)
