"""The recorder: canonical rows in memory, or appended to an Arrow IPC stream that is readable after SIGKILL.

A value costs three list appends: a key (signal, axis, layer, ...) becomes a number once, and at a flush Arrow turns the
numbers into columns. A flush hands whole messages to the operating system, so a killed process loses the steps since
its last one and nothing else (there is no fsync: a dead machine may lose more). Given up: compression, for a reader
must not trust the sizes it states (about 60 bytes a value; `faultproxy ingest` makes 2 of them), and a file for several
starts of a run (each start has its own; a folder of them is one run).
"""

from __future__ import annotations

import atexit
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from math import isfinite, isnan
from pathlib import Path
from typing import IO, Any, Self

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.longform import utf8
from faultproxy.analyzer.schema import EVENTS_KEY, RUN_KEY, SCHEMA, VALUES, arrow
from faultproxy.analyzer.trace import AXES, FINITE, NAN, NEG_INF, POS_INF, STATES, Event, Source, Trace

#: The columns that a key decides.
_KEY = ("axis", "rank", "layer", "expert", "module", "role", "stat", "label", "signal")
_LIMITS = {"rank": 2**31, "layer": 2**15, "expert": 2**15}
_CODES = {state: code for code, state in enumerate(STATES)}
_MAX_STEP = 2**62
Place = tuple[str, int | None, int | None, int | None, str | None, str | None, str | None, str | None]


