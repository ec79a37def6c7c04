"""The corpus on disk: one Parquet file a program, which carries the rows of its runs in its footer.

Values are those of docs/trace.md, sorted by run first, so that a run is one slice. Mantissas are rounded to 10 bits
(relative error 2^-11, far below the noise of a step; integers to 2,048 stay exact), which leaves about 1.6 bytes a value
under byte-stream split and zstd: a dictionary takes 15 % more, plain doubles 25 %. Columns that never change cost nothing.
A file is complete by itself and written whole, so a kill leaves finished programs and loses none; a part of an
unfinished program is the same file with one run in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.files import atomic_path
from faultproxy.analyzer.schema import ORDER, VALUES, arrow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from faultproxy.analyzer.trace import Trace

#: Key of the footer: {"rows": [...], "facts": {...}, "source": hash of the code that made them}.
FOOTER = "faultproxy.corpus"
MANTISSA_BITS = 10
#: Wall time of a step: the one signal that differs when a run is made again.
TIME = "step_time"
#: Of the levels that are worth it: 12 is 10 % larger, 19 takes 0.1 s a program.
_ZSTD = 19
_ROW_GROUP = 1 << 20


@dataclass(frozen=True)
class Shard:
    """Runs of one program. `rows` are sorted by run; `values` counts the rows of `table` that belong to each."""

    rows: list[dict[str, Any]]
    table: pa.Table
    facts: dict[str, Any]
    source: str

    def runs(self) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """Each run that was made: its row and its values."""
        at = 0
        for row in self.rows:
            if row["error"] is None:
                yield row, self.table.slice(at, row["values"])
                at += row["values"]


def canonical(table: pa.Table, run: str) -> pa.Table:
    """A recorded table as the corpus keeps it: under the name of its run, sorted, rounded, without source and line."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = _undictionaried(table)
    names = [name for name in ORDER if name != "run"]
    # Below every real value, so that nulls come first in any release of Arrow.
    keys = {name: plain[name].fill_null("" if pa.types.is_string(plain[name].type) else -1) for name in names}
    plain = plain.take(pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in names]))
    columns = {name: plain[name] for name in VALUES}
    missing = columns["value"].is_null().combine_chunks().to_numpy(zero_copy_only=False)
    values = columns["value"].fill_null(0.0).to_numpy()
    columns["value"] = pa.array(rounded(values), pa.float64(), mask=missing)
    columns["run"] = pa.array(np.full(len(plain), run))
    columns["source"], columns["line"] = pa.nulls(len(plain), pa.int32()), pa.nulls(len(plain), pa.int64())
    return pa.table(columns).cast(arrow(VALUES))


def _undictionaried(table: pa.Table) -> pa.Table:
    """The table with text as text: Arrow neither sorts by several dictionaries nor compares tables with different ones."""
    import pyarrow as pa

    text = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in arrow(VALUES)]
    return table.cast(pa.schema(zip(VALUES, text, strict=True)))


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest doubles with MANTISSA_BITS bits of mantissa (ties away from zero); finite stays finite."""
    import numpy as np

    drop = 52 - MANTISSA_BITS
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    keep = ~np.uint64((1 << drop) - 1)
    # Half a unit carries into the exponent by itself where the mantissa is all ones.
    nearest = ((bits + np.uint64(1 << (drop - 1))) & keep).view(np.float64)
    return np.where(np.isfinite(nearest), nearest, (bits & keep).view(np.float64))


def same(one: pa.Table, other: pa.Table) -> bool:
    """True where two runs have the same values, bit for bit, but for the time their steps took."""
    import pyarrow.compute as pc

    left, right = (_undictionaried(table) for table in (one, other))
    return bool(left.filter(pc.field("signal") != TIME).equals(right.filter(pc.field("signal") != TIME)))


def write_shard(path: Path, runs: Sequence[tuple[dict[str, Any], pa.Table | None]], **footer: Any) -> None:
    """Write runs as one file, whole or not at all; a run without a table is kept as a row alone (it failed)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs = sorted(runs, key=lambda run: run[0]["run"])
    tables = [table for _, table in runs if table is not None]
    table = pa.concat_tables(tables or [arrow(VALUES).empty_table()]).unify_dictionaries()
    encoding = {"value": "BYTE_STREAM_SPLIT", "step": "DELTA_BINARY_PACKED"}
    with atomic_path(path, force=True) as temporary:
        writer = pq.ParquetWriter(
            temporary, table.schema, compression="zstd", compression_level=_ZSTD, column_encoding=encoding,
            use_dictionary=[name for name in VALUES if name not in (*encoding, "line")],
        )  # fmt: skip
        with writer:
            writer.write_table(table, row_group_size=_ROW_GROUP)
            rows = json.dumps({"rows": [row for row, _ in runs], **footer}, separators=(",", ":"))
            writer.add_key_value_metadata({FOOTER: rows})


def read_shard(path: Path, values: bool = True) -> Shard:
    """Read a file that `write_shard` wrote; `values=False` reads only its footer (an empty table)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            data = json.loads((file.metadata.metadata or {})[FOOTER.encode()])
            table = file.read() if values else arrow(VALUES).empty_table()
    except (OSError, KeyError, ValueError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{path}: no file of a corpus ({error!r}); delete it and run `faultproxy lab generate`"
        ) from error
    return Shard(data["rows"], table, data["facts"], data["source"])


def shards(folder: Path) -> list[Path]:
    """The finished programs of a corpus, by name."""
    return sorted(path for path in folder.glob("*.parquet") if path.name != MANIFEST)


def manifest(folder: Path) -> list[dict[str, Any]]:
    """Every run of the corpus with its labels, sorted by run; raises InputError where there is no corpus."""
    import pyarrow.parquet as pq

    path = folder / MANIFEST
    if not path.is_file():
        raise no_corpus(folder, MANIFEST)
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    for row in rows:
        row["effect"] = json.loads(row["effect"] or "{}")
    return rows


def no_corpus(folder: Path, missing: str) -> InputError:
    """The error for a folder that is not there, is a file, or holds no finished corpus."""
    what = f"{missing} is missing in it" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
    return InputError(f"{folder}: no corpus ({what}); `faultproxy lab generate --out {folder}` makes one, in hours")


#: Names beside the programs' files.
MANIFEST, SUMMARY, DATASHEET = "manifest.parquet", "manifest.json", "DATASHEET.md"


def tables(folder: Path, program: str | None = None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """(row of the manifest, canonical values) of every run that was made, or of one program's runs."""
    labelled = {row["run"]: row for row in manifest(folder)}
    paths = shards(folder) if program is None else [folder / f"{program}.parquet"]
    for path in paths:
        for row, table in read_shard(path).runs():
            yield labelled[row["run"]], table


def load(folder: Path, program: str | None = None) -> Iterator[tuple[dict[str, Any], Trace]]:
    """(row of the manifest, trace) of every run that was made; the facts are the program's, so they hold no label."""
    from faultproxy.analyzer.record.stream import trace_of

    facts = {path.stem: read_shard(path, values=False).facts for path in shards(folder)}
    for row, table in tables(folder, program):
        yield row, trace_of(table, facts[row["program"]])
