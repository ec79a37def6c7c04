"""Megatron-LM and its children: the `iteration N/M | ...` line with its guards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from faultproxy.proxy.lab.writers.rows import Run, clock, windows

#: Row keys with a field of their own in the line.
MEGATRON = {
    "step_time": "elapsed time per iteration (ms)", "lr": "learning rate", "loss": "lm loss", "aux_loss": "load_balancing_loss",
    "z_loss": "z_loss", "loss_scale": "loss scale", "grad_norm": "grad norm", "params_norm": "params norm",
    "skipped": "number of skipped iterations", "nan": "number of nan iterations", "eval_loss": "lm loss value",
}  # fmt: skip
_LOSSES = ("loss", "aux_loss", "z_loss")


def megatron(
    run: Run,
    *,
    total: int | None = None,
    interval: int = 1,
    guard: str = ">=",
    style: str = "megatron",
    extra: Sequence[str] = (),
) -> str:
    """The lines of a run. `guard` is the writer's test of the mean loss; `style` megatron, deepspeed, mindspeed.

    As in `training_log`: skipped steps add nothing to the loss, the mean is over the others (at least 1), a loss that was
    never added yet has no field, and the optimiser returns no gradient norm for a step it skipped.
    """
    total, lines, elapsed = total or int(run[-1]["step"]), [], 0.0
    batch = int(run[0]["batch"])
    sums: dict[str, float] = {}
    for window in windows(run, interval):
        last = window[-1]
        advanced = 0
        for row in window:
            elapsed += row["step_time"]
            if not row["skipped"]:
                advanced += 1
                for key in _LOSSES:
                    if key in row:
                        sums[key] = sums.get(key, 0.0) + row[key]
        step, seconds = int(last["step"]), sum(row["step_time"] for row in window) / len(window)
        text = f" iteration {step:8d}/{total:8d} | consumed samples: {step * batch:12d} |"
        if style == "deepspeed":
            text += f" consumed tokens: {step * batch * 4096:12d} | elapsed time per iteration (s): {seconds:.2f} |"
        else:
            text += f" elapsed time per iteration (ms): {seconds * 1000:.1f} |"
            text += f" throughput per GPU (TFLOP/s/GPU): {380 / seconds**0.01:.1f} |" if style == "megatron" else ""
        if "lr" in last:
            text += (
                f" learning rate: {last['lr']:.3E} |" if style == "deepspeed" else f" learning rate: {last['lr']:.6E} |"
            )
        text += f" global batch size: {batch:5d} |"
        for key, value in sums.items():
            mean = value / max(1, advanced)
            if mean >= 0.0 if guard == ">=" else mean > 0.0:
                text += f" {MEGATRON[key]}: {mean:.6E} |"
            sums[key] = 0.0
        text += "".join(f" {key}: {last[key]:.6E} |" for key in extra if key in last)
        text += f" loss scale: {last['loss_scale']:.1f} |"
        if not last["skipped"] and "grad_norm" in last:
            text += f" grad norm: {last['grad_norm']:.3f} |"
        if "params_norm" in last:
            text += f" params norm: {last['params_norm']:.3f} |"
        text += f" number of skipped iterations: {int(sum(row['skipped'] for row in window)):3d} |"
        text += f" number of nan iterations: {int(sum(row['nan'] for row in window)):3d} |"
        if style == "deepspeed":
            text += f" samples per second: {batch / seconds:.3f} | TFLOPs: {61.4:.2f} |"
        head = {"megatron": f" [{clock(elapsed)}.{step * 7919 % 1000000:06d}]", "mindspeed": f" [{clock(elapsed)}]", "deepspeed": ""}  # fmt: skip
        lines.append(head[style] + text)
        if "eval_loss" in last:
            value = last["eval_loss"]
            body = f" validation loss at iteration {step} | lm loss value: {value:.6E} | lm loss PPL: {math.exp(min(20, value)):.6E} | "
            lines += ["-" * len(body), body, "-" * len(body)]
    return "\n".join(lines) + "\n"
