"""The corpus's datasheet: counts, tables, cost, design, limits, and what must not be used as a feature, from its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any

from faultproxy.analyzer.catalogue import CAUSES, FACTORS
from faultproxy.proxy.lab.design import HEALTHY, MIN_AFTER, ONSETS, SEEDS

Row = dict[str, Any]

_INTRODUCTION = """\
Real training runs of small models, healthy or with one injected fault, written by `faultproxy lab generate`; this page is
generated with them. One Parquet file a program holds the values (docs/trace.md, sorted by run), `manifest.parquet` one row
a run with its labels, `manifest.json` versions and checksums."""

_LABELS = """\
Factor and cause are fixed by the injector, the failure type by the labelling oracle (version {oracle}) from the run, its
healthy twin, and hidden signals. A fault without an effect on any signal named for it beforehand has type `healthy`; it
counts neither as healthy nor as failed in any score. z is in spreads between healthy seeds of the program."""

_DESIGN = """\
Every fault at every severity (0 mild, 1, 2 strong) has {quota} cells, {most} at the strongest, drawn by hash of the names
from the (program, onset) pairs that fit it: every fitting program once before any program twice. Onsets are steps
{onsets}, at least {after} steps before the end; a cell has seeds {seeds}. A program runs healthy with at least {healthy} seeds, and
with as many as it has cells. A fault run restores the snapshot of its healthy twin of the same seed just before the
onset, so the steps before it are the twin's, bit for bit. Healthy and faulty runs of a program have the same length."""

_LIMITS = """\
- Small models, few steps, one CPU type. A fault that needs scale or time (slow drift, rare experts) is not here.
- Ranks are played by one process one after the other: no hang, timeout, or collective error is real.
- On a CPU narrow formats are emulated by rounding to them; accumulation inside a kernel stays float32.
- The seed decides data and sampling; a program's weights before its first step are the same for all seeds.
- A fault is injected whole at one step; real ones may creep in. One fault a run.
- Values have 10 bits of mantissa: differences below 0.05 % are gone. `step_time` is wall time on a shared machine."""

_LEAKS = """\
What tells the label without telling the fault; features and exports must leave it out:

- the run id and cell, which name the fault; `seed` (seeds above {last} are healthy only); `onset`, `seconds`;
- every value of axis `system` or label `hidden` (true reward, weight norms): only the labelling oracle sees them;
- absolute step counts, and the length of a run, which tells the program;
- a signal that only one program, or only programs that one fault fits, records (loss scale: fp16 programs alone);
- the exact zero of `zero_grad_frac` and other values that only an injector leaves; bin or clip them;
- that a fault run equals a healthy one up to its onset: split by program, never by run."""


