"""The cost model against public figures: `python benchmarks/cost.py [--json FILE]` (torch-free, one second).

Parameters of nine models; the smallest published clusters, with the share of memory that model state may fill fitted on
the other clusters each time (leave one out); published seconds; and the published proxy pairs beside ours. `--count` also
builds the default model of every family with transformers, without weights, and counts it (extra `proxy`). What is compared is in cost_models.toml.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from functools import cache
from math import log2
from pathlib import Path
from statistics import mean
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.device import Efficiency, device
from faultproxy.proxy.cost.estimate import Estimate, Setting, estimate, layouts, rollout_shard, sizes
from faultproxy.proxy.cost.memory import memory
from faultproxy.proxy.cost.shape import parameters, shape_of
from faultproxy.proxy.cost.work import workload
from faultproxy.proxy.families import families

HERE = Path(__file__).parent
FACTS = tomllib.loads((HERE / "cost_models.toml").read_text(encoding="utf-8"))
NINE = tuple(FACTS["models"])[:9]
#: GSM8K under GRPO as a summary of arXiv 2608.10823 has it; batch and lengths are assumed.
GSM8K = {"prompts": 128, "group": 8, "prompt": 256, "response": 512, "longest": 1024}


def shape(name: str, **changes: int) -> Any:
    return shape_of(FACTS["models"][name]["config"] | changes)


def parameter_rows() -> list[dict[str, Any]]:
    rows = []
    for name, model in FACTS["models"].items():
        ours = getattr(parameters(shape(name)), model["what"])
        rows.append({"model": name, "named": name in NINE, "ours": ours, "public": model["total"], "what": model["what"], "error_percent": round(100 * (ours / model["total"] - 1), 4), "source": model["source"]})  # fmt: skip
    return rows


def setting(point: dict[str, Any], share: float) -> Setting:
    work = workload("grpo", prompt=1024, response=point["packed"] - 1024, packed=point["packed"])
    return Setting(device(point["device"]), work, efficiency=Efficiency(memory=share))


@cache
def needs(index: int) -> list[tuple[int, float]]:
    """For each cluster size, the share of a device's memory that its leanest layout fills."""
    point = FACTS["clusters"][index]
    s, held = shape(point["model"]), setting(point, 1.0)
    shard = rollout_shard(s, held)
    return [
        (n, min(memory(s, held.workload, x, "colocated", "optimizer", shard, 2).training for x in layouts(s, n, held.device, held.workload.sequence)) / held.device.memory)
        for n in sizes(held.device)
        if n >= shard
    ]  # fmt: skip


def predicted(index: int, share: float) -> int:
    return next(devices for devices, needed in needs(index) if needed <= share)


