"""The HTML page: answer first, nothing loaded, nothing of a log interpreted, within its size whatever it is given."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import analyze
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.report.html import page
from faultproxy.analyzer.trace import Trace

HOSTILE = (
    "\"'></script><script>alert(1)</script><img src=x onerror=alert(1)>&lt;<!--{{x}}\x1b[31m\u202e\ud800 `http://evil`"
)
#: Fields whose words are the program's own; everything else may come out of a log, a path, or a configuration.
ENUMS = {"verdict", "failure_type", "family", "factor", "path", "cause", "role", "schema", "version", "aligned_by", "separates"}  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tree(HTMLParser):
    """Every element with its attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.stack: list[int] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.stack.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.elements[self.stack[-1]][0] == tag, f"</{tag}> closes nothing"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        for at in self.stack:
            self.elements[at][2].append(data)

    def all(self, tag: str, **wanted: str) -> list[str]:
        return ["".join(text) for name, attrs, text in self.elements if name == tag and wanted.items() <= attrs.items()]

    def attributes(self) -> Iterator[tuple[str, str, str]]:
        for tag, attrs, _ in self.elements:
            for name, value in attrs.items():
                yield tag, name, value or ""


def _log(steps: int = 60, bad: int = 40, layers: int = 3) -> str:
    lines = []
    for step in range(1, steps + 1):
        values = ["nan"] * 2 if step >= bad else [f"{1 / step:.4f}", f"{1 + step % 3 / 10}"]
        layered = "".join(
            f" - grad_norm/layer_{n}:{'nan' if step >= bad and n < 2 else 0.1 * n + 0.1}" for n in range(layers)
        )
        loads = "".join(f" - moe/expert_load/layer_1/expert_{n}:{0.25 + n / 100}" for n in range(4))
        lines.append(f"step:{step} - actor/pg_loss:{values[0]} - actor/grad_norm:{values[1]} - critic/rewards/mean:0.4{layered}{loads}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _made(folder: Path, text: str | None = None) -> tuple[dict[str, Any], Trace]:
    path = folder / "run.log"
    path.write_text(_log() if text is None else text)
    trace = read([str(path)])[0]
    return document(diagnose(trace)), trace


def _data(shown: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', shown, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def _hostile(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _hostile(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hostile(inner, name) for inner in value]
    return HOSTILE if isinstance(value, str) and name not in ENUMS else value


def test_the_page_answers_first_and_then_shows_evidence_curves_maps_causes_checks_and_sources(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    shown = page.render([report], [trace])
    tree = Tree(shown)
    assert tree.all("title")[0].startswith("FAILED  " + report["failure_type"])
    assert tree.all("h1") == [f"failed {report['failure_type'].replace('_', ' ')}"]
    parts = tree.all("h2")
    blind = ["Not judged"] if report["not_judged"] else []
    assert parts == ["Evidence", "Curves", "Heat maps", "Causes", "Next", *blind, "Reproduce", "Sources and versions"]
    text = "".join(tree.all("main"))
    for wanted in (report["evidence"][0]["statement"], report["causes"][0]["why"], report["reproduce"][0]["command"], report["tool"]["rules"], trace.sources[0].sha256):  # fmt: skip
        assert wanted in text


def test_the_data_marks_the_bad_interval_of_the_evidence_on_its_curve(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    data = _data(page.render([report], [trace]))
    entry = next(entry for entry in report["evidence"] if entry["signal"] == "grad_norm" and entry["layer"] is None)
    marked = [band for plot in data["plots"].values() for band in plot["bands"] if band[2] == f"E{report['evidence'].index(entry) + 1}"]  # fmt: skip
    assert marked[0][:2] == [entry["step_start"], entry["step_end"]] and marked[0][3] == entry["role"]
    curve = next(plot for plot in data["plots"].values() if plot["lines"][0]["n"] == "grad_norm")
    assert curve["lines"][0]["b"] == [[40, 60, 21]] and curve["first"] == 40 and curve["span"] == [1, 60]
    axes = [(one["axis"], one["names"]) for one in data["maps"].values()]
    assert ("layer", ["0", "1", "2"]) in axes and ("expert", ["0", "1", "2", "3"]) in axes


def test_hostile_text_in_every_field_and_metric_name_is_shown_and_nothing_more(tmp_path: Path) -> None:
    key = HOSTILE.replace("\ud800", "").replace("\x1b", "").replace("`", "").replace(" ", "_")
    report, trace = _made(tmp_path, "\n".join(json.dumps({"step": n, "loss": 1.0 / n, key: n}) for n in range(1, 80)))
    against = {
        "run": "x", "sources": [], "aligned_by": "step", "points": 3, "signals": 3, "identical_points": 0, "first_difference": None,
        "first_divergence": None, "layers": [], "ranks": [], "speed": [], "only_here": [], "only_good": [], "warnings": ["x"],
        "divergences": [{"signal": "x", "layer": None, "module": "x", "rank": None, "step": 3, "segment": 0, "value": 1.0, "good": None, "size": None}],
        "config": [{"key": "x", "here": "x", "good": "x", "why": "x"}],
    }  # fmt: skip
    plain, _ = _made(tmp_path)
    reports = [_hostile(one | {"against": against}) for one in (report, plain)]
    shown = page.render(reports, [trace, trace])
    tree = Tree(shown)
    tags = {tag for tag, *_ in tree.elements}
    assert not tags & {"img", "iframe", "object", "form", "svg", "base", "input"}
    assert len(tree.all("script")) == 2 and len(tree.all("style")) == 1
    assert [
        name for _, name, _ in tree.attributes() if name.startswith("on") or name in ("style", "src", "action")
    ] == []
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", shown) == []
    assert "<script>alert(1)</script>" in "".join(tree.all("main")) and "alert(1)" not in "".join(
        tree.all("script")[1:]
    )
    assert shown.count("</script>") == 2 and "<!--" not in shown.partition("<body>")[2].replace(
        tree.all("script")[1], ""
    )


def test_the_policy_allows_the_pages_own_script_and_style_by_hash_and_nothing_else(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    tree = Tree(page.render([report], [trace]))
    policy = next(attrs["content"] for tag, attrs, _ in tree.elements if "http-equiv" in attrs and tag == "meta")
    rules = dict(part.strip().split(" ", 1) for part in (policy or "").split(";"))
    for kind, text in (("script-src", tree.all("script")[1]), ("style-src", tree.all("style")[0])):
        assert rules[kind] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in (policy or "")


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    shown = page.render([report], [trace])
    tree = Tree(shown)
    assert {value for _, name, value in tree.attributes() if name in ("href", "src", "srcset", "data") and value[:1] != "#"} == {"data:,"}  # fmt: skip
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\(", tree.all("style")[0] + tree.all("script")[1])  # fmt: skip


def test_every_figure_has_a_table_and_the_outline_can_be_walked(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    for reports, traces in (([report], [trace]), ([report, report], [trace, trace])):
        shown = page.render(reports, traces)
        tree = Tree(shown)
        levels = [int(tag[1]) for tag, *_ in tree.elements if re.fullmatch(r"h\d", tag)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        ids = [value for _, name, value in tree.attributes() if name == "id"]
        assert len(ids) == len(set(ids))
        targets = [value[1:] for _, name, value in tree.attributes() if name == "href" and value[0] == "#"]
        labels = [value for _, name, value in tree.attributes() if name == "aria-labelledby"]
        assert {*targets, *labels} <= set(ids)
        drawn = [attrs["id"] for tag, attrs, _ in tree.elements if tag == "figure"]
        assert drawn and {*drawn} == {name for kind in _data(shown).values() for name in kind}
        assert len(tree.all("figure")) == sum("lowest" in text for text in tree.all("table")) > 3


def test_a_row_counted_log_speaks_of_rows_and_a_page_without_traces_has_no_curves(tmp_path: Path) -> None:
    report, _ = _made(tmp_path, "".join(f"loss: {9 / n:.4f} grad_norm: 1.0\n" for n in range(1, 40)) + "loss: nan grad_norm: nan\n" * 9)  # fmt: skip
    assert report["run"]["facts"]["steps_are_rows"]
    tree = Tree(page.render([report]))
    assert "First bad row" in tree.all("dt") and tree.all("figure") == [] and "Curves" not in tree.all("h2")


def test_a_failure_without_advice_does_not_present_a_warning_as_such(tmp_path: Path) -> None:
    report, _ = _made(tmp_path)
    report["evidence"] = [entry | {"next_step": None} for entry in report["evidence"]]
    assert "Do this first" not in page.render([report | {"warnings": ["a file was left out"]}])


def test_several_runs_have_a_table_and_a_section_each(tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    healthy, good = _made(tmp_path, _log(bad=99))
    tree = Tree(page.render([report, healthy], [trace, good]))
    assert tree.all("h1") == ["2 runs, 1 failed"] and len(tree.all("article")) == 2
    assert tree.all("table")[0].startswith("All runs") and tree.all("a", href="#r2") == ["run.log"]


def test_an_inconclusive_run_says_what_to_log_before_anything_else(tmp_path: Path) -> None:
    report, trace = _made(tmp_path, "step:1 - perf/throughput:3.0 - perf/time_per_step:2.0\n")
    assert report["verdict"] == "inconclusive"
    tree = Tree(page.render([report], [trace]))
    assert tree.all("h2")[:2] == ["Not judged", "Reproduce"]
    assert tree.all("h1") == ["inconclusive Not enough to judge this run"]
    assert tree.all("p", **{"class": "next"})[0].startswith("too little in this trace to call it healthy")


@pytest.mark.parametrize(("runs", "findings", "size"), [(1, 2000, 20_000), (40, 40, 1500), (2100, 1, 50)])
def test_the_page_keeps_to_its_size_whatever_it_is_given(runs: int, findings: int, size: int, tmp_path: Path) -> None:
    report, trace = _made(tmp_path)
    report["evidence"] = [report["evidence"][0] | {"statement": "\u202e<" * (size // 2)}] * findings
    report["warnings"] = report["unrecognised"] = ["'" * size] * findings
    report["run"]["id"] = "&" * size
    shown = page.render([report] * runs, [trace] * runs)
    assert len(shown.encode()) <= page.CAP
    assert "in the JSON report" in shown and "&amp;&amp;" in shown
    names = [(name, value) for _, name, value in Tree(shown).attributes()]
    assert {value[1:] for name, value in names if name == "href" and value[0] == "#"} <= {
        v for n, v in names if n == "id"
    }


def test_a_long_run_keeps_its_single_nan_and_its_extremes(tmp_path: Path) -> None:
    lines = [{"step": n, "loss": 2 + n % 7 / 100, "grad_norm": 1.0, "lr": 1e-4} for n in range(1, 30_001)]
    lines[12_345]["loss"] = float("nan")
    lines[20_000]["grad_norm"] = 1e9
    report, trace = _made(tmp_path, "\n".join(json.dumps(line) for line in lines))
    shown = page.render([report], [trace])
    plots = {plot["lines"][0]["n"]: plot["lines"][0] for plot in _data(shown)["plots"].values()}
    assert plots["loss"]["b"] == [[12_346, 12_346, 1]]
    assert plots["grad_norm"]["y"][plots["grad_norm"]["x"].index(20_001)] == 1e9
    assert len(shown.encode()) < 600_000


def test_analyze_writes_the_page(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(_log())
    ended = CliRunner().invoke(analyze, [str(tmp_path / "run.log"), "--format", "html", "-o", str(tmp_path / "report.html")])  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_plotting_library_is_shipped_with_its_licence() -> None:
    vendor = files("faultproxy.analyzer.report.html").joinpath("vendor")
    names = {entry.name for entry in vendor.iterdir()}
    assert names == {"uPlot.iife.min.js", "uPlot.min.css", "uPlot-LICENSE.txt"}
    assert "MIT License" in vendor.joinpath("uPlot-LICENSE.txt").read_text(encoding="utf-8")
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        text = vendor.joinpath(name).read_text(encoding="utf-8")
        assert "</script" not in text and "</style" not in text
