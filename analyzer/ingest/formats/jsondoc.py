"""JSON documents: `trainer_state.json` of Hugging Face, any object with a list of records in it, and a list of records.

The list of records is found, not named: the longest list of objects at most three levels deep (`log_history`,
`training_history`, `history`, ...). A document that is too large to hold, or that was cut off while being written, is
scanned for its flat objects instead; what follows the cut is lost and the source is marked truncated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faultproxy.analyzer.errors import UnreadableError
from faultproxy.analyzer.ingest.formats.dictline import add, step_from
from faultproxy.analyzer.ingest.formats.jsonl import flatten, loads
from faultproxy.analyzer.ingest.formats.jsonl import record as add_record
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import native
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.vocabulary import resolve

_FLAT = lazy(r"\{[^{}]{1,20000}\}")
_FACTS = ("max_steps", "logging_steps", "num_train_epochs", "train_batch_size")
_SHARED = 64 * 1024


def _sniff(head: bytes, file: File) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \r\n\t")
    return text[:1] == b"{" or (text[:1] == b"[" and text[1:].lstrip()[:1] in (b"{", b"]", b"[", b""))


def _records(document: Any, depth: int = 0) -> list[dict[str, Any]]:
    """The longest list of objects inside; an object of equal-length number lists is turned into records."""
    if isinstance(document, list):
        return [item for item in document if isinstance(item, dict)]
    if not isinstance(document, dict) or depth > 3:
        return []
    best: list[dict[str, Any]] = []
    for value in document.values():
        found = _records(value, depth + 1) if isinstance(value, (list, dict)) else []
        if len(found) > len(best):
            best = found
    columns = {k: v for k, v in document.items() if isinstance(v, list) and v and not isinstance(v[0], (dict, list))}
    if not best and len(columns) >= 1:
        length = max(map(len, columns.values()))
        best = [{k: v[i] for k, v in columns.items() if len(v) == length} for i in range(length)]
    return best


def _scan(file: File, log: Log) -> Iterator[dict[str, Any]]:
    """Flat objects of a document that cannot be held or parsed whole, chunk by chunk."""
    rest = ""
    for chunk in file.chunks():
        text = rest + chunk.decode("utf-8", errors="replace")
        end = 0
        for found in _FLAT.finditer(text):
            end = found.end()
            try:
                data = loads(found[0])
            except ValueError:
                log.source.unparsed += 1
                continue
            if isinstance(data, dict):
                yield data
        rest = text[max(end, len(text) - _SHARED) :]
    log.source.truncated = True


def _read(file: File, log: Log) -> None:
    text = file.text()
    try:
        document = loads(text) if text is not None else None
    except ValueError:
        document = None
    records = _records(document) if document is not None else _scan(file, log)
    if isinstance(document, dict):
        for name in _FACTS:
            value = document.get(name)
            if isinstance(value, (int, float)) and abs(value) < 2**63:  # no report could hold more, nor NaN
                log.fact(name, value)
        if "log_history" in document:
            log.fact("framework", "hf")
    hf = isinstance(document, dict) and "log_history" in document
    for record in records:
        if hf or document is None or "data" not in record:
            cells = {k: c for k, v in flatten(record) if (c := native(v)) and (hf or v is not None)}
            known = any(resolve(key).known for key in cells)
            if not cells or not (known or "step" in cells):
                log.source.unparsed += 1
                continue
            add(cells, step_from(cells), log, "hf-trainer-state" if hf else "json")
        elif not add_record(record, log):
            log.source.unparsed += 1
    if hf and not records:
        log.event("no_rows", "the trainer state holds no log row: the run was shorter than its logging interval")
    if not log.source.rows and not log.events:
        raise UnreadableError(
            f"{file.path}: a JSON document without a list of metric records (looked for objects with a step or a known metric)"
        )


FILE = FileFormat("json", _sniff, _read, order=40)
