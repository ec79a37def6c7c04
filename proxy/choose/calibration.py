"""What tokens did in the routers of a model, as one Parquet file: what a choice of experts is measured by.

A row is one expert of one layer; docs/pruning.md has the columns. `proxy calibrate` writes the file. A canonical trace that logged
`expert_load` by layer and expert serves as a table of frequencies. The file may be hostile: it is read in a DuckDB of bounded memory,
and its size, shape, and numbers are checked before any of it becomes an array.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.files import atomic_path
from faultproxy.analyzer.report.clean import visible

KEY, SCHEMA = "faultproxy.calibration", 1
COLUMNS = {
    "layer": "INTEGER", "expert": "INTEGER", "frequency": "DOUBLE", "gate_norm": "DOUBLE", "together": "FLOAT[]", "prototype": "FLOAT[]",
}  # fmt: skip
#: Rows, and numbers in lists, that are read: twice what the largest public model (61 layers of 512 experts) would fill.
MAX_ROWS, MAX_NUMBERS = 1 << 17, 1 << 25
#: Numbers of a prototype; wider hidden states are projected to as many, which keeps angles within about 0.1.
WIDTH = 64
_CALIBRATE = "make one with `faultproxy proxy calibrate`"


@dataclass(frozen=True, eq=False)
class Routing:
    """What tokens did in one layer, as float arrays: tokens each of the E experts got [E]; the sum of gate times output norm over them
    [E]; tokens that two experts shared [E, E], zero on the diagonal; mean hidden state of an expert's tokens [E, D], zero without any."""

    frequency: Any
    gate_norm: Any = None
    together: Any = None
    prototype: Any = None


@dataclass(frozen=True, eq=False)
class Calibration:
    """Routing by layer, the tokens it was counted over (0: not known), and where it comes from."""

    layers: dict[int, Routing]
    tokens: int
    source: str


