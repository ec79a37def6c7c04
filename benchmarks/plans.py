"""Plans of six public models for every factor: `python benchmarks/plans.py [--json benchmarks/plans.json]`, in under five seconds.

Configurations are those of cost_models.toml, with the keys that a cut needs and a cost does not. The table is the one in docs/plan.md.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from faultproxy.proxy.cost.setting import setting
from faultproxy.proxy.plan.plan import Plan, plans
from faultproxy.proxy.plan.question import Question
from faultproxy.proxy.plan.show import priced

MODELS = tomllib.loads(Path(__file__).with_name("cost_models.toml").read_text("utf-8"))["models"]
NAMES = {
    "qwen3-30b-a3b": "Qwen3-30B-A3B", "qwen3-235b-a22b": "Qwen3-235B-A22B", "deepseek-v3": "DeepSeek-V3", "kimi-k2": "Kimi-K2",
    "glm-4-5": "GLM-4.5", "gpt-oss-120b": "gpt-oss-120b",
}  # fmt: skip
#: Of a cut: that router weights are normalised over the chosen experts, and which layers see a window.
EXTRA: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": {"norm_topk_prob": True},
    "qwen3-235b-a22b": {"norm_topk_prob": True},
    "gpt-oss-120b": {"layer_types": ["sliding_attention", "full_attention"] * 18},
}
#: One failure a factor; that of depth begins in a layer a third of the way up.
FAILURES = {"routing": "routing_mismatch", "depth": "gradient_explosion", "precision": "loss_scale_collapse", "none": "reward_hacking", "undetermined": "policy_drift"}  # fmt: skip
DEVICE = "h20"
#: What is lost, in a letter for the table.
LOST = {
    "E": "faults of dropped experts",
    "V": "exact values",
    "L": "faults of layers",
    "R": "reward and text",
    "W": "what trained weights bring",
    "M": "multi-token prediction",
}


def config_of(name: str) -> dict[str, Any]:
    """The model's configuration."""
    config: dict[str, Any] = MODELS[name]["config"] | EXTRA.get(name, {})
    return config


def question(name: str, factor: str) -> Question:
    """What the benchmark asks of a model."""
    bad = config_of(name)["num_hidden_layers"] // 3 if factor == "depth" else None
    return Question(factor, FAILURES[factor], bad)


def row(name: str, factor: str, plan: Plan) -> dict[str, Any]:
    found = plan.document(name)
    found |= {key: round(found[key], 3) for key in ("device_hours_per_step", "device_hours_per_step_original")}
    keys = ("factors", "title", "weights", "devices", "devices_original", "device_hours_per_step", "device_hours_per_step_original", "params", "params_original", "cannot_reproduce", "command")  # fmt: skip
    sizes = {
        "layers": found["layers"],
        "layers_kept": len(found["layers_kept"]),
        "experts": found["experts"],
        "experts_kept": found["experts_kept"],
    }
    return {"model": name, "asked": factor, **sizes, "top_k": found["top_k"], **{key: found[key] for key in keys}, "layout": found["cost"]["layout"]}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    used = setting({"device_name": DEVICE})
    return [
        row(name, factor, plan)
        for name in NAMES
        for factor in FAILURES
        for plan in plans(config_of(name), question(name, factor), used)
    ]


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| model | factor | layers | experts | weights | devices | saved | device-hours a step | saved | not in it |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in found:
        if one["asked"] == "undetermined":
            continue
        devices, hours = (
            (one["devices_original"], one["devices"]),
            (one["device_hours_per_step_original"], one["device_hours_per_step"]),
        )
        lost = " ".join(
            letter for letter, start in LOST.items() if any(text.startswith(start) for text in one["cannot_reproduce"])
        )
        cells = [
            NAMES[one["model"]], one["asked"], f"{one['layers_kept']} of {one['layers']}", f"{one['experts_kept']} of {one['experts']}", one["weights"],
            f"{devices[0]} to {devices[1]}", f"{1 - devices[1] / devices[0]:.0%}", f"{hours[0]:.3g} to {hours[1]:.3g}", f"{1 - hours[1] / hours[0]:.0%}", lost,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace("-0%", "0%")


if __name__ == "__main__":
    made = rows()
    print(f"costs are of {priced(setting({'device_name': DEVICE}))}\n\n{table(made)}")
    if "--json" in sys.argv:
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
