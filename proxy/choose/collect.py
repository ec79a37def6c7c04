"""Counts what tokens do in the routers of a model in memory, for a calibration table. Needs torch.

Every transformers 5 model with experts hands them (hidden states [N, H], chosen experts [N, K], weights [N, K]); a hook there sees all
that the table holds, whatever the family. The norm of one expert's output is had by calling the experts again with one choice a token
and weight 1: as much work as the forward's experts took. N tokens, K experts a token, E experts, H hidden, D width of a prototype.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faultproxy.analyzer.errors import InputError, UnreadableError
from faultproxy.analyzer.report.clean import visible
from faultproxy.proxy.choose.calibration import WIDTH, Calibration, Routing

#: Tokens of one forward.
WINDOW = 2048
#: Characters of plain text that are tokenised together.
PIECE = 1 << 20
#: Strings, or lists of messages, of a row of JSON lines.
_TEXT = ("messages", "text", "prompt", "question", "response", "completion", "answer")
_LAYER = re.compile(r"\.(?:layers|blocks|h)\.(\d{1,6})\..*experts$")


class _Counter:
    """Sums of one layer over the forwards so far."""

    def __init__(self, experts: int, hidden: int, device: torch.device) -> None:
        wide = hidden > WIDTH
        drawn = np.random.default_rng(0).standard_normal((hidden, WIDTH)) / WIDTH**0.5 if wide else np.eye(hidden)
        self.projection = torch.tensor(drawn, dtype=torch.float32, device=device)
        self.frequency = torch.zeros(experts, dtype=torch.float64, device=device)
        self.gate_norm = torch.zeros_like(self.frequency)
        self.together = torch.zeros(experts, experts, dtype=torch.float64, device=device)
        self.prototype = torch.zeros(experts, self.projection.shape[1], dtype=torch.float64, device=device)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Add one call of the experts; a forward pre-hook."""
        given = [one for one in (*args, *named.values()) if isinstance(one, Tensor)]
        hidden, index = given[0], next((one for one in given if not one.is_floating_point()), None)
        weights = [
            one for one in given[1:] if index is not None and one.is_floating_point() and one.shape == index.shape
        ]
        if index is None or not weights:
            raise InputError(f"{type(module).__name__} is not given the chosen experts; choose with --method router")
        hit = torch.zeros(len(index), len(self.frequency) + 1, dtype=torch.float32, device=index.device)
        hit.scatter_(1, index.clamp(max=len(self.frequency)), 1.0)  # experts without weights come last
        hit = hit[:, :-1]
        self.frequency += hit.sum(0)
        self.together += hit.T @ hit
        self.prototype += hit.T @ (hidden.flatten(0, -2).float() @ self.projection)
        for k in range(index.shape[1]):
            one = {id(index): index[:, k : k + 1], id(weights[0]): torch.ones_like(weights[0][:, k : k + 1])}
            out = module.forward(
                *(one.get(id(a), a) for a in args), **{key: one.get(id(a), a) for key, a in named.items()}
            )
            flat = index[:, k].clamp(max=len(self.frequency) - 1)
            norm = (
                out.flatten(0, -2).float().norm(dim=-1) * weights[0][:, k].float() * (index[:, k] < len(self.frequency))
            )
            self.gate_norm.index_add_(0, flat, norm.to(self.gate_norm))

    def routing(self) -> Routing:
        """The counts as arrays."""
        frequency = self.frequency.cpu().numpy()
        together = self.together.cpu().numpy()
        np.fill_diagonal(together, 0.0)
        prototype = self.prototype.cpu().numpy() / np.maximum(frequency, 1.0)[:, None]
        return Routing(frequency, self.gate_norm.cpu().numpy(), together, prototype)


@torch.no_grad()
def collect(model: Any, batches: Iterable[Tensor], source: str = "") -> Calibration:
    """The table of a causal language model over batches of token ids [B, T], which must hold no padding.

    Raises:
        InputError: No module of the model is given chosen experts.
    """
    counters: dict[int, _Counter] = {}
    handles = []
    width = model.get_input_embeddings().weight.shape[1]
    for name, module in model.named_modules():
        count = getattr(module, "num_experts", None)
        if (found := _LAYER.search(f".{name}")) and isinstance(count, int):
            counters[int(found[1])] = counter = _Counter(count, width, next(module.parameters()).device)
            handles.append(module.register_forward_pre_hook(counter, with_kwargs=True))
    tokens = 0
    unknown = f"{type(model).__name__} has no experts that are given what a router chose; nothing can be counted"
    if not counters:
        raise InputError(unknown)
    try:
        for batch in batches:
            model(input_ids=batch, use_cache=False)
            tokens += batch.numel()
    finally:
        for handle in handles:
            handle.remove()
    if not tokens:
        raise InputError("there is no text in what was given; give at least a few thousand tokens")
    if not all(counter.frequency.any() for counter in counters.values()):
        raise InputError(unknown)
    return Calibration({layer: counter.routing() for layer, counter in sorted(counters.items())}, tokens, source)


def windows(tokenizer: Any, texts: Iterable[str], tokens: int, device: torch.device) -> Iterator[Tensor]:
    """Token ids [1, T] of each text, at most WINDOW at a time and `tokens` in all."""
    for text in filter(str.strip, texts):
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=True)["input_ids"][0]
        for part in ids.split(WINDOW):
            if tokens <= 0:
                return
            yield part[:tokens].unsqueeze(0).to(device)
            tokens -= len(part)


def read_texts(path: Path) -> Iterator[str]:
    """Texts of a file: of each line of JSON lines what stands under _TEXT, joined; of any other file pieces of PIECE characters."""
    import orjson

    where = visible(str(path), 200)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if path.suffix != ".jsonl":
                yield from iter(lambda: file.read(PIECE), "")
                return
            while line := file.readline(16 * PIECE):
                row = orjson.loads(line) if line.strip() else ""
                said = [row[key] for key in _TEXT if key in row] if isinstance(row, dict) else [row]
                turns = [turn for one in said for turn in (one if isinstance(one, list) else [one])]
                texts = [turn.get("content") if isinstance(turn, dict) else turn for turn in turns]
                yield "\n".join(text for text in texts if isinstance(text, str))
    except OSError as error:
        raise UnreadableError(f"cannot read {where}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where}: a line is not JSON ({visible(str(error), 80)}); name a plain text .txt") from error
