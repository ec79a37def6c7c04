"""fairseq's step lines: simple, piped, and JSON logs of every release, with and without the logger's prefix.

    | epoch 001:    200 / 1374 loss=14.351, ppl=20899.56, num_updates=190, lr=4.8e-06, gnorm=3.901, loss_scale=0.062
    2021-03-08 12:32:33 | INFO | train_inner | {"epoch": 1, "update": 0.0, "loss": "16.446", "num_updates": "2", "gnorm": "19.777"}
    2021-03-08 12:40:00 | INFO | train | epoch 001 | loss 12.3 | ppl 5042.1 | num_updates 1374 | gnorm 1.9 | loss_scale 4
    2021-03-08 12:41:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 10.1 | num_updates 1374 | best_loss 10.1

The step is `num_updates`. A `train` line is the mean of its epoch: it is read only where no step line was seen before.
Fixed decimals: `loss_scale=0.000` is `quantised`. Losses are in bits (base 2). Overflows are events (`deepspeed.py`).
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number, pairs
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_INNER = lazy(r"epoch (?P<epoch>\d{1,9}):?\s+(?P<at>\d{1,12})\s*/\s*(?P<of>\d{1,12}) (?P<rest>loss=.{1,3000})")
_INNER_PAIR = lazy(r"(?P<key>[A-Za-z]\w{0,60})=(?P<value>[^,\s|]{1,60})")
_EPOCH = lazy(r"(?:^|\| )epoch (?P<epoch>\d{1,9}) \| (?P<rest>.{1,3000})")
_EPOCH_PAIR = lazy(rf"(?P<key>[A-Za-z]\w{{0,60}}) (?P<value>{NUMBER})\s*$")
_JSON = lazy(r"\{\"epoch\": ")
#: Clocks, counters, and constants of the machine room that no rule reads.
_SKIP = {"epoch", "update", "num_updates", "wall", "train_wall", "gb_free", "wpb", "bsz", "ups", "oom"}


def _parse(line: str, log: Log) -> bool:
    if len(line) > 6000 or "num_updates" not in line and "loss=" not in line:
        return False
    found = _INNER.search(line)
    if found:
        tokens = {m["key"]: m["value"] for m in _INNER_PAIR.finditer(found["rest"])}
        step = tokens.get("num_updates") or str((int(found["epoch"]) - 1) * int(found["of"]) + int(found["at"]))
        return _add(tokens, step, log, "inner")
    found = _EPOCH.search(line)
    if found:
        tokens = {m["key"]: m["value"] for part in found["rest"].split("|") if (m := _EPOCH_PAIR.search(part))}
        valid = "valid on" in line or "| valid" in line
        return _add(tokens, tokens.get("num_updates"), log, "valid" if valid else "epoch")
    found = _JSON.search(line)
    if found is None:
        return False
    return record(dict(pairs(line[found.start() :])), log)


def record(tokens: dict[str, str], log: Log) -> bool:
    """Add one JSON record: of a step (`update` beside `num_updates`), or of an epoch (every key behind `train_`, `valid_`)."""
    for kind in ("train", "valid"):
        if f"{kind}_num_updates" in tokens:
            tokens = {key.removeprefix(f"{kind}_"): token for key, token in tokens.items()}
            return _add(tokens, tokens["num_updates"], log, "valid" if kind == "valid" else "epoch")
    return "update" in tokens and _add(tokens, tokens.get("num_updates"), log, "inner")


def _add(tokens: dict[str, str], step: str | None, log: Log, kind: str) -> bool:
    if step is None or not (step.isascii() and step.isdigit()) or len(step) > 15:
        return False
    cells: dict[str, Cell] = {k: c for k, t in tokens.items() if k not in _SKIP and (c := number(t))}
    if "loss" not in cells:
        return False
    log.fact("framework", "fairseq")
    if kind == "inner":
        log.memory["fairseq_inner"] = True
    elif kind == "epoch" and log.memory.get("fairseq_inner"):
        return True
    log.row(int(step), cells.items(), LINE.name, axis="eval" if kind == "valid" else None)
    return True


LINE = LineFormat("fairseq-console", ("num_updates", " loss="), _parse, order=22)
