"""Learns from the lines of an unknown loop which names are its metrics and what counts its steps.

A metric is a name that comes back with other numbers: settings are printed once, prose does not repeat, a position or a
size stays as it is. A step is an integer of those lines that grows. Only the first lines of a file are looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from faultproxy.analyzer.ingest.pairs import MAX_LINE, STEP_NAMES, WITHIN_EPOCH, Scan, scan
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import CRITIC, FOREIGN, resolve

#: Lines looked at, lines with numbers looked at closer, names and values of one name kept.
_LINES, _SCANNED, _NAMES, _VALUES = 20_000, 3_000, 2_000, 400
#: A name seen on this many lines is no accident.
_OFTEN = 3
#: Share of neighbouring rows between which a step must grow; restarts and epochs are the rest.
_GROWS = 0.7
#: A setting's dotted path (`trainer.optim.lr`), a command-line flag, a printed object.
_SETTING = lazy(
    r"(?<![\w.])\w++(?:\.\w++){2,}+\s?[=:]\s?\S|(?:^|\s)--[a-z]|(?:^|[\s(])(?:Namespace|Config|\w+Args|\w+Arguments|\w+Config)\("
)
_PATH = lazy(r"\w\.\w+\.\w")


@dataclass(slots=True)
class Shape:
    """What a file's lines look like: its metric names, the step's name, and the rows of one epoch where steps begin anew.

    `blocks`: a record is several lines, a value each; `heads`: a line with the step alone is part of a record; `tails`: it is
    the record's last. `still`: integers that could be steps and do not grow.
    """

    names: set[str] = field(default_factory=set)
    step: str | None = None
    per_epoch: int | None = None
    first_epoch: int = 0
    blocks: bool = False
    heads: bool = False
    tails: bool = False
    still: set[str] = field(default_factory=set)


def is_setting(line: str) -> bool:
    """Whether a line is how settings are written."""
    return len(line) <= MAX_LINE and bool(_SETTING.search(line))


def is_path(key: str) -> bool:
    """Whether a name is the dotted path of a setting."""
    return bool(_PATH.search(key))


def learn(lines: Iterable[str], bare: Callable[[str], str]) -> Shape:
    """Look at the first lines of a file; `bare` takes off what a launcher put before them."""
    values: dict[str, set[Cell]] = {}
    often: dict[str, int] = {}
    rows: list[Scan] = []
    heads: list[Scan] = []
    heads_at: list[int] = []
    metrics_at: list[int] = []
    single = several = 0
    for count, line in enumerate(part for physical in lines for part in physical.split("\r")):
        if count >= _LINES or len(rows) + len(heads) >= _SCANNED:
            break
        found = scan(bare(line)) if any(c.isdigit() for c in line) and not is_setting(line) else None
        if found is None:
            continue
        known = False
        for pair in found.pairs:
            known |= metric(pair.key)
            if pair.key in values or len(values) < _NAMES:
                often[pair.key] = often.get(pair.key, 0) + 1
                held = values.setdefault(pair.key, set())
                if len(held) < _VALUES:
                    held.add(pair.cell)
        if known:
            metrics_at.append(count)
        if known and found.steps:
            rows.append(found)
        elif found.steps and len(found.pairs) < 2:
            heads.append(found)
            heads_at.append(count)
        if known:
            single += len(found.pairs) == 1 and not found.steps
            several += len(found.pairs) > 1 or bool(found.steps)
    shape = Shape({name for name, times in often.items() if times >= _OFTEN and len(values[name]) > 1})
    repeated = sum(metric(name) for name in shape.names)
    shape.blocks = single > 2 * several and single >= 2 * _OFTEN and repeated > 1
    if not shape.blocks:
        _steps(shape, rows)
    if shape.step is None and heads:
        _steps(shape, heads)
        shape.heads = shape.step is not None
        at = [line for line, head in zip(heads_at, heads, strict=True) if shape.step in head.steps]
        shape.tails = shape.heads and sum(_nearer_before(line, metrics_at) for line in at) > 0.8 * len(at)
    return shape


def _nearer_before(line: int, others: list[int]) -> bool:
    """Whether the nearest of the other lines stands before this one."""
    at = bisect_left(others, line)
    return at > 0 and (at == len(others) or line - others[at - 1] < others[at] - line)


def metric(key: str) -> bool:
    """Whether a name, or the tail of a run of words, is a signal of the vocabulary."""
    return resolve(key).known or (" " in key and any(resolve(tail).known for tail in tails(key)))


#: Words that change what the words behind them mean; before any other, a tail of the name means what it says.
_CHANGES = FOREIGN | CRITIC | frozenset(("model", "aux", "per", "old", "format", "mtp", "z", "kl", "max", "min", "std", "no", "non", "lr", "learning", "weight", "init", "best", "prev", "last"))  # fmt: skip


def tails(key: str) -> list[str]:
    """The tails of a run of words, longest first: `INFO the policy loss is` ends in `policy loss`."""
    parts = key.removesuffix(" is").removesuffix(" was").split(" ")
    found = []
    for start in range(len(parts)):
        found.append(" ".join(parts[start:]))
        if parts[start].lower() in _CHANGES:
            break
    return found


def _steps(shape: Shape, rows: list[Scan]) -> None:
    """Choose what counts the rows: it is there on most of them and grows, the better the name the sooner."""
    best: tuple[int, int] | None = None
    for name, place in STEP_NAMES.items():
        series = [row.steps[name][0] for row in rows if name in row.steps]
        if len(series) < max(2, 0.5 * len(rows)):
            continue
        up, moves = sum(b > a for a, b in pairwise(series)), sum(b != a for a, b in pairwise(series))
        grows = up / (len(series) - 1)
        if up < _GROWS * moves or up < 0.1 * len(series):
            shape.still.update([name] if len(series) > 2 else [])
            continue
        # Where two count, one may stand still while the other goes on (accumulation), or begin anew each epoch.
        rank = (-round(10 * grows), place)
        if best is None or rank < best:
            best, shape.step = rank, name
    if shape.step in WITHIN_EPOCH and shape.step is not None:
        _epochs(shape, [row for row in rows if shape.step in row.steps])


def _epochs(shape: Shape, rows: list[Scan]) -> None:
    """A step that falls each time the epoch rises counts within it: find how many steps an epoch has."""
    name = shape.step or ""
    epoch = next((e for e in ("epoch", "ep") if sum(e in row.steps for row in rows) > 0.9 * len(rows)), None)
    if epoch is None:
        return
    rows = [row for row in rows if epoch in row.steps]
    both = list(pairwise(rows))
    falls = [(a, b) for a, b in both if b.steps[name][0] <= a.steps[name][0]]
    if not falls or sum(b.steps[epoch][0] > a.steps[epoch][0] for a, b in falls) < 0.8 * len(falls):
        return
    seen = [row.steps[name][0] for row in rows]
    totals = {row.steps[name][1] for row in rows}
    shape.per_epoch = next(iter(totals)) if len(totals) == 1 else None
    if shape.per_epoch is None:
        stride = min((b.steps[name][0] - a.steps[name][0] for a, b in both if b.steps[name][0] > a.steps[name][0]), default=1)  # fmt: skip
        shape.per_epoch = max(seen) + (stride if min(seen) == 0 else 0)
    shape.first_epoch = rows[0].steps[epoch][0]
