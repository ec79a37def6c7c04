"""Reads an incident lake: DuckDB over its Parquet files, the newest diagnosis and the newest label of each incident.

A file that is torn or foreign is named and left out. Files may vanish while they are read, because `compact` replaces
them: then the folder is listed again, so that what they held is found in the merged file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from faultproxy.analyzer.errors import InputError, no_such
from faultproxy.analyzer.incidents.lake import COLUMNS, DAY, INCIDENTS, LABEL_COLUMNS, LABELS, day_folders, read
from faultproxy.analyzer.incidents.store import Store
from faultproxy.analyzer.report.clean import encodable
from faultproxy.analyzer.schema import connect, quoted

_TRIES = 20
#: What filters and counts need. Every column of every file costs time, so the others wait until an incident is shown.
_KEYS = ("id", "time", "written", "job_id", "framework", "failure_type", "factor", "cause", "rule")
_HEAVY = ("diagnosis", "job")
#: What the human said counts where there is a label.
_JUDGED = """
CREATE TEMP VIEW judged AS
SELECT i.* REPLACE (
        coalesce(l.failure_type, i.failure_type) AS failure_type, coalesce(l.factor, i.factor) AS factor,
        CASE WHEN l.failure_type = 'healthy' THEN NULL ELSE coalesce(l.cause, i.cause) END AS cause),
    i.failure_type AS found_type, i.factor AS found_factor, l.id IS NOT NULL AS labelled, l.factor AS said_factor, l.fix, l.author
