"""The incident lake: whole files or none, one incident whatever is rerun, labels that stay, and readers beside compaction."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.cli import main
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.incidents import query
from faultproxy.analyzer.incidents.lake import append, compact
from faultproxy.analyzer.incidents.store import open_store

sys.path.insert(0, str(Path(__file__).parent))
from lakes import GOLDEN, NOON, REPORT, add, rows

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`faultproxy incidents ARGUMENTS --lake LAKE`: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["faultproxy", "incidents", *arguments, "--lake", str(tmp_path / "lake")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


# -- writing ----------------------------------------------------------------------------------------------------------
def test_a_rerun_adds_nothing_and_a_newer_diagnosis_takes_the_place_of_the_older(tmp_path: Path) -> None:
    assert add(tmp_path) == add(tmp_path)
    assert Path(add(tmp_path)).parent.name == "day=2026-03-04"
    add(tmp_path, failure_type="crash", family="process")
    add(tmp_path, job="2")
    assert sorted((row["job_id"], row["failure_type"]) for row in rows(tmp_path)) == [
        ("1", "crash"),
        ("2", "nonfinite_loss"),
    ]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add(tmp_path, job=str(n)), range(160)))
    lake = query.open_lake(open_store(str(tmp_path)))
    assert (query.stats(lake, {})["incidents"], lake.skipped) == (160, [])


def test_a_killed_writer_leaves_nothing_torn(tmp_path: Path) -> None:
    code = f"""
