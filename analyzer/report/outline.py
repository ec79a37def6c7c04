"""A report as blocks of a ticket: headings, lists, tables, commands. Markdown, plain text, and Jira's format write them.

Text is clean (`clean.visible`) but not escaped: what means something in a format is for its writer to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.text import against, apart, headline, next_step, place, proxy

_STATEMENT = 500


class Span(NamedTuple):
    """A piece of a line; `code` is text to be shown as it stands."""

    text: str
    code: bool = False


#: A paragraph, an entry of a list, or a cell of a table.
Line = Sequence[Span]


class Block(NamedTuple):
    """A part of a report: `heading` (a text), `paragraph` (a line), `list` and `numbered` (lines), `table` (rows of lines),
    `code` (a text), or `fold` (blocks that open on demand where a format can do that)."""

    kind: str
    body: Any
    title: str = ""
    heads: tuple[str, ...] = ()


def blocks(report: dict[str, Any]) -> list[Block]:
    """The report from its answer to the hashes of its sources; parts without content are left out."""
    verdict, _, rest = headline(report).partition("  ")
    causes = [_text(f"{c['cause']} {c['probability']:.2f}" + (f": {c['why']}" if c.get("why") else ""), None) for c in report["causes"][:4]]  # fmt: skip
    rivals = [c for c in report["candidates"] if c["failure_type"] != report["failure_type"]]
    others = ", ".join(f"{c['failure_type']} {c['probability']:.2f}" for c in rivals[:3] if c["probability"] >= 0.05)
    steps = [_text(advice, None) for advice in (next_step(report),) if advice]
    steps += [_text(f"{c['check']} ({apart(c['separates'])}; cost: {c['cost']})", None) for c in report["next_checks"]]
    blind = [_text(f"{entry['what']}: {entry['how']}", None) for entry in report["not_judged"]]
    commands = "\n".join(f"# {visible(e['title'])}\n{_command(e['command'])}" for e in report["reproduce"])
    found = [
        Block("heading", f"{verdict}: {visible(rest)}"),
        Block("paragraph", _about(report)),
        _evidence(report),
        Block("list", causes, "Causes"),
        *(_against(report["against"]) if report["against"] else ()),
        Block("paragraph", others and _text(f"Also possible: {others}")),
        Block("numbered", steps, "Next"),
        Block("list", _proxy(report["proxy"]) if report["proxy"] else [], "Proxy"),
        Block("list", blind, "Not judged"),
        Block("code", commands, "Reproduce"),
        Block("fold", _details(report), "Sources and versions"),
    ]
    return [block for block in found if block.body]


def _text(text: str, limit: int | None = _STATEMENT) -> Line:
    return [Span(visible(text, limit))]


def _code(text: str) -> Line:
    return [Span(visible(text) or " ", code=True)]


def _command(command: str) -> str:
    """A command as it stands but for control characters; a newline inside a quoted path stays one."""
    return "\n".join(visible(line) for line in command.split("\n"))


def _about(report: dict[str, Any]) -> Line:
    run = report["run"]
    parts = [str(run["framework"])] if run["framework"] else []
    if run["first_step"] is not None:
        unit = "rows" if run["facts"].get("steps_are_rows") else "steps"
        parts.append(f"{unit} {run['first_step']} to {run['last_step']}, {run['steps']} logged")
    if report["verdict"] == "failed":
        parts.append(f"P(factor {report['factor']} given the type) {report['factor_confidence']:.2f}")
    return [Span("Run "), *_code(run["id"]), *(Span(" \u00b7 " + visible(part)) for part in parts)]


def _evidence(report: dict[str, Any]) -> Block:
    order = ("root", "consequence", "benign")
    entries = sorted(report["evidence"], key=lambda entry: order.index(entry["role"]))
    rows = []
    for entry in entries[:12]:
        first, last = entry["step_start"], entry["step_end"]
        steps = "" if first is None else str(first) if last in (first, None) else f"{first}-{last}"
        where = _code(place(entry, report)) if entry["source"] else []
        rows.append([_text(entry["role"]), _text(entry["statement"]), _text(steps), where])
    if len(entries) > 12:
        rows.append([[], _text(f"{len(entries) - 12} more in the JSON report"), [], []])
    return Block("table", rows, heads=("", "statement", "steps", "where"))


def _against(found: dict[str, Any]) -> list[Block]:
    """The lines of the text report, then the first divergences and the settings as tables."""
    rows = []
    for entry in found["divergences"][:8]:
        where = "".join(f" {name} {entry[name]}" for name in ("layer", "module", "rank") if entry[name] is not None)
        values = ["not finite" if entry[name] is None else f"{entry[name]:.4g}" for name in ("value", "good")]
        size = "" if entry["size"] is None else f"{entry['size']:.0f}"
        rows.append([_text(cell) for cell in (entry["signal"] + where, str(entry["step"]), *values, size)])
    settings = [
        [*(_code(entry[name]) for name in ("key", "here", "good")), _text(entry["why"] or "", None)]
        for entry in found["config"][:8]
    ]
    return [
        Block("list", [_text(line) for line in against(found)], "Against the good run"),
        Block("table", rows, heads=("signal", "first apart", "here", "good run", "x its noise")),
        Block("table", settings, heads=("setting", "here", "good run", "why it may matter")),
    ]


def _proxy(found: dict[str, Any]) -> list[Line]:
    """The lines of the text report, why these weights, and what the proxy cannot show."""
    lines = [_text(line) for line in proxy(found)]
    if found["refused"] is None:
        lines += [
            _text(f"{found['weights']} weights: {found['weights_why']}"),
            *(_text(f"not in it: {one}") for one in found["cannot_reproduce"][:6]),
        ]
    return lines


def _details(report: dict[str, Any]) -> list[Block]:
    tool = report["tool"]
    rows = [
        [_code(s["path"]), _code(s["format"]), _text(str(s["rows"])), _text(str(s["unparsed"])), _text("yes" if s["truncated"] else "no"), _code(s["sha256"])]
        for s in report["run"]["sources"][:50]
    ]  # fmt: skip
    tail: list[Line] = [[Span(f"tool: {tool['name']} {tool['version']}, rules "), *_code(tool["rules"])]]
    tail += [[Span("model: "), *_code(tool["model"])]] if tool["model"] else []
    tail += [_text(f"warning: {warning}") for warning in report["warnings"][:20]]
    names = report["unrecognised"][:20]
    if names:
        listed = [span for name in names for span in (Span(", "), *_code(name))][1:]
        tail.append([Span(f"{len(report['unrecognised'])} metric names outside the vocabulary: "), *listed])
    heads = ("source", "format", "rows", "not understood", "cut off", "sha256")
    return [Block("table", rows, heads=heads), Block("list", tail)]
