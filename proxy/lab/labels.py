"""Labels of a corpus: effects, failure types, and the manifest, computed from its finished files alone.

A pass of its own, so that the oracle can change, or be frozen, after the runs were made. Factor and cause are the
injector's; the type is the oracle's, from the faulty run, its healthy twin, and the effect against the program's first
HEALTHY healthy seeds (always these, so that a larger corpus keeps its labels).
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faultproxy import __version__
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.files import atomic_path, write_atomic
from faultproxy.proxy.lab import datasheet, design, effect, oracle, store
from faultproxy.proxy.lab.effect import Series
from faultproxy.proxy.lab.oracle import Label
from faultproxy.proxy.run.config import FaultSpec, Program

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def relabel(folder: Path, faults: dict[str, FaultSpec], quota: int | None = None) -> None:
    """Label every run of the corpus and write manifest.parquet, manifest.json, and DATASHEET.md.

    `quota` is that of the design (design.py); by default the one of the manifest that is there.
    """
    quota = quota or summary(folder)["design"]["quota"]
    rows: list[Row] = []
    files = {}
    with click.progressbar(store.shards(folder), label="labels", show_eta=True, file=sys.stderr) as paths:
        for path in paths:
            shard = store.read_shard(path)
            rows += _labelled(shard, faults)
            files[path.stem] = {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size, "runs": len(shard.rows),
                "design": design.design_hash(row["digest"] for row in shard.rows), "source": shard.source,
                "facts": shard.facts,
            }  # fmt: skip
    rows.sort(key=lambda row: str(row["run"]))
    with atomic_path(folder / store.MANIFEST, force=True) as temporary:
        _write(rows, temporary)
        manifest_hash = hashlib.sha256(temporary.read_bytes()).hexdigest()
    document = {
        "schema": 1, "code": __version__, "simulation": design.SIMULATION, "oracle": oracle.VERSION,
        "oracle_source": oracle.fingerprint(),
        "design": {"quota": quota, "onsets": design.ONSETS, "seeds": design.SEEDS, "severities": design.SEVERITIES},
        "counts": counts(rows), "manifest_sha256": manifest_hash, "programs": files,
    }  # fmt: skip
    text = json.dumps(document, indent=1) + "\n"
    write_atomic(folder / store.SUMMARY, text.encode(), force=True)
    write_atomic(folder / store.DATASHEET, datasheet.render(rows, document).encode(), force=True)


def summary(folder: Path) -> dict[str, Any]:
    """manifest.json of a corpus."""
    path = folder / store.SUMMARY
    if not path.is_file():
        raise store.no_corpus(folder, store.SUMMARY)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def label(
    run: Series, twin: Series, healthy: list[Series], fault: FaultSpec, onset: int
) -> tuple[Label, dict[str, float]]:
    """The oracle's label of a faulty run, and its effect: z by signal."""
    found = effect.effects(run, twin, healthy, onset)
    return oracle.label(run, twin, found, fault, onset), {name: float(f"{z:.3g}") for name, z in found.items()}


def healthy_series(shard: store.Shard) -> dict[str, Series]:
    """The program's healthy runs that effects are measured against, by run id."""
    return {
        row["run"]: effect.series(table)
        for row, table in shard.runs()
        if row["fault"] is None and row["seed"] < design.HEALTHY
    }


def _labelled(shard: store.Shard, faults: dict[str, FaultSpec]) -> list[Row]:
    healthy = healthy_series(shard)
    tables = {row["run"]: table for row, table in shard.runs()}
    rows = []
    for row in shard.rows:
        run = design.Run(*(row[name] for name in ("program", "seed", "steps", "fault", "severity", "onset")))
        fault = faults.get(row["fault"] or "")
        if row["fault"] and fault is None:
            raise InputError(f"{run.id}: its fault is not in faults.toml any more; run `faultproxy lab generate` again")
        known: Row = dict.fromkeys(("type", "first_bad_step", "reason", "no_effect", "learned"))
        moved: dict[str, float] = {}
        if row["error"] is None and fault is None:
            own = healthy[run.id] if run.id in healthy else effect.series(tables[run.id])
            known |= {"type": "healthy", "learned": learns(own)}
        elif row["error"] is None and fault is not None:
            own = effect.series(tables[run.id])
            found, moved = label(own, healthy[run.twin or ""], [*healthy.values()], fault, row["onset"])
            known |= {name: getattr(found, name) for name in ("type", "first_bad_step", "reason", "no_effect")}
        rows.append({
            **row, **known, "cell": run.cell, "twin": run.twin, "effect": moved,
            "injected": fault is not None and fault.kind == "fault",
            **{name: getattr(fault, name) if fault else None for name in ("kind", "factor", "cause")},
        })  # fmt: skip
    return rows


