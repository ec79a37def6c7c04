"""Text logs too large to read whole: chosen stretches are read as if the file held nothing else, and more where asked.

The stretches begin and end at line breaks: the head, the tail, and windows spread evenly between them, so that a slow
drift of a healthy run does not look like a jump. `narrow` is one round of a search by byte offset: where the onset of a
failure lies behind bytes that were not read, more windows are read in those bytes, and when they are few, all of them,
and the surroundings. Every round is judged by the same rules on the whole sample: 20 GB take four rounds of a few MB.

Most huge logs are huge because of what stands between their metric rows. Where rows are farther apart than SPARSE bytes, the
text that all rows of the head and the tail share is looked for in the bytes, and of a window only the rows are read.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from faultproxy.analyzer.ingest.source import CHUNK, MAX_LINE, File
from faultproxy.analyzer.trace import Trace

#: Windows of one round, and the least and the most bytes of one: it should hold ROWS metric rows.
WINDOWS, LEAST, MOST, ROWS = 40, 8 << 10, 1 << 20, 8
#: Bytes between two rows from which only rows are looked for: windows of a round then, the most bytes that one is searched
#: for two rows, those that are searched whole, and those of the head and the tail in which enough rows should be.
SPARSE, FEW, REACH, SCAN, LONG_ENDS = 128 << 10, 10, 8 << 20, 16 << 20, 4 << 20
#: Rows around the onset that must lie in one stretch: rules look back over at most a few hundred.
AROUND = 400
#: Rows are of several lengths, so where one lies in a stretch is an estimate; this share of the surroundings will do.
_ENOUGH = 0.7
#: Unread bytes that are read whole instead of divided once more.
WHOLE = 1 << 20
#: What starts no text log: Parquet, Arrow, compressed files, UTF-16 (its line breaks are two bytes).
_BINARY = (b"PAR1", b"\xff\xff\xff\xff", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"\xfe\xff")
#: One JSON document, which has no line of its own for a record.
_DOCUMENT = re.compile(rb"\s*(?:\[\s*[\[{\]]|\{\s*[\"}]|\{\s*$)")
#: What differs from row to row.
_NUMBERS = re.compile(rb"[-+]?(?:\d[\d.eE+-]*|nan|inf)")

Span = tuple[int, int]


class Sampled(File):
    """A text file of which only `spans` (byte offsets at line breaks, ascending) are read."""

    def __init__(self, path: Path, ends: int, windows: int = WINDOWS) -> None:
        """Plan to read `ends` bytes of head and of tail, and `windows` short stretches between them."""
        super().__init__(path)
        self.total = path.stat().st_size
        self.ends, self.windows = ends, windows
        self.window = LEAST
        self.spans: list[Span] = []
        self.read_bytes = 0
        self.marker = b""
        self.scanned: list[Span] = []  # where rows were looked for and nothing else
        self._held: dict[Span, bytes] = {}  # each round reads the spans again
        self._lines: list[int] = []  # lines up to the end of each span
        self.add(0, ends)
        self.add(self.total - ends, ends)
        self._scatter(self.spans[0][1], self.spans[-1][0], windows)

    # -- what File offers ---------------------------------------------------------------------------------------------
    def chunks(self, limit: int | None = None) -> Iterator[bytes]:
        """The bytes of the spans, in order."""
        self._held = {span: self._held[span] if span in self._held else self._bytes(span) for span in self.spans}
        if limit is None:
            self._lines = list(accumulate(data.count(b"\n") for data in self._held.values()))
            self.truncated |= bool(self.unread())
        left = self.total if limit is None else limit
        for data in self._held.values():
            for at in range(0, min(len(data), left), CHUNK):
                yield data[at : min(at + CHUNK, left)]
            left = max(0, left - len(data))

    def _bytes(self, span: Span) -> bytes:
        with self._raw() as stream:
            stream.seek(span[0])
            data = stream.read(span[1] - span[0])  # shorter where the file shrank
        self.read_bytes += len(data)
        return data

    def sha256(self) -> str:
        """Hash of the stretches planned and of where they lie: to hash all bytes is to read them all."""
        digest = hashlib.sha256(f"{self.total} {self.spans}".encode())
        for chunk in self.chunks(limit=self.total):
            digest.update(chunk)
        return digest.hexdigest()

    # -- what is read -------------------------------------------------------------------------------------------------
    def add(self, start: int, size: int) -> bool:
        """Read the lines that begin in `size` bytes from `start` too; False when they are read already."""
        first, last = self._line_at(start), self._line_at(start + size)
        # A line longer than the stretch: the stretch is that line.
        return self._read([(first, last if last > first else self._line_at(first + 1))])

    def _read(self, spans: list[Span]) -> bool:
        before = _size(self.spans)
        self.spans = _merged([*self.spans, *spans])
        return _size(self.spans) > before

    def _scatter(self, start: int, end: int, windows: int) -> bool:
        """Spread windows over a stretch; neighbours and ends keep the same distance."""
        stride = (end - start) / (windows + 1)
        places = [start + int(stride * (n + 1)) for n in range(windows)]
        if self.marker:
            return sum(self._rows(place, min(place + REACH, end), 2) for place in places) > 0
        return sum(self.add(place, self.window) for place in places) > 0

    def _rows(self, start: int, end: int, most: int = AROUND) -> bool:
        """Read the rows between two offsets too, `most` at the most; False when there is none."""
        base = at = self._line_at(start)
        found: list[Span] = []
        with self._raw() as stream:
            stream.seek(base)
            while at < end and len(found) < most and (line := stream.readline(MAX_LINE)):
                at += len(line)
                if self.marker in line:
                    found.append((at - len(line), at))
        self.read_bytes += at - base
        self.scanned.append((base, at))
        return self._read(found)

    def _line_at(self, offset: int) -> int:
        """Offset of the first line that begins at `offset` or behind it; a line of more than MAX_LINE is cut there."""
        if not 0 < offset < self.total:
            return max(0, min(offset, self.total))
        with self._raw() as stream:
            stream.seek(offset - 1)
            line = stream.readline(MAX_LINE)
        self.read_bytes += len(line)
        return min(self.total, offset - 1 + len(line))

    def unread(self) -> list[Span]:
        """The stretches between the spans."""
        return _without([(0, self.total)], self.spans)

    def true_line(self, line: int) -> bool:
        """Whether a line counted over the spans is the file's own count: that holds in the head only."""
        return bool(self._lines) and line <= self._lines[0]

    def searched(self) -> str:
        """What was read of the file and what was not, in a sentence."""
        unread = self.unread()
        largest = sorted(sorted(unread, key=lambda span: span[0] - span[1])[:8])
        shown = ", ".join(f"{start}-{end}" for start, end in largest)
        more = f" and {len(unread) - len(largest)} shorter stretches" if len(unread) > len(largest) else ""
        rows = _size(_without(_merged(self.scanned), self.spans)) / 1e6
        only = f"; in {rows:,.0f} MB of these only metric rows were looked for" if rows else ""
        return (
            f"{self.path}: {self.total / 1e6:,.0f} MB, of which {_size(self.spans) / 1e6:,.1f} MB in {len(self.spans)} "
            f"stretches were read and {_size(unread) / 1e6:,.0f} MB were not searched (bytes {shown}{more}{only}): a "
            "failure that came and went there is not seen"
        )

    # -- the search ---------------------------------------------------------------------------------------------------
    def measure(self, rows: list[int]) -> bool:
        """Learn from the lines of the rows of the last reading how to look for more; True when more is to be read now."""
        if self.marker:
            return False
        apart = _size(self.spans) // max(1, len(rows))
        self.window = max(LEAST, min(MOST, ROWS * apart))
        if apart < SPARSE:
            grown = [start for start, end in self.spans[1:-1] if end - start < self.window // 2]
            return sum(self.add(start, self.window) for start in grown) > 0
        self.marker = self._shared({*rows[:3], *rows[-3:]}) if len(rows) > 3 else b""
        if self.marker:
            head, tail = self.spans[0], self.spans[-1]
            self.spans = []
            for start in (0, self.total - self.ends):
                self.add(start, self.ends)
            return self._rows(*head) | self._rows(*tail) | self._scatter(head[1], tail[0], FEW)
        return self.add(0, LONG_ENDS) | self.add(self.total - LONG_ENDS, LONG_ENDS)

    def _shared(self, rows: set[int]) -> bytes:
        """The longest text that all these lines have in common, and hardly another line; empty when there is none."""
        lines = [line for number, line in enumerate(self._byte_lines(), 1) if number in rows]
        pieces = set.intersection(*(set(_NUMBERS.split(line)) for line in lines)) if lines else set()
        text = b"".join(self.chunks(limit=4 * LONG_ENDS))
        found = (piece for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)) if len(piece) > 3)
        return next((piece for piece in found if text.count(piece) <= 2 * text.count(b"\n") // 100 + len(rows)), b"")

    def narrow(self, trace: Trace, onset: tuple[int | None, int | None]) -> str:
        """Plan to read more around the row at `onset` (segment, step) of `trace`, the last reading of this file alone.

        `divided`: the bytes before it are too many to read them all; `closed`: they and their surroundings are read from now
        on; empty when nothing is left to read there, or there is no such row.
        """
        frame, line = trace.frame, trace.frame.lines
        row = next((row for row, key in enumerate(zip(frame.segments, frame.steps, strict=True)) if key == onset), None)
        if row is None:
            return ""
        at = self._span_of(line[row])
        start, end = self.spans[at]
        gap = (self.spans[self._span_of(line[row - 1])][1] if row else 0, start)
        missing = _without([gap], [*self.spans, *self.scanned])
        if _size(missing) > (SCAN if self.marker else max(WHOLE, 4 * self.window)):
            wide = max(missing, key=lambda span: span[1] - span[0])
            return "divided" if self._scatter(*wide, FEW if self.marker else WINDOWS) else ""
        if self.marker:
            parts = (*missing, (gap[0] - SCAN, gap[0]), (gap[1], gap[1] + SCAN)) if missing else ()
            # What was printed just before the onset may say why.
            grown = sum(self._rows(*part) for part in parts)
            grown = grown or 0 < _size([gap]) < LONG_ENDS and self.add(gap[0], _size([gap]))
            return "closed" if grown else ""
        room = min(AROUND * _size(self.spans) // len(frame), REACH)
        if missing:
            return "closed" if self.add(gap[0] - room, _size([gap]) + 2 * room) else ""
        first = self._lines[at - 1] if at else 0
        offset = start + (end - start) * (line[row] - first) // max(1, self._lines[at] - first)
        before = offset - start < _ENOUGH * room and self.add(start - room, room)
        after = end - offset < _ENOUGH * room and self.add(end, room)
        return "closed" if before or after else ""

    def _span_of(self, line: int) -> int:
        """Number of the span in which a line of the last reading lies."""
        return min(bisect_left(self._lines, line), len(self.spans) - 1)


def _size(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def _merged(spans: list[Span]) -> list[Span]:
    """The same bytes in ascending spans that do not touch."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span[0] <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span[1]))
        elif span[0] < span[1]:
            merged.append(span)
    return merged


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """What of ascending spans lies in none of the others."""
    found = []
    for start, end in spans:
        for low, high in sorted(others):
            if low >= end:
                break
            if high > start:
                found += [(start, low)] if low > start else []
                start = max(start, high)
        found += [(start, end)] if start < end else []
    return found


def is_large_text(file: File, bound: int) -> bool:
    """Whether a file has more than `bound` bytes and is made of lines, so that stretches of it can be read alone."""
    if file.size <= bound:
        return False
    with file._raw() as stream:
        head = stream.read(1 << 16)
    if head.startswith(_BINARY) or b"\x00" in head[:4096]:
        return False
    first = head.lstrip().partition(b"\n")[0].rstrip()
    return not _DOCUMENT.match(head) or first.startswith(b"{") and first.endswith(b"}")
