"""What lies where in a safetensors checkpoint: name, type, shape, and byte range of each tensor, from the headers alone.

A checkpoint is a folder or URL with `model.safetensors`, or with shards and `model.safetensors.index.json`; one file works too. Only
headers are read, never weights, so a checkpoint of a terabyte costs its headers. A checkpoint may be hostile: each size is bounded
before it is read, and a header must describe its file exactly, as the format asks (every byte of the buffer in exactly one tensor).
An index names plain files of its own folder. A symbolic link in that folder is followed, since that is how the cache of Hugging Face
lays out a model: check where links lead before reading a folder that someone else packed.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.report.clean import encodable, visible
from faultproxy.proxy.families import Config
from faultproxy.proxy.source import PLAIN, Source

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# The largest public index known here names some 200,000 tensors in about 20 MB, and a header has seven values a tensor. Parsed, a value
# takes up to 270 bytes.
MAX_HEADER_BYTES, MAX_VALUES, MAX_TENSORS = 32 * 2**20, 2**21, 2**19
# Of config.json; 100 kB are usual, lists of modules that are not quantised can make it ten times as long.
MAX_CONFIG_BYTES = 4 * 2**20
MAX_SHARDS = 10_000
MAX_AXES = 8

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
    file: str
    start: int
    stop: int


@dataclass(frozen=True)
class Checkpoint:
    """The headers of a checkpoint, and its config (empty where there is no config.json).

    `digests` has the SHA-256 of config.json, of the index, and of each shard's header; `sizes` the bytes of each shard.
    """

    source: Source
    config: Config
    tensors: dict[str, StoredTensor]
    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes `start` to `stop` (exclusive) of a tensor; to its end without a `stop`."""
        tensor = self.tensors[name]
        end = tensor.stop if stop is None else tensor.start + stop
        if not 0 <= start <= end - tensor.start <= tensor.stop - tensor.start:
            raise ValueError(f"bytes {start} to {stop} are not all of {name}, which has {tensor.stop - tensor.start}")
        return self.source.read(tensor.file, tensor.start + start, end)


