"""Reads the files beside a run: model and DeepSpeed JSON, YAML, launch scripts, and model cards."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from faultproxy.analyzer.ingest.facts import launch, yamlish
from faultproxy.analyzer.ingest.facts.found import COMMAND, JSON, SCRIPT, YAML, Found, Leaf, scalar
from faultproxy.analyzer.ingest.facts.literal import MAX_DEPTH, MAX_LEAVES
from faultproxy.analyzer.ingest.facts.model import describe, is_model
from faultproxy.analyzer.ingest.facts.names import CARD
from faultproxy.analyzer.ingest.facts.neighbours import WANDB, Neighbours, text
from faultproxy.analyzer.ingest.facts.printed import ran
from faultproxy.analyzer.ingest.facts.settings import Source, environment, interpret
from faultproxy.analyzer.lazy import lazy

#: Characters of a dotted key; a longer one names no setting.
_MAX_KEY = 200
_CARD = "hyperparameters were used during training"
_CARD_LINE = lazy(r"[-*] `?(?P<name>[a-z_]{2,60})`?: (?P<value>.{1,100})$")


def read(near: Neighbours, found: Found) -> None:
    """Put what the files say, scripts first: they name which DeepSpeed configuration ran."""
    for path in near.scripts:
        if content := text(path):
            source = Source(str(path), SCRIPT)
            commands, variables = launch.script(content)
            for command, line in commands:
                ran(command, line, source, found)
            if commands:
                environment(variables, source, found)
    for path in near.yamls:
        if content := text(path):
            interpret(yamlish.leaves(content), Source(str(path), YAML), found)
    for path in near.cards:
        if (content := text(path)) and _CARD in content:
            _card(content, Source(str(path), JSON), found)
    for path in near.jsons:
        _json(path, found)
    named = [path for path in near.deepspeed if path.name in found.mentioned]
    for path in named or (near.deepspeed if len(near.deepspeed) == 1 else []):
        _json(path, found)


def json_object(path: Path) -> dict[str, Any] | None:
    """The object in a small JSON file, or None."""
    import orjson

    try:
        content = text(path) if path.is_file() else None
        document = orjson.loads(content) if content else None
    except (OSError, ValueError):  # a name longer than the system allows, no JSON
        return None
    return document if isinstance(document, dict) else None


def _json(path: Path, found: Found) -> None:
    config = json_object(path)
    if config is None:
        return
    source = Source(str(path), JSON)
    if path.name == WANDB:
        _wandb(config, str(path), found)
    elif is_model(config):
        for fact, value in describe(config).items():
            found.put(fact, value, source.path, JSON)
    elif path.name != "config.json" or any(
        name in config for name in ("train_micro_batch_size_per_gpu", "learning_rate")
    ):
        interpret(dict(islice(_leaves(config), MAX_LEAVES)), source, found)


def _wandb(config: Mapping[str, Any], path: str, found: Found) -> None:
    """What W&B notes of the process that it watched: the command as it ran, and the devices of its node."""
    words = config.get("args")
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        command = launch.command(shlex.join(["python", str(config.get("program") or ""), *words]), 0)
        if command:
            ran(command, 0, Source(path, COMMAND), found)
    found.put("hardware.devices_per_node", config.get("gpu_count"), path, JSON)
    if str(config.get("gpu")).startswith("NVIDIA"):
        found.put("hardware.vendor", "nvidia", path, JSON)


def _leaves(config: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Leaf]]:
    for name, value in config.items():
        if len(prefix) + len(name) > _MAX_KEY:
            continue
        if isinstance(value, dict):
            if depth < MAX_DEPTH:
                yield from _leaves(value, f"{prefix}{name}.", depth + 1)
        else:
            yield prefix + name, (value, 0)


def _card(content: str, source: Source, found: Found) -> None:
    """The list of hyper-parameters that Trainer writes on a model card."""
    inside = False
    for number, line in enumerate(content.split("\n"), 1):
        entry = _CARD_LINE.match(line)
        if _CARD in line:
            inside = True
        elif inside and entry:
            value = scalar(entry["value"])
            if entry["name"] in CARD:
                found.put(CARD[entry["name"]], value, source.at(number), source.near)
            elif entry["name"] == "mixed_precision_training" and value == "Native AMP":
                found.put("precision.compute", "fp16", source.at(number), source.near)
                found.put("precision.loss_scaling", "dynamic", source.at(number), source.near)
        elif inside and line.strip():
            return
