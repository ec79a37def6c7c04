"""A setting from plain words: the options of the commands that estimate a step, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faultproxy.proxy.cost.estimate import Setting

DEFAULTS: dict[str, Any] = {
    "device_name": "h100", "algorithm": "grpo", "critic": None, "reward_model": False, "placement": "colocated", "offload": "optimizer",
    "rollout": "bf16", "sequence": (1024, 4096), "longest": 1, "batch": (256, 16),
}  # fmt: skip


def setting(given: Mapping[str, Any], memory: float | None = None) -> Setting:
    """The setting that the options (those of DEFAULTS) describe; `memory` is that of a device in GB where not its own."""
    from faultproxy.proxy.cost.device import device
    from faultproxy.proxy.cost.estimate import Setting
    from faultproxy.proxy.cost.work import workload

    o = DEFAULTS | {name: value for name, value in given.items() if name in DEFAULTS}
    (prompt, response), (prompts, group) = o["sequence"], o["batch"]
    changes = {"prompts": prompts, "group": group, "prompt": prompt, "response": response, "longest": o["longest"], "reward_model": o["reward_model"]}  # fmt: skip
    work = workload(o["algorithm"], **changes, **({"critic": o["critic"]} if o["critic"] else {}))
    used = device(o["device_name"])
    used = used if memory is None else replace(used, memory=memory * 1e9)
    return Setting(used, work, o["placement"], o["offload"], 1 if o["rollout"] == "fp8" else 2)
