"""A build that is killed goes on where its journal says, to the same bytes; nobody else builds there meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.build import Built, assemble, build
from faultproxy.proxy.build.work import Work
from faultproxy.proxy.checkpoint import read_checkpoint
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.source import open_source

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints


class Killed(BaseException):
    """Stands for SIGKILL in one process: nothing in the build catches it."""


def run(whole: Path, out: Path, recipe: Recipe, stop: int | None = None, **options: Any) -> Built:
    """A build that ends abruptly after `stop` bytes."""

    def progress(done: int, _: int) -> None:
        if stop is not None and done >= stop:
            raise Killed

    return build(read_checkpoint(open_source(str(whole))), recipe, out, progress=progress, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, of which each step is marked and moves a few bytes at most."""
    monkeypatch.setattr(assemble, "_MARK", 1)
    monkeypatch.setattr("faultproxy.proxy.build.copy._STEP", 100)
    monkeypatch.setattr("faultproxy.proxy.build.draw._DRAWN", 13)
    return checkpoints.moe(tmp_path / "whole", layers=3)


@pytest.mark.parametrize("weights", ["original", "random"])
@pytest.mark.parametrize("torn", [False, True])
def test_builds_killed_anywhere_end_in_the_same_bytes(tmp_path: Path, whole: Path, weights: str, torn: bool) -> None:
    recipe = Recipe(layers=(0, 2), experts=4, method="first", weights=weights)
    wanted = contents(run(whole, tmp_path / "uninterrupted", recipe).out)
    out, partial = tmp_path / "proxy", tmp_path / ".proxy.partial"
    size = sum(len(data) for name, data in wanted.items() if name.endswith(".safetensors"))
    for stop in range(100, size, size // 9):
        with pytest.raises(Killed):
            run(whole, out, recipe, stop)
        assert not out.exists()
        [shard] = (partial / "model").glob("*.safetensors")
        if torn:  # bytes that were not on disk, and half a line
            with shard.open("ab") as file:
                file.write(b"\xff" * 999)
            with (partial / "journal").open("ab") as file:
                file.write(b'{"model-0000')
        assert shard.stat().st_size >= stop
    made = run(whole, out, recipe)
    assert made.status == "resumed" and contents(out) == wanted and not partial.exists()


def test_marked_bytes_are_not_copied_again(tmp_path: Path, whole: Path) -> None:
    recipe = Recipe(experts=4, method="first")
    with pytest.raises(Killed):
        run(whole, tmp_path / "proxy", recipe, 5000)
    seen: list[int] = []
    checkpoint = read_checkpoint(open_source(str(whole)))
    build(checkpoint, recipe, tmp_path / "proxy", progress=lambda done, total: seen.append(done))
    assert seen[0] > 4900


@pytest.mark.parametrize("other", ["recipe", "source"])
def test_an_unfinished_build_of_something_else_is_discarded_and_said(tmp_path: Path, whole: Path, other: str) -> None:
    recipe = Recipe(experts=4, method="first")
    with pytest.raises(Killed):
        run(whole, tmp_path / "proxy", recipe, 3000)
    if other == "recipe":
        recipe = Recipe(experts=6, method="first")
    else:
        checkpoints.moe(whole, layers=3, seed=1)
    made = run(whole, tmp_path / "proxy", recipe)
    assert made.status == "built" and "is discarded" in made.notes[0]
    assert contents(made.out) == contents(run(whole, tmp_path / "fresh", recipe).out)


def test_two_builds_into_one_folder_are_one_too_many(tmp_path: Path, whole: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from faultproxy.proxy.build.work import Work\n"
        "with Work(Path(sys.argv[1])):\n    print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "proxy")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline()
        with pytest.raises(InputError, match="another build into"):
            run(whole, tmp_path / "proxy", Recipe(experts=4))
        other.communicate(b"")
    assert run(whole, tmp_path / "proxy", Recipe(experts=4)).status == "built"


@pytest.mark.parametrize("spoil", [b"experts", b"model-0"])
def test_a_damaged_line_of_the_journal_is_not_believed(tmp_path: Path, whole: Path, spoil: bytes) -> None:
    recipe = Recipe(layers=(0, 2), experts=4, method="first")
    wanted = contents(run(whole, tmp_path / "uninterrupted", recipe).out)
    with pytest.raises(Killed):
        run(whole, tmp_path / "proxy", recipe, 1500)
    journal = tmp_path / ".proxy.partial" / "journal"
    journal.write_bytes(journal.read_bytes().replace(spoil, spoil.upper(), 1))
    assert contents(run(whole, tmp_path / "proxy", recipe).out) == wanted


def test_a_link_in_place_of_the_growing_model_is_not_followed(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(Killed):
        run(whole, tmp_path / "proxy", Recipe(experts=4), 1500)
    (tmp_path / ".proxy.partial" / "model").rename(tmp_path / "theirs")
    (tmp_path / ".proxy.partial" / "model").symlink_to(tmp_path / "theirs")
    before = contents(tmp_path / "theirs")
    assert run(whole, tmp_path / "proxy", Recipe(experts=4)).status == "built"
    assert contents(tmp_path / "theirs") == before


def test_a_link_in_place_of_the_partial_folder_is_not_followed(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / ".proxy.partial").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="is a link"):
        run(whole, tmp_path / "proxy", Recipe(experts=4))
    assert (tmp_path / "theirs" / "file").exists()


def test_replacing_is_gone_on_with_when_killed_between_the_two_renames(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(whole, tmp_path / "proxy", Recipe(experts=4, method="first"))
    real = Work.publish

    def half(work: Work) -> None:
        work.out.rename(work.folder / "replaced")
        raise Killed

    monkeypatch.setattr(Work, "publish", half)
    with pytest.raises(Killed):
        run(whole, tmp_path / "proxy", Recipe(experts=6, method="first"), force=True)
    monkeypatch.setattr(Work, "publish", real)
    assert run(whole, tmp_path / "proxy", Recipe(experts=6, method="first"), force=True).status == "resumed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proxy", "whole"]