import json, sys
from faultproxy.analyzer.incidents.lake import _merge, append, compact
report = json.load(open({str(GOLDEN)!r}))
for job in range(100000):
    append({str(tmp_path)!r}, report, {{"id": job}})
    print(job, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = [process.stdout.readline() for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    lake = query.open_lake(open_store(str(tmp_path)))
    assert lake.skipped == [] and {f"{row['job_id']}\n" for row in rows(tmp_path)} >= {
        line for line in said if line.endswith("\n")
    }


@pytest.mark.parametrize(
    "time", ["2026-03-04T13:00:00+01:00", "2026-03-04T12:00:00", 1772625600, datetime(2026, 3, 4, 12, tzinfo=UTC)]
)
def test_the_time_of_a_job_is_kept_in_utc(tmp_path: Path, time: Any) -> None:
    add(tmp_path, time=time)
    assert rows(tmp_path)[0]["time"].isoformat() == NOON


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    for time in ("soon", 1e300, [], "2026-13-01"):
        with pytest.raises(InputError, match="is no time"):
            add(tmp_path, time=time)


def test_a_lake_can_be_any_fsspec_url() -> None:
    fsspec = pytest.importorskip("fsspec")
    url = "memory://lake-of-a-test"
    for job in range(3):
        assert add(url, job=str(job)).startswith(url)
    assert compact(open_store(url)) == (3, 1, [])
    assert [row["job_id"] for row in rows(url, job="2")] == ["2"]
    fsspec.filesystem("memory").rm("/lake-of-a-test", recursive=True)


def test_a_url_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"pip install 'faultproxy\[lake\]'"):
        open_store("s3://bucket/lake")


# -- reading ----------------------------------------------------------------------------------------------------------
def test_a_torn_and_a_foreign_file_are_named_and_left_out(tmp_path: Path, run: Run) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lake = tmp_path / "lake"
    day = Path(add(lake)).parent
    (day / "a-torn.parquet").write_bytes(Path(add(lake, job="2")).read_bytes()[:-40])
    (day / "b-text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"id": [1], "loss": [2.0]}), day / "c-foreign.parquet")
    (day / ".half.parquet.x7").write_text("being written")
    (lake / "README.md").write_text("a note")
    code, out, err = run("stats", "--format", "json")
    assert (code, json.loads(out)["incidents"]) == (0, 2)
    assert [name in err for name in ("a-torn", "b-text", "c-foreign", ".half", "README")] == [True] * 3 + [False] * 2
    assert run("compact")[1] == "2 files merged into 1\n"
    assert json.loads(run("stats", "--format", "json")[1])["incidents"] == 2


def test_filters_and_counts(tmp_path: Path, run: Run) -> None:
    lake = tmp_path / "lake"
    for job, week in (("1", 4), ("2", 4), ("3", 18)):
        add(lake, job=job, time=f"2026-03-{week:02}")
    add(
        lake,
        job="4",
        time="2026-03-18",
        failure_type="crash",
        family="process",
        factor="none",
        warnings=['Segfault in Kernel "C:\\x"'],
    )
    add(lake, job="5", time="2026-03-18", verdict="healthy", failure_type="healthy", family="none", factor="none")

    def jobs(*arguments: str) -> set[str]:
        return {row["job_id"] for row in json.loads(run("list", "--format", "json", *arguments)[1])}

    assert jobs() == {"1", "2", "3", "4", "5"} and jobs("--job", "3") == {"3"} and jobs("--type", "crash") == {"4"}
    assert jobs("--since", "2026-03-05") == {"3", "4", "5"} and jobs("--until", "2026-03-18T00:00:00") == {"1", "2"}
    assert jobs("--text", 'segfault in KERNEL "c:\\X"') == {"4"} and jobs("--text", "absent") == set()
    assert jobs("--factor", "precision", "--since", "2026-03-05") == {"3"} and len(jobs("--limit", "2")) == 2
    found = json.loads(run("stats", "--format", "json")[1])
    assert (found["incidents"], found["failed"]) == (5, 4)
    assert found["by_type"] == [
        {"failure_type": "nonfinite_loss", "incidents": 3},
        {"failure_type": "crash", "incidents": 1},
    ]
    assert [(r["week"], r["incidents"]) for r in found["by_week"]] == [("2026-W10", 2), ("2026-W12", 2)]
    assert [(r["failure_type"], r["incidents"], r["jobs"]) for r in found["recurring"]] == [("nonfinite_loss", 3, 3)]
    assert "nonfinite_loss  3" in run("stats")[1] and "4 failed" in run("stats")[1]


def test_what_a_log_wrote_into_a_lake_cannot_move_the_cursor(tmp_path: Path, run: Run) -> None:
    run_ = REPORT["run"] | {"id": "\x1b[2J\u202eevil"}
    append(
        str(tmp_path / "lake"),
        REPORT | {"run": run_},
        {"id": "\x1b]0;x\udcff", "dir": "/x/\udcff", "gpus": float("nan")},
    )
    for out in (run("list")[1], run("show", rows(tmp_path / "lake")[0]["id"][:6])[1]):
        assert "\x1b" not in out and "\u202e" not in out and "x1b" in out


def test_bad_input_says_what_is_allowed(tmp_path: Path, run: Run) -> None:
    assert run("stats")[0] == 2
    for job in ("1", "2"):
        add(tmp_path / "lake", job=job)
    for arguments, why in ((("list", "--since", "soon"), "7d"), (("show", "zz"), "is no incident"), (("list", "--type", "boom"), "nonfinite_loss"), (("show", ""), "several")):  # fmt: skip
        code, out, err = run(*arguments)
        assert (code, out) == (2, "") and why in err


# -- labels -----------------------------------------------------------------------------------------------------------
def test_the_newest_label_counts_and_those_before_it_are_kept(tmp_path: Path, run: Run) -> None:
    add(tmp_path / "lake")
    key = rows(tmp_path / "lake")[0]["id"]
    label = ("label", key[:8], "--by", "mia")
    assert run(*label, "--type", "crash", "--fix", "new driver")[0] == 0
    assert run(*label, "--type", "data_fault", "--factor", "none", "--cause", "data")[0] == 0
    shown = json.loads(run("show", key, "--format", "json")[1])
    assert (shown["failure_type"], shown["found_type"], shown["cause"]) == ("data_fault", "nonfinite_loss", "data")
    assert [(entry["failure_type"], entry["fix"], entry["author"]) for entry in shown["labels"]] == [("data_fault", None, "mia"), ("crash", "new driver", "mia")]  # fmt: skip
    found = json.loads(run("stats", "--format", "json")[1])
    assert [found[name] for name in ("labelled", "type_right", "factor_labelled", "factor_right")] == [1, 0, 1, 0]
    assert "label" in run("list", "--type", "data_fault")[1] and "crash" in run("show", key)[1]
    assert run(*label, "--type", "healthy")[0] == 0 and json.loads(run("stats", "--format", "json")[1])["failed"] == 0


@pytest.mark.parametrize("verdict", [("--type", "boom"), ("--type", "crash", "--cause", "bad luck"), ("--type", "healthy", "--cause", "data"), ("--factor", "depth")])  # fmt: skip
def test_a_label_outside_the_taxonomy_is_refused(tmp_path: Path, run: Run, verdict: tuple[str, ...]) -> None:
    add(tmp_path / "lake")
    assert run("label", rows(tmp_path / "lake")[0]["id"], "--by", "mia", *verdict)[0] == 2
    assert not (tmp_path / "lake" / "labels").exists()


# -- upkeep -----------------------------------------------------------------------------------------------------------
def test_retention_lists_first_and_keeps_labels(tmp_path: Path, run: Run) -> None:
    lake = tmp_path / "lake"
    add(lake, job="old")
    add(lake, job="new", time=(datetime.now(UTC) - timedelta(days=3)).isoformat())
    key = next(row["id"] for row in rows(lake, job="old"))
    run("label", key, "--type", "crash", "--by", "mia")
    code, out, _ = run("compact", "--keep", "30")
    assert code == 0 and "would remove" in out and len(rows(lake)) == 2
    assert "removed" in run("compact", "--keep", "30", "--yes")[1]
    assert [row["job_id"] for row in rows(lake)] == ["new"] and len(list((lake / "labels").iterdir())) == 1
    shutil.rmtree(lake / "incidents")
    assert run("stats")[0] == 0
