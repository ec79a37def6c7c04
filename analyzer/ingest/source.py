"""Opens what a user points at: plain, gz, and zst files as bounded streams of bytes and lines.

Nothing here trusts a size or a path from a file. Limits (all said in the report when they bite):
a line longer than MAX_LINE is cut; a compressed file is read to MAX_RATIO times its size or MIN_EXPANDED, whichever is
larger (real logs compress 5 to 30 times; a bomb 1,000 times); a single JSON document is parsed whole up to MAX_DOCUMENT.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from faultproxy.analyzer.errors import UnreadableError

CHUNK = 1 << 20
MAX_LINE = 4 << 20
#: Parsed JSON takes up to 30 times the room of its text (`{},`: 3 bytes, 72 in memory).
MAX_DOCUMENT = 24 << 20
MAX_RATIO = 60
MIN_EXPANDED = 64 << 20
#: A Parquet file larger than this is known by the hash of its footer.
FOOTER_FROM = 64 << 20
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
#: Our own reports: left in a job folder they quote the log they are about.
_OWN = re.compile(
    rb"\s*(?:\[\s*)?\{\s*\"schema\":\s*\d+,\s*\"tool\":\s*\{\s*\"name\":\s*\"faultproxy\""
    rb"|(?:FAILED|HEALTHY|INCONCLUSIVE)  |(?:# [^\n]{1,300}\s{1,4})?(?:#{1,3} )?(?:FAILED|HEALTHY|INCONCLUSIVE): "
    rb"|\{\s*\"\$schema\":[^{\[]{,300}\"runs\":\s*\[\s*\{\s*\"tool\":\s*\{\s*\"driver\":\s*\{\s*\"name\":\s*\"faultproxy\""
    rb"|<!doctype html>[^<]*<html[^<]*<head>\s*<meta name=\"generator\" content=\"faultproxy"
)
#: What cannot hold a text trace, by its first bytes; the message tells the user what it is.
_MAGIC = {
    b"PK\x03\x04": "a zip archive (a torch checkpoint or an archive of logs): unpack it, point at the log inside",
    b"\x80\x02": "a pickle: it is never loaded; export its metrics as CSV, JSON lines, or Parquet",
    b"\x80\x03": "a pickle: it is never loaded; export its metrics as CSV, JSON lines, or Parquet",
    b"\x80\x04": "a pickle: it is never loaded; export its metrics as CSV, JSON lines, or Parquet",
    b"\x80\x05": "a pickle: it is never loaded; export its metrics as CSV, JSON lines, or Parquet",
    b"SQLite format 3": "an SQLite database (MLflow, trackio): export its metrics as CSV or Parquet",
    b":W&B": "a W&B local record: point at its files/output.log, or export the history as CSV",
    b"\x7fELF": "a program",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
}


class File:
    """One file on disk or stdin, seen as decoded lines or as bytes."""

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        """`data` stands in for the file's content (stdin)."""
        self.path = path
        self.data = data
        self.truncated = False
        self.encoding = "utf-8"

    @property
    def name(self) -> str:
        """The file's name without a compression suffix."""
        return self.path.stem if self.path.suffix in (".gz", ".zst") else self.path.name

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return len(self.data) if self.data is not None else self.path.stat().st_size

    def sha256(self) -> str:
        """Hash of the stored bytes."""
        digest = hashlib.sha256()
        with self._raw() as stream:
            if self.size > FOOTER_FROM and stream.read(4) == b"PAR1":
                # Reading 1e8 values only to hash them costs more than the diagnosis; the footer has every size, offset,
                # minimum, and maximum in it (docs/trace.md).
                stream.seek(-8, os.SEEK_END)
                footer = int.from_bytes(stream.read(4), "little")
                stream.seek(-min(footer + 8, self.size), os.SEEK_END)
                return hashlib.sha256(stream.read()).hexdigest()
            stream.seek(0)
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def _raw(self) -> BinaryIO:
        if self.data is not None:
            return io.BytesIO(self.data)
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise UnreadableError(
                f"{self.path}: cannot be opened ({error.strerror or error}); check the path and its rights"
            ) from error

    def head(self, size: int = 1 << 16) -> bytes:
        """The first decompressed bytes as UTF-8, for sniffing; raises UnreadableError for an empty or foreign file."""
        head = b"".join(self.chunks(limit=size))[:size]
        self.truncated = False
        if not head.strip(b"\x00 \r\n\t"):
            raise UnreadableError(f"{self.path}: empty file; point at the log, JSON, CSV, or Parquet of the run")
        if head.startswith((b"PAR1", b"\xff\xff\xff\xff")):  # Parquet and Arrow streams are binary, and have readers
            return head
        if _OWN.match(head):
            raise UnreadableError(f"{self.path}: is a report of faultproxy, not a trace")
        for magic, what in _MAGIC.items():
            if head.startswith(magic):
                raise UnreadableError(f"{self.path}: is {what}")
        for bom, encoding in _BOMS:
            if head.startswith(bom):
                self.encoding = encoding
                return self._as_utf_8(head)
        sample = head[:4096]
        if sample.count(0) > len(sample) // 3:
            odd, even = sample[1::2].count(0), sample[::2].count(0)
            if odd > 0.8 * len(sample[1::2]) or even > 0.8 * len(sample[::2]):
                self.encoding = "utf-16-le" if odd > even else "utf-16-be"
                return self._as_utf_8(head)
        control = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c" for byte in sample) + sample.count(127)
        if control - sample.count(0) > len(sample) // 10 or sample.count(0) > len(sample) // 2:
            raise UnreadableError(
                f"{self.path}: binary data that no reader knows (read are text logs, JSON, JSON lines, CSV, and Parquet, plain, .gz, or .zst)"
            )
        return head

    def _as_utf_8(self, head: bytes) -> bytes:
        return head.decode(self.encoding, errors="ignore").encode()

    def chunks(self, limit: int | None = None) -> Iterator[bytes]:
        """Decompressed bytes in order, at most `limit`; a torn or oversized stream ends early and sets `truncated`."""
        with self._raw() as raw:
            magic = raw.read(4)
            raw.seek(0)
            stream: BinaryIO = raw
            cap, least = limit, 0
            if magic[:2] == b"\x1f\x8b":
                stream = gzip.GzipFile(fileobj=raw)  # type: ignore[assignment]
            elif magic == b"\x28\xb5\x2f\xfd":
                stream, least = _zstd(raw), _zstd_size(raw)
            if stream is not raw:
                bound = max(MIN_EXPANDED, MAX_RATIO * self.size)
                cap = bound if limit is None else min(limit, bound)
            done = 0
            while cap is None or done < cap:
                try:
                    # read1: `read` waits for a whole chunk, and what it holds is lost when the stream turns out torn.
                    want = CHUNK if cap is None else min(CHUNK, cap - done)
                    chunk = stream.read1(want) if isinstance(stream, gzip.GzipFile) else stream.read(want)
                except (EOFError, OSError, zlib.error, ValueError) as error:
                    if stream is raw:
                        raise UnreadableError(f"{self.path}: cannot be read ({error})") from error
                    self.truncated = True
                    return
                except Exception as error:  # zstandard raises its own type; a torn frame is a truncated file
                    if type(error).__name__ != "ZstdError":
                        raise
                    self.truncated = True
                    return
                if not chunk:
                    self.truncated |= done < least
                    return
                done += len(chunk)
                yield chunk
            if limit is None:
                self.truncated = True

    def lines(self) -> Iterator[str]:
        """Decoded physical lines (split at `\\n`, as an editor numbers them), each cut at MAX_LINE bytes."""
        if self.encoding.startswith("utf-16"):
            yield from self._wide_lines()
        else:
            yield from map(decoded, self._byte_lines())

    def raw_lines(self) -> Iterator[str | bytes]:
        """The same lines, as bytes where they are UTF-8: for a parser that reads bytes, which spares decoding them."""
        return self._wide_lines() if self.encoding.startswith("utf-16") else self._byte_lines()

    def _byte_lines(self) -> Iterator[bytes]:
        rest = b""
        cut = False
        for chunk in self.chunks():
            chunk = rest + chunk if rest else chunk
            rest = b""
            parts = chunk.split(b"\n")
            rest = parts.pop()
            for part in parts:
                if cut:  # the tail of a line that was already cut
                    cut = False
                    continue
                yield part
            if len(rest) > MAX_LINE:
                if not cut:
                    yield rest[:MAX_LINE]
                    self.truncated = True
                cut = True
                rest = b""
        if rest and not cut:
            yield rest

    def _wide_lines(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        rest = ""
        for chunk in self.chunks():
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            yield from (line.rstrip("\r") for line in lines)
            if len(rest) > MAX_LINE:
                rest = rest[:MAX_LINE]
                self.truncated = True
        if rest:
            yield rest.rstrip("\r")

    def text(self) -> str | None:
        """The whole decoded content when it is at most MAX_DOCUMENT bytes, else None."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > MAX_DOCUMENT:
                return None
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        return bytes(data).decode(encoding, errors="replace")


def decoded(raw: bytes) -> str:
    """One line as text: what is no UTF-8 is replaced, zero bytes, a byte order mark, and `\\r` go."""
    text = raw.decode("utf-8", errors="replace")
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text.lstrip("\ufeff").rstrip("\r")


def _zstd(raw: BinaryIO) -> BinaryIO:
    import zstandard

    # 128 MiB window: what `zstd --long` writes by default; a frame that asks for more is refused, not allocated.
    return zstandard.ZstdDecompressor(max_window_size=128 << 20).stream_reader(raw, read_across_frames=True)


def _zstd_size(raw: BinaryIO) -> int:
    """What the first frame's header promises (0 when it does not say): a torn frame just ends, without an error."""
    import zstandard

    header = raw.read(18)
    raw.seek(0)
    try:
        size = zstandard.get_frame_parameters(header).content_size
    except zstandard.ZstdError:
        return 0
    return 0 if size >= zstandard.CONTENTSIZE_ERROR else size


def walk(folder: Path) -> Iterator[Path]:
    """Every regular file below a folder in a stable order; symbolic links to folders are not followed (loops)."""
    for base, folders, names in os.walk(folder, followlinks=False):
        folders.sort(key=natural)
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in sorted(names, key=natural):
            path = Path(base) / name
            if not name.startswith(".") and path.is_file():
                yield path


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts `checkpoint-9` before `checkpoint-10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
