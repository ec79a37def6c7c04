"""Which experts the router chose: Megatron's routing trace, and the expert counts of Tencent's gpatch fork.

    {"step": 3, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0, "num_tokens": 128, "topk": 8, "top_indices": [[12, 45, ...], ...]}
    {"step": 3, "mbs": 0, "layer": 3, "tokens_per_expert": [812, 790, ...], "recompute_factor": 2, "pp_rank": 0}
    [MOE_DIST] step=3 pp=0/4 layer=3 max_tok=812 min_tok=3 std=55.1 active_experts=60/64 recompute_factor=2

Counts are summed over the micro-batches and ranks of a file, and become `moe_load_cv`, `moe_max_vio`, and
`moe_dead_frac` by layer, `expert_load` by expert (at every k-th step where there are many; where one step has too many,
those that got a token come first). The number of experts is the largest index of the file plus one. Where a step holds
a layer twice, under two stages or engines, the share of experts both chose for a token is `topk_overlap`. Layers are
the writer's numbers; MTP blocks, which count anew, are left out. The values make no rows of their own: they lie beside
those of the run's other files.
Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/router_trace.py.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from math import ceil, sqrt
from typing import Any

from faultproxy.analyzer.ingest.beside import alone, beside
from faultproxy.analyzer.ingest.formats.jsonl import loads
from faultproxy.analyzer.ingest.interface import FileFormat, LineFormat
from faultproxy.analyzer.ingest.log import MAX_KEYS, MAX_STEP, Log
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.ingest.tokens import NUMBER, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Cell

#: Larger indices are no experts, and no layers, of a model that exists.
MAX_EXPERTS, MAX_LAYERS = 16_384, 1_024
#: Counts held (8 bytes each; a layer of a step costs ROOM more); beyond, every second step goes, and the report says so.
#: One step may hold a quarter of them.
MAX_COUNTS, ROOM = 12_000_000, 40
#: Layers of steps whose overlap of two stages is held.
MAX_OVERLAPS = 100_000
#: Values of single experts that are handed on; a rule needs their course, not every step.
MAX_LOADS = 200_000
#: Values of a whole layer: its `moe_load_cv`, `moe_max_vio`, `moe_dead_frac`, and `topk_overlap`.
_OF_LAYER = 4
#: Chosen experts of one step that are kept to compare two stages.
MAX_KEPT = 2_000_000
#: Stages or engines of one layer that are told apart.
MAX_ORIGINS = 4
_TRACE = re.compile(rb"\s*\{[^\n]{0,2000}?\"(?:top_indices|tokens_per_expert)\"\s*:")
_CUT = lazy(r'^(?P<head>\{[^\n]{0,4000}?),\s*"top_indices"\s*:\s*(?P<tail>\[.*)$', re.DOTALL)
_DIGITS = lazy(r"\d{1,6}")
_LINE = lazy(rf"(?P<key>step|layer|max_tok|avg_tok|mean_tok|std|recompute_factor)=(?P<value>{NUMBER})")
_ACTIVE = lazy(r"active_experts=(?P<active>\d{1,6})/(?P<all>\d{1,6})")


class _Counts:
    """Tokens by step, layer, and expert, within bounds."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, array[float]]] = {}
        self.sizes: Counter[int] = Counter()  # counts held, by step
        self.held = 0
        self.refused = 0
        self.stride = 1
        self.experts = 0
        self.overlaps: dict[tuple[int, int], list[float]] = {}
        self._at = -1  # the step being read, how many there were, and whether this one is left out
        self._number = -1
        self._skips = False
        self._kept: dict[tuple[int, int | None, int], dict[str, deque[list[Any]]]] = {}
        self._kept_step = -1
        self._kept_size = 0

    def add(self, step: int, layer: int, counts: dict[int, float]) -> None:
        """Add the tokens of one record."""
        if not self._takes(step):
            return
        size = max(counts) + 1
        layers = self.steps.get(step, {})
        missing = max(0, size - len(layers.get(layer, ())))
        grows = missing + ROOM * (layer not in layers)
        if grows and self.sizes[step] + grows > MAX_COUNTS // 4:
            self.refused += 1
            return
        self.experts = max(self.experts, size)
        self.sizes[step] += grows
        self.held += grows
        held = self.steps.setdefault(step, layers).setdefault(layer, array("d"))
        held.extend([0.0] * missing)
        for expert, tokens in counts.items():
            held[expert] += tokens
        while self.held > MAX_COUNTS and len(self.steps) > 1:
            self.stride *= 2
            for gone in list(self.steps)[1::2]:
                del self.steps[gone]
                self.held -= self.sizes.pop(gone)
            self._skips = self._at not in self.steps  # what else this step says would be a part of it

    def _takes(self, step: int) -> bool:
        if step in self.steps:
            return True
        if step != self._at:
            self._at, self._number = step, self._number + 1
            self._skips = self._number % self.stride > 0
        return not self._skips

    def compare(self, step: int, layer: int, rank: int | None, origin: str, chosen: list[Any]) -> None:
        """Compare a record with one of another origin of the same step, layer, rank, and size."""
        if step != self._kept_step:
            self._kept, self._kept_step, self._kept_size = {}, step, 0
        waiting = self._kept.setdefault((layer, rank, len(chosen)), {})
        for other, before in waiting.items():
            if other != origin and before:
                share = _overlap(before.popleft(), chosen)
                if len(self.overlaps) < MAX_OVERLAPS:
                    self.overlaps.setdefault((step, layer), []).append(share)
                return
        self._kept_size += 1 + sum(len(row) for row in chosen if isinstance(row, list))
        if self._kept_size <= MAX_KEPT and (origin in waiting or len(waiting) < MAX_ORIGINS):
            waiting.setdefault(origin, deque()).append(chosen)


