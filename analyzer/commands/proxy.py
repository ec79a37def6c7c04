"""`faultproxy proxy`: what a smaller model saves. docs/cost.md has the formulas, their sources, and what they are checked against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faultproxy.analyzer.commands import FORMAT
from faultproxy.analyzer.commands.proxy_build import build, check
from faultproxy.analyzer.commands.proxy_calibrate import calibrate
from faultproxy.analyzer.commands.proxy_plan import plan
from faultproxy.analyzer.commands.workload import read_config, workload
from faultproxy.analyzer.errors import InputError

if TYPE_CHECKING:
    from faultproxy.proxy.cost.shape import Shape


@click.group()
def proxy() -> None:
    """Plan, build, and price the smallest model that can still fail the same way."""


@proxy.command()
@click.argument("config", type=click.Path())
@click.option(
    "--against",
    type=click.Path(),
    metavar="PROXY",
    help="Another config.json (or its folder): what is left of CONFIG in it.",
)
@click.option(
    "--devices", type=click.IntRange(1, 1 << 20), help="Devices of the trainer, instead of the fewest that fit."
)
@workload
@click.option("--formulas", "explain", is_flag=True, help="Print each formula with its source, below the tables.")
@FORMAT
def cost(config: str, against: str | None, devices: int | None, explain: bool, format_: str, **given: Any) -> None:
    """Estimate parameters, memory, devices, and device-hours a step of the model in CONFIG.

    CONFIG is the config.json of a Hugging Face checkpoint, the folder that holds it, or its URL. No weights are read; where
    they lie beside it, their headers are, and `counted` is the number of parameters in them.

    \b
    Examples:
      faultproxy proxy cost Qwen3-30B-A3B/config.json --device ascend-a3-die
      faultproxy proxy cost original/ --against proxy/ --device h20 --format json
    """
    from faultproxy.proxy.cost.estimate import document, estimate, formulas
    from faultproxy.proxy.cost.setting import setting

    used = setting(given)
    found = [
        document(estimate(_shape(path), used, devices), _counted(path))
        for path in (config, against)
        if path is not None
    ]
    if format_ == "json":
        from dataclasses import asdict

        import orjson

        body = {"schema": 1, "setting": asdict(used), "original": found[0], "proxy": found[1] if against else None, "formulas": formulas()}  # fmt: skip
        click.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    from faultproxy.proxy.cost.show import render

    click.echo(render(found, used, formulas() if explain else {}), nl=False)


def _shape(path: str) -> Shape:
    """The model of a config.json or of the folder that holds it."""
    from faultproxy.proxy.cost.shape import shape_of

    config = read_config(path)
    try:
        return shape_of(config)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _counted(path: str) -> int | None:
    """Parameters by the headers of the weights beside a configuration; None where there are none, or none that can be read."""
    from faultproxy.proxy.build.layout import parameters
    from faultproxy.proxy.checkpoint import read_checkpoint
    from faultproxy.proxy.source import open_source

    if "://" not in path and not Path(path).is_dir():
        return None
    try:
        stored = read_checkpoint(open_source(path), weightless=True).tensors.values()
    except InputError as error:
        click.echo(f"parameters are not counted: {error}", err=True)
        return None
    return parameters((tensor.name, tensor.dtype, tensor.shape) for tensor in stored) or None


proxy.add_command(plan)
proxy.add_command(build)
proxy.add_command(check)
proxy.add_command(calibrate)
