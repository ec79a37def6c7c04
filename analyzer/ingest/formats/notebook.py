"""Jupyter notebooks: what their cells put out, read as the text log it is.

Streams and plain results are lines; an HTML table (a data frame, the progress table of Hugging Face's Trainer) becomes
a Markdown table; an error becomes its last line. Cell sources and Markdown cells are prose about runs, not runs, and
are left out. Nothing is executed, and pictures and widgets are not looked at. Lines count the lines of the outputs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import UnreadableError
from faultproxy.analyzer.ingest.formats.jsonl import loads
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.text import read_text
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Source

_TAG = lazy(r"<(?P<close>/?)(?P<name>table|tr|th|td)\b[^<>]{0,1000}>", re.IGNORECASE)
_OTHER = lazy(r"<[^<>]{1,1000}>")
#: Cells of one table row, and characters of one cell, that are kept.
MAX_CELLS, MAX_CELL = 500, 200


def _sniff(head: bytes, file: File) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{" and b'"cells"' in head and b'"cell_type"' in head


def _joined(value: Any) -> str:
    """Notebooks hold text as one string or as a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def tables(text: str) -> Iterator[str]:
    """The lines of every table in an HTML text as Markdown, a rule under the first row."""
    row: list[str] = []
    rows = start = 0
    for tag in _TAG.finditer(text):
        name, closes = tag["name"].lower(), bool(tag["close"])
        if name in ("td", "th") and not closes:
            start = tag.end()
        elif name in ("td", "th") and start and len(row) < MAX_CELLS:
            cell = html.unescape(_OTHER.sub(" ", text[start : min(tag.start(), start + 10 * MAX_CELL)]))
            row.append(" ".join(cell.split())[:MAX_CELL].replace("|", "/"))
            start = 0
        elif name == "tr" and closes and row:
            yield "| " + " | ".join(row) + " |"
            if not rows:
                yield "|" + "---|" * len(row)
            rows, row = rows + 1, []
        elif name == "table":
            rows, row, start = 0, [], 0
            yield ""


def _output(output: dict[str, Any]) -> Iterator[str]:
    """The lines of one output of a cell."""
    kind = output.get("output_type")
    if kind == "stream":
        yield from _joined(output.get("text")).split("\n")
    elif kind == "error":
        yield "Traceback (most recent call last)"
        message = str(output.get("evalue", "")).split("\n")[0]
        yield f"{output.get('ename', 'Error')}: {message}"
    elif isinstance(data := output.get("data"), dict):
        markup = _joined(data.get("text/html"))
        if "<table" in markup:
            yield from tables(markup)
        else:
            yield from (_joined(data.get("text/markdown")) or _joined(data.get("text/plain"))).split("\n")


def _read(file: File, log: Log) -> None:
    text = file.text()
    try:
        document = loads(text) if text is not None else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise UnreadableError(f"{file.path}: no notebook, cut off, or too large to read whole")
    lines: list[str] = []
    for cell in document["cells"]:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else []:
            if isinstance(output, dict):
                lines += _output(output)
    from faultproxy.analyzer.ingest import _known  # here, for that package lists this module

    shown = File(Path(file.path), "\n".join(lines).encode(errors="replace"))
    known = _known()[1]
    named = [format for format in known if not format.last_resort]
    trial = Log(log.index, Source(log.source.path, "text", log.source.sha256))
    read_text(shown, trial, named)
    read_text(shown, log, named if trial.source.rows else known)


FILE = FileFormat("notebook", _sniff, _read, order=28)