def _overlap(one: list[Any], two: list[Any]) -> float:
    """The mean share of a token's experts that both chose."""
    shares = [len(set(a) & set(b)) / max(len(a), len(b), 1) for a, b in zip(one, two, strict=True)]
    return sum(shares) / max(len(shares), 1)


def _counts(record: dict[str, Any]) -> dict[int, float]:
    """Tokens by expert of one record; raises TypeError where it holds no lists of numbers, OverflowError where one is too large."""
    if isinstance(record.get("tokens_per_expert"), list):
        factor = record.get("recompute_factor")
        factor = float(factor) if isinstance(factor, (int, float)) and factor >= 1 else 1.0
        pairs = enumerate(record["tokens_per_expert"][:MAX_EXPERTS])
        return {i: v / factor for i, v in pairs if isinstance(v, (int, float)) and 0 <= v < MAX_STEP}
    chosen = Counter(chain.from_iterable(record["top_indices"]))
    return {e: float(n) for e, n in chosen.items() if type(e) is int and 0 <= e < MAX_EXPERTS}


def _record(line: str) -> dict[str, Any] | None:
    try:
        data = loads(line)
    except ValueError:
        cut = _CUT.match(line)  # longer than a line may be, or the file ends in it: what is there still counts
        try:
            data = loads(cut["head"] + "}") if cut else None
        except ValueError:
            return None
        if cut and isinstance(data, dict):
            data["top_indices"] = [[int(digits) for digits in _DIGITS.findall(cut["tail"])[:-1]]]
            data["cut"] = True
    return data if isinstance(data, dict) else None


def _index(value: Any, bound: int) -> int | None:
    return value if type(value) is int and 0 <= value < bound else None


def _read(file: File, log: Log) -> None:
    counts = _Counts()
    for count, line in enumerate(file.lines(), 1):
        log.line = count
        data = _record(line) if line.strip() else None
        if data is None or data.get("block") == "mtp":
            log.source.unparsed += bool(line.strip()) and data is None
            continue
        step, layer = _index(data.get("step"), MAX_STEP), _index(data.get("layer"), MAX_LAYERS)
        try:
            found = _counts(data)
        except (TypeError, KeyError, OverflowError):
            found = {}
        if step is None or layer is None or not found:
            log.source.unparsed += 1
            continue
        counts.add(step, layer, found)
        chosen = data.get("top_indices")
        if isinstance(chosen, list) and "cut" not in data:
            origin = "/".join(str(data.get(key, ""))[:40] for key in ("stage", "engine", "source", "mode"))
            rank = data.get("rank")
            try:
                counts.compare(step, layer, rank if type(rank) is int else None, origin, chosen)
            except TypeError:
                log.source.unparsed += 1
    _hand_over(counts, log)


