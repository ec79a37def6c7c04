"""One report as HTML: the answer, evidence, and figures here; the other parts are the blocks that tickets get too.

Whatever came out of a log passes through `esc`, and nothing else writes HTML. What a plot shows stands in a table under
it, so the page works for a screen reader, on paper, and without JavaScript.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from faultproxy.analyzer.report import outline
from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.html.curves import Line, Plot
from faultproxy.analyzer.report.html.heat import Map
from faultproxy.analyzer.report.text import headline, next_step, place

Report = dict[str, Any]
#: Rows of the table under a curve; entries of any list; characters of one text, and of one cell of a table.
_STRETCHES, _ENTRIES, TEXT, _CELL = 12, 60, 600, 400
#: A command cut short does not work, so a longer one is left to the JSON report.
_COMMAND = 8000
_UNCLAIMED = {"none": "none of depth, routing, precision", "undetermined": "not told by this log"}
_TITLES = {"healthy": "Nothing failed", "inconclusive": "Not enough to judge this run"}
_ZOOM = '<button type="button" data-zoom="{}" aria-pressed="{}">{}</button>'


class Figures(NamedTuple):
    """What is drawn of one report."""

    plots: list[Plot]
    maps: list[Map]


class Section:
    """Writes one report: `key` starts its ids, `level` is that of its heading, `meanings` is what rules and signals mean."""

    def __init__(self, report: Report, key: str, level: int, figures: Figures, meanings: dict[str, Any]) -> None:
        self.report, self.key, self.level, self.figures, self.meanings = report, key, level, figures, meanings
        self.row = "row" if report["run"]["facts"].get("steps_are_rows") else "step"

    def html(self) -> str:
        """The whole report; where nothing can be said of a run, what to log comes before its curves."""
        figures = [("Curves", self._curves()), ("Heat maps", self._maps())]
        others = self._others()
        order = [*others, *figures] if self.report["verdict"] == "inconclusive" else [*figures, *others]
        parts = [part for part in (("Evidence", self._evidence()), *order) if part[1]]
        links = "".join(f'<li><a href="#{self.key}-{at}">{title}</a></li>' for at, (title, _) in enumerate(parts))
        body = "".join(
            f'<section aria-labelledby="{self.key}-{at}"><h{self.level + 1} id="{self.key}-{at}">{title}</h{self.level + 1}>{part}</section>'
            for at, (title, part) in enumerate(parts)
        )
        label = f"Parts of {esc(self.report['run']['id'], 80)}"
        contents = f'<nav class="contents" aria-label="{label}"><ul>{links}</ul></nav>'
        return f'<article id="{self.key}" aria-labelledby="{self.key}-h">{self._answer()}{contents}{body}</article>'

    def _answer(self) -> str:
        report, run, verdict = self.report, self.report["run"], self.report["verdict"]
        title = _TITLES.get(verdict) or report["failure_type"].replace("_", " ")
        terms = {"Confidence": meter(report["confidence"], "answer")} if verdict != "inconclusive" else {}
        if verdict == "failed":
            places = _places(report)
            first = "unknown" if report["first_bad_step"] is None else str(report["first_bad_step"])
            terms = {f"First bad {self.row}": ", ".join([first, *places])} | terms
            path = f" ({' to '.join(report['path'])})" if len(report["path"]) > 1 else ""
            factor = f"{esc(report['factor'] + path)} {meter(report['factor_confidence'], 'factor')}"
            terms["Factor"] = _UNCLAIMED.get(report["factor"], factor)
            terms["Likely cause"] = ", ".join(f"{esc(c['cause'])} {c['probability']:.2f}" for c in report["causes"][:3])
            rivals = [c for c in report["candidates"][1:4] if c["probability"] >= 0.05]
            terms["Also possible"] = ", ".join(f"{esc(c['failure_type'])} {c['probability']:.2f}" for c in rivals)
        span = f"{self.row}s {run['first_step']} to {run['last_step']}, {run['steps']} logged"
        about = [esc(run["id"], 200), esc(str(run["framework"] or ""), 80), span if run["steps"] else "no steps"]
        advice = next_step(report)
        if verdict == "inconclusive":
            advice = advice or (report["warnings"] or [None])[-1]
        first_of_all = "<strong>Do this first.</strong> " if verdict == "failed" else ""
        listed = "".join(f"<div><dt>{term}</dt><dd>{value}</dd></div>" for term, value in terms.items() if value)
        return (
            f'<div class="answer {verdict}"><p class="about">{" &middot; ".join(filter(None, about))}</p>'
            f'<h{self.level} id="{self.key}-h"><span class="badge">{verdict}</span> {esc(title)}</h{self.level}>'
            + (f'<p class="next">{first_of_all}{esc(advice, TEXT)}</p>' if advice else "")
            + f"<dl>{listed}</dl></div>"
        )

    def _evidence(self) -> str:
        entries, more = few(self.report["evidence"])
        found = "".join(self._finding(number, entry) for number, entry in enumerate(entries, 1))
        return f'<ol class="findings">{found}</ol>{more}' if found else ""

    def _finding(self, number: int, entry: Report) -> str:
        first, last = entry["step_start"], entry["step_end"]
        about = [] if first is None else [f"{self.row} {first}" if last in (None, first) else f"{self.row}s {first} to {last}"]  # fmt: skip
        about += _places(entry)
        about += [f"{name} {entry[name]:.6g}" for name in ("observed", "expected") if entry[name] is not None]
        about += [f"<code>{esc(place(entry, self.report), 300)}</code>"] if entry["source"] else []
        about.append(f"rule <code>{esc(entry['rule'], 100)}</code>")
        shown = [at for at, plot in enumerate(self.figures.plots) if number in plot.evidence]
        about += [f'<a href="#{self.key}-p{at}">curve</a>' for at in shown[:1]]
        rule = self.meanings.get(entry["rule"]) if entry["role"] == "root" else None
        more = rule and f"<p>{esc(rule['means'])}</p><p>What it is not: {esc(rule['not_this'])}</p>"
        return (
            f'<li class="{entry["role"]}" id="{self.key}-e{number}"><p><span class="tag">E{number} {entry["role"]}</span> '
            f'{esc(entry["statement"], TEXT)}</p><p class="meta">{" &middot; ".join(about)}</p>'
            f"{folded('What it means', more or '')}</li>"
        )

    def _curves(self) -> str:
        first, drawn = self.report["first_bad_step"], "".join(map(self._curve, range(len(self.figures.plots))))
        zoom = _ZOOM.format("all", "true", "Whole run") + _ZOOM.format("bad", "false", f"Around {self.row} {first}")
        tools = f'<p class="tools" hidden>{zoom}</p>' if first is not None else ""
        return f'{tools}<div class="grid">{drawn}</div>' if drawn else ""

    def _curve(self, at: int) -> str:
        plot = self.figures.plots[at]
        names = [line.name + (f", segment {line.segment}" if plot.several else "") for line in plot.lines]
        keyed = list(zip(names, plot.lines, strict=True))
        key = "".join(f'<li><span class="swatch s{line.style}"></span>{esc(name, 80)}</li>' for name, line in keyed)
        key = f'<ul class="key">{key}</ul>' if names != [plot.title] else ""
        hidden = f"<p>{plot.hidden} more segments are not drawn.</p>" if plot.hidden else ""
        bands = [(number, self.report["evidence"][number - 1]) for number in plot.evidence]
        heads = ("line", f"{self.row}s", "lowest", "highest", "not finite", "evidence")
        stretches = (row for name, line in keyed for row in _stretches(name, line, bands))
        table = rows(f"{plot.title} by {self.row}", heads, stretches)
        about = self.meanings.get(f"signal {plot.place.signal}", "")
        return self._figure("chart", f"p{at}", plot.title, about, plot.evidence, key + hidden, table)

    def _maps(self) -> str:
        drawn = "".join(map(self._map, range(len(self.figures.maps))))
        return f'<div class="grid">{drawn}</div>' if drawn else ""

    def _map(self, at: int) -> str:
        heat = self.figures.maps[at]
        heads = (heat.axis, "lowest", "highest", "last", "not finite", f"first at {self.row}")
        body = (
            [name, *map(show, numbers), str(bad), "" if first is None else str(first)]
            for name, *numbers, bad, first in heat.table
        )
        title = f"{heat.signal} by {heat.axis} and {self.row}" + (f", {heat.where}" if heat.where else "")
        table = rows(f"{title}: what stands out most", heads, body)
        return self._figure("heat", f"m{at}", title, "", heat.evidence, "", table)

    def _figure(
        self, kind: str, ident: str, title: str, about: str, evidence: list[int], below: str, table: str
    ) -> str:
        ident, name = f"{self.key}-{ident}", esc(title, 200)
        roles = [(n, self.report["evidence"][n - 1]["role"]) for n in evidence if n <= _ENTRIES]
        tags = "".join(f' <a class="tag {role}" href="#{self.key}-e{number}">E{number}</a>' for number, role in roles)
        return (
            f'<figure id="{ident}" aria-labelledby="{ident}-c"><figcaption id="{ident}-c"><strong>{name}</strong> '
            f'<span class="unit">{esc(about, 160)}</span>{tags}</figcaption><div class="{kind}" data-name="{name}"></div>'
            f'<p class="readout"></p>{below}{folded("Numbers", table)}</figure>'
        )

    def _others(self) -> list[tuple[str, str]]:
        """What else there is to say, by title: a table belongs to the list before it."""
        held: dict[str, str] = {}
        title = ""
        for block in outline.blocks(self.report):
            title = block.title or title
            if title and (block.title or block.kind == "table"):
                held[title] = held.get(title, "") + self._block(block)
        return list(held.items())

    def _block(self, block: outline.Block) -> str:
        match block:
            case outline.Block("list" | "numbered" as kind, entries):
                shown, more = few(entries)
                tag = "ol" if kind == "numbered" else "ul"
                return f"<{tag}>{''.join(f'<li>{self._line(line)}</li>' for line in shown)}</{tag}>{more}"
            case outline.Block("table", body, _, heads):
                shown, more = few(body)
                cells = (["".join(span.text for span in line) for line in row] for row in shown)
                return rows(f"{heads[0]}s".capitalize(), heads, cells) + more
            case outline.Block("code", text) if len(text) <= _COMMAND:
                code = "<br>".join(map(esc, text.split("\n")))
                return f'<pre tabindex="0"><code>{code}</code></pre><button type="button" class="copy" hidden>Copy</button>'
            case outline.Block("fold", inner):
                return "".join(map(self._block, inner))
        return "<p>In the JSON report.</p>"

    def _line(self, line: outline.Line) -> str:
        texts = ((esc(span.text, TEXT), span.code) for span in line)
        return "".join(f"<code>{text}</code>" if code else text for text, code in texts)


class Html(str):
    """A cell that is HTML already."""


def _places(entry: Report) -> list[str]:
    """Where something is, in words; the first segment goes without saying."""
    there = [(name, entry.get(name)) for name in ("segment", "rank", "layer", "expert")]
    return [f"{name} {at}" for name, at in there if at is not None and (at or name != "segment")]


def esc(text: str, limit: int | None = None) -> str:
    """Text of a log, safe inside an element and inside a quoted attribute."""
    return escape(visible(text, limit))


def few(entries: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The first of a list, and a line that says how many are left out."""
    left = len(entries) - _ENTRIES
    return entries[:_ENTRIES], f"<p>{left} more: in the JSON report.</p>" if left > 0 else ""


