"""Builds a proxy: chooses, lays out, copies, checks, and puts it in its place at the end, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy import __version__
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.build.checks import check, compare, read_proxy, sealed, verify
from faultproxy.proxy.build.copy import copy, spans, write_all
from faultproxy.proxy.build.draw import check_drawable, drawn
from faultproxy.proxy.build.layout import Shard, index, lay_out, parameters
from faultproxy.proxy.build.side import LIMIT, belongs, side_files
from faultproxy.proxy.build.work import PROXY, Work
from faultproxy.proxy.checkpoint import CONFIG, INDEX, Checkpoint, read_checkpoint, read_side_file
from faultproxy.proxy.cut import Cut, cut_model
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.shape import ModelShape, read_shape
from faultproxy.proxy.source import open_source

if TYPE_CHECKING:
    from faultproxy.proxy.choose.calibration import Calibration

#: What is copied between two marks of the journal, and so copied twice at most after a kill.
_MARK = 256 * 2**20
_DISCARDED = "an unfinished build of another source, recipe, or version was here and is discarded"
#: Left free on the disk.
_SPARE = 64 * 2**20
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Built:
    """A finished proxy: its folder, its proxy.json, whether it was `built`, `resumed`, or `there` already, and what to know of this build."""

    out: Path
    document: dict[str, Any]
    status: str
    notes: tuple[str, ...] = ()


def build(
    checkpoint: Checkpoint, recipe: Recipe, out: Path, table: Calibration | None = None, provenance: Mapping[str, Any] | None = None,
    force: bool = False, progress: Progress = lambda done, total: None,
) -> Built:  # fmt: skip
    """Cut `recipe` out of a checkpoint into the new folder `out`.

    `provenance` is added to proxy.json, and with source and recipe decides whether an unfinished build is gone on with. `progress` is given
    the bytes done and all.

    Raises:
        InputError: The cut is refused, OUT is taken, or the source cannot be read; what was copied stays for the next try.
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(out)):
        raise InputError(f"{visible(str(out))}: OUT is a folder of this machine; build it here, then copy it")
    out = Path(os.path.abspath(out))
    shape = _check(checkpoint, recipe, out)
    key = _digest([__version__, checkpoint.digests, recipe.document(), dict(provenance or {})])
    try:
        with Work(out) as work:
            if out.exists() and (found := _there(out, key, force)):
                work.clear()
                return found
            return _build(checkpoint, shape, recipe, work, table, {"key": key, **(provenance or {})}, progress)
    except OSError as error:
        raise InputError(
            f"cannot write {visible(str(out))} ({error.strerror or error}); what is copied is kept: make room or gain the rights, and run "
            "the same command again"
        ) from error


def _check(checkpoint: Checkpoint, recipe: Recipe, out: Path) -> ModelShape:
    """The model's shape, after what can be refused before anything is written."""
    source = checkpoint.source
    if os.path.islink(out) or os.path.ismount(out):
        raise InputError(
            f"{visible(str(out))} is a link or a mount point, which a finished proxy cannot replace; give a folder inside it"
        )
    if not checkpoint.config:
        raise InputError(f"{source.where(CONFIG)} is missing; without it nothing is known of layers and experts")
    shape = read_shape(checkpoint.config)
    if source.local and (source.local.resolve() == out.resolve() or out.resolve() in source.local.resolve().parents):
        raise InputError(f"{visible(str(out))} is or holds the source; give another OUT")
    if recipe.weights == "random":
        check_drawable(shape, checkpoint)
    return shape


def _there(out: Path, key: str, force: bool) -> Built | None:
    """The proxy that is at OUT when it is the one asked for; None when it may be replaced."""
    if out.is_dir() and not any(out.iterdir()):
        return None
    if not (out.is_dir() and (out / PROXY).is_file()):
        raise InputError(
            f"{visible(str(out))} exists and is no proxy; give another OUT (--force replaces only proxies)"
        )
    if force:
        if other := sorted(
            path.name for path in out.iterdir() if path.is_dir() or not (path.name == PROXY or belongs(path.name))
        ):
            raise InputError(
                f"{visible(str(out))} holds {visible(other[0], 80)}, which no build wrote; move it away, or give another OUT"
            )
        return None
    document = read_proxy(out)
    if document.get("key") != key:
        raise InputError(
            f"{visible(str(out))} is a proxy of another source, recipe, or version; give another OUT, or --force to replace it"
        )
    verify(out)
    return Built(out, document, "there")


def _build(
    checkpoint: Checkpoint, shape: ModelShape, recipe: Recipe, work: Work, table: Calibration | None, facts: dict[str, Any], progress: Progress
) -> Built:  # fmt: skip
    source = checkpoint.source
    stamps = {file: source.stamp(file) for file in (CONFIG, *checkpoint.sizes)}
    state, found_other = _digest([facts["key"], stamps]), work.holds_other()
    begun = work.resume(state)
    notes = (_DISCARDED,) if found_other and not begun else ()
    chosen = begun["chosen"] if begun else _choose(checkpoint, shape, recipe, table)
    layers = recipe.layers or tuple(range(shape.layers))
    cut = cut_model(checkpoint.config, layers, {int(n): tuple(ids) for n, ids in chosen["experts"].items()})
    beside = side_files(source)
    shards = lay_out(checkpoint, cut) if checkpoint.tensors else ()
    _check_space(work, shards)
    if not begun:
        work.begin(state, {"chosen": chosen})
    if not shards:
        _instantiate(cut, recipe, work)
    _copy(checkpoint, shards, recipe, work, progress)
    for file in beside:
        work.write(file, read_side_file(source, file, LIMIT))
    work.write(CONFIG, _json(cut.config))
    if shards:
        work.write(INDEX, _json(index(shards)))
    if changed := [file for file, stamp in stamps.items() if source.stamp(file, again=True) != stamp]:
        raise InputError(f"{source.where(changed[0])} changed while it was copied; run the same command again")
    made = read_checkpoint(open_source(str(work.model)))
    document = _document(checkpoint, cut, recipe, made, chosen, facts)
    for file in sorted({path.name for path in work.model.iterdir()} - {PROXY}):
        digest = made.digests.get(file) or hashlib.sha256((work.model / file).read_bytes()).hexdigest()
        document["files"][file] = {"bytes": made.source.size(file), "sha256": digest}
    document = sealed(document)
    work.write(PROXY, _json(document))
    if shards:
        compare(made, checkpoint, shards, recipe.document())
    check(made, document)
    work.publish()
    return Built(work.out, document, "resumed" if begun else "built", notes)


