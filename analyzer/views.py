"""The tables rules read, in an in-memory DuckDB: `train`, `component`, `layer`, `expert`, `rank`, `events`,
`facts` (what is known of the run), and, where the run is compared with a good one, `against`.

`train` has a row a step with `segment`, `step`, `row` (1, 2, ... in the segment), `rows` (of the segment), and for
every signal X a rule declares `X` (DOUBLE, null unless finite) and `X__state`. Signals the trace lacks are all null, so
every query runs on every trace; whether a rule applies is decided before, from `Views.count`.

Small traces go in as list parameters (no numpy, no Arrow: start-up counts), large ones through Arrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer import balance, comparison, swing
from faultproxy.analyzer import facts as run_facts
from faultproxy.analyzer.schema import connect, quoted, settings
from faultproxy.analyzer.trace import BAD_STATES, FINITE, Column, Frame, Trace

if TYPE_CHECKING:
    from faultproxy.analyzer.against import Comparison

#: Above this many cells the Arrow import (70 ms) pays for itself.
_ARROW_FROM = 60_000
#: Below this many rows a query's planning outweighs its run (measured: 58 ms for the catalogue, 34 ms without optimiser).
_SMALL = 2_000
#: From here on a trace in memory is a burden itself, and the queries over it spill instead of adding to it.
_LARGE, _LARGE_MEMORY = 200_000, "500MB"
_MACROS = f"""
CREATE MACRO bad(state) AS coalesce(state IN {BAD_STATES}, false);
CREATE MACRO fin(x) AS coalesce(isfinite(x), false);
CREATE MACRO share_left(flag, part, moment) AS avg(flag::INT) OVER (
    PARTITION BY part ORDER BY moment ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING);
