"""Adds to an incident lake, one immutable Parquet file a diagnosis, one a label, and keeps it small. Readers: query.py.

An incident is named by what it is made of (job, run, hashes of its files), so analysing a job again adds no second one:
the newest diagnosis of an id is the incident. The lake holds diagnoses as they are, with paths and names; only tickets
are redacted.

Merging a day's files is safe beside writers and readers: the merged file is written first, and then exactly the files
that were read into it are removed. In between, and after a kill, readers see an incident twice and count it once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.incidents.store import SUFFIX, Store, open_store
from faultproxy.analyzer.report.clean import encodable

INCIDENTS, LABELS, DAY, _MERGED = "incidents", "labels", "day=", "merged-"
#: Files are merged up to this size: a day of a large fleet must fit into memory.
_BATCH = 64 << 20
_TEXT, _NUMBER, _WHOLE, _TIME = pa.string(), pa.float64(), pa.int64(), pa.timestamp("us", tz="UTC")
#: Flat columns are what is asked for; `diagnosis` is the JSON report whole, `job` what the platform said.
COLUMNS = pa.schema({
    "id": _TEXT, "digest": _TEXT, "time": _TIME, "written": _TIME, "job_id": _TEXT, "run": _TEXT, "framework": _TEXT,
    "verdict": _TEXT, "failure_type": _TEXT, "family": _TEXT, "factor": _TEXT, "confidence": _NUMBER,
    "factor_confidence": _NUMBER, "cause": _TEXT, "cause_probability": _NUMBER, "first_bad_step": _WHOLE, "rank": _WHOLE,
    "layer": _WHOLE, "expert": _WHOLE, "steps": _WHOLE, "rule": _TEXT, "evidence": pa.list_(_TEXT), "version": _TEXT,
    "rules": _TEXT, "job": _TEXT, "diagnosis": _TEXT,
})  # fmt: skip
#: A label keeps the diagnosis it judges, so that retention costs no training pair.
LABEL_COLUMNS = pa.schema({
    "id": _TEXT, "written": _TIME, "failure_type": _TEXT, "factor": _TEXT, "cause": _TEXT, "fix": _TEXT, "author": _TEXT,
    "diagnosis": _TEXT,
})  # fmt: skip


def append(url: str, report: dict[str, Any], job: dict[str, Any]) -> str:
    """Add a report (JSON v1) to the lake at `url`, a folder or an fsspec URL; return the file that holds it.

    Args:
        url: The lake; it is made when it is not there.
        report: What `report.document.document` returns.
        job: What the platform knows: `id`, `time` (ISO 8601 or seconds since 1970, of the failure; now when it is absent),
            and whatever else is worth keeping.
    """
    store = open_store(url, create=True)
    now = datetime.now(UTC)
    time = moment(job.get("time")) or now
    # What the platform says can hold file names that are no UTF-8.
    body, facts = orjson.dumps(report).decode(), encodable(json.dumps(job, default=str, sort_keys=True, ensure_ascii=False))  # fmt: skip
    digest = hashlib.sha256(f"{body}\0{facts}".encode()).hexdigest()[:12]
    key = incident_id(report, job)
    name = f"{INCIDENTS}/{DAY}{time:%Y-%m-%d}/{key}-{digest}{SUFFIX}"
    if store.exists(name):
        return store.path(name)
    root = [entry["rule"] for entry in report["evidence"] if entry["role"] == "root"]
    top = report["causes"][0] if report["causes"] else {}
    row = {name: report[name] for name in COLUMNS.names if name in report}
    row |= {name: report["run"][name] for name in ("framework", "steps")}
    row |= {
        "id": key, "digest": digest, "time": time, "written": now, "run": report["run"]["id"], "job_id": _job(job),
        "cause": top.get("cause"), "cause_probability": top.get("probability"), "rule": root[0] if root else None,
        "evidence": list(dict.fromkeys(entry["rule"] for entry in report["evidence"])),
        "version": report["tool"]["version"], "rules": report["tool"]["rules"],
        "job": facts, "diagnosis": body,
    }  # fmt: skip
    return store.put(name, parquet(pa.Table.from_pylist([row], COLUMNS)))


def incident_id(report: dict[str, Any], job: dict[str, Any]) -> str:
    """The incident's name: of the job, the run, and the content of its files, whatever was found in them."""
    run = report["run"]
    parts = [_job(job), run["id"], sorted(source["sha256"] for source in run["sources"])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def add_label(store: Store, key: str, verdict: dict[str, str | None], diagnosis: str) -> str:
    """Add a human's verdict on an incident; labels before it are kept, and the newest counts."""
    now = datetime.now(UTC)
    row = {"id": key, "written": now, "diagnosis": diagnosis, **verdict}
    data = parquet(pa.Table.from_pylist([row], LABEL_COLUMNS))
    return store.put(f"{LABELS}/{key}-{now:%Y%m%dT%H%M%S%f}-{hashlib.sha256(data).hexdigest()[:8]}{SUFFIX}", data)


def parquet(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file."""
    buffer = BytesIO()
    # One row needs no statistics, no dictionary, and no second schema; without them 4,000 files open in half the time.
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False)
    return buffer.getvalue()


def read(store: Store, name: str, columns: pa.Schema) -> pa.Table | None:
    """Our columns of a file; None when it is torn, foreign, or gone. Columns of a later version go."""
    try:
        with store.open(name) as stream:
            table = pq.ParquetFile(stream).read()
    except (OSError, pa.ArrowException):
        return None
    held = {field.name: field.type for field in table.schema}
    return table.select(columns.names) if all(held.get(f.name) == f.type for f in columns) else None


def _job(job: dict[str, Any]) -> str | None:
    return None if job.get("id") is None else encodable(str(job["id"]))


def moment(value: Any, what: str = "job time") -> datetime | None:
    """A time in UTC from ISO 8601 or seconds since 1970; one without a zone is taken as UTC."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = value if value is None or isinstance(value, datetime) else datetime.fromisoformat(value)
        return found and (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC))
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise InputError(f"{what} {value!r} is no time; give ISO 8601 (2026-11-30, 2026-11-30T12:00)") from error


def day_folders(store: Store, since: str | None = None, until: str | None = None) -> list[str]:
    """Folders of the days from `since` to `until` (ISO), both included."""
    days = [name for name in store.folders(INCIDENTS) if name.startswith(DAY)]
    first, last = (since or "")[:10], (until or "9")[:10]
    return [f"{INCIDENTS}/{name}" for name in days if first <= name.removeprefix(DAY) <= last]


def compact(store: Store) -> tuple[int, int, list[str]]:
    """Merge each day's files; return how many were merged into how many, and the files that could not be read."""
    before = after = 0
    skipped: list[str] = []
    for folder in day_folders(store):
        store.sweep(folder)
        for batch in _batches(store, store.files(folder)):
            merged = _merge(store, folder, batch, skipped)
            before, after = before + merged, after + bool(merged)
    return before, after, skipped


def _batches(store: Store, names: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        bytes_ = store.size(name)
        if bytes_ >= _BATCH // 2:
            continue
        if size + bytes_ > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += bytes_
    yield batch


def _merge(store: Store, folder: str, names: list[str], skipped: list[str]) -> int:
    found = {name: read(store, name, COLUMNS) for name in names}
    tables = {name: table for name, table in found.items() if table is not None}
    skipped += [store.path(name) for name in names if name not in tables and store.exists(name)]
    if len(tables) < 2:
        return 0
    # The same diagnosis can be there twice, after a compaction that was killed or when it was made again after one.
    whole = pa.concat_tables(tables.values()).sort_by([("written", "descending")])
    keys = zip(whole["id"].to_pylist(), whole["digest"].to_pylist(), strict=True)
    newest = {key: at for at, key in reversed([*enumerate(keys)])}
    digest = hashlib.sha256("\n".join(tables).encode()).hexdigest()[:16]
    store.put(f"{folder}/{_MERGED}{digest}{SUFFIX}", parquet(whole.take(sorted(newest.values()))))
    for name in tables:
        store.remove(name)
    return len(tables)


def expired(store: Store, days: int) -> list[str]:
    """Files of the days that ended more than `days` days ago."""
    last = datetime.now(UTC) - timedelta(days=days + 1)
    return [name for folder in day_folders(store, until=f"{last:%Y-%m-%d}") for name in store.files(folder)]
