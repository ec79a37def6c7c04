"""The JSON document is the product; text and Markdown are views of it and must be safe to show."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.catalogue import CAUSES, FAILURE_TYPES, Rule, fingerprint
from faultproxy.analyzer.diagnose import diagnose, fuse
from faultproxy.analyzer.engine import Finding, Outcome
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report import document as documents
from faultproxy.analyzer.report import markdown, text
from faultproxy.analyzer.report.clean import encodable, visible
from faultproxy.analyzer.trace import Trace

GOLDEN = Path(__file__).parent / "golden" / "diagnosis-v1.json"
HOSTILE = (
    "a|b `code` <img src=x> @oncall #12 \x1b[31mred\x1b[0m \x9b2J line\nbreak \u202egnp **bold** [x](http://evil) $x$"
)
LOG = "\n".join(
    f"step:{step} - actor/pg_loss:{loss} - actor/grad_norm:{norm} - critic/rewards/mean:0.4"
    for step, loss, norm in [(1, 0.1, 1.0), (2, 0.2, 1.1), (3, 0.1, 0.9), (4, "nan", "nan")]
)
# The views and the document see a rule only through its id, so a fake one is enough and no rule edit moves the golden.
RULE = Rule(
    id="numerics/fake", title="fake", view="train", sql="", failure_type="nonfinite_loss", role="root", strength=0.9,
    version=1, status="preview", severity="high", columns=(), any_of=(), optional=(), kinds=(), supports=(), min_rows=1, guard=None,
    votes={}, causes={},
)  # fmt: skip


def _trace(folder: Path) -> Trace:
    path = folder / "run.log"
    path.write_text(LOG + "\n")
    return read([str(path)])[0]


def _finding(trace: Trace, **changes: Any) -> Finding:
    made: dict[str, Any] = {
        "rule": RULE.id, "failure_type": "nonfinite_loss", "role": "root", "strength": 0.9,
        "statement": "policy_loss is nan at step 4, finite before", "step_start": 4, "step_end": 4, "expected": 0.1,
        "signal": "policy_loss", "source": trace.sources[0].path, "line": 4,
        "votes": {"precision": 0.8}, "causes": {"precision": 0.6, "operator": 0.4},
    }  # fmt: skip
    return Finding(**(made | changes))


def _report(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    trace = _trace(folder)
    findings = tuple(_finding(trace, **change) for change in changes or ({},))
    return documents.document(fuse(trace, [Outcome(RULE, "fires", findings)]))


# -- the document -----------------------------------------------------------------------------------------------------
def test_the_schema_knows_every_failure_type_and_cause(schema_problems: Any) -> None:
    from importlib.resources import files

    schema = json.loads(files("faultproxy.analyzer.report").joinpath("diagnosis-v1.schema.json").read_text("utf-8"))
    known = {kind for kinds in FAILURE_TYPES.values() for kind in kinds} | {"healthy"}
    assert known == set(schema["$defs"]["failure_type"]["enum"])
    assert set(CAUSES) == set(schema["properties"]["causes"]["items"]["properties"]["cause"]["enum"])


def test_the_document_is_the_golden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change here is a change of the contract: fields may be added within schema 1, never changed or removed."""
    monkeypatch.chdir(tmp_path)
    Path("run.log").write_text(LOG + "\n")
    trace = read(["run.log"])[0]
    findings = (
        _finding(trace),
        _finding(trace, failure_type="nonfinite_gradient", signal="grad_norm", strength=0.8, statement="grad_norm is nan at step 4"),
        _finding(trace, failure_type=None, role="benign", statement="loss jumped at step 2 and came back", step_start=2, step_end=2, line=2),
    )  # fmt: skip
    report = documents.document(fuse(trace, [Outcome(RULE, "fires", findings)]))
    report["tool"] |= {"version": "0.0.0", "rules": "0" * 64}
    if os.environ.get("FAULTPROXY_UPDATE_GOLDEN"):
        GOLDEN.write_text(documents.dumps([report]))
    assert json.loads(GOLDEN.read_text()) == report, (
        "on purpose? FAULTPROXY_UPDATE_GOLDEN=1 python -m pytest tests/test_reports.py"
    )


