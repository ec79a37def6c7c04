"""The last resort: metric lines of a loop nobody taught us, as `key=value`, `key: value`, or `Key words 1.23,` pairs.

A line counts when it names at least one signal of the vocabulary and, with it, a step or a second number. Asked only
for files in which no other format found a row; the report says that this reader was used. Covers torchtitan, fairseq,
mlx-lm, nanoGPT-like and most hand-written loops; prose with numbers in it names no signal and is left alone.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.formats.dictline import bar_step
from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import MAX_KEY, NUMBER, masked_norm, number
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

#: Words are taken whole (possessive, and never from their middle), which keeps the search linear in the line.
_KEY = r"[A-Za-z][\w./%@-]*+(?: [A-Za-z][\w./%@-]*+){0,3}"
_PAIR = re.compile(
    rf"(?<![\w./%@-])[\d_./%@-]*+(?P<key>{_KEY})(?:\s*\([^()]{{1,20}}\))?(?P<sep>\s*[=:]\s*|\s+)(?P<value>{NUMBER})(?P<unit>[A-Za-z%/]*)(?![\w.])"
)
_STEP = re.compile(
    r"(?:^|[\s\[(|,])(?:global[_ ]?step|num_updates|step|iteration|iter|update|it)s?\s*(?:[:=#]\s*)?\[?(?P<step>\d{1,12})(?:\s*/\s*\d+)?(?![\d.]*[eE.]\d)",
    re.IGNORECASE,
)
#: Where both are printed the iteration counts rows; the step stands still while gradients accumulate (litgpt).
_ITER = re.compile(r"(?:^|[\s\[(|,])(?:iter|iteration)\s*(?:[:=#]\s*)?(?P<step>\d{1,12})(?![\d.])", re.IGNORECASE)
_BRACKETS = re.compile(r"\[([A-Za-z]\w{1,30})\](?=\s)")
_UPDATES = re.compile(r"num_updates[= ](?P<step>\d{1,12})")
_FAIRSEQ = re.compile(r"epoch\s+\d+:\s+(?P<step>\d+)\s*/\s*\d+\s")
_TACOTRON = re.compile(rf"(?P<key>[Tt]rain loss)\s+(?P<step>\d{{1,12}})\s+(?P<value>{NUMBER})")
#: fairseq and kin: a whole line about the validation set, its keys unmarked.
_EVALUATION = re.compile(r"\| valid \||\bvalid on\b")
_STEP_NAMES = {"step", "steps", "global_step", "global step", "iter", "iteration", "it", "num_updates", "update"}
_SKIP = {"epoch", "consumed_samples", "consumed_tokens"}


def _parse(line: str, log: Log) -> bool:
    if len(line) > 4000:
        return False
    line = _BRACKETS.sub(r"\1", line)
    cells: dict[str, Cell] = {}
    odd = _TACOTRON.search(line)
    step_match = _UPDATES.search(line) or _FAIRSEQ.search(line) or _ITER.search(line) or _STEP.search(line)
    step = int(odd["step"]) if odd else int(step_match["step"]) if step_match else None
    body = line[odd.end("step") :] if odd else line
    if odd and (cell := number(odd["value"])):
        cells["train loss"] = cell
    for found in _PAIR.finditer(body):
        if len(found["key"]) > MAX_KEY:
            continue
        key = _known_tail(found["key"]) if found["sep"].isspace() or not resolve(found["key"]).known else found["key"]
        cell = number(found["value"])
        if key is None or cell is None or key.lower() in _STEP_NAMES or key in cells:
            continue
        cells[key] = masked_norm(cell) if resolve(key).key.signal == "grad_norm" else cell
    known = {resolve(key).key.signal for key in cells if resolve(key).known} - _SKIP
    if step is None:
        step = bar_step(log)
    if not known or (step is None and len(cells) < 2 and "loss_scale" not in known):
        # One more value of the record above, as DeepSpeed-Chat prints its reward.
        if not known or log.step is None or log.counted_steps or log.memory.get("kv_line", -9) < log.line - 3:
            return False
        step = log.step
    if known <= {"lr"} and step is None:
        return False
    if (
        step is None
        and log.counted_steps
        and log.memory.get("kv_line") == log.line - 1
        and not cells.keys() & log.memory["kv_keys"]
    ):
        step = log.step  # a record broken over two lines
    log.memory["kv_line"], log.memory["kv_keys"] = log.line, cells.keys()
    log.row(step, cells.items(), "key-value", axis="eval" if _EVALUATION.search(line) else None)
    return True


def _known_tail(key: str) -> str | None:
    """The longest tail of a run of words that the vocabulary knows; with an explicit `=` or `:` any single word will do."""
    words = key.removesuffix(" is").split(" ")
    for start in range(len(words)):
        tail = " ".join(words[start:])
        if resolve(tail).known:
            return tail
    return words[-1] if len(words) == 1 and len(key) > 2 else None


LINE = LineFormat("key-value", ("=", ":", "oss"), _parse, order=90, last_resort=True)
