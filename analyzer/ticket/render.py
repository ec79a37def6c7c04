"""Makes the text of a ticket from a report: redacted, short enough for the site, with commands that exist and a marker.

The report may come from anybody: it is text to quote. What the ticket adds is the marker by which it finds itself again,
what was hidden, and what was left out.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import orjson

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.ticket.redact import Redactor, strings

#: Characters that a site takes in one body: https://docs.github.com/en/rest/issues (65,536),
#: https://docs.gitlab.com/administration/instance_limits/ (1,000,000), jira.text.field.character.limit (32,767).
LIMITS = {"github": 65_536, "gitlab": 1_000_000, "jira": 32_767, "plain": 1_000_000}
SITES = tuple(LIMITS)
#: Longest string and list that is shown, tried in turn until the ticket fits; the first leaves every real report alone.
_FOLDS = ((2_000, 60), (1_000, 40), (300, 12), (120, 5), (80, 1))
#: The same before redaction, which takes its time. Texts are longer here: a secret that this cuts through is cut off later.
_SIFTED = (2_500, 60)
#: Characters of text in a report, of which real ones have a few hundred thousand; redaction takes 2 s a million.
_MOST = 2_000_000
_SHORTENED = (
    "Shortened to what this site takes: long texts are cut, later entries left out. The JSON report has everything."
)
_DEPTH = 24
#: Other failed runs that get a line.
_OTHERS = 20
_PLACEHOLDER = re.compile(r"(?:<|&lt;)(secret|host|ip|mac|email|user)-\d+(?:>|&gt;)")
#: A reader copies what stands here, and the report may be anybody's: so only commands that look, without what writes.
_HARMLESS = (
    "analyze", "faultproxy analyze", "faultproxy rules explain", "faultproxy lab show", "faultproxy lab run", "faultproxy proxy cost",
    "faultproxy proxy plan", "faultproxy proxy check",
)  # fmt: skip
#: Names of the options that write: `--output`, `--force`, and the `--html` of `lab show`.
_WRITE = {"output", "force", "page"}
#: The two that write. The hook's reports go to the folder `faultproxy` of the job's: only with what says which job it is.
_HOOK, _REPEATS = "faultproxy hook run", {"job_dir", "exit_code", "job_id"}
#: A proxy goes to a new folder here, which a plan names after its size: only from a local path or the hub, with what says what to cut.
_BUILD, _RECIPE = (
    "faultproxy proxy build",
    {"source", "out", "layers", "experts", "budgets", "keep", "method", "weights", "seed"},
)
_OUT, _SOURCE = re.compile(r"proxy-\d{1,5}-layers(-\d{1,6}-experts)?"), re.compile(r"hf://[\w./@-]+|(?!.*://).+")
_TITLE = re.compile(r"[^\w .:/+-]+")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A title of harmless characters, a body (for Jira the JSON of an ADF document), the places hidden in it by kind, and
    the mark of its run."""

    title: str
    body: str
    redacted: Counter[str]
    mark: str


def render(report: dict[str, Any], to: str, *, hide: bool = True, others: Sequence[dict[str, Any]] = ()) -> Ticket:
    """The ticket of one report (JSON v1) for `github`, `gitlab`, `jira`, or `plain`.

    Args:
        report: The report; it is not changed.
        to: The site whose syntax and limits count.
        hide: Whether to redact. Only for a site inside the walls that the log may not leave.
        others: Reports of the same job; the ticket has a line for each of them that failed.
    """
    # The only fact that a ticket shows; the others may be anything.
    facts = {"steps_are_rows": report["run"]["facts"].get("steps_are_rows") is True}
    whole = report | {"run": report["run"] | {"facts": facts}}
    sifted, redactor = _cut(whole, *_SIFTED), Redactor()
    texts = list(strings(sifted))
    if sum(map(len, texts)) > _MOST:
        raise InputError(f"the report has more than {_MOST:,} characters of text; give one that faultproxy wrote")
    lines = list(_failed(report, others))
    if hide:
        # What is not shown may still tell that a word is a name.
        unseen = list(strings(_cut(report["run"]["facts"], *_SIFTED)))
        redactor.learn(*texts, *lines, *(unseen if sum(map(len, unseen)) <= _MOST else ()))
        lines = [redactor.text(line) for line in lines]
    commands = list(_commands(report, redactor.text if hide else str))
    shown = (redactor.everything(sifted) if hide else sifted) | {"reproduce": commands}
    mark = marker(report)
    for length, entries in _FOLDS:
        cut = _cut(shown, length, entries)
        cut["reproduce"] = [entry for entry in commands[:entries] if len(entry["command"]) <= length]
        notes = [] if cut == shown and sifted == whole else [_SHORTENED]
        body = _body(cut, to, mark, [line[:length] for line in lines[:entries]], notes)
        if len(body) <= LIMITS[to]:
            return Ticket(_title(shown), body, Counter(_PLACEHOLDER.findall(body)) if hide else Counter(), mark)
    raise InputError(
        f"the ticket has {len(body)} characters, {to} takes {LIMITS[to]}; its report is none that faultproxy writes"
    )


def marker(report: dict[str, Any]) -> str:
    """The word by which the ticket of a run is found again: of its job where the report has one, else of its files' names."""
    job = report["run"]["facts"].get("job")
    job = job.get("id") if isinstance(job, dict) else None
    paths = sorted(source["path"] for source in report["run"]["sources"])
    where = [job] if job and isinstance(job, str | int) else paths
    key = hashlib.sha256(repr([report["run"]["id"], where]).encode(errors="replace")).hexdigest()[:16]
    return f"faultproxy-run-{key}"


