"""What a step of the lab costs, by program, and what recording adds to it: `python benchmarks/lab.py [--programs N]`.

CPU time on one thread. With and without a recorder two loops of one program take turns, four steps each, so that what
else the machine does meets both; curvature (every 4th step, dear by nature) is counted apart. The table by group says where
the time of recording goes: the functions are timed from outside, so hooks and allocations are in the total only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from faultproxy.analyzer.record import Recorder
from faultproxy.proxy.lab.programs import programs
from faultproxy.proxy.run import loop as loop_module
from faultproxy.proxy.run import losses, rl
from faultproxy.proxy.run.config import Program
from faultproxy.proxy.run.loop import Loop

GROUPS: dict[str, list[tuple[Any, str]]] = {
    "activations": [(rl, "activation_stats")],
    "routing": [(rl, "routing_stats")],
    "rollout against trainer": [(rl, "compare"), (losses, "mismatch")],
    "gradients": [(loop_module, "gradient_stats")],
    "updates and moments": [(loop_module.UpdateMeter, "before"), (loop_module.UpdateMeter, "after"), (loop_module, "moments")],
    "writing": [(Recorder, "log"), (Recorder, "log_layers"), (Recorder, "log_experts")],
    "curvature": [(Loop, "bend")],
}  # fmt: skip
TURNS, STEPS = 6, 4


def timed(spent: dict[str, float]) -> None:
    """Wrap every function of GROUPS so that its CPU time adds up in `spent`."""

    def wrap(function: Callable[..., Any], group: str) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args, **named)
            finally:
                spent[group] += time.process_time() - started

        return run

    for group, places in GROUPS.items():
        for place, name in places:
            setattr(place, name, wrap(getattr(place, name), group))


def measure(program: Program, spent: dict[str, float]) -> dict[str, Any]:
    """Seconds a step without recording, and with it, with and without curvature."""
    loops = {
        "bare": Loop(program, 0, None, curvature=False),
        "recorded": Loop(program, 0, Recorder(None, "run", {}), curvature=False),
        "with curvature": Loop(program, 0, Recorder(None, "run", {})),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop.run(2)
    before = dict(spent)
    for _ in range(TURNS):
        for name, loop in loops.items():
            started = time.process_time()
            loop.run(loop.step_number + STEPS)
            times[name].append((time.process_time() - started) / STEPS)
    result: dict[str, Any] = {name: statistics.median(taken) for name, taken in times.items()}
    # The groups ran in both recorded loops, curvature in one.
    result["groups"] = {
        group: (spent[group] - before.get(group, 0.0)) / (TURNS * STEPS) / (1 if group == "curvature" else 2)
        for group in GROUPS
    }
    result["parameters"] = sum(p.numel() for p in loops["bare"].trainer.parameters)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=0, help="only the first N programs")
    parser.add_argument("--rl", action="store_true", help="only programs that sample answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spent: dict[str, float] = defaultdict(float)
    timed(spent)
    chosen = [p for p in programs() if p.rl or not options.rl]
    rows = []
    print(f"{'program':34} {'params':>9} {'layers':>6} {'experts':>7} {'ms/step':>8} {'recorded':>9} {'curvature':>9}")
    for program in chosen[: options.programs or None]:
        row = measure(program, spent)
        rows.append((program, row))
        print(
            f"{program.name:34} {row['parameters']:9,} {program.model.layers:6} {program.model.experts:7} {1e3 * row['bare']:8.1f} "
            f"{row['recorded'] / row['bare'] - 1:+9.1%} {row['with curvature'] / row['bare'] - 1:+9.1%}",
            flush=True,
        )
    grpo = [row["with curvature"] for program, row in rows if program.algorithm == "grpo"]
    if grpo:
        print(
            f"GRPO step, everything recorded: median {statistics.median(grpo):.3f} s, worst {max(grpo):.3f} s, {len(grpo)} programs"
        )
    total = statistics.median(row["recorded"] / row["bare"] - 1 for _, row in rows)
    print(f"recording without curvature adds {total:.1%} in the median program")
    for group in GROUPS:
        share = statistics.median(row["groups"][group] / row["bare"] for _, row in rows)
        print(f"  {group:24} {share:6.1%} of a step")


if __name__ == "__main__":
    main()
