"""Writes a trace in canonical form: a lone `trace.parquet`, or a folder `NAME.trace/` with its events and rollup.

Rows come sorted from longform.py. A value that two sources wrote for one key is written once: the first wins, except
that an exact number replaces a rounded zero. A trace whose detail stayed on disk is copied from there, row by row, and
sorted by DuckDB, which spills; it never becomes Python objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from faultproxy.analyzer import rollup
from faultproxy.analyzer.errors import InputError, SchemaError
from faultproxy.analyzer.files import atomic_folder, atomic_path
from faultproxy.analyzer.longform import Rows, utf8
from faultproxy.analyzer.schema import (
    CONTAINER,
    COPY,
    DERIVED,
    EVENTS,
    EVENTS_KEY,
    MAX_LONE_EVENTS,
    ORDER,
    ORIGIN,
    ROW_GROUP,
    RUN_KEY,
    SAMPLES,
    SCHEMA,
    VALUES,
    arrow,
    bounded,
    scan,
    validate,
)
from faultproxy.analyzer.trace import Trace

#: Facts that run.json names at its top; unknown is null.
_NAMED = ("framework", "algorithm", "model", "precision", "parallelism", "hardware", "hyperparameters")


class Written(NamedTuple):
    """What a write did."""

    values: int
    events: int
    dropped_events: int
    rollup: bool


class ValuesWriter:
    """Writes sorted rows as `values.parquet`: row groups of ROW_GROUP rows, cut where the signal changes."""

    def __init__(self, path: str | Path) -> None:
        """Open `path` for writing; the caller makes it atomic."""
        import pyarrow.parquet as pq

        self.schema = arrow(VALUES)
        self.rows = 0
        # Float values rarely repeat and `line` grows: a dictionary of them is built only to be thrown away.
        encoded = [name for name in VALUES if name not in ("value", "line")]
        self._writer = pq.ParquetWriter(path, self.schema, compression="zstd", use_dictionary=encoded)
        self._held: list[Any] = []
        self._signal: str | None = None

    def write(self, table: Any) -> None:
        """Add rows that continue the order."""
        import pyarrow.compute as pc

        table = table.select(self.schema.names).cast(self.schema)
        at = 0
        while at < len(table):
            signal = table["signal"][at].as_py()
            differs = pc.index(pc.equal(table["signal"].slice(at), signal), False).as_py()
            size = len(table) - at if differs < 0 else differs
            if signal != self._signal:
                self._flush(whole=True)
                self._signal = signal
            self._held.append(table.slice(at, size))
            self._flush(whole=False)
            at += size

    def _flush(self, whole: bool) -> None:
        import pyarrow as pa

        held = sum(map(len, self._held))
        if not held or (held < ROW_GROUP and not whole):
            return
        # Chunks bring their own dictionaries; a row group wants one.
        table = pa.concat_tables(self._held).unify_dictionaries()
        size = held if whole else held - held % ROW_GROUP
        for start in range(0, size, ROW_GROUP):
            self._writer.write_table(table.slice(start, min(ROW_GROUP, size - start)), row_group_size=ROW_GROUP)
        self.rows += size
        self._held = [table.slice(size)] if size < held else []

    def close(self, metadata: dict[str, str]) -> None:
        """Write what is held and the footer."""
        self._flush(whole=True)
        if metadata:
            self._writer.add_key_value_metadata(metadata)
        self._writer.close()


def write_file(trace: Trace, target: str | Path, force: bool = False) -> Written:
    """Write a lone `trace.parquet`, whole or not at all. Events beyond MAX_LONE_EVENTS are left out and counted."""
    with atomic_path(target, force) as path:
        events = trace.events[:MAX_LONE_EVENTS]
        values = _values(trace, path, events)
    return Written(values, len(events), len(trace.events) - len(events), False)


def write_folder(trace: Trace, target: str | Path, force: bool = False) -> Written:
    """Write the folder form, whole or not at all; the rollup only when the run has ranks or size for it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_folder(target, "values.parquet", force) as folder:
        values = _values(trace, folder / "values.parquet", None)
        (folder / "run.json").write_text(document(trace, len(trace.events)) + "\n", encoding="ascii")
        rows = list(_events(trace))
        pq.write_table(pa.Table.from_pylist(rows, arrow(EVENTS)), folder / "events.parquet", compression="zstd")
        summed = rollup.needed(folder / "values.parquet")
        if summed:
            rollup.write(folder / "values.parquet", folder / "rollup.parquet")
    return Written(values, len(rows), 0, summed)


