"""Which runs the corpus holds: a sparse design over program x fault x severity x onset x seed.

All of it would be 48 x 100 x 3 x 3 x 3 = 130,000 runs. Instead every fault at every severity gets a quota of cells, drawn
by hash from the (program, onset) pairs that fit: first every fitting program once, each at an onset of its own, then
every program again at its next onset. So a fault that few programs fit still fills its quota, and a larger quota only
adds cells. The draw reads names alone: another fault changes no cell of the others, another program takes at most one
place a pass in each list it fits. Seeds 0 to 2 of a program run healthy too; they are the twins that its faults fork from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from faultproxy.proxy.run.config import FaultSpec, Program

#: Bump when a change of loop, recorder, or mechanism changes recorded numbers: every run is then made again.
SIMULATION = 1
#: First step with the fault. Late enough for a baseline, early enough to leave half of 30-36 steps.
ONSETS = (8, 12, 16)
#: Steps a fault must have left to show.
MIN_AFTER = 12
SEEDS = (0, 1, 2)
SEVERITIES = (0, 1, 2)
#: Healthy runs of a program; more where needed to be a quarter of its runs.
HEALTHY = 16
#: Cells of a fault at each severity in the smallest corpus. The strongest severity gets half as many again.
MIN_QUOTA = 2
#: Lots of a supervised program in a draw: under half of the faults fit it, the others need a rollout.
SUPERVISED_LOTS = 2


@dataclass(frozen=True)
class Run:
    """One run of the corpus; `fault`, `severity`, and `onset` (first step with the fault) are None in healthy ones."""

    program: str
    seed: int
    steps: int
    fault: str | None = None
    severity: int | None = None
    onset: int | None = None

    @property
    def cell(self) -> str:
        """What the seeds of one setting share: `PROGRAM/FAULT.2@12` or `PROGRAM/healthy`."""
        return f"{self.program}/healthy" if self.fault is None else (
            f"{self.program}/{self.fault}.{self.severity}@{self.onset}"
        )  # fmt: skip

    @property
    def id(self) -> str:
        """The run id in the values: `PROGRAM/FAULT.2@12/s1`."""
        return f"{self.cell}/s{self.seed}"

    @property
    def twin(self) -> str | None:
        """The healthy run that a fault run forks from."""
        return None if self.fault is None else f"{self.program}/healthy/s{self.seed}"


def plan(programs: Mapping[str, Program], faults: Mapping[str, FaultSpec], quota: int) -> dict[str, list[Run]]:
    """The runs of every program: healthy seeds first, then its fault cells by name, each with all SEEDS."""
    drawn: dict[str, list[tuple[str, int, int]]] = {name: [] for name in programs}
    for fault in faults.values():
        for severity in SEVERITIES[: len(fault.levels)]:
            share = quota + quota // 2 if severity == SEVERITIES[-1] else quota
            for program, onset in _candidates(fault, severity, programs.values())[:share]:
                drawn[program].append((fault.name, severity, onset))
    runs = {}
    for name, cells in drawn.items():
        steps = programs[name].steps
        # With as many healthy seeds as there are cells of three runs, a quarter of the runs is healthy.
        healthy = max(HEALTHY, len(cells) * len(SEEDS) // 3)
        runs[name] = [Run(name, seed, steps) for seed in range(healthy)]
        runs[name] += [Run(name, seed, steps, *cell) for cell in sorted(cells) for seed in SEEDS]
    return runs


def quota_for(size: int, programs: Mapping[str, Program], faults: Mapping[str, FaultSpec]) -> int:
    """The smallest quota whose plan has at least `size` runs; where programs and faults cannot, the largest of use."""
    largest = len(programs) * len(ONSETS)
    for quota in range(MIN_QUOTA, largest):
        if sum(map(len, plan(programs, faults, quota).values())) >= size:
            return quota
    return largest


def _candidates(fault: FaultSpec, severity: int, programs: Iterable[Program]) -> list[tuple[str, int]]:
    """(program, onset) pairs in the order in which they are taken."""
    ranked = []
    for program in programs:
        if fault.fits(program):
            setting = (fault.name, severity, program.name)
            place = min(_draw(*setting, "lot", lot) for lot in range(1 if program.rl else SUPERVISED_LOTS))
            drawn = sorted((_draw(*setting, onset), onset) for onset in ONSETS if program.steps - onset >= MIN_AFTER)
            ranked += [(turn, place, program.name, onset) for turn, (_, onset) in enumerate(drawn)]
    return [(name, onset) for _, _, name, onset in sorted(ranked)]


def _draw(*words: object) -> str:
    return digest_of("/".join(map(str, words)))


def digest(run: Run, program: Program, fault: FaultSpec | None) -> str:
    """Changes when, and only when, the numbers of the run may change: its setting, the arguments of program and fault."""
    injected = None if fault is None else [fault.mechanism, fault.levels[run.severity or 0]]
    return digest_of(json.dumps([SIMULATION, run.id, run.steps, _set(program), injected], sort_keys=True, default=str))


def design_hash(digests: Iterable[str]) -> str:
    """One hash of all runs of a program or corpus, whatever their order."""
    return digest_of("\n".join(sorted(digests)))


def digest_of(text: str | bytes) -> str:
    """16 hex digits of SHA-256."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def _set(value: Any) -> Any:
    """The fields of a dataclass that differ from their default, so that a new option leaves old runs valid."""
    if not is_dataclass(value):
        return value
    plain = {}
    for f in fields(value):
        own = getattr(value, f.name)
        if own != f.default and own != {}:
            plain[f.name] = _set(own)
    return plain