def learns(run: Series) -> bool:
    """True where a healthy run ends better than it began: quarters of the true reward, or else of the loss."""
    import numpy as np

    curve = run["true_reward"] if "true_reward" in run else -run["loss"]
    quarter = max(1, len(curve) // 4)
    return bool(np.nanmean(curve[-quarter:]) > np.nanmean(curve[:quarter]))


def counts(rows: list[Row]) -> dict[str, int]:
    """What the datasheet and `check` count; runs that failed count in `failed` alone."""
    made = [row for row in rows if row["error"] is None]
    injected = [row for row in made if row["injected"]]
    return {
        "traces": len(made),
        "failed": len(rows) - len(made),
        "programs": len({row["program"] for row in made}),
        "cells": len({row["cell"] for row in made if row["fault"]}),
        "faults": len({row["fault"] for row in made if row["fault"]}),
        "healthy": sum(row["fault"] is None for row in made),
        "learned": sum(row["learned"] is True for row in made),
        "failing": sum(row["type"] != "healthy" for row in injected),
        "harmless": sum(row["type"] == "healthy" and not row["no_effect"] for row in injected),
        "no_effect": sum(row["no_effect"] is True for row in injected),
        "benign": sum(row["kind"] == "benign" for row in made),
    }


def _write(rows: list[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, small, flag = pa.string(), pa.int16(), pa.bool_()
    schema = pa.schema({
        "run": text, "cell": text, "program": text, "fault": text, "kind": text, "severity": small, "onset": small,
        "seed": small, "steps": small, "factor": text, "cause": text, "type": text, "first_bad_step": small, "reason": text, "injected": flag,
        "no_effect": flag, "learned": flag, "twin": text, "values": pa.int32(), "seconds": pa.float64(), "digest": text, "error": text,
        "effect": text,
    })  # fmt: skip
    plain = [row | {"effect": json.dumps(row["effect"], separators=(",", ":"))} for row in rows]
    pq.write_table(pa.Table.from_pylist(plain, schema), path, compression="zstd", compression_level=19)


def check(folder: Path, programs: dict[str, Program], faults: dict[str, FaultSpec]) -> list[str]:
    """What is wrong or out of date with a corpus, all of it; empty where it is current. Takes a second or two."""
    told, rows = summary(folder), store.manifest(folder)
    problems = []
    if hashlib.sha256((folder / store.MANIFEST).read_bytes()).hexdigest() != told["manifest_sha256"]:
        problems.append(f"{store.MANIFEST}: not the file that {store.SUMMARY} describes; run `lab generate` again")
    if told["oracle"] != oracle.VERSION:
        problems.append(f"labels are of oracle {told['oracle']}, the oracle is {oracle.VERSION}; label again")
    if told["counts"] != counts(rows):
        problems.append(f"{store.SUMMARY} counts {told['counts']}, {store.MANIFEST} holds {counts(rows)}; label again")
    if datasheet.render(rows, told) != (folder / store.DATASHEET).read_text():
        problems.append(f"{store.DATASHEET}: not what the manifest says; label again")
    plan = design.plan(programs, faults, told["design"]["quota"])
    found = {path.stem: path for path in store.shards(folder)}
    for name in sorted(set(plan) | set(found) | set(told["programs"])):
        if not (name in plan and name in found and name in told["programs"]):
            there = [
                where
                for where, names in (("design", plan), ("folder", found), ("manifest", told["programs"]))
                if name in names
            ]
            problems.append(f"{name}: only in {' and '.join(there)}; run `lab generate` again")
            continue
        listed = [row for row in rows if row["program"] == name]
        problems += [f"{name}: {text}" for text in _stale(found[name], told["programs"][name], listed)]
        wanted = design.design_hash(
            design.digest(run, programs[name], faults.get(run.fault or "")) for run in plan[name]
        )
        if wanted != told["programs"][name]["design"]:
            problems.append(
                f"{name}: not the runs of the design, or made with other settings; run `lab generate` again"
            )
    return problems


def _stale(path: Path, told: dict[str, Any], listed: list[Row]) -> list[str]:
    """Where a program's file and its rows of the manifest differ."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    problems = []
    if hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
        problems.append(f"not the file that {store.SUMMARY} describes")
    runs: pa.ChunkedArray = pq.read_table(path, columns=["run"])["run"]
    held = {entry["values"]: entry["counts"] for entry in pc.value_counts(runs.cast("string")).to_pylist()}
    wanted = {row["run"]: row["values"] for row in listed if row["error"] is None}
    if held != wanted:
        odd = sorted(run for run in held.keys() | wanted.keys() if held.get(run) != wanted.get(run))
        problems.append(f"values and manifest differ in {len(odd)} runs, such as {odd[0]}")
    return problems
