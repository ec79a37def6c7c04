"""`faultproxy proxy`: what a smaller model saves. docs/cost.md has the formulas, their sources, and what they are checked against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from faultproxy.analyzer.errors import InputError

if TYPE_CHECKING:
    from faultproxy.proxy.cost.shape import Shape


@click.group()
def proxy() -> None:
    """Plan the smallest model that can still fail the same way."""


# fmt: off
@proxy.command()
@click.argument("config", type=click.Path())
@click.option("--against", type=click.Path(), metavar="PROXY", help="Another config.json (or its folder): what is left of CONFIG in it.")
@click.option("--device", "device_name", default="h100", show_default=True, help="ascend-910b, ascend-a3-die, ascend-a3-chip, h20, a100, h100, or h200.")
@click.option("--devices", type=click.IntRange(1, 1 << 20), help="Devices of the trainer, instead of the fewest that fit.")
@click.option("--algorithm", type=click.Choice(("grpo", "ppo", "dapo", "reinforce")), default="grpo", show_default=True, help="PPO has a critic, PPO and GRPO a reference model.")
@click.option("--critic", type=click.Choice(("none", "shared", "separate")), help="The critic, where not the algorithm's own.")
@click.option("--reward-model", is_flag=True, help="The reward comes from a model of the policy's size.")
@click.option("--placement", type=click.Choice(("colocated", "partial", "disaggregated", "fused", "hybrid", "asynchronous")), default="colocated", show_default=True, help="How the stages share devices.")
@click.option("--offload", type=click.Choice(("optimizer", "none")), default="optimizer", show_default=True, help="What waits on the host.")
@click.option("--rollout", type=click.Choice(("bf16", "fp8")), default="bf16", show_default=True, help="Precision of the rollout's weights.")
@click.option("--sequence", nargs=2, type=click.IntRange(1, 1 << 24), default=(1024, 4096), show_default=True, metavar="PROMPT RESPONSE", help="Mean tokens of a prompt and a response.")
@click.option("--longest", type=click.IntRange(1, 1 << 24), default=1, help="Tokens of the longest response, where above the mean.")
@click.option("--batch", nargs=2, type=click.IntRange(1, 1 << 20), default=(256, 16), show_default=True, metavar="PROMPTS ROLLOUTS", help="Prompts a step, rollouts a prompt.")
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True, help="How the estimate is written.")
def cost(
    config: str, against: str | None, device_name: str, devices: int | None, algorithm: str, critic: str | None, reward_model: bool, placement: str, offload: str,
    rollout: str, sequence: tuple[int, int], longest: int, batch: tuple[int, int], format_: str,
) -> None:
    # fmt: on
    """Estimate parameters, memory, devices, and device-hours a step of the model in CONFIG.

    CONFIG is the config.json of a Hugging Face checkpoint, or the folder that holds it; no weights are read.

    \b
    Examples:
      faultproxy proxy cost Qwen3-30B-A3B/config.json --device ascend-a3-die
      faultproxy proxy cost original/ --against proxy/ --device h20 --format json
    """
    from faultproxy.proxy.cost.device import device
    from faultproxy.proxy.cost.estimate import Setting, document, estimate, formulas
    from faultproxy.proxy.cost.work import workload

    changes: dict[str, int | str | bool] = {"prompts": batch[0], "group": batch[1], "prompt": sequence[0], "response": sequence[1], "longest": longest, "reward_model": reward_model}  # fmt: skip
    work = workload(algorithm, **changes, **({"critic": critic} if critic else {}))
    setting = Setting(device(device_name), work, placement, offload, 1 if rollout == "fp8" else 2)
    found = [document(estimate(_shape(path), setting, devices)) for path in (config, against) if path is not None]
    if format_ == "json":
        from dataclasses import asdict

        import orjson

        body = {"schema": 1, "setting": asdict(setting), "original": found[0], "proxy": found[1] if against else None, "formulas": formulas()}  # fmt: skip
        click.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    from faultproxy.proxy.cost.show import render

    click.echo(render(found, setting, formulas()), nl=False)


def _shape(path: str) -> Shape:
    """The model of a config.json or of the folder that holds it."""
    from faultproxy.analyzer.ingest.facts.documents import json_object
    from faultproxy.analyzer.ingest.facts.model import is_model
    from faultproxy.proxy.cost.shape import shape_of

    try:
        target = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        config = json_object(target)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); check the path and its rights") from error
    if config is None or not is_model(config):
        raise InputError(
            f"{path}: is no model configuration; give the config.json of a Hugging Face checkpoint (an object with model_type and "
            "num_hidden_layers), or the folder that holds it"
        )
    try:
        return shape_of(config)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
