"""Where a lake lives: a local folder, or any URL of fsspec (extra `lake`). A file in it is written whole or not at all.

Nothing is ever changed in place: every file has a name that nobody else writes, so writers need no lock. What is being
written has a name that no reader lists.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.files import write_atomic

SUFFIX = ".parquet"
#: Seconds after which nobody is writing to a temporary file any more.
_ABANDONED = 86_400
_EXTRA = "a lake at a URL needs the extra `lake`: pip install 'faultproxy[lake]', and the fsspec driver of that store"
#: Stores whose single put is atomic, and whose rename is a copy that is not. Everything else gets a new name and a rename.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "obs", "tos", "cos", "r2", "memory"}


@dataclass(frozen=True, slots=True)
class Store:
    """A lake's files by their names relative to its root, such as `incidents/day=2026-11-30/ID-DIGEST.parquet`."""

    url: str
    root: str
    #: The fsspec file system; None for a local folder, which needs no extra.
    remote: Any = None

    def path(self, name: str) -> str:
        """The name as DuckDB and people open it."""
        return f"{self.url.rstrip('/')}/{name}" if self.remote else f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        """Write a file whole or not at all; a writer killed on the way leaves nothing that a reader would see."""
        path = f"{self.root}/{name}"
        try:
            if self.remote is None:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                write_atomic(path, data, force=True)
            elif self.url.partition("://")[0] in _OBJECT_STORES:
                self.remote.pipe_file(path, data)
            else:
                self.remote.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.remote.pipe_file(temporary := f"{path}.{secrets.token_hex(8)}", data)
                self.remote.mv(temporary, path)
        except InputError:
            raise
        except Exception as error:  # every driver has its own
            raise InputError(f"{self.url}: cannot be written ({error}); check the address and your rights") from error
        return self.path(name)

    def open(self, name: str) -> Any:
        """The file as a stream of bytes."""
        return self.remote.open(f"{self.root}/{name}", "rb") if self.remote else open(self.path(name), "rb")

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        return bool(self.remote.exists(f"{self.root}/{name}")) if self.remote else Path(self.root, name).is_file()

    def size(self, name: str) -> int:
        """Bytes of a file; 0 when it is gone."""
        with suppress(OSError):
            return int(self.remote.size(f"{self.root}/{name}") if self.remote else os.stat(self.path(name)).st_size)
        return 0

    def remove(self, name: str) -> None:
        """Remove a file; one that another process has just removed is no error."""
        with _here(self.path(name), "removed"):
            self.remote.rm_file(f"{self.root}/{name}") if self.remote else os.unlink(self.path(name))

    def sweep(self, folder: str) -> None:
        """Remove temporary files that a killed writer has left in a local folder."""
        for path in Path(self.root, folder).glob(f".*{SUFFIX}.*") if self.remote is None else ():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()

    def folders(self, name: str) -> list[str]:
        """Names of the folders in a folder, sorted."""
        return sorted(entry for entry, is_folder in self._entries(name) if is_folder)

    def files(self, folder: str) -> list[str]:
        """Names of the finished files in a folder, sorted; temporary and other people's files are left out."""
        names = (entry for entry, is_folder in self._entries(folder) if not is_folder)
        return sorted(f"{folder}/{name}" for name in names if name.endswith(SUFFIX) and not name.startswith("."))

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        with _here(self.path(folder), "listed"):
            if self.remote:
                self.remote.invalidate_cache()
                for entry in self.remote.ls(f"{self.root}/{folder}", detail=True):
                    yield entry["name"].rstrip("/").rpartition("/")[2], entry["type"] == "directory"
                return
            with os.scandir(f"{self.root}/{folder}") as entries:
                for found in entries:
                    yield found.name, found.is_dir()


def open_store(url: str, create: bool = False) -> Store:
    """The store at a local path or an fsspec URL.

    Raises InputError when there is no lake and none is to be made, or when the extra or the driver is missing.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        root = os.path.abspath(rest if separator else url)
        if not create and not os.path.isdir(root):
            raise InputError(f"{url}: there is no lake here; `faultproxy hook run --lake` makes one, or check the path")
        return Store(url, root)
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{url}: {_EXTRA}") from error
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except Exception as error:
        raise InputError(f"{url}: cannot be opened ({error}); {_EXTRA}") from error
    return Store(url, root.rstrip("/"), fs)


@contextmanager
def _here(path: str, done: str) -> Iterator[None]:
    """What is gone is no error; what may not be touched is bad input."""
    try:
        yield
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path}: cannot be {done} ({error.strerror or error}); check your rights") from error
