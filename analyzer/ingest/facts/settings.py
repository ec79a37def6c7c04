"""Turns the leaves of any configuration into facts: names of one meaning by table, the others by what stands beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from faultproxy.analyzer.ingest.facts.found import Found, Leaf, undotted
from faultproxy.analyzer.ingest.facts.model import describe
from faultproxy.analyzer.ingest.facts.names import CRITICS, ENVIRONMENT, SETTINGS, STAGES

_ACTOR, _COLOCATED = "actor_rollout_ref.actor.", "policy.generation.colocated.enabled"
#: Groups that hold the settings of DeepSpeed or of a run inside another configuration.
_INSIDE = ("deepspeed.", "deepspeed_config.", "training_args.", "args.")
#: Words of a command that say which framework runs, and what it is told to do; the first that fits.
_PROGRAMS = (
    ("verl.trainer.main_ppo", "verl", None), ("verl.trainer.fsdp_sft", "verl", "supervised"), ("verl.trainer", "verl", None),
    ("recipe.dapo", "verl", "rl"), ("openrlhf.cli.train_ppo", "openrlhf", None), ("openrlhf.cli.train_sft", "openrlhf", "supervised"),
    ("openrlhf.cli.train_dpo", "openrlhf", "preference"), ("openrlhf", "openrlhf", None), ("llamafactory-cli", "llama-factory", None),
    ("llamafactory", "llama-factory", None), ("pretrain_gpt.py", "megatron", "supervised"), ("pretrain_", "megatron", "supervised"),
    ("swift", "ms-swift", None), ("trl", "hf", None),
)  # fmt: skip


class Source:
    """Where leaves come from: a path, and how near it is to what ran."""

    def __init__(self, path: str, near: int) -> None:
        self.path, self.near = path, near

    def at(self, line: int) -> str:
        """The origin of what stands on a line."""
        return f"{self.path}:{line}" if line else self.path


def interpret(leaves: Mapping[str, Leaf], source: Source, found: Found) -> None:
    """Put every fact that the leaves state."""
    leaves = _unwrapped(leaves)
    for name, (value, line) in leaves.items():
        fact = SETTINGS.get(name)
        if fact is not None:
            found.put(fact, value, source.at(line), source.near)
            if name.startswith("actor_rollout_ref."):
                found.put("framework", "verl", source.at(line), source.near)
    shape = describe(undotted(leaves))
    if "model.layers" in shape or "model.experts" in shape:
        lines = [
            line for name, (_, line) in leaves.items() if name in ("num_layers", "num_hidden_layers", "num_experts")
        ]
        for fact, value in shape.items():
            if fact != "model.dtype":
                found.put(fact, value, source.at(min(lines, default=0)), source.near)

    def put(fact: str, name: str, value: Any = None) -> None:
        if name in leaves:
            held, line = leaves[name]
            found.put(fact, held if value is None else value, source.at(line), source.near)

    _precision(leaves, put)
    _objective(leaves, put)
    _layout(leaves, put)
    for name in ("deepspeed", "deepspeed_config", "ds_config"):
        if isinstance(leaves.get(name, (None,))[0], str):
            found.mentioned.add(PurePosixPath(leaves[name][0]).name)


def _unwrapped(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """W&B writes every setting as `name: {desc, value}`; some writers put the settings in a group of their own."""
    plain: dict[str, Leaf] = {}
    wandb = "wandb_version" in leaves or any(name.startswith("_wandb.") for name in leaves)
    for name, leaf in leaves.items():
        if wandb:
            head, _, rest = name.partition(".")
            if rest == "desc" or not rest:
                continue
            name = head if rest == "value" else f"{head}.{rest.removeprefix('value.')}"
        for group in _INSIDE:
            name = name.removeprefix(group)
        plain.setdefault(name, leaf)
    return plain


def _on(leaves: Mapping[str, Leaf], name: str) -> bool:
    return leaves.get(name, (None,))[0] is True


def _precision(leaves: Mapping[str, Leaf], put: Any) -> None:
    for name, word in (
        ("fp16", "fp16"), ("bf16", "bf16"), ("fp16.enabled", "fp16"), ("bf16.enabled", "bf16"), ("bfloat16.enabled", "bf16"),
        ("fp16_enabled", "fp16"), ("bfloat16_enabled", "bf16"),
    ):  # fmt: skip
        if _on(leaves, name):
            put("precision.compute", name, word)
            if word == "bf16":
                put("precision.loss_scaling", name, "none")
    power = leaves.get("fp16.initial_scale_power", (None,))[0]
    if type(power) is int and 0 <= power <= 60:
        put("precision.initial_scale", "fp16.initial_scale_power", 2**power)
    # 0 (DeepSpeed) and null (Megatron) ask for a dynamic scale; DeepSpeed takes a missing one for 0.
    for flag, scale in (("fp16.enabled", "fp16.loss_scale"), ("fp16_enabled", "loss_scale"), ("fp16", "loss_scale")):
        if not _on(leaves, flag):
            continue
        value = leaves[scale][0] if scale in leaves else None
        if value is None and scale not in leaves and flag == "fp16":
            continue  # a command that sets no scale: what the program defaults to is its own affair
        static = isinstance(value, (int, float)) and value > 0
        put("precision.loss_scaling", scale if scale in leaves else flag, "static" if static else "dynamic")
        if static:
            put("precision.static_scale", scale)


def _objective(leaves: Mapping[str, Leaf], put: Any) -> None:
    for name in ("algorithm.adv_estimator", "advantage_estimator", "grpo.adv_estimator.name"):
        estimator = leaves.get(name, (None,))[0]
        if isinstance(estimator, str):
            put("algorithm", name, "ppo" if estimator in CRITICS else "rl")
    for name in ("rlhf_type", "stage"):
        stage = leaves.get(name, (None,))[0]
        if isinstance(stage, str) and stage in STAGES:
            put("algorithm", name, STAGES[stage])
    # One bound for both sides unless the sides have their own.
    for both, low, high in (
        (_ACTOR + "clip_ratio", _ACTOR + "clip_ratio_low", _ACTOR + "clip_ratio_high"),
        ("eps_clip", "eps_clip_low", "eps_clip_high"),
        ("epsilon", "epsilon_low", "epsilon_high") if "num_generations" in leaves else ("", "", ""),
    ):
        for side, name in (("low", low), ("high", high)):
            if leaves.get(name, (None,))[0] is None:
                put(f"hyperparameters.clip_{side}", both)
    pair = leaves.get("eps_clip_low_high", (None,))[0]
    if isinstance(pair, list) and len(pair) == 2:
        put("hyperparameters.clip_low", "eps_clip_low_high", pair[0])
        put("hyperparameters.clip_high", "eps_clip_low_high", pair[1])
    # A weight counts only where its term is on.
    if leaves.get(_ACTOR + "use_kl_loss", (None,))[0] is not False:
        put("hyperparameters.kl_coef", _ACTOR + "kl_loss_coef")
    if _on(leaves, "algorithm.use_kl_in_reward"):
        put("hyperparameters.kl_reward_coef", "algorithm.kl_ctrl.kl_coef")
    if "beta" in leaves:
        put("hyperparameters.kl_coef" if "num_generations" in leaves else "hyperparameters.beta", "beta")


def _layout(leaves: Mapping[str, Leaf], put: Any) -> None:
    nodes, each = leaves.get("nnodes", (1,))[0], leaves.get("nproc_per_node", (None,))[0]
    if type(nodes) is int and type(each) is int:
        put("hardware.devices", "nproc_per_node", nodes * each)
    nodes, each = leaves.get("num_nodes", (1,))[0], leaves.get("num_gpus", (None,))[0]
    if type(nodes) is int and type(each) is int:
        put("hardware.devices", "num_gpus", nodes * each)
    if leaves.get("trainer.device", (None,))[0] == "npu":
        put("hardware.vendor", "trainer.device", "ascend")
    mode = leaves.get("vllm_mode", (None,))[0]
    if mode in ("colocate", "server"):
        put("parallelism.placement", "vllm_mode", "colocated" if mode == "colocate" else "separate")
    for name in ("colocate", "colocate_all_models", "actor_rollout_ref.hybrid_engine", _COLOCATED):
        if _on(leaves, name):
            put("parallelism.placement", name, "colocated")
    if leaves.get(_COLOCATED, (None,))[0] is False:
        put("parallelism.placement", _COLOCATED, "separate")


def program(words: Iterable[str], line: int, source: Source, found: Found) -> None:
    """What the words of a command say: the framework, and the kind of training."""
    words = list(words)[:40]
    for place, word in enumerate(words):
        for known, framework, algorithm in _PROGRAMS:
            name = word.rpartition("/")[2]
            if name == known or (("." in known or "_" in known) and known in word):
                found.put("framework", framework, source.at(line), source.near)
                asked = next((STAGES[w] for w in words[place + 1 : place + 3] if w in STAGES), algorithm)
                if asked:
                    found.put("algorithm", asked, source.at(line), source.near)
                return


def environment(leaves: Mapping[str, Leaf], source: Source, found: Found) -> None:
    """Variables that a script or a command sets and that state a fact."""
    for name, (value, line) in leaves.items():
        for fact, wanted, stated in ENVIRONMENT.get(name, ()):
            if wanted is None or str(value) == wanted:
                found.put(fact, stated, source.at(line), source.near)


def derive(found: Found) -> None:
    """Facts that follow from others: the devices of a job from its nodes."""
    nodes, each = found.get("hardware.nodes"), found.get("hardware.devices_per_node")
    if nodes and each:
        found.derive("hardware.devices", nodes * each, "hardware.devices_per_node")
