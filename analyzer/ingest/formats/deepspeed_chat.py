"""DeepSpeed-Chat: its third step (PPO), where several kinds of lines make one record, and the losses of the others.

    |E2E latency=4.78s |Gather latency=0.00s (0.00%) |Generate time=1.74s (36.47%) |Training time=2.82s (59.05%) |...
    epoch: 0|step: 12|ppo_ep: 1|act_loss: 0.0108|cri_loss: 0.0201|unsuper_loss: 0.0
    Epoch: 0 | Step: 12 | PPO Epoch: 1 | Actor Loss: 0.0108 | Critic Loss: 0.0201 | Unsupervised Loss: 0.0    since 2023-05
    Average reward score: 0.0121 | EMA reward score: -0.118
    Epoch: 0, Step: 12, Rank: 3, loss = 2.34375             SFT and DPO with --print_loss, every rank; InstructLab too

Latencies come before the step they belong to. Steps start again at 0 with each epoch: they are counted on. The engines
of actor and critic number their own optimiser steps, another axis (`deepspeed.py` leaves those lines to this reader).
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

_HEAD = lazy(
    r"[Ee]poch: (?P<epoch>\d{1,9})\s?\|\s?[Ss]tep: (?P<step>\d{1,15})\s?\|\s?(?:ppo_ep|PPO Epoch): (?P<ppo>\d{1,9})\s?\|(?P<rest>.{1,1000})"
)
_REWARD = lazy(rf"[Aa]verage reward score: (?P<value>{NUMBER})")
_LATENCY = lazy(rf"\|(?P<key>E2E latency|Generate time)=(?P<value>{NUMBER})s")
_LOSS = lazy(
    rf"Epoch: (?P<epoch>\d{{1,9}}), Step: (?P<step>\d{{1,15}}),\s{{1,40}}Rank: (?P<rank>\d{{1,6}}), [Ll]oss = (?P<loss>{NUMBER})"
)
_NAMES = {"Actor Loss": "act_loss", "Critic Loss": "cri_loss", "Unsupervised Loss": "unsuper_loss"}


def _parse(line: str, log: Log) -> bool:
    if line.lstrip().startswith("|E2E latency="):
        log.memory["dschat_times"] = [(m["key"], c) for m in _LATENCY.finditer(line) if (c := number(m["value"]))]
        return True
    head = _HEAD.search(line)
    if head is None:
        return _reward(line, log) or _loss(line, log)
    cells: list[tuple[str, Cell]] = []
    for part in head["rest"].split("|"):
        key, _, token = part.partition(":")
        if cell := number(token):
            cells.append((_NAMES.get(key.strip(), key.strip()), cell))
    if not cells:
        return False
    log.fact("framework", "deepspeed-chat")
    cells += log.memory.pop("dschat_times", [])
    log.row(_step(int(head["epoch"]), int(head["step"]), log), cells, LINE.name)
    return True


def _step(epoch: int, step: int, log: Log) -> int:
    """The step counted on over epochs; one that goes on by itself (InstructLab's) is left as it is."""
    held: int
    base: int
    before: int
    held, base, before = log.memory.get("dschat", (epoch, 0, 0))
    if log.source.rows and log.rank != log.lead_rank:  # a rank that is behind is not the run's restart
        return step + (base if epoch >= held else before)
    if epoch > held:
        before, base = base, log.step + 1 if log.step is not None and base + step <= log.step else base
    elif epoch < held:
        before = base = 0  # started again from the beginning
    log.memory["dschat"] = (epoch, base, before)
    return base + step


def _loss(line: str, log: Log) -> bool:
    found = _LOSS.search(line)
    cell = number(found["loss"]) if found else None
    if found is None or cell is None:
        return False
    log.rank = int(found["rank"])
    log.row(_step(int(found["epoch"]), int(found["step"]), log), [("loss", cell)], LINE.name)
    return True


def _reward(line: str, log: Log) -> bool:
    found = _REWARD.search(line)
    cell = number(found["value"]) if found else None
    if cell is None or log.step is None or "dschat" not in log.memory:
        return False
    log.row(log.step, [("average reward score", cell)], LINE.name)
    return True


LINE = LineFormat(
    "deepspeed-chat-console",
    ("ppo_ep: ", "PPO Epoch: ", "reward score: ", "|E2E latency=", ", Rank: "),
    _parse,
    order=14,
)
