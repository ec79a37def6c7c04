"""What the hook does on jobs of every layout, on huge logs, and killed: `python benchmarks/hook.py [jobs|huge|kill|all]`.

jobs  every layout of fixtures/generators/jobs.py around logs of lab runs: does the hook say what `analyze` says of the log?
huge  a log of --gigabytes: first bad step against the truth, seconds, bytes read, resident memory
kill  the hook and its children killed at --kills random moments: is any file in its folder not whole?

`--output FILE` keeps the figures as JSON. platforms.py beside this file runs the snippets of `hook install`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures"))

from generators import curves, faults, frameworks, jobs

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.trace import Trace
from faultproxy.proxy.lab import export, store

CORPUS = ROOT / "fixtures" / "corpus"
#: Lab programs that the layouts' formats fit, and how many faulty runs of each are laid out.
PROGRAMS = {"rl": ("add-qwen3-gspo", "copy-olmoe-grpo", "chain-qwen3moe-grpo"), "sft": ("copy-llama-sft", "dedupe-deepseekv3-sft"), "pretrain": ("induction-llama-pretrain", "markov-mixtral-pretrain")}  # fmt: skip
Row = dict[str, Any]


def hook(folder: Path, *options: str, **how: Any) -> tuple[int, Row | list[Row] | None, str]:
    """Run the hook as a platform does: (exit code, diagnosis.json, stderr)."""
    ended = subprocess.run(command(folder, *options), capture_output=True, text=True, check=False, **how)
    path = folder / "faultproxy" / "diagnosis.json"
    return ended.returncode, json.loads(path.read_text()) if path.exists() else None, ended.stderr


def command(folder: Path, *options: str) -> list[str]:
    code = "from faultproxy.analyzer.cli import script; script()"
    return [sys.executable, "-P", "-c", code, "hook", "run", "--job-dir", str(folder), *options]


# -- jobs -------------------------------------------------------------------------------------------------------------
def logs(form: str, runs: int) -> Iterator[tuple[str, str]]:
    """(name, log) of faulty runs of the lab, a failure type each, and a healthy one, as `form` writes them."""
    made = form if form in export.FORMATS else "verl-console"
    for program in (name for names in PROGRAMS.values() for name in names):
        held = list(store.load(CORPUS, program))
        if export.kind(held[0][1]) not in export.FORMATS[made].kinds or export.kind(held[0][1]) == "critic":
            continue
        effect = {row["type"]: (row, trace) for row, trace in held if row["type"] != "healthy" and not row["error"]}
        healthy = next((row, trace) for row, trace in held if row["fault"] is None)
        for row, trace in [*[effect[kind] for kind in sorted(effect)][:runs], healthy]:
            yield f"{row['run']}", text(trace, form)
        return


def text(trace: Trace, form: str) -> str:
    """The log of a run; frameworks that the lab does not export are written from the same rows."""
    if form in export.FORMATS:
        return export.export(trace, form, 2)
    keys, _ = export._keys(trace, export.FORMATS["verl-console"], 1)
    return frameworks.FRAMEWORKS[form].write(export._run(trace, keys))


def answer(report: Row) -> tuple[Any, ...]:
    return tuple(report[name] for name in ("verdict", "failure_type", "factor", "first_bad_step"))


def study_jobs(runs: int) -> list[Row]:
    """Every layout around a few logs."""
    found = []
    for layout, (form, _) in jobs.LAYOUTS.items():
        same = total = failed = 0
        wrong = []
        for name, log in logs(form, runs):
            with tempfile.TemporaryDirectory() as folder:
                plain = Path(folder) / (export.FORMATS[form].file if form in export.FORMATS else "train.log")
                plain.write_text(log, encoding="utf-8")
                wanted = answer(document(diagnose(read([str(plain)])[0])))
                job = jobs.build(Path(folder) / "job", layout, log)
                code, report, said = hook(job)
                got = answer(report) if isinstance(report, dict) else ("several runs" if report else said,)
                total += 1
                failed += wanted[0] == "failed"
                same += got == wanted and code == 0
                if got != wanted:
                    wrong.append({"run": name, "analyze": wanted, "hook": got})
        print(f"{layout:<48} {form:<14} {same}/{total}, {failed} of them failed", flush=True)
        for row in wrong:
            print("   ", row)
        found.append(
            {"layout": layout, "format": form, "same": same, "of": total, "failed": failed, "different": wrong}
        )
    return found


# -- huge -------------------------------------------------------------------------------------------------------------
#: (form, fault, share of the file that is good, lines between two rows); the step is drawn, to lie at no special offset.
HUGE = (
    ("verl-console", "nonfinite", 0.371, 0),
    ("verl-console", "entropy", 0.83, 0),
    ("verl-jsonl", "nonfinite", 0.052, 0),
    ("verl-jsonl", "reward", 0.59, 0),
    ("verl-console", "nonfinite", 0.642, 8000),
)


def study_huge(gigabytes: float, scratch: Path) -> list[Row]:
    """One log at a time: made, diagnosed, deleted."""
    good = curves.rl(7, 6000, growth=1.0, gain=0.0)[3000:]
    bad = {
        "nonfinite": faults.nonfinite([dict(row) for row in good], 0),
        "entropy": faults.change([dict(row) for row in good], 0, entropy=lambda x, n: x * 0.01),
        "reward": faults.change([dict(row) for row in good], 0, reward_mean=lambda x, n: 0.0, score_mean=lambda x, n: 0.0, reward_max=lambda x, n: 0.0, score_max=lambda x, n: 0.0),
    }  # fmt: skip
    found = []
    for form, fault, share, between in HUGE:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            log = Path(folder) / ("run.log" if form == "verl-console" else "run.jsonl")
            noise = "".join(jobs.CHATTER.splitlines(keepends=True)[n % 600] for n in range(between))
            rows = jobs.huge(log, good, good, 1 << 60, 50_000_000, form, noise)
            onset = int(share * rows * gigabytes * 20) + random.Random(fault).randrange(1000)
            last = jobs.huge(log, good, bad[fault], onset, int(gigabytes * 1e9), form, noise)
            os.sync()
            began = time.monotonic()
            code, report, said, usage = measured(Path(folder))
            seconds = time.monotonic() - began
            row = {
                "form": form,
                "fault": fault,
                "bytes": log.stat().st_size,
                "steps": last,
                "onset": onset,
                "exit": code,
                "seconds": round(seconds, 1),
            }
            row |= {"answer": answer(report) if isinstance(report, dict) else said, **usage}
            print(row, flush=True)
            found.append(row)
    return found


def measured(folder: Path) -> tuple[int, Any, str, Row]:
    """The hook with what its processes read (bytes of read calls) and held, as strace-free as the kernel tells."""
    with subprocess.Popen(command(folder), stderr=subprocess.PIPE, text=True) as child:
        read_bytes: dict[int, int] = {}
        resident = 0
        while child.poll() is None:
            for process in [child.pid, *children(child.pid)]:
                try:
                    facts = Path(f"/proc/{process}/io").read_text().split()
                    read_bytes[process] = max(read_bytes.get(process, 0), int(facts[1]))
                    status = Path(f"/proc/{process}/status").read_text()
                    resident = max(resident, int(status.partition("VmHWM:")[2].split()[0]))
                except (OSError, ValueError, IndexError):
                    continue
            time.sleep(0.01)
        said = child.stderr.read() if child.stderr else ""
    path = folder / "faultproxy" / "diagnosis.json"
    report = json.loads(path.read_text()) if path.exists() else None
    return (
        child.returncode,
        report,
        said,
        {"megabytes_read": round(sum(read_bytes.values()) / 1e6), "resident_mib": resident >> 10},
    )


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


# -- kill -------------------------------------------------------------------------------------------------------------
def study_kill(kills: int, seed: int) -> Row:
    """SIGKILL for the hook and its children at random moments; then every file that is there must be whole."""
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job"
        job.mkdir()
        run = faults.nonfinite(curves.rl(3, 60), 40)
        (job / "run.log").write_text(jobs.writers.verl_console(run), encoding="utf-8")
        began = time.monotonic()
        hook(job)
        whole = time.monotonic() - began
        out = job / "faultproxy"
        wanted = {path.name: path.read_bytes() for path in out.iterdir()}
        draw, broken, seen = random.Random(seed), [], {name: 0 for name in wanted}
        left = 0
        for _ in range(kills):
            shutil.rmtree(out, ignore_errors=True)
            child = subprocess.Popen(command(job), stderr=subprocess.DEVNULL, start_new_session=True)
            # Half of the moments are drawn from the whole run, half from the time in which files are written.
            if draw.random() < 0.5:
                time.sleep(draw.uniform(0, 1.1 * whole))
            else:
                while not out.exists() and child.poll() is None:
                    time.sleep(0.0005)
                time.sleep(draw.uniform(0, 0.03))
            for process in [*children(child.pid), child.pid]:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            child.wait()
            for path in out.iterdir() if out.exists() else ():
                if path.name not in wanted:
                    left += path.name.startswith(".")
                    broken += [] if path.name.startswith(".") else [path.name]
                    continue
                seen[path.name] += 1
                if path.read_bytes() != wanted[path.name]:
                    broken.append(path.name)
        hook(job)
        tidy = sorted(path.name for path in out.iterdir()) == sorted(wanted)
    row = {
        "kills": kills,
        "seed": seed,
        "seconds_whole": round(whole, 2),
        "files_seen": seen,
        "half_written": broken,
        "hidden_left": left,
        "tidy_after_rerun": tidy,
    }
    print(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("jobs", "huge", "kill", "all"), default="all")
    parser.add_argument("--runs", type=int, default=2, help="faulty lab runs a layout")
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    studies = {
        "jobs": lambda: study_jobs(options.runs),
        "huge": lambda: study_huge(options.gigabytes, options.scratch),
        "kill": lambda: study_kill(options.kills, options.seed),
    }
    chosen = studies if options.what == "all" else {options.what: studies[options.what]}
    found = {name: study() for name, study in chosen.items()}
    if options.output:
        held = json.loads(options.output.read_text()) if options.output.exists() else {}
        options.output.write_text(json.dumps(held | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
