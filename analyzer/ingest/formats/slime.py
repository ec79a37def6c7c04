"""slime and miles: dicts behind a word and a number, on two axes that must not be mixed.

    [2026-08-01 10:00:00] model.py:921 - step 12: {'train/loss': 0.01, 'train/grad_norm': nan, 'train/step': 12}
    [2026-08-01 10:00:00] model.py:921 - critic-step 12: {'train/critic-value_loss': 0.2, 'train/step': 12}
    [2026-08-01 10:00:00] train_metric_utils.py:135 - rollout 3: {'rollout/raw_reward': 0.42, 'rollout/step': 3}
    [2026-08-01 10:00:00] rollout_metrics.py:268 - perf 3: {'rollout/response_len/mean': 812.0}
    [2026-08-01 10:00:00] rollout_metrics.py:247 - eval 3: {'eval/aime': 0.31}          also multi_turn, passrate

`step` counts optimiser steps, all else counts rollouts, and a rollout is trained on in k steps (`train/step` =
rollout * k + i, slime/backends/megatron_utils/model.py). What a rollout says waits here until its first step is printed
and stands in that step's row; k is read off the first step after a rollout's line. In asynchronous training the next
rollout reports early, so nothing is placed by position alone. The critic's steps may lead or lag the actor's.
`train/loss` beside `train/pg_loss` is the whole objective, no loss by its level: where it is not finite, so is the policy's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import number, pairs
from faultproxy.analyzer.ingest.wrapped import Dict, dicts, rest
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import BAD_STATES, Cell

_HEAD = lazy(r"(?:^|[\s-])(?P<word>(?:critic-)?step|rollout|eval|perf|multi_turn|passrate) (?P<id>\d{1,15}):\s?(?=\{)")
_SPACES = ("train/", "rollout/", "perf/", "eval/", "multi_turn/", "passrate/")
_AXES = {"train/step", "rollout/step", "eval/step"}
#: Keys that miles logs and slime does not.
_MILES = (
    "train/train_rollout_kl",
    "perf/fully_async/",
    "rollout/fully_async/",
    "rollout/tito_",
    "perf/actor_train_mfu",
)
#: Steps by which the critic's lines may follow the actor's; further back it is a restart.
_LAG = 64
#: Rollouts that may wait for a first step; a log with more and without any step is a rollout worker's own. As many steps
#: of the critic may wait for the actor's.
_WAITING = 4096


@dataclass(slots=True)
class _Waiting:
    """What one rollout reported before it was trained on, and the first line that said it, and its rank."""

    line: int
    rank: int | None
    cells: dict[str, Cell] = field(default_factory=dict)
    evaluation: dict[str, Cell] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """Where the two axes stand: steps a rollout, the rollout whose first step comes next, and what waits."""

    steps: int | None = None
    fresh: int | None = None
    trained: bool = False
    alone: bool = False
    trainer: bool = False
    framework: str = "slime"
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    critic: dict[int, dict[str, Cell]] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)  # the critic's steps, as a heap


def _parse(line: str, log: Log) -> bool:
    done, owned = dicts(line, log, _HEAD)
    for held in done:
        owned = _record(held, log) and owned
    return owned


def _record(held: Dict, log: Log) -> bool:
    cells = {key: cell for key, token in pairs(held.text) if key not in _AXES and (cell := number(token))}
    if not any(key.startswith(_SPACES) for key in cells):
        return False
    state: _State = log.memory.setdefault("slime", _State())
    if "train/pg_loss" in cells:
        whole = cells.get("train/loss")
        if whole is not None and whole.state in BAD_STATES:
            cells["train/pg_loss"] = whole
    if any(key.startswith(_MILES) for key in cells):
        state.framework = "miles"
    word, at = held.head["word"], int(held.head["id"])
    with log.placed(held.first, held.rank):
        if word == "step":
            _step(at, cells, state, log)
        elif word == "critic-step":
            _critic(at, cells, state, log)
        else:
            _rollout(word, at, cells, state, log)
    return True


def _step(step: int, cells: dict[str, Cell], state: _State, log: Log) -> None:
    _overtaken(step, state, log)
    critic = state.critic.pop(heappop(state.queue)) if state.queue and state.queue[0] == step else {}
    fresh, state.fresh = state.fresh, None
    if fresh and step and step % fresh == 0:
        state.steps = step // fresh
    state.trained = True
    rollout = 0 if not step else step // state.steps if state.steps else None
    held = state.waiting.pop(rollout, None) if rollout is not None else None
    cells = (held.cells if held else {}) | critic | cells
    log.row(step, cells.items(), LINE.name)
    if held and held.evaluation:
        log.row(step, held.evaluation.items(), LINE.name, axis="eval")


def _critic(step: int, cells: dict[str, Cell], state: _State, log: Log) -> None:
    last = log.step if state.trained else None
    if last is not None and last - _LAG < step <= last and log.has(step):
        log.row(step, cells.items(), LINE.name, late=True)
        return
    if step not in state.critic:
        heappush(state.queue, step)
    state.critic[step] = cells
    if len(state.queue) > _WAITING:
        _overtaken(state.queue[0] + 1, state, log)


def _overtaken(end: float, state: _State, log: Log) -> None:
    """Write what the critic said of steps before `end`, which the actor did not print."""
    while state.queue and state.queue[0] < end:
        step = heappop(state.queue)
        cells = state.critic.pop(step)
        if log.step is None or step > log.step:
            log.row(step, cells.items(), LINE.name)


def _rollout(word: str, rollout: int, cells: dict[str, Cell], state: _State, log: Log) -> None:
    axis = "eval" if word == "eval" else None
    if state.alone and not state.trained:
        log.row(rollout, cells.items(), LINE.name, axis=axis)
        return
    current = None
    if state.trained and log.step is not None:
        current = log.step // state.steps if state.steps else 0 if rollout == 0 else None
    if current == rollout:  # its steps are being printed: this is what the trainer says after them
        log.row(log.step, cells.items(), LINE.name, axis=axis)
        return
    held = state.waiting.setdefault(rollout, _Waiting(log.line, log.rank))
    (held.evaluation if axis else held.cells).update(cells)
    if word == "rollout":  # printed by the trainer right before it trains; a rollout worker runs ahead
        state.trainer, state.fresh = True, rollout
    elif word == "perf" and not state.trainer and state.fresh is None:
        state.fresh = rollout
    if len(state.waiting) > _WAITING:
        state.alone = not state.trained
        _flush(state, log)


def _flush(state: _State, log: Log) -> None:
    """Write what waits: rollouts that were never trained on, and those of a log that does not tell its steps a rollout (1)."""
    for rollout in sorted(state.waiting):
        held = state.waiting.pop(rollout)
        last = log.step if log.step is not None else -1
        step = rollout * (state.steps or 1)
        if step <= last and not log.has(step):
            log.source.unparsed += 1
            continue
        with log.placed(held.line, held.rank):
            log.row(step, held.cells.items(), LINE.name, late=True)
            log.row(step, held.evaluation.items(), LINE.name, axis="eval")


def _finish(log: Log) -> None:
    for held in rest(log, _HEAD):
        _record(held, log)
    state: _State | None = log.memory.get("slime")
    if state is None:
        return
    _overtaken(inf, state, log)
    _flush(state, log)
    log.fact("framework", state.framework)
    log.fact("steps_per_rollout", state.steps)


LINE = LineFormat("slime-console", (": {", ":{", "'", "}"), _parse, order=26, finish=_finish)
