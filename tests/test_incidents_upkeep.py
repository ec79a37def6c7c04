"""Compaction of a lake: nothing is lost or counted twice, whoever writes and reads beside it and wherever it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.incidents import query
from faultproxy.analyzer.incidents.lake import _merge, compact
from faultproxy.analyzer.incidents.store import Store, open_store

sys.path.insert(0, str(Path(__file__).parent))
from lakes import add, rows


def test_compaction_keeps_every_diagnosis_and_what_is_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in range(5):
        add(tmp_path, job=str(job))
    add(tmp_path, job="0", failure_type="crash", family="process")
    put, late = Store.put, []

    def put_beside_a_writer(self: Store, name: str, data: bytes) -> str:
        monkeypatch.setattr(Store, "put", put)
        late.append(add(tmp_path, job="late"))
        return put(self, name, data)

    monkeypatch.setattr(Store, "put", put_beside_a_writer)
    assert compact(open_store(str(tmp_path))) == (6, 1, [])
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {
        Path(late[0]).name,
        *(p.name for p in tmp_path.rglob("merged-*")),
    }
    assert sorted(row["job_id"] for row in rows(tmp_path)) == ["0", "1", "2", "3", "4", "late"]
    assert [row["failure_type"] for row in rows(tmp_path, job="0")] == ["crash"]
    assert compact(open_store(str(tmp_path))) == (2, 1, []) and compact(open_store(str(tmp_path))) == (
        0,
        0,
        [],
    )


def test_a_diagnosis_that_was_made_again_stays_the_newest_when_it_is_merged(tmp_path: Path) -> None:
    add(tmp_path)
    add(tmp_path, failure_type="crash", family="process")
    compact(open_store(str(tmp_path)))
    again = Path(add(tmp_path))
    names = [f"incidents/{again.parent.name}/{path.name}" for path in sorted(again.parent.iterdir(), reverse=True)]
    _merge(open_store(str(tmp_path)), f"incidents/{again.parent.name}", names, [])
    assert [row["failure_type"] for row in rows(tmp_path)] == ["nonfinite_loss"]


def test_what_may_not_be_touched_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    add(tmp_path)
    for call in ("scandir", "unlink"):
        with monkeypatch.context() as patched, pytest.raises(InputError, match="Permission denied"):
            patched.setattr(os, call, refuse)
            store = open_store(str(tmp_path))
            store.remove(store.files("incidents/day=2026-03-04")[0])


def test_a_compaction_killed_before_it_removes_its_files_counts_nothing_twice(tmp_path: Path) -> None:
    files = [Path(add(tmp_path, job=str(job))) for job in range(3)]
    copies = {path: path.read_bytes() for path in files}
    compact(open_store(str(tmp_path)))
    for path, data in copies.items():
        path.write_bytes(data)
    (files[0].parent / ".new.parquet.x1").touch()
    (files[0].parent / ".old.parquet.x2").touch()
    os.utime(files[0].parent / ".old.parquet.x2", (1, 1))
    assert len(rows(tmp_path)) == 3
    compact(open_store(str(tmp_path)))
    assert len(rows(tmp_path)) == 3 and len(list(tmp_path.rglob("*.parquet"))) == 1
    assert [path.name for path in tmp_path.rglob(".*")] == [".new.parquet.x1"]


def test_a_reader_that_a_compaction_overtakes_finds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in range(4):
        add(tmp_path, job=str(job))
    real = Store.files

    def overtaken(self: Store, folder: str) -> list[str]:
        names = real(self, folder)
        if folder != "labels" and len(names) == 4:
            monkeypatch.setattr(Store, "files", real)
            compact(self)
        return names

    monkeypatch.setattr(Store, "files", overtaken)
    lake = query.open_lake(open_store(str(tmp_path)))
    assert (query.stats(lake, {})["incidents"], lake.skipped) == (4, [])


def test_an_incident_is_shown_from_where_a_compaction_has_moved_it(tmp_path: Path) -> None:
    for job in ("1", "2"):
        add(tmp_path, job=job)
    lake = query.open_lake(open_store(str(tmp_path)))
    compact(open_store(str(tmp_path)))
    assert [row["run"] for row in query.listed(lake, {}, 9)] == ["run.log"] * 2
    next(tmp_path.rglob("merged-*")).write_bytes(b"x" * 500)
    with pytest.raises(InputError, match="is torn"):
        query.listed(lake, {}, 9)
