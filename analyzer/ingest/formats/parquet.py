"""Parquet: the canonical trace (docs/trace.md), and any table with a step column, wide or long (step, name, value).

A null of a foreign table is "not logged": exporters fill the cells of keys that a row did not log with it, so it is no
evidence of a NaN. A float NaN is kept as one. Values in other columns than numbers, booleans, and text are left out.
A compressed or piped Parquet file is unpacked to a temporary file: its directory is at its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import SchemaError
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import MAX_STEP, Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import native

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_STEPS = ("step", "global_step", "_step", "train/global_step", "current_steps", "train_step", "iteration", "iter", "steps", "update")  # fmt: skip
_NAMES = ("metric", "key", "name", "tag", "signal")
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE")  # fmt: skip
_SCALARS = (*_NUMBERS, "BOOLEAN", "VARCHAR")
#: A file with these columns is meant to be canonical, so it is held to the schema.
_CANONICAL = {"signal", "value", "state", "step"}
_BATCH = 8192


def _sniff(head: bytes, file: File) -> bool:
    return head.startswith(b"PAR1")


def _read(file: File, log: Log) -> None:
    import duckdb

    from faultproxy.analyzer.schema import bounded, scan

    path = _on_disk(file)
    try:
        with bounded() as con:
            described = con.execute(f"DESCRIBE SELECT * FROM {scan(path)}").fetchall()
            types = {row[0]: row[1] for row in described}
            if not types.keys() >= _CANONICAL:
                _table(path, types, con, log)
                return
            from faultproxy.analyzer.ingest.canonical import read

            read(path, log, con)
    except duckdb.Error as error:
        if isinstance(error, (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)):
            raise  # our own query is wrong, not the file
        raise SchemaError(
            f"{file.path}: cannot be read as Parquet ({str(error).splitlines()[0]}); write or copy the file again"
        ) from error


def _on_disk(file: File) -> Path:
    if file.data is None:
        with open(file.path, "rb") as stream:
            if stream.read(4) == b"PAR1":
                return file.path
    import atexit
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="faultproxy-", suffix=".parquet", delete=False) as unpacked:
        path = Path(unpacked.name)
        atexit.register(path.unlink, missing_ok=True)  # the views read it until the report is out
        for chunk in file.chunks():
            unpacked.write(chunk)
    return path


def _table(path: Path, types: dict[str, str], con: DuckDBPyConnection, log: Log) -> None:
    """A foreign table: rows in file order, as the file's writer logged them."""
    low = {name.lower(): name for name in reversed(types)}
    step = next((low[name] for name in _STEPS if name in low and types[low[name]] in _NUMBERS), None)
    if step is None:
        raise SchemaError(
            f"{path}: Parquet without a step column; got {', '.join(list(types)[:20])}; "
            f"a column of integers named {', '.join(_STEPS[:4])}, ... is needed; rename one, or add a row number"
        )
    named = next((low[name] for name in _NAMES if name in low and types[low[name]] == "VARCHAR"), None)
    value = low.get("value")
    keys = [name for name in types if name != step and types[name] in _SCALARS]
    if named is not None and value is not None:
        keys = [named, value]
    if not keys:
        raise SchemaError(f"{path}: no column of numbers beside {step}; add one a metric")
    picks = ", ".join('"' + name.replace('"', '""') + '"' for name in (step, *keys))
    from faultproxy.analyzer.schema import scan

    cursor = con.execute(f"SELECT {picks} FROM {scan(path)}")
    line = 0
    while rows := cursor.fetchmany(_BATCH):
        good = [(line + at, row) for at, row in enumerate(rows, 1) if _is_step(row[0])]
        log.source.unparsed += len(rows) - len(good)
        line += len(rows)
        if named is not None and value is not None:
            for at, (number, key, found) in good:
                log.line = at
                cell = native(found) if found is not None else None
                if key and cell:
                    log.row(int(number), [(key, cell)], "parquet")
        elif good:
            steps, *columns = zip(*(row for _, row in good), strict=True)
            # An empty string is no cell; None would be a number of unknown kind.
            filled = [["" if cell is None else cell for cell in column] for column in columns]
            log.rows([int(number) for number in steps], keys, filled, [at for at, _ in good], "parquet")


def _is_step(value: Any) -> bool:
    return value is not None and 0 <= value < MAX_STEP and value == int(value)


FILE = FileFormat("parquet", _sniff, _read, order=10)
