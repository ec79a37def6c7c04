"""What the hook is asked, and what a rerun leaves alone: exit codes, lakes, several runs, an earlier diagnosis."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultproxy.analyzer.hook.run import run

sys.path.insert(0, str(Path(__file__).parent))
from hooks import LOG, ask, call, failed_job, fake, report, signals_kept


@pytest.fixture(autouse=True)
def _signals_stay_ours() -> Iterator[None]:
    yield from signals_kept()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return failed_job(tmp_path / "job-4711")


@pytest.mark.parametrize("before", ["failed", "healthy", "inconclusive", "another job", "no report"])
def test_a_hook_that_did_not_finish_keeps_the_diagnosis_that_stands(job: Path, before: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    stays = before in ("failed", "healthy")
    found = {"schema": 1, "verdict": before if stays else "healthy", "confidence": 0.5, "warnings": [], "causes": [], "run": {"steps": 9, "facts": {"job": {"id": "12" if before == "another job" else job.name}}}}  # fmt: skip
    found |= {"failure_type": "crash", "factor": "none", "path": [], "first_bad_step": 3, "rank": None, "layer": None, "expert": None}  # fmt: skip
    text = "[1]" if before == "no report" else json.dumps(found | ({"verdict": before} if before == "inconclusive" else {}))  # fmt: skip
    (job / "faultproxy").mkdir()
    (job / "faultproxy" / "diagnosis.json").write_text(text)
    asked = fake(monkeypatch, reason="too long", limited=True)
    assert run(ask(job, lake="lake")) == 3
    said = capsys.readouterr().err
    assert ((job / "faultproxy" / "diagnosis.json").read_text() == text) is stays
    assert (f"an earlier diagnosis of this job stays: {before.upper()}" in said) is stays and said.count("\n") == 1
    assert len(asked) == (2 if stays else 3)  # no publication, so nothing for the lake


def test_a_lake_may_be_relative_or_in_the_environment_and_its_trouble_has_no_class(job: Path, tmp_path: Path) -> None:
    assert call("--job-dir", str(job), "--lake", "lake", cwd=tmp_path).returncode == 0
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
    assert call("--job-dir", str(job), cwd=tmp_path, env={**os.environ, "FAULTPROXY_LAKE": "other"}).returncode == 0
    assert len(list((tmp_path / "other").rglob("*.parquet"))) == 1
    ended = call("--job-dir", str(job), "--lake", str(job / "run.log" / "x"), "--strict")
    assert ended.returncode == 2 and "lake: " in ended.stderr and "Error" not in ended.stderr


@pytest.mark.parametrize(("given", "kept"), [("abc", None), ("300", None), ("-9", -9), ("255", 255), ("", None)])
def test_an_exit_code_that_is_none_is_said_and_left_out(job: Path, given: str, kept: int | None) -> None:
    ended = call("--job-dir", str(job), "--exit-code", given)
    found = report(job / "faultproxy")
    assert (found["failure_type"], found["run"]["facts"]["job"]["exit_code"]) == ("nonfinite_loss", kept)
    bad = bool(given) and kept is None
    assert (f"--exit-code {given} is no exit code" in ended.stderr) is bad is any("is no exit code" in warning for warning in found["warnings"])  # fmt: skip


def test_a_ticket_of_several_runs_has_a_line_for_each_other_that_failed(tmp_path: Path) -> None:
    for name in ("left", "right", "up"):
        (tmp_path / "job" / name).mkdir(parents=True)
        (tmp_path / "job" / name / f"{name}.log").write_text(LOG.replace("nan", "0.1") if name == "up" else LOG)
    call("--job-dir", str(tmp_path / "job"))
    lines = (tmp_path / "job" / "faultproxy" / "ticket.md").read_text().split("\n")
    wanted = f"- Also failed: job/right: nonfinite_loss, first bad step 41, {tmp_path}/job/right/right.log"
    assert [line.replace("\\", "") for line in lines if "Also failed" in line] == [wanted]