"""
#: Characters of a log line that an event shows.
_EXCERPT = 160
#: `rows_after`: metric rows after the event, in its segment or a later one; `place`: where it stands, in words.
_EVENT = {
    "segment": "INTEGER", "step": "BIGINT", "rank": "INTEGER", "kind": "VARCHAR", "text": "VARCHAR", "value": "DOUBLE",
    "source": "INTEGER", "line": "BIGINT", "seq": "BIGINT", "rows_after": "BIGINT", "place": "VARCHAR",
}  # fmt: skip
#: A signal of both runs: the fields of `against.Difference`.
_AGAINST = {
    "name": "VARCHAR", "signal": "VARCHAR", "stat": "VARCHAR", "layer": "INTEGER", "module": "VARCHAR", "rank": "INTEGER",
    "points": "BIGINT", "segment": "INTEGER", "step": "BIGINT", "x": "DOUBLE", "value": "DOUBLE", "good": "DOUBLE",
    "nonfinite": "BOOLEAN", "ratio": "DOUBLE", "diff": "DOUBLE", "noise": "DOUBLE", "sigma": "DOUBLE", "direction": "INTEGER",
    "start": "BOOLEAN", "before": "DOUBLE", "good_before": "DOUBLE", "ending": "DOUBLE", "good_ending": "DOUBLE",
    "twin": "BOOLEAN", "twin_segment": "INTEGER", "twin_step": "BIGINT", "twin_value": "DOUBLE", "twin_good": "DOUBLE",
}  # fmt: skip
_FACT_MACROS = """
CREATE MACRO fact(name) AS (SELECT any_value(number) FROM facts WHERE key = name);
CREATE MACRO fact_text(name) AS (SELECT any_value(value) FROM facts WHERE key = name);
"""
#: A run fact: its dotted key, its text, and its number if it is one.
_FACT = {"key": "VARCHAR", "value": "VARCHAR", "number": "DOUBLE"}
_INDEX = {
    "layer": ("layer", "module"),
    "expert": ("layer", "module", "expert"),
    "rank": ("rank",),
}


class Views:
    """The views of one trace, restricted to the columns `declared` names per view."""

    def __init__(self, trace: Trace, declared: dict[str, set[str]], against: Comparison | None = None) -> None:
        """Build every view; `declared` maps a view to the signal columns rules may read there.

        The view `against` there is only with a comparison, or where a rule is to be checked that reads it.
        """
        self.trace = trace
        small = trace.table is None and len(trace.frame) < _SMALL
        if trace.table is not None:
            config = {"threads": 2, **settings()}
        elif len(trace.frame) < _LARGE:
            config = {"threads": 1 if len(trace.frame) < 20_000 else 2}
        else:
            config = {"threads": 2, **settings(_LARGE_MEMORY)}
        self.con = connect(config)
        self.con.execute(_MACROS + ("PRAGMA disable_optimizer;" if small else ""))
        self.counts: dict[str, dict[str, int]] = {view: {} for view in ("train", "component", *_INDEX, "events")}
        declared = declared | {
            "train": {*declared.get("train", ()), *comparison.TRAIN, *balance.TRAIN},
            "layer": {*declared.get("layer", ()), *comparison.LAYER, *balance.LAYER, *swing.LAYER},
        }
        self._train(trace.frame, declared["train"])
        self._component(trace.frame)
        self._detail(trace, declared)
        self._events(trace)
        self._rows("facts", _FACT, run_facts.flat(trace.facts))
        self.con.execute(_FACT_MACROS)
        self._comparison()
        if against is not None or "against" in declared:
            self._against(against)

    def locate(self, segment: int, step: int | None) -> tuple[int, int] | None:
        """(source, line) of the row at a step, for citing evidence."""
        frame = self.trace.frame
        row = -1
        while True:  # a few steps are asked for: searching beats an index over every row
            try:
                row = frame.steps.index(step, row + 1)  # type: ignore[arg-type]
            except ValueError:
                return None
            if frame.segments[row] == segment:
                return frame.sources[row], frame.lines[row]

    def _train(self, frame: Frame, wanted: set[str]) -> None:
        columns = {column.key.column: column for column in frame.columns.values() if column.key.column in wanted}
        table: dict[str, list[Any]] = {"segment": frame.segments, "step": frame.steps}
        select = [
            "segment",
            "step",
            "row_number() OVER (PARTITION BY segment ORDER BY step) AS row",
            "count(*) OVER (PARTITION BY segment) AS rows",
        ]
        size = len(frame)
        count = self.counts["train"]
        for name in sorted(wanted):
            column = columns.get(name)
            if column is None:
                select += [f'NULL::DOUBLE AS "{name}"', f'NULL::VARCHAR AS "{name}__state"']
                continue
            values = column.values
            table[name] = values + [None] * (size - len(values))
            if size < _SMALL:
                count[name] = size - table[name].count(None)
            count[name] = count.get(name, 0) + sum(1 for row in column.states if table[name][row] is None)
            select.append(f'"{name}"::DOUBLE AS "{name}"')
            finite = f"CASE WHEN \"{name}\" IS NOT NULL THEN '{FINITE}' END"
            if column.states:
                table[f"{name}__state"] = _dense(column, size)
                select.append(f'coalesce("{name}__state", {finite}) AS "{name}__state"')
            else:
                select.append(f'{finite} AS "{name}__state"')
        self._create("train_wide", table, size)
        if count and size >= _SMALL:  # counting in lists of a long run takes longer than any rule
            found = self.con.execute(
                f"SELECT {', '.join(f'count({_q(name)})' for name in count)} FROM train_wide"
            ).fetchone()
            for name, held in zip(count, found or (), strict=True):
                count[name] += held
        # Small: a table spares every query the window functions, and planning costs more than any plan saves.
        kind = "TABLE" if size < _SMALL else "VIEW"
        self.con.execute(f"CREATE {kind} train AS SELECT {', '.join(select)} FROM train_wide")

    def _component(self, frame: Frame) -> None:
        rows: list[tuple[Any, ...]] = []
        for key, column in frame.columns.items():
            if key.label is None or key.stat not in (None, "mean"):
                continue
            for row, value in enumerate(column.values):
                if value is not None:
                    rows.append((frame.segments[row], frame.steps[row], key.signal, key.axis, key.label, value))
        self._rows(
            "component",
            {
                "segment": "INTEGER",
                "step": "BIGINT",
                "signal": "VARCHAR",
                "axis": "VARCHAR",
                "label": "VARCHAR",
                "value": "DOUBLE",
            },
            rows,
        )
        for entry in rows:
            self.counts["component"][entry[2]] = self.counts["component"].get(entry[2], 0) + 1

    def _detail(self, trace: Trace, declared: dict[str, set[str]]) -> None:
        types = {
            "segment": "INTEGER", "step": "BIGINT", "rank": "INTEGER", "layer": "INTEGER", "expert": "INTEGER", "module": "VARCHAR",
            "signal": "VARCHAR", "value": "DOUBLE", "state": "VARCHAR",
        }  # fmt: skip
        detail = trace.detail
        rows = [
            (
                detail.segments[row],
                detail.steps[row],
                column.key.rank,
                column.key.layer,
                column.key.expert,
                column.key.module,
                column.key._replace(rank=None).column,
                cell.value,
                cell.state,
            )
            for row, column, cell in detail.cells()
        ]
        if trace.table is None:
            self._rows("detail", types, rows)
        else:
            # Read once, and only what rules name: every view, count, and rule then works on the small copy.
            read = sorted({name for view in _INDEX for name in declared.get(view, ())})
            where = f"signal IN ({', '.join(map(quoted, read))})" if read else "false"
            self.con.execute(f"CREATE TABLE detail AS SELECT * FROM ({trace.table}) WHERE {where}")
        index = {
            "layer": "expert IS NULL AND (layer IS NOT NULL OR module IS NOT NULL)",
            "expert": "expert IS NOT NULL",
            "rank": "rank IS NOT NULL AND layer IS NULL AND expert IS NULL",
        }
        for view, keys in _INDEX.items():
            wanted = sorted(declared.get(view, ()))
            picks = []
            for name in wanted:
                picks += [
                    f"max(value) FILTER (WHERE signal = '{name}') AS \"{name}\"",
                    f"max(state) FILTER (WHERE signal = '{name}') AS \"{name}__state\"",
                ]
            self.con.execute(
                f"CREATE VIEW {view} AS SELECT segment, step, {', '.join([*keys, *picks])} FROM detail WHERE {index[view]} GROUP BY segment, step, {', '.join(keys)}"
            )
            if rows or trace.table is not None:
                found = self.con.execute(
                    f"SELECT signal, count(*) FROM detail WHERE {index[view]} GROUP BY signal"
                ).fetchall()
                self.counts[view] = dict(found)

    def _comparison(self) -> None:
        """The tables `gap`, `trunk`, `origin`, `balance`, `swing`; filled only where enough of their signals is logged."""
        self.con.execute(f"{comparison.TABLES_SQL}; {balance.TABLE_SQL}; {swing.TABLE_SQL}")
        if self.counts["layer"].get("grad_norm", 0) >= swing.LEAST:
            self.con.execute(swing.SWING_SQL)
        if max(self.counts["layer"].get(name, 0) for name in balance.LAYER) >= balance.LEAST:
            self.con.execute(balance.BALANCE_SQL)
        if max(self.counts["train"].get(name, 0) for name in comparison.TRAIN) >= comparison.LEAST:
            self.con.execute(comparison.HOT_SQL)
            self.con.execute(comparison.GAP_SQL)
            if any(self.counts["layer"].get(name) for name in comparison.LAYER):
                self.con.execute(comparison.TRUNK_SQL)
                self.con.execute(comparison.ORIGIN_SQL)

    def _events(self, trace: Trace) -> None:
        frame = trace.frame
        keys = sorted(zip(frame.segments, frame.steps, strict=True)) if trace.events else []
        rows = []
        for seq, e in enumerate(trace.events):
            after = len(keys) - bisect_right(keys, (e.segment, -1 if e.step is None else e.step))
            place = (
                f"after step {e.step}"
                if e.step is not None
                else "before the first step"
                if keys
                else "in a log without steps"
            )
            excerpt = e.text if len(e.text) <= _EXCERPT else e.text[:_EXCERPT] + "..."
            rows.append((e.segment, e.step, e.rank, e.kind, excerpt, e.value, e.source, e.line, seq, after, place))
        self._rows("events", _EVENT, rows)
        for event in trace.events:
            self.counts["events"][event.kind] = self.counts["events"].get(event.kind, 0) + 1

    def _against(self, comparison: Comparison | None) -> None:
        rows = [tuple(one) for one in comparison.series] if comparison else []
        self._rows("against", _AGAINST, rows)
        factors = [tuple(one) for one in comparison.multiples] if comparison else []
        self._rows("multiple", {"what": "VARCHAR", "size": "DOUBLE", "place": "BIGINT"}, factors)
        self.counts["against"] = {}
        for one in comparison.series if comparison else ():
            self.counts["against"][one.name] = max(one.points, self.counts["against"].get(one.name, 0))

    def _rows(self, name: str, types: dict[str, str], rows: list[tuple[Any, ...]]) -> None:
        columns = (
            {key: list(values) for key, values in zip(types, zip(*rows, strict=True), strict=True)}
            if rows
            else {key: [] for key in types}
        )
        self._create(name, columns, len(rows), types)

    def _create(self, name: str, columns: dict[str, list[Any]], size: int, types: dict[str, str] | None = None) -> None:
        known = types or {
            key: "BIGINT" if key in ("segment", "step") else "VARCHAR" if key.endswith("__state") else "DOUBLE"
            for key in columns
        }
        if not size:
            self.con.execute(f"CREATE TABLE {name} ({', '.join(f'{_q(key)} {known[key]}' for key in columns)})")
        elif size * len(columns) < _ARROW_FROM:
            names = {f"p{i}": values for i, values in enumerate(columns.values())}
            picks = ", ".join(
                f"unnest(${p}::{known[key]}[]) AS {_q(key)}" for p, key in zip(names, columns, strict=True)
            )
            self.con.execute(f"CREATE TABLE {name} AS SELECT {picks}", names)
        else:
            import pyarrow as pa

            arrow = {
                "BIGINT": pa.int64(), "INTEGER": pa.int32(), "VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
            }  # fmt: skip
            table = pa.table({key: pa.array(values, arrow[known[key]]) for key, values in columns.items()})
            self.con.register("arriving", table)
            self.con.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
            self.con.unregister("arriving")


def _dense(column: Column, size: int) -> list[str | None]:
    states: list[str | None] = [None] * size
    for row, state in column.states.items():
        states[row] = state
    return states


def _q(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def declared(rules: Iterable[Any]) -> dict[str, set[str]]:
    """The columns each view must offer so that every rule's query binds."""
    wanted: dict[str, set[str]] = {}
    for rule in rules:
        # A query over another view may still read `train` (a hang needs the step time, a layer's NaN the loss).
        view = rule.view if rule.view in (*_INDEX, "against") else "train"
        beside = ["train"] if view in _INDEX else ["layer"] if "FROM layer" in rule.sql else []
        for name in (view, *beside):
            wanted.setdefault(name, set()).update(rule.reads)
    return wanted
