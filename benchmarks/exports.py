"""What `analyze` says of lab runs that it sees as logs: `python benchmarks/exports.py [--split held-out]`.

Runs of fixtures/corpus are written as logs, each in a format that fits it and at each of the four levels of observability
(1 the scalars a console shows, 2 + rollout mismatch, 3 + per layer, 4 + router and experts), and read back by `analyze`.
The truth is the corpus's own: factor and cause from the injector, failure type from the oracle. Injected runs without an
effect, or that the oracle calls healthy, count neither way and are reported apart.

`--split development` are the programs that rules may be written from (fixtures/corpus/split.toml), `held-out` all others.
`--against seed` gives each run a healthy run of another seed as the good run, `twin` the healthy run of its own seed.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.trace import Trace
from faultproxy.proxy.lab import export, store

CORPUS = Path(__file__).resolve().parent.parent / "fixtures" / "corpus"
POSITIVE = {"depth", "routing", "precision"}
SPLITS = ("held-out", "development", "all")
AGAINST = ("none", "seed", "twin")
Row = dict[str, Any]


def programs(corpus: Path, split: str) -> list[str]:
    """The programs of a split, sorted."""
    known = {row["program"] for row in store.manifest(corpus)}
    development = set(tomllib.loads((corpus / "split.toml").read_text(encoding="utf-8"))["development"])
    chosen = {"held-out": known - development, "development": known & development, "all": known}[split]
    return sorted(chosen)


def log(trace: Trace, format_: str, level: int) -> Trace:
    """The trace that the log of a run gives back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / export.FORMATS[format_].file
        path.write_text(export.export(trace, format_, level), encoding="utf-8")
        return read([str(path)])[0]


def answer(trace: Trace, format_: str, level: int, good: Trace | None = None) -> Row:
    """The diagnosis of the log of a run, beside that of a good run if one is given."""
    try:
        return document(diagnose(log(trace, format_, level), good and log(good, format_, level)))
    except InputError as error:
        return {"verdict": "unread", "failure_type": None, "factor": "undetermined", "causes": [], "error": str(error)}


def format_of(row: Row, trace: Trace, seed: int) -> str:
    """A format that fits the run, drawn by hash of its name: the same in every process and order."""
    fitting = export.formats_for(trace)
    return fitting[int(hashlib.sha256(f"{seed}/{row['run']}".encode()).hexdigest(), 16) % len(fitting)]


def answers(
    program: str, corpus: Path, levels: Sequence[int], seed: int, share: float, against: str
) -> list[tuple[int, Row, Row]]:
    """(level, row of the manifest, diagnosis) of each run of a program that the draw keeps."""
    found = []
    healthy = {} if against == "none" else {r["seed"]: t for r, t in store.load(corpus, program) if r["fault"] is None}
    for row, trace in store.load(corpus, program):
        if row["error"] is None and _draw(seed, row["run"]) < share:
            slim = {key: value for key, value in row.items() if key != "effect"}
            good = _good(healthy, row, against) if healthy else None
            found += [(level, slim, answer(trace, format_of(row, trace, seed), level, good)) for level in levels]
    return found