def write_samples(path: str | Path, rows: list[dict[str, Any]], force: bool = False) -> None:
    """Write responses as `samples.parquet`; keys are those of schema.SAMPLES, a missing one is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_path(path, force) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, arrow(SAMPLES)), temporary, compression="zstd")


def read_samples(path: str | Path) -> list[dict[str, Any]]:
    """Read a `samples.parquet` back; raises SchemaError when it is not one."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    missing = [name for name in SAMPLES if name not in table.column_names]
    if missing:
        raise SchemaError(
            f"{path}: no samples: missing columns {', '.join(missing)}; all of {', '.join(SAMPLES)} are needed"
        )
    rows: list[dict[str, Any]] = table.select(list(SAMPLES)).to_pylist()
    return rows


def document(trace: Trace, events: int) -> str:
    """`run.json`: what is known of the run beside its values, as ASCII JSON without NaN."""
    facts = _plain(trace.facts)
    data = {
        "schema": SCHEMA,
        "run": trace.run,
        **{name: facts.get(name) for name in _NAMED},
        "facts": facts,
        "sources": [asdict(source) for source in trace.sources if source.format not in (CONTAINER, COPY)],
        "events": {"written": events, "total": len(trace.events)},
        "warnings": trace.warnings,
        "unrecognised": trace.unrecognised,
        # The order decides which of two columns with one rule name is used, and one without a value has no row.
        "columns": [
            [key.signal, key.axis, key.role, key.stat, key.label, column.raw_key]
            for key, column in (() if DERIVED in facts else trace.frame.columns.items())
        ],
    }
    return json.dumps(data, ensure_ascii=True, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    for event in trace.events:
        row = asdict(event)
        row["text"] = utf8(event.text)
        row["value"] = event.value if event.value is not None and isfinite(event.value) else None
        yield row


def _values(trace: Trace, path: Path, lone_events: list[Any] | None) -> int:
    writer = ValuesWriter(path)
    metadata: dict[str, str] = {}
    try:
        losers = 0
        if trace.table is not None:
            for table in _copied(trace):
                writer.write(table)
        else:
            rows = Rows(trace, [trace.detail] if trace.facts.get(DERIVED) else [trace.frame, trace.detail])
            for table in rows.tables():
                writer.write(table)
            losers = rows.losers
        if losers:
            trace.warnings.append(
                f"{losers} values were written twice for one key; the canonical trace keeps one of each"
            )
        if lone_events is not None:
            events = [row for row, _ in zip(_events(trace), lone_events, strict=False)]
            metadata = {RUN_KEY: document(trace, len(events)), EVENTS_KEY: json.dumps(events)}
    finally:
        writer.close(metadata)
    if not writer.rows and not trace.events:
        raise InputError(f"{trace.run}: no value and no event to write")
    return writer.rows


def _copied(trace: Trace) -> Iterator[Any]:
    """The rows of the canonical file that `trace.table` reads, in order."""
    paths = [source.path for source in trace.sources if source.format in (CONTAINER, ORIGIN, COPY)]
    if len(paths) != 1:
        raise InputError(f"{trace.run}: a large canonical trace cannot be joined with other files; ingest each alone")
    validate(paths[0])
    order = ", ".join(f"{name} NULLS FIRST" for name in ORDER)
    with bounded() as con:
        con.execute("SET preserve_insertion_order = false")
        relation = con.sql(f"SELECT {', '.join(VALUES)} FROM {scan(paths[0])} ORDER BY {order}")
        import pyarrow as pa

        for batch in relation.to_arrow_reader(ROW_GROUP):
            yield pa.Table.from_batches([batch])
