"""The hook fails no platform: exit 0, one line, whole files, and a report that says why where there is no diagnosis."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.hook import outputs
from faultproxy.analyzer.hook import run as module
from faultproxy.analyzer.hook.request import Request
from faultproxy.analyzer.hook.run import run

sys.path.insert(0, str(Path(__file__).parent))
from hooks import FILES, LOG, ask, call, command, failed_job, fake, report, signals_kept


@pytest.fixture(autouse=True)
def _signals_stay_ours() -> Iterator[None]:
    yield from signals_kept()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return failed_job(tmp_path / "job-4711")


# -- the whole way ----------------------------------------------------------------------------------------------------
def test_a_job_is_diagnosed_once_and_a_second_run_under_another_clock_changes_no_byte(job: Path) -> None:
    first = call("--job-dir", str(job), "--exit-code", "1", "--job-id", "4711")
    assert (first.returncode, first.stdout, first.stderr.count("\n")) == (0, "", 1)
    assert "FAILED  nonfinite_loss, factor " in first.stderr and "first bad step 41: " in first.stderr
    out = job / "faultproxy"
    held = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(held) == FILES
    assert report(out)["run"]["facts"]["job"] == {"id": "4711", "exit_code": 1}
    repeated = f"faultproxy hook run --job-dir {job} --exit-code 1 --job-id 4711"
    assert report(out)["reproduce"][0]["command"] == repeated and repeated in (out / "ticket.md").read_text()
    (out / ".report.html.ab12").write_text("what a killed hook left")
    os.utime(job / "run.log", (1, 1))
    assert call("--job-dir", str(job), "--exit-code", "1", "--job-id", "4711").returncode == 0
    assert held == {path.name: path.read_bytes() for path in out.iterdir()}


def test_sigterm_ends_the_hook_at_once_with_a_report_and_exit_0(job: Path, tmp_path: Path) -> None:
    slow = tmp_path / "site" / "sitecustomize.py"
    slow.parent.mkdir()
    slow.write_text("import sys, time\nif 'analysis' in sys.orig_argv: time.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(slow.parent)}
    child = subprocess.Popen(command("--job-dir", str(job)), stderr=subprocess.PIPE, text=True, env=environment)
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    while not (grand := children.read_text().split()):
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 0 and "stopped by SIGTERM" in said and said.count("\n") == 1
    assert report(job / "faultproxy")["verdict"] == "inconclusive"
    assert not Path(f"/proc/{grand[0]}").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--time-limit", "0.2"], "longer than its time limit"), (["--memory-limit", "20"], "memory")],
    ids=["time", "memory"],
)
def test_a_limit_ends_the_analysis_and_is_said(job: Path, options: list[str], reason: str) -> None:
    ended = call("--job-dir", str(job), *options)
    found = report(job / "faultproxy")
    assert (ended.returncode, found["verdict"]) == (0, "inconclusive")
    assert reason in found["warnings"][0] and reason in ended.stderr and "the analysis did not finish" in ended.stderr
    assert "(0 s)" not in ended.stderr and f"--time-limit {options[1] if '-t' in options[0] else 120} s" in ended.stderr
    if reason != "memory":  # that limit holds for the ticket too
        assert "the analysis did not finish" in (job / "faultproxy" / "ticket.md").read_text().split("\n")[2]


def test_a_closed_stderr_changes_nothing(job: Path) -> None:
    script = 'exec "$@" 2>&-'
    assert subprocess.run(["sh", "-c", script, "sh", *command("--job-dir", str(job))], check=False).returncode == 0
    assert report(job / "faultproxy")["failure_type"] == "nonfinite_loss"


def test_a_full_disk_costs_the_files_and_nothing_else(job: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    ended = call("--job-dir", str(job), preexec_fn=full)
    assert ended.returncode == 0 and "FAILED  nonfinite_loss" in ended.stderr
    assert "no file could be written" in ended.stderr and "File too large" in ended.stderr
    assert [path.name for path in job.rglob("*") if path.is_file()] == ["run.log"]


def test_killed_at_any_moment_no_file_is_half_written(job: Path) -> None:
    call("--job-dir", str(job))
    out, draw = job / "faultproxy", random.Random(4)
    held = {path.name: path.read_bytes() for path in out.iterdir()}
    for _ in range(4):
        for path in out.iterdir():
            path.unlink()
        child = subprocess.Popen(command("--job-dir", str(job)), stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.1, 1.2))
        child.kill()
        child.wait()
        for path in out.iterdir():
            assert path.name.startswith(".") or path.read_bytes() == held[path.name]


# -- conditions -------------------------------------------------------------------------------------------------------
def _missing(job: Path) -> None:
    (job / "run.log").unlink()
    job.rmdir()


def _empty(job: Path) -> None:
    (job / "run.log").unlink()


def _foreign(job: Path) -> None:
    (job / "run.log").write_bytes(b"\0\1\2" * 5000)


@pytest.mark.parametrize("spoil", [_missing, _empty, _foreign])
def test_nothing_to_read_is_inconclusive_with_the_reason(job: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str], schema_problems: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    spoil(job)
    out = tmp_path / "out"
    code = run(Request(str(job), str(out)))
    found = report(out)
    assert (code, found["verdict"]) == (2, "inconclusive")
    assert found["warnings"][0].startswith("no diagnosis: ") and schema_problems(found) == []
    assert capsys.readouterr().err.count("\n") == 1


def test_names_of_any_bytes_are_harmless(tmp_path: Path, schema_problems: Any) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/job \xff\x1b[31m"))
    folder.mkdir()
    (folder / os.fsdecode(b"run \xfe\x1b[2J.log")).write_text(LOG)
    (folder / os.fsdecode(b"\xfd.pt")).write_text("weights")
    ended = call("--job-dir", str(folder), "--job-id", "\x1b]0;owned\x07")
    found = report(folder / "faultproxy")
    assert (ended.returncode, found["failure_type"], schema_problems(found)) == (0, "nonfinite_loss", [])
    assert "\x1b" not in ended.stderr and ended.stderr.isascii()
    orjson.loads((folder / "faultproxy" / "diagnosis.json").read_bytes())
    assert {path.name for path in (folder / "faultproxy").iterdir()} == FILES


def test_a_target_that_cannot_be_written_gives_way_to_the_temporary_folder(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    fake(monkeypatch, reason="nothing was tried")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    run(Request(str(job), str(job / "run.log" / "below a file")))
    (place,) = (tmp_path / "tmp").glob("faultproxy-*/job-4711-*")
    assert "cannot be written" in report(place)["warnings"][-1]
    assert str(place) in capsys.readouterr().err


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"faultproxy-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="belongs to somebody else"):
        outputs.write(tmp_path / f"faultproxy-{os.getuid()}" / "job", {}, lambda lost: b"{}", ours=True)


def test_what_another_hook_is_writing_is_left_alone(tmp_path: Path) -> None:
    half = tmp_path / ".diagnosis.json.ab12"
    half.write_text("{")
    with outputs._locked(tmp_path):  # removes it: nobody else was there
        half.write_text("{")
        outputs.write(tmp_path, {}, lambda lost: b"{}")
        assert half.exists()
    outputs.write(tmp_path, {}, lambda lost: b"{}")
    assert not half.exists()


def test_what_a_job_put_in_the_place_of_a_report_is_replaced_unread(tmp_path: Path) -> None:
    with (tmp_path / outputs.REPORT).open("wb") as stream:
        stream.truncate(1 << 42)
    (tmp_path / "report.html").symlink_to("/dev/zero")
    (tmp_path / "ticket.md").mkdir()
    lost = outputs.write(tmp_path, {"report.html": "<p>", "ticket.md": "#"}, lambda lost: json.dumps(lost).encode())
    assert json.loads((tmp_path / outputs.REPORT).read_text()) == lost and "ticket.md" in lost[0]
    assert (tmp_path / "report.html").read_text() == "<p>" and not (tmp_path / "report.html").is_symlink()


def test_the_first_limit_is_followed_by_a_try_that_reads_less(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch, reason="too long", limited=True)
    run(ask(job))
    assert [request.budget for request in asked] == [128 << 20, 8 << 20, 128 << 20]


def test_a_diagnosis_outlives_what_comes_after_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = {"verdict": "healthy", "confidence": 0.5, "warnings": [], "run": {"steps": 9}}
    done = {"reports": [healthy], "report.html": "<p>"}
    fake(monkeypatch, results=done, reason="the analysis took longer than its time limit", lost={"ticket.md": "no"})
    assert run(ask(job)) == 0
    assert (job / "faultproxy" / "report.html").read_text() == "<p>"
    warnings = report(job / "faultproxy")["warnings"]
    assert "the diagnosis was complete by then" in warnings[0] and "ticket.md: no" in warnings


def test_a_bug_of_our_own_is_one_line(job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(module, "supervise", lambda *_: 1 / 0)
    assert run(ask(job)) == 3
    assert capfd.readouterr().err == "faultproxy hook: no report (ZeroDivisionError: division by zero)\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--nope"], 0),
        (["--time-limit", "soon"], 0),
        (["--strict"], 2),
        (["--time-limit", "-1", "--strict"], 2),
    ],
)
def test_wrong_options_fail_only_where_it_was_asked(options: list[str], code: int) -> None:
    ended = call(*options)
    assert ended.returncode == code and ended.stderr


@pytest.mark.parametrize(("exit_code", "kind"), [(137, "crash"), (-9, "crash"), (143, "healthy"), (1, "healthy")])
def test_a_signal_is_evidence_where_the_log_says_nothing(tmp_path: Path, exit_code: int, kind: str) -> None:
    from faultproxy.analyzer.hook.analyse import analyse

    (tmp_path / "run.log").write_text(LOG.replace("nan", "0.1"))
    (found,) = dict(analyse(Request(str(tmp_path), str(tmp_path / "out"), exit_code)))["reports"]
    assert found["failure_type"] == kind
    assert any(f"exit code {exit_code}" in text for text in (*found["warnings"], *(e["statement"] for e in found["evidence"])))  # fmt: skip
