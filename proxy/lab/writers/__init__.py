"""Prints a run byte for byte as each framework does, what it masks, drops, or averages away included.

A run is a list of rows, one dict a step; a writer renames the row keys that its framework logs (its table of names) and
leaves the others out. `extra` lists row keys that are printed under their own name: what a monitor put beside the
framework's metrics. Facts about the formats are from the frameworks' own source (docs/formats.md); no reader is used.
"""

from __future__ import annotations

from faultproxy.proxy.lab.writers.huggingface import (
    HF,
    SWIFT,
    SWIFT_SFT,
    TRL,
    hf_console,
    history,
    ms_swift,
    trainer_state,
)
from faultproxy.proxy.lab.writers.megatron import MEGATRON, megatron
from faultproxy.proxy.lab.writers.rows import Row, Run, clock, span, windows, words
from faultproxy.proxy.lab.writers.verl import VERL, VERL_SFT, verl_console, verl_jsonl, verl_row

__all__ = [
    "HF", "MEGATRON", "SWIFT", "SWIFT_SFT", "TRL", "VERL", "VERL_SFT", "Row", "Run", "clock", "hf_console", "history", "megatron", "ms_swift",
    "span", "trainer_state", "verl_console", "verl_jsonl", "verl_row", "windows", "words",
]  # fmt: skip
