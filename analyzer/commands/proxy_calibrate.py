"""`faultproxy proxy calibrate`: what texts do in a model's routers, as a table for `proxy build --calibration`. docs/pruning.md."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from faultproxy.analyzer.commands import FORMAT
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible


# fmt: off
@click.command()
@click.argument("model", type=click.Path())
@click.argument("texts", type=click.Path(), nargs=-1, required=True, metavar="TEXT...")
@click.option("--output", "-o", default="calibration.parquet", show_default=True, metavar="FILE", help="Where the table goes.")
@click.option("--tokens", type=click.IntRange(1, 1 << 30), default=1 << 18, show_default=True, help="Stop after as many tokens.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, or npu.")
@click.option("--force", is_flag=True, help="Overwrite FILE when it exists.")
@FORMAT
def calibrate(model: str, texts: tuple[str, ...], output: str, tokens: int, device: str, force: bool, format_: str) -> None:
    # fmt: on
    """Count what TEXT does in the routers of MODEL, to choose experts by.

    MODEL is the folder of a Hugging Face checkpoint with its tokenizer; it is loaded whole on the device. TEXT is plain
    text, or JSON lines (.jsonl) with text, prompt, response, or messages; take what the failing run was trained on. Code
    that comes with a checkpoint is not run. Needs the extra `proxy`.

    \b
    Examples:
      faultproxy proxy calibrate OLMoE-1B-7B/ prompts.jsonl -o table.parquet
      faultproxy proxy build OLMoE-1B-7B/ proxy/ --experts 32 --calibration table.parquet
    """
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise InputError(f"this needs {' and '.join(missing)}, not installed here; run pip install 'faultproxy[proxy]'")
    from faultproxy.proxy.choose import collect
    from faultproxy.proxy.choose.calibration import write_calibration
    from faultproxy.proxy.run.device import device as find

    if Path(output).exists() and not force:
        raise InputError(f"{output}: exists already; choose another name or pass --force")
    target = find(device)
    loaded, tokenizer = _load(model)
    loaded = loaded.to(target)
    every = (text for name in texts for text in collect.read_texts(Path(name)))
    table = collect.collect(loaded, collect.windows(tokenizer, every, tokens, target), visible(model, 200))
    write_calibration(table, output, force)
    experts = {str(n): len(found.frequency) for n, found in table.layers.items()}
    silent = {str(n): int((found.frequency == 0).sum()) for n, found in table.layers.items()}
    if format_ == "json":
        import orjson

        body = {"schema": 1, "output": output, "tokens": table.tokens, "experts": experts, "without_tokens": silent}
        click.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    dead, most = sum(silent.values()), sum(experts.values())
    click.echo(
        f"{visible(output, 200)}: {table.tokens:,} tokens in {len(experts)} layers; {dead} of {most} experts got none"
    )
    if dead * 10 > most:
        click.echo("More than a tenth of the experts got no token; give more text, or text like that of the failing run.", err=True)


def _load(path: str) -> tuple[Any, Any]:
    """The model in the number format it is stored in, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if not (Path(path) / "config.json").is_file():
        raise InputError(f"{visible(path, 200)}: no config.json in it; give the folder of a Hugging Face checkpoint")
    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, trust_remote_code=False, dtype="auto")
        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{visible(path, 200)}: cannot be loaded as a causal language model ({visible(str(error), 300)})") from error
    return model.eval(), tokenizer
