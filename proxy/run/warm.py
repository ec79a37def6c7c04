"""Warm-up: a program starts from a model that already gets part of its answers right, trained once and kept.

From random weights RL has nothing to reinforce: fine-tune to 30-60 %, then reinforce.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faultproxy.proxy.run import losses
from faultproxy.proxy.run.config import PAD, Program
from faultproxy.proxy.run.engine import Engine
from faultproxy.proxy.run.items import Task

#: Grows when warm-up or model building changes, so that kept weights are made anew.
VERSION = 2
CHECK_EVERY, CHECK_PROMPTS = 10, 128


def cache_folder() -> Path:
    """Where warmed-up weights are kept: $FAULTPROXY_CACHE, else the user's cache folder."""
    return Path(os.environ.get("FAULTPROXY_CACHE") or Path.home() / ".cache" / "faultproxy") / "warm"


def warm_weights(program: Program, task: Task) -> list[Tensor]:
    """Weights after warm-up, in the order of `Engine.parameters`; from the cache where they are there.

    The key holds all that decides them, torch's version and CPU kernels included, since bits depend on both.
    """
    fields: dict[str, Any] = {"model": program.model, "task": (program.task, sorted(program.task_args.items())), "version": VERSION, "torch": torch.__version__,
              "cpu": torch.backends.cpu.get_cpu_capability(), "warm": (program.warmup_target, program.warmup_steps, program.warmup_lr, program.warmup_batch, program.warmup_noise)}  # fmt: skip
    if program.model.path is not None:  # another checkpoint under the same name has other bits
        files = sorted(Path(program.model.path).iterdir())
        fields["files"] = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    path = cache_folder() / f"{program.name}-{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}.pt"
    if path.is_file():
        kept: list[Tensor] = torch.load(path, weights_only=True)
        return kept
    weights, _, _ = train(program, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    torch.save(weights, partial)
    partial.replace(path)
    return weights


def train(program: Program, task: Task) -> tuple[list[Tensor], int, float]:
    """Supervised warm-up in float32: (weights, steps taken, share of sampled answers that are right at the end).

    Stops at `warmup_target` or after `warmup_steps`. Always on the CPU, so that every device starts from the same bits.
    """
    engine = Engine(program.model, task.vocab, task.prompt_length + task.response_length, 0)
    steps, right = program.warmup_steps, 0.0
    optimiser: Any = torch.optim.AdamW(engine.parameters, program.warmup_lr, betas=(0.9, 0.98), weight_decay=0.0)
    generator = torch.Generator().manual_seed(program.model.layers * 7919 + 17)
    for step in range(1, steps + 1):
        items = task.sample(program.warmup_batch, generator)
        noisy = torch.rand(len(items), 1, generator=generator) < program.warmup_noise
        answers = torch.where(noisy, task.corrupt(items, generator), items.answers)
        loss, _ = losses.sft_loss(engine.answer_logits(items.prompts, answers), answers, answers != PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(engine.parameters, 1.0)
        optimiser.step()
        if program.algorithm != "pretrain" and step % CHECK_EVERY == 0:
            asked = task.sample(CHECK_PROMPTS, generator)
            said, mask, _ = engine.sample(asked.prompts, task.response_length, generator)
            right = float(task.reward(asked, said, mask).mean())
            if right >= program.warmup_target:
                steps = step
                break
    return [p.detach().clone() for p in engine.parameters], steps, right
