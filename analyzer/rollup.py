"""`rollup.parquet`: what 1,024 ranks said, once a step and once a rank, so that a reader need not scan 1e8 values.

A row of kind `step` sums up the ranks of one key at one step, a row of kind `rank` one rank over its segment (layers
and experts together). Only values split by rank are summed up; a file without any is summed up whole. It is computed
signal by signal: the medians of one signal are what must fit in memory, not those of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.schema import BAD_SQL, bounded, quoted, scan

if TYPE_CHECKING:
    import duckdb

#: The rollup is written when a run has more than one rank, or more values than this.
VALUES_FROM = 10_000_000
#: The state of a summary: the first of these that any rank has; the order is that of how much it tells.
_WORST = ("nan", "pos_inf", "neg_inf", "nonfinite", "masked", "finite", "quantised", "absent")
_IDENTITY = ("run", "segment", "axis", "role", "signal", "stat", "label")
_PLACE = ("module", "layer", "expert")


def needed(path: str | Path) -> bool:
    """True when the file has more than one rank, or more than VALUES_FROM values; read from the footer alone."""
    with bounded() as con:
        row = con.execute(
            "SELECT sum(num_values), min(try_cast(stats_min_value AS BIGINT)), max(try_cast(stats_max_value AS BIGINT)) "
            f"FROM parquet_metadata({quoted(str(path))}) WHERE path_in_schema = 'rank'"
        ).fetchone()
    assert row is not None
    values, low, high = row
    return bool((values or 0) > VALUES_FROM or (low is not None and high > low))


def worst() -> str:
    """SQL: the worst state of a group; a bad one wins over any number of good ones."""
    order = ", ".join(map(quoted, _WORST))
    # Nearly all are finite: the case spares the search for them.
    finite = _WORST.index("finite") + 1
    return f"[{order}][min(CASE WHEN state = 'finite' THEN {finite} ELSE list_position([{order}], state) END)]"


def signals(path: str | Path, con: duckdb.DuckDBPyConnection) -> list[str]:
    """The signals of a file in order; from the footer when its row groups are cut at signal borders, else by a scan."""
    rows = con.execute(
        "SELECT DISTINCT stats_min_value, stats_min_value IS NOT DISTINCT FROM stats_max_value AND stats_min_value IS NOT NULL "
        f"AND len(stats_min_value) < 60 FROM parquet_metadata({quoted(str(path))}) WHERE path_in_schema = 'signal'"
    ).fetchall()
    if rows and all(row[1] for row in rows):
        return sorted(row[0] for row in rows)
    return [row[0] for row in con.execute(f"SELECT DISTINCT signal FROM {scan(path)} ORDER BY 1").fetchall()]


def write(path: str | Path, target: str | Path) -> None:
    """Write the rollup of a values file."""
    import pyarrow.parquet as pq

    with bounded() as con:
        split = con.execute(f"SELECT 1 FROM {scan(path)} WHERE rank IS NOT NULL LIMIT 1").fetchone() is not None
        writer: Any = None
        try:
            for table in _tables(path, con, "rank IS NOT NULL" if split else "true"):
                writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _tables(path: str | Path, con: duckdb.DuckDBPyConnection, where: str) -> Iterator[Any]:
    identity, place = ", ".join(_IDENTITY), ", ".join(_PLACE)
    sums = (
        f"count(*) AS n, count(*) FILTER ({BAD_SQL}) AS bad, min(value) AS min, median(value) AS p50, max(value) AS max"
    )
    first = f"min(step) FILTER ({BAD_SQL}) AS first_bad_step"
    for signal in signals(path, con):
        rows = f"FROM {scan(path)} WHERE signal = {quoted(signal)} AND {where}"
        by_step = (
            f"SELECT 'step' AS kind, {identity}, {place}, NULL::INTEGER AS rank, step, {sums}, "
            f"arg_max(rank, value) AS argmax_rank, {worst()} AS state, {first} "
            f"{rows} GROUP BY {identity}, {place}, step ORDER BY {identity}, {place}, step"
        )
        by_rank = (
            f"SELECT 'rank' AS kind, {identity}, NULL::VARCHAR AS module, NULL::SMALLINT AS layer, "
            f"NULL::SMALLINT AS expert, rank, NULL::BIGINT AS step, {sums}, NULL::INTEGER AS argmax_rank, "
            f"{worst()} AS state, {first} {rows} GROUP BY {identity}, rank ORDER BY {identity}, rank"
        )
        yield con.sql(by_step).to_arrow_table()
        yield con.sql(by_rank).to_arrow_table()
