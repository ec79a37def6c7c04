"""The canonical trace in memory: what every reader fills and every later stage reads.

A trace is wide inside the program (one row a step, one column a signal) because rules compare signals of one step;
it is long on disk (`schema.py`) because interchange must survive new signals. States are kept sparsely: a cell
without an entry in `Column.states` is `finite` when it has a value and was not written at all when it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FINITE, QUANTISED = "finite", "quantised"
NAN, POS_INF, NEG_INF, NONFINITE = "nan", "pos_inf", "neg_inf", "nonfinite"
ABSENT, MASKED = "absent", "masked"
STATES = (FINITE, QUANTISED, NAN, POS_INF, NEG_INF, NONFINITE, ABSENT, MASKED)
#: States that mean "this number was not finite", the masked ones included: a writer masks what it could not print.
BAD_STATES = (NAN, POS_INF, NEG_INF, NONFINITE, MASKED)
AXES = ("train", "rollout", "eval", "system")


class Cell(NamedTuple):
    """One value as a reader understood it. `value` is a number only when `state` is finite or quantised."""

    value: float | None
    state: str = FINITE
    raw: str | None = None


class Key(NamedTuple):
    """What a column holds. `module`, `layer` and `expert` are null for whole-model signals."""

    signal: str
    axis: str = "train"
    role: str | None = None
    stat: str | None = None
    label: str | None = None
    layer: int | None = None
    expert: int | None = None
    module: str | None = None
    rank: int | None = None

    @property
    def whole_model(self) -> bool:
        """True when one number describes the whole model at a step, so it fits the wide table."""
        return self.layer is None and self.expert is None and self.module is None and self.rank is None

    @property
    def column(self) -> str:
        """The name rules use: `grad_norm`, `critic_grad_norm`, `reward_max`, `eval_loss`."""
        parts = [self.signal]
        if self.role not in (None, "actor"):
            parts.insert(0, str(self.role))
        if self.axis == "eval":
            parts.insert(0, "eval")
        if self.stat not in (None, "mean", "last"):
            parts.append(str(self.stat))
        name = "_".join(parts)
        return name if self.label is None else f"{name}[{self.label}]"


@dataclass(slots=True)
class Column:
    """One signal over the rows of a frame; `values` may be shorter than the frame (missing tail is null)."""

    key: Key
    raw_key: str
    values: list[float | None] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)
    raws: dict[int, str] = field(default_factory=dict)

    def put(self, row: int, cell: Cell) -> None:
        """Write a cell, padding the rows this column skipped."""
        gap = row - len(self.values)
        if gap >= 0:
            if gap:
                self.values.extend([None] * gap)
            self.values.append(cell.value)
        else:
            self.values[row] = cell.value
            self.states.pop(row, None)
            self.raws.pop(row, None)
        if cell.state != FINITE:
            self.states[row] = cell.state
        if cell.raw is not None:
            self.raws[row] = cell.raw

    def cell(self, row: int) -> Cell | None:
        """The cell at a row, or None where nothing was written."""
        value = self.values[row] if row < len(self.values) else None
        state = self.states.get(row)
        if value is None and state is None:
            return None
        return Cell(value, state or FINITE, self.raws.get(row))


@dataclass(slots=True)
class Frame:
    """A wide table: rows in the order written, columns by key. Row arrays all have one entry a row."""

    steps: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    columns: dict[Key, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        """Rows."""
        return len(self.steps)

    def cells(self) -> Iterator[tuple[int, Column, Cell]]:
        """Every written cell as (row, column, cell), column by column."""
        for column in self.columns.values():
            for row in range(max(len(column.values), max(column.states, default=-1) + 1)):
                cell = column.cell(row)
                if cell is not None:
                    yield row, column, cell


@dataclass(slots=True)
class Event:
    """Something a log says once: an overflow, a traceback, a watchdog. `step` is the last step logged before it."""

    kind: str
    text: str
    step: int | None = None
    segment: int = 0
    rank: int | None = None
    value: float | None = None
    source: int = 0
    line: int = 0


@dataclass(slots=True)
class Source:
    """One file that was read."""

    path: str
    format: str
    sha256: str
    rows: int = 0
    unparsed: int = 0
    truncated: bool = False


@dataclass(slots=True)
class Trace:
    """All that one run left, ready for the views. `table` is a canonical Parquet file whose per-rank, per-layer and
    per-expert rows stay on disk (they may be 1e8); everything that fits a row a step is in `frame`."""

    run: str
    frame: Frame = field(default_factory=Frame)
    detail: Frame = field(default_factory=Frame)
    events: list[Event] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)
    table: str | None = None
