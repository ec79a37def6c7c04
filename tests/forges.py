"""A server on this machine that takes the requests of GitHub, Gitea, GitLab, and Jira as their API pages document them.

It is a recorded contract, not the sites themselves: paths, methods, headers, required fields, limits, paging, and the
shape of answers follow https://docs.github.com/en/rest/issues, https://docs.gitlab.com/api/notes and /api/issues, and
https://developer.atlassian.com/cloud/jira/platform/rest/v3/. What a page does not allow is answered with an error.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "the-token-of-the-test"
OTHER = {"login": "somebody", "id": 9, "accountId": "other", "type": "User"}
ME = {"login": "me", "id": 7, "accountId": "mine", "type": "User"}
#: Node types of ADF that may stand in a document: https://developer.atlassian.com/cloud/jira/platform/apis/document/structure/
NODES = {"doc", "heading", "paragraph", "text", "orderedList", "bulletList", "listItem", "table", "tableRow", "tableHeader", "tableCell", "codeBlock", "expand", "hardBreak"}  # fmt: skip


class Site:
    """What the server holds, and what it was asked; `faults` are answers given before the real ones."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.faults: list[tuple[str | None, int | str, dict[str, str]]] = []
        self.user: dict[str, Any] | None = ME
        self.url = ""


def serve() -> tuple[Site, Callable[[], None]]:
    """A running server and the function that stops it."""
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return site, stop


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = json.loads(body) if body else None
        self.site.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, sent))
        fault = next((f for f in self.site.faults if f[0] in (None, self.command)), None)
        if fault:
            self.site.faults.remove(fault)
            if fault[1] == "lost":
                self._answer()  # taken, and the line breaks before the answer
                self.close_connection = True
                return
            said = fault[2].pop("said", None)
            return self._write(int(fault[1]), [said] if said else {"message": f"try later, {TOKEN}"}, fault[2])
        self._write(*self._answer())

    do_GET = do_POST = do_PUT = do_PATCH = _handle

    def _write(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _answer(self) -> tuple[int, Any]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        sent = self.site.asked[-1][3]
        for pattern, answer in ((r"/api/v[13](/.*)", self._github), (r"/api/v4(/.*)", self._gitlab), (r"/rest/api/3(/.*)", self._jira)):  # fmt: skip
            if found := re.fullmatch(pattern, parts.path):
                return answer(self.command, found[1], query, sent)
        return 404, {"message": "Not Found"}

    def _listed(self, entries: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
        size, page = int(query.get("per_page", 20)), int(query.get("page", 1))
        assert size <= 100
        return entries[(page - 1) * size : page * size]

    def _github(self, method: str, path: str, query: dict[str, str], sent: Any) -> tuple[int, Any]:
        if self.headers["Authorization"] not in (f"token {TOKEN}", f"Bearer {TOKEN}"):
            return 401, {"message": "Bad credentials"}
        if path == "/user":
            return (
                (200, self.site.user)
                if self.site.user
                else (403, {"message": "Resource not accessible by integration"})
            )
        if sent and (
            not isinstance(sent.get("body"), str) or len(sent["body"]) > 65_536 or len(sent.get("title", "")) > 256
        ):
            return 422, {"message": "Validation Failed", "errors": ["body is too long"]}
        me = self.site.user or {"login": "app[bot]", "type": "Bot"}
        if re.fullmatch(r"/repos/o/r/issues/5/comments", path):
            return self._collection(
                method, self.site.comments, query, sent and {"body": sent["body"], "user": me}, "id"
            )
        if found := re.fullmatch(r"/repos/o/r/issues/comments/(\d+)", path):
            return self._member(method, "PATCH", self.site.comments, "id", int(found[1]), sent, ("body",))
        if path == "/repos/o/r/issues":
            if sent and not sent.get("title"):
                return 422, {"message": "title is missing"}
            entries = [i for i in self.site.issues if query.get("creator") in (None, i["user"]["login"])]
            return self._collection(method, self.site.issues, query, sent and {**sent, "user": me}, "number", entries)
        if found := re.fullmatch(r"/repos/o/r/issues/(\d+)", path):
            return self._member(method, "PATCH", self.site.issues, "number", int(found[1]), sent, ("title", "body"))
        return 404, {"message": "Not Found"}

    def _gitlab(self, method: str, path: str, query: dict[str, str], sent: Any) -> tuple[int, Any]:
        if self.headers["PRIVATE-TOKEN"] != TOKEN:
            return 401, {"message": "401 Unauthorized"}
        if path == "/user":
            return 200, self.site.user
        project, _, rest = path.removeprefix("/projects/").partition("/")
        if unquote(project) != "g/sub/p" or "%2F" not in project:
            return 404, {"message": "404 Project Not Found"}
        if found := re.fullmatch(r"(?:issues|merge_requests)/5/notes(?:/(\d+))?", rest):
            if found[1]:
                return self._member(method, "PUT", self.site.comments, "id", int(found[1]), sent, ("body",))
            return self._collection(method, self.site.comments, query, sent and {"body": sent["body"], "author": ME, "system": False}, "id")  # fmt: skip
        if found := re.fullmatch(r"issues(?:/(\d+))?", rest):
            if found[1]:
                return self._member(
                    method, "PUT", self.site.issues, "iid", int(found[1]), sent, ("title", "description")
                )
            if sent and not sent.get("title"):
                return 400, {"message": "title is missing"}
            entries = [i for i in self.site.issues if query.get("scope") != "created_by_me" or i["author"] == ME]
            return self._collection(method, self.site.issues, query, sent and {**sent, "author": ME}, "iid", entries)
        return 404, {"message": "404 Not Found"}

    def _jira(self, method: str, path: str, query: dict[str, str], sent: Any) -> tuple[int, Any]:
        basic = "Basic " + b64encode(f"me@x.io:{TOKEN}".encode()).decode()
        if self.headers["Authorization"] not in (basic, f"Bearer {TOKEN}"):
            return 401, {"errorMessages": ["Client must be authenticated"]}
        if path == "/myself":
            return 200, self.site.user
        fields = (sent or {}).get("fields") or {}
        for document in ((sent or {}).get("body"), fields.get("description")):
            if document is not None and (wrong := _adf(document)):
                return 400, {"errorMessages": [wrong]}
        if found := re.fullmatch(r"/issue/OPS-5/comment(?:/(\d+))?", path):
            if found[1]:
                return self._member(method, "PUT", self.site.comments, "id", found[1], sent, ("body",))
            if method == "GET":
                start, most = int(query["startAt"]), int(query["maxResults"])
                return 200, {
                    "comments": self.site.comments[::-1][start : start + most],
                    "total": len(self.site.comments),
                }
            return self._collection(
                method, self.site.comments, query, sent and {"body": sent["body"], "author": ME}, "id"
            )
        if path == "/search/jql":
            label = re.search(r'project = "OPS" AND labels = "([\w-]+)" AND creator = currentUser\(\)', query["jql"])
            assert label and set(query["fields"].split(",")) == {"labels", "creator"}
            return 200, {"issues": [i for i in self.site.issues if label[1] in i["fields"]["labels"]], "isLast": True}
        if path == "/issue" and method == "POST":
            if (
                {"project", "issuetype", "summary"} - fields.keys()
                or "\n" in fields["summary"]
                or len(fields["summary"]) > 255
            ):
                return 400, {"errorMessages": [], "errors": {"summary": "required"}}
            made = {"id": str(100 + len(self.site.issues)), "key": f"OPS-{len(self.site.issues) + 1}"}
            self.site.issues.append({**made, "fields": {**fields, "creator": ME}})
            return 201, made
        if (found := re.fullmatch(r"/issue/(\d+)", path)) and method == "PUT":
            held = next(i for i in self.site.issues if i["id"] == found[1])
            held["fields"] |= fields
            return 204, None
        return 404, {"errorMessages": ["Issue does not exist"]}

    def _collection(self, method: str, held: list[Any], query: dict[str, str], new: Any, key: str, shown: list[Any] | None = None) -> tuple[int, Any]:  # fmt: skip
        if method == "GET":
            return 200, self._listed(held if shown is None else shown, query)
        made = {**new, key: len(held) + 1, "html_url": f"https://site/{key}/{len(held) + 1}"}
        held.append(made)
        return 201, made

    def _member(self, method: str, allowed: str, held: list[Any], key: str, value: Any, sent: Any, fields: tuple[str, ...]) -> tuple[int, Any]:  # fmt: skip
        entry = next((e for e in held if str(e[key]) == str(value)), None)
        if method != allowed or entry is None:
            return 404, {"message": "Not Found"}
        if (entry.get("user") or entry.get("author")) == OTHER:
            return 403, {"message": "Forbidden"}
        entry |= {name: sent[name] for name in fields}
        return 200, entry


def _adf(node: Any) -> str:
    """What is wrong with an ADF document; nothing when it is valid."""
    if len(json.dumps(node)) > 32_767:
        return "CONTENT_LIMIT_EXCEEDED"
    for inner in node.get("content", ()):
        if inner.get("type") not in NODES or inner.get("text") == "" or _adf(inner):
            return f"INVALID_INPUT {inner.get('type')}"
    return "" if node["type"] != "doc" or node.get("version") == 1 else "INVALID_INPUT version"
