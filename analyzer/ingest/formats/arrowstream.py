"""Arrow IPC stream of canonical rows (`NAME.arrows`, docs/trace.md): a run's own record, also while it runs or after SIGKILL.

Whole messages are read up to the first that is torn or damaged. Surprises handled here:
- the writer does not compress, for the unpacked size of a buffer is a number that the file states: compressed is refused;
- a stream without an end mark is no error: the run goes on, or was killed with up to a flush of steps unwritten;
- a key that was logged twice keeps its last value, and the report counts the others;
- `line` is the row of the stream.

Bodies are slices of the memory-mapped file, so no size in it makes anything be allocated. The rows pass through a
temporary canonical Parquet into its reader, which spills and leaves on disk what is large: one path for every size.
"""

from __future__ import annotations

import atexit
import json
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import SchemaError
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import MAX_EVENTS, MAX_STEP, Log
from faultproxy.analyzer.ingest.source import MAX_DOCUMENT, File
from faultproxy.analyzer.schema import COPY, EVENTS_KEY, KEY, ORDER, RUN_KEY, SCHEMA, VALUES, arrow, bounded, quoted
from faultproxy.analyzer.trace import Event

FORMAT = "arrow-stream"
#: Every message starts with it (Arrow columnar format, "Encapsulated message format").
_MARK = b"\xff\xff\xff\xff"
_UNIQUE = ", ".join("coalesce(stat, 'mean')" if name == "stat" else name for name in KEY)
_SORTED = ", ".join(f"{name} NULLS FIRST" for name in ORDER)


def _sniff(head: bytes, file: File) -> bool:
    return head.startswith(_MARK)


def _read(file: File, log: Log) -> None:
    import pyarrow as pa

    from faultproxy.analyzer.ingest.formats.parquet import _on_disk

    buffer = pa.memory_map(str(file.path if _plain(file) else _on_disk(file))).read_buffer()
    end, closed = _whole(buffer, file.path)
    try:
        reader = pa.ipc.open_stream(buffer.slice(0, end))
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(
            f"{file.path}: Arrow stream that is cut off or damaged before its first row ({error})"
        ) from error
    _check(reader.schema, file.path)
    log.facts.update(_facts(reader.schema.metadata or {}, file.path))
    log.source.truncated = not closed and end < buffer.size
    copy = fill(log, _batches(reader, log), file.path)
    log.source.format = FORMAT
    if not closed and not log.source.truncated:
        log.warnings.append(
            f"{file.path}: not closed: its run goes on or was killed, and its last steps may be missing"
        )
    if log.table is not None:  # its rows stay in the copy, from which `ingest` writes its own file
        log.origins = [log.source]
        log.source = replace(log.source, path=str(copy), format=COPY)


def fill(log: Log, batches: Iterable[Any], where: str | Path) -> Path:
    """Fill a log with record batches of the columns of schema.VALUES, in the order logged; `where` names them in errors.

    Returns the canonical Parquet file they went through, which `log.table` reads when it is set.
    """
    import pyarrow as pa

    from faultproxy.analyzer.ingest import canonical

    schema = arrow(VALUES)
    seen = 0

    def numbered() -> Iterator[Any]:
        nonlocal seen
        at = schema.get_field_index("line")
        for batch in batches:
            lines = pa.array(range(seen + 1, seen + batch.num_rows + 1), pa.int64())
            seen += batch.num_rows
            yield batch.set_column(at, schema.field(at), lines)

    with tempfile.NamedTemporaryFile(prefix="faultproxy-", suffix=".parquet", delete=False) as made:
        path = Path(made.name)
    atexit.register(path.unlink, missing_ok=True)  # the views read a large one until the report is out
    with bounded() as con:
        con.register("stream", pa.RecordBatchReader.from_batches(schema, numbered()))
        written = con.execute(
            f"COPY (SELECT {', '.join(VALUES)} FROM stream QUALIFY row_number() OVER (PARTITION BY {_UNIQUE} "
            f"ORDER BY line DESC) = 1 ORDER BY {_SORTED}) TO {quoted(str(path))} (FORMAT parquet)"
        ).fetchone()
        try:
            canonical.read(path, log, con)
        except SchemaError as error:
            raise SchemaError(str(error).replace(str(path), str(where))) from error
    if log.table is None:
        path.unlink()
    if written is not None and written[0] < seen:
        log.warnings.append(f"{where}: {seen - written[0]} values were written twice for one key; the last counts")
    return path