def _choose(checkpoint: Checkpoint, shape: ModelShape, recipe: Recipe, table: Calibration | None) -> dict[str, Any]:
    asked = recipe.experts is not None or recipe.budgets
    if asked and not set(recipe.layers or range(shape.layers)) & set(shape.sparse):
        raise InputError(
            f"no kept layer of this {shape.family.name} model has experts; leave out --experts and --budget"
        )
    from faultproxy.proxy.choose import choose_experts

    found = choose_experts(checkpoint, shape, recipe, table)
    experts = {str(n): list(ids) for n, ids in found.experts.items()}
    return {"experts": experts, "method": found.method, "why": found.why}


def _check_space(work: Work, shards: tuple[Shard, ...]) -> None:
    wanted = sum(shard.size - work.done.get(shard.file, 0) for shard in shards) + _SPARE
    if (free := shutil.disk_usage(work.folder).free) < wanted:
        raise InputError(
            f"{visible(str(work.out))} needs {wanted / 1e9:.1f} GB more, and its disk has {free / 1e9:.1f} GB free; make room, keep fewer experts "
            "or layers, or give an OUT elsewhere"
        )


def _copy(checkpoint: Checkpoint, shards: tuple[Shard, ...], recipe: Recipe, work: Work, progress: Progress) -> None:
    total, before = sum(shard.size for shard in shards), 0
    for shard in shards:
        for reached in _shard(checkpoint, shard, recipe, work):
            progress(before + reached, total)
        before += shard.size


def _shard(checkpoint: Checkpoint, shard: Shard, recipe: Recipe, work: Work) -> Iterator[int]:
    """Bring one shard to its end; yields the bytes that are written."""
    out = os.open(work.model / shard.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        marked = min(work.done.get(shard.file, 0), os.fstat(out).st_size)
        if marked < len(shard.header):
            marked = 0
        os.ftruncate(out, marked)
        os.lseek(out, marked, os.SEEK_SET)
        reached = marked or write_all(out, shard.header)
        skip = reached - len(shard.header)
        if recipe.weights == "random":
            steps = _draw(checkpoint, shard, recipe.seed, skip, out)
        else:
            steps = copy(checkpoint.source, spans(shard, skip), out)
        flushing: Future[None] | None = None
        # To disk while the next bytes are copied.
        with ThreadPoolExecutor(1) as pool:
            for step in steps:
                reached += step
                yield reached
                if reached - marked >= _MARK:
                    if flushing:
                        flushing.result()
                    marked, flushing = reached, pool.submit(_flush, work, out, shard.file, reached)
            if flushing:
                flushing.result()
        if reached != shard.size:
            raise InputError(f"{shard.file} came out with {reached} bytes, not {shard.size}; was the source changed?")
        if marked != reached:
            _flush(work, out, shard.file, reached)
    finally:
        os.close(out)


def _flush(work: Work, out: int, file: str, size: int) -> None:
    os.fsync(out)
    work.mark(file, size)


def _draw(checkpoint: Checkpoint, shard: Shard, seed: int, skip: int, out: int) -> Iterator[int]:
    for tensor in shard.tensors:
        if skip < tensor.size:
            for data in drawn(checkpoint, tensor, seed, skip):
                yield write_all(out, data)
        skip = max(0, skip - tensor.size)


def _instantiate(cut: Cut, recipe: Recipe, work: Work) -> None:
    from faultproxy.proxy.build.fresh import instantiate

    shutil.rmtree(work.model)
    work.model.mkdir()
    instantiate(cut.config, work.model, recipe.seed)
    os.sync()


def _document(
    checkpoint: Checkpoint, cut: Cut, recipe: Recipe, made: Checkpoint, chosen: dict[str, Any], facts: dict[str, Any]
) -> dict[str, Any]:
    def count(of: Checkpoint) -> int | None:
        return parameters((tensor.name, tensor.dtype, tensor.shape) for tensor in of.tensors.values()) or None

    return {
        "schema": 1,
        "faultproxy": __version__,
        **facts,
        "source": {
            "name": checkpoint.source.name,
            "sha256": checkpoint.digests,
            "layers": cut.shape.layers,
            "experts": max(cut.shape.experts),
        },
        "recipe": recipe.document(),
        "kept": {"layers": list(cut.layers), "experts": {str(n): list(ids) for n, ids in cut.experts.items()}},
        "method": chosen["method"],
        "why": chosen["why"],
        "parameters": {"source": count(checkpoint), "proxy": count(made)},
        "bytes": sum(made.sizes.values()),
        "shards": len(made.sizes),
        "warnings": list(cut.warnings),
        "files": {},
    }


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _json(document: Any) -> bytes:
    """Indented, with lists of numbers on one line; no string of JSON holds a line break as it is."""
    text = json.dumps(document, indent=2)
    return re.sub(r"\[\n[\s\d,]*\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text).encode() + b"\n"
