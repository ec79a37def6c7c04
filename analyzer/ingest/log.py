"""Collects what one file says: readers call `row`, `rows`, `event`; this keeps steps, segments, and columns straight.

Surprises handled here, once, for every format:
- rows without a step are counted (the trace then says that its steps are rows);
- a step that drops starts a new segment (a restart), except on the eval axis, which may lag;
- a second row of the same step merges into the first; an equal key there is overwritten and counted;
- two keys of one row that mean the same signal: the better alias keeps it, the other stays under its raw name;
- rows of other ranks than the first that speaks go to `detail`, split by rank, as do layers and experts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any

from faultproxy.analyzer.ingest.tokens import MAX_KEY, native
from faultproxy.analyzer.ingest.unrecoverable import unrecoverable
from faultproxy.analyzer.trace import BAD_STATES, FINITE, Cell, Column, Event, Frame, Key, Source
from faultproxy.analyzer.vocabulary import Resolved, resolve

#: More distinct raw keys than this in one file is no training log; the rest is counted, not kept (memory bound).
MAX_KEYS = 50_000
#: Rows, and cells (values written), of one file that are held (about 800 MB at either bound). Beyond, rows are thinned evenly:
#: every second one goes, those at which a value turns non-finite stay, and the report says so.
MAX_ROWS, MAX_CELLS = 1_000_000, 8_000_000
#: More events than this are counted, not kept.
MAX_EVENTS = 20_000
#: Steps beyond this cannot be a step (they would overflow int64 in the canonical trace).
MAX_STEP = 2**62
#: Layers and experts beyond this are digits in a name (the canonical trace holds them as int32).
MAX_INDEX = 2**31
#: Empty cells that may lie between the values of columns, 8 bytes each. Names that come and go (a new one each row)
#: need rows * names of them; a log of 100,000 rows with 100 names written each tenth row needs 10 million.
MAX_PADDING = 16_000_000


class Log:
    """One file's rows, events, and facts while it is being read."""

    def __init__(self, index: int, source: Source, rank: int | None = None) -> None:
        """Start an empty log for source number `index`; `rank` is what the file's name says, if anything."""
        self.index = index
        self.source = source
        self.file_rank = rank
        self.number: int | None = None  # where the run's files differ in one number, this file's
        self.rank = rank
        self.line = 0
        self.step: int | None = None
        # The last progress bar seen (current, total), and whether rows take their steps from it.
        self.bar: tuple[int, int] | None = None
        self.bar_steps = False
        self.frame = Frame()
        self.detail = Frame()
        self.events: list[Event] = []
        self.facts: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.formats: dict[str, int] = {}
        self.counted_steps = False
        self.native = False
        self.memory: dict[str, Any] = {}
        # What only a canonical trace says: its run id, the files it was made from, and rows that stay on disk.
        self.run: str | None = None
        self.origins: list[Source] = []
        self.table: str | None = None
        self.unrecognised: list[str] | None = None
        self._columns: dict[str, Column] = {}
        self._segment = 0
        self._segment_start = 0
        self._stride = 1
        self._seen = 0
        self._cells = 0  # written, not counting the padding between
        self._bad = False
        self._padding = 0
        self._unpadded = 0
        self.lead_rank: int | None = None
        self._lead_set = False
        self._duplicates = 0
        self._dropped_keys = 0
        self._dropped_events = 0

    # -- rows -------------------------------------------------------------------------------------------------------
    def row(
        self,
        step: int | None,
        cells: Iterable[tuple[str, Cell]],
        format: str,
        *,
        axis: str | None = None,
        late: bool = False,
    ) -> None:
        """Add one logged record. `step` None counts rows; `axis` "eval" moves every key to the eval axis.

        `late` says that the record belongs to a row already there (a critic that reports after the actor went on).
        """
        pairs = list(cells)
        if not pairs:
            return
        if step is not None and not 0 <= step < MAX_STEP:
            self.source.unparsed += 1
            return
        self.formats[format] = self.formats.get(format, 0) + 1
        self.source.rows += 1
        if not self._lead_set:
            self._lead_set, self.lead_rank = True, self.rank
        if self.rank != self.lead_rank:
            self.detail_row(step if step is not None else (self.step or 0), pairs)
            return
        if self._stride > 1 and axis != "eval" and self._skips(pairs):
            return
        row = self._start(step, lagging=late or axis == "eval")
        self._cells += len(pairs)
        batch = {raw for raw, _ in pairs}
        for raw, cell in pairs:
            column = self._columns.get(raw) if axis is None else self._columns.get(f"{axis}:{raw}")
            if column is None:
                column = self._column(raw, batch, axis)
                if column is None:
                    continue
            if column.key.whole_model:
                # The same number again (the epoch on an evaluation's row) loses nothing.
                held = column.cell(row) if len(column.values) > row else None
                if held is not None and held[:2] != cell[:2]:
                    self._duplicates += 1
                if self._pads(row - len(column.values)):
                    column.put(row, cell)
            else:
                self._detail_put(self.frame.steps[row], column.key, raw, cell)

    def rows(
        self,
        steps: Sequence[int],
        keys: Sequence[str],
        columns: Sequence[Sequence[Any]],
        lines: Sequence[int],
        format: str,
    ) -> None:
        """Add many records that share their keys, column by column: the fast path for JSON lines and CSV.

        `columns[i]` holds the parsed JSON values of `keys[i]`. Rows that would merge or restart go one by one.
        """
        last = self.frame.steps[-1] if self.frame.steps else -1
        plain = all(a < b for a, b in zip([last, *steps], steps, strict=False))
        plain = plain and self._stride == 1 and self._fits(len(steps), len(steps) * len(keys))
        batch = set(keys)
        resolved = [self._columns.get(k) or self._column(k, batch, None) for k in keys] if plain else []
        if not plain or any(c is not None and not c.key.whole_model for c in resolved):
            for i, step in enumerate(steps):
                self.line = lines[i]
                self.row(step, ((k, c) for k, v in zip(keys, columns, strict=True) if (c := native(v[i]))), format)
            return
        self._lead_set = True
        start, count = len(self.frame), len(steps)
        self._cells += count * len(keys)
        if not start or self.frame.segments[-1] != self._segment:
            self._segment_start = start
        self.frame.steps.extend(steps)
        self.frame.segments.extend([self._segment] * count)
        self.frame.sources.extend([self.index] * count)
        self.frame.lines.extend(lines)
        self.step, self.line = steps[-1], lines[-1]
        self.formats[format] = self.formats.get(format, 0) + count
        self.source.rows += count
        for column, values in zip(resolved, columns, strict=True):
            if column is None or not self._pads(start - len(column.values)):
                continue
            column.values.extend([None] * (start - len(column.values)))
            scale = column.scale if isinstance(column, _ScaledColumn) else 1.0
            types = set(map(type, values))
            if types <= {float, int}:
                with suppress(OverflowError):  # an integer larger than a double
                    if isfinite(sum(values)):  # any NaN or infinity makes the sum one
                        same = scale == 1.0 and int not in types
                        column.values.extend(values if same else [v * scale for v in values])
                        continue
            for i, value in enumerate(values):
                cell = native(value)
                if cell is not None:
                    column.put(start + i, cell)

    def _fits(self, rows: int, cells: int) -> bool:
        return len(self.frame) + rows <= MAX_ROWS and self._cells + cells <= MAX_CELLS

    def _skips(self, pairs: list[tuple[str, Cell]]) -> bool:
        """Whether thinning leaves this row out; one at which a value turns non-finite stays."""
        self._seen += 1
        bad = any(cell.state in BAD_STATES for _, cell in pairs)
        turns, self._bad = bad and not self._bad, bad
        return bool(self._seen % self._stride) and not turns

    def _thin(self) -> None:
        """Drop every second row, but none at which a value turns non-finite."""
        frame, columns = self.frame, self.frame.columns.values()
        bad = {row for column in columns for row, state in column.states.items() if state in BAD_STATES}
        keep = [row for row in range(len(frame)) if not row % 2 or row in bad and row - 1 not in bad]
        where = {row: at for at, row in enumerate(keep)}
        for rows in (frame.steps, frame.segments, frame.sources, frame.lines):
            rows[:] = [rows[row] for row in keep]
        for column in columns:
            size = len(column.values)
            column.values[:] = [column.values[row] for row in keep if row < size]
            for held in (column.states, column.raws):
                moved = {where[row]: text for row, text in held.items() if row in where}
                held.clear()
                held.update(moved)
        self._stride *= 2
        self._cells //= 2
        self._segment_start = bisect_left(frame.segments, self._segment)

    @contextmanager
    def placed(self, line: int, rank: int | None) -> Iterator[None]:
        """Whatever is added inside was said on an earlier line than the one being read, by the rank of that line."""
        here = self.line, self.rank
        self.line, self.rank = line, rank
        try:
            yield
        finally:
            self.line, self.rank = here

    def has(self, step: int) -> bool:
        """Whether the segment being read has a row of this step."""
        row = bisect_left(self.frame.steps, step, self._segment_start)
        return row < len(self.frame) and self.frame.steps[row] == step

    def restart(self) -> None:
        """Open a new segment before the next row (another run, or a restart the steps do not show)."""
        self._segment += 1 if self.frame.steps else 0

    def _start(self, step: int | None, lagging: bool) -> int:
        frame = self.frame
        if step is None:
            self.counted_steps = True
            step = (self.step or 0) + 1
        if frame.steps:
            if frame.steps[-1] == step and frame.segments[-1] == self._segment:
                return len(frame) - 1
            if step < frame.steps[-1] and frame.segments[-1] == self._segment:
                if lagging:
                    row = bisect_left(frame.steps, step, self._segment_start)  # steps of one segment ascend
                    if frame.steps[row] == step:
                        return row
                self._segment += 1
        if not self._fits(1, 1):
            self._thin()
        if not frame.segments or frame.segments[-1] != self._segment:
            self._segment_start = len(frame)
        self.step = step
        frame.steps.append(step)
        frame.segments.append(self._segment)
        frame.sources.append(self.index)
        frame.lines.append(self.line)
        return len(frame) - 1

    def _column(self, raw: str, batch: set[str], axis: str | None) -> Column | None:
        if len(self._columns) >= MAX_KEYS or len(raw) > MAX_KEY:
            self._dropped_keys += 1
            return None
        found = _resolve(raw)
        key = found.key if axis is None else found.key._replace(axis=axis)
        if key.whole_model:
            held = self.frame.columns.get(key)
            if held is not None and held.raw_key != raw and held.raw_key in batch:
                if found.rank < resolve(held.raw_key).rank:
                    loser = Key(held.raw_key, axis=key.axis)
                    del self.frame.columns[key]
                    held.key = loser
                    self.frame.columns[loser] = held
                else:
                    key = Key(raw, axis=key.axis)
            column = self.frame.columns.get(key) or Column(key, raw)
            self.frame.columns[key] = column
        else:
            column = Column(key, raw)
        if found.scale != 1.0:
            column = _ScaledColumn(column, found.scale)
            if key.whole_model:
                self.frame.columns[key] = column
        self._columns[raw if axis is None else f"{axis}:{raw}"] = column
        return column

    def detail_row(self, step: int, pairs: list[tuple[str, Cell]]) -> None:
        """Put values beside the rows, under the rank that speaks (none: they are of all ranks)."""
        for raw, cell in pairs:
            if len(raw) > MAX_KEY:
                self._dropped_keys += 1
                continue
            found = _resolve(raw)
            scaled = cell if found.scale == 1.0 or cell.value is None else cell._replace(value=cell.value * found.scale)
            self._detail_put(step, found.key._replace(rank=self.rank), raw, scaled)

    def _detail_put(self, step: int, key: Key, raw: str, cell: Cell) -> None:
        detail = self.detail
        if not detail.steps or detail.steps[-1] != step or detail.segments[-1] != self._segment:
            detail.steps.append(step)
            detail.segments.append(self._segment)
            detail.sources.append(self.index)
            detail.lines.append(self.line)
        column = detail.columns.get(key)
        if column is None and len(detail.columns) >= MAX_KEYS:
            self._dropped_keys += 1
            return
        row = len(detail) - 1
        if self._pads(row - len(column.values) if column else row):
            if column is None:
                column = detail.columns[key] = Column(key, raw)
            column.put(row, cell)

    def _pads(self, gap: int) -> bool:
        """Whether a column may be padded by `gap` empty cells before its next value; the value is lost if not."""
        if gap <= 0:
            return True
        if self._padding + gap > MAX_PADDING:
            self._unpadded += 1
            return False
        self._padding += gap
        return True

    # -- events and facts -------------------------------------------------------------------------------------------
    def event(self, kind: str, text: str, value: float | None = None, step: int | None = None) -> None:
        """Add something the log says once; `step` defaults to the last step logged before it, or the progress bar's."""
        if len(self.events) >= MAX_EVENTS:
            self._dropped_events += 1
            return
        if step is None:
            step = self.step
            if self.bar and not self.counted_steps and (step is None or step < self.bar[0] and self.bar_steps):
                step = self.bar[0]
        self.events.append(Event(kind, text[:400], step, self._segment, self.rank, value, self.index, self.line))

    def fact(self, name: str, value: Any) -> None:
        """Record a run fact once (`framework`, `algorithm`, ...); the first writer wins."""
        self.facts.setdefault(name, value)

    def close(self) -> None:
        """Settle what needs the whole file: its format name and the counted losses."""
        if self.formats:
            self.source.format = "+".join(sorted(self.formats, key=lambda name: -self.formats[name]))
        if self._duplicates:
            self.warnings.append(
                f"{self.source.path}: {self._duplicates} values were written twice for one step; the last counts"
            )
        if self._dropped_keys:
            self.warnings.append(
                f"{self.source.path}: more than {MAX_KEYS} metric names, or names longer than {MAX_KEY}; {self._dropped_keys} of their values were not kept"
            )
        if self._unpadded:
            self.warnings.append(
                f"{self.source.path}: its metric names come and go; {self._unpadded} values of rare names were not kept"
            )
        if self._stride > 1:
            self.facts["thinned"] = self._stride
            self.warnings.append(
                f"{self.source.path}: too many rows to hold; about one in {self._stride} was kept, and each at which a value turned non-finite"
            )
        if self._dropped_events:
            self.warnings.append(f"{self.source.path}: {self._dropped_events} further events were counted, not kept")
        if self.counted_steps and len(self.frame):
            self.warnings.append(f"{self.source.path}: its rows carry no step, so steps here count rows")
        self.warnings += [f"{self.source.path}: {note}" for note in unrecoverable(self.frame, self.facts)]
        if self.source.truncated:
            self.warnings.append(f"{self.source.path}: not read to its end or cut off; judged on what was read")


def _resolve(raw: str) -> Resolved:
    found = resolve(raw)
    if max(found.key.layer or 0, found.key.expert or 0) >= MAX_INDEX:
        return Resolved(Key(raw, axis=found.key.axis), known=False)
    return found


class _ScaledColumn(Column):
    """A column whose writer used another unit; values are converted as they come in."""

    __slots__ = ("scale",)

    def __init__(self, column: Column, scale: float) -> None:
        super().__init__(column.key, column.raw_key, column.values, column.states, column.raws)
        self.scale = scale

    def put(self, row: int, cell: Cell) -> None:
        if cell.value is not None and cell.state == FINITE:
            cell = cell._replace(value=cell.value * self.scale)
        super().put(row, cell)