class Recorder:
    """Collects values and events of one run; a context manager, or call `close` at the end."""

    def __init__(self, path: Path | None, run: str, facts: dict[str, Any] | None = None, flush_steps: int = 8) -> None:
        """Record to a new file (named NAME.arrows by custom), or in memory when `path` is None.

        `facts` are run facts as in run.json (framework, model, precision, ...). At most `flush_steps` steps are held
        before they are written. Raises InputError when the file exists or cannot be made.
        """
        self.path, self.run, self.facts, self.flush_steps = path, run, dict(facts or {}), flush_steps
        self.events: list[Event] = []
        self._ids: list[int] = []
        self._steps: list[int] = []
        self._values: list[float] = []
        self._keys: dict[tuple[str, Place], int] = {}
        self._rows: list[tuple[Any, ...]] = []  # what the keys say, in the order of _KEY
        self._named: Any = None  # the same as a record batch
        self._series: dict[tuple[str, str, tuple[int, ...] | int, int], list[int]] = {}
        self._step, self._held, self._segment = -1, 0, 0
        self._told = 0  # events already written
        self._batches: list[Any] = []
        self._file: IO[bytes] | None = None
        self._schema = arrow(VALUES)
        if path is not None:
            document = {"schema": SCHEMA, "run": run, "facts": self.facts}
            text = orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
            try:
                self._file = open(path, "xb")  # noqa: SIM115 (closed in close)
            except OSError as error:
                raise InputError(
                    f"{path}: cannot be made ({error.strerror}); every start of a run records to a new file in a folder "
                    "that exists (run-0.arrows, run-1.arrows): choose another name"
                ) from error
            self._writer = pa.ipc.new_stream(self._file, self._schema.with_metadata({RUN_KEY: text}))
            self._writer.write_batch(self._batch())  # an empty one: pyarrow holds the header back until the first
            self._file.flush()
            atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def log(
        self,
        step: int,
        values: Mapping[str, float | None],
        axis: str = "train",
        role: str | None = None,
        stat: str | None = None,
        label: str | None = None,
        rank: int | None = None,
        layer: int | None = None,
        expert: int | None = None,
        module: str | None = None,
    ) -> None:
        """Add numbers of one step by signal; None is not logged. `reward:max` is signal `reward`, stat `max`."""
        self._begin(step, axis)
        place = (axis, rank, layer, expert, module, role, stat, label)
        given = {signal: value for signal, value in values.items() if value is not None}
        numbers = self._numbers(step, given, given.values())
        with self._row(step):
            for signal, number in zip(given, numbers, strict=True):
                key = self._keys.get((signal, place))
                self._ids.append(self._new(signal, place) if key is None else key)
                self._values.append(number)

    def log_layers(
        self,
        step: int,
        values: Mapping[str, Collection[float | None] | Mapping[int, float | None]],
        layers: Sequence[int] | None = None,
        axis: str = "train",
    ) -> None:
        """Add a number a layer by signal: a sequence in the order of `layers` (default 0, 1, ...), or a dict by layer."""
        self._begin(step, axis)
        with self._row(step):
            for signal, found in values.items():
                if isinstance(found, Mapping):
                    self._extend(signal, axis, tuple(found), found.values())
                elif isinstance(found, Collection):
                    self._extend(signal, axis, tuple(range(len(found)) if layers is None else layers), found)
                else:
                    raise InputError(f"{self.run}: {signal} at step {step}: got {found!r}; give a number a layer")

    def log_experts(
        self, step: int, signal: str, values: Mapping[int, Sequence[float | None]], axis: str = "train"
    ) -> None:
        """Add a number an expert by layer; each sequence is in the order of the experts 0, 1, ..."""
        self._begin(step, axis)
        with self._row(step):
            for layer, found in values.items():
                self._extend(signal, axis, layer, found)

    def event(self, kind: str, text: str, step: int | None = None) -> None:
        """Add what is said once (an overflow, a traceback) and flush: it may be the last thing said."""
        if step is None and self._step >= 0:
            step = self._step
        self.events.append(Event(utf8(kind), utf8(text), step, self._segment))
        self.flush()

    def flush(self) -> None:
        """Hand all that was logged to the operating system; in memory, to Arrow."""
        told = [
            {"kind": e.kind, "text": e.text, "step": e.step, "segment": e.segment} for e in self.events[self._told :]
        ]
        if not self._ids and not told:
            return
        batch = self._batch()
        self._ids, self._steps, self._values, self._held = [], [], [], 0
        self._told = len(self.events)
        if self._file is None:
            self._batches.append(batch)
        else:
            self._writer.write_batch(batch, custom_metadata={EVENTS_KEY: orjson.dumps(told)} if told else None)
            self._file.flush()

    def close(self) -> None:
        """Flush and end the stream; a second call does nothing."""
        if self._file is not None and not self._file.closed:
            self.flush()
            self._writer.close()
            self._file.close()
            atexit.unregister(self.close)

    def table(self) -> Any:
        """The rows as a pyarrow Table with the columns of schema.VALUES, in the order logged."""
        self.flush()
        if self.path is None:
            return pa.Table.from_batches(self._batches, self._schema).unify_dictionaries()
        with pa.memory_map(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
            return reader.read_all().replace_schema_metadata().unify_dictionaries()

    def _begin(self, step: int, axis: str) -> None:
        """Open a step; one that drops is a restart and opens a segment, but evaluation may lag."""
        if not hasattr(step, "__index__"):
            raise InputError(f"{self.run}: got step {step!r}; steps are whole numbers; log the trainer's own")
        if step == self._step or (axis == "eval" and 0 <= step < self._step):
            return
        if not 0 <= step < _MAX_STEP:
            raise InputError(f"{self.run}: got step {step}; steps start at 0; log the trainer's own")
        if step < self._step:
            self.flush()  # a batch has one segment
            self._segment += 1
        elif self._held >= self.flush_steps:
            self.flush()
        self._step = step
        self._held += 1

    @contextmanager
    def _row(self, step: int) -> Iterator[None]:
        """Give every value that was taken its step, also where a later one is refused."""
        try:
            yield
        finally:
            self._steps.extend(repeat(step, len(self._ids) - len(self._steps)))

    def _extend(self, signal: str, axis: str, layers: tuple[int, ...] | int, values: Collection[float | None]) -> None:
        """Add a signal over several layers, or over all experts of one layer."""
        ids = self._series.get((signal, axis, layers, len(values)))
        if ids is None:
            places: Iterable[tuple[int, int | None]] = zip(layers, repeat(None)) if isinstance(layers, tuple) else zip(repeat(layers), range(len(values)))  # fmt: skip
            ids = [self._new(signal, (axis, None, *place, None, None, None, None)) for place in places]
            if len(ids) != len(values):
                raise InputError(
                    f"{signal}: got {len(values)} values for {len(ids)} layers; give None where there is none"
                )
            self._series[signal, axis, layers, len(values)] = ids
        given = self._numbers(self._step, signal, [value for value in values if value is not None])
        if len(given) < len(ids):
            ids = [key for key, value in zip(ids, values, strict=True) if value is not None]
        self._ids += ids
        self._values += given

    def _numbers(self, step: int, names: object, values: Collection[Any]) -> list[float]:
        """All as floats, or an InputError before any of them is held: a bad value must not cost the rest of the run."""
        try:
            return [float(value) for value in values]
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            told = ", ".join(names) if isinstance(names, dict) else names
            raise InputError(
                f"{self.run}: {told} at step {step}: {error}; a value is one number; log text with `event`, leave out the rest"
            ) from error

    def _new(self, signal: str, place: Place) -> int:
        """The number of a key; one with an axis or index that the schema cannot hold is an InputError."""
        found = self._keys.get((signal, place))
        if found is not None:
            return found
        name, _, stat = signal.partition(":")
        row: dict[str, Any] = dict(zip(_KEY, (*place, name), strict=True))
        row["stat"] = stat or row["stat"]
        if row["axis"] not in AXES:
            raise InputError(f"{signal}: got axis {row['axis']!r}; allowed are {', '.join(AXES)}")
        for index, limit in _LIMITS.items():
            if row[index] is not None and not 0 <= row[index] < limit:
                raise InputError(
                    f"{signal}: got {index} {row[index]}; allowed are 0 to {limit - 1}; put it into `module`"
                )
        self._keys[signal, place] = len(self._rows)
        self._rows.append(tuple(utf8(part) if isinstance(part, str) else part for part in row.values()))
        return len(self._rows) - 1

    def _batch(self) -> Any:
        """What is held as a record batch. Columns of keys share one dictionary a column until a key is new."""
        if self._named is None or self._named.num_rows < len(self._rows):
            parts = [[row[at] for row in self._rows] for at in range(len(_KEY))]
            self._named = pa.record_batch(
                [pa.array(part, self._schema.field(name).type) for name, part in zip(_KEY, parts, strict=True)],
                list(_KEY),
            )
        count = len(self._ids)
        values = pa.array(self._values, pa.float64())
        codes = [0 if isfinite(value) else _CODES[_state(value)] for value in self._values]
        columns = dict(zip(_KEY, self._named.take(pa.array(self._ids, pa.int32())).columns, strict=True))
        columns |= {
            "run": pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [self.run]),
            "segment": pa.array([self._segment] * count, pa.int16()),
            "step": pa.array(self._steps, pa.int64()),
            "value": pc.if_else(pc.is_finite(values), values, None),
            "state": pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), list(STATES)),
        }
        filled = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in self._schema]
        return pa.record_batch(filled, schema=self._schema)


def _state(value: float) -> str:
    if isfinite(value):
        return FINITE
    return NAN if isnan(value) else POS_INF if value > 0 else NEG_INF


def trace_of(table: Any, facts: Mapping[str, Any], events: Iterable[Event] = ()) -> Trace:
    """One run's values (a pyarrow Table with the columns of schema.VALUES) as a trace, as reading its file would give it.

    Raises SchemaError when the table breaks the schema or holds several runs.
    """
    from faultproxy.analyzer.ingest.formats.arrowstream import FORMAT, fill
    from faultproxy.analyzer.ingest.log import Log
    from faultproxy.analyzer.ingest.merge import merge

    log = Log(0, Source("recorder", FORMAT, "0" * 64))  # no file, so no hash of one
    log.facts.update(facts)
    log.events += events
    fill(log, table.to_batches(), "recorder")
    log.source.format = FORMAT
    return merge(log.run or "recorder", [log])
