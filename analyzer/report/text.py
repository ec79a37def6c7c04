"""The report a person reads at 3 a.m.: the first line is the answer, then evidence, then the next step."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

_EVIDENCE = 6
_WIDTH = 13


def headline(report: dict[str, Any]) -> str:
    """The answer in one line."""
    if report["verdict"] == "healthy":
        return f"HEALTHY  nothing failed in {report['run']['steps']} steps · {report['confidence']:.2f}"
    if report["verdict"] == "inconclusive":
        return "INCONCLUSIVE  this trace does not show enough to judge"
    causes = [c["cause"] for c in report["causes"] if c["cause"] != "unknown"][:2]
    parts = [report["failure_type"], f"factor {report['factor']}"]
    if causes:
        parts.append("cause " + " or ".join(causes))
    parts.append(f"{report['confidence']:.2f}")
    if report["first_bad_step"] is not None:
        unit = "row" if report["run"]["facts"].get("steps_are_rows") else "step"
        parts.append(f"first bad {unit} {report['first_bad_step']}")
    for place in ("rank", "layer", "expert"):
        if report[place] is not None:
            parts.append(f"{place} {report[place]}")
    return "FAILED  " + " · ".join(parts)


def place(entry: dict[str, Any]) -> str:
    """`run.log:1240` of one piece of evidence, or nothing."""
    if entry["source"] is None:
        return ""
    name = PurePath(entry["source"]).name
    return f" ({name}:{entry['line']})" if entry["line"] else f" ({name})"


def lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The report below its headline as (label, text) pairs, in reading order."""
    found: list[tuple[str, str]] = []
    shown = [e for e in report["evidence"] if e["role"] != "benign"][:_EVIDENCE]
    for entry in shown:
        label = "evidence" if entry["role"] == "root" else "then"
        found.append((label, entry["statement"] + place(entry)))
    for entry in [e for e in report["evidence"] if e["role"] == "benign"][:4]:
        found.append(("benign", entry["statement"] + place(entry)))
    others = [
        c for c in report["candidates"] if c["failure_type"] != report["failure_type"] and c["probability"] >= 0.05
    ][:3]
    if others:
        found.append(("or", ", ".join(f"{c['failure_type']} {c['probability']:.2f}" for c in others)))
    for check in report["next_checks"]:
        found.append(("next", f"{check['check']} (separates {' from '.join(check['separates'][:2])}; {check['cost']})"))
    for entry in report["not_judged"]:
        found.append(("not judged", f"{entry['what']}: {entry['how']}"))
    for command in report["reproduce"]:
        found.append(("reproduce", command["command"]))
    run = report["run"]
    for source in run["sources"][:8]:
        cut = ", truncated" if source["truncated"] else ""
        skipped = f", {source['unparsed']} not understood" if source["unparsed"] else ""
        found.append(("read", f"{source['path']} as {source['format']}: {source['rows']} rows{skipped}{cut}"))
    if report["unrecognised"]:
        names = report["unrecognised"]
        found.append(
            (
                "unknown",
                f"{len(names)} metric names not in the vocabulary: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}",
            )
        )
    for warning in report["warnings"][:6]:
        found.append(("warning", warning))
    return found


def render(reports: list[dict[str, Any]]) -> str:
    """Plain text of one or several reports."""
    blocks = []
    for report in reports:
        head = headline(report)
        if len(reports) > 1:
            head = f"{report['run']['id']}: {head}"
        body = []
        last = None
        for label, text in lines(report):
            body.append(f"  {label if label != last else '':<{_WIDTH}}{text}")
            last = label
        blocks.append("\n".join([head, *body]))
    return "\n\n".join(blocks) + "\n"
