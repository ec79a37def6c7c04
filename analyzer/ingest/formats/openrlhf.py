"""OpenRLHF: the status dict of a global step (synchronous or asynchronous), its evaluations, and the bars between.

    INFO 08-13 10:00:00 ppo_trainer.py:547] * Global step 7: {'policy_loss': nan, 'actor_grad_norm': -1.0, 'kl': 0.002}
    Train epoch [1/1]: 100%|####| 16/16 [00:31<00:00, act_loss=0.01, reward=0.31, kl=0.002, act_lr=5e-7, grad_norm=-1]

DeepSpeed gives -1.0 for a gradient norm that was not finite (`masked`) and OpenRLHF prints 0.0 where there was none. A
bar shows micro-batches of one global step: its last values, and any that were not finite, count as that step only where
no dict does, which is a log of bars alone, or the step in which the run died.
"""

from __future__ import annotations

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.ingest.tokens import masked_norm, number, pairs
from faultproxy.analyzer.ingest.wrapped import Dict, dicts, rest
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import BAD_STATES, Cell
from faultproxy.analyzer.vocabulary import resolve

_HEAD = lazy(r"Global step (?P<step>\d{1,15}):\s?(?=\{)|global_step (?P<eval>\d{1,15}), eval_metrics:\s?(?=\{)")
_BAR = lazy(r"(?P<at>\d{1,12})/\d{1,12} \[(?P<rest>[^\]]{0,4000})")
_POSTFIX = lazy(r"(?P<key>[A-Za-z]\w{0,40})=(?P<token>[^,\]\s]{1,40})")
#: Short names of the bars of releases before 2024-10.
_OLD = {"pg": "act_loss", "rm": "reward", "ret": "return", "glen": "gen_len", "tlen": "tot_len", "cri": "critic_loss"}


def _norms(cells: dict[str, Cell]) -> dict[str, Cell]:
    return {k: masked_norm(c) if resolve(k).key.signal == "grad_norm" else c for k, c in cells.items()}


def _parse(line: str, log: Log) -> bool:
    done, owned = dicts(line, log, _HEAD)
    for held in done:
        _record(held, log)
    return owned or ("act_lr=" in line and _bar(line, log))


def _record(held: Dict, log: Log) -> None:
    cells = _norms({key: cell for key, token in pairs(held.text) if (cell := number(token))})
    if not cells:
        return
    log.fact("framework", "openrlhf")
    log.memory["openrlhf_dicts"] = True
    log.memory.pop("openrlhf_bar", None)
    evaluation = held.head["eval"]
    with log.placed(held.first, held.rank):
        log.row(int(evaluation or held.head["step"]), cells.items(), LINE.name, axis="eval" if evaluation else None)


def _bar(line: str, log: Log) -> bool:
    bar = _BAR.search(line)
    if bar is None:
        return False
    log.bar = None  # it counts micro-batches: no event takes its step from it
    cells = {_OLD.get(key, key): cell for key, token in _POSTFIX.findall(bar["rest"]) if (cell := number(token))}
    held, at = log.memory.get("openrlhf_bar", ({}, 0))
    if int(bar["at"]) < at:
        _bars_only(held, log)
        held = {}
    cells = _norms(cells)
    # A micro-batch that was not finite is not hidden by a later one that was.
    kept = {key: cell for key, cell in held.items() if cell.state in BAD_STATES}
    log.memory["openrlhf_bar"] = (held | cells | kept, int(bar["at"]))
    return True


def _bars_only(cells: dict[str, Cell], log: Log) -> None:
    if cells and not log.memory.get("openrlhf_dicts"):
        log.fact("framework", "openrlhf")
        log.row(None, cells.items(), "openrlhf-bar")


def _finish(log: Log) -> None:
    for held in rest(log, _HEAD):
        _record(held, log)
    cells, _ = log.memory.pop("openrlhf_bar", ({}, 0))
    if not log.memory.get("openrlhf_dicts"):
        _bars_only(cells, log)
    elif any(cell.state in BAD_STATES for cell in cells.values()) and log.step is not None:
        log.row(log.step + 1, cells.items(), LINE.name)


LINE = LineFormat(
    "openrlhf-console", ("lobal step", "global_step", "act_lr=", "'", "}"), _parse, order=24, finish=_finish
)