def test_the_golden_file_is_valid(schema_problems: Any) -> None:
    assert schema_problems(json.loads(GOLDEN.read_text())) == []


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"confidence": 1.2},
        {"factor": "moe"},
        {"failure_type": "healthy"},
        {"evidence": []},
        {"causes": [{"cause": "gremlins", "probability": 0.1}]},
        {"schema": 2},
    ],
)
def test_the_schema_refuses(change: dict[str, Any], schema_problems: Any) -> None:
    assert schema_problems(json.loads(GOLDEN.read_text()) | change) != []


def test_the_schema_wants_every_field_and_allows_new_ones(schema_problems: Any) -> None:
    report = json.loads(GOLDEN.read_text())
    assert schema_problems(report | {"added_later": 1}) == []
    for name in report:
        assert schema_problems({key: value for key, value in report.items() if key != name}) != [], name


@pytest.mark.parametrize(("log", "verdict"), [(LOG, "failed"), ("\n".join(LOG.split("\n")[:3]), "healthy"), (LOG.split("\n")[0], None)])  # fmt: skip
def test_the_whole_pipeline_gives_valid_documents(log: str, verdict: str | None, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(log + "\n")
    report = documents.document(diagnose(read([str(tmp_path / "run.log")])[0]))
    assert verdict in (None, report["verdict"])
    assert report["tool"]["rules"] == fingerprint()


def test_non_finite_facts_and_odd_file_names_stay_strict_json(tmp_path: Path) -> None:
    trace = _trace(tmp_path)
    trace.facts["lr"] = float("nan")
    trace.sources[0].path = "r\udcffn\x9b.log"
    report = documents.document(fuse(trace, [Outcome(RULE, "fires", (_finding(trace),))]))
    written = documents.dumps([report])
    assert "\x9b" not in written and json.loads(written)["run"]["sources"][0]["path"] == "r?n\x9b.log"
    assert report["run"]["facts"]["lr"] is None


def test_only_commands_that_exist_are_offered(tmp_path: Path) -> None:
    import click

    from faultproxy.analyzer.cli import faultproxy

    known = {"analyze", *(f"faultproxy {name}" for name in faultproxy.list_commands(click.Context(faultproxy)))}
    for entry in _report(tmp_path)["reproduce"]:
        words = entry["command"].split()
        assert (words[0] if words[0] == "analyze" else " ".join(words[:2])) in known


# -- text -------------------------------------------------------------------------------------------------------------
def test_text_answers_in_the_first_line_and_keeps_the_reading_order(tmp_path: Path) -> None:
    later = {"failure_type": "loss_divergence", "statement": "loss grew", "strength": 0.8}
    benign = {"role": "benign", "failure_type": None, "statement": "an early jump"}
    shown = text.render([_report(tmp_path, later, {}, benign)])
    lines = shown.split("\n")
    assert re.fullmatch(
        r"FAILED  nonfinite_loss · factor precision · cause precision or operator · 0\.\d\d · first bad step 4",
        lines[0],
    )
    assert lines[1] == "  evidence     policy_loss is nan at step 4, finite before (run.log:4)"
    labels = [line[2:15].strip() for line in lines[1:] if line[2:15].strip()]
    assert labels == ["evidence", "then", "harmless", "or", "next", "not judged", "read"]


def test_text_wraps_to_the_width_with_a_hanging_indent_and_keeps_paths_whole(tmp_path: Path) -> None:
    shown = text.render([_report(tmp_path, {"statement": "word " * 40})], width=72)
    for line in shown.split("\n")[1:-1]:
        assert len(line) <= 72 or str(tmp_path) in line, line
    assert "\n" + " " * 15 + "word word" in shown
    assert str(tmp_path / "run.log") in shown


def test_text_of_many_runs_names_them_and_lists_what_was_not_judged_in_a_line(tmp_path: Path) -> None:
    reports = [_report(tmp_path)] * 5
    shown = text.render(reports)
    assert shown.count("run.log: FAILED  nonfinite_loss") == 5
    assert "not judged   routing, depth" in shown and "switch on" not in shown


def test_text_lets_no_control_character_of_a_log_through(tmp_path: Path) -> None:
    report = _report(tmp_path, {"statement": HOSTILE})
    report["run"]["sources"][0]["path"] = "x\x1b]0;owned\x07.log"
    report["warnings"] = [HOSTILE]
    for width in (None, 80):
        shown = text.render([report], width)
        assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown) == []
        assert "\\x1b[31mred" in shown


