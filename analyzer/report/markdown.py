"""The report as Markdown for an incident ticket on GitHub or GitLab, or as plain text for a mail or any other tracker.

Text of a log is quoted, never interpreted: it can open no table cell, no tag, no code, no link, and it notifies nobody
(`@name`), links no issue (`#12`), and starts no quick action of GitLab (`/close`). Commands stand in fenced blocks;
sources and hashes are folded away. The plain flavour has no markup at all: tables are lists there.
"""

from __future__ import annotations

import re
from typing import Any

from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.outline import Block, Line, blocks

#: One text serves the first two: GitLab shows what GitHub does, and its references (`!12`, `~label`, `%12`) are stopped too.
FLAVOURS = ("github", "gitlab", "plain")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
#: A backslash in front of these makes them plain text. `_` counts only at the edge of a word: inside, as in
#: `grad_norm`, it means nothing to either site.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
#: A zero-width space after these stops @mentions, #issues (also as GH-1), GitLab's !merge-requests, %milestones and &epics;
#: both sites look for them after the Markdown is rendered, so no escape helps.
_REFERENCE = re.compile(r"([@#!%~$]|&amp;|\b[Gg][HhLl]-(?=\d))(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto):|\bwww\.")


def escape(text: str, limit: int | None = None) -> str:
    """Log text as one line of plain Markdown text, safe in a paragraph, a list item, and a table cell."""
    line = visible(text, limit)
    line = re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], line)
    line = _SPECIAL.sub(lambda found: "\\" + found[0], line)
    line = _REFERENCE.sub(r"\1&#8203;", line)
    line = _LINK.sub(lambda found: found[0][:-1] + f"&#{ord(found[0][-1])};", line)
    return re.sub(r"^( *)([-+=#/]|\d+(?=[.)]))", lambda found: f"{found[1]}&#{ord(found[2][0])};{found[2][1:]}", line)


def code(text: str, cell: bool = False) -> str:
    """Log text as an inline code span, in which only its own fence means anything (and, in a table cell, a pipe)."""
    line = visible(text) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    span = f"{fence}{pad}{line}{pad}{fence}"
    return span.replace("|", r"\|") if cell else span


def block(text: str, language: str = "sh") -> str:
    """Text as a fenced block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def render(reports: list[dict[str, Any]], flavour: str = "github") -> str:
    """Markdown (or plain text) of one or several reports, one heading each."""
    if flavour not in FLAVOURS:
        raise ValueError(f"flavour {flavour!r}; allowed are {', '.join(FLAVOURS)}")
    write, rule = (_plain, "-" * 72) if flavour == "plain" else (_marked, "---")
    return f"\n\n{rule}\n\n".join("\n\n".join(filter(None, map(write, blocks(one)))) for one in reports) + "\n"


def _marked(part: Block) -> str:
    match part:
        case Block("heading", text):
            return f"### {escape(text)}"
        case Block("paragraph", line):
            return _line(line)
        case Block("list" | "numbered" as kind, entries, title):
            listed = "\n".join(
                f"{f'{at}.' if kind == 'numbered' else '-'} {_line(line)}" for at, line in enumerate(entries, 1)
            )
            return f"**{title}**\n\n{listed}" if title else listed
        case Block("table", rows, _, heads):
            lines = [heads, ["---"] * len(heads), *([_line(cell, cell=True) for cell in row] for row in rows)]
            return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)
        case Block("code", text, title):
            return f"**{title}**\n\n{block(text)}"
        case Block(_, inner, title):  # a fold
            body = "\n\n".join(map(_marked, inner))
            return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _line(line: Line, cell: bool = False) -> str:
    return "".join(code(span.text, cell) if span.code else escape(span.text) for span in line).strip()


def _plain(part: Block) -> str:
    """The same without any markup."""
    match part:
        case Block("heading", text):
            return str(text)
        case Block("paragraph", line):
            return _words(line)
        case Block("list" | "numbered" as kind, entries, title):
            listed = [f"{f'{at}.' if kind == 'numbered' else '-'} {_words(line)}" for at, line in enumerate(entries, 1)]
            return "\n".join([f"{title}:", *listed] if title else listed)
        case Block("table", rows, _, heads):
            cells = [[(head, _words(cell)) for head, cell in zip(heads, row, strict=True)] for row in rows]
            return "\n".join("- " + "; ".join(f"{head} {text}" if at > 1 else text for at, (head, text) in enumerate(row) if text) for row in cells)  # fmt: skip
        case Block("code", text, title):
            return f"{title}:\n" + "\n".join(f"    {line}" for line in text.split("\n"))
        case Block(_, inner, title):  # a fold
            return f"{title}:\n" + "\n".join(map(_plain, inner))


def _words(line: Line) -> str:
    return "".join(span.text for span in line)
