"""Every task by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from faultproxy.analyzer.errors import InputError, no_such
from faultproxy.proxy.run import puzzles, texts
from faultproxy.proxy.run.config import FIRST_SYMBOL
from faultproxy.proxy.run.items import CREDITS, TASKS, Items, Task

__all__ = ["TASKS", "Items", "Task", "make_task"]
#: Importing these put their builders into TASKS.
SOURCES = (puzzles, texts)


def make_task(name: str, **arguments: Any) -> Task:
    """The task `name`; arguments are the builder's sizes and, for every task, `credit` (one of CREDITS)."""
    if name not in TASKS:
        raise no_such("task", name, TASKS, ", ".join(TASKS))
    builder, credit = TASKS[name]
    allowed = [*inspect.signature(builder).parameters, "credit"]
    if unknown := sorted(set(arguments) - set(allowed)):
        raise InputError(f"task {name}: unknown {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    credit = arguments.pop("credit", credit)
    if credit not in CREDITS:
        raise InputError(f"task {name}: credit {credit!r}; allowed are {', '.join(CREDITS)}")
    symbols, make = builder(**arguments)
    probe = make(64, torch.Generator().manual_seed(0))
    # Operators of a puzzle lie behind its data symbols; both are in every 64 items.
    vocab = max(FIRST_SYMBOL + symbols, int(probe.prompts.max()) + 1)
    return Task(name, symbols, vocab, probe.prompts.shape[1], probe.answers.shape[1], credit, make)
