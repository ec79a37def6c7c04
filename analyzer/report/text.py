"""The report a person reads at 3 a.m.: the first line is the answer, then evidence, then the next step.

It fits one screen, so it leaves out what the JSON report keeps: findings beyond the first few, ways to log the missing
signals when several runs are shown at once, names outside the vocabulary. `render` knows nothing of terminals; the
command line hands in a width and a painter where there is one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from faultproxy.analyzer.report.clean import visible

#: Title of the command that only repeats the diagnosis.
REPEAT = "repeat this diagnosis"

#: How the first warning of a report begins that the hook wrote because its analysis did not finish, or had nothing to read.
UNFINISHED, UNREAD = "no diagnosis, the analysis did not finish: ", "no diagnosis: "

#: Paints a piece of text by its kind: failed, healthy, inconclusive, or label.
Painter = Callable[[str, str], str]

_EVIDENCE, _BENIGN, _WARNINGS, _SOURCES, _CHECKS, _REMEDIES, _RUNS_IN_FULL = 6, 3, 4, 4, 2, 3, 3
#: A statement quotes the log; beyond this it is the log.
_STATEMENT = 300
_LABEL = 13
#: Below this a hanging indent leaves no room for words.
_NARROWEST = 40
#: Signals named beside the first that went apart, and settings.
_BESIDE, _SETTINGS = 2, 2
#: Lines to be copied as they stand.
_VERBATIM = ("reproduce",)


def headline(report: dict[str, Any]) -> str:
    """The answer in one line."""
    verdict, run = report["verdict"], report["run"]
    if verdict == "healthy":
        rows = f"{run['steps']} logged {'step' if run['steps'] == 1 else 'steps'}"
        return f"HEALTHY  nothing failed in {rows} · {report['confidence']:.2f}"
    if verdict == "inconclusive":
        first = next(iter(report["warnings"]), "")
        if first.startswith(UNFINISHED):
            return "INCONCLUSIVE  the analysis did not finish, so the run was not judged"
        if first.startswith(UNREAD):
            return "INCONCLUSIVE  there was nothing to judge the run by"
        return "INCONCLUSIVE  this trace does not show enough to judge the run"
    parts = [report["failure_type"], f"factor {report['factor']}"]
    if len(report["path"]) > 1:
        parts[-1] += f" (through {', '.join(report['path'][:-1])})"
    causes = likely(report)
    if causes:
        parts.append("cause " + " or ".join(causes))
    parts.append(f"{report['confidence']:.2f}")
    if report["first_bad_step"] is not None:
        parts.append(f"first bad {'row' if run['facts'].get('steps_are_rows') else 'step'} {report['first_bad_step']}")
    parts += [f"{name} {report[name]}" for name in ("rank", "layer", "expert") if report[name] is not None]
    return "FAILED  " + " · ".join(parts)


def likely(report: dict[str, Any]) -> list[str]:
    """The causes worth naming in a headline: at most two, the second only when it is near the first."""
    named = [c for c in report["causes"] if c["cause"] != "unknown"][:2]
    return [c["cause"] for c in named if c["probability"] >= 0.5 * named[0]["probability"]]


def place(entry: dict[str, Any], report: dict[str, Any]) -> str:
    """`run.log:1240` of one piece of evidence, with as much of the path as tells the run's files apart; or nothing."""
    if entry["source"] is None:
        return ""
    path = PurePath(entry["source"])
    others = {source["path"] for source in report["run"]["sources"]} - {entry["source"]}
    for parts in range(1, len(path.parts) + 1):
        name = PurePath(*path.parts[-parts:])
        if not any(PurePath(other).parts[-parts:] == name.parts for other in others):
            break
    return f"{name}:{entry['line']}" if entry["line"] else str(name)


def next_step(report: dict[str, Any]) -> str | None:
    """What the rule behind the answer says to do."""
    return next((e["next_step"] for e in report["evidence"] if e["role"] == "root" and e.get("next_step")), None)


def apart(separates: list[str]) -> str:
    """What a check tells apart, in words."""
    if len(separates) == 2:
        return f"tells {separates[0]} from {separates[1]}"
    return f"tells {', '.join(separates[:-1])} and {separates[-1]} apart"


