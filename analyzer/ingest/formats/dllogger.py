"""DLLogger, the logger of NVIDIA's training examples and of NeMo: its console line and its JSON stream.

    DLL 2026-08-01 10:00:00.123456 - Epoch: 0 Iteration: 10  train_loss : 3.2141 learning_rate : 0.0001
    DLL 2026-08-01 10:00:00.123456 - (0, 10) train.loss : 3.2141 None train.total_ips : 267.4 img/s
    DLLL {"timestamp": "1785578400.1", "datetime": "...", "elapsedtime": "1.2", "type": "LOG", "step": [0, 10], "data": {"loss": 3.2}}

A step of one number or of (epoch, iteration) counts iterations; an iteration that starts again with each epoch is made
to go on, so that steps ascend. A third number counts validation steps, and an epoch's or the run's summary has no
iteration: of these only what was evaluated counts. The unit behind a value and METADATA are left out; of PARAMETER
records only the loss scale counts, which NVIDIA's BERT logs so whenever it changes: beside the next row, or where no row
comes as rows of its own.
Source: NVIDIA/dllogger dllogger/logger.py.
"""

from __future__ import annotations

from typing import Any

from faultproxy.analyzer.ingest.formats.jsonl import flatten, loads
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import MAX_STEP, Log
from faultproxy.analyzer.ingest.tokens import MAX_KEY, NUMBER, masked_norm, native, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

_STREAM = lazy(r"^\s{0,8}DLLL (?P<json>\{.*\})\s*$")
_CONSOLE = lazy(r"^\s{0,8}DLL \d{4}-\d\d-\d\d [\d:.]{5,20} - (?P<rest>.*)$")
_EPOCH = lazy(r"(?P<name>Epoch|Iteration|Validation Iteration|Step): (?P<value>\d{1,15}) ?")
_TUPLE = lazy(r"^[(\[]?(?P<step>\d{0,15}(?:, ?\d{1,15}){0,3}),?[)\]]? ")
_PARAMETER = lazy(r"^PARAMETER\b")
#: Parameters logged as they change; more are not held.
_CHANGING, MAX_HELD = {"loss_scale"}, 10_000
_PAIR = lazy(rf"(?<![\w./%@-])(?P<key>[A-Za-z][\w./%@-]*+) : (?P<value>{NUMBER}|None)(?![\w.])")


def _parse(line: str, log: Log) -> bool:
    stream = _STREAM.match(line)
    if stream:
        return _record(stream["json"], log)
    console = _CONSOLE.match(line)
    if not console:
        return False
    rest = console["rest"]
    if _PARAMETER.match(rest):
        return _parameter(_cells(rest), log)
    numbers: list[int] = []
    while found := _EPOCH.match(rest):
        numbers.append(int(found["value"]))
        rest = rest[found.end() :]
    if not numbers and (whole := _TUPLE.match(rest)):
        numbers = [int(part) for part in whole["step"].replace(" ", "").split(",") if part]
        rest = rest[whole.end() :]
    return _add(numbers, _cells(rest), log)


def _cells(text: str) -> dict[str, Cell]:
    return {m["key"]: cell for m in _PAIR.finditer(text) if len(m["key"]) <= MAX_KEY and (cell := number(m["value"]))}


def _parameter(cells: dict[str, Cell], log: Log) -> bool:
    held: list[tuple[int, dict[str, Cell]]] = log.memory.setdefault("dll_parameters", [])
    cells = {key: cell for key, cell in cells.items() if resolve(key).key.signal in _CHANGING}
    if cells and len(held) < MAX_HELD:
        held.append((log.line, cells))
    return True


def _finish(log: Log) -> None:
    """Parameters that no row took."""
    held = log.memory.pop("dll_parameters", [])
    for line, cells in held if not log.memory.get("dll_rows") else []:
        log.line = line
        log.row(None, cells.items(), "dllogger")


def _record(text: str, log: Log) -> bool:
    try:
        data = loads(text)
    except ValueError:
        log.source.unparsed += 1
        return True
    if not isinstance(data, dict) or data.get("type") != "LOG" or not isinstance(data.get("data"), dict):
        return True
    step: Any = data.get("step")
    numbers = [
        n for n in (step if isinstance(step, list) else [step]) if isinstance(n, int) and not isinstance(n, bool)
    ]
    cells = {key: cell for key, value in flatten(data["data"]) if value is not None and (cell := native(value))}
    if step == "PARAMETER":
        return _parameter(cells, log)
    return _add(numbers, cells, log)


def _add(numbers: list[int], cells: dict[str, Cell], log: Log) -> bool:
    if len(numbers) > 2 or (len(numbers) < 2 and "dll_epochs" in log.memory):
        cells = {key: cell for key, cell in cells.items() if resolve(key).key.axis == "eval"}
    if not any(resolve(key).known for key in cells):
        return True
    for key, cell in cells.items():
        if resolve(key).key.signal == "grad_norm":
            cells[key] = masked_norm(cell)
    for _, changed in log.memory.pop("dll_parameters", []):
        cells.update(changed)
    log.memory["dll_rows"] = True
    log.row(_step(numbers, log), cells.items(), "dllogger")
    return True


def _step(numbers: list[int], log: Log) -> int | None:
    """The row's step: the iteration, made to ascend over epochs; a summary belongs to the step before it."""
    if len(numbers) == 1 and log.memory.get("dll_epochs") is None:
        return numbers[0]
    if len(numbers) < 2:
        return log.step or 0
    epoch, iteration = numbers[:2]
    if not 0 <= iteration < MAX_STEP // 4 or len(numbers) > 2:
        return log.step or 0
    held: list[int] = log.memory.setdefault("dll_epochs", [epoch, 0, 0])  # epoch, offset, last iteration
    if epoch > held[0]:
        if iteration <= held[2]:
            held[1] = min(held[1] + held[2] + (0 if iteration else 1), MAX_STEP // 4)
        held[0], held[2] = epoch, iteration
    elif epoch < held[0]:  # a restart
        held[:] = [epoch, 0, iteration]
    held[2] = max(held[2], iteration)
    return held[1] + iteration


LINE = LineFormat("dllogger", ("DLL",), _parse, order=18, finish=_finish)
