"""Reads a canonical trace back without loss: the inverse of `analyzer/canonical.py`, whoever wrote the file.

Rows of the whole model become the frame. Rows split by rank, layer, or expert become the detail when there are at most
DETAIL of them; more stay on disk, and the trace gets a query over them (`Log.table`). Where every row is split by rank
the frame is the median over the finite ranks of each step, and the worst bad state where any rank is bad.

No value becomes a Python object on its own: columns arrive as lists. Of a large file only what rules can use is scanned,
one signal at a time, and the rollup stands in for it where there is one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from faultproxy.analyzer import rollup
from faultproxy.analyzer.errors import SchemaError
from faultproxy.analyzer.ingest import ondisk
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.schema import (
    BAD_SQL,
    BARE,
    CONTAINER,
    DERIVED,
    EVENTS,
    EVENTS_KEY,
    ORIGIN,
    RUN_KEY,
    SCHEMA,
    quoted,
    scan,
    validate,
)
from faultproxy.analyzer.trace import FINITE, Column, Event, Frame, Key, Source

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: More cells than this (split by rank, layer, or expert) stay on disk.
DETAIL = 200_000
#: Up to this many rows every row is checked on reading (0.3 s); beyond it only names and types are.
CHECKED = 2_000_000
WHOLE = "rank IS NULL AND layer IS NULL AND expert IS NULL AND module IS NULL"
_BY_RANK = "rank IS NOT NULL AND layer IS NULL AND expert IS NULL AND module IS NULL"
_STAT = "nullif(stat, 'mean') AS stat"
_MEAN = "'mean' AS stat"
_KEY = ("signal", "axis", "role", "stat", "label", "layer", "expert", "module", "rank")


def read(path: Path, log: Log, con: DuckDBPyConnection) -> None:
    """Fill a log from a `trace.parquet` or the `values.parquet` of a trace folder, in a bounded DuckDB of its own.

    Raises SchemaError when the file breaks the schema or holds several runs.
    """
    ondisk.load_footer(path, con)
    rows, nulls = ondisk.counts(con)
    validate(path, content=rows <= CHECKED, con=con)
    known = _document(path, con, log)
    _one_run(path, con, log)
    con.execute(f"CREATE VIEW v AS SELECT * REPLACE ({_STAT}) FROM {scan(path)}")
    # A column without one null splits every row, so there is nothing to look for.
    split = rows > 0 and any(count == 0 for count in nulls.values())
    if not split:
        con.execute(f"CREATE TABLE whole AS SELECT * FROM v WHERE {WHOLE}")
        log.frame = _frame(con, "whole", known, len(log.origins))
    if any(count != rows for count in nulls.values()):
        _detail(path, con, log, rows if split else None)
    _events(path, con, log)
    log.source.rows = max(rows, 1) if rows or log.events else 0
    log.file_rank = log.rank = None  # the file's own name says nothing of the ranks in it


def _one_run(path: Path, con: DuckDBPyConnection, log: Log) -> None:
    found = ondisk.constants(con, ("run",))
    if found is None:
        found = con.execute(f"SELECT DISTINCT run FROM {scan(path)} ORDER BY 1 LIMIT 6").fetchall()
    if len(found) > 1:
        listed = ", ".join(sorted(repr(run) for (run,) in found)[:5]) + (", ..." if len(found) > 5 else "")
        raise SchemaError(f"{path}: holds several runs ({listed}); one file is one run; write a file for each")
    log.run = found[0][0] if found else log.run


def _whole(digits: str) -> float:
    """An integer of a JSON document; one that no report can hold becomes a float."""
    return int(digits) if len(digits) < 19 else float(digits)


def _metadata(path: Path, con: DuckDBPyConnection, key: str) -> Any:
    row = con.execute(
        f"SELECT decode(value) FROM parquet_kv_metadata({quoted(str(path))}) WHERE decode(key) = ?", [key]
    ).fetchone()
    try:
        return json.loads(row[0]) if row else None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: metadata {key} is no JSON ({error}); write it again, or leave it out") from error


def _document(path: Path, con: DuckDBPyConnection, log: Log) -> list[Any] | None:
    """Take over run facts; returns the order of the whole-model columns where it is known."""
    beside = path.with_name("run.json")
    if path.name == "values.parquet" and beside.is_file():
        try:
            data = json.loads(beside.read_text(encoding="utf-8"), parse_int=_whole)
        except (ValueError, RecursionError, OSError) as error:
            raise SchemaError(f"{beside}: cannot be read as JSON ({error}); write it again, or remove it") from error
    else:
        data = _metadata(path, con, RUN_KEY)
    log.source.format = ORIGIN
    if data is None:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int) or data["schema"] > SCHEMA:
        raise SchemaError(f"{path}: its run facts are not of schema {SCHEMA} or older; use a newer faultproxy")
    facts = data.get("facts")
    log.facts.update(facts if isinstance(facts, dict) else {})
    for name in _TOP:
        log.fact(name, data.get(name))
    log.run = data["run"] if isinstance(data.get("run"), str) else None
    log.warnings += [text for text in _list(data, "warnings") if isinstance(text, str)]
    try:
        log.origins = [_source(entry) for entry in _list(data, "sources")]
        log.unrecognised = [str(key) for key in data["unrecognised"]] if "unrecognised" in data else None
        events = data.get("events") or {}
        if path.name != "values.parquet" and events.get("total", 0) > events.get("written", 0):
            log.warnings.append(f"{path}: holds {events['written']} of {events['total']} events")
        if log.origins:
            log.source.format = CONTAINER
        return [(_column_key(entry), str(entry[5])) for entry in _list(data, "columns")]
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise SchemaError(
            f"{path}: its run facts are malformed ({error}); see docs/trace.md, or leave them out"
        ) from error


def _source(entry: dict[str, Any]) -> Source:
    source = Source(**entry)
    texts, numbers = (source.path, source.format, source.sha256), (source.rows, source.unparsed)
    if not all(isinstance(text, str) for text in texts) or not re.fullmatch("[0-9a-f]{64}", source.sha256):
        raise ValueError(f"source {source.path!r}: path, format, and sha256 must be text, the last 64 hex digits")
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(source.truncated, bool):
        raise ValueError(f"source {source.path!r}: rows and unparsed must be counts, truncated true or false")
    return source


def _column_key(entry: list[Any]) -> Key:
    if not all(isinstance(part, str) or (part is None and at > 1) for at, part in enumerate(entry[:5])):
        raise ValueError(f"column {entry!r}: [signal, axis, role, stat, label, raw key] must be text or null")
    return Key(*entry[:5])


_TOP = ("framework", "algorithm", "model", "precision", "parallelism", "hardware", "hyperparameters")


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _frame(con: DuckDBPyConnection, table: str, known: list[Any] | None, origins: int) -> Frame:
    """The rows of a DuckDB table with the columns of `values` as a frame in step order."""
    signal, axis, state = BARE
    bare = f"signal = '{signal}' AND axis = '{axis}' AND state = '{state}' AND rank IS NULL AND role IS NULL AND label IS NULL"
    con.execute(
        f"CREATE OR REPLACE TABLE place AS SELECT segment, step, min(source) AS source, min(line) AS line, "
        f"row_number() OVER (ORDER BY segment, step) - 1 AS nth FROM {table} GROUP BY segment, step"
    )
    frame = Frame()
    last = max(origins - 1, 0)
    rows = con.execute(
        "SELECT list(segment ORDER BY nth), list(step ORDER BY nth), "
        f"list(greatest(0, least(coalesce(source, 0), {last})) ORDER BY nth), list(coalesce(line, 0) ORDER BY nth) FROM place"
    ).fetchone()
    if rows is None or rows[0] is None:
        return frame
    frame.segments, frame.steps, frame.sources, frame.lines = rows
    for key, raw in known or ():
        frame.columns[key] = Column(key, raw)
    keys = ", ".join(_KEY)
    for *fields, at, values in con.execute(
        f"SELECT {keys}, list(nth ORDER BY nth), list(value ORDER BY nth) FROM {table} JOIN place USING (segment, step) "
        f"WHERE NOT coalesce({bare}, false) GROUP BY {keys} ORDER BY {keys}"
    ).fetchall():
        key = Key(*fields)
        column = frame.columns.setdefault(key, Column(key, "" if known is not None else key.signal))
        if at[-1] == len(at) - 1:
            column.values = values
        else:
            column.values = [None] * (at[-1] + 1)
            for row, value in zip(at, values, strict=True):
                column.values[row] = value
    odd = con.execute(
        f"SELECT {keys}, nth, state, raw FROM {table} JOIN place USING (segment, step) "
        f"WHERE (state <> '{FINITE}' OR raw IS NOT NULL) AND NOT coalesce({bare}, false)"
    )
    while batch := odd.fetchmany(10_000):
        for *fields, row, state, raw in batch:
            column = frame.columns[Key(*fields)]
            if state != FINITE:
                column.states[row] = state
            if raw is not None:
                column.raws[row] = raw
    return frame


def _detail(path: Path, con: DuckDBPyConnection, log: Log, size: int | None) -> None:
    """Rows split by rank, layer, or expert: into memory when few, else as a query; and the frame where it lacks."""
    if size is None:
        row = con.execute(f"SELECT count(*) FROM v WHERE NOT ({WHOLE})").fetchone()
        assert row is not None
        size = row[0]
    summed = path.with_name("rollup.parquet")
    use = path.name == "values.parquet" and summed.is_file() and size > DETAIL
    names = ondisk.names(path, con) if size > DETAIL or not len(log.frame) else []
    if not len(log.frame):
        _medians(path, con, log, names, summed if use else None)
    if size <= DETAIL:
        if size:
            con.execute(f"CREATE TABLE detail AS SELECT * FROM v WHERE NOT ({WHOLE})")
            log.detail = _frame(con, "detail", None if log.unrecognised is None else [], len(log.origins))
        return
    log.table, seen = ondisk.detail_query(path, con, summed if use else None, names, log.frame, size)
    # Columns without rows: the report counts ranks, layers, and experts by them.
    log.detail.columns = {key: Column(key, "" if log.unrecognised is not None else key.signal) for key in seen}


def _medians(path: Path, con: DuckDBPyConnection, log: Log, names: list[ondisk.Name], summed: Path | None) -> None:
    """The whole model from its ranks: a fact says so, and what is derived is not written again."""
    con.execute(
        f"CREATE TABLE median AS SELECT segment, step, {', '.join(_KEY)}, value, state, raw, source, line FROM v LIMIT 0"
    )
    identity = "segment, step, axis, role, signal, stat, label"
    if summed is not None:
        con.execute(
            f"INSERT INTO median BY NAME SELECT {identity.replace('stat', _STAT)}, CASE WHEN bad = 0 THEN p50 END AS value, "
            f"CASE WHEN bad = 0 AND p50 IS NOT NULL THEN '{FINITE}' ELSE state END AS state FROM {scan(summed)} "
            "WHERE kind = 'step' AND layer IS NULL AND expert IS NULL AND module IS NULL"
        )
    else:
        segments = ondisk.constants(con, ("segment",)) or []
        # Most runs never restart: grouping by the step alone is a sixth faster.
        group, segment = ("step", f"{segments[0][0]}::SMALLINT") if len(segments) == 1 else ("segment, step", "segment")
        for name in names:
            # Name by name, for the medians of all would not fit in memory; states apart, for Parquet's statistics
            # let that query skip nearly every row group.
            rows = f"FROM {scan(path)} WHERE {ondisk.where(name, names)} AND {_BY_RANK}"
            fixed = ", ".join(
                f"{'NULL' if part is None else quoted(part)} AS {column}"
                for column, part in zip(("signal", "axis", "role", "stat", "label"), name, strict=True)
            )
            con.execute(
                f"INSERT INTO median BY NAME SELECT {segment} AS segment, step, {fixed.replace(_MEAN, 'NULL AS stat')}, "
                "CASE WHEN odd.bad THEN NULL ELSE m.value END AS value, "
                f"CASE WHEN m.value IS NULL OR odd.bad THEN odd.state ELSE '{FINITE}' END AS state "
                f"FROM (SELECT {group}, median(value) AS value {rows} GROUP BY {group}) m LEFT JOIN "
                f"(SELECT {group}, {rollup.worst()} AS state, bool_or({BAD_SQL}) AS bad {rows} AND state <> '{FINITE}' "
                f"GROUP BY {group}) odd USING ({group})"
            )
    log.frame = _frame(con, "median", None if log.unrecognised is None else [], len(log.origins))
    if len(log.frame):
        log.fact(DERIVED, True)


def _events(path: Path, con: DuckDBPyConnection, log: Log) -> None:
    names = list(EVENTS)
    beside = path.with_name("events.parquet")
    if path.name == "values.parquet":
        if not beside.is_file():
            return
        try:
            rows = con.execute(f"SELECT {', '.join(names)} FROM {scan(beside)}").fetchall()
        except duckdb.Error as error:
            raise SchemaError(
                f"{beside}: is no events table ({str(error).splitlines()[0]}); write it again, or remove it"
            ) from error
    else:
        data = _metadata(path, con, EVENTS_KEY)
        rows = [tuple(entry.get(name) for name in names) for entry in data or [] if isinstance(entry, dict)]
    last = max(len(log.origins) - 1, 0)
    kinds: dict[str, Any] = {"string": str, "float64": (int, float)}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            kind, null = EVENTS[name]
            if not (isinstance(value, kinds.get(kind, int)) or (value is None and (null or name == "segment"))):
                raise SchemaError(f"{path}: an event has {name} {value!r}, allowed is {kind}; see docs/trace.md")
        entry = dict(zip(names, row, strict=True))
        entry["source"] = min(max(entry["source"] or 0, 0), last)
        entry["line"], entry["segment"] = entry["line"] or 0, entry["segment"] or 0
        log.events.append(Event(**entry))