def lines(report: dict[str, Any], brief: bool = False) -> Iterator[tuple[str, str]]:
    """The report below its headline as (label, text) pairs in reading order; `brief` for one run among many."""
    yield from _evidence(report)
    for cause in report["causes"]:
        if cause["cause"] in likely(report) and cause.get("why") and not brief:
            yield "cause", f"{cause['cause']} {cause['probability']:.2f}: {cause['why']}"
    rivals = [c for c in report["candidates"] if c["failure_type"] != report["failure_type"]]
    rivals = [c for c in rivals if c["probability"] >= 0.05][:3]
    if rivals:
        yield "or", ", ".join(f"{c['failure_type']} {c['probability']:.2f}" for c in rivals)
    if report["against"]:
        yield from (("against", line) for line in against(report["against"]))
    advice = next_step(report)
    if advice:
        yield "next", advice
    checks = [c for c in report["next_checks"] if not (advice or "").lower().startswith(c["check"][:15])]
    for check in checks[: _CHECKS - bool(advice)]:
        yield "next", f"{check['check']} ({apart(check['separates'])}; cost: {check['cost']})"
    if report["proxy"] and not brief:
        yield from (("proxy", line) for line in proxy(report["proxy"]))
    if brief:
        if report["not_judged"]:
            yield "not judged", ", ".join(entry["what"] for entry in report["not_judged"])
    else:
        remedies = list(_by_remedy(report).items())
        for how, whats in remedies[:_REMEDIES]:
            yield "not judged", f"{', '.join(whats)}: {how}"
        if remedies[_REMEDIES:]:
            others = [what for _, whats in remedies[_REMEDIES:] for what in whats]
            yield "not judged", f"also {', '.join(others)}; --format json says what to log"
    yield from _more(report["warnings"], _WARNINGS, "warning", "warnings")
    yield from _more([_source(s) for s in report["run"]["sources"]], _SOURCES, "read", "files")
    for command in report["reproduce"]:
        if command["title"] != REPEAT and not brief:  # the reader has just typed that one
            yield "reproduce", command["command"]


