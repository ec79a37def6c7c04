"""Huge logs: stretches at line breaks, and an onset found by offset that is the one the whole log shows."""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer import ingest
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.hook import analyse
from faultproxy.analyzer.hook.request import Request
from faultproxy.analyzer.ingest import Run, huge, read
from faultproxy.analyzer.ingest.huge import Sampled, is_large_text
from faultproxy.analyzer.ingest.source import File

sys.path.insert(0, str(Path(__file__).parent.parent / "fixtures"))

from generators import curves, faults, jobs


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds at which a log of one megabyte is huge."""
    for module, name, value in ((analyse, "LARGE", 200_000), (analyse, "LEAST", 100_000), (analyse, "SEARCH_ENDS", 60_000), (analyse, "ENDS", 90_000), (huge, "WINDOWS", 12), (huge, "WHOLE", 60_000), (huge, "AROUND", 60), (huge, "SPARSE", 8_000), (huge, "REACH", 60_000), (huge, "SCAN", 90_000), (huge, "LONG_ENDS", 110_000)):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def log(path: Path, onset: int, fault: str = "nonfinite", form: str = "verl-console", size: int = 1_100_000, noise: str = "") -> Path:  # fmt: skip
    good = curves.rl(7, 1000, growth=1.0, gain=0.0)[500:]
    bad = [dict(row) for row in good]
    bad = faults.nonfinite(bad, 0) if fault == "nonfinite" else faults.change(bad, 0, entropy=lambda x, n: x * 0.01)
    jobs.huge(path, good, bad, onset, size, form, noise)
    return path


@pytest.mark.parametrize(
    ("form", "fault", "onset"),
    [("verl-console", "nonfinite", 333), ("verl-jsonl", "nonfinite", 40), ("verl-jsonl", "nonfinite", 690), ("verl-jsonl", "entropy", 501)],
    ids=["a console", "in the head", "in the tail", "a level"],
)  # fmt: skip
def test_the_onset_is_the_one_that_the_whole_log_shows(tmp_path: Path, form: str, fault: str, onset: int) -> None:
    path = log(tmp_path / "run.log", onset, fault, form)
    whole = diagnose(read([str(path)])[0])
    (file,), _ = analyse.opened([path], 1)
    assert isinstance(file, Sampled)
    found = diagnose(analyse.read_job(Run("job", [file], tmp_path), {}, time.monotonic() + 60))
    assert (found.failure_type, found.factor, found.first_bad_step) == (whole.failure_type, whole.factor, whole.first_bad_step)  # fmt: skip
    assert found.first_bad_step == onset
    assert sum(end - start for start, end in file.spans) < 0.6 * file.total


def test_rows_far_apart_are_looked_for_by_what_they_share(tmp_path: Path) -> None:
    path = log(tmp_path / "run.log", 61, size=3_000_000, noise=jobs.CHATTER[:20_000])
    whole = diagnose(read([str(path)])[0])
    (file,), _ = analyse.opened([path], 1)
    assert isinstance(file, Sampled)
    found = diagnose(analyse.read_job(Run("job", [file], tmp_path), {}, time.monotonic() + 60))
    assert (found.failure_type, found.first_bad_step) == (whole.failure_type, 61)
    assert file.marker and sum(end - start for start, end in file.spans) < 0.3 * file.total
    assert "only metric rows were looked for" in file.searched()


def test_a_healthy_log_is_healthy_and_what_was_not_searched_is_said(tmp_path: Path) -> None:
    log(tmp_path / "run.log", 10**9, form="verl-jsonl")
    (reports, *_) = [value for name, value in analyse.analyse(Request(str(tmp_path), str(tmp_path / "o"))) if name == "reports"]  # fmt: skip
    assert reports[0]["verdict"] == "healthy" and reports[0]["run"]["sources"][0]["truncated"]
    assert any("were not searched (bytes " in warning for warning in reports[0]["warnings"])


def test_no_line_number_is_shown_that_counts_stretches(tmp_path: Path) -> None:
    log(tmp_path / "run.log", 444, form="verl-jsonl")
    reports = dict(analyse.analyse(Request(str(tmp_path), str(tmp_path / "o"))))["reports"]
    assert reports[0]["first_bad_step"] == 444
    assert [piece["line"] for piece in reports[0]["evidence"] if piece["step_start"] == 444] != []
    assert {piece["line"] for piece in reports[0]["evidence"] if (piece["step_start"] or 0) > 200} == {None}


def test_where_rows_are_counted_no_step_is_claimed(tmp_path: Path) -> None:
    rows = [f"{{'loss': {2 + n % 7 / 100}, 'grad_norm': {'nan' if n > 3000 else 1.0 + n % 3}, 'epoch': 0.1}}\n" for n in range(6_000)]  # fmt: skip
    (tmp_path / "train.log").write_text("".join(rows))
    reports = dict(analyse.analyse(Request(str(tmp_path), str(tmp_path / "o"))))["reports"]
    assert reports[0]["verdict"] == "failed" and reports[0]["run"]["facts"]["steps_are_rows"]
    assert reports[0]["first_bad_step"] is None


def test_stretches_are_whole_lines_and_never_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"%d %s\n" % (n, b"x" * (n % 90)) for n in range(60_000)))
    file = Sampled(path, 50_000)
    for start in (70_000, 69_000, 900_000, 2_000_000):
        file.add(start, 5_000)
    text = path.read_bytes()
    assert all(a < b for span, after in zip(file.spans, file.spans[1:], strict=False) for a, b in [(span[1], after[0])])
    assert all(text[start - 1 : start] in (b"", b"\n") and text[end - 1 : end] == b"\n" for start, end in file.spans)
    assert b"".join(file.chunks()) == b"".join(text[start:end] for start, end in file.spans)
    assert sum(e - s for s, e in (*file.spans, *file.unread())) == file.total
    assert not file.add(file.spans[0][0], 10)


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 9_000_000)
    assert sum(end - start for start, end in Sampled(path, 1000, 2).spans) <= path.stat().st_size


@pytest.mark.parametrize(
    ("head", "large"),
    [(b"step:1 - a:1\n", True), (b'{"step": 1, "data": {}}\n', True), (b"[2026-11-30 10:00] hello\n", True), (b'{\n  "a": [\n', False), (b"[\n {}", False), (b'[{"step": 1},\n', False), (b"PAR1", False), (gzip.compress(b"x"), False), (b"\xff\xfea\0", False)],
    ids=["console", "JSON lines", "a clock", "a document", "a list", "a list on one line", "Parquet", "gzip", "UTF-16"],
)  # fmt: skip
def test_only_files_made_of_lines_are_read_in_stretches(tmp_path: Path, head: bytes, large: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(head + b"x: 1\n" * 1000)
    assert is_large_text(File(path), 1000) == large
    assert not is_large_text(File(path), 10_000)


def test_what_can_only_be_read_whole_and_is_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 2000, 0))
    files, notes = analyse.opened([path], 1000)
    assert files == [] and "can only be read whole" in notes[0]


def test_a_file_that_cannot_be_opened_or_breaks_its_reader_costs_that_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    names = [log(tmp_path / "run.log", 333, size=90_000), tmp_path / "odd.log", tmp_path / "gone.log"]
    names[1].write_text("odd")
    real = ingest.read_file

    def breaks(file: File, index: int) -> Any:
        return real(file, index) if file.path != names[1] else 1 / 0

    monkeypatch.setattr(ingest, "read_file", breaks)
    monkeypatch.setattr(analyse, "read_file", breaks)
    files, _ = analyse.opened(names, 1000)
    trace = analyse.read_job(Run("job", files, tmp_path), {}, time.monotonic() + 60)
    assert [source.path for source in trace.sources] == [str(names[0])]
    said = "\n".join(trace.warnings)
    assert "odd.log: left out: its reader failed (ZeroDivisionError" in said and "gone.log: cannot be opened" in said
