"""A place for tickets, from the URL of its page: an issue or merge request gets a comment, a project gets an issue.

The APIs of GitHub, Gitea, Forgejo, GitLab, and Jira Cloud:
https://docs.github.com/en/rest/issues/comments (Enterprise: `/api/v3`; Gitea and Forgejo: `/api/v1`),
https://docs.gitlab.com/api/notes and https://docs.gitlab.com/api/issues, and
https://developer.atlassian.com/cloud/jira/platform/rest/v3/, whose bodies are ADF documents.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from faultproxy.analyzer.errors import InputError

#: Entries a page and pages looked through. Gitea gives no more than 50 at once.
_PAGE, _PAGES = 50, 20
_GITHUB = re.compile(r"(?:(?P<api>.{0,200}/api/v[13])/repos|/repos)?/(?P<repo>[\w.-]+/[\w.-]+)(?:/(?:issues|pulls?)/(?P<number>\d+))?")  # fmt: skip
_GITLAB = re.compile(
    r"(?:(?P<api>.{0,200}/api/v4)/projects/(?P<id>[\w.%-]+)|/(?P<project>[\w.-]+(?:/[\w.-]+){1,20}?))"
    r"(?:(?:/-)?/(?P<kind>issues|work_items|merge_requests)/(?P<number>\d+))?"
)
_JIRA = re.compile(
    r"(?P<base>.{0,100}?)/(?:browse|(?:jira/(?:software|core)/(?:c/)?)?projects)/"
    r"(?P<project>[A-Z][A-Z0-9_]{0,40})(?:-(?P<number>\d+))?(?:/.{0,200})?"
)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a site's API."""

    method: str
    url: str
    json: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Forge:
    """A site's API as far as one place needs it; `open_forge` makes it from a URL."""

    #: The header that logs in with a token.
    login: Callable[[str], dict[str, str]]
    #: Where the site says whose token it is, and the field that names an account there and in an author.
    me: str
    account: str
    author: str
    #: Address of a page of the comments (issues) with `{page}` and `{start}`, and the field of the answer that holds them.
    listing: str
    entries: str | None
    #: Method and address; `{id}` is the field `number` of the entry that is written anew.
    create: tuple[str, str]
    update: tuple[str, str]
    number: str
    #: JSON of a title and a body, for a new ticket or not.
    content: Callable[[str, str, bool], dict[str, Any]]
    #: Address for people, where the answer holds none.
    web: str

    def request(self, title: str, body: str, found: dict[str, Any] | None = None) -> Request:
        """The request that adds the ticket, or writes the one that was found anew."""
        method, url = self.create if found is None else self.update
        number = int(found[self.number]) if found else 0
        return Request(method, url.format(id=number), self.content(title, body, found is None))

    def find(self, ask: Callable[[Request], Any], mark: str) -> dict[str, Any] | None:
        """Our own earlier ticket with this mark among 1,000; one that somebody else wrote is never ours."""
        me = (ask(Request("GET", self.me)) or {}).get(self.account)
        for page in range(_PAGES):
            url = self.listing.format(page=page + 1, start=page * _PAGE, me=quote(str(me or ""), safe=""))
            answer: Any = ask(Request("GET", url)) or {}
            entries: list[dict[str, Any]] = answer[self.entries] if answer and self.entries else answer
            for entry in entries:
                author = entry.get(self.author) or entry.get("fields", {}).get(self.author) or {}
                # The token of a GitHub app may not ask who it is; what it writes is a bot's.
                ours = author.get(self.account) == me if me else author.get("type") == "Bot"
                if ours and mark.encode() in orjson.dumps(entry):
                    return entry
            if len(entries) != _PAGE:
                break
        return None

    def link(self, answer: dict[str, Any]) -> str:
        """The address of the ticket for people."""
        return str(answer.get("html_url") or answer.get("web_url") or self.web.format(key=answer.get("key", "")))


def open_forge(to: str, url: str, mark: str, issue_type: str = "Bug") -> Forge:
    """The place that a URL names on `github`, `gitlab`, or `jira`, where a new issue has this type and the mark as label."""
    return _jira(url, mark, issue_type) if to == "jira" else _github(url) if to == "github" else _gitlab(url)


