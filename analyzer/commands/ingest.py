"""`faultproxy ingest`: keep a trace in canonical form."""

from __future__ import annotations

from pathlib import Path

import click

from faultproxy.analyzer.commands import count
from faultproxy.analyzer.errors import InputError


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="OUT",
    help="NAME.parquet (one file), NAME.trace (a folder with events and rollup), or DIR/ (a folder a run, in it).",
)
@click.option("--force", is_flag=True, help="Overwrite OUT when it exists.")
def ingest(traces: tuple[str, ...], output: str, force: bool) -> None:
    """Write the run that left TRACE (a file, a folder, or - for stdin) as a canonical trace, see docs/trace.md.

    \b
    faultproxy ingest run.log -o run.parquet
    faultproxy ingest job_dir/ -o job.trace
    faultproxy ingest runs/*.log -o traces/
    """
    from faultproxy.analyzer.canonical import Written, write_file, write_folder
    from faultproxy.analyzer.ingest import read

    many = output.endswith("/")
    if not many and Path(output).suffix not in (".parquet", ".trace"):
        raise InputError(f"{output}: got no known form; allowed are NAME.parquet, NAME.trace, and DIR/; choose one")
    found = read(list(traces))
    if many:
        names = [Path(trace.run).name.removesuffix(".trace") for trace in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"{output}: runs of one name ({', '.join(twice)}) cannot share a folder; ingest one at a time"
            )
        Path(output).mkdir(parents=True, exist_ok=True)
        targets = [Path(output) / f"{name}.trace" for name in names]
    elif len(found) > 1:
        runs = ", ".join(trace.run for trace in found[:5])
        raise InputError(
            f"{output}: got {len(found)} runs ({runs}), it holds one; pass DIR/ for a folder a run, or ingest one at a time"
        )
    else:
        targets = [Path(output)]
    for trace, target in zip(found, targets, strict=True):
        written: Written = (write_file if target.suffix == ".parquet" else write_folder)(trace, target, force)
        left = f", {written.dropped_events} more left out (NAME.trace keeps all)" if written.dropped_events else ""
        click.echo(
            f"{target}: run {trace.run}, {count(written.values, 'value')}, {count(written.events, 'event')}{left}"
            f"{', rollup' if written.rollup else ''}, {count(len(trace.warnings), 'warning')}",
            err=True,
        )
