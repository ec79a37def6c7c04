"""The hidden folder `.OUT.partial` beside OUT in which a proxy grows, and the journal that lets the same command go on after any kill.

`model/` becomes OUT by one rename. A line of the journal is written after what it says has reached the disk, and says that of a shard so
many bytes are there: bytes beyond are thrown away and copied again. A line has a checksum; from the first wrong one on, none counts. A lock keeps a second builder out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible

#: The file that makes a folder a proxy.
PROXY = "proxy.json"


class Work:
    """The partial folder of one OUT, locked between `with`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.parent / f".{out.name}.partial"
        self.model = self.folder / "model"
        self._journal = self.folder / "journal"
        #: Bytes of each shard that are on disk for good.
        self.done: dict[str, int] = {}
        self._lock = -1
        self._mine = True

    def __enter__(self) -> Self:
        path = self.folder / "lock"
        if self.folder.is_symlink():
            raise InputError(
                f"{visible(str(self.folder))} is a link; remove it, the build works in a folder of that name"
            )
        while self._lock < 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except FileNotFoundError:  # another builder has just finished
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                raise InputError(
                    f"another build into {visible(str(self.out))} is running; wait for it, or give another OUT"
                ) from error
            except OSError:  # a file system without locks
                self._lock = lock
                break
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    self._lock = lock
                    break
            os.close(lock)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine and not self._journal.exists():  # refused before anything was begun
            self.clear()
        os.close(self._lock)
        self._lock = -1

    def resume(self, key: str) -> dict[str, Any] | None:
        """What `begin` was given, where this folder was begun with the same key; else None, and the folder is empty."""
        plain = self._journal.is_file() and not self._journal.is_symlink() and not self.model.is_symlink()
        lines = list(_lines(self._journal.read_bytes())) if plain and self.model.is_dir() else []
        if lines and lines[0][0].get("key") == key:
            for line, _ in lines[1:]:
                self.done.update(line)
            os.truncate(self._journal, lines[-1][1])
            return lines[0][0]
        for path in self.folder.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return None

    def holds_other(self) -> bool:
        """Whether there is something in this folder, of this or another command."""
        return self._journal.exists()

    def begin(self, key: str, facts: dict[str, Any]) -> None:
        """Start with an empty model and a journal that says what it will be."""
        self.model.mkdir()
        self._append({"key": key, **facts})
        sync_folder(self.folder)

    def mark(self, file: str, size: int) -> None:
        """The first `size` bytes of a shard are on disk."""
        self.done[file] = size
        self._append({file: size})

    def write(self, file: str, data: bytes) -> None:
        """A whole small file of the model, on disk when this returns."""
        with (self.model / file).open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())

    def publish(self) -> None:
        """Make the model OUT, in place of a proxy that is there; then remove this folder."""
        sync_folder(self.model)
        if self.out.exists():
            shutil.rmtree(replaced := self.folder / "replaced", ignore_errors=True)
            os.rename(self.out, replaced)
        os.rename(self.model, self.out)
        sync_folder(self.out.parent)
        self.clear()

    def clear(self) -> None:
        """Remove this folder."""
        self._mine = False
        shutil.rmtree(self.folder)

    def _append(self, line: dict[str, Any]) -> None:
        with self._journal.open("ab") as journal:
            journal.write(_checked(json.dumps(line).encode()))
            journal.flush()
            os.fsync(journal.fileno())


def _checked(text: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _lines(journal: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """What the lines say, and where each ends; nothing from the first torn or damaged one on."""
    end = 0
    for line in journal.splitlines(keepends=True):
        if line != _checked(line[9:-1]):
            return
        end += len(line)
        yield json.loads(line[9:-1]), end


def sync_folder(path: Path) -> None:
    """The names in a folder are on disk when this returns."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError:  # some network file systems cannot
        pass
    finally:
        os.close(folder)