def _plain(file: File) -> bool:
    if file.data is not None:
        return False
    with open(file.path, "rb") as stream:
        return stream.read(len(_MARK)) == _MARK


def _whole(buffer: Any, path: Path) -> tuple[int, bool]:
    """Where the last whole message ends, and whether the end mark of a closed stream follows."""
    import pyarrow as pa

    source = pa.BufferReader(buffer)
    end = 0
    while True:
        try:
            message = pa.ipc.read_message(source)
            packed = _compressed(message.metadata.to_pybytes(), message.type)
        except EOFError:
            return end, source.tell() > end
        except (pa.ArrowException, OSError, struct.error):
            return end, False
        if packed:
            raise SchemaError(
                f"{path}: Arrow stream with compressed buffers; write it without, and pack the file (.gz, .zst)"
            )
        end = source.tell()


def _compressed(message: bytes, kind: str) -> bool:
    """Whether a message's flatbuffer (Arrow's Message.fbs) has the table `compression`."""
    if kind not in ("record batch", "dictionary"):
        return False

    def follow(at: int) -> int:
        return at + int.from_bytes(message[at : at + 4], "little")

    def field(table: int, slot: int) -> int:
        vtable = table - struct.unpack_from("<i", message, table)[0]
        size = struct.unpack_from("<H", message, vtable)[0]
        offset = struct.unpack_from("<H", message, vtable + 4 + 2 * slot)[0] if size > 4 + 2 * slot else 0
        return table + offset if offset else 0

    batch = follow(field(follow(0), 2))  # Message.header
    if kind == "dictionary":
        batch = follow(field(batch, 1))  # DictionaryBatch.data
    return bool(field(batch, 3))  # RecordBatch.compression


def _check(found: Any, path: Path) -> None:
    if found.equals(arrow(VALUES)):
        return
    try:
        got = ", ".join(f"{field.name} {field.type}" for field in found)
    except UnicodeDecodeError:
        got = "names that are not UTF-8"
    raise SchemaError(
        f"{path}: Arrow stream without the columns of docs/trace.md; got {got[:400] or 'none'}; allowed are those, in order "
        "and type; write other tables as Parquet"
    )


def _facts(metadata: Mapping[bytes, bytes], path: Path) -> dict[str, Any]:
    text = metadata.get(RUN_KEY.encode())
    if text is None:
        return {}
    try:
        data = json.loads(text) if len(text) <= MAX_DOCUMENT else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int) or data["schema"] > SCHEMA:
        raise SchemaError(f"{path}: its run facts are no JSON of schema {SCHEMA} or older; use a newer faultproxy")
    facts = data.get("facts")
    return facts if isinstance(facts, dict) else {}


def _batches(reader: Any, log: Log) -> Iterator[Any]:
    """Batches until the first that is damaged; events go to the log on the way."""
    import pyarrow as pa

    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError):
            log.source.truncated = True
            return
        if metadata is not None and EVENTS_KEY in metadata:
            _events(metadata[EVENTS_KEY.encode()], log)
        if batch.num_rows:
            yield batch


def _events(told: bytes, log: Log) -> None:
    try:
        entries = json.loads(told) if len(told) <= MAX_DOCUMENT else None
    except (ValueError, RecursionError):
        entries = None
    for entry in entries if isinstance(entries, list) else [None]:
        fields = [entry.get(name) for name in ("kind", "text", "step", "segment")] if isinstance(entry, dict) else []
        match fields:
            case [str(kind), str(text), int() | None as step, int(segment)] if (
                0 <= (step or 0) < MAX_STEP and 0 <= segment < 2**15
            ):
                if len(log.events) < MAX_EVENTS:
                    log.events.append(Event(kind, text[:400], step, segment))
            case _:
                log.source.unparsed += 1


FILE = FileFormat(FORMAT, _sniff, _read, order=10)
