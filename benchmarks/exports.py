"""What `analyze` says of lab runs that it sees as logs: `python benchmarks/exports.py [--runs 300] [--seed 0]`.

Random runs of fixtures/corpus are written as logs, each in a format that fits it and at each of the four levels of
observability (1 the scalars a console shows, 2 + rollout mismatch, 3 + per layer, 4 + router and experts), and read back by
`analyze`. The truth is the corpus's own: factor and cause from the injector, failure type from the oracle. Injected runs
without an effect, or that the oracle calls healthy, count neither way and are left out of the shares.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.proxy.lab import export, store

CORPUS = Path(__file__).resolve().parent.parent / "fixtures" / "corpus"
POSITIVE = {"depth", "routing", "precision"}


def answer(text: str, name: str) -> dict[str, Any]:
    """The diagnosis of a log of this text under this file name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        try:
            return document(diagnose(read([str(path)])[0]))
        except InputError as error:
            return {"verdict": "unread", "failure_type": None, "factor": "undetermined", "error": str(error)}


class Table:
    """Counts at one level."""

    def __init__(self) -> None:
        self.healthy = self.alarms = self.failing = self.noticed = self.type_ok = self.factors = self.factor_ok = (
            self.wrong_factor
        ) = 0
        self.unread = self.silent = self.silent_alarms = 0
        self.confused: Counter[tuple[str, str]] = Counter()
        self.false: Counter[str] = Counter()

    def add(self, row: dict[str, Any], got: dict[str, Any]) -> None:
        """Count one run."""
        said = got["failure_type"] or got["verdict"]
        self.unread += got["verdict"] == "unread"
        if row["fault"] is None or row["kind"] == "benign":
            self.healthy += 1
            if got["verdict"] == "failed":
                self.alarms += 1
                self.false[f"{said} ({row['fault'] or 'healthy'}, {row['program']})"] += 1
            return
        if row["type"] == "healthy":
            self.silent += 1
            self.silent_alarms += got["verdict"] == "failed"
            return
        self.failing += 1
        self.noticed += got["verdict"] == "failed"
        self.type_ok += said == row["type"]
        if said != row["type"]:
            self.confused[(row["type"], said)] += 1
        self.wrong_factor += got["factor"] in POSITIVE and got["factor"] != row["factor"]
        if row["factor"] in POSITIVE:
            self.factors += 1
            self.factor_ok += got["factor"] == row["factor"]

    def line(self, level: int) -> str:
        """The counts as one line."""
        return (
            f"{level:5} {self.alarms:4}/{self.healthy:<5} {self.noticed:5}/{self.failing:<5} {self.type_ok:5}/{self.failing:<5} "
            f"{self.factor_ok:5}/{self.factors:<5} {self.wrong_factor:8} {self.silent_alarms:5}/{self.silent:<5} {self.unread:6}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = [row for row in store.manifest(options.corpus) if row["error"] is None]
    chosen = {row["run"] for row in rng.sample(rows, min(options.runs, len(rows)))}
    tables = {level: Table() for level in export.LEVELS}
    for program in sorted({row["program"] for row in rows if row["run"] in chosen}):
        for row, trace in store.load(options.corpus, program):
            if row["run"] not in chosen:
                continue
            format_ = rng.choice(export.formats_for(trace))
            for level, table in tables.items():
                table.add(row, answer(export.export(trace, format_, level), export.FORMATS[format_].file))
    print(f"{len(chosen)} runs, seed {options.seed}")
    print("level false alarms   noticed        type      factor  wrong factor  no effect, alarmed  unread")
    for level, table in tables.items():
        print(table.line(level))
    for level, table in tables.items():
        print(f"\nlevel {level}: worst confusions (truth, said)")
        for (truth, said), n in table.confused.most_common(12):
            print(f"  {n:3}  {truth:26} {said}")
        for what, n in table.false.most_common(6):
            print(f"  {n:3}  false alarm: {what}")


if __name__ == "__main__":
    main()
