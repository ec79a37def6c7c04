"""NeMo-RL's console: one block of bullets a step, for GRPO, PPO, DPO, and SFT alike.

    ========================= Step 5/1000 =========================
    (emoji) Training Results:
      (bullet) Loss: 0.0123
      (bullet) Generation KL Error: 0.0004
      (bullet) Avg Reward: 0.4211
    (emoji) Timing:
      (bullet) Total step time: 93.12s
      (bullet) policy_generation: 40.11s (43.1%)

Four fixed decimals, so a printed zero is `quantised`. The console shows no gradient norm; the trackers do. A block that
lost its `Step n/m` line on the way into a ticket counts as the next row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_STEP = lazy(r"Step (?P<step>\d{1,15})/(?P<total>\d{1,15})\b")
_SECTION = lazy(
    r"(?:^|\s)(?P<name>Training Results|Validation Results|Timing|Validation Timing|Performance Metrics):\s*$"
)
_BULLET = lazy(
    r"\s{0,12}(?P<mark>[\u2022\u00b7*-]) (?P<key>[A-Za-z][\w ()/.-]{1,60}): (?P<token>[^\s(]{1,40})(?: tokens)?(?: \([\d.]{1,8}%\))?\s*$"
)
#: Bullets that only NeMo-RL writes: with them a block is known without its heading.
_OWN = ("Loss", "Policy Loss", "Generation KL Error", "Avg Reward", "Avg Filtered Reward")


@dataclass(slots=True)
class _Block:
    """The block being read: its step, line, and rank, the section of the next bullet, and the cells of both axes."""

    step: int | None
    line: int
    rank: int | None
    section: str | None = None
    cells: dict[str, Cell] = field(default_factory=dict)
    evaluation: dict[str, Cell] = field(default_factory=dict)


def _parse(line: str, log: Log) -> bool:
    block: _Block | None = log.memory.get("nemo_rl")
    head = _STEP.search(line) if "Step " in line else None
    if head and "===" in line:
        _finish(log)
        log.memory["nemo_rl"] = _Block(int(head["step"]), log.line, log.rank)
        log.memory["nemo_rl_total"] = int(head["total"])
        return True
    section = _SECTION.search(line) if line.rstrip().endswith(":") else None
    if section:
        name = section["name"]
        if block is None or (name == "Training Results" and block.cells):
            _finish(log)
            block = log.memory["nemo_rl"] = _Block(None, log.line, log.rank)
        block.section = name
        return True
    bullet = _BULLET.match(line)
    if bullet is None:
        return False
    key = bullet["key"]
    if block is None or block.section is None or (key in _OWN and key in block.cells):
        if key not in _OWN or bullet["mark"] != "\u2022":
            return False
        if block is None or block.cells:
            _finish(log)
            block = log.memory["nemo_rl"] = _Block(None, log.line, log.rank)
        block.section = "Training Results"
    _add(block, key, bullet["token"])
    return True


def _add(block: _Block, key: str, token: str) -> None:
    timing = block.section == "Timing"
    cell = number(token.removesuffix("s") if timing else token)
    if cell is None or block.section in ("Validation Timing", "Performance Metrics"):
        return
    if block.section == "Validation Results":
        block.evaluation["accuracy" if key == "Accuracy" else key] = cell
    elif timing:
        block.cells["timing/train/" + ("total_step_time" if key == "Total step time" else key)] = cell
    else:
        block.cells[key] = cell


def _finish(log: Log) -> None:
    """Close the block that is open, if it holds a row; a block whose step died before its results holds none."""
    block: _Block | None = log.memory.pop("nemo_rl", None)
    if block is None:
        return
    with log.placed(block.line, block.rank):
        if block.cells.keys() & set(_OWN):
            log.fact("framework", "nemo-rl")
            log.fact("total_steps", log.memory.get("nemo_rl_total"))
            log.row(block.step, block.cells.items(), LINE.name)
        step = block.step if block.step is not None else log.step
        if block.evaluation and step is not None:
            log.row(step, block.evaluation.items(), LINE.name, axis="eval")


LINE = LineFormat(
    "nemo-rl-console",
    ("Step ", "Results:", "Timing:", "Metrics:", "\u2022 ", "- ", "* "),
    _parse,
    order=35,
    finish=_finish,
)
