"""Scores `analyze` on folders of labelled logs, per format, with the answers that need no thought printed beside.

    python benchmarks/cases.py ../shared/cases ../shared/logs

A folder holds `labels.jsonl`: case, failure_type, accepted_types, factor, accepted_factors, first_bad_step, table.
Rows with `table: true` are summaries, not logs, and are left out. The bars (BARS below): type accepted
90 %, primary 70 %, no wrong positive factor, recall of precision 60 %, no healthy run called failed, first bad step
within one logging interval 85 %, nothing unread. A constant answer reaches a high share of factors, so the count of wrong positives
decides, not the share.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document

POSITIVE = {"depth", "routing", "precision"}
BARS = {"type": 0.90, "primary": 0.70, "precision": 0.60, "step": 0.85}


class Answer(NamedTuple):
    verdict: str | None
    failure_type: str | None
    factor: str
    first_bad_step: int | None
    format: str


def labels(folder: Path) -> list[dict[str, Any]]:
    rows = [
        json.loads(line) for line in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    return [row for row in rows if not row.get("table")]


def answer(path: Path) -> Answer:
    try:
        report = document(diagnose(read([str(path)])[0]))
    except InputError:
        return Answer(None, None, "undetermined", None, "unread")
    format_ = report["run"]["sources"][0]["format"].split("+")[0]
    return Answer(report["verdict"], report["failure_type"], report["factor"], report["first_bad_step"], format_)


class Score:
    """Counts over (label, answer) pairs; every share is a property with its denominator."""

    def __init__(self) -> None:
        self.rows = self.type_ok = self.primary = self.wrong_positive = self.unread = 0
        self.factor_ok = self.healthy = self.false_alarms = self.precision = self.precision_ok = self.steps = (
            self.steps_ok
        ) = 0

    def add(self, label: dict[str, Any], got: Answer) -> bool:
        """Count one case; returns whether its type was accepted."""
        accepted = set(label["accepted_types"])
        ok = got.failure_type in accepted or got.verdict in accepted
        self.rows += 1
        self.type_ok += ok
        self.primary += (got.failure_type or got.verdict) == label["failure_type"]
        self.unread += got.verdict is None
        self.wrong_positive += got.factor in POSITIVE and got.factor not in label["accepted_factors"]
        calm = {"none", "undetermined"} if ok and got.verdict in ("healthy", "inconclusive") else set()
        self.factor_ok += got.factor in set(label["accepted_factors"]) | calm
        if label["factor"] == "precision":
            self.precision += 1
            self.precision_ok += got.factor == "precision"
        if label["failure_type"] == "healthy":
            self.healthy += 1
            self.false_alarms += got.verdict == "failed" and got.failure_type not in accepted
        elif label.get("first_bad_step") is not None and ok and got.verdict == "failed":
            self.steps += 1
            near = max(10, 0.02 * label["first_bad_step"])
            self.steps_ok += (
                got.first_bad_step is not None and abs(got.first_bad_step - label["first_bad_step"]) <= near
            )
        return ok

    def line(self) -> str:
        return (
            f"type {self.type_ok}/{self.rows}  primary {self.primary}/{self.rows}  factor {self.factor_ok}/{self.rows}"
            f"  wrong positive {self.wrong_positive}  precision {self.precision_ok}/{self.precision}"
            f"  false alarms {self.false_alarms}/{self.healthy}  first step {self.steps_ok}/{self.steps}  unread {self.unread}"
        )

    def met(self) -> bool:
        """All bars that this set can show."""
        return (
            self.type_ok >= BARS["type"] * self.rows
            and self.primary >= BARS["primary"] * self.rows
            and not self.wrong_positive
            and not self.false_alarms
            and not self.unread
            and (self.precision < 3 or self.precision_ok >= BARS["precision"] * self.precision)
            and (self.steps < 3 or self.steps_ok >= BARS["step"] * self.steps)
        )


def score(folders: Iterable[Path], verbose: bool = False) -> tuple[Score, dict[str, Score], list[dict[str, Any]]]:
    """Score folders; returns the whole, the scores by format, and the labels (for the constant answers)."""
    whole, by_format, known = Score(), defaultdict[str, Score](Score), []
    for folder in folders:
        for label in labels(folder):
            got = answer(folder / label["case"])
            ok = whole.add(label, got)
            by_format[got.format].add(label, got)
            known.append(label)
            if verbose and not ok:
                print(f"  {label['case']}: want {label['failure_type']}/{label['factor']}, got {got}")
    return whole, by_format, known


def constant(known: list[dict[str, Any]], failure_type: str, factor: str) -> Score:
    """What an answer that never looks would score."""
    result = Score()
    verdict = failure_type if failure_type in ("healthy", "inconclusive") else "failed"
    for label in known:
        result.add(label, Answer(verdict, failure_type, factor, None, "constant"))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Score analyze on labelled logs.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    whole, by_format, known = score(options.folders, options.verbose)
    for name, part in sorted(by_format.items(), key=lambda entry: -entry[1].rows):
        print(f"{name:22s} {part.line()}")
    print(f"{'all':22s} {whole.line()}  {'bars met' if whole.met() else 'BARS MISSED'}")
    for failure_type, factor in (
        ("healthy", "none"),
        ("nonfinite_gradient", "none"),
        ("nonfinite_gradient", "precision"),
    ):
        print(f"{'always ' + failure_type[:10] + '/' + factor:22s} {constant(known, failure_type, factor).line()}")
    return 0 if whole.met() else 1


if __name__ == "__main__":
    sys.exit(main())
