"""Where a checkpoint is: a local folder or file, or a URL of fsspec (extra `remote`) of which only the asked byte ranges are fetched.

Names of files are plain names, whoever lists them. A read gives exactly the bytes asked for or fails: a server that sends the whole file
for a range is refused before it does. Short-lived faults of a network are tried again, five times with growing waits.
"""

from __future__ import annotations

import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.report.clean import encodable, visible

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}")
#: What a web server is asked for, since few list their files; remote code is found by config.json.
USUAL = (
    "config.json", "generation_config.json", "model.safetensors.index.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
    "chat_template.json", "preprocessor_config.json", "tiktoken.model", "LICENSE",
)  # fmt: skip
#: Modules of remote code that a config names.
_CODE = re.compile(r'"((?:modeling|configuration|tokenization|processing)_[A-Za-z0-9_]{1,80})\.[A-Za-z0-9_]+"')
_EXTRA = "a checkpoint at a URL needs the extra `remote`: pip install 'faultproxy[remote]', and the fsspec driver of that store"
_TRIES = 5
_FIRST_WAIT_SECONDS = 0.2
#: A name and password, or a query with a signature, of a URL in what a driver says.
_SECRET = re.compile(r"(?<=://)[^\s/@]*@|\?[^\s'\")]+")
T = TypeVar("T")


class _MissingError(UnreadableError):
    """A server says that it has no such file, or none for us."""


