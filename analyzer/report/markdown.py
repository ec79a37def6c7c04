"""The report as Markdown for an incident ticket on GitHub or GitLab.

Text of a log is quoted, never interpreted: it can open no table cell, no tag, no code, no link, and it notifies nobody
(`@name`) and links no issue (`#12`). Commands stand in fenced blocks; sources and hashes are folded away.
"""

from __future__ import annotations

import re
from typing import Any

from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.text import against, apart, headline, next_step, place

_STATEMENT = 500
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
#: A backslash in front of these makes them plain text. `_` counts only at the edge of a word: inside, as in
#: `grad_norm`, it means nothing to either site.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
#: A zero-width space after these stops @mentions, #issues and GitLab's !merge-requests; both sites look for them after
#: the Markdown is rendered, so no escape helps.
_REFERENCE = re.compile(r"([@#!])(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto):|\bwww\.")


def escape(text: str, limit: int | None = None) -> str:
    """Log text as one line of plain Markdown text, safe in a paragraph, a list item, and a table cell."""
    line = visible(text, limit)
    line = re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], line)
    line = _SPECIAL.sub(lambda found: "\\" + found[0], line)
    line = _REFERENCE.sub(r"\1&#8203;", line)
    line = _LINK.sub(lambda found: found[0][:-1] + f"&#{ord(found[0][-1])};", line)
    return re.sub(r"^([-+=#]|\d+(?=[.)]))", lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", line)


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


def render(reports: list[dict[str, Any]]) -> str:
    """Markdown of one or several reports, one heading each."""
    return "\n\n---\n\n".join("\n\n".join(_sections(report)) for report in reports) + "\n"


def _sections(report: dict[str, Any]) -> list[str]:
    verdict, _, rest = headline(report).partition("  ")
    sections = [f"### {verdict}: {escape(rest)}", _about(report)]
    if report["evidence"]:
        sections.append(_evidence(report))
    if report["causes"]:
        entries = [f"- {c['cause']} {c['probability']:.2f}" + (f": {escape(c['why'])}" if c.get("why") else "") for c in report["causes"][:4]]  # fmt: skip
        sections.append("**Causes**\n\n" + "\n".join(entries))
    if report["against"]:
        sections.append("**Against the good run**\n\n" + _against(report["against"]))
    others = [
        c for c in report["candidates"] if c["failure_type"] != report["failure_type"] and c["probability"] >= 0.05
    ]
    if others:
        sections.append(
            "Also possible: " + ", ".join(f"{c['failure_type']} {c['probability']:.2f}" for c in others[:3])
        )
    advice = next_step(report)
    steps = ([escape(advice)] if advice else []) + [_check(check) for check in report["next_checks"]]
    if steps:
        sections.append("**Next**\n\n" + "\n".join(f"{at}. {step}" for at, step in enumerate(steps, 1)))
    if report["not_judged"]:
        entries = [f"- {escape(entry['what'])}: {escape(entry['how'])}" for entry in report["not_judged"]]
        sections.append("**Not judged**\n\n" + "\n".join(entries))
    if report["reproduce"]:
        commands = "\n".join(f"# {entry['title']}\n{_controls(entry['command'])}" for entry in report["reproduce"])
        sections.append("**Reproduce**\n\n" + block(commands))
    sections.append(_details(report))
    return sections


def _controls(command: str) -> str:
    """A command as it stands but for control characters; a newline inside a quoted path stays one."""
    return "\n".join(visible(line) for line in command.split("\n"))


def _about(report: dict[str, Any]) -> str:
    run = report["run"]
    parts = [f"Run {code(run['id'])}"]
    if run["framework"]:
        parts.append(escape(str(run["framework"])))
    if run["first_step"] is not None:
        unit = "rows" if run["facts"].get("steps_are_rows") else "steps"
        parts.append(f"{unit} {run['first_step']} to {run['last_step']}, {run['steps']} logged")
    if report["verdict"] == "failed":
        parts.append(f"P(factor {report['factor']} given the type) {report['factor_confidence']:.2f}")
    return " · ".join(parts)


def _evidence(report: dict[str, Any]) -> str:
    rows = ["| | statement | steps | where |", "|---|---|---|---|"]
    for entry in _ordered(report)[:12]:
        first, last = entry["step_start"], entry["step_end"]
        steps = "" if first is None else str(first) if last in (first, None) else f"{first}-{last}"
        where = code(place(entry, report), cell=True) if entry["source"] else ""
        rows.append(f"| {entry['role']} | {escape(entry['statement'], _STATEMENT)} | {steps} | {where} |")
    if len(report["evidence"]) > 12:
        rows.append(f"| | {len(report['evidence']) - 12} more in the JSON report | | |")
    return "\n".join(rows)


def _against(found: dict[str, Any]) -> str:
    """The lines of the text report, then the first divergences and the settings as tables."""
    parts = ["\n".join(f"- {escape(line, _STATEMENT)}" for line in against(found))]
    if found["divergences"]:
        rows = ["| signal | first apart | here | good run | x its noise |", "|---|---|---|---|---|"]
        for entry in found["divergences"][:8]:
            where = "".join(f" {name} {entry[name]}" for name in ("layer", "module", "rank") if entry[name] is not None)
            cells = [escape(entry["signal"] + where), str(entry["step"])]
            cells += ["not finite" if entry[name] is None else f"{entry[name]:.4g}" for name in ("value", "good")]
            cells.append("" if entry["size"] is None else f"{entry['size']:.0f}")
            rows.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(rows))
    if found["config"]:
        rows = ["| setting | here | good run | why it may matter |", "|---|---|---|---|"]
        for entry in found["config"][:8]:
            cells = [code(entry[name], cell=True) for name in ("key", "here", "good")] + [escape(entry["why"] or "")]
            rows.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _ordered(report: dict[str, Any]) -> list[dict[str, Any]]:
    order = ("root", "consequence", "benign")
    return sorted(report["evidence"], key=lambda entry: order.index(entry["role"]))


def _check(check: dict[str, Any]) -> str:
    return f"{escape(check['check'])} ({apart(check['separates'])}; cost: {escape(check['cost'])})"


def _details(report: dict[str, Any]) -> str:
    tool = report["tool"]
    rows = ["| source | format | rows | not understood | cut off | sha256 |", "|---|---|---|---|---|---|"]
    for source in report["run"]["sources"][:50]:
        cells = [code(source["path"], cell=True), code(source["format"], cell=True), str(source["rows"])]
        cells += [str(source["unparsed"]), "yes" if source["truncated"] else "no", code(source["sha256"])]
        rows.append("| " + " | ".join(cells) + " |")
    tail = [f"- tool: {tool['name']} {tool['version']}, rules {code(tool['rules'])}"]
    tail += [f"- model: {code(tool['model'])}"] if tool["model"] else []
    tail += [f"- warning: {escape(warning, _STATEMENT)}" for warning in report["warnings"][:20]]
    if report["unrecognised"]:
        names = ", ".join(code(name) for name in report["unrecognised"][:20])
        tail.append(f"- {len(report['unrecognised'])} metric names outside the vocabulary: {names}")
    inner = "\n".join(rows) + "\n\n" + "\n".join(tail)
    return f"<details><summary>Sources and versions</summary>\n\n{inner}\n\n</details>"
