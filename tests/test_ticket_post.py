"""Posting, against a server that holds the sites' documented contracts (tests/forges.py): create, update, retry, refuse."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.cli import main
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ticket.forge import open_forge
from faultproxy.analyzer.ticket.post import post
from faultproxy.analyzer.ticket.render import marker, render

sys.path.insert(0, str(Path(__file__).parent))
import forges

pytest.importorskip("httpx")
REPORT = json.loads((Path(__file__).parent / "golden" / "diagnosis-v1.json").read_text("utf-8"))
MARK = marker(REPORT)
#: Site and address of an issue, and of its project.
PLACES = {
    "github enterprise": ("github", "/o/r/issues/5", "/o/r"),
    "a pull request": ("github", "/o/r/pull/5", "/o/r"),
    "gitea": ("github", "/api/v1/repos/o/r/issues/5", "/api/v1/repos/o/r"),
    "gitlab": ("gitlab", "/g/sub/p/-/issues/5", "/g/sub/p"),
    "a merge request": ("gitlab", "/g/sub/p/-/merge_requests/5", "/g/sub/p"),
    "jira": ("jira", "/browse/OPS-5", "/jira/software/c/projects/OPS/boards/3"),
}


@pytest.fixture
def site() -> Iterator[forges.Site]:
    found, stop = forges.serve()
    yield found
    stop()


def _post(site: forges.Site, to: str, path: str, token: str = forges.TOKEN, **changes: Any) -> tuple[str, str]:
    sleeps: list[float] = []
    report = REPORT | changes
    done = post(open_forge(to, site.url + path, MARK), render(report, to), token, sleeps.append)
    site.sleeps = sleeps  # type: ignore[attr-defined]
    return done


@pytest.mark.parametrize("place", PLACES)
def test_a_comment_is_created_once_and_then_updated(site: forges.Site, place: str) -> None:
    to, path, _ = PLACES[place]
    assert _post(site, to, path)[0] == "created"
    assert _post(site, to, path, warnings=["seen again"])[0] == "updated"
    (comment,) = site.comments
    assert MARK in json.dumps(comment["body"]) and "seen again" in json.dumps(comment["body"])


@pytest.mark.parametrize("place", PLACES)
def test_a_project_gets_one_issue_that_is_then_updated(site: forges.Site, place: str) -> None:
    to, _, path = PLACES[place]
    done, where = _post(site, to, path)
    assert done == "created" and where.startswith("http")
    assert _post(site, to, path, warnings=["seen again"])[0] == "updated"
    (issue,) = site.issues
    assert "seen again" in json.dumps(issue) and "nonfinite" in json.dumps(issue)


@pytest.mark.parametrize("place", PLACES)
def test_a_comment_that_somebody_else_wrote_is_never_touched(site: forges.Site, place: str) -> None:
    to, path, _ = PLACES[place]
    copy = {"id": 1, "body": f"<!-- {MARK} -->", "user": forges.OTHER, "author": forges.OTHER}
    site.comments.append(dict(copy))
    assert _post(site, to, path)[0] == "created"
    assert len(site.comments) == 2 and site.comments[0] == copy


def test_the_earlier_comment_is_found_behind_hundreds_of_others(site: forges.Site) -> None:
    site.comments += [{"id": n, "body": "x", "user": forges.OTHER} for n in range(1, 251)]
    assert [_post(site, "github", "/o/r/issues/5")[0] for _ in range(2)] == ["created", "updated"]


def test_the_token_of_an_app_updates_what_a_bot_wrote(site: forges.Site) -> None:
    site.user = None
    assert [_post(site, "github", "/o/r/issues/5")[0] for _ in range(2)] == ["created", "updated"]


def test_a_mail_address_and_token_log_in_to_jira_with_basic_authentication(site: forges.Site) -> None:
    assert _post(site, "jira", "/browse/OPS-5", token=f"me@x.io:{forges.TOKEN}")[0] == "created"


# -- trouble ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "headers"), [(429, {"Retry-After": "7"}), (503, {}), (500, {}), (403, {"Retry-After": "7"})]
)
def test_a_site_in_trouble_is_asked_again_after_a_pause(
    site: forges.Site, status: int, headers: dict[str, str]
) -> None:
    site.faults = [("POST", status, headers), ("GET", status, headers)]
    assert _post(site, "github", "/o/r/issues/5")[0] == "created"
    assert len(site.comments) == 1
    assert all((pause == 7) if headers else (0.4 < pause < 4) for pause in site.sleeps)  # type: ignore[attr-defined]
    assert len(site.sleeps) == 2  # type: ignore[attr-defined]


def test_a_create_whose_answer_was_lost_is_not_repeated(site: forges.Site) -> None:
    site.faults = [("POST", "lost", {})]
    assert _post(site, "github", "/o/r/issues/5")[0] == "updated"
    assert len(site.comments) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 410, 422])
def test_a_refusal_is_final_and_says_why_without_the_token(site: forges.Site, status: int) -> None:
    site.faults = [("POST", status, {})]
    with pytest.raises(InputError, match=f"HTTP {status}.*try later, <token>") as error:
        _post(site, "github", "/o/r/issues/5")
    assert forges.TOKEN not in str(error.value) and [a[0] for a in site.asked].count("POST") == 1


def test_what_a_site_says_is_shown_without_any_form_of_the_token(site: forges.Site) -> None:
    token = f"me@x.io:{forges.TOKEN}"
    basic = b64encode(token.encode()).decode()
    site.faults = [("POST", 400, {"said": f"{'x' * 250} {basic} {forges.TOKEN}"})]
    with pytest.raises(InputError, match="HTTP 400") as error:
        _post(site, "jira", "/browse/OPS-5", token=token)
    assert not any(part in str(error.value) for part in (basic[:12], forges.TOKEN[:8]))


def test_json_that_is_not_of_the_api_is_bad_input(site: forges.Site) -> None:
    site.faults = [("GET", 200, {"said": "a"})]
    with pytest.raises(InputError, match="otherwise than this API does"):
        _post(site, "github", "/o/r/issues/5")


def test_no_proxy_of_the_environment_sees_a_token_in_the_clear(site: forges.Site, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    proxy, stop = forges.serve()
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("http_proxy", proxy.url)
    assert _post(site, "github", "/o/r/issues/5")[0] == "created"
    stop()
    assert proxy.asked == []


def test_trying_ends(site: forges.Site) -> None:
    site.faults = [(None, 503, {})] * 50
    with pytest.raises(InputError, match="HTTP 503 in 5 tries"):
        _post(site, "github", "/o/r/issues/5")
    assert len(site.asked) == 5


def test_a_site_that_asks_for_an_hour_is_not_waited_for(site: forges.Site) -> None:
    site.faults = [(None, 429, {"Retry-After": "3600"})]
    with pytest.raises(InputError, match="try again in 3600 s"):
        _post(site, "github", "/o/r/issues/5")


def test_whoever_a_redirect_leads_to_does_not_get_the_token(site: forges.Site) -> None:
    other, stop = forges.serve()
    site.faults = [("GET", 302, {"Location": f"{other.url}/api/v3/user"})]
    with pytest.raises(InputError, match="does not get the token"):
        _post(site, "github", "/o/r/issues/5")
    stop()
    assert other.asked == []


@pytest.mark.parametrize(
    ("to", "url", "why"),
    [
        ("github", "http://example.com/o/r", "unencrypted"), ("github", "https://u@github.com/o/r", "does not belong"),
        ("github", "ftp://github.com/o/r", "must be"), ("github", "https://github.com/o", "neither"),
        ("gitlab", "https://gitlab.com/p", "neither"), ("jira", "https://x.atlassian.net/wiki/5", "neither"),
        ("github", "https://[x/o/r", "must be"), ("github", "https://github.com:abc/o/r", "must be"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_is_refused(to: str, url: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        post(open_forge(to, url, MARK), render(REPORT, to), "x")


@pytest.mark.parametrize(
    ("to", "url", "wanted"),
    [
        ("github", "https://github.com/o/r/pull/7", "https://api.github.com/repos/o/r/issues/7/comments"),
        ("github", "https://ghe.acme.io/o/r", "https://ghe.acme.io/api/v3/repos/o/r/issues"),
        ("github", "https://codeberg.org/api/v1/repos/o/r/issues/7", "https://codeberg.org/api/v1/repos/o/r/issues/7/comments"),
        ("gitlab", "https://gitlab.com/g/p/-/issues/7", "https://gitlab.com/api/v4/projects/g%2Fp/issues/7/notes"),
        ("gitlab", "https://x.io/git/api/v4/projects/12", "https://x.io/git/api/v4/projects/12/issues"),
        ("jira", "https://x.atlassian.net/browse/OPS-7", "https://x.atlassian.net/rest/api/3/issue/OPS-7/comment"),
        ("jira", "https://x.io/jira/projects/OPS", "https://x.io/jira/rest/api/3/issue"),
    ],
)  # fmt: skip
def test_the_address_of_the_api_follows_from_that_of_the_page(to: str, url: str, wanted: str) -> None:
    assert open_forge(to, url, MARK).request("t", "{}").url == wanted


# -- the command ------------------------------------------------------------------------------------------------------
def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["faultproxy", "ticket", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_without_send_the_request_is_printed_and_nothing_is_sent(site: forges.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "d.json").write_text(json.dumps(REPORT))
    call = ("post", str(tmp_path / "d.json"), "--to", "github", "--url", f"{site.url}/o/r/issues/5")
    assert _run(monkeypatch, *call) == 0 and site.asked == []
    out = capsys.readouterr().out
    assert out.startswith(f"POST {site.url}/api/v3/repos/o/r/issues/5/comments\n") and MARK in out
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    assert _run(monkeypatch, *call, "--send") == 2 and "GITHUB_TOKEN" in capsys.readouterr().err
    (tmp_path / "token").write_text(forges.TOKEN + "\n")
    assert _run(monkeypatch, *call, "--send", "--token-file", str(tmp_path / "token")) == 0 and len(site.comments) == 1
    monkeypatch.setenv("FORGE", forges.TOKEN)
    assert _run(monkeypatch, *call, "--send", "--token-env", "FORGE") == 0 and len(site.comments) == 1
    said = capsys.readouterr()
    assert (
        said.out.splitlines() == ["created https://site/id/1", "updated https://site/id/1"]
        and forges.TOKEN not in said.err
    )
