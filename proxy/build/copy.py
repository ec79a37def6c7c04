"""Moves byte ranges from a source into a file that grows from its start, without holding more than a few blocks.

Here, the faster of two ways is taken: the kernel copies from file to file, or a small buffer does. From far away, a few requests run at once, and what lies between two wanted ranges
is fetched too where it is small, since a request costs more than some bytes; that waste stays under a hundredth of what is wanted.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

from faultproxy.analyzer.errors import UnreadableError
from faultproxy.proxy.build.layout import Shard
from faultproxy.proxy.source import Source

BLOCK = 8 * 2**20
#: Bytes that one call of the kernel moves; what was moved is counted, and can be resumed, in such steps.
_STEP = 64 * 2**20
#: Bytes that the kernel is told of beforehand (a third faster from a disk, measured), and files open at once.
_AHEAD, _OPEN = 128 * 2**20, 64
_AT_ONCE = 4
_GAP = 256 * 2**10
_WASTE = 0.01
#: Bytes for which each way of copying is tried. The kernel's own is at once where files can share blocks or a server copies by itself;
#: on ext4 (Linux 6.18) it takes 1.4 times as long as a buffer that stays in the processor's cache. os.sendfile was slower than both.
_TRIAL = 128 * 2**20
_BUFFER = 256 * 2**10
#: What copy_file_range answers where the file systems cannot do it.
_CANNOT = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EBADF, errno.ETXTBSY)
Span = tuple[str, int, int]
Way = Callable[[int, int, int, int], int]


def spans(shard: Shard, skip: int = 0) -> Iterator[Span]:
    """The ranges (file, start, stop) whose bytes follow the header, neighbours joined, without the first `skip` bytes."""
    file, begin, end = "", 0, 0
    for tensor in shard.tensors:
        for start, stop in tensor.ranges():
            cut = min(skip, stop - start)
            skip, start = skip - cut, start + cut
            if (tensor.source.file, start) == (file, end):
                end = stop
                continue
            if end > begin:
                yield file, begin, end
            file, begin, end = tensor.source.file, start, stop
    if end > begin:
        yield file, begin, end


def copy(source: Source, wanted: Iterable[Span], out: int) -> Iterator[int]:
    """Write ranges of a source at the position of the file descriptor `out`; yields the bytes of each step.

    Raises:
        UnreadableError: The source ends early or cannot be read.
    """
    return _copy_here(source, wanted, out) if source.local else _copy_far(source, wanted, out)


def write_all(out: int, data: bytes | memoryview) -> int:
    """Write all of `data`; a call of the system may take only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
    return len(data)


class _Files(dict[str, int]):
    """File descriptors of a source's files, opened when asked for, a few at once."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def __missing__(self, file: str) -> int:
        if len(self) >= _OPEN:
            self.close()
        assert self.source.local is not None
        try:
            self[file] = os.open(self.source.local / file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableError(f"cannot read {self.source.where(file)}: {error.strerror}") from error
        return self[file]

    def close(self) -> None:
        while self:
            os.close(self.popitem()[1])


def _copy_here(source: Source, wanted: Iterable[Span], out: int) -> Iterator[int]:
    """By the kernel and through a buffer for a while each, then in the way that was faster."""
    ways: list[Way] = [_by_kernel, _through_buffer] if hasattr(os, "copy_file_range") else [_through_buffer]
    paces: dict[Way, float] = {}
    way, tried, spent = ways[0], 0, 0.0
    files = _Files(source)
    try:
        for file, start, stop in _announced(wanted, files):
            while start < stop:
                begun = perf_counter()
                moved = way(out, files[file], start, min(_STEP, stop - start))
                tried, spent = tried + moved, spent + perf_counter() - begun
                if not moved and (way is _through_buffer or len(paces) == len(ways)):
                    raise UnreadableError(
                        f"{source.where(file)} ends at byte {start}, before {stop}; was it cut short?"
                    )
                if len(paces) < len(ways) and (tried >= _TRIAL or not moved):
                    paces[way] = tried / spent if moved else 0.0
                    way = next((other for other in ways if other not in paces), max(paces, key=lambda one: paces[one]))
                    tried, spent = 0, 0.0
                start += moved
                source.fetched += moved
                yield moved
    finally:
        files.close()


def _announced(wanted: Iterable[Span], files: _Files) -> Iterator[Span]:
    """The same ranges, named to the kernel some time before they are read: a disk then works on many small ones at once."""
    waiting: deque[Span] = deque()
    held = 0
    for file, start, stop in wanted:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(files[file], start, stop - start, os.POSIX_FADV_WILLNEED)
        waiting.append((file, start, stop))
        held += stop - start
        while held > _AHEAD:
            yield (first := waiting.popleft())
            held -= first[2] - first[1]
    yield from waiting


def _by_kernel(out: int, file: int, start: int, count: int) -> int:
    try:
        return os.copy_file_range(file, out, count, offset_src=start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return 0


def _through_buffer(out: int, file: int, start: int, count: int) -> int:
    buffer, moved = memoryview(bytearray(min(count, _BUFFER))), 0
    while size := os.preadv(file, [buffer[: count - moved]], start + moved):
        moved += write_all(out, buffer[:size])
    return moved


@dataclass(slots=True)
class _Request:
    file: str
    start: int
    stop: int
    wanted: list[tuple[int, int]] = field(default_factory=list)


def _requests(wanted: Iterable[Span]) -> Iterator[_Request]:
    """Ranges of at most a block each, those with small gaps between them as one request."""
    now: _Request | None = None
    useful = waste = 0
    for file, begin, end in wanted:
        for start in range(begin, end, BLOCK):
            stop = min(end, start + BLOCK)
            useful += stop - start
            gap = start - now.stop if now and now.file == file else -1
            if now and 0 <= gap <= _GAP and stop - now.start <= BLOCK and waste + gap <= _WASTE * useful:
                waste, now.stop = waste + gap, stop
            else:
                if now:
                    yield now
                now = _Request(file, start, stop)
            now.wanted.append((start, stop))
    if now:
        yield now


def _copy_far(source: Source, wanted: Iterable[Span], out: int) -> Iterator[int]:
    waiting: deque[tuple[_Request, Future[bytes]]] = deque()
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        requests = _requests(wanted)
        while True:
            while len(waiting) < 2 * _AT_ONCE and (request := next(requests, None)):
                waiting.append((request, pool.submit(source.read, request.file, request.start, request.stop)))
            if not waiting:
                return
            request, future = waiting.popleft()
            data = memoryview(future.result())
            for start, stop in request.wanted:
                write_all(out, data[start - request.start : stop - request.start])
            yield sum(stop - start for start, stop in request.wanted)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
