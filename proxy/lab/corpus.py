"""Makes the corpus: runs every program of the design, healthy and with faults that fork from their healthy twin.

A fault run restores the snapshot its twin took just before the onset, so both share every earlier step bit for bit and
differ by the fault alone; it also costs only the steps after it. Two plain processes take one program at a time, one
thread each: numbers depend on the thread count, and low-priority workers starve. A finished run is kept at once under
`.work/`, a finished program as one file, so that the same command continues after a kill, and later with a larger size.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from faultproxy.analyzer.errors import InputError, no_such
from faultproxy.proxy.lab import design, effect, labels, store
from faultproxy.proxy.lab.design import Run
from faultproxy.proxy.lab.effect import EFFECT
from faultproxy.proxy.lab.workers import Report, progress, share
from faultproxy.proxy.run.config import FaultSpec, Program

if TYPE_CHECKING:
    import pyarrow as pa


class Start(NamedTuple):
    """Where a fault run forks from: the state of its twin just before the onset, and the values up to there."""

    state: Any
    head: pa.Table


@dataclass(frozen=True)
class RunResult:
    """One run: canonical values, what is known of it without its fault, CPU seconds, and starts by onset."""

    table: pa.Table
    facts: dict[str, Any]
    seconds: float
    starts: dict[int, Start] = field(default_factory=dict)


def simulate(
    program: Program, fault: FaultSpec | None = None, severity: int = 2, onset: int | None = None, seed: int = 0,
    steps: int | None = None, *, start: Start | None = None, keep: Collection[int] = (), device: str = "cpu",
) -> RunResult:  # fmt: skip
    """Run a program for `steps` (its own number by default), with `fault` from step `onset` on.

    `keep` names onsets at which to take a start; `start` continues from one instead of step 1. Both ways give the same
    values bit for bit. Seconds are those of this call: a run from a start does not count the twin's.
    """
    import pyarrow as pa

    from faultproxy.analyzer.record.stream import Recorder
    from faultproxy.proxy.run.inject import inject
    from faultproxy.proxy.run.loop import Loop

    steps = steps or program.steps
    if fault is not None and not (onset and 1 <= onset <= steps):
        raise InputError(f"{fault.name}: got onset {onset}; allowed is a step from 1 to {steps}; choose one")
    run = Run(program.name, seed, steps, *((fault.name, severity, onset) if fault else ()))
    facts = facts_of(program)
    with one_thread():
        begun = time.process_time()
        recorder = Recorder(None, run.id, facts)
        loop = Loop(program, seed, recorder, device=device)
        if start is not None:
            loop.restore(start.state)
        starts = {}
        for at in sorted(keep):
            loop.run(at - 1)
            starts[at] = Start(loop.snapshot(), recorder.table())
        if fault is not None and onset is not None:
            if start is None:
                loop.run(onset - 1)
            inject(loop, fault, severity)
        loop.run(steps)
        table = recorder.table() if start is None else pa.concat_tables([start.head, recorder.table()])
        return RunResult(store.canonical(table, run.id), facts, time.process_time() - begun, starts)


def facts_of(program: Program) -> dict[str, Any]:
    """Run facts of docs/trace.md: those of the program, the same for a healthy and a faulty run of it."""
    algorithm = "ppo" if program.algorithm == "ppo" else "rl" if program.rl else "supervised"
    formats = {name: getattr(program, name) for name in ("trainer_compute", "rollout_weights", "rollout_compute")}
    taken = {"name", "task", "task_args", "model", "ranks", *formats}
    return {
        "framework": "faultproxy",
        "algorithm": "preference" if program.algorithm == "dpo" else algorithm,
        "model": asdict(program.model),
        "precision": formats if program.rl else {"trainer_compute": program.trainer_compute},
        "parallelism": {"dp": program.ranks},
        "hyperparameters": {name: value for name, value in asdict(program).items() if name not in taken},
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread, as every corpus trace is made; the number before is set back."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def generate(
    folder: Path, *, size: int = 2500, programs: Sequence[str] = (), workers: int = 2, force: bool = False
) -> None:
    """Make or continue the corpus in `folder`: at least `size` runs by the design, or those of some `programs` of it.

    Runs that are there and current are kept (`force` makes them again), failed ones are tried again. One worker works in
    this process. A larger size later adds runs to the same programs. Labels everything at the end.
    """
    every, faults = catalogues()
    for name in programs:
        if name not in every:
            raise no_such("program", name, every, "`faultproxy lab list`")
    quota = design.quota_for(size, every, faults)
    runs = design.plan(every, faults, quota)
    folder.mkdir(parents=True, exist_ok=True)
    units = [(folder, every[name], faults, runs[name], force) for name in programs or every]
    open_units = [unit for unit in units if force or not _current(*unit[:-1])]
    with progress(sum(len(unit[3]) for unit in open_units), len(open_units)) as report:
        share(_make, open_units, workers, report)
    with suppress(OSError):  # where other programs' unfinished runs wait in it
        (folder / ".work").rmdir()
    labels.relabel(folder, faults, quota)


def catalogues() -> tuple[dict[str, Program], dict[str, FaultSpec]]:
    """All programs and all faults by name."""
    from faultproxy.proxy.lab.programs import programs
    from faultproxy.proxy.run.inject import faults

    return {program.name: program for program in programs()}, {fault.name: fault for fault in faults()}


def _current(folder: Path, program: Program, faults: dict[str, FaultSpec], runs: list[Run]) -> bool:
    """True where the program's file holds exactly the runs of the design, none of them failed."""
    path = folder / f"{program.name}.parquet"
    if not path.exists():
        return False
    rows = store.read_shard(path, values=False).rows
    return {row["digest"] for row in rows if row["error"] is None} == {
        design.digest(run, program, faults.get(run.fault or "")) for run in runs
    }


