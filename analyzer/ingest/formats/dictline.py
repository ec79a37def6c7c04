"""Printed dicts: Hugging Face Trainer, TRL, and ms-swift (transformers 4 and 5), and dicts behind any loop's own step.

    {'loss': 0.1, 'grad_norm': nan, 'epoch': 0.03}                        transformers 4
    {'loss': '0.6931', 'grad_norm': 'nan', 'epoch': '0.01'}               transformers 5 (quoted, 4 digits)
    {'loss': 0.41, 'global_step/max_steps': '12/100'}                     ms-swift
    iteration 12: {'loss': 0.01}                                          anybody

Hugging Face prints no step: the progress bar before the dict gives it where there is one, else rows are counted.
With DeepSpeed the gradient norm -1.0 stands for a non-finite one, and a loss of 0.0 beside a bad norm is the NaN filter.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import masked_norm, number, pairs
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell
from faultproxy.analyzer.vocabulary import resolve

_PREFIX = lazy(
    r"(?P<word>(?:critic-)?step|rollout|eval|perf|multi_turn|passrate|iteration|iter)\s*(?::\s*)?(?P<step>\d{1,15})\s*(?::\s*)?$",
    re.IGNORECASE,
)
_BARE = lazy(r"""^\s*['"][\w/ .@-]{1,200}['"]\s*:""")
_OPEN = lazy(r"\{ ?['\"]")
_STEP_KEYS = ("step", "Step", "global_step", "train/step", "rollout/step", "train/global_step", "current_steps")
_SUMMARY = ("train_runtime", "train_samples_per_second")
_SWIFT = lazy(r"""['"]global_step/max_steps['"]: ['"](?P<step>\d{1,15})/(?P<total>\d{1,15})['"]""")
#: Keys of TRL's own trainers (trl/trainer/grpo_trainer.py and kin); the dicts are the Trainer's.
_TRL = ("completions/", "frac_reward_zero_std", "rewards/", "logps/", "mean_token_accuracy")


def step_from(cells: dict[str, Cell]) -> int | None:
    """Take the step out of a row's cells, or None when it carries none."""
    for key in _STEP_KEYS:
        cell = cells.get(key)
        if cell and cell.value is not None and cell.value >= 0 and cell.value == int(cell.value):
            del cells[key]
            return int(cell.value)
    return None


def add(cells: dict[str, Cell], step: int | None, log: Log, format: str, axis: str | None = None) -> bool:
    """Add one record; a run summary becomes the event `completed` instead of a row."""
    if any(key in cells for key in _SUMMARY) and "loss" not in cells:  # unsloth studio prints the clock in every row
        log.event("completed", "the trainer printed its run summary")
        return True
    for key, cell in cells.items():
        if resolve(key).key.signal == "grad_norm":
            cells[key] = masked_norm(cell)
    if (
        step is None
        and cells
        and all(resolve(key).key.axis == "eval" or resolve(key).key.signal == "epoch" for key in cells)
    ):
        step = log.step or 0  # an evaluation row belongs to the step before it
    log.row(step, cells.items(), format, axis=axis)
    return True


def bar_step(log: Log) -> int | None:
    """The progress bar's step for a row that carries none, as long as the file is consistent about it."""
    if log.counted_steps or log.bar is None:
        return None
    current, total = log.bar
    # Other bars (loading, evaluation) have other totals; the first one beside a metric row is the trainer's.
    if log.memory.setdefault("bar_total", total) != total or current < (log.step or 0):
        return None
    log.bar_steps = True
    return current


def _parse(line: str, log: Log) -> bool:
    opened = _OPEN.search(line)
    bare = None if opened else _BARE.match(line)
    if not opened and not bare:
        return False
    start = opened.start() if opened else 0
    cells = {}
    for key, token in pairs(line[start:]):
        cell = number(token)
        if cell:
            cells[key] = cell
    going_on = bare is not None and log.memory.get("dict_open") == log.line - 1
    closed = "}" in line[start:]
    if going_on and not closed:
        log.memory["dict_open"] = log.line
    if not cells or not any(resolve(key).known for key in cells):
        return going_on
    if going_on:  # a dict that the terminal or an editor broke over lines
        log.row(log.step, cells.items(), "hf-console")
        return True
    prefix = _PREFIX.search(line[:start])
    if prefix:
        axis = "eval" if prefix["word"].lower() == "eval" else None
        cells.pop("train/step", None)
        cells.pop("rollout/step", None)
        return add(cells, int(prefix["step"]), log, "step-dict", axis)
    if not any(resolve(key).key.signal in ANCHORS for key in cells) or (bare and len(cells) < _BARE_LEAST):
        return False
    if not closed:
        log.memory["dict_open"] = log.line
    step = step_from(cells)
    swift = _SWIFT.search(line) if "max_steps" in line else None
    if swift:
        log.fact("framework", "ms-swift")
        log.fact("total_steps", int(swift["total"]))
        step = int(swift["step"])
    elif step is None and not closed and log.step is not None and log.facts.get("framework") == "ms-swift":
        step = log.step + 1  # cut off before its step; the bar still shows the row before
    # Whose dicts these are; which framework drives the trainer (LLaMA-Factory, a script) only its command tells.
    if any(key.startswith(_TRL) for key in cells):
        log.facts["trainer"] = "trl"
    elif "epoch" in cells and len(cells) > 1:
        log.fact("trainer", "hf")
    return add(cells, bar_step(log) if step is None else step, log, "hf-console")


#: A dict whose brace was lost on the way into the ticket needs this many pairs to count.
_BARE_LEAST = 3
#: A printed dict is a metric row only when it holds one of these; configs are printed as dicts too.
ANCHORS = {"loss", "policy_loss", "grad_norm", "reward", "kl_ref", "entropy", "value_loss", "accuracy"}
LINE = LineFormat("hf-console", ("':", '":'), _parse, order=30)