def write_calibration(table: Calibration, path: str | Path, force: bool = False) -> None:
    """Write a table, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = pa.list_(pa.float32())
    types = {"INTEGER": pa.int32(), "DOUBLE": pa.float64(), "FLOAT[]": floats}
    schema = pa.schema([pa.field(name, types[kind]) for name, kind in COLUMNS.items()])
    schema = schema.with_metadata({KEY: json.dumps({"schema": SCHEMA, "tokens": table.tokens})})
    with atomic_path(path, force) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for layer, found in sorted(table.layers.items()):
            experts = len(found.frequency)
            cells: dict[str, Any] = {"layer": [layer] * experts, "expert": range(experts), "frequency": found.frequency}
            for name in ("gate_norm", "together", "prototype"):
                given = getattr(found, name)
                cells[name] = [None] * experts if given is None else [row.tolist() for row in given]
            writer.write_table(pa.Table.from_pydict(cells, schema))


def read_calibration(path: str | Path) -> Calibration:
    """A table that `proxy calibrate` wrote; or frequencies, from a canonical trace (file or folder) that logged `expert_load`.

    Raises:
        InputError: It is neither, or its numbers cannot be of a model's routers; the message says which.
    """
    import duckdb

    from faultproxy.analyzer.schema import bounded, scan

    file = Path(path)
    file = file / "values.parquet" if file.is_dir() else file
    where = visible(str(path), 200)
    if not file.is_file():
        raise UnreadableError(f"{where}: no such file; {_CALIBRATE}")
    try:
        with bounded() as con:
            types = {row[0]: row[1] for row in con.execute(f"DESCRIBE SELECT * FROM {scan(file)}").fetchall()}
            if types.keys() >= {"signal", "state", "value", "layer", "expert", "module", "stat"}:
                return _loads(con, scan(file), where)
            if wrong := [f"{name} {kind}" for name, kind in COLUMNS.items() if types.get(name) != kind]:
                raise InputError(f"{where} is no calibration table: it lacks {', '.join(wrong)}; {_CALIBRATE}")
            return _table(con, file, where)
    except duckdb.Error as error:
        raise InputError(f"{where}: cannot be read as Parquet ({visible(str(error).splitlines()[0], 200)})") from error


def _loads(con: Any, rows: str, where: str) -> Calibration:
    found = con.execute(
        f"SELECT layer, expert, avg(value) AS load FROM {rows} WHERE signal = 'expert_load' AND layer >= 0 AND expert >= 0 AND module IS NULL "
        f"AND coalesce(stat, 'mean') = 'mean' AND isfinite(value) AND value >= 0 GROUP BY 1, 2 ORDER BY 1, 2 LIMIT {MAX_ROWS + 1}"
    ).fetchnumpy()
    if not len(found["layer"]):
        raise InputError(f"{where} is a trace without `expert_load` by layer and expert; log it, or {_CALIBRATE}")
    layers = _by_layer(found["layer"], found["expert"], where)
    mean = found["load"]
    return Calibration({layer: Routing(mean[rows].astype(float)) for layer, rows in layers.items()}, 0, where)


def _table(con: Any, file: Path, where: str) -> Calibration:
    import numpy as np

    from faultproxy.analyzer.schema import quoted, scan

    # A result that is not read to its end keeps the connection.
    said = con.execute(
        f"SELECT decode(value) FROM parquet_kv_metadata({quoted(str(file))}) WHERE decode(key) = ?", [KEY]
    ).fetchall()
    try:
        head = json.loads(said[0][0]) if said else {}
    except (ValueError, RecursionError):
        head = {}
    if not isinstance(head, dict) or head.get("schema") != SCHEMA or type(head.get("tokens")) is not int:
        raise InputError(f"{where}: no calibration table of schema {SCHEMA}; {_CALIBRATE}")
    [(count, bad, numbers)] = con.execute(
        # DuckDB orders NaN above every number.
        "SELECT count(*), count(*) FILTER (frequency IS NULL OR NOT isfinite(frequency) OR frequency < 0 OR NOT isfinite(gate_norm) OR "
        "gate_norm < 0 OR layer IS NULL OR layer < 0 OR expert IS NULL OR list_count(together) < len(together) OR list_min(together) < 0 "
        "OR NOT isfinite(list_max(together)) OR list_count(prototype) < len(prototype) OR NOT isfinite(list_min(prototype)) OR "
        "NOT isfinite(list_max(prototype))), "
        f"sum(coalesce(len(together), 0) + coalesce(len(prototype), 0)) FROM {scan(file)}"
    ).fetchall()
    if not 0 < count <= MAX_ROWS or numbers > MAX_NUMBERS or bad:
        raise InputError(
            f"{where}: {count} rows, {numbers} numbers in lists, {bad} rows with a value that is missing, negative, or not finite; allowed are "
            f"1 to {MAX_ROWS} rows, {MAX_NUMBERS} numbers, and no such row"
        )
    table = con.sql(f"SELECT {', '.join(COLUMNS)} FROM {scan(file)} ORDER BY layer, expert").to_arrow_table()
    layers = {}
    for layer, rows in _by_layer(table["layer"].to_numpy(), table["expert"].to_numpy(), where).items():
        part = table.slice(rows.start, rows.stop - rows.start)
        found = {"frequency": part["frequency"].to_numpy(), "gate_norm": None, "together": None, "prototype": None}
        if not part["gate_norm"].null_count:
            found["gate_norm"] = part["gate_norm"].to_numpy()
        for name in ("together", "prototype"):
            if not part[name].null_count:
                cells = [np.asarray(cell.values, dtype=np.float64) for cell in part[name]]
                if len({len(cell) for cell in cells}) != 1 or (name == "together" and len(cells[0]) != len(cells)):
                    raise InputError(f"{where}: layer {layer} has {name} of unequal or wrong length; {_CALIBRATE}")
                found[name] = np.stack(cells)
        layers[layer] = Routing(**found)
    return Calibration(layers, head["tokens"], where)


def _by_layer(layers: Any, experts: Any, where: str) -> dict[int, slice]:
    """The rows of each layer, given in order of layer and expert."""
    import numpy as np

    starts = np.flatnonzero(np.diff(layers, prepend=-1)).tolist()
    found = {}
    for start, stop in zip(starts, [*starts[1:], len(layers)], strict=True):
        if experts[start:stop].tolist() != list(range(stop - start)) or stop > MAX_ROWS:
            raise InputError(
                f"{where}: layer {layers[start]} has {stop - start} rows that are not experts 0, 1, 2, ... once each"
            )
        found[int(layers[start])] = slice(start, stop)
    return found
