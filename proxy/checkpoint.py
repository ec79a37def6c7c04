"""What lies where in a safetensors checkpoint: name, type, shape, and byte range of each tensor, from the headers alone.

A checkpoint is a folder with `model.safetensors`, or with shards and `model.safetensors.index.json`; one file works too. Only
headers are read, never weights, so a checkpoint of a terabyte costs its headers. A checkpoint may be hostile: each size is bounded
before it is read, and a header must describe its file exactly, as the format asks (every byte of the buffer in exactly one tensor).
An index names plain files of its own folder. A symbolic link in that folder is followed, since that is how the cache of Hugging Face
lays out a model: check where links lead before reading a folder that someone else packed.
"""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.report.clean import visible

INDEX = "model.safetensors.index.json"
# The largest public index known here names some 100,000 tensors in about 10 MB. Parsed, a file takes up to 25 times its size.
MAX_HEADER_BYTES = 32 * 2**20
MAX_SHARDS = 10_000
MAX_AXES = 8
# A name that is a path, absolute or upwards, would read a file outside of the checkpoint.
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.safetensors")

# Bits of one element of each type of the format.
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8,
    "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk: bytes `start` to `stop` (exclusive) of `file`, counted from the file's first byte; C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int


def read_json(path: Path, limit: int = MAX_HEADER_BYTES) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; a key given twice is an error, since readers differ on which counts."""
    return _object(_read(path, limit), str(path))


def read_checkpoint(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint folder or of one .safetensors file, by name.

    Raises:
        InputError: The headers, or the index, do not describe the files; the message says which tensor and why.
    """
    if not path.is_dir():
        return _shard(path)
    weights: dict[str, str] = {}
    if (path / INDEX).exists():
        weights = _weight_map(path / INDEX)
        files = sorted({path / file for file in weights.values()})
    else:
        files = sorted(path.glob("*.safetensors"))
        if len(files) > 1:
            raise InputError(f"{path} has {len(files)} .safetensors files and no {INDEX}; name one file")
    if not files:
        raise InputError(f"{path} has no .safetensors file; convert the checkpoint to safetensors first")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _shard(file).items():
            if name in tensors:
                raise InputError(f"tensor {visible(name)} is in {tensors[name].file.name} and in {file.name}; keep one")
            tensors[name] = tensor
    for name, short in weights.items():
        if name not in tensors or tensors[name].file.name != short:
            raise InputError(f"{path / INDEX} says that {visible(name)} is in {short}, which does not hold it")
    return tensors


def _read(path: Path, limit: int) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableError(f"{path} is no regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > limit:
        raise InputError(f"{path} is larger than the {limit} bytes that are read of such a file")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InputError(f"key {visible(twice)} stands twice in one object")
    return found


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {visible(str(error))}") from error
    if not isinstance(found, dict):
        raise InputError(f"{where} holds a {type(found).__name__}, not an object")
    return found


def _weight_map(path: Path) -> dict[str, str]:
    found = read_json(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path} has no weight_map of tensor names to files")
    for name in found.values():
        if not isinstance(name, str) or not _PLAIN_FILE.fullmatch(name):
            raise InputError(f"{path} names {visible(repr(name))}; allowed is the plain name of a file beside it")
    if (shards := len(set(found.values()))) > MAX_SHARDS:
        raise InputError(f"{path} names {shards} files; at most {MAX_SHARDS} are read")
    return found


def _shard(path: Path) -> dict[str, StoredTensor]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(f"{path} is no regular file")
        with path.open("rb") as file:
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > status.st_size - 8:
                raise InputError(f"{path} is cut short or no safetensors file (header {length} bytes)")
            if length > MAX_HEADER_BYTES:
                raise InputError(f"{path} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
            header = _object(file.read(length), f"header of {path}")
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}") from error
    header.pop("__metadata__", None)
    tensors = [_tensor(name, entry, path, 8 + length) for name, entry in header.items()]
    reached = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != reached:
            what = "overlaps the tensor before it" if tensor.start < reached else "leaves a hole before it"
            raise InputError(
                f"{path}: {visible(tensor.name)} {what} (starts at byte {tensor.start}, expected {reached})"
            )
        reached = tensor.stop
    if reached != status.st_size:
        raise InputError(f"{path} ends at byte {status.st_size}, its tensors at {reached}: cut short or appended to")
    return {tensor.name: tensor for tensor in tensors}


def _tensor(name: str, entry: Any, path: Path, base: int) -> StoredTensor:
    def wrong(why: str) -> InputError:
        return InputError(f"{path}: {visible(name)} {why}")

    def counts(key: str) -> tuple[int, ...]:
        found = entry.get(key)
        # An offset is 64 bits in every reader; a wider number only serves to slow down what follows.
        if not isinstance(found, list) or not all(type(n) is int and 0 <= n < 2**63 for n in found):
            raise wrong(f"has {key} that is not a list of whole numbers from 0")
        return tuple(found)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong("must have exactly dtype, shape, and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in BITS:
        raise wrong(f"has dtype {visible(str(entry['dtype']))}; known are {', '.join(BITS)}")
    shape, offsets = counts("shape"), counts("data_offsets")
    if len(shape) > MAX_AXES or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"needs at most {MAX_AXES} axes and two offsets in order")
    if prod(shape) * BITS[entry["dtype"]] != (offsets[1] - offsets[0]) * 8:
        raise wrong(
            f"of dtype {entry['dtype']} and shape {list(shape)} does not fill its {offsets[1] - offsets[0]} bytes"
        )
    return StoredTensor(name, entry["dtype"], shape, path, base + offsets[0], base + offsets[1])