class Source(ABC):
    """A checkpoint's files by plain name; `fetched` counts the bytes read so far, `local` is the folder where there is one."""

    def __init__(self, name: str, local: Path | None = None) -> None:
        self.name = name
        self.local = local
        self.fetched = 0
        self._lock = Lock()

    @abstractmethod
    def files(self) -> list[str]:
        """Names of all files, sorted."""

    @abstractmethod
    def size(self, file: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def stamp(self, file: str, again: bool = False) -> str:
        """What changes when a file does, as far as can be told without reading it; asked anew for `again`."""

    @abstractmethod
    def _read(self, file: str, start: int, stop: int) -> bytes: ...

    def read(self, file: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` (exclusive) of a file.

        Raises:
            UnreadableError: They cannot be had, or not all of them.
        """
        data = self._read(_plain(file), start, stop) if stop > start else b""
        if len(data) != stop - start:
            raise UnreadableError(
                f"{self.where(file)}: got {len(data)} of bytes {start} to {stop}; was the file changed or cut short?"
            )
        with self._lock:
            self.fetched += len(data)
        return data

    def where(self, file: str) -> str:
        """A file's name in messages."""
        return f"{visible(str(self.local or self.name), 200)}/{visible(file, 200)}"


def open_source(where: str) -> Source:
    """The checkpoint at a local folder, a .safetensors file, or a URL such as https://HOST/MODEL, s3://BUCKET/MODEL, hf://ORG/NAME@REVISION.

    Raises:
        InputError: There is nothing there, or what its URL needs is not installed.
    """
    scheme, separator, rest = where.partition("://")
    return _Remote(where) if separator and scheme != "file" else _Folder(Path(rest if separator else where))


def _plain(file: str) -> str:
    if not PLAIN.fullmatch(file):
        raise InputError(f"{visible(repr(file), 200)} is no plain name of a file of the checkpoint")
    return file


class _Folder(Source):
    def __init__(self, path: Path) -> None:
        try:
            one = not stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise UnreadableError(f"cannot read {visible(str(path))}: {error.strerror}") from error
        self._only = path.name if one else ""
        folder = path.parent if one else path
        super().__init__(encodable(folder.resolve().name), folder)

    def files(self) -> list[str]:
        assert self.local is not None
        try:
            with os.scandir(self.local) as entries:
                found = [entry.name for entry in entries if PLAIN.fullmatch(entry.name) and not entry.is_dir()]
        except OSError as error:
            raise UnreadableError(f"cannot read {visible(str(self.local))}: {error.strerror}") from error
        weights = (".safetensors", ".safetensors.index.json")
        hidden = {name for name in found if self._only and name != self._only and name.endswith(weights)}
        return sorted({*found, *([self._only] if self._only else [])} - hidden)

    def size(self, file: str) -> int:
        return self._status(file).st_size

    def stamp(self, file: str, again: bool = False) -> str:
        status = self._status(file)
        return f"{status.st_size} {status.st_mtime_ns}"

    def _status(self, file: str) -> os.stat_result:
        assert self.local is not None
        try:
            status = (self.local / file).stat()
        except OSError as error:
            raise UnreadableError(f"cannot read {self.where(file)}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(f"{self.where(file)} is no regular file")
        return status

    def _read(self, file: str, start: int, stop: int) -> bytes:
        self._status(file)
        assert self.local is not None
        try:
            with (self.local / file).open("rb", buffering=0) as opened:
                opened.seek(start)
                data = bytearray()
                # One call gives at most 2 GiB.
                while more := opened.read(stop - start - len(data)):
                    data += more
                return bytes(data)
        except OSError as error:
            raise UnreadableError(f"cannot read {self.where(file)}: {error.strerror}") from error


class _Remote(Source):
    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InputError(f"this is no URL ({visible(str(error), 80)}); write https://HOST/MODEL") from error
        if "::" in url:
            raise InputError("chained URLs (::) are not read; give the URL of the model's folder")
        # Neither passwords nor signatures of a URL may reach the provenance.
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2] if parts.scheme != "hf" else parts.netloc)
        super().__init__(shown._replace(query="", fragment="").geturl().rstrip("/"))
        try:
            import fsspec
            from fsspec.asyn import AsyncFileSystem
        except ImportError as error:
            raise InputError(f"{visible(self.name)}: {_EXTRA}") from error
        self._web = parts.scheme in ("http", "https")
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **(_web_options() if self._web else {}))
        except Exception as error:  # each driver has errors of its own
            raise InputError(f"{visible(self.name)}: cannot be opened ({_said(error)}); {_EXTRA}") from error
        self._root, question, query = root.partition("?") if self._web else (root, "", "")
        self._root, self._query = self._root.rstrip("/"), question + query
        self._async = isinstance(self._fs, AsyncFileSystem)
        self._known: dict[str, tuple[int, str]] = {}
        self._listed: list[str] | None = None

    def files(self) -> list[str]:
        if self._listed is None:
            self._listed = self._list()
        return self._listed

    def size(self, file: str) -> int:
        return self._information(file)[0]

    def stamp(self, file: str, again: bool = False) -> str:
        if again:
            self._known.pop(file, None)
        return " ".join(map(str, self._information(file)))

    def _list(self) -> list[str]:
        if self._web:
            found = self._there(USUAL)
            text = self.read("config.json", 0, min(self.size("config.json"), 2**20)).decode(errors="replace")
            found |= self._there(sorted({f"{module}.py" for module in _CODE.findall(text)})[:20])
        else:
            entries = self._again(lambda: self._fs.ls(self._root, detail=True), self._root)
            found = {entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "file"}
        return sorted(name for name in found if PLAIN.fullmatch(name))

    def _there(self, names: Collection[str]) -> set[str]:
        """Those of the files that a web server has."""
        from concurrent.futures import ThreadPoolExecutor

        def there(name: str) -> bool:
            try:
                self._information(name)
            except _MissingError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            return {name for name, has in zip(names, pool.map(there, names), strict=True) if has}

    def _information(self, file: str) -> tuple[int, str]:
        if file not in self._known:
            found = self._again(lambda: self._fs.info(self._url(_plain(file))), file)
            if type(found.get("size")) is not int:
                raise UnreadableError(f"{self.where(file)}: the server does not say how large it is")
            marks = (found.get(key) for key in ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "mtime"))
            self._known[file] = (found["size"], str(next((mark for mark in marks if mark), "")))
        return self._known[file]

    def _url(self, file: str) -> str:
        return f"{self._root}/{file}{self._query}"

    def _read(self, file: str, start: int, stop: int) -> bytes:
        size = self.size(file)
        return bytes(self._again(lambda: self._range(self._url(file), size, start, min(stop, size)), file))

    def _range(self, url: str, size: int, start: int, stop: int) -> Any:
        if self._web:
            from fsspec.asyn import sync

            return sync(self._fs.loop, self._asked, url, size, start, stop)
        if self._async:
            return self._fs.cat_file(url, start=start, end=stop)
        # Any cache would read ahead.
        with self._fs.open(url, "rb", cache_type="none") as opened:
            opened.seek(start)
            return opened.read(stop - start)

    async def _asked(self, url: str, size: int, start: int, stop: int) -> bytes:
        """The range that was asked for and nothing else: fsspec takes any answer 206, to its end."""
        session = await self._fs.set_session()
        asked = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        how = {**self._fs.kwargs, "headers": {**self._fs.kwargs.get("headers", {}), **asked}}
        async with session.get(self._fs.encode_url(url), **how) as answer:
            answer.raise_for_status()
            ranged = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
                f"bytes {start}-{stop - 1}/"
            )
            whole = answer.status == 200 and answer.content_length == size == stop - start
            if not (ranged or whole) or answer.headers.get("Content-Encoding", "identity") != "identity":
                raise ValueError(
                    f"the server answers {answer.status} with other bytes than the range {start} to {stop} that was asked for"
                )
            data: bytes = await answer.content.readexactly(stop - start)
            return data

    def _again(self, ask: Callable[[], T], file: str) -> T:
        for tried in range(1, _TRIES + 1):
            try:
                return ask()
            except Exception as error:  # each driver has errors of its own
                status = getattr(error, "status", getattr(error.__cause__, "status", None))
                # Object stores answer 403 for what is not there to who may not list.
                missing = status in (403, 404, 410) or (
                    isinstance(error, FileNotFoundError) and error.__cause__ is None
                )
                refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429)
                if tried == _TRIES or missing or refused or isinstance(error, (PermissionError, ValueError)):
                    what = f"cannot read {self.where(file)}: {_said(error)}"
                    raise (_MissingError if missing else UnreadableError)(what) from error
            time.sleep(_FIRST_WAIT_SECONDS * 2 ** (tried - 1))
        raise AssertionError("the last try returns or raises")


def _said(error: Exception) -> str:
    """What a driver says, without what gives access."""
    said = error.__cause__ or error
    return visible(_SECRET.sub("", str(said)) or type(said).__name__, 300)


def _web_options() -> dict[str, Any]:
    """A server that stops answering is an error after a minute; one that drips, after fifteen, which is 32 MB at 36 kB/s."""
    try:
        from aiohttp import ClientTimeout
    except ImportError as error:
        raise InputError(_EXTRA) from error
    return {"client_kwargs": {"timeout": ClientTimeout(total=900, sock_connect=20, sock_read=60)}}
