"""Whether a folder is the proxy that its proxy.json describes; and, beside its source, whether sampled bytes are the source's.

Without the source: every file is there with its size, headers and small files have their SHA-256, the config describes the tensors, and
no router or expert lacks. The weights themselves are compared with the source's at evenly spread places, or all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import encodable, visible
from faultproxy.proxy.build.copy import BLOCK
from faultproxy.proxy.build.draw import drawn
from faultproxy.proxy.build.layout import Kept, Shard, lay_out
from faultproxy.proxy.build.side import LIMIT, side_files
from faultproxy.proxy.build.work import PROXY
from faultproxy.proxy.checkpoint import Checkpoint, read_checkpoint, read_json, read_side_file
from faultproxy.proxy.cut import check_complete, cut_model, decide
from faultproxy.proxy.shape import read_shape
from faultproxy.proxy.source import PLAIN, open_source

_SAMPLES = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Verified:
    """What was looked at: files, tensors, and bytes compared with the source (0 without one)."""

    out: str
    files: int
    tensors: int
    compared: int


def read_proxy(out: Path) -> dict[str, Any]:
    """The proxy.json of a proxy.

    Raises:
        InputError: There is none, or it is of another version.
    """
    if not (out / PROXY).is_file():
        raise InputError(f"{visible(str(out))} has no {PROXY}; give a folder that `faultproxy proxy build` made")
    found = read_json(out / PROXY)
    lists = ("files", "kept", "source", "recipe")
    if found.get("schema") != 1 or not all(isinstance(found.get(key), dict) for key in lists):
        raise InputError(f"{visible(str(out / PROXY))} is of no known version (schema 1); build it anew")
    if sealed(found) != found:
        raise InputError(f"{visible(str(out / PROXY))} was changed since it was built; build it anew with --force")
    return found


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """A proxy.json with the SHA-256 of all else that it says."""
    said = {key: value for key, value in document.items() if key != "sha256"}
    return {**said, "sha256": hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()}


def verify(out: Path, source: Checkpoint | None = None, everything: bool = False) -> Verified:
    """Check a finished proxy, and compare it with its source where that is given.

    Raises:
        InputError: It is not what proxy.json says; the message has the first difference.
    """
    document, compared = read_proxy(out), 0
    try:
        made = read_checkpoint(open_source(str(out)))
        check(made, document)
        if source is not None:
            compared = compare(made, source, shards_of(document, source), document["recipe"], everything)
    except InputError as error:
        raise InputError(f"{visible(str(out))} is not the proxy it was: {error}; build it anew with --force") from error
    return Verified(encodable(str(out)), len(document["files"]), len(made.tensors), compared)


def check(made: Checkpoint, document: dict[str, Any]) -> None:
    """Refuses a proxy that is not the one of this proxy.json, as far as can be told without its source."""
    for name, facts in document["files"].items():
        if not PLAIN.fullmatch(name) or not isinstance(facts, dict) or facts.keys() != {"bytes", "sha256"}:
            raise InputError(f"{PROXY} says of {visible(name, 80)} what cannot be checked")
        if made.source.size(name) != facts["bytes"]:
            raise InputError(f"{name} has {made.source.size(name)} bytes, not {visible(str(facts['bytes']), 40)}")
        digest = made.digests.get(name) or hashlib.sha256(read_side_file(made.source, name, LIMIT)).hexdigest()
        if digest != facts["sha256"]:
            raise InputError(f"{name} was changed")
    if strange := sorted({*made.sizes, *side_files(made.source)} - {*document["files"]}):
        raise InputError(f"{strange[0]} is not in {PROXY}")
    shape = read_shape(made.config)
    cut = cut_model(made.config, range(shape.layers))
    check_complete(cut, made.tensors)
    for tensor in made.tensors.values():
        if decide(cut, tensor.name, tensor.shape).name != tensor.name:
            raise InputError(f"{visible(tensor.name)} is not of the model that config.json describes")


def shards_of(document: dict[str, Any], source: Checkpoint) -> tuple[Shard, ...]:
    """The shards that proxy.json says were cut from this source."""
    if (known := document["source"].get("sha256")) != source.digests:
        changed = [
            name for name in source.digests if not isinstance(known, dict) or known.get(name) != source.digests[name]
        ]
        raise InputError(f"{source.source.where((changed or ['config.json'])[0])} is not the file that it was cut from")
    try:
        kept = document["kept"]
        experts = {int(layer): tuple(ids) for layer, ids in kept["experts"].items()}
        return lay_out(source, cut_model(source.config, kept["layers"], experts))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{PROXY} does not say which layers and experts were kept") from error


def compare(
    made: Checkpoint, source: Checkpoint, shards: tuple[Shard, ...], recipe: dict[str, Any], everything: bool = False
) -> int:
    """Bytes found equal in a proxy and its source; types and shapes of all tensors, and bytes at places evenly spread over the shards."""
    tensors = [tensor for shard in shards for tensor in shard.tensors]
    wanted = {tensor.name: (tensor.source.dtype, tensor.shape) for tensor in tensors}
    if wanted != {name: (tensor.dtype, tensor.shape) for name, tensor in made.tensors.items()}:
        raise InputError("its tensors are not those that were kept")
    seed = recipe.get("seed") if recipe.get("weights") == "random" else None
    if seed is not None and type(seed) is not int:
        raise InputError(f"{PROXY} has a seed that is no number")
    total = sum(tensor.size for tensor in tensors)
    # Far away, samples count as bytes fetched.
    size = _SAMPLE_BYTES if source.source.local else min(_SAMPLE_BYTES, total // (500 * _SAMPLES))
    compared = 0
    for tensor, start, stop in _all(tensors) if everything else _samples(tensors, total, size):
        if made.read(tensor.name, start, stop) != _expected(source, tensor, start, stop, seed):
            raise InputError(f"{visible(tensor.name)} differs from the source within bytes {start} to {stop}")
        compared += stop - start
    return compared


def _all(tensors: list[Kept]) -> Iterator[tuple[Kept, int, int]]:
    for tensor in tensors:
        for start in range(0, tensor.size, BLOCK):
            yield tensor, start, min(start + BLOCK, tensor.size)


def _samples(tensors: list[Kept], total: int, size: int) -> Iterator[tuple[Kept, int, int]]:
    step, passed = max(1, total // _SAMPLES), 0
    due = step // 2
    for tensor in tensors:
        if passed + tensor.size > due:
            start = due - passed
            yield tensor, start, min(start + size, tensor.size)
            due = (passed + tensor.size + step // 2) // step * step + step // 2
        passed += tensor.size


def _expected(source: Checkpoint, tensor: Kept, start: int, stop: int, seed: int | None) -> bytes:
    data, skip, room = b"", start, stop - start
    if seed is not None:
        for block in drawn(source, tensor, seed, start):
            data += block
            if len(data) >= room:
                break
        return data[:room]
    for first, last in tensor.ranges():
        passed = min(skip, last - first)
        skip -= passed
        if (begin := first + passed) < last:
            data += source.source.read(tensor.source.file, begin, min(last, begin + room - len(data)))
        if len(data) == room:
            break
    return data
