"""A web server on this machine that gives byte ranges of a folder's files, as object stores do, and counts what it sends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class Site:
    """What the server was asked for and sent. `faults` are statuses given, `cut` for half of an answer, `shifted` for other bytes, or `gzip`, before answers are right."""

    def __init__(self, folder: Path, ranges: bool) -> None:
        self.folder, self.ranges = folder, ranges
        self.url = ""
        self.sent = 0
        self.asked: list[tuple[str, str, str | None]] = []
        self.faults: list[int | str] = []
        self.lock = Lock()


@contextmanager
def serve(folder: Path, ranges: bool = True) -> Iterator[Site]:
    """A running server of a folder; without `ranges` it always sends whole files."""
    site = Site(folder, ranges)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}/model"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix("/model").strip("/")
        wanted = self.headers.get("Range")
        with self.site.lock:
            self.site.asked.append((self.command, name, wanted))
            fault = self.site.faults.pop(0) if self.site.faults and body and name.endswith(".safetensors") else None
        path = self.site.folder / name
        if isinstance(fault, int):
            return self._send(fault, b"try later")
        if not name or not path.is_file():
            return self._send(404, b"")
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        if wanted and self.site.ranges:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
            assert found, wanted
            start, stop, status = int(found[1]), min(size, int(found[2]) + 1), 206
        headers = {"Content-Length": str(stop - start), "ETag": f'"{path.stat().st_mtime_ns}"'}
        if fault == "shifted":
            start, stop = start + 1, stop + 1
        if fault == "gzip":
            headers["Content-Encoding"] = "gzip"
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if not body:
            return self._send(status, b"", headers)
        with path.open("rb") as file:
            file.seek(start)
            if fault == "cut":
                self._send(status, file.read((stop - start) // 2), headers)
                self.close_connection = True
                return None
            self._send(status, file.read(stop - start), headers)
        return None

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            return
        with self.site.lock:
            self.site.sent += len(data)
