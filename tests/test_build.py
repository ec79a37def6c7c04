"""`proxy build`: what is in a proxy, and that OUT is either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import faultproxy
from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.build import Built, build, layout, verify
from faultproxy.proxy.build import copy as copying
from faultproxy.proxy.checkpoint import BITS, Checkpoint, read_checkpoint
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.source import open_source

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints

RECIPE = Recipe(layers=(0, 2, 3), experts=4, method="first", keep={2: (6,)})


def read(folder: Path) -> Checkpoint:
    return read_checkpoint(open_source(str(folder)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def made(tmp_path: Path, recipe: Recipe = RECIPE, **options: Any) -> Built:
    return build(read(checkpoints.moe(tmp_path / "whole")), recipe, tmp_path / "proxy", **options)


def test_a_proxy_has_the_kept_tensors_under_new_numbers_and_the_small_files_as_they_were(tmp_path: Path) -> None:
    document = made(tmp_path).document
    source, proxy = read(tmp_path / "whole"), read(tmp_path / "proxy")
    assert document["kept"] == {
        "layers": [0, 2, 3],
        "experts": {"0": [0, 1, 2, 3], "2": [0, 1, 2, 6], "3": [0, 1, 2, 3]},
    }
    expert = "model.layers.{}.mlp.experts.{}.up_proj.weight"
    assert proxy.read(expert.format(1, 3)) == source.read(expert.format(2, 6))
    rows = source.read("model.layers.2.mlp.gate.weight")
    row = 4 * checkpoints.HIDDEN
    assert proxy.read("model.layers.1.mlp.gate.weight") == rows[: 3 * row] + rows[6 * row : 7 * row]
    assert len(proxy.tensors) == 2 + 3 * (2 + 3 * 4 + 1)
    assert proxy.config["num_experts"] == 4 and proxy.config["num_hidden_layers"] == 3
    index = json.loads((tmp_path / "proxy" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.stop - tensor.start for tensor in proxy.tensors.values())
    here = contents(tmp_path / "proxy")
    assert here.keys() == set(checkpoints.SIDE_FILES) | set(index["weight_map"].values()) | {
        "config.json",
        "model.safetensors.index.json",
        "proxy.json",
    }
    assert all(here[name] == (tmp_path / "whole" / name).read_bytes() for name in checkpoints.SIDE_FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proxy", "whole"]


def test_every_tensor_starts_at_a_multiple_of_its_width(tmp_path: Path) -> None:
    made(tmp_path)
    for tensor in read(tmp_path / "proxy").tensors.values():
        assert tensor.start % (BITS[tensor.dtype] // 8) == 0
    [shard] = (tmp_path / "proxy").glob("*.safetensors")
    assert int.from_bytes(shard.read_bytes()[:8], "little") % 8 == 0


def test_proxy_json_names_the_source_by_its_hashes_and_holds_neither_time_nor_place(tmp_path: Path) -> None:
    document = made(tmp_path, provenance={"diagnosis": {"sha256": "0" * 64}}).document
    whole = tmp_path / "whole"
    assert document["source"]["name"] == "whole"
    for name in ("config.json", "model.safetensors.index.json"):
        assert document["source"]["sha256"][name] == hashlib.sha256((whole / name).read_bytes()).hexdigest()
    text = (tmp_path / "proxy" / "proxy.json").read_text()
    assert str(tmp_path) not in text and json.loads(text) == document
    assert document["diagnosis"] == {"sha256": "0" * 64}
    again = build(read(whole), RECIPE, tmp_path / "other", provenance={"diagnosis": {"sha256": "0" * 64}})
    assert contents(again.out) == contents(tmp_path / "proxy")


def test_small_shards_hold_the_same_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.lay_out, "__defaults__", (600,))
    assert made(tmp_path).document["shards"] > 3
    assert verify(tmp_path / "proxy", read(tmp_path / "whole"), everything=True).compared > 0


@pytest.mark.parametrize("trial", [1, 10**9])
@pytest.mark.parametrize("can", [True, False])
def test_whichever_way_bytes_are_copied_they_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: int, can: bool
) -> None:
    def cannot(*_: Any, **__: Any) -> int:
        raise OSError(18, "Invalid cross-device link")

    made(tmp_path)
    monkeypatch.setattr(copying, "_TRIAL", trial)
    if not can:
        monkeypatch.setattr(os, "copy_file_range", cannot, raising=False)
    other = build(read(tmp_path / "whole"), RECIPE, tmp_path / "other")
    assert contents(other.out) == contents(tmp_path / "proxy")


def test_the_same_command_again_says_that_it_is_there(tmp_path: Path) -> None:
    assert made(tmp_path).status == "built"
    assert build(read(tmp_path / "whole"), RECIPE, tmp_path / "proxy").status == "there"
    with pytest.raises(InputError, match="another source, recipe, or version"):
        build(read(tmp_path / "whole"), Recipe((0,)), tmp_path / "proxy")
    assert build(read(tmp_path / "whole"), Recipe((0,)), tmp_path / "proxy", force=True).status == "built"
    assert read(tmp_path / "proxy").config["num_hidden_layers"] == 1


def test_what_is_no_proxy_is_never_replaced(tmp_path: Path) -> None:
    whole = checkpoints.moe(tmp_path / "whole")
    for out, why in ((whole, "is or holds the source"), (tmp_path, "is or holds the source")):
        with pytest.raises(InputError, match=why):
            build(read(whole), RECIPE, out, force=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    with pytest.raises(InputError, match="is no proxy"):
        build(read(whole), RECIPE, tmp_path / "photos", force=True)
    made(tmp_path)
    (tmp_path / "proxy" / "checkpoint-100").mkdir()
    with pytest.raises(InputError, match="holds checkpoint-100, which no build wrote"):
        build(read(whole), Recipe((0,)), tmp_path / "proxy", force=True)
    (tmp_path / "empty").mkdir()
    assert build(read(whole), RECIPE, tmp_path / "empty").status == "built"


@pytest.mark.parametrize("out", ["link", "nowhere", "s3://bucket/proxy"])
def test_an_out_that_a_finished_proxy_cannot_replace_is_refused_before_anything_is_copied(
    tmp_path: Path, out: str
) -> None:
    checkpoints.moe(tmp_path / "whole")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"is a link or a mount point|a folder of this machine"):
        build(read(tmp_path / "whole"), RECIPE, Path(out) if "://" in out else tmp_path / out)
    assert sorted(tmp_path.iterdir()) == before


def test_a_small_file_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    whole = checkpoints.moe(tmp_path / "whole")
    (whole / "tokenizer.json").unlink()
    (whole / "tokenizer.json").symlink_to("not_downloaded")
    with pytest.raises(InputError, match="tokenizer.json: No such file"):
        build(read(whole), RECIPE, tmp_path / "proxy")


def test_a_refused_recipe_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep at least"):
        made(tmp_path, Recipe(experts=1, method="first"))
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_links_that_lead_out_of_the_checkpoint_are_not_carried_off(tmp_path: Path) -> None:
    whole = checkpoints.moe(tmp_path / "whole")
    (tmp_path / "secret").write_text("of this machine")
    (whole / "tokenizer.json").unlink()
    (whole / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="outside of the checkpoint"):
        build(read(whole), RECIPE, tmp_path / "proxy")


def test_the_cache_of_hugging_face_is_a_checkpoint(tmp_path: Path) -> None:
    whole = checkpoints.moe(tmp_path / "whole")
    snapshot, blobs = tmp_path / "models--o--m" / "snapshots" / "abc", tmp_path / "models--o--m" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in whole.iterdir():
        os.rename(path, blobs / f"blob-of-{path.name}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"blob-of-{path.name}")
    build(read(snapshot), RECIPE, tmp_path / "proxy")
    assert not any(path.is_symlink() for path in (tmp_path / "proxy").iterdir())


@pytest.mark.parametrize("trial", [1, 10**9])
def test_a_source_that_ends_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: int) -> None:
    whole = checkpoints.moe(tmp_path / "whole")
    checkpoint, real = read(whole), copying.spans
    monkeypatch.setattr(copying, "_TRIAL", trial)

    def shortened(*arguments: Any) -> Iterator[copying.Span]:
        os.truncate(whole / "model-00002-of-00002.safetensors", 7000)
        return real(*arguments)

    monkeypatch.setattr("faultproxy.proxy.build.assemble.spans", shortened)
    with pytest.raises(InputError, match="was it cut short"):
        build(checkpoint, RECIPE, tmp_path / "proxy")
    assert not (tmp_path / "proxy").exists()


def test_a_source_that_changes_is_an_error(tmp_path: Path) -> None:
    checkpoint = read(checkpoints.moe(tmp_path / "whole"))
    shard = tmp_path / "whole" / "model-00002-of-00002.safetensors"
    with pytest.raises(InputError, match="changed while it was copied"):
        build(checkpoint, RECIPE, tmp_path / "proxy", progress=lambda *_: os.utime(shard, ns=(1, 1)))
    assert not (tmp_path / "proxy").exists()


def test_a_full_disk_is_known_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(InputError, match="GB free; make room"):
        made(tmp_path)


def test_a_disk_that_fills_up_is_bad_input_and_the_build_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Iterator[int]:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("faultproxy.proxy.build.assemble.copy", full)
        with pytest.raises(InputError, match="No space left on device.*run the same command again"):
            made(tmp_path)
    assert build(read(tmp_path / "whole"), RECIPE, tmp_path / "proxy").status == "resumed"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda out: (out / "tokenizer.json").write_text("the text of tokenizer.jsoN"), "tokenizer.json was changed"),
        (lambda out: (out / "merges.txt").unlink(), "merges.txt"),
        (lambda out: (out / "config.json").write_text("{}"), "config.json has 2 bytes"),
        (lambda out: (out / "proxy.json").write_text('{"schema": 2}'), "no known version"),
        (lambda out: (out / "proxy.json").unlink(), "has no proxy.json"),
        (lambda out: (out / "modeling_other.py").write_text(""), "modeling_other.py is not in proxy.json"),
        (lambda out: (out / "proxy.json").write_text((out / "proxy.json").read_text().replace('"why": "', '"why": "not ')), "proxy.json was changed"),
    ],
)  # fmt: skip
def test_a_spoilt_proxy_is_told_from_a_whole_one(tmp_path: Path, spoil: Any, why: str) -> None:
    out = made(tmp_path).out
    assert verify(out).files == 9
    spoil(out)
    with pytest.raises(InputError, match=why):
        verify(out)


def test_a_changed_weight_is_found_beside_the_source(tmp_path: Path) -> None:
    out = made(tmp_path).out
    [shard] = out.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert verify(out).compared == 0
    with pytest.raises(InputError, match="differs from the source"):
        verify(out, read(tmp_path / "whole"), everything=True)
    with pytest.raises(InputError, match="is not the file that it was cut from"):
        verify(out, read(checkpoints.moe(tmp_path / "other", experts=4)))


def test_the_command_says_what_it_built_and_what_to_do_next(tmp_path: Path) -> None:
    whole, out = checkpoints.moe(tmp_path / "whole"), tmp_path / "proxy"
    command = [
        "proxy",
        "build",
        str(whole),
        str(out),
        "--layers",
        "0,2-3",
        "--experts",
        "4",
        "--keep",
        "2:6",
        "--method",
        "first",
    ]
    result = CliRunner().invoke(faultproxy, command, catch_exceptions=False)
    first, *rest = result.output.splitlines()
    assert first.startswith(f"Built {out}, 0.00 M -> 0.00 M parameters") and first.endswith(
        "3 of 4 layers, 4 of 8 experts"
    )
    assert rest[-1].startswith(f"next: give {out} to your trainer")
    again = CliRunner().invoke(faultproxy, [*command, "--format", "json"], catch_exceptions=False)
    assert json.loads(again.output)["status"] == "there"
    checked = CliRunner().invoke(
        faultproxy, ["proxy", "check", str(out), "--source", str(whole)], catch_exceptions=False
    )
    assert checked.output.startswith(f"{out} is whole: 9 files, 47 tensors")