def _evidence(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    bad = [e for role in ("root", "consequence") for e in report["evidence"] if e["role"] == role]
    benign = [e for e in report["evidence"] if e["role"] == "benign"]
    for entry in bad[:_EVIDENCE]:
        yield "evidence" if entry["role"] == "root" else "then", _statement(entry, report)
    if len(bad) > _EVIDENCE:
        yield "then", f"{len(bad) - _EVIDENCE} more findings, in --format json"
    for entry in benign[:_BENIGN]:
        yield "harmless", _statement(entry, report)
    if len(benign) > _BENIGN:
        yield "harmless", f"{len(benign) - _BENIGN} more of these"


def against(found: dict[str, Any]) -> Iterator[str]:
    """The comparison with a good run in a line or two: what went apart first, and which settings differ."""
    first, parts = found["first_divergence"], []
    if first:
        parts.append(f"{_apart(first)}, {_size(first)}")
        others = [
            d["signal"]
            for d in found["divergences"][1:]
            if d["step"] == first["step"] and d["segment"] == first["segment"]
        ]
        others = [name for name in dict.fromkeys(others) if name != first["signal"]]
        if others:
            parts[-1] += f", with {', '.join(others[:_BESIDE])}" + (
                f" and {len(others) - _BESIDE} more" if others[_BESIDE:] else ""
            )
    elif found["signals"]:
        parts.append(f"nothing stays apart in {found['signals']} signals at {found['points']} points")
    layer = next((e for e in found["layers"] if e["lower_clean"] or e["last"] is not None), None)
    if layer:
        parts.append(f"{layer['signal']} {_layers(layer)}")
    rank = next((e for e in found["ranks"] if e["apart"] == 1 and e["of"] > 1), None)
    if rank:
        parts.append(f"{rank['signal']} of rank {rank['rank']} alone among {rank['of']}")
    if found["first_difference"] and found["identical_points"]:
        parts.append(f"equal, number for number, until step {found['first_difference']['step']}{_there(found)}")
    if found["config"]:
        settings = [f"{s['key']} {s['good']} -> {s['here']}" for s in found["config"]]
        more = f" and {len(settings) - _SETTINGS} more" if settings[_SETTINGS:] else ""
        parts.append(f"config: {', '.join(settings[:_SETTINGS])}{more}")
    if parts:
        yield f"{found['run']}: {'; '.join(parts)}"
    yield from found["warnings"]


def proxy(found: dict[str, Any]) -> Iterator[str]:
    """The recommended plan in a line, and what to mind of it; or why there is none."""
    if found["refused"] is not None:
        yield f"none planned: {found['refused']}"
        return
    yield f"{found['summary']}; {found['weights']} weights"
    first = f"plan 1 of {len(found['others']) + 1}, " if found["others"] else ""
    yield f"{first}for factor {' or '.join(found['factors'])}: {found['title']}"
    yield f"costs are of {found['priced']}"
    if found["note"]:
        yield found["note"]


def _layers(entry: dict[str, Any]) -> str:
    """Which layers go apart: up to the last where those above it agree, else from the lowest on."""
    first, last = entry["layer"], entry["last"]
    if last is None:
        return f"from layer {first} on, clean below"
    return f"in layer {first} only" if last == first else f"in layers {first} to {last}"


def _there(found: dict[str, Any]) -> str:
    """The largest factor at the step where two runs that were one first differ."""
    signals = [
        s for s in found["first_difference"]["signals"] if s["ratio"] is not None and not 0.99 < s["ratio"] < 1.01
    ]
    return f", where {signals[0]['signal']}{_place(signals[0])} is {signals[0]['ratio']:.3g}x" if signals else ""


def _place(entry: dict[str, Any]) -> str:
    return "".join(f" {name} {entry[name]}" for name in ("layer", "rank") if entry[name] is not None)


def _apart(first: dict[str, Any]) -> str:
    when = "from the start" if first["from_start"] else f"step {first['step']}"
    return f"{first['signal']}{_place(first)} first, {when}"


def _size(first: dict[str, Any]) -> str:
    """How far the first divergence is off: a ratio, or both values where none says it, in noises of the good run."""
    if first["direction"] == "nonfinite":
        return "not finite" if first["value"] is None else "finite, where the good run is not"
    ratio = first["ratio"]
    if ratio is not None and 0.01 <= ratio <= 100 and not 0.9 < ratio < 1.1:
        size = f"{ratio:.2f}x"
    else:
        size = f"{first['value']:.3g} against {first['good']:.3g}"
    return f"{size} ({first['size']:.0f} x its noise)"


def _statement(entry: dict[str, Any], report: dict[str, Any]) -> str:
    where = place(entry, report)
    runs = report["run"]["facts"].get("segments_are_runs")
    again = (
        f"run {entry['segment'] + 1} of the file: "
        if runs
        else f"after restart {entry['segment']}: "
        if entry["segment"]
        else ""
    )
    return again + visible(entry["statement"], _STATEMENT) + (f" ({where})" if where else "")


def _by_remedy(report: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in report["not_judged"]:
        found.setdefault(entry["how"], []).append(entry["what"])
    return found


def _source(source: dict[str, Any]) -> str:
    skipped = f", {source['unparsed']} not understood" if source["unparsed"] else ""
    cut = ", cut off" if source["truncated"] else ""
    return f"{source['path']} as {source['format']}: {source['rows']} rows{skipped}{cut}"


def _more(texts: list[str], most: int, label: str, what: str) -> Iterator[tuple[str, str]]:
    for text in texts[:most]:
        yield label, visible(text, _STATEMENT)
    if len(texts) > most:
        yield label, f"{len(texts) - most} more {what}, in --format json"


def _unpainted(_: str, text: str) -> str:
    return text


def render(reports: list[dict[str, Any]], width: int | None = None, paint: Painter = _unpainted) -> str:
    """Text of one or several reports, wrapped to `width` (a terminal's) with a hanging indent when it is given."""
    brief = len(reports) > _RUNS_IN_FULL
    blocks = []
    for report in reports:
        block = _headline(report, len(reports) > 1, width, paint)
        last = None
        for label, text in lines(report, brief):
            shown = f"{label if label != last else '':<{_LABEL}}"
            first, *rest = _wrapped(visible(text), width, 2 + _LABEL) if label not in _VERBATIM else [visible(text)]
            block.append("  " + (paint("label", shown) if shown.strip() else shown) + first)
            block += [" " * (2 + _LABEL) + line for line in rest]
            last = label
        blocks.append("\n".join(line.rstrip() for line in block))
    return "\n\n".join(blocks) + "\n"


def _headline(report: dict[str, Any], named: bool, width: int | None, paint: Painter) -> list[str]:
    verdict, _, rest = visible(headline(report)).partition("  ")
    name = visible(report["run"]["id"]) + ": " if named else ""
    first, *more = _wrapped(f"{name}{verdict}  {rest}", width, 0)
    return [first.replace(f"{verdict}  ", paint(report["verdict"], verdict) + "  ", 1), *("  " + line for line in more)]


def _wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """Lines of at most `width - indent - 2`; words (paths, commands) stay whole so that they can be copied."""
    if width is None or width < _NARROWEST:
        return [text]
    room = width - indent - (0 if indent else 2)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False, drop_whitespace=True) or [""]
