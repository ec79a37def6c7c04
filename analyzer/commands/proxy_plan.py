"""`faultproxy proxy plan`: the smallest model that can still fail the same way. docs/plan.md has the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from faultproxy.analyzer.catalogue import CAUSES
from faultproxy.analyzer.commands import FORMAT
from faultproxy.analyzer.commands.workload import read_config, workload
from faultproxy.analyzer.errors import InputError

if TYPE_CHECKING:
    from faultproxy.proxy.plan.question import Degrees, Question


# fmt: off
@click.command()
@click.argument("config", type=click.Path())
@click.option("--diagnosis", metavar="REPORT", help="A report of `analyze --format json` (-: stdin); of several runs the first that failed.")
@click.option("--factor", type=click.Choice(("routing", "depth", "precision", "none", "undetermined")), help="What the fault rests on, instead of the diagnosis's.")
@click.option("--type", "failure_type", metavar="FAILURE_TYPE", help="What failed, instead of the diagnosis's.")
@click.option("--layer", type=click.IntRange(0, 9999), help="The first bad layer, from 0.")
@click.option("--expert", "experts", multiple=True, metavar="L:IDS", help="Experts to keep in a layer, such as 31:5,7 (any:5 in each); may be repeated.")
@click.option("--cause", "causes", multiple=True, type=click.Choice(CAUSES), help="A likely cause; `operator` keeps kernels as they are. May be repeated.")
@click.option("--source", metavar="WHERE", help="Where the weights are, for the build command: a folder or URL; without it that of CONFIG.")
@click.option("--layout", metavar="TP,PP,CP,EP", help="Parallel degrees of the original's trainer.")
@click.option("--devices", type=click.IntRange(1, 1 << 20), help="Budget: devices.")
@click.option("--memory", type=click.FloatRange(1, 10_000), metavar="GB", help="Memory of a device, instead of the device's own.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Budget: seconds of a step.")
@workload
@FORMAT
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file instead of stdout.")
@click.option("--force", is_flag=True, help="Overwrite --output when it exists.")
@click.pass_context
def plan(
    context: click.Context, /, config: str, diagnosis: str | None, factor: str | None, failure_type: str | None, layer: int | None, experts: tuple[str, ...],
    causes: tuple[str, ...], source: str | None, layout: str | None, devices: int | None, memory: float | None, seconds: float | None, format_: str, output: str | None,
    force: bool, **given: Any,
) -> None:
    # fmt: on
    """Plan the smallest model that can still fail as the one in CONFIG did.

    CONFIG is the config.json of a Hugging Face checkpoint, the folder that holds it, or its URL; no weights are read. What failed
    is taken from a diagnosis, or told by hand; the first plan is the recommended one.

    \b
    Examples:
      analyze job_dir/ --format json -o diagnosis.json
      faultproxy proxy plan Qwen3-30B-A3B/ --diagnosis diagnosis.json --devices 8
      faultproxy proxy plan Qwen3-30B-A3B/ --factor depth --layer 11 --source hf://Qwen/Qwen3-30B-A3B
    """
    from dataclasses import asdict
    from math import isfinite

    from faultproxy.analyzer.cli import emit
    from faultproxy.proxy.cost.setting import setting
    from faultproxy.proxy.plan.beside import documents, source_of
    from faultproxy.proxy.plan.plan import plans
    from faultproxy.proxy.plan.price import Budget
    from faultproxy.proxy.plan.question import stated

    question = _told(_question(diagnosis), factor, failure_type, layer, experts, causes, layout)
    known, usual = stated(question.facts), click.core.ParameterSource.DEFAULT
    given |= {name: value for name, value in known.items() if context.get_parameter_source(name) is usual}
    for name, value in (("memory", memory), ("seconds", seconds)):
        if value is not None and not isfinite(value):
            raise InputError(f"--{name} {value}: give a number")
    used = setting(given, memory)
    where, note = source_of(config, question.facts) if source is None else (source, "")
    model = read_config(config)
    if diagnosis is not None and question.failure_type is None:
        click.echo(f"{diagnosis} names no failure, so what failed is left open; --type and --factor tell it", err=True)
    try:
        made, note = documents(plans(model, question, used, Budget(devices, seconds)), where, note)
    except InputError as error:
        raise InputError(f"{config}: {error}") from error
    if format_ == "json":
        import orjson

        asked = {name: value for name, value in asdict(question).items() if name not in ("facts", "experts")}
        asked["experts"] = {str(at): ids for at, ids in question.experts.items()}
        body = {"schema": 1, "question": asked, "setting": asdict(used), "source": where, "note": note or None, "plans": made}
        emit(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode() + "\n", output, force)
        return
    from faultproxy.proxy.plan.show import priced, render

    notes = [f"costs are of {priced(used, question.devices)}"]
    notes += [note] if note else []
    emit(render(made, notes), output, force)


def _question(diagnosis: str | None) -> Question:
    from faultproxy.proxy.plan.question import FACTORS, Question, asked, needs

    if diagnosis is None:
        return Question()
    from faultproxy.analyzer.report.given import load

    reports = load(diagnosis)
    try:
        found = asked(next((report for report in reports if report["verdict"] == "failed"), reports[0]))
        numbers = [found.layer, *found.experts, *(n for ids in found.experts.values() for n in ids)]
        sound = all(n is None or (type(n) is int and n >= 0) for n in numbers) and isinstance(found.facts, dict)
        sound &= found.factor in FACTORS and found.failure_type in (None, *needs())
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise InputError(f"{diagnosis}: holds none of schema 1 (docs/report.md); give a report of `analyze --format json`")
    return found


def _told(question: Question, factor: str | None, failure_type: str | None, layer: int | None, experts: tuple[str, ...], causes: tuple[str, ...], layout: str | None) -> Question:  # fmt: skip
    """The question with what was told by hand."""
    from faultproxy.analyzer.errors import no_such
    from faultproxy.proxy.plan.question import needs
    from faultproxy.proxy.recipe import read_by_layer, read_numbers

    if failure_type is not None and failure_type not in needs():
        raise no_such("failure type", failure_type, needs(), "`faultproxy rules list` shows all")
    told: dict[str, Any] = {"factor": factor, "failure_type": failure_type, "layer": layer, "causes": causes or None, "degrees": layout and _degrees(layout)}
    held = replace(question, **{name: value for name, value in told.items() if value is not None})
    named: dict[int | None, tuple[int, ...]] = {**held.experts}
    anywhere = [text.removeprefix("any:") for text in experts if text.startswith("any:")]
    named |= {None: read_numbers(",".join(anywhere))} if anywhere else {}
    named |= {at: ids for at, ids in read_by_layer([text for text in experts if not text.startswith("any:")]).items()}
    return replace(held, experts=named)


def _degrees(layout: str) -> Degrees:
    from faultproxy.proxy.plan.question import Degrees

    parts = layout.split(",")
    if len(parts) != 4 or not all(part.isdecimal() and 0 < int(part) <= 4096 for part in parts if len(part) < 9) or max(map(len, parts)) > 8:
        raise InputError(f"--layout {layout[:60]}: write four numbers from 1, TP,PP,CP,EP, such as 2,4,1,8")
    return Degrees(*map(int, parts))
