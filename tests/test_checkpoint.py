"""Headers of a checkpoint: what is read, and which crafted ones are refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy import checkpoint
from faultproxy.proxy.checkpoint import INDEX, Checkpoint, read_checkpoint, read_json
from faultproxy.proxy.source import open_source


def entry(dtype: str, shape: list[Any], start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def read(path: Path) -> Checkpoint:
    return read_checkpoint(open_source(str(path)))


def write(path: Path, header: Any, buffer: int, length: int | None = None) -> Path:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(head) if length is None else length).to_bytes(8, "little") + head + bytes(buffer))
    return path


def index(folder: Path, weights: Any) -> Path:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": weights}))
    return folder


def test_tensors_of_one_file_have_type_shape_and_bytes_from_the_start_of_the_file(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", [2, 3], 4, 16),
        "a": entry("F32", [], 0, 4),
        "e": entry("F4", [0, 2], 16, 16),
    }
    path = write(tmp_path / "model.safetensors", header, 16)
    base = path.stat().st_size - 16
    found = read(tmp_path).tensors
    assert {name: (t.dtype, t.shape, t.start - base, t.stop - base) for name, t in found.items()} == {
        "b": ("BF16", (2, 3), 4, 16),
        "a": ("F32", (), 0, 4),
        "e": ("F4", (0, 2), 16, 16),
    }
    assert read(path).tensors == found


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": entry("U8", [4], 0, 4)}, 4)
    write(tmp_path / "two.safetensors", {"b": entry("U8", [4], 0, 4)}, 4)
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    assert {name: tensor.file for name, tensor in read(tmp_path).tensors.items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }


@pytest.mark.parametrize(
    ("header", "buffer", "why"),
    [
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, 6, "overlaps"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)}, 10, "leaves a hole"),
        ({"a": entry("U8", [4], 0, 4)}, 9, "appended"),
        ({"a": entry("U8", [8], 0, 8)}, 4, "cut short"),
        ({"a": entry("F32", [4], 0, 4)}, 4, "does not fill"),
        ({"a": entry("F4", [3], 0, 2)}, 2, "does not fill"),
        ({"a": entry("Q4", [4], 0, 4)}, 4, "known are"),
        ({"a": entry("U8", [-4], 0, 4)}, 4, "whole numbers"),
        ({"a": entry("U8", [True], 0, 1)}, 1, "whole numbers"),
        ({"a": entry("U8", [4.0], 0, 4)}, 4, "whole numbers"),
        ({"a": entry("U8", [2**63], 0, 4)}, 4, "whole numbers"),
        ({"a": entry("U8", [4], 4, 0)}, 4, "two offsets in order"),
        ({"a": entry("U8", [1] * 9, 0, 1)}, 1, "at most 8 axes"),
        ({"a": entry("U8", [4], 0, 4) | {"more": 1}}, 4, "exactly"),
        ({"a": [1]}, 4, "exactly"),
        (b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "a": 1}', 4, "stands twice"),
        (b"[" * 200_000, 0, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "not JSON"),
        (b"\xff\xfe{}", 0, "not JSON"),
        ("{}".encode("utf-16"), 0, "not JSON"),
        (b"{}", 0, "holds no tensors"),
        ({"a\ud800": entry("U8", [4], 0, 4)}, 4, "no UTF-8"),
        (b'{"a": [' + b"0," * (2**21 + 1) + b"0]}", 0, "more than 2097152 values"),
        (b"[]", 0, "not an object"),
    ],
)
def test_a_header_that_does_not_describe_its_file_is_refused(
    tmp_path: Path, header: Any, buffer: int, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        read(write(tmp_path / "x.safetensors", header, buffer))


def test_a_huge_config_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"a": entry("U8", [4], 0, 4)}, 4)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(checkpoint.MAX_CONFIG_BYTES + 1)
    with pytest.raises(InputError, match="config.json is larger than"):
        read(tmp_path)


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cut short or no safetensors"):
        read(write(tmp_path / "x.safetensors", b"{}", 0, length=2**63))
    path = write(tmp_path / "y.safetensors", b"{}", 0, length=checkpoint.MAX_HEADER_BYTES + 1)
    os.truncate(path, checkpoint.MAX_HEADER_BYTES + 100)
    with pytest.raises(InputError, match="at most"):
        read(path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/x.safetensors",
        "..\\x.safetensors",
        ".x.safetensors",
        "x.bin",
        "",
        3,
        None,
        "x\n.safetensors",
    ],
)
def test_an_index_names_only_plain_files_beside_it(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write(tmp_path / "x.safetensors", {"a": entry("U8", [4], 0, 4)}, 4)
    with pytest.raises(InputError, match="plain name"):
        read(index(folder, {"a": name}))


@pytest.mark.parametrize("weights", [{}, [], None, "x"])
def test_an_index_without_a_map_is_refused(tmp_path: Path, weights: Any) -> None:
    with pytest.raises(InputError, match="weight_map"):
        read(index(tmp_path, weights))


def test_an_index_and_its_shards_must_agree(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": entry("U8", [4], 0, 4)}, 4)
    write(tmp_path / "two.safetensors", {"a": entry("U8", [4], 0, 4)}, 4)
    with pytest.raises(InputError, match="keep one"):
        read(index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    with pytest.raises(InputError, match="does not hold it"):
        read(index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"}))
    with pytest.raises(InputError, match="cannot read"):
        read(index(tmp_path, {"a": "missing.safetensors"}))
    (tmp_path / INDEX).unlink()
    with pytest.raises(InputError, match="name one file"):
        read(tmp_path)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no .safetensors file"):
        read(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "none.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="no regular file"):
        read(tmp_path / "pipe.safetensors")
    (tmp_path / "short.safetensors").write_bytes(b"\x02")
    with pytest.raises(InputError, match="cut short"):
        read(tmp_path / "short.safetensors")


def test_json_is_bounded_and_has_each_key_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"num_experts": 8, "x": {"a": 1, "a": 2}}')
    with pytest.raises(InputError, match="key a stands twice"):
        read_json(path)
    path.write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_json(path)["time_step_limit"][1] == float("inf")
    with pytest.raises(InputError, match="larger than"):
        read_json(path, limit=4)