def _hand_over(counts: _Counts, log: Log) -> None:
    steps = sorted({*counts.steps, *(step for step, _ in counts.overlaps)})
    layers = len(set().union(*counts.steps.values())) or 1
    fits = max(1, MAX_LOADS // (layers * max(1, counts.experts)))  # steps, with every expert of every layer
    every = ceil(len(steps) / fits)
    room = min(MAX_LOADS // fits // layers, MAX_KEYS // layers - _OF_LAYER)  # experts of a layer
    overlaps: dict[int, dict[int, float]] = {}
    for (step, layer), shares in counts.overlaps.items():
        overlaps.setdefault(step, {})[layer] = sum(shares) / len(shares)
    for at, step in enumerate(steps):
        cells: list[tuple[str, Cell]] = []
        for layer, tokens in sorted(counts.steps.get(step, {}).items()):
            cells += load_cells(layer, tokens, counts.experts, 0 if at % every else room)
        cells += [(f"moe/topk_overlap/layer_{n}", Cell(share)) for n, share in sorted(overlaps.get(step, {}).items())]
        beside(log, step, cells, "router-trace")
        log.source.rows += bool(cells)
    if room < counts.experts:
        log.warnings.append(
            f"{log.source.path}: too many layers and experts to hand on each; at most {room} experts of a layer were kept"
        )
    if counts.refused:
        log.warnings.append(
            f"{log.source.path}: too many layers and experts in one step to hold; {counts.refused} records were not kept"
        )
    if counts.stride > 1:
        log.warnings.append(
            f"{log.source.path}: too many steps, layers, and experts to hold; one step in {counts.stride} was kept"
        )


def load_cells(layer: int, tokens: array[float], experts: int, room: int) -> Iterator[tuple[str, Cell]]:
    """How unevenly one layer's tokens lie over its experts, and the share of `room` experts, those that got any first."""
    chosen = {expert: n for expert, n in enumerate(tokens) if n}
    total = sum(chosen.values())
    if not total or experts < 2:
        return
    mean = total / experts
    dead = experts - len(chosen)
    spread = sum((n - mean) ** 2 for n in chosen.values()) + dead * mean**2
    yield f"moe/load_cv/layer_{layer}", Cell(sqrt(spread / experts) / mean)
    yield f"moe/max_vio/layer_{layer}", Cell(max(chosen.values()) / mean - 1)
    yield f"moe/dead_frac/layer_{layer}", Cell(dead / experts)
    idle = (expert for expert in range(experts) if expert not in chosen)
    for expert in sorted(islice(chain(chosen, idle), room)):
        yield f"moe/expert_load/layer_{layer}/expert_{expert}", Cell(chosen.get(expert, 0.0) / total)


def _parse(line: str, log: Log) -> bool:
    if "[MOE_DIST]" not in line or len(line) > 4000:
        return False
    found = {m["key"]: m["value"] for m in _LINE.finditer(line)}
    active = _ACTIVE.search(line)
    try:
        step, layer = int(found["step"]), int(found["layer"])
    except (KeyError, ValueError):
        return True
    cells: list[tuple[str, Cell]] = []
    if active and 0 < int(active["all"]) <= MAX_EXPERTS and int(active["active"]) <= int(active["all"]):
        cells.append((f"moe/dead_frac/layer_{layer}", Cell(1 - int(active["active"]) / int(active["all"]))))
    numbers = {key: cell.value for key, value in found.items() if (cell := number(value)) and cell.value is not None}
    mean = numbers.get("avg_tok") or numbers.get("mean_tok")
    if mean and "max_tok" in numbers and "std" in numbers:
        cells.append((f"moe/max_vio/layer_{layer}", Cell(numbers["max_tok"] / mean - 1)))
        cells.append((f"moe/load_cv/layer_{layer}", Cell(numbers["std"] / mean)))
    if 0 <= step < MAX_STEP and layer < MAX_LAYERS:
        beside(log, step, cells, "moe-dist")
    return True


def _sniff(head: bytes, file: File) -> bool:
    return bool(_TRACE.match(head))


FILE = FileFormat("router-trace", _sniff, _read, order=20)
LINE = LineFormat("moe-dist", ("[MOE_DIST]",), _parse, order=10, finish=alone)
