"""Head to head with losslint, runmedic, rl-doctor, and trainspotter: `python benchmarks/peers.py [FOLDER]... [--exports 100]`.

Every tool reads the same logs with its defaults: the FOLDERs hold labelled public logs (`labels.jsonl`, see cases.py), the
exports are runs of held-out lab programs written as logs (see exports.py, level 4: every signal shown). The peers are installed
into a virtual environment of their own (`--venv`, made on first use). An alarm is a finding that a tool calls a warning or
worse, counted generously: the type is named right when any such finding means an accepted failure type (MEANS below), and
any reading at all counts as read. Seconds are those of a process a log, start-up included; machines are noisy, so only the ratio to
the others of the same run means something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cases import labels
from exports import CORPUS, format_of, programs

from faultproxy.proxy.lab import export, store

#: What is compared, at the versions that were read when MEANS was written.
VERSIONS = {
    "losslint": "losslint==0.4.1",
    "runmedic": "runmedic==0.1.1",
    "rl-doctor": "rldoctor==0.2.0",
    "trainspotter": "trainspotter==0.2.6",
}
_NONFINITE = ("nonfinite_loss", "nonfinite_gradient")
_GRADIENT = ("gradient_explosion", "zero_gradient", "wrong_gradient_scale", *_NONFINITE)
#: A peer's finding to the failure types it can fairly stand for.
MEANS: dict[str, tuple[str, ...]] = {
    # losslint
    "nan_inf": _NONFINITE, "divergence": ("loss_divergence", "gradient_explosion"), "loss_spike": ("loss_spike", "loss_divergence"),
    "overfit_onset": ("overfitting",), "stagnation": ("no_learning",), "step_backtrack": ("resume_mismatch",),
    # runmedic
    "non_finite": _NONFINITE, "loss_spikes": ("loss_spike", "loss_divergence"), "grad_spikes": _GRADIENT, "no_learning": ("no_learning", "zero_gradient"),
    "overfitting": ("overfitting",), "slowdown": ("slowdown",), "slow_steps": ("slowdown",), "memory_growth": ("out_of_memory",),
    "cuda_oom": ("out_of_memory",), "dataloader_killed": ("data_fault", "crash"), "amp_overflow": ("loss_scale_collapse", "nonfinite_gradient"),
    "anomaly_nan": _NONFINITE, "nccl_timeout": ("hang", "crash"), "constant_lr_plateau": ("no_learning",),
    # rl-doctor
    "advantage_collapse": ("zero_advantage",), "clip_saturation": ("policy_drift",), "entropy_collapse": ("entropy_collapse", "entropy_explosion"),
    "gradient_pathology": _GRADIENT, "kl_drift": ("policy_drift",), "length_pathology": ("length_runaway", "length_truncation"),
    "plateau": ("no_learning", "reward_collapse"), "reward_composition": ("reward_fault",), "reward_hacking": ("reward_hacking",),
    # trainspotter
    "spikes": ("loss_spike", "loss_divergence"), "grad_norm": _GRADIENT, "throughput": ("slowdown",), "loss_floor": ("data_fault",),
}  # fmt: skip
_TIMEOUT = 120.0


class Case(NamedTuple):
    """One log with its truth; `types` empty where the run is healthy or calling it so is accepted."""

    path: Path
    types: frozenset[str]
    failed: bool


class Said(NamedTuple):
    """What a tool made of a log: whether it read it, and the failure types of its alarms (`?` for one without a type)."""

    read: bool
    alarms: frozenset[str]


def _json(command: Sequence[str]) -> Any:
    """The JSON that a command printed, or None."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        return json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def _alarms(findings: Sequence[dict[str, Any]], name: str) -> frozenset[str]:
    loud = [f for f in findings if str(f["severity"]).lower() in ("warning", "error", "critical")]
    return frozenset(kind for finding in loud for kind in MEANS.get(finding.get(name, ""), ("?",)))


def _losslint(tool: str, path: Path) -> Said:
    found = _json([tool, "check", str(path), "--format", "json"])
    return Said(bool(found and found["runs"]), _alarms(found["findings"], "check") if found else frozenset())


def _runmedic(tool: str, path: Path) -> Said:
    found = _json([tool, "diagnose", str(path), "--json"])
    found = found if isinstance(found, list) else []
    read = any(run.get("series") or run.get("findings") for run in found)
    return Said(read, frozenset().union(*(_alarms(run.get("findings", ()), "check") for run in found)))


