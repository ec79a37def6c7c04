"""The documents say what the code does: generated parts are current, and every example is run.

`FAULTPROXY_UPDATE_DOCS=1 python -m pytest tests/test_docs.py` writes the generated parts anew.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from faultproxy.analyzer import catalogue, ingest, rulecases, vocabulary
from faultproxy.analyzer.cli import analyze, faultproxy
from faultproxy.analyzer.diagnose import fuse
from faultproxy.analyzer.engine import Finding, Outcome
from faultproxy.analyzer.report.article import page
from faultproxy.analyzer.trace import ABSENT, NAN, Column, Key, Source, Trace

ROOT = Path(__file__).parent.parent
DEMO = "fixtures/demo/loss_scale_collapse.log"
UPDATE = bool(os.environ.get("FAULTPROXY_UPDATE_DOCS"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def _block(text: str, marker: str) -> str:
    """The fenced block after `<!-- marker -->`."""
    found = re.search(rf"^<!-- {marker} -->\n```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"no block after <!-- {marker} -->"
    return found[1]


def _current(path: Path, wanted: str, marker: str | None = None) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if UPDATE and marker is None:
        path.write_text(wanted, encoding="utf-8")
        return
    if UPDATE and marker is not None:
        held = _block(text, marker)
        path.write_text(
            text.replace(f"<!-- {marker} -->\n```text\n{held}", f"<!-- {marker} -->\n```text\n{wanted}"),
            encoding="utf-8",
        )
        return
    held = text if marker is None else _block(text, marker)
    assert wanted == held, f"{path.name} is stale: FAULTPROXY_UPDATE_DOCS=1 python -m pytest tests/test_docs.py"


# -- generated parts --------------------------------------------------------------------------------------------------
def test_the_readme_shows_the_real_output() -> None:
    code = "import sys; sys.argv = ['analyze', sys.argv[1]]; from faultproxy.analyzer.cli import analyze_main as m; m()"
    ended = subprocess.run(
        [sys.executable, "-c", code, DEMO], check=True, cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    _current(ROOT / "README.md", f"$ analyze {DEMO}\n{ended.stdout}", "sample")


def _summary(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        first = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    else:
        first = text.split("\n")[0].lstrip("# ") if text.startswith("#") else ""
    return re.split(r"(?<=[a-z`)]{2})\. ", first)[0].removesuffix(".")


#: What has no docstring of its own to quote.
_STATIC = {
    "diagnosis-v1.schema.json": "The JSON Schema of a report",
    "rules/": "One fault a rule: NAME.toml (meaning, thresholds with reasons), NAME.sql (the query), NAME.cases.toml (its proof)",
    "fixtures/": "Recorded and generated traces, and their generators",
    "benchmarks/": "One script a figure",
    "tests/": "The tests; golden/ holds one report per schema number",
    "docs/": "cli.md, formats.md, diagnosis.md, and the contracts of reports, rules, and traces",
    ".ci/run": "The gate: fresh copy, the README's test command, lint, types",
    "constraints.txt": "The torch that proxies will be checked with",
}


def _tree() -> str:
    lines = []

    def add(depth: int, name: str, text: str) -> None:
        lines.append(f"{'  ' * depth + name:<32}{text}".rstrip())

    def folder(path: Path, depth: int) -> None:
        add(depth, path.name + "/", _summary(path / "__init__.py"))
        entries = sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
        for entry in entries:
            if entry.is_dir() and (entry / "__init__.py").exists():
                folder(entry, depth + 1)
            elif entry.suffix in (".py", ".toml", ".json") and entry.name != "__init__.py":
                add(depth + 1, entry.name, _STATIC.get(entry.name) or _summary(entry))

    folder(ROOT / "analyzer", 0)
    folder(ROOT / "proxy", 0)
    for name, text in _STATIC.items():
        if not name.endswith(".json"):
            add(0, name, text)
    return "\n".join(lines) + "\n"


def test_the_readme_tree_is_current_and_every_file_says_what_it_is() -> None:
    tree = _tree()
    assert [line for line in tree.splitlines() if len(line.split(maxsplit=1)) < 2] == []
    _current(ROOT / "README.md", tree, "tree")


def _help(command: click.Command, name: str, parent: click.Context | None = None) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=80, max_content_width=80)
    found = [f"## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            member = command.get_command(context, inner)
            assert member, inner
            found += _help(member, inner, context)
    return found


def test_the_help_of_every_command_is_in_docs_cli() -> None:
    head = "# Commands\n\nThe `--help` of every command, pasted by tests/test_docs.py. `analyze` is `faultproxy analyze`. [report.md](report.md) has the fields of `--format json`.\n"
    _current(ROOT / "docs" / "cli.md", "\n".join([head, *_help(analyze, "analyze"), *_help(faultproxy, "faultproxy")]))


# -- the README -------------------------------------------------------------------------------------------------------
def test_the_catalogue_page_is_every_rule_as_it_is() -> None:
    """One article a rule; its example is what the rule says of the first case that states its text."""
    examples: dict[str, str] = {}
    for case in rulecases.all_cases():
        if case.verdict == "fires" and "text" in case.body:
            examples.setdefault(case.rule.id, case.body["text"])
    _current(ROOT / "docs" / "catalogue.md", page(catalogue.catalogue(), examples))


def test_the_readme_runs_the_sample_and_the_tests_in_one_command_each() -> None:
    for marker in ("main", "test"):
        assert _block(README, marker).count("\n") == 1
    assert _block(README, "main").endswith(f".venv/bin/analyze {DEMO}\n")
    assert _block(README, "test").endswith("-m pytest\n")


def test_the_gate_finds_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    extract = next(line for line in script.splitlines() if line.startswith("command=$(awk"))
    ended = subprocess.run(
        ["bash", "-c", f'{extract}; printf "%s\\n" "$command"'], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.stdout == _block(README, "test")


def test_every_exit_code_is_in_the_readme_and_the_help() -> None:
    for code in (0, 1, 2, 3, 130):
        assert re.search(rf"^\| {code} \|", README, re.MULTILINE) and re.search(
            rf"^\s*{code}  ", analyze.help or "", re.MULTILINE
        )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])  # fmt: skip
def test_links_lead_somewhere_and_no_path_is_of_one_machine(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / name).parent / target).exists(), target
    assert re.findall(r"(?<![\w.])/(?:home|root|work|tmp|Users)/\S+", text) == []


# -- docs/formats.md --------------------------------------------------------------------------------------------------
def test_every_format_and_every_encoding_is_documented() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    files, lines = ingest._known()
    assert [f.name for f in (*files, *lines) if f"`{f.name}`" not in text] == []
    assert [f"E{n}" for n in range(1, 22) if f"| E{n} |" not in text] == []


# -- docs/report.md ---------------------------------------------------------------------------------------------------
def test_every_field_of_the_report_is_on_its_page_and_described_in_the_schema() -> None:
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    schema = json.loads((ROOT / "analyzer" / "report" / "diagnosis-v1.schema.json").read_text(encoding="utf-8"))

    def fields(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in node.get("properties", {}).items():
            yield name, field
            yield from fields(field)
            yield from fields(field.get("items", {}))

    held = list(fields(schema))
    assert len(held) > 70
    assert [name for name, _ in held if f"`{name}`" not in page] == []
    assert [name for name, field in held if not field.get("description")] == []
    optional = {*schema["properties"]["evidence"]["items"]["properties"]}
    optional -= {*schema["properties"]["evidence"]["items"]["required"]}
    assert optional == {name for name in optional if re.search(rf"^\| `{name}` \|.*\*added\*", page, re.MULTILINE)}


# -- references -------------------------------------------------------------------------------------------------------
#: Working papers that readers of this repository do not have.
_OUTSIDE = re.compile(r"\b(?:(?:SCIENCE|DESIGN|PEERS|STYLE|LAB)\b|FORMATS(?:\.md\b|,? \d))")


def test_no_file_cites_a_page_that_is_not_here() -> None:
    shipped = [
        path
        for top in ("analyzer", "benchmarks", "docs", "fixtures", "proxy", "rules", "src", ".ci", "tests")
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in (".py", ".toml", ".sql", ".md", ".json", "")
        and path.is_file()
        and path.name != "test_docs.py"
    ]
    shipped += [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    assert len(shipped) > 200
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in shipped
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1)
        if _OUTSIDE.search(line)
    ]
    assert found == []


# -- docs/diagnosis.md ------------------------------------------------------------------------------------------------
def test_the_example_worked_by_hand_is_what_the_code_computes() -> None:
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    trace = Trace("example", sources=[Source("run.log", "megatron-text", "0" * 64)])
    trace.frame.steps, trace.frame.segments = list(range(1, 241)), [0] * 240
    trace.frame.columns[Key("loss")] = Column(Key("loss"), "lm loss", [2.0] * 240)
    fall = Finding(
        "numerics/a", "loss_scale_collapse", "root", 0.9, "a", step_start=228, votes={"precision": 0.8},
        causes={"precision": 0.6, "operator": 0.2, "hyperparameter": 0.2},
    )  # fmt: skip
    ordinary = Finding(
        "numerics/b", None, "support", 0.5, "b", step_start=228, votes={"precision": 0.5}, causes={"precision": 1.0},
        supports=("loss_scale_collapse",),
    )  # fmt: skip
    norm = Finding("numerics/c", "nonfinite_gradient", "root", 0.8, "c", step_start=231, causes={"operator": 1.0})
    rule = catalogue.catalogue()[0]
    found = fuse(trace, [Outcome(rule, "fires", (fall, ordinary, norm))])
    assert (found.failure_type, found.factor, found.first_bad_step) == ("loss_scale_collapse", "precision", 228)
    assert [probability for _, _, probability in found.candidates] == [0.9391, 0.0457]
    assert found.factor_confidence == 0.79
    assert dict(found.causes) == {"precision": 0.6933, "operator": 0.12, "hyperparameter": 0.12, "unknown": 0.0667}
    for number in (0.9391, 0.0457, 0.79, 0.6933, 0.12, 0.0667):
        assert f"**{number}**" in text


# -- CONTRIBUTING.md --------------------------------------------------------------------------------------------------
def _example(name: str) -> str:
    """The block after a line that names a file."""
    found = re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]


def test_the_format_example_reads_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme.py").write_text(_example("analyzer/ingest/formats/acme.py"))
    spec = importlib.util.spec_from_file_location("acme", tmp_path / "acme.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files, lines = ingest._known()
    monkeypatch.setattr(ingest, "_known", lambda: (files, [module.LINE, *lines]))
    log = tmp_path / "acme.log"
    log.write_text("[acme] it=12 loss=0.31 grad_norm=nan\nchatter\n[acme] it=13 loss=0.32 grad_norm=-\n")
    trace = ingest.read([str(log)])[0]
    assert (trace.frame.steps, trace.facts["framework"], trace.sources[0].format) == (
        [12, 13],
        "acme-rl",
        "acme-console",
    )
    column = trace.frame.columns[Key("grad_norm")]
    assert column.states == {0: NAN, 1: ABSENT} and trace.frame.columns[Key("loss")].values == [0.31, 0.32]


def test_the_signal_example_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```toml\n(\[kv_cache_share\].*?)```", CONTRIBUTING, re.DOTALL)
    assert block
    merged = vocabulary.signals() | tomllib.loads(block[1])
    monkeypatch.setattr(vocabulary, "signals", lambda: merged)
    monkeypatch.setattr(vocabulary, "_tables", vocabulary._tables.__wrapped__)
    for key in ("rollout/kv_cache_share", "acme/kv_hit"):
        assert vocabulary._lookup(key) == vocabulary.Resolved(Key("kv_cache_share"), 1.0, ["rollout/kv_cache_share", "acme/kv_hit"].index(key))  # fmt: skip


def test_the_rule_example_passes_its_own_cases() -> None:
    rulecases: Any = pytest.importorskip("faultproxy.analyzer.rulecases")
    base = "rules/policy/reward_constant"
    rule = catalogue._rule("policy", "reward_constant", _example(f"{base}.toml"), _example(f"{base}.sql"))
    cases = tomllib.loads(_example(f"{base}.cases.toml"))
    assert set(cases) == {"fires", "clean", "not_applicable"}
    for verdict, entries in cases.items():
        for entry in entries:
            assert rulecases.problem(rulecases.Case(rule, verdict, entry["name"], entry)) is None, entry["name"]


def test_every_command_in_the_readme_exists() -> None:
    context = click.Context(faultproxy)
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE))
    for words in re.findall(r"^faultproxy ((?:[a-z]+ ?)+)", commands, re.MULTILINE):
        command: click.Command | None = faultproxy
        for word in words.split()[: 2 if words.startswith("rules") else 1]:
            assert isinstance(command, click.Group)
            command = command.get_command(context, word)
        assert command is not None, words
