"""Lightning's CSVLogger, `metrics.csv`: wide and sparse, train and validation in rows of their own at the same step.

    epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss
    0,,49,,2.3100,
    0,,99,,,2.1002
    0,,99,2.2011,,

A metric logged per step and per epoch has both suffixes: `_step` is the series, and the epoch's mean keeps its own name.
One logged per epoch only (validation, most often) loses the suffix. The learning-rate monitor writes `lr-<optimizer>`,
`grad_norm` of Lightning's utility is `grad_2.0_norm_total`. An empty field was not logged; a NaN is written `nan`.
Source: Lightning-AI/pytorch-lightning loggers/csv_logs.py and callbacks/lr_monitor.py.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.formats.dictline import add
from faultproxy.analyzer.ingest.formats.table import split
from faultproxy.analyzer.ingest.interface import FileFormat
from faultproxy.analyzer.ingest.log import MAX_KEYS, MAX_STEP, Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import MAX_KEY, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

_SUFFIX = lazy(r"^(?P<name>.+?)_(?P<of>step|epoch)$")
_LEARNING_RATE = lazy(r"^lr-[A-Za-z]\w{0,60}(?:/pg1)?$")
_GRADIENT = lazy(r"^grad_(?:2\.0_norm_total|norm_total|2\.0_norm)$")
#: Lightning writes these two with every row.
_OWN = {"epoch", "step"}


def _names(line: str) -> list[str]:
    names = split(line.strip(), ",")
    return names if _OWN <= set(names) and len(names) <= MAX_KEYS else []


def _marked(name: str) -> bool:
    return bool(
        _SUFFIX.match(name) or _LEARNING_RATE.match(name) or name.startswith(("train_", "val_", "train/", "val/"))
    )


def _sniff(head: bytes, file: File) -> bool:
    first = head.partition(b"\n")[0]
    if b"epoch" not in first or b"step" not in first or len(first) == len(head):
        return False
    return any(_marked(name) for name in _names(first.decode("utf-8", errors="replace")) if name not in _OWN)


def _keys(names: list[str]) -> list[str]:
    """The key of each column: suffixes and Lightning's own names are translated, `""` marks what is no metric."""
    held = set(names)
    keys = []
    for name in names:
        found = _SUFFIX.match(name)
        key = name
        if name in _OWN or len(name) > MAX_KEY:
            key = "epoch" if name == "epoch" else ""
        elif _GRADIENT.match(found["name"] if found else name):
            key = "grad_norm" if not found or found["of"] == "step" else name
        elif _LEARNING_RATE.match(name):
            key = "lr"
        elif found and (
            found["of"] == "step" or f"{found['name']}_step" not in held or resolve(found["name"]).key.axis == "eval"
        ):
            key = found["name"]
        keys.append(key)
    # `val_loss_step` beside `val_loss_epoch`: the mean over the set is the evaluation's result.
    return [
        name if key != name and name.endswith("_step") and f"{key}_epoch" in held and resolve(key).key.axis == "eval" else key
        for name, key in zip(names, keys, strict=True)
    ]  # fmt: skip


def _read(file: File, log: Log) -> None:
    names: list[str] = []
    keys: list[str] = []
    at = 0
    for count, line in enumerate(file.lines(), 1):
        log.line = count
        if not line.strip():
            continue
        row = split(line, ",")
        if not names or (row[:1] == names[:1] and set(row) >= _OWN):  # a second header: another run appended
            names, keys = row, _keys(row)
            at = names.index("step") if "step" in names else -1
            continue
        step = number(row[at]) if 0 <= at < len(row) else None
        if len(row) != len(names) or step is None or step.value is None or not 0 <= step.value < MAX_STEP:
            log.source.unparsed += 1
            continue
        cells: dict[str, Cell] = {}
        for key, token in zip(keys, row, strict=True):
            if key and token and (cell := number(token)):
                cells[key] = cell
        if not cells.keys() - {"epoch"}:
            continue
        add(cells, int(step.value), log, "lightning-csv")


FILE = FileFormat("lightning-csv", _sniff, _read, order=45)
