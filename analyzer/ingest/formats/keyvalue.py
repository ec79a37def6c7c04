"""The last resort: metric lines of a loop nobody taught us, whatever ties its names to their numbers.

    step 12 | loss 2.31 | gnorm 0.4             iter=5;pg=0.01;kl=0.002;rew=0.4             [12/100] loss=2.31 (2.40) lr 1e-4
    epoch 1 batch 20 -> L=2.3 acc=0.4           Update 12                                   4.5k tok/s 1.2GiB
                                                  policy loss .... 0.012

Asked only for files in which no other format found a row. The shape is learned from the file (`ingest/shape.py`): names
that come back with other numbers are metrics, an integer that grows is the step. A line is a row when it names a signal
of the vocabulary and, with it, a step or a second number; names without a meaning are kept beside one. Settings, prose,
and code name none that comes back, and are left alone. The report says that this reader was used, and how sure it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from faultproxy.analyzer.ingest.formats.dictline import bar_step
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.pairs import STEP_NAMES, Pair, Scan, in_unit, scan
from faultproxy.analyzer.ingest.shape import Shape, is_path, is_setting, learn, metric, tails
from faultproxy.analyzer.ingest.tokens import NUMBER, masked_norm, number, plain
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve, signals

_BRACKETS = lazy(r"\[([A-Za-z]\w{1,30})\](?=\s)")
_TACOTRON = lazy(rf"[Tt]rain loss\s+(?P<step>\d{{1,12}})\s+(?P<value>{NUMBER})")
#: A whole line about the validation set, its keys unmarked.
_EVALUATION = lazy(r"\| valid \||\bvalid(?:ation)? (?:on|set)\b|^\W{0,9}(?:eval|valid(?:ation)?|test|val)\b", re.IGNORECASE)  # fmt: skip
#: A line of nothing but strokes closes a record.
_RULER = lazy(r"[\s|+]*[-=*_+|]{3,}[-=*_+|\s]*$")
#: Signals that settings have too: alone they make no row.
_SKIP = {"epoch", "consumed_samples", "consumed_tokens", "batch_size", "kl_coef", "weight_decay"}
#: Units of what a machine does: alone, and without a step, it says nothing of the training.
_MACHINE = {"s", "GiB", "tokens/s", "TFLOP/s", "W"}
#: Lines that may lie between a head (`Update 12`) and a line of its record.
_GAP = 6


@dataclass(slots=True)
class _State:
    """What this reader remembers of one file."""

    shape: Shape
    rows: int = 0
    missed: int = 0
    names: dict[str, bool] = field(default_factory=dict)
    steps_from: set[str] = field(default_factory=set)
    head: int | None = None
    last: int = -99
    record: set[str] = field(default_factory=set)
    waiting: dict[str, Cell] = field(default_factory=dict)
    ruled: bool = False


def _parse(line: str, log: Log) -> bool:
    state: _State | None = log.memory.get("kv")
    if state is None:
        state = log.memory["kv"] = _State(learn(log.memory["lines"](), _bare) if "lines" in log.memory else Shape())
    if _RULER.match(line):
        if state.waiting and state.head is not None:
            _add(state.head, "head", state.waiting, state, log, "")
        state.head, state.record, state.waiting, state.ruled = None, set(), {}, True
        return False
    if is_setting(line):
        return False
    odd = _TACOTRON.search(line)
    found = scan(line[odd.end() :] if odd else _BRACKETS.sub(r"\1", line))
    if odd and (cell := number(odd["value"])):
        steps: dict[str, tuple[int, int | None]] = {"step": (int(odd["step"]), None)}
        found = Scan([Pair("train loss", cell, "", True), *(found.pairs if found else ())], steps)
    if found is None or _prose(line, found, state.shape):
        return False
    cells = _cells(found, state.shape)
    step, source = _step(found, state.shape, log)
    known = {resolve(key).key.signal for key in cells if resolve(key).known} - _SKIP
    if step is not None and source != "bar" and not known and len(cells) < 2:
        if "^" not in found.steps or len(found.steps) > 1:  # `Update 12` and the like: a record follows, or ends
            state.head, state.last, state.record = step, log.line, set()
            if state.waiting:
                _add(step, "head", state.waiting, state, log, "")
                state.waiting = {}
        if not cells:
            return False
    strong = any(signal != "lr" and _unit(signal) not in _MACHINE for signal in known)
    usable = step is not None or len(cells) > 1 or ("loss_scale" in known and bool(cells.keys() & state.shape.names))
    if state.shape.heads and source in ("", "bar"):
        usable = False  # a record needs its head
    if not known or not (usable if strong else source in ("line", "epochs")):
        return (strong or state.rows > 0) and _more(cells, known, state, log)
    if step is None or source == "bar":
        step, source = _placed(step, source, cells, state, log)
    return _add(step, source, cells, state, log, line)


def _prose(line: str, found: Scan, shape: Shape) -> bool:
    """Whether a line is a sentence that holds numbers: many words, no sign before a value, no name that comes back."""
    if any(pair.explicit or pair.key in shape.names for pair in found.pairs):
        return False
    return len(line.split()) > 4 * len(found.pairs) + 6


def _bare(line: str) -> str:
    from faultproxy.analyzer.ingest.text import unprefixed

    return unprefixed(plain(line))[0]


def _cells(found: Scan, shape: Shape) -> dict[str, Cell]:
    """The metrics of a line by their name; of a run of words the longest tail that means something."""
    cells: dict[str, Cell] = {}
    for pair in found.pairs:
        key: str | None = pair.key
        if is_path(pair.key):
            continue
        if not resolve(pair.key).known:
            key = next((tail for tail in tails(pair.key) if resolve(tail).known), None)
            single = " " not in pair.key and len(pair.key) > 2 and pair.explicit
            if key is None and (single or pair.key in shape.names):
                key = pair.key
        if key is None or key in cells:
            continue
        signal = resolve(key)
        cell = pair.cell
        if signal.known and pair.unit:  # of a name nobody knows the number stays as printed
            cell = in_unit(cell, pair.unit, _unit(signal.key.signal) if signal.scale == 1.0 else "")
        cells[key] = masked_norm(cell) if signal.key.signal == "grad_norm" else cell
    return cells


def _unit(signal: str) -> str:
    return str(signals().get(signal, {}).get("unit", ""))


def _step(found: Scan, shape: Shape, log: Log) -> tuple[int | None, str]:
    """The step of a line and where it came from; a count that begins anew each epoch goes on from the one before."""
    name = shape.step if shape.step in found.steps else None
    if name is None:
        usable = (n for n in STEP_NAMES if n in found.steps and n not in ("^", "i", "t", "s", "n"))
        name = None if shape.heads else next((n for n in usable if n not in shape.still), None)
        if name == "#" and shape.step is not None:
            name = None
    if name is None:
        step = bar_step(log)
        return step, "bar" if step is not None else ""
    step = found.steps[name][0]
    epoch = found.steps.get("epoch") or found.steps.get("ep")
    if shape.per_epoch and name == shape.step and epoch:
        return max(0, epoch[0] - shape.first_epoch) * shape.per_epoch + step, "epochs"
    return step, "line"


def _more(cells: dict[str, Cell], known: set[str], state: _State, log: Log) -> bool:
    """One more line of a record: below its head, or (one value) just below a row, as DeepSpeed-Chat prints its reward."""
    near = log.line - state.last <= _GAP
    learned = known - {"lr", "clip_frac"} or any(name in state.shape.names for name in cells)
    fresh = state.shape.heads or not cells.keys() & state.record
    if cells and learned and state.shape.heads and (state.shape.tails or (state.ruled and state.head is None)):
        state.waiting |= cells  # the step is on a later line of the record
        return False
    if cells and learned and state.head is not None and near and fresh:
        return _add(state.head, "head", cells, state, log, "")
    if cells and known and state.shape.blocks and not state.shape.heads:
        if cells.keys() & state.record or not near:
            state.record = set()
            return _add(None, "count", cells, state, log, "")
        return _add(log.step, "count", cells, state, log, "")
    if known and log.step is not None and not log.counted_steps and log.line - state.last <= 3:
        return _add(log.step, "line", cells, state, log, "")
    state.missed += state.rows > 0 and any(metric(name) and name in state.shape.names for name in cells)
    return False


def _placed(step: int | None, source: str, cells: dict[str, Cell], state: _State, log: Log) -> tuple[int | None, str]:
    """The step of a row that carries none: its head's, the row's that it continues, the bar's, or the next number."""
    fresh = not cells.keys() & state.record
    if state.head is not None and log.line - state.last <= _GAP and fresh:
        return state.head, "head"
    if step is None and log.counted_steps and state.last == log.line - 1 and fresh:
        return log.step, "count"  # a record broken over two lines
    return step, source or "count"