FROM incidents i LEFT JOIN (FROM labels QUALIFY row_number() OVER (PARTITION BY id ORDER BY written DESC) = 1) l USING (id)
"""
_FILTERS = {
    "since": "time >= $since", "until": "time < $until", "type": "failure_type = $type", "factor": "factor = $factor",
    "job": "job_id = $job", "text": "hit",
}  # fmt: skip
#: Table of `stats` to its query; each counts incidents that are failures by the verdict that counts.
_STATS = {
    "by_type": "SELECT failure_type, count(*) AS incidents FROM failed GROUP BY ALL ORDER BY 2 DESC, 1",
    "by_factor": "SELECT factor, count(*) AS incidents FROM failed GROUP BY ALL ORDER BY 2 DESC, 1",
    "by_week": "SELECT strftime(time, '%G-W%V') AS week, count(*) AS incidents FROM failed GROUP BY ALL ORDER BY 1",
    "by_framework": "SELECT framework, count(*) AS incidents FROM failed GROUP BY ALL ORDER BY 2 DESC, 1",
    "recurring": """SELECT failure_type, factor, cause, rule, count(*) AS incidents, count(DISTINCT job_id) AS jobs,
        max(time) AS last, arg_max(id, time) AS last_id FROM failed GROUP BY ALL HAVING count(*) > 1
        ORDER BY 5 DESC, last DESC, 1 LIMIT 10""",
}


@dataclass(slots=True)
class Lake:
    """An open lake: `con` has the tables `incidents` and `labels` and the view `judged`; `skipped` names bad files."""

    store: Store
    con: duckdb.DuckDBPyConnection
    skipped: list[str] = field(default_factory=list)

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query as dicts."""
        cursor = self.con.execute(sql, dict(values or {}))
        names = [entry[0] for entry in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def open_lake(store: Store, since: str | None = None, until: str | None = None, text: str | None = None) -> Lake:
    """Read the flat columns of the days from `since` to `until`; `text` marks the incidents whose report or job holds it."""
    con = connect({})
    con.execute("SET TimeZone = 'UTC'")
    if not text:
        # Opening thousands of small files is one lock in DuckDB: a second thread doubled the processor time for nothing.
        con.execute("SET threads = 1")
    if store.remote:
        con.register_filesystem(store.remote)
    lake = Lake(store, con)
    hit = "contains(lower(concat(job, diagnosis)), lower($text))" if text else "true"
    keys = f"{', '.join(_KEYS)}, {hit} AS hit"
    # Both columns are JSON, where a quote or a backslash stands behind a backslash.
    values = {"text": orjson.dumps(encodable(text)).decode()[1:-1]} if text else {}
    _load(lake, "found", keys, COLUMNS, day_folders(store, since, until), values)
    labels = ", ".join(name for name in LABEL_COLUMNS.names if name not in _HEAVY)
    _load(lake, "labels", labels, LABEL_COLUMNS, [LABELS], {})
    con.execute("CREATE TEMP TABLE incidents AS FROM found QUALIFY row_number() OVER (PARTITION BY id ORDER BY written DESC, filename) = 1")  # fmt: skip
    con.execute(_JUDGED)
    return lake


def _load(lake: Lake, table: str, select: str, columns: pa.Schema, folders: list[str], values: dict[str, str]) -> None:  # fmt: skip
    lake.con.register("nothing", columns.empty_table())
    lake.con.execute(f"CREATE TEMP TABLE {table} AS SELECT {select}, '' AS filename FROM nothing", values)
    insert = f"INSERT INTO {table} SELECT {select}, filename FROM "
    # In one go, or where `compact` is at work day by day: while one is read, others may change.
    if not _insert(lake, insert, columns, folders, values, 1):
        for folder in folders:
            if not _insert(lake, insert, columns, [folder], values, _TRIES):
                raise InputError(f"{lake.store.path(folder)}: its files cannot be read together; try again")


def _insert(lake: Lake, insert: str, columns: pa.Schema, folders: list[str], values: dict[str, str], tries: int) -> bool:  # fmt: skip
    """Read the files of some folders into a table, or nothing; False where they changed each time."""
    while tries:
        # Twice, as a listing of a folder that is merged meanwhile can show neither the files nor what they became.
        names = {name for folder in (*folders, *folders) for name in lake.store.files(folder)}
        files = sorted(name for name in names if lake.store.path(name) not in lake.skipped)
        try:
            if files:
                lake.con.execute(insert + scan(lake.store, files), values)
            return True
        except duckdb.Error as error:
            named = [name for name in files if lake.store.path(name) in str(error)]
            broken = [name for name in named or files if read(lake.store, name, columns) is None]
            torn = [lake.store.path(name) for name in broken if lake.store.exists(name)]
            lake.skipped += torn
            tries -= not torn
    return False


def scan(store: Store, files: list[str]) -> str:
    """`read_parquet([...])` of these files of the lake."""
    return f"read_parquet([{', '.join(quoted(store.path(name)) for name in files)}], filename = true)"


def listed(lake: Lake, filters: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Incidents that pass every filter that is not None, newest first."""
    where, values = _where(filters)
    rows = lake.rows(f"SELECT * EXCLUDE (hit) FROM judged WHERE {where} ORDER BY time DESC, id LIMIT {limit:d}", values)
    return [_whole(lake, row, _HEAVY) for row in rows]


def stats(lake: Lake, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of the failures that pass the filters, and how often labels agree with what was found."""
    where, values = _where(filters)
    lake.con.execute(f"CREATE TEMP TABLE chosen AS SELECT * FROM judged WHERE {where}", values)
    lake.con.execute("CREATE TEMP VIEW failed AS FROM chosen WHERE failure_type <> 'healthy'")
    (counts,) = lake.rows("""SELECT count(*) AS incidents, (SELECT count(*) FROM failed) AS failed,
        count(*) FILTER (labelled) AS labelled, count(*) FILTER (labelled AND found_type = failure_type) AS type_right,
        count(said_factor) AS factor_labelled, count(*) FILTER (found_factor = said_factor) AS factor_right FROM chosen""")
    return counts | {name: lake.rows(sql) for name, sql in _STATS.items()}


def one(lake: Lake, prefix: str) -> dict[str, Any]:
    """The incident whose id begins with `prefix`, with its report, its job, and all its labels, the newest first."""
    rows = lake.rows("SELECT * FROM judged WHERE starts_with(id, $prefix) LIMIT 2", {"prefix": prefix})
    if not rows:
        ids = [row["id"] for row in lake.rows("SELECT id FROM incidents ORDER BY time DESC LIMIT 1000")]
        raise no_such("incident", prefix, ids, "`faultproxy incidents list`")
    if len(rows) > 1:
        raise InputError(f"{prefix!r} begins several ids; give more of it (`faultproxy incidents list`)")
    row = _whole(lake, rows[0], ())
    kept = ", ".join(name for name in LABEL_COLUMNS.names if name not in ("id", *_HEAVY))
    labels = lake.rows(f"SELECT {kept} FROM labels WHERE id = $id ORDER BY written DESC", {"id": row["id"]})
    return row | {"labels": labels}


def _whole(lake: Lake, row: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    """A row of `judged` with the columns that are still on disk, wherever `compact` has moved them in the meantime."""
    rest = ", ".join(name for name in COLUMNS.names if name not in (*_KEYS, *without))
    keys = {"id": row["id"], "written": row["written"]}
    for source in (f"read_parquet({quoted(row['filename'])})", None):
        source = source or scan(lake.store, lake.store.files(f"{INCIDENTS}/{DAY}{row['time']:%Y-%m-%d}"))
        try:
            found = lake.rows(f"SELECT {rest} FROM {source} WHERE id = $id AND written = $written LIMIT 1", keys)[0]
        except (duckdb.Error, IndexError):
            continue
        return {name: value for name, value in (row | found).items() if name not in ("filename", "hit")}
    raise InputError(f"{row['filename']}: is torn, or was merged just now; try again, then remove it")


def _where(filters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in filters.items() if value is not None}
    values = {name: value for name, value in given.items() if name != "text"}
    return " AND ".join(_FILTERS[name] for name in given) or "true", values