def _failed(report: dict[str, Any], others: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each other run that failed: what it is, and where its files are."""
    failed = [other for other in others if other is not report and other["verdict"] == "failed"]
    for other in failed[:_OTHERS]:
        run, step = other["run"], other["first_bad_step"]
        unit = "row" if run["facts"].get("steps_are_rows") is True else "step"
        where = next((source["path"] for source in run["sources"]), None)
        parts = [str(other["failure_type"]), *([f"first bad {unit} {step}"] if step is not None else []), *([where] if where else [])]  # fmt: skip
        yield visible(f"Also failed: {run['id']}: {', '.join(parts)}", 500)
    if len(failed) > _OTHERS:
        yield f"Also failed: {len(failed) - _OTHERS} more runs"


def _body(report: dict[str, Any], to: str, mark: str, others: list[str], notes: list[str]) -> str:
    if to == "jira":
        from faultproxy.analyzer.report.adf import document

        found = document(report)
        found["content"] += map(_paragraph, others)
        for note in (*notes, *_counted(orjson.dumps(found).decode()), mark):
            found["content"].append(_paragraph(note))
        return orjson.dumps(found).decode()
    from faultproxy.analyzer.report.markdown import escape
    from faultproxy.analyzer.report.markdown import render as markdown

    listed = "\n".join(f"- {line if to == 'plain' else escape(line)}" for line in others)
    text = "\n\n".join((markdown([report], to).rstrip(), *([listed] if listed else [])))
    marks = [] if to == "plain" else [f"<!-- {mark} -->"]
    return "\n\n".join((text, *notes, *_counted(text), *marks)) + "\n"


def _paragraph(text: str) -> dict[str, Any]:
    return {"type": "paragraph", "content": [{"type": "text", "text": text}]}


def _counted(text: str) -> list[str]:
    counts = ", ".join(f"{kind} {number}" for kind, number in sorted(Counter(_PLACEHOLDER.findall(text)).items()))
    return [f"Hidden in this ticket (places): {counts}. The same number stands for the same value."] if counts else []


def _title(report: dict[str, Any]) -> str:
    """Harmless in Markdown too: it is made of our own words, and of the run's name without special characters."""
    verdict, step = report["failure_type"] or report["verdict"], report["first_bad_step"]
    parts = [f"factor {report['factor']}"] if report["verdict"] == "failed" else []
    if step is not None:
        parts.append(f"first bad {'row' if report['run']['facts']['steps_are_rows'] else 'step'} {step}")
    run = _TITLE.sub(" ", visible(report["run"]["id"])).strip()[:120]
    return f"{verdict} in {run or 'a run'}" + (f": {', '.join(parts)}" if parts else "")


def _cut(value: Any, length: int, entries: int, depth: int = _DEPTH) -> Any:
    """A JSON value with long strings and lists cut, and without what is nested deeper than any report is."""
    if isinstance(value, str):
        return value if len(value) <= length else value[: length - 3] + "..."
    if isinstance(value, list):
        return [_cut(inner, length, entries, depth - 1) for inner in value[:entries]] if depth else None
    if isinstance(value, dict):
        return {key: _cut(inner, length, entries, depth - 1) for key, inner in value.items()} if depth else None
    return value


def _commands(report: dict[str, Any], hidden: Callable[[str], str]) -> Iterator[dict[str, str]]:
    """The report's own commands that this version has, and the rule behind the answer; quoted anew, so nothing else runs.

    Each word is redacted by itself and quoted after it, or `<host-1>` would be a redirection of the shell.
    """
    from faultproxy.analyzer.catalogue import hashes

    entries = report["reproduce"][: _FOLDS[0][1]]
    rule = next((e["rule"] for e in report["evidence"] if e["role"] == "root" and e["rule"] in hashes()), None)
    if rule:
        entries = [*entries, {"title": "what the rule looks at", "command": f"faultproxy rules explain {rule}"}]
    for entry in entries:
        words = _words(entry["command"]) if len(entry["command"]) <= _FOLDS[0][0] else []
        shown = [hidden(word) for word in words]
        note = " (put in what this ticket hides)" if shown != words else ""
        if words:
            yield {"title": visible(hidden(entry["title"][:300]), 120) + note, "command": shlex.join(shown)}


def _words(command: str) -> list[str]:
    """The words of a command that this version has, with options that it has, and that writes nothing; else none."""
    from faultproxy.analyzer import cli

    try:
        words = shlex.split(command)
        found: click.Command | None = {"analyze": cli.analyze, "faultproxy": cli.faultproxy}.get(words[0])
        path, rest = words[:1], words[1:]
        while isinstance(found, click.Group):
            path.append(rest.pop(0))
            found = found.get_command(click.Context(found), path[-1])
        if (
            found is None
            or " ".join(path) not in (*_HARMLESS, _HOOK, _BUILD)
            or not all(word.isprintable() for word in words)
        ):
            return []
        context = click.Context(found)
        options, _, _ = found.make_parser(context).parse_args(rest)
        for option in found.params:
            if not isinstance(option.type, click.Path) and options.get(str(option.name)) is not None:
                option.type_cast_value(context, options[str(option.name)])
    except (ValueError, IndexError, click.ClickException):
        return []
    match " ".join(path):
        case str(name) if name == _HOOK:
            allowed = options.keys() <= _REPEATS
        case str(name) if name == _BUILD:
            ends = _OUT.fullmatch(str(options.get("out"))) and _SOURCE.fullmatch(str(options.get("source")))
            allowed = options.keys() <= _RECIPE and ends is not None
        case _:
            allowed = not options.keys() & _WRITE
    return words if allowed else []
