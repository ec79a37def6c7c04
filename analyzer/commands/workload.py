"""Options of the commands that estimate a step of a model: device and workload; and how its config.json is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.setting import DEFAULTS

_F = TypeVar("_F", bound=Callable[..., Any])

# fmt: off
_OPTIONS = (
    click.option("--device", "device_name", default=DEFAULTS["device_name"], show_default=True, help="ascend-910b, ascend-a3-die, ascend-a3-chip, h20, a100, h100, or h200."),
    click.option("--algorithm", type=click.Choice(("grpo", "ppo", "dapo", "reinforce")), default=DEFAULTS["algorithm"], show_default=True, help="PPO has a critic, PPO and GRPO a reference model."),
    click.option("--critic", type=click.Choice(("none", "shared", "separate")), help="The critic, where not the algorithm's own."),
    click.option("--reward-model", is_flag=True, help="The reward comes from a model of the policy's size."),
    click.option("--placement", type=click.Choice(("colocated", "partial", "disaggregated", "fused", "hybrid", "asynchronous")), default=DEFAULTS["placement"], show_default=True, help="How the stages share devices."),
    click.option("--offload", type=click.Choice(("optimizer", "none")), default=DEFAULTS["offload"], show_default=True, help="What waits on the host."),
    click.option("--rollout", type=click.Choice(("bf16", "fp8")), default=DEFAULTS["rollout"], show_default=True, help="Precision of the rollout's weights."),
    click.option("--sequence", nargs=2, type=click.IntRange(1, 1 << 24), default=DEFAULTS["sequence"], show_default=True, metavar="PROMPT RESPONSE", help="Mean tokens of a prompt and a response."),
    click.option("--longest", type=click.IntRange(1, 1 << 24), default=DEFAULTS["longest"], help="Tokens of the longest response, where above the mean."),
    click.option("--batch", nargs=2, type=click.IntRange(1, 1 << 20), default=DEFAULTS["batch"], show_default=True, metavar="PROMPTS ROLLOUTS", help="Prompts a step, rollouts a prompt."),
)
# fmt: on


def workload(command: _F) -> _F:
    """The options of `proxy.cost.setting`, under its names."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_config(path: str) -> dict[str, Any]:
    """The model configuration in a config.json, in the folder that holds it, or at the URL of a checkpoint."""
    from faultproxy.analyzer.ingest.facts.documents import json_object
    from faultproxy.analyzer.ingest.facts.model import is_model

    try:
        if "://" in path:
            from faultproxy.proxy.checkpoint import read_config as fetched
            from faultproxy.proxy.source import open_source

            source = open_source(path)
            path = source.name  # without a password or signature
            config: dict[str, Any] | None = fetched(source)
        else:
            file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
            file.stat()
            config = json_object(file)
    except (OSError, ValueError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        raise InputError(
            f"{path}: no model configuration can be read there ({said}); give a config.json, or the folder that holds it"
        ) from error
    if config is None or not is_model(config):
        raise InputError(
            f"{path}: is no model configuration; give the config.json of a Hugging Face checkpoint (an object with model_type and "
            "num_hidden_layers), or the folder that holds it"
        )
    return config