def _good(healthy: dict[int, Trace], row: Row, against: str) -> Trace:
    """The twin of a faulty run, or a healthy run some seeds on; of a healthy run always another."""
    if against == "twin" and row["fault"] is not None:
        return healthy[row["seed"]]
    seeds = sorted(healthy)
    return healthy[seeds[(seeds.index(row["seed"]) + len(seeds) // 2) % len(seeds)]]


def _draw(seed: int, run: str) -> float:
    return int(hashlib.sha256(f"{seed}:{run}".encode()).hexdigest()[:8], 16) / 2**32


class Table:
    """Counts at one level."""

    def __init__(self) -> None:
        self.healthy = self.alarms = self.failing = self.noticed = self.type_ok = self.listed = self.factor_ok = 0
        self.positive = self.positive_ok = self.wrong_factor = self.cause_ok = 0
        self.unread = self.silent = self.silent_alarms = 0
        self.confused: Counter[tuple[str, str]] = Counter()
        self.wrong: Counter[tuple[str, str, str]] = Counter()
        self.false: Counter[str] = Counter()

    def add(self, row: Row, got: Row) -> None:
        """Count one run."""
        said = got["failure_type"] or got["verdict"]
        failed = got["verdict"] == "failed"
        self.unread += got["verdict"] == "unread"
        if row["fault"] is None or row["kind"] == "benign":
            self.healthy += 1
            if failed:
                self.alarms += 1
                self.false[f"{said} ({row['fault'] or 'healthy'}, {row['program']})"] += 1
            return
        if row["type"] == "healthy":
            self.silent += 1
            self.silent_alarms += failed
            return
        self.failing += 1
        self.noticed += failed
        self.type_ok += said == row["type"]
        self.listed += row["type"] in {candidate["failure_type"] for candidate in got.get("candidates", ())}
        if said != row["type"]:
            self.confused[(row["type"], said)] += 1
        self.factor_ok += failed and got["factor"] == row["factor"]
        self.cause_ok += bool(failed and got["causes"] and got["causes"][0]["cause"] == row["cause"])
        if got["factor"] in POSITIVE and got["factor"] != row["factor"]:
            self.wrong_factor += 1
            self.wrong[(row["fault"], row["factor"], got["factor"])] += 1
        if row["factor"] in POSITIVE:
            self.positive += 1
            self.positive_ok += got["factor"] == row["factor"]

    def line(self, level: int) -> str:
        """The counts as one line."""
        pairs = (
            (self.alarms, self.healthy), (self.noticed, self.failing), (self.type_ok, self.failing), (self.listed, self.failing),
            (self.factor_ok, self.failing), (self.positive_ok, self.positive), (self.wrong_factor, self.failing),
            (self.cause_ok, self.failing), (self.silent_alarms, self.silent),
        )  # fmt: skip
        cells = [f"{n}/{of} {100 * n / of if of else 0.0:.1f}%" for n, of in pairs]
        return f"{level:5} " + " ".join(f"{cell:>16}" for cell in cells) + f" {self.unread:6}"


HEAD = "level " + " ".join(
    f"{name:>16}"
    for name in ("false alarms", "noticed", "type", "type listed", "factor", "factor of 3", "wrong factor", "cause", "no effect, alarm")
) + " unread"  # fmt: skip


def rows(options: argparse.Namespace) -> Iterator[tuple[int, Row, Row]]:
    """Every answer, program by program, on `--jobs` processes."""
    chosen = programs(options.corpus, options.split)
    of = set(chosen)
    made = sum(row["error"] is None and row["program"] in of for row in store.manifest(options.corpus))
    share = min(1.0, options.runs / made) if options.runs else 1.0
    work = partial(
        answers, corpus=options.corpus, levels=options.levels, seed=options.seed, share=share, against=options.against
    )
    with ProcessPoolExecutor(options.jobs) as pool:
        for found in pool.map(work, chosen):
            yield from found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=SPLITS, default="held-out")
    parser.add_argument("--against", choices=AGAINST, default="none")
    parser.add_argument("--runs", type=int, default=0, help="about this many, drawn at random; 0 for all")
    parser.add_argument("--levels", type=int, nargs="+", default=list(export.LEVELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    options = parser.parse_args()
    tables = {level: Table() for level in options.levels}
    for level, row, got in rows(options):
        tables[level].add(row, got)
    some = next(iter(tables.values()))
    print(
        f"{options.split}: {some.healthy + some.failing + some.silent} runs, seed {options.seed}, good run: {options.against}"
    )
    print(HEAD)
    for level, table in tables.items():
        print(table.line(level))
    for level, table in tables.items():
        print(f"\nlevel {level}: worst confusions (truth, said)")
        for (truth, said), n in table.confused.most_common(14):
            print(f"  {n:3}  {truth:26} {said}")
        for (fault, truth, said), n in table.wrong.most_common(8):
            print(f"  {n:3}  wrong factor: {fault} is {truth}, said {said}")
        for what, n in table.false.most_common(8):
            print(f"  {n:3}  false alarm: {what}")


if __name__ == "__main__":
    main()