def read_json(path: Path, limit: int = MAX_HEADER_BYTES) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; a key given twice is an error, since readers differ on which counts."""
    return _object(_read(path, limit), str(path))


def read_checkpoint(source: Source, weightless: bool = False) -> Checkpoint:
    """Config and all tensors of a checkpoint; `weightless` takes one that is only a config.json, too.

    Raises:
        InputError: The headers, or the index, do not describe the files; the message says which tensor and why.
    """
    listed, weights = source.files(), {}
    found = Checkpoint(source, {}, {})
    if CONFIG in listed:
        found.config.update(_document(found, CONFIG))
    if INDEX in listed:
        weights = _weight_map(_document(found, INDEX), source.where(INDEX))
        files = sorted(set(weights.values()))
    else:
        files = [file for file in listed if file.endswith(".safetensors")]
        if len(files) > 1:
            raise InputError(f"{source.where('')} has {len(files)} .safetensors files and no {INDEX}; name one file")
    if not files and weightless and found.config:
        return found
    if not files:
        raise InputError(
            f"{source.where('')} has no .safetensors file; convert it first, or build from config.json alone with --weights random"
        )
    # Only far away is there something to gain from asking for several at once.
    with ThreadPoolExecutor(1 if source.local else 4) as pool:
        for file, (size, digest, tensors) in zip(
            files, pool.map(lambda file: _shard(source, file), files), strict=True
        ):
            found.sizes[file], found.digests[file] = size, digest
            for name, tensor in tensors.items():
                if name in found.tensors:
                    raise InputError(f"tensor {visible(name)} is in {found.tensors[name].file} and in {file}; keep one")
                found.tensors[name] = tensor
            if len(found.tensors) > MAX_TENSORS:
                raise InputError(f"{source.where('')} has more than {MAX_TENSORS} tensors; is it a model?")
    if not found.tensors:
        raise InputError(f"{source.where(files[0])} holds no tensors; is it the right file?")
    for name, short in weights.items():
        if name not in found.tensors or found.tensors[name].file != short:
            raise InputError(f"{source.where(INDEX)} says that {visible(name)} is in {short}, which does not hold it")
    return found


def read_config(source: Source) -> Config:
    """The config.json of a checkpoint, and nothing else of it."""
    return _object(read_side_file(source, CONFIG, MAX_CONFIG_BYTES), source.where(CONFIG))


def read_side_file(source: Source, file: str, limit: int = MAX_HEADER_BYTES) -> bytes:
    """A whole file of at most `limit` bytes."""
    if (size := source.size(file)) > limit:
        raise InputError(f"{source.where(file)} is larger than the {limit} bytes that are read of such a file")
    return source.read(file, 0, size)


def _document(found: Checkpoint, file: str) -> dict[str, Any]:
    data = read_side_file(found.source, file, MAX_CONFIG_BYTES if file == CONFIG else MAX_HEADER_BYTES)
    found.digests[file] = hashlib.sha256(data).hexdigest()
    return _object(data, found.source.where(file))


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
    if data.count(b",") > MAX_VALUES:
        raise InputError(f"{where} holds more than {MAX_VALUES} values")
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {visible(str(error))}") from error
    if not isinstance(found, dict):
        raise InputError(f"{where} holds a {type(found).__name__}, not an object")
    return found


def _weight_map(index: dict[str, Any], where: str) -> dict[str, str]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise InputError(f"{where} has no weight_map of tensor names to files")
    for name in found.values():
        # A name that is a path, absolute or upwards, would read a file outside of the checkpoint.
        if not isinstance(name, str) or not PLAIN.fullmatch(name) or not name.endswith(".safetensors"):
            raise InputError(f"{where} names {visible(repr(name))}; allowed is the plain name of a file beside it")
    if (shards := len(set(found.values()))) > MAX_SHARDS:
        raise InputError(f"{where} names {shards} files; at most {MAX_SHARDS} are read")
    return found


def _shard(source: Source, file: str) -> tuple[int, str, dict[str, StoredTensor]]:
    size, where = source.size(file), source.where(file)
    length = int.from_bytes(source.read(file, 0, min(8, size)), "little")
    if length > size - 8:
        raise InputError(f"{where} is cut short or no safetensors file (header {length} bytes)")
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{where} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
    data = source.read(file, 8, 8 + length)
    header = _object(data, f"header of {where}")
    header.pop("__metadata__", None)
    tensors = [_tensor(name, entry, file, where, 8 + length) for name, entry in header.items()]
    reached = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != reached:
            what = "overlaps the tensor before it" if tensor.start < reached else "leaves a hole before it"
            raise InputError(
                f"{where}: {visible(tensor.name)} {what} (starts at byte {tensor.start}, expected {reached})"
            )
        reached = tensor.stop
    if reached != size:
        raise InputError(f"{where} ends at byte {size}, its tensors at {reached}: cut short or appended to")
    return size, hashlib.sha256(data).hexdigest(), {tensor.name: tensor for tensor in tensors}


def _tensor(name: str, entry: Any, file: str, where: str, base: int) -> StoredTensor:
    def wrong(why: str) -> InputError:
        return InputError(f"{where}: {visible(name)} {why}")

    def counts(key: str) -> tuple[int, ...]:
        found = entry.get(key)
        # An offset is 64 bits in every reader; a wider number only serves to slow down what follows.
        if not isinstance(found, list) or not all(type(n) is int and 0 <= n < 2**63 for n in found):
            raise wrong(f"has {key} that is not a list of whole numbers from 0")
        return tuple(found)

    if name != encodable(name):
        raise wrong("has a name that is no UTF-8")
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
    return StoredTensor(name, entry["dtype"], shape, file, base + offsets[0], base + offsets[1])