def fitted(points: list[int]) -> float:
    """The share of memory with the least squared log2 of predicted over published; the middle of equals."""
    shares = [percent / 100 for percent in range(20, 91)]
    loss = {
        share: sum(log2(predicted(p, share) / FACTS["clusters"][p]["devices"]) ** 2 for p in points) for share in shares
    }
    best = min(loss.values())
    equal = [share for share in shares if loss[share] <= best + 1e-9]
    return equal[len(equal) // 2]


def cluster_rows() -> list[dict[str, Any]]:
    points = FACTS["clusters"]
    rows = []
    for index, point in enumerate(points):
        share = fitted([other for other in range(len(points)) if other != index])
        ours = predicted(index, share)
        used = dict(needs(index))[point["devices"]]
        rows.append({"model": point["model"], "device": point["device"], "published": point["devices"], "ours": ours, "ratio": round(ours / point["devices"], 3), "share_fitted_on_others": share, "share_at_published": round(used, 3), "source": point["source"]})  # fmt: skip
    return rows


def other_rows() -> list[dict[str, Any]]:
    """Published clusters that are not claimed to be the smallest, beside the smallest of ours."""
    rows = []
    for point in FACTS["others"]:
        work = workload("grpo", prompt=1024, response=7168, packed=8192)
        found = estimate(shape(point["model"]), Setting(device(point["device"]), work, offload=point["offload"]))
        rows.append({"model": point["model"], "device": point["device"], "offload": point["offload"], "published": point["devices"], "ours": found.devices, "ratio": round(found.devices / point["devices"], 3), "source": point["source"]})  # fmt: skip
    return rows


def timed(run: dict[str, Any], floor: float) -> tuple[int, Estimate]:
    """The mean response (solved from the update where it is not published) and the estimate at it."""
    for length in [run["mean"]] if run["mean"] else range(256, 8193, 64):
        work = workload("grpo", response=length, **run["workload"])
        setup = Setting(device(run["device"]), work, efficiency=Efficiency(layer_floor=floor))
        found = estimate(shape(run["model"]), setup, run["devices"])
        if run["mean"] or found.seconds["training"] >= run["training"]:
            break
    return length, found


def fitted_floor(run: dict[str, Any]) -> float:
    """The floor a layer and decoding step, in seconds, at which generation takes the published time."""
    floors = [n * 2e-5 for n in range(1, 200)]
    return min(floors, key=lambda floor: abs(timed(run, floor)[1].seconds["generation"] - run["generation"]))


def seconds_rows() -> list[dict[str, Any]]:
    """Published seconds beside ours, with the geometric mean of the floors that the runs of other models have."""
    rows, runs = [], FACTS["seconds"]
    own = [fitted_floor(run) for run in runs]
    for run, floor in zip(runs, own, strict=True):
        by_model = {other["model"]: [] for other in runs if other["model"] != run["model"]}
        for other, found in zip(runs, own, strict=True):
            if other["model"] in by_model:
                by_model[other["model"]].append(log2(found))
        used = 2 ** mean(mean(logs) for logs in by_model.values())
        length, found = timed(run, used)
        published = {stage: run[stage] for stage in ("generation", "training", "step") if stage in run}
        ours = {stage: round(value, 1) for stage, value in found.seconds.items()}
        rows.append({"model": run["model"], "devices": run["devices"], "mean_response": length, "solved": not run["mean"], "floor_fitted_on_others": round(used, 5), "floor_of_its_own": round(floor, 5), "published": published, "ours": ours, "source": run["source"]})  # fmt: skip
    return rows


def pair_rows() -> list[dict[str, Any]]:
    rows = []
    for pair in FACTS["pairs"]:
        config = FACTS["models"][pair["model"]]["config"]
        key = next(k for k in ("num_experts", "n_routed_experts") if k in config)
        both = [shape(pair["model"]), shape(pair["model"], **{key: pair["experts"]} | ({"n_group": 1, "topk_group": 1} if "n_group" in config else {}))]  # fmt: skip
        setup = Setting(device(pair["device"]), workload("grpo", **GSM8K))
        least = [estimate(s, setup) for s in both]
        same = [estimate(s, setup, n) for s, n in zip(both, pair["devices"], strict=True)]
        hours = [n * t / 3600 for n, t in zip(pair["devices"], pair["seconds"], strict=True)]
        rows.append({
            "model": pair["model"], "experts": [both[0].experts, pair["experts"]], "device": pair["device"], "note": pair.get("note", ""),
            "published": {"devices": pair["devices"], "seconds": pair["seconds"], "device_hours": [round(x, 3) for x in hours], "hours_ratio": round(hours[0] / hours[1], 2)},
            "ours_smallest": {"devices": [e.devices for e in least], "seconds": [round(e.step, 1) for e in least], "device_hours": [round(e.device_hours, 3) for e in least], "hours_ratio": round(least[0].device_hours / least[1].device_hours, 2)},
            "ours_at_published_devices": {"seconds": [round(e.step, 1) for e in same], "device_hours": [round(e.device_hours, 3) for e in same], "hours_ratio": round(same[0].device_hours / same[1].device_hours, 2)},
        })  # fmt: skip
    return rows


def counted_rows() -> list[dict[str, Any]]:
    """The default model of each model type that transformers builds, counted (on the device `meta`), against the closed form."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    rows: list[dict[str, Any]] = []
    for kind in sorted(kind for family in families().values() for kind in family.model_types if kind in CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[kind]()
            if hasattr(config, "vision_config"):  # counted would be its tower too
                continue
            ours = parameters(shape_of(config.to_dict() | {"model_type": kind})).total
            with torch.device("meta"):
                built = AutoModelForCausalLM.from_config(config)
        except (AttributeError, InputError, TypeError, ValueError) as error:
            rows.append({"model_type": kind, "refused": str(error)[:120]})
            continue
        counted = sum(p.numel() for p in built.parameters())
        counted += sum(b.numel() for n, b in built.named_buffers() if n.endswith(("correction_bias", "expert_bias")))
        rows.append(
            {
                "model_type": kind,
                "counted": counted,
                "ours": ours,
                "error_percent": round(100 * (ours / counted - 1), 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", action="store_true", help="also count the models of transformers")
    arguments = parser.parse_args()
    found = {
        "parameters": parameter_rows(),
        "clusters": cluster_rows(),
        "share_fitted_on_all": fitted(list(range(len(FACTS["clusters"])))),
        "others": other_rows(),
        "seconds": seconds_rows(),
        "pairs": pair_rows(),
    }
    if arguments.count:
        found["counted"] = counted_rows()
    text = json.dumps(found, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
