"""The report as SARIF 2.1.0, which code hosts and editors show: a run each, evidence as results, blind spots as notifications.

The answer itself has no place among SARIF's results, so it stands in the run's description and properties. Log text is
kept from being read as a link (`[x](y)`) or a placeholder (`{0}`), which messages may hold.
Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from faultproxy.analyzer.catalogue import catalogue
from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.report.text import headline

_LEVELS = {"root": "error", "consequence": "warning", "benign": "note"}
#: What absolute paths are relative to: SARIF wants relative ones, and a report knows no repository.
_ROOT = "ROOT"
_PLACEHOLDER = re.compile(r"\{+\d+\}+")
_LINK = re.compile(r"(\\*)\]\(")
_FACTS = ("signal", "segment", "step_start", "step_end", "rank", "layer", "expert", "observed", "expected", "next_step")
_ANSWER = ("verdict", "failure_type", "family", "factor", "path", "confidence", "factor_confidence", "first_bad_step", "segment", "rank", "layer", "expert", "causes", "prediction_set")  # fmt: skip


def render(reports: list[dict[str, Any]]) -> str:
    """SARIF of one or several reports."""
    import orjson

    log = {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [_run(report) for report in reports],
    }
    return orjson.dumps(log, option=orjson.OPT_INDENT_2).decode() + "\n"


def _run(report: dict[str, Any]) -> dict[str, Any]:
    tool, run = report["tool"], report["run"]
    ids = list(dict.fromkeys(entry["rule"] for entry in report["evidence"]))
    blind = [_note(f"{entry['what']}: {entry['how']}", "not-judged", "note") for entry in report["not_judged"]]
    warned = [_note(text, "warning", "warning") for text in report["warnings"]]
    return {
        "tool": {"driver": {"name": tool["name"], "version": tool["version"], "rules": [_rule(name) for name in ids], "properties": {"rules": tool["rules"]}}},
        "automationDetails": {"id": f"faultproxy/{visible(run['id'])}/", "description": _message(headline(report))},
        "originalUriBaseIds": {_ROOT: {"uri": "file:///"}},
        "artifacts": [
            {"location": _location(source["path"]), "hashes": {"sha-256": source["sha256"]}, "roles": ["analysisTarget"]}
            for source in run["sources"]
        ],
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": [*blind, *warned]}],
        "results": [_result(entry, ids, run["sources"]) for entry in report["evidence"]],
        "properties": {name: report[name] for name in _ANSWER},
    }  # fmt: skip


def _rule(name: str) -> dict[str, Any]:
    """A rule; one that this version does not know (a report of another) is its id alone."""
    rule = next((rule for rule in catalogue() if rule.id == name), None)
    if rule is None:
        return {"id": name}
    return {
        "id": name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.text["means"]},
        "help": {"text": f"{rule.text['next_step']} What it is not: {rule.text['not_this']}"},
        "properties": {"failure_type": rule.failure_type, "severity": rule.severity, "version": rule.version},
    }


def _result(entry: dict[str, Any], ids: list[str], sources: list[dict[str, Any]]) -> dict[str, Any]:
    identity = [str(entry.get(name)) for name in ("rule", "signal", "segment", "step_start", "rank", "layer", "expert")]
    found: dict[str, Any] = {
        "ruleId": entry["rule"],
        "ruleIndex": ids.index(entry["rule"]),
        "level": _LEVELS[entry["role"]],
        "message": _message(entry["statement"]),
        "partialFingerprints": {"finding/v1": sha256("\0".join(identity).encode()).hexdigest()},
        "properties": {name: entry[name] for name in _FACTS if entry.get(name) is not None} | {"role": entry["role"]},
    }
    if entry["source"] is not None:
        at = next((at for at, source in enumerate(sources) if source["path"] == entry["source"]), None)
        physical: dict[str, Any] = {
            "artifactLocation": _location(entry["source"]) | ({} if at is None else {"index": at})
        }
        # The row of a table is no line of a text.
        if entry["line"] and not (at is not None and "parquet" in sources[at]["format"]):
            physical["region"] = {"startLine": entry["line"]}
        found["locations"] = [{"physicalLocation": physical}]
    return found


def _location(path: str) -> dict[str, Any]:
    uri = quote(path.lstrip("/"), safe="/~")
    return {"uri": uri or ".", "uriBaseId": _ROOT} if path.startswith("/") else {"uri": uri or "."}


def _note(text: str, kind: str, level: str) -> dict[str, Any]:
    return {"descriptor": {"id": kind}, "level": level, "message": _message(text)}


def _message(text: str) -> dict[str, str]:
    plain = _LINK.sub(r"\1\1\\](", visible(text))
    return {"text": _PLACEHOLDER.sub(lambda found: found[0].replace("{", "{{").replace("}", "}}"), plain) or " "}
