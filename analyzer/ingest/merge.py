"""Joins the logs of one run's files into one trace: ranks side by side, restarts as segments, copies of a run once.

Two files that agree on the steps they share are the same run seen twice (console and tracker): the native one wins,
the other fills gaps. Two that start at one step and run side by side but disagree are ranks, whatever their names say.
Two that overlap otherwise, or follow each other, are restarts: the later is a new segment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faultproxy.analyzer.facts import fill
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.trace import BAD_STATES, Cell, Column, Frame, Key, Source, Trace
from faultproxy.analyzer.vocabulary import resolve

if TYPE_CHECKING:
    from faultproxy.analyzer.ingest.facts.found import Found

#: Values printed with few digits still count as the same value.
_RELATIVE = 2e-3
#: Share of common cells that must agree for two files to be one run seen twice.
_AGREE = 0.8
#: Share of the shorter file's steps that must be shared for two files to run side by side.
_BESIDE = 0.8
#: Marks the format of a large canonical file that was read together with others.
JOINED = "+joined"


def merge(name: str, logs: list[Log], found: Found | None = None) -> Trace:
    """Build the trace of one run; logs come in file order (natural sort), which is the order of restarts.

    `found` are facts from elsewhere than its metrics; what the metrics themselves say comes first.
    """
    trace = Trace((logs[0].run if len(logs) == 1 else None) or name)
    trace.sources = _sources(logs)
    frames: list[Log] = []
    for log in logs:
        log.close()
        trace.warnings += log.warnings
        for fact, value in log.facts.items():
            if value is not None:
                trace.facts.setdefault(fact, value)
        if len(log.frame):
            frames.append(log)
    frames.sort(key=lambda log: (not log.native, log.file_rank is not None, log.file_rank or 0))
    placed: list[tuple[Log, int]] = []  # log and its segment offset
    if frames:
        lead, *others = frames
        trace.frame = lead.frame
        placed.append((lead, 0))
        for log in others:
            placed.append((log, _place(trace, lead, log)))
    offsets = {log.index: offset for log, offset in placed}
    for log in logs:
        offset = offsets.get(log.index, 0)
        _split(trace.detail, log.detail, offset)
        for event in log.events:
            event.segment += offset
            event.rank = log.file_rank if event.rank is None else event.rank
            if event.step is None and trace.frame.steps and not len(log.frame):
                event.step, event.segment = trace.frame.steps[-1], trace.frame.segments[-1]
            trace.events.append(event)
    if frames:
        _ranks(trace, frames[0])
    trace.facts.setdefault("steps_are_rows", any(log.counted_steps for log in frames))
    stated = found.facts() if found else {}
    if found:
        trace.warnings += found.warnings()
    fill(trace.facts, {name: value for name, value in stated.items() if name != "algorithm"})
    _objective(trace, stated.get("algorithm"))
    if found:
        from faultproxy.analyzer.ingest.facts import layers

        layers.resolve(trace)
    trace.unrecognised = sorted({*_unrecognised(trace), *(key for log in logs for key in log.unrecognised or ())})
    _table(trace, logs, offsets)
    _rename_objective(trace)
    return trace


def _sources(logs: list[Log]) -> list[Source]:
    """Every file of the run. A canonical trace names those it was made from: rows cite them, it follows at the end."""
    if not any(log.origins for log in logs):
        return [log.source for log in logs]
    found: list[Source] = []
    for log in logs:
        first = len(found)
        found += log.origins or [log.source]
        for frame in (log.frame, log.detail):
            frame.sources = [first + (source if log.origins else 0) for source in frame.sources]
        for event in log.events:
            event.source = first + (event.source if log.origins else 0)
    return found + [log.source for log in logs if log.origins]


def _table(trace: Trace, logs: list[Log], offsets: dict[int, int]) -> None:
    """Keep the rows that stay on disk; only one file of a run can have such."""
    large = [log for log in logs if log.table is not None]
    for log in large[:1]:
        offset = offsets.get(log.index, 0)
        trace.table = log.table
        if offset:
            trace.table = f"SELECT * REPLACE ((segment + {offset})::INTEGER AS segment) FROM ({log.table})"
    if large and len(logs) > 1:
        large[0].source.format += JOINED  # what is in memory is not all that the file holds, so it cannot be copied
    for log in large[1:]:
        trace.warnings.append(
            f"{log.source.path}: a second large canonical file of one run; its ranks and layers were not read"
        )


def _place(trace: Trace, lead: Log, log: Log) -> int:
    """Put one more file into the trace; returns the segment offset its events get."""
    if log.file_rank is not None and log.file_rank != lead.file_rank:
        _split(trace.detail, log.frame, 0, log.file_rank)
        return 0
    where = {(s, t): row for row, (s, t) in enumerate(zip(trace.frame.segments, trace.frame.steps, strict=True))}
    common = [
        (row, where[key])
        for row, key in enumerate(zip(log.frame.segments, log.frame.steps, strict=True))
        if key in where
    ]
    same = differ = 0
    for column in log.frame.columns.values():
        held = trace.frame.columns.get(column.key)
        if held is None:
            continue
        for row, into in common[:2000]:
            a, b = column.cell(row), held.cell(into)
            if a is None or b is None or a.value is None or b.value is None:
                continue
            if abs(a.value - b.value) <= _RELATIVE * max(abs(a.value), abs(b.value)) + 5e-4:
                same += 1
            else:
                differ += 1
    if common and same + differ > 0 and same >= _AGREE * (same + differ):
        _fill(trace, log, where, same)
        return 0
    if common and same + differ == 0 and len(common) >= _AGREE * min(len(log.frame), len(trace.frame)):
        _fill(trace, log, where, 0)
        return 0
    last, first = trace.frame.steps[-1], log.frame.steps[0]
    if first == lead.frame.steps[0] and len(common) >= _BESIDE * min(len(log.frame), len(lead.frame)):
        _beside(trace, lead, log)
        return 0
    # A file that simply goes on where the other stopped is the same segment; anything else is a restart.
    goes_on = not common and first > last
    offset = trace.frame.segments[-1] + (0 if goes_on else 1)
    _append(trace.frame, log.frame, offset)
    return offset


def _beside(trace: Trace, lead: Log, log: Log) -> None:
    """Take a file for another rank's: its number is the one in which the files' names differ, else the next free one."""
    taken = {key.rank for key in trace.detail.columns if key.rank is not None}
    if lead.file_rank is None:
        lead.file_rank = lead.number or 0
        trace.warnings.append(
            f"{lead.source.path}: other files show the same steps with other values; read as ranks (name them rankN.log)"
        )
    taken.add(lead.file_rank)
    free = next(rank for rank in range(len(taken) + 1) if rank not in taken)
    log.file_rank = log.number if log.number is not None and log.number not in taken else free
    _split(trace.detail, log.frame, 0, log.file_rank)


def _fill(trace: Trace, log: Log, where: dict[tuple[int, int], int], losers: int) -> None:
    frame = trace.frame
    extra = Frame()
    for row, key in enumerate(zip(log.frame.segments, log.frame.steps, strict=True)):
        into = where.get(key)
        if into is None:
            extra.steps.append(row)
            continue
        for column in log.frame.columns.values():
            cell = column.cell(row)
            if cell is None:
                continue
            held = frame.columns.get(column.key)
            if held is None:
                held = frame.columns[column.key] = Column(column.key, column.raw_key)
            if held.cell(into) is None:
                held.put(into, cell)
    if losers:
        trace.warnings.append(
            f"{log.source.path}: {losers} values were also in another file of this run, whose copy is used"
        )
    if extra.steps:  # rows only this file has: they follow in step order
        rows = extra.steps
        for row in rows:
            frame.steps.append(log.frame.steps[row])
            frame.segments.append(log.frame.segments[row])
            frame.sources.append(log.frame.sources[row])
            frame.lines.append(log.frame.lines[row])
            for column in log.frame.columns.values():
                cell = column.cell(row)
                if cell is not None:
                    held = frame.columns.setdefault(column.key, Column(column.key, column.raw_key))
                    held.put(len(frame) - 1, cell)


def _append(into: Frame, frame: Frame, offset: int) -> None:
    """Put the rows of a later file behind those already there."""
    if not len(frame):
        return
    start = len(into)
    into.steps += frame.steps
    into.segments += [segment + offset for segment in frame.segments]
    into.sources += frame.sources
    into.lines += frame.lines
    for key, column in frame.columns.items():
        held = into.columns.setdefault(key, Column(key, column.raw_key))
        held.values.extend([None] * (start - len(held.values)))
        held.values.extend(column.values)
        held.states.update({row + start: state for row, state in column.states.items()})
        held.raws.update({row + start: raw for row, raw in column.raws.items()})


def _split(detail: Frame, frame: Frame, offset: int, rank: int | None = None) -> None:
    """Put a frame beside what `detail` holds: one row a step for all ranks, so that 1,000 ranks are columns, not gaps."""
    where = {key: row for row, key in enumerate(zip(detail.segments, detail.steps, strict=True))}
    rows = []
    for row in range(len(frame)):
        key = (frame.segments[row] + offset, frame.steps[row])
        into = where.get(key)
        if into is None:
            into = where[key] = len(detail)
            detail.segments.append(key[0])
            detail.steps.append(key[1])
            detail.sources.append(frame.sources[row])
            detail.lines.append(frame.lines[row])
        rows.append(into)
    for column in frame.columns.values():
        new = column.key if rank is None else column.key._replace(rank=rank)
        held = detail.columns.setdefault(new, Column(new, column.raw_key))
        for row, into in enumerate(rows[: len(column.values)]):
            cell = column.cell(row)
            if cell is not None:
                held.put(into, cell)


def _ranks(trace: Trace, lead: Log) -> None:
    """Where ranks are split: give the leading rank its own column too, and let the worst rank show in the whole-model row.

    A gradient that is not finite on one rank alone is a dead run, whichever rank's log was read first.
    """
    split: dict[Key, list[Column]] = {}
    for key, column in trace.detail.columns.items():
        if key.rank is not None:
            split.setdefault(key._replace(rank=None), []).append(column)
    if not split:
        return
    rank = lead.file_rank if lead.file_rank is not None else lead.lead_rank
    if rank is not None:
        _split(
            trace.detail,
            replace(trace.frame, columns={k: c for k, c in trace.frame.columns.items() if k in split}),
            0,
            rank,
        )
    where = {key: row for row, key in enumerate(zip(trace.frame.segments, trace.frame.steps, strict=True))}
    for key, columns in split.items():
        whole = trace.frame.columns.get(key)
        if whole is None:
            continue
        for column in columns:
            for row, state in column.states.items():
                into = where.get((trace.detail.segments[row], trace.detail.steps[row]))
                if into is not None and state in BAD_STATES and whole.states.get(into) not in BAD_STATES:
                    whole.put(into, Cell(None, state, column.raws.get(row)))


def _objective(trace: Trace, stated: str | None = None) -> None:
    """What kind of training it is: its metrics tell, and where they do not (or not which RL), its configuration."""
    if "algorithm" in trace.facts:
        return
    signals = {key.signal for key in trace.frame.columns}
    kind = stated
    if signals & {"reward_chosen", "reward_margin", "reward_accuracy"}:
        kind = "preference"
    elif signals & _RL and stated not in _OBJECTIVES:
        critic = any(key.role == "critic" and key.signal == "value_loss" for key in trace.frame.columns)
        kind = "ppo" if critic else "rl"
    if kind is not None:
        trace.facts["algorithm"] = kind


#: Signals that only RL logs, and the kinds of training whose `loss` is the policy objective.
_RL = {"reward", "advantage", "kl_ref", "kl_old", "clip_frac", "zero_std_frac", "policy_loss"}
_OBJECTIVES = ("rl", "ppo")


def _rename_objective(trace: Trace) -> None:
    """In an RL run the key `loss` is the policy objective, or the whole of it: rename it, for no rule may judge its level.

    In the frame, in the detail, and in what stays on disk alike: a rank's loss must not be another signal than the run's.
    """
    signals = {key.signal for key in trace.frame.columns}
    preference = signals & {"reward_chosen", "reward_margin", "reward_accuracy"}
    if preference or not (signals & _RL or trace.facts.get("algorithm") in _OBJECTIVES):
        return
    name = "objective" if Key("policy_loss") in trace.frame.columns else "policy_loss"
    for frame in (trace.frame, trace.detail):
        for key in [key for key in frame.columns if key[:5] == Key("loss")[:5]]:
            column = frame.columns.pop(key)
            column.key = key._replace(signal=name)
            frame.columns[column.key] = column
    if trace.table is not None:
        trace.table = (
            f"SELECT * REPLACE (CASE WHEN signal = 'loss' THEN '{name}' ELSE signal END AS signal) FROM ({trace.table})"
        )


def _unrecognised(trace: Trace) -> list[str]:
    keys = {
        column.raw_key
        for frame in (trace.frame, trace.detail)
        for column in frame.columns.values()
        if column.raw_key and not resolve(column.raw_key).listed
    }
    return sorted(keys)