def _add(step: int | None, source: str, cells: dict[str, Cell], state: _State, log: Log, line: str) -> bool:
    before = len(log.frame)
    axis = "eval" if line and _EVALUATION.search(line) else None
    log.row(step, cells.items(), "key-value", axis=axis)
    if before and len(log.frame) == before and source in ("head", "count"):
        log.source.rows -= 1  # the same record, over several lines
    if source in ("line", "epochs", "bar"):
        state.head, state.record = None, set()
    state.rows += 1
    state.last = log.line
    state.record |= cells.keys()
    state.steps_from.add(source)
    for name in cells:
        if len(state.names) < 1000:
            state.names.setdefault(name, resolve(name).known)
    return True


_FROM = {"line": "the line", "epochs": "epoch and batch", "bar": "the progress bar", "head": "the line above", "count": "counting rows"}  # fmt: skip


def _finish(log: Log) -> None:
    """Say how sure the reading is."""
    state: _State | None = log.memory.get("kv")
    if state is None or not state.rows:
        return
    log.source.unparsed += state.missed
    known = sum(state.names.values())
    came = ", ".join(text for source, text in _FROM.items() if source in state.steps_from)
    log.warnings.append(
        f"{log.source.path}: read by the last-resort reader: {state.rows} of {state.rows + state.missed} metric lines, "
        f"{known} of {len(state.names)} names known, steps from {came}"
    )


LINE = LineFormat("key-value", tuple("0123456789") + ("nan", "NaN", "inf", "---", "===", "***"), _parse, order=90, last_resort=True, finish=_finish)  # fmt: skip
