"""How long `analyze` takes on a large canonical trace, in scans: the time of DuckDB's `SELECT sum(value)` of its file.

    python benchmarks/canonical.py                  1e7 values of 1,024 ranks, with and without rollup
    python benchmarks/canonical.py --values 1e8     the size it is meant for (2 GB of disk, 2 minutes)
    python benchmarks/canonical.py --growth         also a tenth of the size: the growth exponent of analyze

Every value is split by rank; one rank's gradient turns NaN at 60 % of the run and the others follow 3 steps later.
Values are noise in single precision, as trainers log it. Times are the best of --repeat: the scan in a warm process (its file cached), `analyze` as a command, start-up included.
CPU seconds are printed beside wall seconds, for on a shared machine only they can be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from faultproxy.analyzer import rollup
from faultproxy.analyzer.canonical import ValuesWriter
from faultproxy.analyzer.schema import ROW_GROUP

SIGNALS = ("entropy", "grad_norm", "kl_ref", "learning_rate", "loss_scale", "policy_loss", "response_length", "reward", "step_time", "throughput")  # fmt: skip


def generate(folder: Path, values: int, ranks: int) -> int:
    """Write `values.parquet` of one run without any whole-model row; returns the number of values."""
    import pyarrow as pa

    steps = max(20, values // (ranks * len(SIGNALS)))
    onset = steps * 6 // 10
    writer = ValuesWriter(folder / "values.parquet")
    with duckdb.connect() as con:
        for signal in SIGNALS:
            bad = f"(step >= {onset} AND rank = 77) OR step >= {onset + 3}" if signal == "grad_norm" else "false"
            relation = con.sql(f"""
                SELECT 'bench' AS run, 0::SMALLINT AS segment, 'train' AS axis, step, rank, NULL::SMALLINT AS layer,
                    NULL::SMALLINT AS expert, NULL AS module, NULL AS role, '{signal}' AS signal, NULL AS stat, NULL AS label,
                    CASE WHEN {bad} THEN NULL ELSE (1 + hash(rank * 1000003 + step) / 2e19)::FLOAT::DOUBLE END AS value,
                    CASE WHEN {bad} THEN 'nan' ELSE 'finite' END AS state, NULL AS raw, 0::INTEGER AS source, step AS line
                FROM (SELECT r.range::INTEGER AS rank FROM range({ranks}) r), (SELECT s.range AS step FROM range({steps}) s)
                ORDER BY rank, step""")
            for batch in relation.to_arrow_reader(ROW_GROUP):
                writer.write(pa.Table.from_batches([batch]))
    writer.close({})
    return writer.rows


def scan(path: Path, repeat: int) -> tuple[float, float]:
    """Best wall and CPU seconds of a sum over the values."""
    times = []
    with duckdb.connect() as con:
        for _ in range(repeat + 1):
            wall, cpu = time.perf_counter(), time.process_time()
            con.execute(f"SELECT sum(value) FROM read_parquet('{path}')").fetchall()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)


#: Runs a command and adds its CPU seconds and peak memory. A process of its own, for memory counts from the fork on.
_CHILD = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([json.loads(done.stdout), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def analyze(trace: Path, repeat: int) -> tuple[float, float, float, str]:
    """Best wall and CPU seconds of the command, its largest peak memory in MiB, and what it said."""
    command = [str(Path(sys.executable).with_name("analyze")), str(trace), "--format", "json"]
    wrapped = [sys.executable, "-S", "-c", _CHILD, *command]
    runs, said = [], ""
    for _ in range(repeat):
        wall = time.perf_counter()
        report, cpu, peak = json.loads(subprocess.run(wrapped, capture_output=True, check=True).stdout)
        runs.append((time.perf_counter() - wall, cpu, peak))
        said = f"{report['verdict']} {report['failure_type']} at step {report['first_bad_step']}, rank {report['rank']}"
    walls, cpus, peaks = zip(*runs, strict=True)
    return min(walls), min(cpus), max(peaks), said


def measure(values: int, ranks: int, repeat: int) -> tuple[float, float]:
    """Print the ratios at one size; returns the CPU seconds of analyze without and with rollup."""
    with tempfile.TemporaryDirectory(prefix="faultproxy-bench-") as base:
        trace = Path(base) / "bench.trace"
        trace.mkdir()
        start = time.perf_counter()
        count = generate(trace, values, ranks)
        size = (trace / "values.parquet").stat().st_size / 2**20
        print(f"{count:,} values of {ranks:,} ranks, {size:,.0f} MiB, written in {time.perf_counter() - start:.1f} s")
        wall, cpu = scan(trace / "values.parquet", repeat)
        print(f"scan             wall {wall:7.3f} s             CPU {cpu:7.3f} s")
        spent = []
        start = time.perf_counter()
        rollup.write(trace / "values.parquet", trace / "rollup.parquet")
        print(f"rollup           written in {time.perf_counter() - start:.1f} s")
        (trace / "rollup.parquet").rename(trace / "aside")
        for name in ("without rollup", "with rollup"):
            took, used, peak, said = analyze(trace, repeat)
            print(
                f"{name:16} wall {took:7.3f} s {took / wall:6.2f} x   CPU {used:7.3f} s {used / cpu:6.2f} x   "
                f"peak {peak:,.0f} MiB   {said}"
            )
            spent.append(used)
            if (trace / "aside").exists():
                (trace / "aside").rename(trace / "rollup.parquet")
    return spent[0], spent[1]


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=float, default=1e7)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    args = parser.parse_args()
    large = measure(int(args.values), args.ranks, args.repeat)
    if args.growth:
        small = measure(int(args.values / 10), args.ranks, args.repeat)
        for name, big, little in zip(("without rollup", "with rollup"), large, small, strict=True):
            print(f"growth exponent {name}: {math.log10(big / little):.2f}")


if __name__ == "__main__":
    main()
