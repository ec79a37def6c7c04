"""JSON lines: verl FileLogger, ms-swift `logging.jsonl`, LLaMA-Factory `trainer_log.jsonl`, and any loop's own.

    {"step":150,"data":{"actor/pg_loss":null,"actor/grad_norm":null}}       verl (orjson: NaN and +-Inf are null)
    {"step":150,"data":{"actor/pg_loss":NaN}}                               verl before 2026-01-08 (bare NaN)
    {"loss": 0.41, "global_step/max_steps": "8381/8400", ...}               ms-swift; Megatron backend: "iteration": "12/100"
    {"current_steps": 10, "total_steps": 1000, "loss": 1.21, "lr": 1e-05}   LLaMA-Factory
    {"step": 50, "train_loss": 3.34, "config": {"d": 1}}                    anything else; nested objects become a/b

Runs of rows with the same keys are handed over column by column (orjson rejects NaN, so such a line falls back to the
standard parser); keys that first appear late are columns like any other. `null` is a non-finite number where the
framework is known to write it so or where a core signal that was finite turns null; elsewhere it means "not logged".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from faultproxy.analyzer.ingest.formats import fairseq
from faultproxy.analyzer.ingest.formats.dictline import add, step_from
from faultproxy.analyzer.ingest.interface import FileFormat, LineFormat
from faultproxy.analyzer.ingest.log import MAX_KEYS, MAX_STEP, Log
from faultproxy.analyzer.ingest.source import File, decoded
from faultproxy.analyzer.ingest.tokens import MAX_KEY, native
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import NONFINITE, Cell
from faultproxy.analyzer.vocabulary import resolve

_OF = lazy(r"\s{0,9}(\d{1,15})\s{0,9}/\s{0,9}\d+")
_FRACTION_KEYS = ("global_step/max_steps", "iteration")
_STEP_KEYS = (
    "step",
    "global_step",
    "current_steps",
    "_step",
    "iteration",
    "iter",
    "train/global_step",
    "training/global_step",
    "train_step",
    "steps",
    "update",
)
_CORE = {"loss", "grad_norm", "policy_loss"}
#: What fairseq's records count their steps by (`--log-format json --log-file`); `update` there is a share of an epoch.
_FAIRSEQ = {"num_updates", "train_num_updates", "valid_num_updates"}
_BATCH = 4096
_BATCH_CELLS = 1_000_000
MAX_DEPTH = 4


def loads(line: str | bytes) -> Any:
    """Parse one JSON text, bare NaN and Infinity included; raises ValueError for anything else (deep nesting too)."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


#: Signals that a file of settings holds as well.
_SETTINGS = {"lr", "batch_size", "kl_coef", "epoch"}


