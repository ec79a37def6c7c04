"""The HTML report: one file that loads nothing, at most CAP bytes whatever the trace and however many the runs.

Scripts and styles are this folder's own files and the vendored uPlot, named by their hashes in the page's
Content-Security-Policy: text of a log that got past the escaping would still not run, and nothing can be fetched. Data
of the plots is JSON in a script element that no browser executes.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import orjson

from faultproxy import __version__
from faultproxy.analyzer.catalogue import catalogue, fingerprint
from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.html import curves, heat
from faultproxy.analyzer.report.html.sections import Figures, Section, esc, summary
from faultproxy.analyzer.report.text import headline
from faultproxy.analyzer.trace import Trace
from faultproxy.analyzer.vocabulary import signals

Report = dict[str, Any]
CAP = 1_500_000
#: Points of all curves together: some 25 bytes each. Heat maps take up to 250 kB more.
POINTS = 24_000
#: Runs with a section of their own, with figures, and with a line of the table. Where runs exceed them, failed ones come first.
SECTIONS, DRAWN, LISTED = 60, 24, 2000


def render(reports: list[Report], traces: list[Trace] | None = None) -> str:
    """The page of one or several reports; without their traces it has no curves."""
    if len(reports) > SECTIONS:
        order = sorted(range(len(reports)), key=lambda at: reports[at]["verdict"] != "failed")
        reports, traces = [reports[at] for at in order], traces and [traces[at] for at in order]
    figures = _figures(reports, traces) if traces else {}
    meanings = _meanings(reports)
    for sections in (SECTIONS, SECTIONS // 3, SECTIONS // 10, 1):
        page = _page(reports, figures, meanings, sections)
        if len(page.encode()) <= CAP:
            return page
    return _page(reports, {}, meanings, 1)  # at most 60 findings and lists of 60 short texts: under CAP


def _figures(reports: list[Report], traces: list[Trace]) -> dict[int, Figures]:
    """The figures of each run that has some, by its place among the reports."""
    order = sorted(range(len(reports[:SECTIONS])), key=lambda at: reports[at]["verdict"] != "failed")[:DRAWN]
    most = max(2, min(curves.MOST, 48 // len(order)))
    found: dict[int, Figures] = {}
    for at in sorted(order):
        report, views = reports[at], heat.opened(traces[at], reports[at])
        drawn = curves.plots(traces[at], report, views, POINTS // len(order), most)
        found[at] = Figures(drawn, heat.maps(views, report, 1 / len(order)) if views else [])
        if views:
            views.con.close()
    return found


def _meanings(reports: list[Report]) -> dict[str, Any]:
    """What rules and signals mean, as far as the reports come from the rules of this version."""
    rules = {entry["rule"] for report in reports for entry in report["evidence"]}
    found: dict[str, Any] = {}
    for name, entry in signals().items():
        unit, meaning = entry.get("unit", "1"), entry.get("meaning", "").replace("`", "")
        found[f"signal {name}"] = meaning if unit == "1" else f"{unit}: {meaning}"
    if all(report["tool"]["rules"] == fingerprint() for report in reports):
        found |= {rule.id: rule.text for rule in catalogue() if rule.id in rules}
    return found


def _page(reports: list[Report], figures: dict[int, Figures], meanings: dict[str, Any], most: int) -> str:
    several = len(reports) > 1
    body = [
        Section(report, f"r{at + 1}", 2 if several else 1, figures.get(at, Figures([], [])), meanings).html()
        for at, report in enumerate(reports[:most])
    ]
    if several:
        failed = sum(report["verdict"] == "failed" for report in reports)
        listed = reports[: LISTED * most // SECTIONS]
        missing = f"{len(reports) - most} runs have no section here and {len(reports) - len(listed)} no line"
        more = f"<p>{missing}: in the JSON report.</p>" if len(reports) > most else ""
        body.insert(0, f"<h1>{len(reports)} runs, {failed} failed</h1>{summary(listed, most)}{more}")
    title = f"{len(reports)} runs" if several else f"{headline(reports[0])} - {reports[0]['run']['id']}"
    script = _asset("vendor/uPlot.iife.min.js") + _asset("page.js")
    style = _asset("vendor/uPlot.min.css") + _asset("page.css")
    data = _data(reports, {at: made for at, made in figures.items() if at < most})
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta name="generator" content="faultproxy"><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f'<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n<title>{esc(title, 200)}</title>\n'
        f'<style>{style}</style>\n</head>\n<body>\n<a class="skip" href="#answer">Skip to the answer</a>\n'
        f'<header><span>faultproxy {esc(__version__)}</span><button type="button" id="theme" hidden>Dark</button></header>\n'
        f'<main id="answer" tabindex="-1">\n{"".join(body)}</main>\n'
        '<noscript><p class="noscript">Curves need JavaScript; their numbers are in the tables.</p></noscript>\n'
        '<p id="status" class="hidden" role="status"></p>\n'
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


@cache
def _asset(name: str) -> str:
    return files("faultproxy.analyzer.report.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _data(reports: list[Report], figures: dict[int, Figures]) -> str:
    """What the script draws, by the id of its figure. `<` is escaped, so that no text ends the element or opens a comment."""
    plots, maps = {}, {}
    for at, made in figures.items():
        report = reports[at]
        unit = "row" if report["run"]["facts"].get("steps_are_rows") else "step"
        span = [report["run"]["first_step"], report["run"]["last_step"]]
        base = {"run": at, "unit": unit, "first": report["first_bad_step"], "span": span}
        events = [_band(report, n) for n, entry in enumerate(report["evidence"], 1) if entry["signal"] is None][:8]
        for n, plot in enumerate(made.plots):
            kind, bend = curves.scale([curves.bounded(v) for line in plot.lines for v in line.y if v is not None])
            lines = [{"n": visible(line.name, 80), "s": line.segment, "x": line.x, "y": [_short(v) for v in line.y], "b": line.bad, "c": line.style} for line in plot.lines]  # fmt: skip
            bands = [_band(report, number) for number in plot.evidence]
            plots[f"r{at + 1}-p{n}"] = base | {"lines": lines, "kind": kind, "bend": bend, "several": plot.several, "bands": bands, "events": events}  # fmt: skip
        for n, one in enumerate(made.maps):
            names, bands = [visible(name, 40) for name in one.names], [_band(report, number) for number in one.evidence]
            shown = one._replace(names=names, table=[], where="")._asdict()
            maps[f"r{at + 1}-m{n}"] = base | shown | {"bands": bands}
    return orjson.dumps({"plots": plots, "maps": maps}).decode().replace("<", "\\u003c")


def _band(report: Report, number: int) -> list[Any]:
    """A stretch of evidence: its first and last step (null: not known), its label, role, and segment."""
    entry = report["evidence"][number - 1]
    last = entry["step_start"] if entry["step_end"] is None else entry["step_end"]
    return [entry["step_start"], last, f"E{number}", entry["role"], entry.get("segment") or 0]


def _short(value: float | None) -> float | None:
    """Six digits."""
    return None if value is None else float(f"{curves.bounded(value):.6g}")
