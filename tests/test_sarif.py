"""SARIF: our rules are its rules, evidence its results, what was not judged its notifications.

`FAULTPROXY_SCHEMAS=DIR` also checks against the public schema, DIR/sarif.json: `npm pack @microsoft/jest-sarif` ships it
as lib/schemas/sarif-2.1.0-rtm.5.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft4Validator

from faultproxy.analyzer.catalogue import catalogue
from faultproxy.analyzer.cli import analyze
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report import sarif
from faultproxy.analyzer.report.document import document

SCHEMAS = Path(os.environ.get("FAULTPROXY_SCHEMAS", ""))
HOSTILE = "[click](http://evil) {0} \x1b[31m\u202e</script>"
BAD = "".join(f"step:{n} - actor/pg_loss:{'nan' if n > 3 else 0.1} - actor/grad_norm:{'nan' if n > 3 else 1.0}\n" for n in range(1, 9))  # fmt: skip
GOOD = "".join(f"step:{n} - actor/pg_loss:0.{n} - actor/grad_norm:1.{n}\n" for n in range(1, 9))


def _report(folder: Path, log: str = BAD, name: str = "run.log") -> dict[str, Any]:
    (folder / name).write_text(log)
    return document(diagnose(read([str(folder / name)])[0]))


def _run(*reports: dict[str, Any]) -> dict[str, Any]:
    written = json.loads(sarif.render(list(reports)))
    assert written["version"] == "2.1.0" and len(written["runs"]) == len(reports)
    run: dict[str, Any] = written["runs"][0]
    return run


def test_evidence_is_a_result_at_its_line_with_a_level_by_its_role(tmp_path: Path) -> None:
    report = _report(tmp_path)
    run = _run(report)
    assert len(run["results"]) == len(report["evidence"]) > 1
    levels = {"root": "error", "consequence": "warning", "benign": "note"}
    for result, entry in zip(run["results"], report["evidence"], strict=True):
        assert (result["ruleId"], result["level"]) == (entry["rule"], levels[entry["role"]])
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == entry["rule"]
        place = result["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] == entry["line"] and place["artifactLocation"]["index"] == 0
    assert run["properties"]["failure_type"] == report["failure_type"]
    assert len({result["partialFingerprints"]["finding/v1"] for result in run["results"]}) == len(run["results"])


def test_rules_are_the_catalogues_and_one_of_another_version_is_its_id(tmp_path: Path) -> None:
    report = _report(tmp_path)
    report["evidence"].append(report["evidence"][0] | {"rule": "numerics/of-tomorrow"})
    *known, unknown = _run(report)["tool"]["driver"]["rules"]
    titles = {rule.id: rule.title for rule in catalogue()}
    assert known and all(rule["shortDescription"]["text"] == titles[rule["id"]] for rule in known)
    assert unknown == {"id": "numerics/of-tomorrow"}


def test_paths_are_relative_uris_whatever_a_file_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = _run(_report(tmp_path, name="a b#1%.log"))
    place = absolute["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uriBaseId"] == "ROOT" and absolute["originalUriBaseIds"]["ROOT"]["uri"] == "file:///"
    assert not place["uri"].startswith("/") and place["uri"].endswith("a%20b%231%25.log")
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    (tmp_path / "x" / "y.log").write_text(BAD)
    relative = _run(document(diagnose(read(["x/y.log"])[0])))
    assert relative["artifacts"][0]["location"] == {"uri": "x/y.log"}
    assert len(relative["artifacts"][0]["hashes"]["sha-256"]) == 64


def test_what_was_not_judged_and_warnings_are_notifications(tmp_path: Path) -> None:
    report = _report(tmp_path) | {"warnings": ["a file was left out"]}
    notes = _run(report)["invocations"][0]["toolExecutionNotifications"]
    kinds = [(note["descriptor"]["id"], note["level"]) for note in notes]
    assert kinds == [("not-judged", "note")] * len(report["not_judged"]) + [("warning", "warning")]


def test_a_healthy_run_has_no_result_that_asks_for_anything(tmp_path: Path) -> None:
    run = _run(_report(tmp_path, GOOD))
    assert [result for result in run["results"] if result["level"] != "note"] == []
    assert run["properties"]["verdict"] == "healthy"


def test_text_of_a_log_is_no_link_no_placeholder_and_no_control_character(tmp_path: Path) -> None:
    report = _report(tmp_path)
    report["evidence"][0]["statement"] = report["run"]["id"] = HOSTILE
    report["warnings"] = [HOSTILE]
    written = sarif.render([report])
    run = json.loads(written)["runs"][0]
    for text in (run["results"][0]["message"]["text"], run["invocations"][0]["toolExecutionNotifications"][-1]["message"]["text"]):  # fmt: skip
        assert "](" not in text.replace(r"\](", "") and "{{0}}" in text and "\x1b" not in text and "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "written"), [("[a\\](b)", "[a\\\\\\](b)"), ("{{0}}", "{{{{0}}}}"), ("a{1}}", "a{{1}}}}")]
)
def test_text_that_looks_escaped_already_is_escaped_all_the_same(text: str, written: str, tmp_path: Path) -> None:
    report = _report(tmp_path)
    report["evidence"][0]["statement"] = text
    assert _run(report)["results"][0]["message"]["text"] == written


@pytest.mark.skipif(not (SCHEMAS / "sarif.json").is_file(), reason="FAULTPROXY_SCHEMAS names no folder with sarif.json")
@pytest.mark.parametrize("log", [BAD, GOOD, "step:1 - perf/throughput:3\n"])
def test_the_public_schema_accepts_it(log: str, tmp_path: Path) -> None:
    report = _report(tmp_path, log)
    report["warnings"] = [HOSTILE]
    schema = json.loads((SCHEMAS / "sarif.json").read_text(encoding="utf-8"))
    assert [error.message for error in Draft4Validator(schema).iter_errors(json.loads(sarif.render([report, report])))] == []  # fmt: skip


def test_analyze_writes_it(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(BAD)
    ended = CliRunner().invoke(analyze, [str(tmp_path / "run.log"), "--format", "sarif"])
    assert ended.exit_code == 0 and json.loads(ended.output)["runs"][0]["results"]
