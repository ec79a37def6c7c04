"""The report in Jira's format: a document of Atlassian's editor (ADF, version 1) as plain values, for a description or comment.

ADF has no escapes: log text is a text node, which can be no markup, mention, or link. An empty text node is not allowed.
Source: https://developer.atlassian.com/cloud/jira/platform/apis/document/structure/
"""

from __future__ import annotations

from typing import Any

from faultproxy.analyzer.report.outline import Block, Line, blocks

Node = dict[str, Any]


def document(report: dict[str, Any]) -> Node:
    """The ADF document of one report."""
    return {"version": 1, "type": "doc", "content": [node for block in blocks(report) for node in _nodes(block)]}


def _nodes(block: Block) -> list[Node]:
    match block:
        case Block("heading", text):
            return [{"type": "heading", "attrs": {"level": 3}, "content": [_text(text)]}]
        case Block("paragraph", line):
            return [_paragraph(line)]
        case Block("list" | "numbered" as kind, entries, title):
            items = [{"type": "listItem", "content": [_paragraph(line)]} for line in entries]
            return [*_title(title), {"type": "orderedList" if kind == "numbered" else "bulletList", "content": items}]
        case Block("table", rows, _, heads):
            lines = [[_cell("tableHeader", [_text(head)] if head else []) for head in heads]]
            lines += [[_cell("tableCell", _spans(line)) for line in row] for row in rows]
            return [{"type": "table", "content": [{"type": "tableRow", "content": cells} for cells in lines]}]
        case Block("code", text, title):
            return [*_title(title), {"type": "codeBlock", "attrs": {"language": "shell"}, "content": [_text(text)]}]
        case Block(_, inner, title):  # a fold
            content = [node for one in inner for node in _nodes(one)]
            return [{"type": "expand", "attrs": {"title": title}, "content": content}]


def _text(text: str, mark: str | None = None) -> Node:
    return {"type": "text", "text": text} | ({"marks": [{"type": mark}]} if mark else {})


def _spans(line: Line) -> list[Node]:
    return [_text(span.text, "code" if span.code else None) for span in line if span.text]


def _paragraph(line: Line) -> Node:
    return {"type": "paragraph", "content": _spans(line)}


def _title(title: str) -> list[Node]:
    return [{"type": "paragraph", "content": [_text(title, "strong")]}] if title else []


def _cell(kind: str, content: list[Node]) -> Node:
    return {"type": kind, "content": [{"type": "paragraph", "content": content}]}
