"""Where the hook's files go, and how: whole or not at all, the same bytes on a rerun, nothing left behind.

A file is written beside its place under a hidden name, synced, renamed, and its folder synced; a hook that was killed in
between leaves only the hidden file, which the next one removes. Hooks of several nodes that end at once all write, and the
last one counts: each holds a shared lock on the folder, and removes hidden files only while it is the only one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.files import write_atomic

REPORT, VIEWS, FOLDER = "diagnosis.json", ("report.html", "ticket.md"), "faultproxy"


def places(out: Path, job: Path) -> Iterator[Path]:
    """Folders to write to, best first: `out`, then one of this user and job below a temporary folder."""
    yield out
    name = hashlib.sha256(os.fsencode(job)).hexdigest()[:12]
    # Not tempfile.gettempdir: it raises where no folder can be written.
    for base in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp", "/dev/shm")):
        yield Path(base) / f"faultproxy-{os.getuid()}" / f"{job.name or 'job'}-{name}"


def write(place: Path, views: dict[str, str], report: Callable[[list[str]], bytes], ours: bool = False) -> list[str]:
    """Write the views, and last the JSON that `report` makes of why some could not be written; returns those reasons.

    With `ours` it is a place below a folder that all may write to. Raises InputError when the JSON could not be written.
    """
    lost = []
    try:
        _prepare(place, ours)
        with _locked(place) as folder:
            for name, text in views.items():
                try:
                    _put(folder, place / name, text.encode())
                except InputError as error:
                    lost.append(str(error))
            _put(folder, place / REPORT, report(lost))
    except OSError as error:
        raise InputError(f"{place}: cannot be written ({error.strerror or error})") from error
    return lost


def _prepare(place: Path, ours: bool) -> None:
    """Make a folder. In a job's folder the name is the job's to choose: a link planted there must not lead us elsewhere."""
    if place.name == FOLDER and place.is_symlink():
        raise OSError("is a symbolic link")
    if place.name == FOLDER and not place.parent.exists():
        raise OSError("there is no such job, and no folder is made for it")
    if ours:
        with suppress(FileExistsError):
            place.parent.mkdir(mode=0o700)
        held = place.parent.lstat()
        if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.getuid():
            raise OSError(f"{place.parent} belongs to somebody else")
    place.mkdir(parents=True, exist_ok=True)


def _put(folder: int, target: Path, data: bytes) -> None:
    with suppress(OSError):
        held = target.lstat()
        if stat.S_ISREG(held.st_mode) and held.st_size == len(data) and target.read_bytes() == data:
            return
    write_atomic(target, data, force=True)
    with suppress(OSError):  # some file systems cannot sync a folder
        os.fsync(folder)


@contextmanager
def _locked(place: Path) -> Iterator[int]:
    """Hold the folder's lock with others; where there is no other, first remove what killed hooks left."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in place.iterdir():
                if path.name.startswith(tuple(f".{name}." for name in (REPORT, *VIEWS))):
                    path.unlink()
        with suppress(OSError):  # a file system without locks, or somebody who keeps it from us
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(folder)
