"""Where a checkpoint is: the same answers from a folder and from a web server, and what is asked for again or refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy import source as module
from faultproxy.proxy.build import build
from faultproxy.proxy.checkpoint import read_checkpoint
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.source import open_source

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints
import ranges

SHARD = "model-00001-of-00002.safetensors"
RECIPE = Recipe(layers=(0, 2), experts=4, method="first")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_SECONDS", 0.001)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return checkpoints.moe(tmp_path / "whole")


def contents(folder: Path, but: str = "") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != but}


def test_a_folder_gives_exactly_the_bytes_asked_for(whole: Path) -> None:
    source = open_source(str(whole))
    assert source.read(SHARD, 3, 11) == (whole / SHARD).read_bytes()[3:11]
    assert source.read(SHARD, 5, 5) == b"" and source.fetched == 8
    with pytest.raises(InputError, match="cut short"):
        source.read(SHARD, 0, source.size(SHARD) + 1)
    assert source.name == "whole" and "README.md" in source.files()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden", "a/b", ""])
def test_only_plain_names_are_read(whole: Path, name: str) -> None:
    with pytest.raises(InputError, match="no plain name"):
        open_source(str(whole)).read(name, 0, 1)


def test_one_file_is_a_checkpoint_with_the_config_beside_it(whole: Path) -> None:
    found = read_checkpoint(open_source(str(whole / SHARD)))
    assert set(found.sizes) == {SHARD} and found.config["num_experts"] == 8


def test_a_url_without_its_driver_names_the_extra() -> None:
    with pytest.raises(InputError, match=r"faultproxy\[remote\]"):
        open_source("nosuchstore://bucket/model")


def test_a_password_in_a_url_is_not_part_of_its_name() -> None:
    pytest.importorskip("aiohttp")
    assert open_source("https://me:secret@host/m?sig=secret").name == "https://host/m"


def test_any_store_of_fsspec_is_a_source(whole: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in whole.iterdir():
        memory.pipe_file(f"/bucket/model/{path.name}", path.read_bytes())
    far = build(read_checkpoint(open_source("memory://bucket/model")), RECIPE, tmp_path / "far").out
    near = build(read_checkpoint(open_source(str(whole))), RECIPE, tmp_path / "near").out
    assert contents(far, "proxy.json") == contents(near, "proxy.json")
    memory.rm("/bucket", recursive=True)


# -- a web server ------------------------------------------------------------------------------------------------------
def test_a_proxy_of_a_url_is_that_of_the_folder(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        far = build(read_checkpoint(open_source(site.url)), RECIPE, tmp_path / "far").out
    near = build(read_checkpoint(open_source(str(whole))), RECIPE, tmp_path / "near").out
    assert contents(far, "proxy.json") == contents(near, "proxy.json")


def test_only_what_is_kept_is_fetched(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    headers = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in whole.glob("*.safetensors"))
    with ranges.serve(whole) as site:
        source = open_source(site.url)
        made = build(read_checkpoint(source), RECIPE, tmp_path / "far")
    # Without a list of files the config is read once more, for the modules that it names.
    small = sum(
        (whole / name).stat().st_size
        for name in ("config.json", "config.json", "modeling_mine.py", "model.safetensors.index.json", "tokenizer.json")
    )
    small += sum(
        (whole / name).stat().st_size
        for name in ("generation_config.json", "chat_template.jinja", "merges.txt", "LICENSE")
    )
    shards = sum(path.stat().st_size for path in made.out.glob("*.safetensors"))
    own = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in made.out.glob("*.safetensors"))
    assert source.fetched <= 1.02 * (shards - own) + headers + small
    assert site.sent == source.fetched


@pytest.mark.parametrize("fault", [500, 503, 429, "cut"])
def test_a_passing_fault_is_tried_again(whole: Path, tmp_path: Path, fault: int | str) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        checkpoint = read_checkpoint(open_source(site.url))
        site.faults[:] = [fault] * 3
        build(checkpoint, RECIPE, tmp_path / "far")
        assert not site.faults


@pytest.mark.parametrize(("fault", "tries"), [(503, 5), (403, 1)])
def test_a_lasting_fault_is_said(whole: Path, fault: int, tries: int) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        source = open_source(site.url)
        source.size(SHARD)
        site.faults[:] = [fault] * 9
        with pytest.raises(InputError, match=rf"cannot read {site.url}/{SHARD}.*{fault}"):
            source.read(SHARD, 0, 8)
        assert len(site.faults) == 9 - tries


def test_a_url_with_nothing_there_is_said_to_be_empty(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(tmp_path) as site, pytest.raises(InputError, match=f"cannot read {site.url}/config.json"):
        read_checkpoint(open_source(site.url))


def test_a_server_that_sends_whole_files_for_ranges_is_refused(whole: Path) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole, ranges=False) as site, pytest.raises(InputError, match="range"):
        open_source(site.url).read(SHARD, 100, 200)


@pytest.mark.parametrize("fault", ["shifted", "gzip"])
def test_an_answer_of_other_bytes_is_refused(whole: Path, fault: str) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        site.faults[:] = [fault]
        with pytest.raises(InputError, match="the server answers 206 with other bytes than the range 8 to 100"):
            open_source(site.url).read(SHARD, 8, 100)


def test_what_gives_access_to_a_url_is_in_no_message(whole: Path) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        source = open_source(f"{site.url.replace('//', '//me:secret@')}?signature=secret")
        source.size(SHARD)
        site.faults[:] = [401]
        with pytest.raises(InputError, match="401") as refused:
            source.read(SHARD, 0, 8)
    assert "secret" not in str(refused.value) + source.name


@pytest.mark.parametrize("url", ["http://[::1/x", "simplecache::http://me:secret@127.0.0.1/x"])
def test_what_is_no_url_of_one_store_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"no URL|chained URLs"):
        open_source(url)


def test_a_file_that_changes_at_the_server_is_an_error(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with ranges.serve(whole) as site:
        checkpoint = read_checkpoint(open_source(site.url))
        (whole / SHARD).touch()
        with pytest.raises(InputError, match="changed while it was copied"):
            build(checkpoint, RECIPE, tmp_path / "far", progress=lambda *_: (whole / SHARD).touch())
