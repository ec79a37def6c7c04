"""Writes files whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faultproxy.analyzer.errors import InputError


@contextmanager
def atomic_path(target: str | Path, force: bool = False) -> Iterator[Path]:
    """Yield a path beside `target` to write to; on success it replaces `target` in one step, on failure it is gone.

    Raises InputError when the target exists and `force` is off, or its folder cannot be written.
    """
    target = Path(target)
    if target.exists() and not force:
        raise InputError(f"{target}: exists already; choose another name or pass --force")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent or ".")
    except OSError as error:
        raise InputError(
            f"{target}: cannot be written ({error.strerror}); choose a folder that exists and is writable"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error}); check space and rights") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomic(target: str | Path, data: bytes, force: bool = False) -> None:
    """Write bytes whole or not at all; see `atomic_path` for what it raises."""
    with atomic_path(target, force) as temporary:
        temporary.write_bytes(data)


@contextmanager
def atomic_folder(target: str | Path, marker: str, force: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `target` to fill; on success it takes the target's place, on failure it is gone.

    With `force` an existing target is replaced only when it holds `marker`, so that no foreign folder is ever deleted.
    Raises InputError when the target exists otherwise, or its parent cannot be written.
    """
    target = Path(target)
    if target.exists() and not (force and (target / marker).is_file()):
        how = "it is none of ours, so --force does not replace it" if force else "or pass --force"
        raise InputError(f"{target}: exists already; choose another name ({how})")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent or "."))
    except OSError as error:
        raise InputError(
            f"{target}: cannot be written ({error.strerror}); choose a folder that exists and is writable"
        ) from error
    new, old = temporary / "new", temporary / "old"
    try:
        new.mkdir()
        yield new
        for path in new.iterdir():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error}); check space and rights") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
