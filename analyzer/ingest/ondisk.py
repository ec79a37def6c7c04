"""The part of a large canonical trace that stays on disk, as one query with the columns of the view `detail`.

- A branch a signal, its rule name a literal: a filter on the name then drops whole branches, and the signal's own
  predicate drops row groups, so rules that read 2 of 100 signals scan 2.
- Ranks of one layer or expert are summed up as the views do it (largest value, worst state), from the rollup if any.
- Above SAMPLE_FROM cells, ranks are shown at the first BAD_STEPS bad steps of every signal and at EVEN_STEPS others
  spread over the run. Rules on ranks compare the ranks of a step; 1e8 cells of healthy steps add no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from faultproxy.analyzer import rollup
from faultproxy.analyzer.schema import BAD_SQL, quoted, scan
from faultproxy.analyzer.trace import Frame, Key

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SAMPLE_FROM = 5_000_000
BAD_STEPS, EVEN_STEPS = 32, 64
#: More distinct names than this make one branch that computes the name: planning a branch takes 0.1 ms.
MAX_BRANCHES = 400
_PLACED = "(layer IS NOT NULL OR expert IS NOT NULL OR module IS NOT NULL)"
_INDICES = ("rank", "layer", "expert", "module")
_NAME = ("signal", "axis", "role", "stat", "label")
#: Key.column in SQL.
_NAME_SQL = (
    "CASE WHEN axis = 'eval' THEN 'eval_' ELSE '' END || CASE WHEN role IS NULL OR role = 'actor' THEN '' ELSE role || '_' END"
    " || signal || CASE WHEN stat IS NULL OR stat IN ('mean', 'last') THEN '' ELSE '_' || stat END"
    " || CASE WHEN label IS NULL THEN '' ELSE '[' || label || ']' END"
)
Name = tuple[str | None, ...]


def load_footer(path: Path, con: DuckDBPyConnection) -> None:
    """Put what the footer says of every row group into the table `footer`; parsing it once is most of a small read."""
    columns = ", ".join(map(quoted, ("run", "segment", *_NAME, *_INDICES)))
    con.execute(
        "CREATE TABLE footer AS SELECT row_group_id AS part, path_in_schema AS name, stats_min_value AS low, "
        "stats_max_value AS high, stats_null_count AS nulls, num_values AS size "
        f"FROM parquet_metadata({quoted(str(path))}) WHERE path_in_schema IN ({columns})"
    )


def counts(con: DuckDBPyConnection) -> tuple[int, dict[str, int | None]]:
    """Rows of the file, and how many nulls each index column has (None where its writer kept no count)."""
    found = con.execute(
        "SELECT name, sum(size)::BIGINT, CASE WHEN count(nulls) = count(*) THEN sum(nulls)::BIGINT END "
        f"FROM footer WHERE name IN ({', '.join(map(quoted, _INDICES))}) GROUP BY 1"
    ).fetchall()
    return max((rows for _, rows, _ in found), default=0), {name: nulls for name, _, nulls in found}


def constants(con: DuckDBPyConnection, columns: tuple[str, ...]) -> list[Name] | None:
    """The distinct values of columns that hold one value in every row group; None when one does not."""
    rows = con.execute(
        "SELECT DISTINCT part, name, CASE WHEN nulls = size THEN NULL ELSE low END, "
        # Statistics of long texts may be cut off.
        "coalesce(nulls = size OR (nulls = 0 AND low = high AND len(low) < 60), false) "
        f"FROM footer WHERE name IN ({', '.join(map(quoted, columns))})"
    ).fetchall()
    groups: dict[int, dict[str, str | None]] = {}
    for part, column, value, constant in rows:
        if not constant:
            return None
        groups.setdefault(part, {})[column] = value
    return list({tuple(group[column] for column in columns) for group in groups.values()})


def names(path: Path, con: DuckDBPyConnection) -> list[Name]:
    """The distinct (signal, axis, role, stat, label) of a file in order."""
    found = constants(con, _NAME)
    if found is None:
        found = con.execute(f"SELECT DISTINCT {', '.join(_NAME)} FROM {scan(path)}").fetchall()
    return sorted(found, key=lambda name: tuple((part is not None, part or "") for part in name))


def detail_query(
    path: Path, con: DuckDBPyConnection, summed: Path | None, found: list[Name], frame: Frame, size: int
) -> tuple[str, list[Key]]:
    """The query, and one key for every signal, rank, layer, and expert that the file holds."""
    rows, nulls = counts(con)
    has = {name: count is None or count < rows for name, count in nulls.items()}
    chosen = _chosen(path, con, summed, frame) if has["rank"] and size > SAMPLE_FROM else None
    sampled = "" if chosen is None else f" AND (segment, step) IN ({chosen})"
    branches: list[tuple[str, str]] = [(quoted(_key(name).column), where(name, found)) for name in found]
    if len(found) > MAX_BRANCHES:
        branches = [(_NAME_SQL, "true")]
    placed = has["layer"] or has["expert"] or has["module"]
    parts: list[str] = []
    for label, test in branches:
        if has["rank"]:
            parts.append(
                f"{_select('rank', 'NULL::INTEGER', 'NULL::INTEGER', 'module', label, 'value', 'state')} FROM {scan(path)} WHERE {test} "
                f"AND rank IS NOT NULL AND layer IS NULL AND expert IS NULL AND module IS NULL{sampled}"
            )
        if placed:
            parts += _by_place(path, summed, label, test, nulls)
    return " UNION ALL ".join(parts) or "SELECT * FROM detail WHERE false", list(_seen(path, con, summed, found, has))


def _by_place(path: Path, summed: Path | None, label: str, test: str, nulls: dict[str, int | None]) -> Iterator[str]:
    """Rows of layers, experts, and modules, one a step whatever the ranks."""
    place = ("NULL::INTEGER", "layer::INTEGER", "expert::INTEGER", "module", label)
    if nulls["rank"] != 0:
        yield f"{_select(*place, 'value', 'state')} FROM {scan(path)} WHERE {test} AND {_PLACED} AND rank IS NULL"
    if summed is not None:
        yield f"{_select(*place, 'max', 'state')} FROM {scan(summed)} WHERE kind = 'step' AND {test} AND {_PLACED}"
    else:
        inner = f"SELECT segment, step, layer, expert, module, {', '.join(n for n in _NAME)}, max(value) AS value, {rollup.worst()} AS state "
        yield (
            f"{_select(*place, 'value', 'state')} FROM ({inner} FROM {scan(path)} WHERE {test} AND {_PLACED} "
            "AND rank IS NOT NULL GROUP BY ALL)"
        )


def _select(rank: str, layer: str, expert: str, module: str, signal: str, value: str, state: str) -> str:
    return (
        f"SELECT segment::INTEGER AS segment, step, {rank} AS rank, {layer} AS layer, {expert} AS expert, {module} AS module, "
        f"{signal} AS signal, {value} AS value, {state} AS state"
    )


def where(name: Name, names: list[Name]) -> str:
    """The rows of one name; what its signal has only one of needs no test."""
    namesakes = [other for other in names if other[0] == name[0]]
    tests = [f"signal = {quoted(str(name[0]))}"]
    for at, column in enumerate(_NAME[1:], 1):
        if len({other[at] for other in namesakes}) > 1:
            part = name[at]
            tests.append(f"{column} IS NULL" if part is None else f"{column} = {quoted(part)}")
    return " AND ".join(tests)


def _key(name: Name) -> Key:
    signal, axis, role, stat, label = name
    return Key(str(signal), str(axis), role, None if stat == "mean" else stat, label)


def _chosen(path: Path, con: DuckDBPyConnection, summed: Path | None, frame: Frame) -> str:
    """SQL list of the (segment, step) at which ranks are shown."""
    plain = "layer IS NULL AND expert IS NULL AND module IS NULL"
    bad = (
        f"FROM {scan(summed)} WHERE kind = 'step' AND bad > 0 AND {plain}"
        if summed is not None
        else f"FROM {scan(path)} WHERE {BAD_SQL} AND rank IS NOT NULL AND {plain}"
    )
    rows = con.execute(
        "SELECT DISTINCT segment, step FROM (SELECT segment, step, row_number() OVER (PARTITION BY signal, segment ORDER BY step) AS nth "
        f"FROM (SELECT DISTINCT signal, segment, step {bad})) WHERE nth <= {BAD_STEPS}"
    ).fetchall()
    stride = max(1, len(frame) // EVEN_STEPS)
    rows += [(frame.segments[row], frame.steps[row]) for row in range(0, len(frame), stride)]
    return (
        "VALUES " + ", ".join(f"({segment}, {step})" for segment, step in sorted(set(rows)))
        if rows
        else "VALUES (-1, -1)"
    )


def _seen(
    path: Path, con: DuckDBPyConnection, summed: Path | None, found: list[Name], has: dict[str, bool]
) -> Iterator[Key]:
    first = _key(found[0])
    sources = {name: scan(path) for name in ("rank", "layer", "expert")}
    if summed is not None:
        sources["rank"] = f"{scan(summed)} WHERE kind = 'rank'"
    elif has["rank"]:
        # Ranks report the same signals: the one with most rows stands for all, a scan of every rank costs a sum scan.
        most = con.execute(
            "SELECT low FROM footer WHERE name = 'signal' GROUP BY low ORDER BY sum(size) DESC"
        ).fetchone()
        if most is not None and most[0] in {name[0] for name in found}:
            sources["rank"] = f"{scan(path)} WHERE signal = {quoted(most[0])}"
    rank = None
    for index, source in sources.items():
        if not has[index]:
            continue
        for (value,) in con.execute(f"SELECT DISTINCT {index} FROM {source} ORDER BY 1 NULLS LAST").fetchall():
            if value is not None:
                rank = value if rank is None and index == "rank" else rank
                yield first._replace(**{index: value})
    for name in found:
        yield _key(name)._replace(rank=rank, module=None if rank is not None else "any")
