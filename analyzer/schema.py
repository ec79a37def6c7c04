"""The canonical trace on disk: names, types, and order of `values.parquet`, and the check of a file against them.

docs/trace.md is this page in words. The check runs in DuckDB, not in Arrow: it needs no import that `analyze` does not
make anyway, never holds more than its groups in memory, and reports every problem of a file at once. Dictionary
strings are plain UTF-8 to Parquet, so a writer without dictionaries (DuckDB, pandas) passes too.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import SchemaError
from faultproxy.analyzer.trace import AXES, BAD_STATES, FINITE, QUANTISED, STATES

if TYPE_CHECKING:
    import duckdb

#: Version of the layout; readers refuse a higher one.
SCHEMA = 1
RUN_KEY, EVENTS_KEY = "faultproxy.run", "faultproxy.events"
#: A lone `trace.parquet` carries this many events in its footer, which every reader of the file has to load.
MAX_LONE_EVENTS = 1000
#: DuckDB's own row group: a scan hands out whole groups to threads.
ROW_GROUP = 122_880

_STRING = "string"
#: Column to (type, may be null). `string` is dictionary-encoded except `raw`, whose tokens rarely repeat.
VALUES: dict[str, tuple[str, bool]] = {
    "run": (_STRING, False), "segment": ("int16", False), "axis": (_STRING, False), "step": ("int64", False),
    "rank": ("int32", True), "layer": ("int16", True), "expert": ("int16", True), "module": (_STRING, True),
    "role": (_STRING, True), "signal": (_STRING, False), "stat": (_STRING, True), "label": (_STRING, True),
    "value": ("float64", True), "state": (_STRING, False), "raw": (_STRING, True),
    "source": ("int32", True), "line": ("int64", True),
}  # fmt: skip
#: A null stat is the mean: most writers log one number a step and name no statistic.
KEY = ("run", "segment", "axis", "step", "rank", "layer", "expert", "module", "role", "signal", "stat", "label")
ORDER = ("run", "signal", "stat", "layer", "expert", "rank", "segment", "step", "axis", "role", "label", "module")
EVENTS: dict[str, tuple[str, bool]] = {
    "kind": (_STRING, False), "text": (_STRING, False), "step": ("int64", True), "segment": ("int16", False),
    "rank": ("int32", True), "value": ("float64", True), "source": ("int32", True), "line": ("int64", True),
}  # fmt: skip
#: One row a response. Token lists of one row have one length; nothing reads this file yet.
SAMPLES: dict[str, tuple[str, bool]] = {
    "run": (_STRING, False), "segment": ("int16", False), "step": ("int64", False), "prompt": (_STRING, True),
    "sample": ("int32", False), "reward": ("float64", True), "advantage": ("float64", True), "truncated": ("bool", True),
    "logp_train": ("floats", True), "logp_rollout": ("floats", True), "mask": ("bools", True),
}  # fmt: skip
#: A row that was logged without one readable value: (signal, axis, state). Without it the step would be forgotten.
BARE = ("step", "system", "absent")

#: Below the 2 GiB the whole process may take: the rest is Python, Arrow, and DuckDB's own overhead.
MEMORY = "1536MiB"
_DUCKDB = {
    _STRING: "VARCHAR", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float64": "DOUBLE",
    "bool": "BOOLEAN", "floats": "FLOAT[]", "bools": "BOOLEAN[]",
}  # fmt: skip
_BAD = ", ".join(f"'{state}'" for state in BAD_STATES)
#: SQL: true for a state that means "this number was not finite".
BAD_SQL = f"state IN ({_BAD})"
#: Format of the source that stands for the canonical file itself; it is read again, so it is never written.
CONTAINER = "canonical"
#: The same where it names no files it was made from: it is the origin itself.
ORIGIN = "canonical-parquet"
#: A temporary canonical file that holds the rows of a large source of another format until the program ends.
COPY = "temporary-copy"
#: Fact of a trace whose whole-model columns are medians over ranks: they are derived again, so never written.
DERIVED = "values_are_median_of_ranks"


def arrow(columns: dict[str, tuple[str, bool]]) -> Any:
    """The Arrow schema of one of the tables above."""
    import pyarrow as pa

    types = {
        _STRING: pa.dictionary(pa.int32(), pa.string()), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
        "float64": pa.float64(), "bool": pa.bool_(), "floats": pa.list_(pa.float32()), "bools": pa.list_(pa.bool_()),
    }  # fmt: skip
    return pa.schema(
        pa.field(name, pa.string() if name in ("raw", "text") else types[kind], nullable=null)
        for name, (kind, null) in columns.items()
    )


def settings(memory: str = MEMORY) -> dict[str, Any]:
    """DuckDB settings for what may be larger than memory: a limit, and where to spill.

    DuckDB makes the folder when it spills and removes it; two processes in one would overwrite each other's files.
    """
    folder = Path(tempfile.gettempdir()) / f"faultproxy-spill-{secrets.token_hex(8)}"
    return {"memory_limit": memory, "temp_directory": str(folder)}


def connect(config: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB without its progress bar, which it would draw on stdout, into the report."""
    import duckdb

    con = duckdb.connect(config=config)
    con.execute("SET enable_progress_bar = false")
    return con


