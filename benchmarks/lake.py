"""An incident lake under load: `python benchmarks/lake.py [--writers 8] [--each 500] [--kills 60]`.

    writers     8 processes add 500 incidents each, twice over, while `compact` runs again and again beside them
    readable    incidents that a reader finds afterwards, in plain files and after the last compaction; none may be torn
    stats       wall time of `faultproxy incidents stats` over the files as the writers left them, best of three: a new
                process each time, and inside one that has started (what the query itself takes), also as processor time
    kills       writers killed with SIGKILL at random moments: what they had said is written must be readable, nothing torn

The result is benchmarks/lake.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from faultproxy.analyzer.catalogue import FACTORS, FAMILY_OF
from faultproxy.analyzer.incidents.lake import append
from faultproxy.analyzer.incidents.query import Lake, open_lake, stats
from faultproxy.analyzer.incidents.store import open_store

ROOT = Path(__file__).resolve().parent.parent
REPORT = json.loads((ROOT / "tests" / "golden" / "diagnosis-v1.json").read_text("utf-8"))
START = datetime(2026, 1, 1, tzinfo=UTC)


def incident(number: int, again: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """A report and its job; the types, factors, and days (of 8 weeks) go round, the content is as large as a real one."""
    kind, factor = list(FAMILY_OF)[number % len(FAMILY_OF)], FACTORS[number % len(FACTORS)]
    report = REPORT | {"failure_type": kind, "family": FAMILY_OF[kind], "factor": factor}
    report |= {"run": REPORT["run"] | {"id": f"run-{number}", "framework": ("verl", "megatron", "trl")[number % 3]}}
    report |= {"warnings": [f"{number} {again}: " + "line of a log that was left out " * 10] * 20}
    return report, {"id": f"job-{number}", "time": (START + timedelta(days=number % 56)).isoformat(), "exit_code": 1}


def write(url: str, first: int, count: int, again: bool) -> None:
    """Add incidents and say each after it is there."""
    for number in range(first, first + count):
        append(url, *incident(number, again))
        print(number, flush=True)


def _writer(url: str, first: int, count: int, *more: str) -> subprocess.Popen[bytes]:
    call = [sys.executable, __file__, "--url", url, "--first", str(first), "--count", str(count), *more]
    return subprocess.Popen(call, stdout=subprocess.PIPE)


def _ids(lake: Lake) -> int:
    return int(lake.rows("SELECT count(DISTINCT id) AS n FROM incidents")[0]["n"])


def load(url: str, writers: int, each: int) -> dict[str, Any]:
    """Writers alone, then new diagnoses of the same incidents with compactions beside them."""
    started = time.perf_counter()
    running = [_writer(url, at * each, each) for at in range(writers)]
    assert [process.communicate()[0] and process.returncode for process in running] == [0] * writers
    wrote = time.perf_counter() - started
    lake = open_lake(open_store(url))
    found = {"incidents": writers * each, "write_s": round(wrote, 2), "readable": _ids(lake), "torn": len(lake.skipped)}
    command = [
        str(Path(sys.executable).with_name("faultproxy")),
        "incidents",
        "stats",
        "--lake",
        url,
        "--format",
        "json",
    ]
    times, inside = [], []
    for _ in range(3):
        started = time.perf_counter()
        counted = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        times.append(time.perf_counter() - started)
        started, busy = time.perf_counter(), time.process_time()
        stats(open_lake(open_store(url)), {})
        inside.append((time.perf_counter() - started, time.process_time() - busy))
    assert counted["incidents"] == writers * each
    found |= {"stats_command_s": round(min(times), 2), "stats_query_s": round(min(inside)[0], 2)}
    found |= {
        "stats_query_cpu_s": round(min(cpu for _, cpu in inside), 2),
        "load_average": round(os.getloadavg()[0], 1),
    }
    running = [_writer(url, at * each, each, "--again") for at in range(writers)]
    compactions = 0
    while any(process.poll() is None for process in running):
        subprocess.run([*command[:2], "compact", "--lake", url], check=True, capture_output=True)
        compactions += 1
    for process in running:
        process.communicate()
    lake = open_lake(open_store(url))
    return found | {
        "compactions_beside_writers": compactions,
        "readable_after": _ids(lake),
        "torn_after": len(lake.skipped),
    }


def kill(url: str, kills: int) -> dict[str, Any]:
    """Writers killed at random moments; counts what they said and what is there."""
    rng, said = random.Random(1), 0
    for at in range(kills):
        process = _writer(url, 1_000_000 + at * 10_000, 10_000)
        assert process.stdout
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        said += 1 + process.stdout.read().count(b"\n")
        process.wait()
    lake = open_lake(open_store(url))
    left = sum(1 for _ in Path(url).rglob(".*"))
    return {
        "kills": kills,
        "said": said,
        "readable": _ids(lake),
        "torn": len(lake.skipped),
        "temporary_files_left": left,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("--writers", 8), ("--each", 500), ("--kills", 60), ("--first", 0), ("--count", 0)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--url")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if options.url:
        write(options.url, options.first, options.count, options.again)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "load": load(f"{folder}/load", options.writers, options.each),
            "kill": kill(f"{folder}/kill", options.kills),
        }
    text = json.dumps(result | {"cpus": os.cpu_count()}, indent=2)
    print(text)
    if options.writers * options.each >= 4_000:
        (ROOT / "benchmarks" / "lake.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