def test_text_is_one_screen_even_for_a_run_with_everything_wrong(tmp_path: Path) -> None:
    report = _report(tmp_path, *({"statement": f"finding {n}"} for n in range(30)))
    report["warnings"] = [f"warning {n}" for n in range(30)]
    report["run"]["sources"] *= 30
    shown = text.render([report])
    assert len(shown.split("\n")) <= 40
    assert "24 more findings, in --format json" in shown


def test_paint_is_asked_only_for_the_verdict_and_labels(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def paint(kind: str, piece: str) -> str:
        asked.append((kind, piece.strip()))
        return piece

    report = _report(tmp_path)
    assert text.render([report]) == text.render([report], paint=paint)
    assert asked[0] == ("failed", "FAILED") and {kind for kind, _ in asked[1:]} == {"label"}


# -- Markdown ---------------------------------------------------------------------------------------------------------
def test_markdown_has_headline_table_checks_commands_and_folded_sources(tmp_path: Path) -> None:
    report = _report(tmp_path, {}, {"failure_type": "loss_divergence", "statement": "loss grew", "step_end": 9})
    shown = markdown.render([report])
    assert shown.startswith("### FAILED: nonfinite_loss · factor precision")
    assert "| root | policy_loss is nan at step 4, finite before | 4 | `run.log:4` |" in shown
    assert "| consequence | loss grew | 4-9 | `run.log:4` |" in shown
    for part in (
        "**Next**",
        "**Not judged**",
        "```sh\n# repeat this diagnosis\nanalyze ",
        "<details>",
        fingerprint(),
    ):
        assert part in shown
    assert shown.rstrip().endswith("</details>")


def test_markdown_escapes_everything_that_comes_from_a_log(tmp_path: Path) -> None:
    report = _report(tmp_path, {"statement": HOSTILE, "source": "x|`y`\n<b>@z.log"})
    report["run"]["sources"][0]["path"] = "x|`y` <b>@z.log"
    report["run"]["id"] = "`@all`"
    report["warnings"] = [HOSTILE]
    report["unrecognised"] = ["`|@x"]
    shown = markdown.render([report])
    row = next(line for line in shown.split("\n") if line.startswith("| root"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 5  # four cells, whatever the statement holds
    spans_gone = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", row)
    for raw in ("<img", "@oncall", "#12", "\x1b", "\x9b", "\u202e", "**bold**", "[x](", "http:"):
        assert raw not in spans_gone, raw
    assert "@&#8203;oncall" in row and "&lt;img src=x&gt;" in row and r"\`code\`" in row


def test_markdown_fences_are_longer_than_what_they_hold() -> None:
    assert markdown.block("a ``` b") == "````sh\na ``` b\n````"
    assert markdown.code("a`b``c") == "```a`b``c```"
    assert markdown.code("`x`") == "`` `x` ``"


def test_markdown_keeps_plain_names_readable() -> None:
    assert (
        markdown.escape("grad_norm 1.0 -> 65536 in 3 steps (x = 5)") == "grad_norm 1.0 -&gt; 65536 in 3 steps (x = 5)"
    )
    assert markdown.escape("__init__") == r"\_\_init\_\_"
    assert markdown.escape("- item") == "&#45; item"


def test_an_engine_reads_the_markdown_as_meant(tmp_path: Path) -> None:
    """markdown-it is no dependency; where it is there, let a real parser judge."""
    engine = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    report = _report(tmp_path, {"statement": HOSTILE})
    html = engine.render(markdown.render([report]))
    assert html.count("<td>") == 4 + 6 and "<img" not in html and "<strong>bold" not in html and "href" not in html


# -- cleaning ---------------------------------------------------------------------------------------------------------
def test_visible_shows_escapes_and_keeps_one_line() -> None:
    assert visible("a\tb\r\nc\x1b[0m\udcff") == "a b c\\x1b[0m\\udcff"
    assert visible("x" * 20, limit=10) == "x" * 7 + "..."
    assert encodable("a\udcff") == "a?"