@contextmanager
def bounded() -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB that spills to the temporary folder instead of growing past MEMORY."""
    with connect(settings()) as con:
        yield con


def scan(path: str | Path) -> str:
    """`read_parquet('...')` of exactly one file, whatever its name holds."""
    return f"read_parquet({quoted(str(path))})"


def quoted(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def validate(path: str | Path, *, content: bool = True, con: duckdb.DuckDBPyConnection | None = None) -> None:
    """Check a `values.parquet` or `trace.parquet`; `content=False` reads only its footer.

    Raises SchemaError that lists every problem: what was got, what is allowed, and what to do next.
    """
    if con is None:
        with bounded() as own:
            return validate(path, content=content, con=own)
    problems = list(_types(path, con))
    if not problems and content:
        problems = [*_content(path, con), *_duplicates(path, con)]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaError(f"{path}: breaks the canonical schema in {len(problems)} point(s) (docs/trace.md):{listed}")


def _types(path: str | Path, con: duckdb.DuckDBPyConnection) -> Iterator[str]:
    import duckdb

    try:
        rows = con.execute(f"DESCRIBE SELECT * FROM {scan(path)}").fetchall()
    except duckdb.Error as error:
        raise SchemaError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); write the file again"
        ) from error
    found = {row[0]: row[1] for row in rows}
    missing = [name for name in VALUES if name not in found]
    if missing:
        yield (
            f"missing columns: {', '.join(missing)}; got {', '.join(found)}; all {len(VALUES)} must be there, "
            "add them (all null where the table allows null)"
        )
    for name, (kind, _) in VALUES.items():
        if name in found and found[name] != _DUCKDB[kind]:
            yield f"column {name} is {found[name]}, allowed is {kind} ({_DUCKDB[kind]}); cast it before writing"


def _content(path: str | Path, con: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Problems that one scan over the rows finds."""
    number = f"state IN ('{FINITE}', '{QUANTISED}')"
    states = ", ".join(map(quoted, STATES))
    axes = ", ".join(map(quoted, AXES))
    tests = {
        f"state NOT IN ({states})": (
            "arg_min(state, step)",
            f"unknown state {{example!r}}; allowed are {', '.join(STATES)}; map it to one of them",
        ),
        f"axis NOT IN ({axes})": (
            "arg_min(axis, step)",
            f"unknown axis {{example!r}}; allowed are {', '.join(AXES)}; map it to one of them",
        ),
        f"value IS NOT NULL AND state IN ({states}) AND NOT {number}": (
            "arg_min(state, step)",
            "a value beside state {example!r}; a value is allowed only when state is finite or quantised; set it to null",
        ),
        f"value IS NULL AND {number}": (
            "min(step)",
            "no value though state says there is one (first at step {example}); write the value, or the state it really had",
        ),
        f"{number} AND NOT isfinite(value)": (
            "min(step)",
            "NaN or infinity as a value (first at step {example}); write null, and nan, pos_inf, or neg_inf as state",
        ),
        "step < 0": ("min(step)", "negative step {example}; steps start at 0; renumber them"),
        "segment < 0": ("min(segment)", "negative segment {example}; segments start at 0; renumber them"),
    }
    for name, (_, null) in VALUES.items():
        if not null:
            tests[f"{name} IS NULL"] = ("min(line)", f"null in column {name}; it must always have a value; fill it")
    picks = [
        f"count(*) FILTER ({test}), {example} FILTER ({test})" if test else "" for test, (example, _) in tests.items()
    ]
    row = con.execute(f"SELECT {', '.join(picks)} FROM {scan(path)}").fetchone()
    assert row is not None
    for at, (_, message) in enumerate(tests.values()):
        count, example = row[2 * at], row[2 * at + 1]
        if count:
            yield f"{count} row(s): {message.format(example=example)}"


def _duplicates(path: str | Path, con: duckdb.DuckDBPyConnection) -> Iterator[str]:
    keys = ", ".join("coalesce(stat, 'mean') AS stat" if name == "stat" else name for name in KEY)
    row = con.execute(
        f"SELECT count(*), min({{'signal': signal, 'step': step}}) FROM (SELECT {keys}, count(*) AS n FROM {scan(path)} "
        f"GROUP BY ALL HAVING n > 1)"
    ).fetchone()
    assert row is not None
    if row[0]:
        yield (
            f"{row[0]} key(s) more than once, such as {row[1]['signal']!r} at step {row[1]['step']}; "
            f"({', '.join(KEY)}) must be unique (a null stat is the mean); keep one value a key"
        )