def show(value: float | None) -> str:
    """A number of a table."""
    return "" if value is None else f"{value:.5g}"


def meter(value: float, name: str) -> str:
    """A probability as a bar and a number."""
    return f'<meter min="0" max="1" value="{value:.3f}" aria-label="probability of the {name}"></meter> {value:.2f}'


def folded(title: str, body: str) -> str:
    """A part that opens on demand; nothing where there is nothing in it."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""


def rows(caption: str, heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is too wide; nothing without rows."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in heads)
    tags = ['th scope="row"', *["td"] * (len(heads) - 1)]
    lines = ""
    for row in body:
        cells = (
            (tag, cell if isinstance(cell, Html) else esc(cell, _CELL)) for tag, cell in zip(tags, row, strict=True)
        )
        lines += f"<tr>{''.join(f'<{tag}>{cell}</{tag[:2]}>' for tag, cell in cells)}</tr>"
    name = esc(caption, 200)
    table = f"<table><caption>{name}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>' if lines else ""


def _stretches(name: str, line: Line, bands: list[tuple[int, Report]]) -> Iterator[list[str]]:
    """A line in at most _STRETCHES rows: its points are its extremes, so lowest and highest are the run's own."""
    size = max(1, -(-len(line.x) // _STRETCHES))
    last_step = max((*line.x[-1:], *(last for _, last, _ in line.bad)), default=0)
    here = [(number, e["step_start"], e["step_start"] if e["step_end"] is None else e["step_end"]) for number, e in bands if e["step_start"] is not None and (e.get("segment") or 0) == line.segment]  # fmt: skip
    for at in range(0, len(line.x), size):
        first, y = line.x[at], [value for value in line.y[at : at + size] if value is not None]
        end = line.x[at + size] - 1 if at + size < len(line.x) else last_step
        bad = any(start <= end and last >= first for start, last, _ in line.bad)
        shown = " ".join(f"E{number}" for number, start, last in here if start <= end and first <= last)
        steps = str(first) if end == first else f"{first} to {end}"
        yield [name, steps, show(min(y, default=None)), show(max(y, default=None)), "yes" if bad else "", shown]


def summary(reports: list[Report], linked: int) -> str:
    """The table of several runs with their answers; those with a section are links."""
    body = []
    for at, report in enumerate(reports, 1):
        name, verdict = esc(report["run"]["id"], 120), report["verdict"]
        link = Html(f'<a href="#r{at}">{name}</a>' if at <= linked else name)
        badge = Html(f'<span class="badge {verdict}">{verdict}</span>')
        body.append([link, badge, headline(report).partition("  ")[2]])
    return rows("All runs", ("run", "verdict", "answer"), body)
