"""`faultproxy proxy build` and `proxy check`: cut a proxy out of a checkpoint, and check one. docs/build.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faultproxy.analyzer.commands import FORMAT
from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.recipe import METHODS, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultproxy.proxy.build import Built
    from faultproxy.proxy.recipe import Recipe


# fmt: off
@click.command()
@click.argument("source")
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--layers", metavar="NUMBERS", help="Layers to keep, such as 0-12,31; all without it.")
@click.option("--experts", type=click.IntRange(1, 100_000), metavar="N", help="Experts to keep in each layer; all without it.")
@click.option("--budget", "budgets", multiple=True, metavar="L:N", help="Experts to keep in layer L, where layers may differ; may be repeated.")
@click.option("--keep", multiple=True, metavar="L:IDS", help="Experts of layer L to keep whatever their score, such as 31:5,7; may be repeated.")
@click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True, help="How the rest is chosen.")
@click.option("--calibration", metavar="FILE", help="A table of `proxy calibrate` to choose by.")
@click.option("--weights", type=click.Choice(WEIGHTS), default="original", show_default=True, help="Copy the weights, or draw new ones with each tensor's mean and deviation.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="For --weights random and --method random.")
@click.option("--diagnosis", metavar="REPORT", help="Name this report, by its SHA-256, in proxy.json.")
@click.option("--plan", metavar="FILE", help="Build what FILE plans, a JSON of `proxy plan` or a report of `analyze`, in place of the options above.")
@click.option("--number", type=click.IntRange(1, 1000), default=1, show_default=True, help="Which plan of --plan FILE.")
@click.option("--force", is_flag=True, help="Replace another proxy at OUT.")
@FORMAT
def build(
    source: str, out: str, layers: str | None, experts: int | None, budgets: tuple[str, ...], keep: tuple[str, ...], method: str, calibration: str | None,
    weights: str, seed: int, diagnosis: str | None, plan: str | None, number: int, force: bool, format_: str,
) -> None:
    # fmt: on
    """Cut layers and experts out of the checkpoint SOURCE into the new folder OUT.

    SOURCE is a folder, a .safetensors file, or a URL (https://HOST/MODEL, s3://BUCKET/MODEL, hf://ORG/NAME@REVISION; extra
    `remote`), of which only what is kept is fetched. Bytes are copied from shard to shard: no model is loaded, and memory
    does not grow with it. Interrupted at any moment, the same command goes on; OUT appears when it is complete.

    \b
    Examples:
      faultproxy proxy build Qwen3-30B-A3B/ proxy/ --experts 32
      faultproxy proxy build hf://Qwen/Qwen3-30B-A3B proxy/ --layers 0-11 --keep 7:3,90 --experts 64
      faultproxy proxy build Qwen3-30B-A3B/ proxy/ --layers 0-3 --experts 16 --weights random --seed 1
      faultproxy proxy build Qwen3-30B-A3B/ proxy/ --plan plans.json --number 2
    """
    from faultproxy.analyzer.report.clean import encodable
    from faultproxy.proxy.build import build as make
    from faultproxy.proxy.checkpoint import read_checkpoint
    from faultproxy.proxy.recipe import Recipe, read_by_layer, read_numbers
    from faultproxy.proxy.source import open_source

    counts = read_by_layer(budgets)
    if many := [layer for layer, found in counts.items() if len(found) != 1]:
        raise InputError(f"--budget {many[0]}:...: write LAYER:COUNT, such as 31:16")
    each, chosen = {layer: found[0] for layer, found in counts.items()}, read_numbers(layers) if layers is not None else ()
    recipe = Recipe(chosen, experts, each, read_by_layer(keep), method, weights, seed)
    if plan is not None:
        if recipe != Recipe():
            raise InputError("--plan says what to keep and how; leave out the options of the recipe, or --plan")
        recipe = _planned(plan, number)
    elif experts is None and not each and (calibration or keep or method != "auto"):
        raise InputError("--calibration, --keep, and --method choose among experts; say with --experts N how many a layer keeps")
    table = None
    if calibration is not None:
        from faultproxy.proxy.choose.calibration import read_calibration

        table = read_calibration(calibration)
    given = {"calibration": calibration, "diagnosis": diagnosis, "plan": plan}
    provenance = {what: {"sha256": _sha256(Path(path))} for what, path in given.items() if path is not None}
    checkpoint = read_checkpoint(open_source(source), weightless=recipe.weights == "random")
    try:
        made = make(checkpoint, recipe, Path(out), table, provenance, force, _progress)
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on from here", err=True)
        raise
    document = {"out": encodable(str(made.out)), "status": made.status, "notes": list(made.notes), "proxy": made.document}
    _write(document if format_ == "json" else _text(made, source, out))


@click.command()
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--source", metavar="WHERE", help="What it was cut from: compare bytes with it, at 64 places.")
@click.option("--all", "everything", is_flag=True, help="Compare every byte with --source.")
@FORMAT
def check(out: str, source: str | None, everything: bool, format_: str) -> None:
    """Check that the folder OUT is the proxy that `proxy build` made.

    \b
    Examples:
      faultproxy proxy check proxy/
      faultproxy proxy check proxy/ --source Qwen3-30B-A3B/ --all
    """
    from dataclasses import asdict

    from faultproxy.proxy.build import verify
    from faultproxy.proxy.checkpoint import read_checkpoint
    from faultproxy.proxy.source import open_source

    if everything and source is None:
        raise InputError("--all compares with the source; give --source WHERE too")
    found = verify(Path(out), None if source is None else read_checkpoint(open_source(source)), everything)
    compared = f", {found.compared:,} bytes of weights equal to the source's" if source else "; --source WHERE compares its weights"
    text = f"{out} is whole: {found.files} files, {found.tensors} tensors{compared}"
    _write(asdict(found) if format_ == "json" else text)


def _planned(path: str, number: int) -> Recipe:
    """The recipe of a plan in the JSON of `proxy plan` or in a report."""
    from faultproxy.proxy.checkpoint import read_json
    from faultproxy.proxy.recipe import read_recipe

    body = read_json(Path(path))
    proxy = body.get("proxy")
    held = body.get("plans") or ([proxy, *(proxy.get("others") or ())] if isinstance(proxy, dict) else [])
    if not isinstance(held, list) or number > len(held) or not isinstance(held[number - 1], dict):
        many = len(held) if isinstance(held, list) else 0
        raise InputError(f"{path} has {many} plans, not {number}; write them with `faultproxy proxy plan --format json -o FILE`")
    try:
        return read_recipe(held[number - 1].get("recipe"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _sha256(path: Path) -> str:
    """The SHA-256 of a file; of those of its files for a folder, which a canonical trace may be."""
    import hashlib

    try:
        if path.is_dir():
            inner = [f"{file.relative_to(path)} {_sha256(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
            return hashlib.sha256("\n".join(inner).encode()).hexdigest()
        if not path.is_file():
            raise InputError(f"{path}: is no regular file; give the file itself")
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its rights") from error


def _text(made: Built, source: str, out: str) -> str:
    from shlex import quote

    from faultproxy.analyzer.report.clean import visible

    def short(count: int, unit: Sequence[str]) -> str:
        return f"{count / 1e9:.2f} {unit[0]}" if count >= 1e8 else f"{count / 1e6:.2f} {unit[1]}"

    proxy = made.document
    before, after = proxy["parameters"]["source"], proxy["parameters"]["proxy"]
    kept = sorted({len(ids) for ids in proxy["kept"]["experts"].values()})
    said = {"built": "Built", "resumed": "Finished what was begun:", "there": "Already there:"}[made.status]
    head = f"{said} {out}, {short(before, 'BM') + ' -> ' if before else ''}{short(after, 'BM')} parameters"
    head += f", {short(proxy['bytes'], ('GB', 'MB'))} in {proxy['shards']} shard{'s' * (proxy['shards'] != 1)}"
    head += f"; {len(proxy['kept']['layers'])} of {proxy['source']['layers']} layers"
    lines = [head]
    if kept:
        lines[0] += f", {' to '.join(map(str, {kept[0]: 0, kept[-1]: 0}))} of {proxy['source']['experts']} experts"
        lines.append(f"experts: {visible(proxy['why'])}")
    lines += [f"warning: {visible(warning)}" for warning in (*proxy["warnings"], *made.notes)]
    cost = quote(out) if "://" in source else f"{quote(source)} --against {quote(out)}"
    lines.append(f"next: give {out} to your trainer as the model's path; `faultproxy proxy cost {cost}` has what it needs")
    return "\n".join(lines)


def _write(document: dict[str, Any] | str) -> None:
    import orjson

    from faultproxy.analyzer.cli import emit

    if not isinstance(document, str):
        document = orjson.dumps({"schema": 1, **document}, option=orjson.OPT_INDENT_2).decode()
    emit(document + "\n", None, False)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB", err=True, nl=done == total)
