"""Which choice of experts keeps most: `python benchmarks/pruning.py [--only PROGRAM ...] [--balance COEF] [--show] [--save]` (needs the extra `proxy`).

Tiny models of lab programs, trained until 80 % of greedy answers are right (three seeds each; weights are kept in the cache folder of
warm-up), are saved as checkpoints; faultproxy.proxy.choose chooses half and a quarter of their experts; a model of that size gets the
kept experts' weights and is compared with its original on held-out prompts: KL of next-token distributions (nats, mean over answer
tokens), rewards of greedy answers over the original's, the share of the router's gate mass on kept experts, and the share of the
original's chosen and kept experts that the proxy chooses too. The table of a choice is counted over 256 other prompts and their answers.
`dev` programs decided how experts are weighed; `fresh` ones were looked at after that. A program is one model and task:
three seeds of it are no independent programs. `--save` writes benchmarks/pruning.json, or pruning_balanced.json with `--balance`.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from math import comb, log
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.checkpoint import read_checkpoint
from faultproxy.proxy.choose import choose_experts
from faultproxy.proxy.choose.calibration import Calibration, Routing
from faultproxy.proxy.choose.collect import collect
from faultproxy.proxy.choose.medoids import k_medoids
from faultproxy.proxy.choose.stored import Stored
from faultproxy.proxy.choose.views import angles, apart, fuse
from faultproxy.proxy.lab.programs import program
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.run import losses, models
from faultproxy.proxy.run.config import PAD, Program
from faultproxy.proxy.run.engine import Engine
from faultproxy.proxy.run.items import Items, Task
from faultproxy.proxy.run.tasks import make_task
from faultproxy.proxy.run.warm import cache_folder
from faultproxy.proxy.shape import read_shape
from faultproxy.proxy.source import open_source

DEV = (
    "sort-qwen3moe-grpo", "interleave-qwen3moe-grpo", "cipher-qwen3moe-gspo", "lookup-olmoe-grpo", "interleave-olmoe-rloo",
    "reverse-mixtral-grpo", "sort-deepseekv3-dapo", "addmod-deepseekv3-grpo",
)  # fmt: skip
FRESH = (
    "below-qwen3moe-dapo", "copy-olmoe-grpo", "reverse-qwen3moe-drgrpo", "recurrence-deepseekv3-grpo", "successor-deepseekv3-gspo",
    "dedupe-qwen3moe-grpo", "maximum-olmoe-drgrpo", "parity-mixtral-dapo",
)  # fmt: skip
SEEDS, PROMPTS, RIGHT, STEPS = 3, 256, 0.8, 300
#: Column -> (method, with a table).
METHODS = {
    "random": ("random", False), "first": ("first", False), "weights": ("weights", False), "router": ("router", False),
    "fused, no table": ("fused", False), "frequency": ("frequency", True), "gate-norm": ("gate-norm", True), "fused": ("fused", True),
}  # fmt: skip
CELL, FIGURES = ("program", "seed", "share"), ("kl", "reward", "mass", "same")
Sets = dict[int, tuple[int, ...]]


def trained(name: str, seed: int, balance: float = 0.0) -> tuple[Program, Task, Engine]:
    """A program's model after supervised warm-up on clean answers, with a load-balancing loss of this weight."""
    made = program(name)
    task = make_task(made.task, **made.task_args)
    engine = Engine(made.model, task.vocab, task.prompt_length + task.response_length, seed)
    path = cache_folder() / f"pruning-{name}-{seed}{f'-{balance}' if balance else ''}.pt"
    if path.is_file():
        engine.load(torch.load(path, weights_only=True), engine.buffers())
        return made, task, engine
    generator = torch.Generator().manual_seed(1000 + seed)
    optimiser: Any = torch.optim.AdamW(engine.parameters, made.warmup_lr, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(1, STEPS + 1):
        items = task.sample(64, generator)
        engine.routed = [] if balance else None
        loss, _ = losses.sft_loss(
            engine.answer_logits(items.prompts, items.answers), items.answers, items.answers != PAD
        )
        if balance:
            loss = loss + balance * engine.balance_loss()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(engine.parameters, 1.0)
        optimiser.step()
        if step % 20 == 0 and reward(task, engine, task.sample(128, generator)) >= RIGHT:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save([p.detach().clone() for p in engine.parameters], path)
    return made, task, engine


def reward(task: Task, engine: Engine, items: Items) -> float:
    said, mask, _ = engine.sample(items.prompts, task.response_length, torch.Generator(), greedy=True)
    return float(task.reward(items, said, mask).mean())


def unpadded(items: Items) -> Iterator[Tensor]:
    """Prompts and answers, those of one length together."""
    lengths = (items.answers != PAD).sum(1)
    for length in lengths.unique().tolist():
        yield torch.cat([items.prompts, items.answers[:, :length]], 1)[lengths == length]


def smaller(made: Program, task: Task, engine: Engine, kept: Sets) -> Engine:
    """The model with these experts only."""
    count = len(next(iter(kept.values())))
    small = Engine(replace(made.model, experts=count), task.vocab, task.prompt_length + task.response_length, 0)
    own = dict(small.model.named_parameters()) | dict(small.model.named_buffers())
    with torch.no_grad():
        for name, tensor in (dict(engine.model.named_parameters()) | dict(engine.model.named_buffers())).items():
            if own[name].shape != tensor.shape:
                layer = re.search(r"layers\.(\d+)\.", name)
                assert layer
                tensor = tensor[list(kept[int(layer[1])])]
            own[name].copy_(tensor)
    return small


def clustered(
    distance: Any, start: Any, count: int, groups: int, worth: Any = None, represent: Any = None
) -> tuple[int, ...]:
    """K-Medoids as published where `represent` is given: points count alike, and of each cluster the expert with most of it stays."""
    size, kept = len(distance) // groups, []
    for at in range(0, len(distance), size):
        own = slice(at, at + size)
        begin = np.argsort(-start[own], kind="stable")[: count // groups].tolist()
        found, _ = k_medoids(distance[own, own], begin, 0, None if worth is None else worth[own] + 1e-9)
        if represent is not None:
            place = distance[own, own][:, found].argmin(1)
            place[found] = range(len(found))
            found = [int(np.where(place == n, represent[own], -1.0).argmax()) for n in range(len(found))]
        kept += [at + e for e in found]
    return tuple(sorted(kept))


def ablations(routers: dict[int, Any], table: Calibration, count: int, groups: int) -> dict[str, Sets]:
    """Other ways to fuse, and to weigh."""
    found: dict[str, Sets] = {}
    for n, routing in table.layers.items():
        every = {
            "router": angles(routers[n]),
            "together": apart(routing.together, routing.frequency),
            "context": angles(routing.prototype),
        }
        far = every | {"together": 2.0 - every["together"]}
        shared = every | {"together": 1.0 - every["together"] + 1e-3}
        plain = routing.frequency
        ways: dict[str, tuple[Any, ...]] = {
            f"fused without {name}": ({k: v for k, v in every.items() if k != name},) for name in every
        }
        ways |= {f"fused, {name} alone": ({name: every[name]},) for name in every}
        ways["fused, co-firing is far"] = (far,)
        for name, given in (("near", every), ("far", shared)):
            ways[f"published form, co-firing is {name}"] = (given, None, plain)
            ways[f"same, representative by gate x norm, {name}"] = (given, None, routing.gate_norm)
        ways["fused, weighed by frequency"] = (every, plain)
        ways["fused from a trace's loads (router rows, weighed by frequency)"] = ({"router": every["router"]}, plain)
        for way, (views, *more) in ways.items():
            worth, represent = (*more, None)[:2] if more else (routing.gate_norm, None)
            found.setdefault(way, {})[n] = clustered(fuse(views), plain, count, groups, worth, represent)
        mean = routing.gate_norm / np.maximum(plain, 1.0)
        size = len(mean) // groups
        best = [
            at + int(e)
            for at in range(0, len(mean), size)
            for e in np.argsort(-mean[at : at + size], kind="stable")[: count // groups]
        ]
        found.setdefault("gate x norm, mean over an expert's tokens (REAP)", {})[n] = tuple(sorted(best))
    return found


@torch.no_grad()
def compare(task: Task, engine: Engine, small: Engine, kept: Sets, held: Items) -> dict[str, float]:
    """What the proxy keeps of its original, on held-out prompts."""
    mask = held.answers != PAD
    with engine.probe.capture() as seen:
        whole = engine.answer_logits(held.prompts, held.answers).log_softmax(-1)
    with small.probe.capture() as shown:
        part = small.answer_logits(held.prompts, held.answers).log_softmax(-1)
    mass, same = [], []
    for n, ids in kept.items():
        scores = models.router_scores(engine.routers[n], torch.cat(seen.logits[n]))
        mass.append(float((scores[:, list(ids)].sum(1) / scores.sum(1)).mean()))
        new = torch.full((scores.shape[1],), -1)
        new[list(ids)] = torch.arange(len(ids))
        wanted = new[torch.cat(seen.indices[n]).long()]
        got = (wanted.unsqueeze(-1) == torch.cat(shown.indices[n]).long().unsqueeze(-2)).any(-1)
        same.append(float(got[wanted >= 0].float().mean()))
    divergence = ((whole.exp() * (whole - part)).sum(-1) * mask).sum() / mask.sum()
    return {
        "kl": float(divergence),
        "reward": reward(task, small, held),
        "mass": sum(mass) / len(mass),
        "same": sum(same) / len(same),
    }


def cells(name: str, seed: int, balance: float = 0.0) -> list[dict[str, Any]]:
    """One model at half and, where groups and top-k allow it, a quarter of its experts."""
    made, task, engine = trained(name, seed, balance)
    table = collect(engine.model, unpadded(task.sample(PROMPTS, torch.Generator().manual_seed(77 + seed))))
    held = task.sample(PROMPTS, torch.Generator().manual_seed(990 + seed))
    base = reward(task, engine, held)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        engine.model.save_pretrained(folder)
        checkpoint = read_checkpoint(open_source(folder))
        shape = read_shape(checkpoint.config)
        routers = {n: Stored(checkpoint, shape).router(n) for n in shape.sparse}
        for share in (2, 4):
            count, sets = made.model.experts // share, {}
            try:
                for column, (method, calibrated) in METHODS.items():
                    recipe = Recipe(experts=count, method=method, seed=seed)
                    sets[column] = choose_experts(checkpoint, shape, recipe, table if calibrated else None).experts
            except InputError:
                continue
            sets |= ablations(routers, table, count, shape.groups)
            for column, kept in sets.items():
                found = compare(task, engine, smaller(made, task, engine, kept), kept, held)
                found["reward"] /= base
                rows.append(
                    {"program": name, "seed": seed, "share": share, "method": column}
                    | {k: round(v, 6) for k, v in found.items()}
                )
    return rows


def sign(rows: list[dict[str, Any]], one: str, other: str, by_program: bool = False) -> str:
    """Cells (or programs, by their mean log KL) in which the first has the lower and the higher KL, and the two-sided sign test."""
    sums: dict[Any, float] = {}
    for row in rows:
        if row["method"] in (one, other) and one != other:
            key = row["program"] if by_program else (row["program"], row["seed"], row["share"])
            sums[key] = sums.get(key, 0.0) + (1 if row["method"] == one else -1) * log(row["kl"] + 1e-9)
    wins, lost = sum(v < 0 for v in sums.values()), sum(v > 0 for v in sums.values())
    n = wins + lost
    p = min(1.0, 2 * sum(comb(n, i) for i in range(min(wins, lost) + 1)) / 2**n) if n else 1.0
    return f"{wins}:{lost} ({p:.2g})" if one != other else "-"


def show(rows: list[dict[str, Any]]) -> None:
    for title, chosen in (("dev", DEV), ("fresh", FRESH), ("all", DEV + FRESH)):
        held = [r for r in rows if r["program"] in chosen]
        if not held:
            continue
        print(
            f"\n{title}: {len({(r['program'], r['seed'], r['share']) for r in held})} cells of {len({r['program'] for r in held})} programs"
        )
        print(
            "| method | KL, geometric mean | median KL half, quarter | reward kept half, quarter | gate mass | same choice | against random | frequency | gate-norm | gate-norm by program |"
        )
        print("|" + "---|" * 10)
        for method in dict.fromkeys(r["method"] for r in held):
            own = [r for r in held if r["method"] == method]

            def two(key: str, own: list[dict[str, Any]] = own) -> str:
                return ", ".join(
                    f"{median([r[key] for r in own if r['share'] == share] or [float('nan')]):.3f}" for share in (2, 4)
                )

            tests = [sign(held, method, other) for other in ("random", "frequency", "gate-norm")]
            means = [f"{sum(r[key] for r in own) / len(own):.3f}" for key in ("mass", "same")]
            tests.append(sign(held, method, "gate-norm", by_program=True))
            print(
                f"| {method} | {geometric_mean([r['kl'] + 1e-9 for r in own]):.4f} | {two('kl')} | {two('reward')} | {' | '.join(means + tests)} |"
            )


def header(shapes: dict[str, list[int]]) -> bytes:
    entries, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head


def speed() -> dict[str, Any]:
    """Times of the parts, and of a choice by routers alone in a checkpoint of the shape of Qwen3-30B-A3B (a sparse file)."""
    found: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for n in (128, 256, 512):
        points = rng.standard_normal((n, 64))
        distance = angles(points)
        np.fill_diagonal(distance, 0.0)
        for k in (n // 2, n // 4):
            start = time.perf_counter()
            k_medoids(distance, range(k), 0, rng.random(n))
            found[f"k-medoids {n} to {k}, ms"] = round((time.perf_counter() - start) * 1e3, 1)
    for title, layers, experts, methods in (("30B", 48, 128, ("router", "fused")), ("1.2 GB", 1, 128, ("weights",))):
        shapes = {}
        for n in range(layers):
            shapes[f"model.layers.{n}.mlp.gate.weight"] = [experts, 2048]
            for e in range(experts):
                shapes |= {
                    f"model.layers.{n}.mlp.experts.{e}.{part}.weight": [768, 2048]
                    for part in ("gate_proj", "up_proj", "down_proj")
                }
        with tempfile.TemporaryDirectory() as folder:
            head, total = header(shapes), sum(2 * a * b for a, b in shapes.values())
            with (Path(folder) / "model.safetensors").open("wb") as file:
                file.write(head)
                drawn = (
                    (rng.standard_normal(experts * 2048).astype(np.float32).view(np.uint32) >> 16)
                    .astype(np.uint16)
                    .tobytes()
                )
                for n in range(layers):
                    file.seek(len(head) + n * total // layers)
                    file.write(drawn)
                if layers == 1:
                    for _ in range((total - len(drawn)) // len(drawn)):
                        file.write(drawn)
                file.truncate(len(head) + total)
            config = {
                "model_type": "qwen3_moe",
                "num_hidden_layers": layers,
                "num_experts": experts,
                "num_experts_per_tok": 8,
            }
            (Path(folder) / "config.json").write_text(json.dumps(config))
            start = time.perf_counter()
            checkpoint = read_checkpoint(open_source(folder))
            shape = read_shape(checkpoint.config)
            found[f"headers of {title}, s"] = round(time.perf_counter() - start, 2)
            alike = np.zeros((experts, experts))
            table = Calibration(
                {
                    n: Routing(rng.random(experts), rng.random(experts), alike, rng.standard_normal((experts, 64)))
                    for n in range(layers)
                },
                0,
                "",
            )
            for method in methods:
                before, start = checkpoint.source.fetched, time.perf_counter()
                choose_experts(checkpoint, shape, Recipe(experts=experts // 2, method=method), table)
                took, read = time.perf_counter() - start, checkpoint.source.fetched - before
                found[f"choose in {title} by {method}"] = {
                    "s": round(took, 2),
                    "MB": round(read / 1e6, 1),
                    "GB/s": round(read / 1e9 / took, 2),
                }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*DEV, *FRESH])
    parser.add_argument("--balance", type=float, default=0.0, help="weight of a load-balancing loss in training")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--show", action="store_true", help="no new cells, but those that were saved")
    options = parser.parse_args()
    path = Path(__file__).with_name("pruning_balanced.json" if options.balance else "pruning.json")
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    start = time.process_time()
    if options.show:
        held = json.loads(path.read_text())["cells"]
        rows = [
            {**dict(zip(CELL, cell, strict=True)), "method": method} | dict(zip(FIGURES, figures, strict=True))
            for *cell, methods in held
            for method, figures in methods.items()
        ]
    else:
        rows = [row for name in options.only for seed in range(SEEDS) for row in cells(name, seed, options.balance)]
    show(rows)
    took = speed()
    print(json.dumps(took, indent=1))
    print(f"{time.process_time() - start:.0f} s of CPU")
    if options.save:
        packed: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            packed.setdefault(tuple(row[key] for key in CELL), {})[row["method"]] = [row[key] for key in FIGURES]
        text = ",\n".join(json.dumps([*cell, methods]) for cell, methods in packed.items())
        path.write_text(
            f'{{"cell": {json.dumps([*CELL, FIGURES])},\n"speed": {json.dumps(took)},\n"cells": [\n{text}\n]}}\n'
        )


if __name__ == "__main__":
    main()