def _rl_doctor(tool: str, path: Path) -> Said:
    found = _json([tool, "diagnose", str(path), "-f", "json"])
    return Said(
        bool(found and found["run"]["fields"]), _alarms(found["findings"], "detector") if found else frozenset()
    )


def _trainspotter(tool: str, path: Path) -> Said:
    found = _json([tool, "analyze", str(path), "--output", "json"])
    return Said(
        bool(found and found["run"]["metrics"]), _alarms(found["findings"], "detector") if found else frozenset()
    )


def _faultproxy(tool: str, path: Path) -> Said:
    found = _json([tool, str(path), "--format", "json"])
    found = found[0] if isinstance(found, list) else found
    failed = bool(found and found["verdict"] == "failed")
    return Said(bool(found and found["run"]["steps"] is not None), frozenset([found["failure_type"]] if failed else ()))


Reader = Callable[[str, Path], Said]
READERS: dict[str, Reader] = {
    "losslint": _losslint, "runmedic": _runmedic, "rl-doctor": _rl_doctor, "trainspotter": _trainspotter,
}  # fmt: skip


def public(folder: Path) -> Iterator[Case]:
    """The labelled logs of a folder."""
    for label in labels(folder):
        accepted = frozenset(label["accepted_types"]) - {"healthy", "inconclusive"}
        yield Case(folder / label["case"], accepted, label["failure_type"] != "healthy")


def exported(folder: Path, count: int) -> Iterator[Case]:
    """About `count` runs of held-out programs, spread evenly, as logs of level 4 in `folder`."""
    chosen = set(programs(CORPUS, "held-out"))
    known = [row for row in store.manifest(CORPUS) if row["error"] is None and row["program"] in chosen]
    known = [row for row in known if row["kind"] == "benign" or row["fault"] is None or row["type"] != "healthy"]
    wanted = {row["run"] for row in known[:: max(1, len(known) // count)][:count]}
    for program in sorted({row["program"] for row in known if row["run"] in wanted}):
        for row, trace in store.load(CORPUS, program):
            if row["run"] not in wanted:
                continue
            format_ = format_of(row, trace, 0)
            path = folder / row["run"].replace("/", "_").replace("@", "_") / export.FORMATS[format_].file
            path.parent.mkdir()
            path.write_text(export.export(trace, format_, 4), encoding="utf-8")
            healthy = row["fault"] is None or row["kind"] == "benign"
            yield Case(path, frozenset() if healthy else frozenset([row["type"]]), not healthy)


def score(name: str, tool: str, reader: Reader, cases: Sequence[Case]) -> str:
    """One line of the table."""
    start = time.perf_counter()
    said = [reader(tool, case.path) for case in cases]
    seconds = time.perf_counter() - start
    pairs = list(zip(cases, said, strict=True))
    failed = [(case, got) for case, got in pairs if case.failed]
    healthy = [got for case, got in pairs if not case.failed]
    alarmed = sum(bool(got.alarms) for _, got in failed)
    named = sum(bool(got.alarms & case.types) for case, got in failed)
    false = sum(bool(got.alarms) for got in healthy)
    read = sum(got.read for got in said)
    return (
        f"| {name} | {read}/{len(cases)} | {alarmed}/{len(failed)} | {false}/{len(healthy)} | {named}/{len(failed)} "
        f"| {seconds / len(cases):.2f} |"
    )


def installed(folder: Path) -> Path:
    """The folder of the peers' commands, installed on first use."""
    commands = folder / ("Scripts" if sys.platform == "win32" else "bin")
    if not all((commands / name).exists() for name in VERSIONS):
        venv.create(folder, with_pip=True)
        subprocess.run([commands / "python", "-m", "pip", "install", "-q", *VERSIONS.values()], check=True)
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--exports", type=int, default=100)
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "faultproxy-peers")
    options = parser.parse_args()
    commands = installed(options.venv)
    ours = str(Path(sys.executable).with_name("analyze"))
    tools = [("faultproxy", ours, _faultproxy), *((name, str(commands / name), READERS[name]) for name in READERS)]
    with tempfile.TemporaryDirectory() as scratch:
        groups = [(f"public logs ({folder.name})", list(public(folder))) for folder in options.folders]
        if options.exports:
            groups.append(("exports of held-out lab programs", list(exported(Path(scratch), options.exports))))
        for title, cases in groups:
            print(f"\n{title}: {len(cases)} logs\n")
            print(
                "| tool | read | alarms on failed | false alarms | type named right | s a log |\n|---|---|---|---|---|---|"
            )
            for name, tool, reader in tools:
                print(score(name, tool, reader, cases), flush=True)


if __name__ == "__main__":
    main()