def render(rows: list[Row], summary: dict[str, Any]) -> str:
    """The datasheet as Markdown. `rows` are those of the manifest, `summary` is manifest.json."""
    made = [row for row in rows if row["error"] is None]
    counts, design = summary["counts"], summary["design"]
    size = sum(program["bytes"] for program in summary["programs"].values())
    seconds = sorted(row["seconds"] for row in made)
    traces = max(1, len(made))
    parts = [
        "# The corpus of the fault lab",
        _INTRODUCTION,
        table("what|number", [
            ("traces", f"{counts['traces']:,}"), ("programs", counts["programs"]), ("cells", counts["cells"]),
            ("faults", counts["faults"]), ("healthy", share(counts["healthy"], traces)),
            ("healthy runs that learn", share(counts["learned"], counts["healthy"])),
            ("faulty, with a failure type", share(counts["failing"], traces)),
            ("faulty, with an effect but no failure", share(counts["harmless"], traces)),
            ("faulty, without an effect", share(counts["no_effect"], traces)),
            ("benign twins of faults", share(counts["benign"], traces)), ("failed runs, not stored", counts["failed"]),
            ("CPU seconds a trace, median (90 %)", f"{median(seconds or [0]):.1f} ({seconds[len(seconds) * 9 // 10] if seconds else 0:.1f})"),
            ("core-hours", f"{sum(seconds) / 3600:.2f}"), ("values a trace", f"{sum(row['values'] for row in made) / traces:,.0f}"),
            ("bytes a trace", f"{size / traces:,.0f}"), ("MB", f"{size / 1e6:.1f}"),
        ]),
        _LABELS.format(oracle=summary["oracle"]),
        "## Failure types by factor", by_factor(made),
        "## Causes", by_cause(made),
        "## Faults\n\nCells at severity 0 / 1 / 2, and the share of their runs with an effect.", by_fault(made),
        "## Programs", by_program(made, summary),
        "## Design", _DESIGN.format(
            quota=design["quota"], most=design["quota"] * 3 // 2, onsets=", ".join(map(str, ONSETS)), after=MIN_AFTER,
            seeds=", ".join(map(str, SEEDS)), healthy=HEALTHY,
        ),
        "## Known limits", _LIMITS, "## Leaks", _LEAKS.format(last=SEEDS[-1]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def table(head: str, rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; `head` has its titles separated by `|`."""
    titles = head.split("|")
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def share(part: int, whole: int) -> str:
    """A count with its share."""
    return f"{part:,} ({part / max(1, whole):.1%})"


def by_factor(rows: list[Row]) -> str:
    """Failure type x factor of faulty runs; healthy ones and benign twins are left out."""
    faulty = [row for row in rows if row["injected"]]
    cells = Counter((row["type"], row["factor"]) for row in faulty)
    types = sorted({row["type"] for row in faulty}, key=lambda kind: (kind == "healthy", kind))
    body = [
        (kind, *(cells[kind, factor] for factor in FACTORS), sum(cells[kind, f] for f in FACTORS)) for kind in types
    ]
    total = ("all", *(sum(cells[kind, factor] for kind in types) for factor in FACTORS), len(faulty))
    return table("type|" + "|".join(FACTORS) + "|all", [*body, total])


def by_cause(rows: list[Row]) -> str:
    """Runs, runs with an effect, and faults of every cause an injector can have; an empty one shows as 0."""
    body = []
    for cause in CAUSES:
        own = [row for row in rows if row["injected"] and row["cause"] == cause]
        if cause != "unknown":  # what a diagnosis may say, but no injector has
            body.append((cause, len({row["fault"] for row in own}), len(own), sum(not row["no_effect"] for row in own)))
    return table("cause|faults|runs|with an effect", body)


def by_fault(rows: list[Row]) -> str:
    """Cells and effective share of every fault by severity."""
    body = []
    for fault in sorted({row["fault"] for row in rows if row["fault"]}):
        own = [row for row in rows if row["fault"] == fault]
        graded = [
            [row for row in own if row["severity"] == severity] for severity in sorted({r["severity"] for r in own})
        ]
        shares = (f"{sum(not row['no_effect'] for row in part) / len(part):.0%}" for part in graded)
        types = Counter(row["type"] for row in own if not row["no_effect"]).most_common(2)
        body.append((
            fault, own[0]["kind"], own[0]["factor"], own[0]["cause"], len({row["program"] for row in own}),
            " / ".join(str(len({row["cell"] for row in part})) for part in graded), " / ".join(shares),
            ", ".join(f"{kind} {count}" for kind, count in types),
        ))  # fmt: skip
    return table("fault|kind|factor|cause|programs|cells|with an effect|commonest types", body)


def by_program(rows: list[Row], summary: dict[str, Any]) -> str:
    """Runs, values, bytes, and CPU seconds of every program."""
    body = []
    for name, program in sorted(summary["programs"].items()):
        own = [row for row in rows if row["program"] == name]
        count = max(1, len(own))
        body.append((
            name, len(own), sum(row["fault"] is None for row in own), sum(row["injected"] and row["no_effect"] for row in own),
            own[0]["steps"] if own else 0, f"{sum(row['values'] for row in own) / count:,.0f}",
            f"{program['bytes'] / count / 1000:.1f}", f"{median([row['seconds'] for row in own] or [0]):.1f}",
        ))  # fmt: skip
    return table("program|traces|healthy|no effect|steps|values a trace|kB a trace|seconds a trace", body)
