"""Dumps of transformers' DebugUnderflowOverflow: absolute minima and maxima of weights, inputs, and outputs, module by module.

    Detected inf/nan during batch_number=0
    Last 21 forward frames:
    abs min  abs max  metadata
                      encoder.block.2.layer.1.DenseReluDense.wo Linear
    1.01e-06 6.44e+00 weight
    0.00e+00 9.74e+03 input[0]
    3.18e-04 6.27e+04 output
                      encoder.block.2.layer.1.dropout Dropout
    0.00e+00      inf output

The largest output of any module of a layer becomes `act_absmax` of that layer, and the first module with an inf or nan
the event `nonfinite_module`. Batches count forward passes, so they give the step only where nothing else in the log
does. The layer is the first number in the module's name.
Source: huggingface/transformers src/transformers/debug_utils.py.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.beside import alone, beside
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import BAD_STATES, Cell

_DETECTED = lazy(r"^\s{0,8}Detected inf/nan during batch_number=(?P<batch>\d{1,12})\s*$")
_STARTING = lazy(r"^\s{0,40}\*\*\* (?:Starting|Finished) batch number=(?P<batch>\d{1,12}) \*\*\*")
_HEAD = lazy(r"^\s{0,8}abs min\s{1,8}abs max\s{1,8}metadata\s*$")
_MODULE = lazy(r"^\s{8,40}(?P<name>[A-Za-z_][\w.]{0,300}) (?P<type>[A-Za-z_]\w{0,100})\s*$")
_VALUES = lazy(r"^\s{0,8}(?P<low>[-+\w.]{2,12})\s{1,8}(?P<high>[-+\w.]{2,12}) (?P<what>[A-Za-z_][\w.\[\]]{0,100})\s*$")
_NO_TENSOR = lazy(r"^\s{1,20}(?:None|not a tensor) [A-Za-z_][\w.\[\]]{0,100}\s*$")
_LAYER = lazy(r"(?:^|\.)(\d{1,5})(?:\.|$)")
#: Layers of one dump that are held; a model has no more.
MAX_LAYERS = 2_000
#: What a 16-bit float cannot hold; a finite input near it is the last thing before the overflow.
_LARGEST_HALF = 65504.0
_KEY, _SAID = "underflow", "underflow_said"
_RAISED = "DebugUnderflowOverflow: inf/nan detected"


class _Dump:
    """One dump while it is read."""

    def __init__(self, batch: int, line: int) -> None:
        self.batch = batch
        self.line = line
        self.module = ""
        self.layers: dict[int, Cell] = {}
        self.before = (0.0, "")  # the largest finite value so far, and where
        self.first = ""

    def value(self, cell: Cell, what: str) -> None:
        """Take one tensor's largest absolute value."""
        where = f"{self.module} ({what})"
        if cell.state in BAD_STATES:
            self.first = self.first or where
        elif not self.first and cell.value is not None and cell.value > self.before[0]:
            self.before = cell.value, where
        layer = _LAYER.search(self.module)
        if layer is None or not what.startswith("output"):
            return
        index = int(layer[1])
        held = self.layers.get(index)
        if held is None:
            if len(self.layers) < MAX_LAYERS:
                self.layers[index] = cell
        elif held.state not in BAD_STATES and (cell.state in BAD_STATES or (cell.value or 0.0) > (held.value or 0.0)):
            self.layers[index] = cell

    def text(self) -> str:
        """What the event says."""
        text = f"the first module that is not finite in batch {self.batch}: {self.first}"
        if self.before[1]:
            near = ", near the largest 16-bit float" if _LARGEST_HALF / 4 < self.before[0] <= _LARGEST_HALF else ""
            text += f"; the largest value before it is {self.before[0]:g} in {self.before[1]}{near}"
        return text


def _parse(line: str, log: Log) -> bool:
    dump: _Dump | None = log.memory.get(_KEY)
    if _RAISED in line:
        return _raised(log)
    if dump is None and "batch" not in line:
        return False
    started = _DETECTED.match(line) or _STARTING.match(line)
    if started:
        if dump is None or dump.batch != int(started["batch"]):
            _close(log)
            log.memory[_KEY] = _Dump(int(started["batch"]), log.line)
        return True
    if _HEAD.match(line):
        return dump is not None
    if dump is None:
        return False
    module = _MODULE.match(line)
    if module:
        dump.module = module["name"]
        return True
    if dump.module and (values := _VALUES.match(line)):
        cell = number(values["high"])
        if cell and number(values["low"]):
            dump.value(cell, values["what"])
            return True
    if dump.first and line.startswith("Traceback"):
        _close(log)  # detection ends the program
        return False
    return bool(_NO_TENSOR.match(line))


def _raised(log: Log) -> bool:
    """The exception behind the dump says less than the dump."""
    _close(log)
    said = log.memory.pop(_SAID, None)
    if said:
        log.event("nonfinite_text", said)
    return said is not None


def _close(log: Log) -> None:
    """Hand over what the dump held."""
    dump: _Dump | None = log.memory.pop(_KEY, None)
    if dump is None:
        return
    where, log.line = log.line, dump.line
    alone = log.step is None and log.bar is None
    if dump.first:
        log.memory[_SAID] = dump.text()
        log.event("nonfinite_module", dump.text(), step=dump.batch if alone else None)
    if dump.layers:
        cells = [(f"act_absmax/layer_{layer}", cell) for layer, cell in sorted(dump.layers.items())]
        beside(log, dump.batch if log.step is None else log.step, cells, "underflow-overflow")
    log.line = where


def _finish(log: Log) -> None:
    _close(log)
    alone(log)


LINE = LineFormat(
    "underflow-overflow",
    (
        "abs min",
        "Detected inf/nan",
        "batch number=",
        "                 ",
        "e+",
        "e-",
        "inf ",
        "nan ",
        "Traceback",
        _RAISED,
    ),
    _parse,
    order=12,
    finish=_finish,
)