def _github(url: str) -> Forge:
    host, found = _split(
        url,
        _GITHUB,
        "https://HOST/OWNER/REPO[/issues/N or /pull/N]; for Gitea and Forgejo https://HOST/api/v1/repos/OWNER/REPO[/issues/N]",
    )
    public = host in ("https://github.com", "https://api.github.com")
    api = "https://api.github.com" if public else host + (found["api"] or "/api/v3")
    issues = f"{api}/repos/{found['repo']}/issues"
    comments, one = f"{issues}/{found['number']}/comments", found["number"] is not None
    # Gitea knows `created_by` and `limit`, GitHub `creator` and `per_page`; each passes over the other's.
    place = f"{comments}?" if one else f"{issues}?state=all&creator={{me}}&created_by={{me}}&"
    return Forge(
        # `token` is the one form that GitHub and Gitea both take for every kind of token.
        login=lambda token: {"Authorization": f"token {token}"},
        me=f"{api}/user",
        account="login",
        author="user",
        listing=f"{place}per_page={_PAGE}&limit={_PAGE}&page={{page}}",
        entries=None,
        create=("POST", comments if one else issues),
        update=("PATCH", f"{issues}/comments/{{id}}" if one else f"{issues}/{{id}}"),
        number="id" if one else "number",
        content=lambda title, body, _: {"body": body} if one else {"title": title, "body": body},
        web=url,
    )


def _gitlab(url: str) -> Forge:
    host, found = _split(
        url,
        _GITLAB,
        "https://HOST/GROUP/PROJECT[/-/issues/N or /-/merge_requests/N], or https://HOST/PATH/api/v4/projects/ID[/issues/N]",
    )
    api, one = host + (found["api"] or "/api/v4"), found["number"] is not None
    project = f"{api}/projects/{found['id'] or quote(found['project'], safe='')}"
    kind = "merge_requests" if found["kind"] == "merge_requests" else "issues"
    place = f"{project}/{kind}/{found['number']}/notes" if one else f"{project}/issues"
    return Forge(
        login=lambda token: {"PRIVATE-TOKEN": token},
        me=f"{api}/user",
        account="id",
        author="author",
        listing=f"{place}?{'' if one else 'scope=created_by_me&'}per_page={_PAGE}&page={{page}}",
        entries=None,
        create=("POST", place),
        update=("PUT", f"{place}/{{id}}"),
        number="id" if one else "iid",
        content=lambda title, body, _: {"body": body} if one else {"title": title, "description": body},
        web=url,
    )


def _jira(url: str, mark: str, issue_type: str) -> Forge:
    host, found = _split(
        url, _JIRA, "https://SITE.atlassian.net/browse/KEY-N, or https://SITE.atlassian.net/projects/KEY"
    )
    project, one = found["project"], found["number"] is not None
    base = host + found["base"]
    issue = f"{base}/rest/api/3/issue" + (f"/{project}-{found['number']}" if one else "")
    place = f"{issue}/comment" if one else issue
    jql = quote(f'project = "{project}" AND labels = "{mark}" AND creator = currentUser()', safe="")
    search = f"{base}/rest/api/3/search/jql?jql={jql}&fields=labels,creator&maxResults={_PAGE}"
    fixed = {"project": {"key": project}, "issuetype": {"name": issue_type}, "labels": [mark]}

    def login(token: str) -> dict[str, str]:
        # MAIL:TOKEN logs in as that account.
        return {"Authorization": f"Basic {b64encode(token.encode()).decode()}" if ":" in token else f"Bearer {token}"}

    def content(title: str, body: str, new: bool) -> dict[str, Any]:
        if one:
            return {"body": orjson.loads(body)}
        return {"fields": {"summary": title, "description": orjson.loads(body)} | (fixed if new else {})}

    return Forge(
        login=login,
        me=f"{base}/rest/api/3/myself",
        account="accountId",
        author="author" if one else "creator",
        listing=f"{place}?startAt={{start}}&maxResults={_PAGE}&orderBy=-created" if one else search,
        entries="comments" if one else "issues",
        create=("POST", place),
        update=("PUT", f"{place}/{{id}}"),
        number="id",
        content=content,
        web=url if one else f"{base}/browse/{{key}}",
    )


def _split(url: str, path: re.Pattern[str], allowed: str) -> tuple[str, re.Match[str]]:
    """`https://host[:port]` of a URL, and the match of its path."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("https", "http") and parts.hostname and (parts.port or 1)
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or set("{}") & set(url):
        raise InputError(f"--url must be {allowed}; a user or a token does not belong in it")
    found = path.fullmatch(parts.path.rstrip("/"))
    if not found:
        raise InputError(f"{url}: is neither an issue nor a project; give {allowed}")
    return f"{parts.scheme}://{parts.netloc}", found
