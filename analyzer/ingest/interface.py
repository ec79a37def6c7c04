"""What a format provides. Drop a module with one of these into `formats/` and it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.source import File


class LineFormat(NamedTuple):
    """A format recognised line by line; several may share a file.

    `parse(line, log)` gets a line without ANSI codes and launcher prefixes, and returns True when the line was its own.
    It is called only for lines that hold one of `hints`. Lower `order` is asked first; `last_resort` formats are asked
    only in files where no other format found a row. `finish(log)` closes what is still open at the end of the file.
    """

    name: str
    hints: tuple[str, ...]
    parse: Callable[[str, Log], bool]
    order: int = 50
    last_resort: bool = False
    finish: Callable[[Log], None] | None = None


class FileFormat(NamedTuple):
    """A format of a whole file. `sniff(head, file)` decides by content; `read` fills the log."""

    name: str
    sniff: Callable[[bytes, File], bool]
    read: Callable[[File, Log], None]
    order: int = 50
