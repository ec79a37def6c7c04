"""What tickets take besides GitHub's Markdown: Jira's documents, GitLab's Markdown, and plain text.

`FAULTPROXY_SCHEMAS=DIR` also checks documents against the public schema, DIR/adf.json: `npm pack @atlaskit/adf-schema`
ships it as dist/json-schema/v1/full.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report import adf, markdown
from faultproxy.analyzer.report.document import document

SCHEMAS = Path(os.environ.get("FAULTPROXY_SCHEMAS", ""))
HOSTILE = "@all [~accountid:1] [x|http://evil] !12 ~bug %3 &4 $5 #6 *b* {color} | `c` <img> \x1b[31m\u202e\nline"
BAD = "".join(f"step:{n} - actor/pg_loss:{'nan' if n > 3 else 0.1} - actor/grad_norm:1.0\n" for n in range(1, 9))
#: What ADF allows inside what, for the nodes that we write.
INSIDE = {
    "doc": {"heading", "paragraph", "table", "bulletList", "orderedList", "codeBlock", "expand"},
    "expand": {"heading", "paragraph", "table", "bulletList", "orderedList", "codeBlock"},
    "heading": {"text"}, "paragraph": {"text"}, "codeBlock": {"text"},
    "table": {"tableRow"}, "tableRow": {"tableHeader", "tableCell"}, "tableHeader": {"paragraph"}, "tableCell": {"paragraph"},
    "bulletList": {"listItem"}, "orderedList": {"listItem"}, "listItem": {"paragraph"},
}  # fmt: skip


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "run.log").write_text(BAD)
    return document(diagnose(read([str(tmp_path / "run.log")])[0]))


@pytest.fixture
def hostile(report: dict[str, Any]) -> dict[str, Any]:
    report["evidence"][0] |= {"statement": HOSTILE, "source": HOSTILE, "next_step": HOSTILE}
    report["run"]["id"] = report["run"]["framework"] = HOSTILE
    report["run"]["sources"][0]["path"] = HOSTILE
    report["warnings"], report["unrecognised"] = [HOSTILE, ""], [HOSTILE, ""]
    report["causes"][0]["why"] = report["not_judged"][0]["how"] = HOSTILE
    return report


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("content", ()):
        yield from _walk(inner)


def _text(node: dict[str, Any]) -> str:
    return "".join(inner.get("text", "") for inner in _walk(node))


def test_the_document_holds_every_part_in_reading_order(report: dict[str, Any]) -> None:
    made = adf.document(report)
    assert (made["type"], made["version"]) == ("doc", 1)
    kinds = [node["type"] for node in made["content"]]
    assert kinds[:3] == ["heading", "paragraph", "table"] and kinds[-1] == "expand" and "codeBlock" in kinds
    assert _text(made["content"][0]).startswith("FAILED: nonfinite_loss")
    assert report["evidence"][0]["statement"] in _text(made["content"][2])
    assert report["tool"]["rules"] in _text(made["content"][-1])


def test_nodes_nest_as_the_format_allows_and_no_text_is_empty(hostile: dict[str, Any]) -> None:
    for node in _walk(adf.document(hostile)):
        for inner in node.get("content", ()):
            assert inner["type"] in INSIDE[node["type"]], (node["type"], inner["type"])
        if node["type"] == "text":
            assert node["text"] and {mark["type"] for mark in node.get("marks", ())} <= {"code", "strong"}
        elif node["type"] not in ("paragraph", "heading"):
            assert node["content"]
    widths = {len(row["content"]) for node in _walk(adf.document(hostile)) if node["type"] == "table" for row in node["content"]}  # fmt: skip
    assert widths == {4, 6}


def test_log_text_stays_text_in_the_document(hostile: dict[str, Any]) -> None:
    written = json.dumps(adf.document(hostile), ensure_ascii=False)
    assert re.findall(r"[\x00-\x1f\u202a-\u202e]", written) == []
    assert "@all [~accountid:1]" in written and '"mention"' not in written and '"link"' not in written


@pytest.mark.skipif(not (SCHEMAS / "adf.json").is_file(), reason="FAULTPROXY_SCHEMAS names no folder with adf.json")
def test_the_public_schema_accepts_the_document(hostile: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / "adf.json").read_text(encoding="utf-8"))
    assert [error.message[:200] for error in Draft4Validator(schema).iter_errors(adf.document(hostile))] == []


def test_gitlab_reads_no_reference_and_no_quick_action(hostile: dict[str, Any]) -> None:
    hostile["evidence"][0]["next_step"] = "/close"
    hostile["warnings"] = ["as in GH-12"]
    hostile["not_judged"][0] |= {"what": "    - a", "how": "b"}
    shown = markdown.render([hostile], "gitlab")
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", shown)
    assert re.findall(r"[@!%~$#&](?=[a-z0-9])", unescape(outside)) == []
    assert [part for part in ("&amp;&#8203;4", "GH-&#8203;12", "\n- &#45; a: b\n") if part not in outside] == []
    assert [line for line in shown.split("\n") if line.startswith("/")] == []


def test_plain_text_has_no_markup_and_says_the_same(report: dict[str, Any]) -> None:
    shown = markdown.render([report], "plain")
    assert shown.startswith("FAILED: nonfinite_loss") and "Run run.log \u00b7 " in shown
    assert "Run `run.log` \u00b7 " in markdown.render([report])
    for part in (report["evidence"][0]["statement"], "Causes:\n- ", "    analyze ", report["tool"]["rules"]):
        assert part in shown
    assert not re.search(r"\*\*|^#|<details>|^\||&\w+;|```", shown, re.MULTILINE)


def test_plain_text_lets_no_control_character_through(hostile: dict[str, Any]) -> None:
    shown = markdown.render([hostile], "plain")
    assert re.findall(r"[\x00-\x09\x0b-\x1f\u202a-\u202e]", shown) == [] and r"\x1b[31m" in shown