def flatten(record: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Nested objects as `a/b` pairs, at most MAX_DEPTH deep; lists are left out (they are no scalars)."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if depth < MAX_DEPTH and len(name) <= MAX_KEY:
                yield from flatten(value, name + "/", depth + 1)
        elif not isinstance(value, list) and len(name) <= MAX_KEY:
            yield name, value


def record(data: dict[str, Any], log: Log) -> bool:
    """Add one parsed record of any of the known shapes; returns False when nothing in it is a number."""
    inner, step = data.get("data"), data.get("step")
    if isinstance(inner, dict) and isinstance(step, int):
        log.fact("framework", "verl")
        log.row(step, ((k, c) for k, v in flatten(inner) if (c := native(v))), "verl-jsonl")
        return bool(inner)
    if "epoch" in data and not _FAIRSEQ.isdisjoint(data):
        return fairseq.record({key: str(value) for key, value in data.items()}, log)
    format = "jsonl"
    step = None
    flat = dict(flatten(data))
    for key in _FRACTION_KEYS:
        found = _OF.match(flat[key]) if isinstance(flat.get(key), str) else None
        if found:
            step, format = int(found[1]), "ms-swift-jsonl"
            log.fact("framework", "ms-swift")
            del flat[key]
            break
    if "current_steps" in flat and "total_steps" in flat:
        format = "llamafactory-jsonl"
        log.fact("framework", "llama-factory")
        del flat["total_steps"]
    if step is None:
        for key in _STEP_KEYS:
            value = flat.get(key)
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and abs(value) < MAX_STEP  # false for NaN too
                and value == int(value)
            ):
                step = int(value)
                del flat[key]
                break
    if step is None and format == "jsonl" and any(isinstance(flat.get(k), (int, float)) for k in ("train_runtime",)):
        log.event("completed", "the trainer wrote its run summary")
        return True
    cells: dict[str, Cell] = {}
    finite: set[str] = log.memory.setdefault("finite", set())
    for key, value in flat.items():
        cell = native(value)
        if cell is None:
            continue
        if cell.state == NONFINITE and value is None:
            if key not in finite or resolve(key).key.signal not in _CORE:
                continue
        elif cell.value is not None and len(finite) < MAX_KEYS:
            finite.add(key)
        cells[key] = cell
    if not cells:
        return False
    if step is None:
        step = step_from(cells)
    known = {named.key.signal for key in cells if (named := resolve(key)).known}
    if step is None and known and known <= _SETTINGS:
        return False  # hyper-parameters, which carry numbers too
    if step is None and not any(resolve(key).known for key in cells):
        return False
    return add(cells, step, log, format)


def _sniff(head: bytes, file: File) -> bool:
    lines = [line for line in head.split(b"\n") if line.strip()]
    first = lines[0].strip() if lines else b""
    if not first.startswith(b"{") or first == b"{":
        return False
    if len(lines) == 1 and not first.endswith(b"}"):
        return False  # one object longer than the head: a document
    try:
        data = loads(first)
    except ValueError:
        return False
    if not isinstance(data, dict):
        return False
    return len(lines) > 1 or "log_history" not in data


def _read(file: File, log: Log) -> None:
    steps: list[int] = []
    keys: tuple[str, ...] = ()
    values: list[tuple[Any, ...]] = []
    lines: list[int] = []

    def flush() -> None:
        if steps:
            log.rows(steps, keys, list(zip(*values, strict=True)), lines, "verl-jsonl")
            for batch in (steps, values, lines):
                batch.clear()

    verl = False
    for number, raw in enumerate(file.raw_lines(), 1):
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError:
            line = decoded(raw) if isinstance(raw, bytes) else raw
            if not line.strip():
                continue
            try:
                data = loads(line)
            except ValueError:
                log.source.unparsed += 1
                continue
        if (
            type(data) is dict
            and len(data) == 2
            and type(inner := data.get("data")) is dict
            and type(data.get("step")) is int
        ):
            if not verl:
                verl = True
                log.fact("framework", "verl")
            if inner and 0 <= data["step"] < MAX_STEP and dict not in set(map(type, inner.values())):
                these = tuple(inner)
                if these != keys or len(steps) >= _BATCH or len(steps) * len(keys) > _BATCH_CELLS:
                    flush()
                    keys = these
                steps.append(data["step"])
                values.append(tuple(inner.values()))
                lines.append(number)
                continue
        flush()
        log.line = number
        if not isinstance(data, dict) or not record(data, log):
            log.source.unparsed += 1
    flush()


def _parse(line: str, log: Log) -> bool:
    text = line.strip()
    if not (text.startswith('{"') and text.endswith("}")):
        return False
    try:
        data = loads(text)
    except ValueError:
        return False
    return (
        isinstance(data, dict)
        and any(k == "data" or (len(k) <= MAX_KEY and resolve(k).known) for k in data)
        and record(data, log)
    )


FILE = FileFormat("jsonl", _sniff, _read, order=30)
LINE = LineFormat("jsonl", ('{"',), _parse, order=25)