def _make(
    folder: Path, program: Program, faults: dict[str, FaultSpec], runs: list[Run], force: bool, report: Report
) -> None:
    """Make the missing runs of one program and write its file."""
    path, parts = folder / f"{program.name}.parquet", folder / ".work" / program.name
    if force:
        shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True, exist_ok=True)
    footer = {"facts": facts_of(program), "source": source_hash()}
    digests = {run.id: design.digest(run, program, faults.get(run.fault or "")) for run in runs}
    kept = [] if force else [path, *parts.glob("*.parquet")]
    done = {
        row["run"]: (row, table)
        for file in kept if file.exists() for row, table in store.read_shard(file).runs()
        if digests.get(row["run"]) == row["digest"]
    }  # fmt: skip
    for row, _ in done.values():
        report(row)
    for seed in sorted({run.seed for run in runs}):
        for run, result in _seed([run for run in runs if run.seed == seed], program, faults, done):
            table = result.table if isinstance(result, RunResult) else None
            row = {
                **asdict(run), "run": run.id, "digest": digests[run.id], "values": 0 if table is None else len(table),
                "seconds": round(result.seconds, 3) if isinstance(result, RunResult) else None,
                "error": result if isinstance(result, str) else None,
            }  # fmt: skip
            done[run.id] = row, table
            store.write_shard(parts / f"{digests[run.id]}.parquet", [(row, table)], **footer)
            report(row)
    store.write_shard(path, list(done.values()), **footer)
    shutil.rmtree(parts)
    report(program.name)


def _seed(
    runs: list[Run], program: Program, faults: dict[str, FaultSpec], done: dict[str, tuple[dict[str, Any], pa.Table]]
) -> Iterator[tuple[Run, RunResult | str]]:
    """Make the runs of one seed that are not done: the healthy one, then every fault from its start; a str is an error."""
    healthy, *faulty = runs
    if all(run.id in done for run in runs):
        return
    twin = _attempt(program, seed=healthy.seed, steps=healthy.steps, keep={run.onset for run in faulty})
    known = done.get(healthy.id)
    if known is None or isinstance(twin, str) or not store.same(twin.table, known[1]):
        # Also where another machine made the stored twin: faults must share the steps of the twin beside them.
        for run in runs:
            done.pop(run.id, None)
        yield healthy, twin
    for run in faulty:
        if run.id in done:
            continue
        if isinstance(twin, str):
            yield run, f"its healthy twin failed: {twin}"
            continue
        assert run.fault is not None and run.onset is not None
        yield (
            run,
            _attempt(
                program, faults[run.fault], run.severity, run.onset, run.seed, run.steps, start=twin.starts[run.onset]
            ),
        )


def _attempt(program: Program, *setting: Any, **options: Any) -> RunResult | str:
    """A run, or what it raised: one broken run must not end a night's work, and its row says so."""
    try:
        return simulate(program, *setting, **options)
    except Exception as error:  # noqa: BLE001 - see above
        return f"{type(error).__name__}: {error}"


def source_hash() -> str:
    """Hash of the code that makes the numbers: loop, mechanisms, and recorder."""
    import faultproxy.analyzer
    import faultproxy.proxy.run

    roots = [Path(faultproxy.proxy.run.__path__[0]), Path(faultproxy.analyzer.__path__[0]) / "record"]
    files = sorted(path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".toml"))
    return design.digest_of(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files))


class Again(NamedTuple):
    """A corpus run that was made again: are its values bit-identical, is its label the same, how far its effect is."""

    run: str
    identical: bool
    same_type: bool
    effect_difference: float


def regenerate(folder: Path, n: int = 10, seed: int = 0) -> list[Again]:
    """Make `n` random runs of the corpus again, from step 1 and without a fork, and label them anew."""
    programs, faults = catalogues()
    rows = [row for row in store.manifest(folder) if row["error"] is None]
    found = []
    for row in sorted(random.Random(seed).sample(rows, min(n, len(rows))), key=lambda row: str(row["run"])):
        fault = faults.get(row["fault"] or "")
        result = simulate(programs[row["program"]], fault, row["severity"], row["onset"], row["seed"], row["steps"])
        shard = store.read_shard(folder / f"{row['program']}.parquet")
        stored = next(table for other, table in shard.runs() if other["run"] == row["run"])
        kind, difference = "healthy", 0.0
        if fault is not None:
            healthy = labels.healthy_series(shard)
            own = effect.series(result.table)
            found_now, now = labels.label(own, healthy[row["twin"]], [*healthy.values()], fault, row["onset"])
            kind = found_now.type
            difference = max(
                abs(z - now[name]) / max(abs(z), EFFECT) for name, z in row["effect"].items() if name != store.TIME
            )
        found.append(Again(row["run"], store.same(result.table, stored), kind == row["type"], difference))
    return found
