"""`faultproxy hook`: what a platform runs on every job that ended."""

from __future__ import annotations

import re
from typing import Any

import click

from faultproxy.analyzer.hook.request import Request

PLATFORMS = {"slurm": ".sh", "torchrun": ".sh", "kubernetes": ".yaml", "volcano": ".yaml", "ray": ".sh"}


class _Calm(click.Command):
    """A command whose wrong options fail no platform: they are said, and the exit code is 0 unless --strict stands among them."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:  # fmt: skip
        """Parse; what cannot be parsed is said."""
        strict = "--strict" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if strict:
                raise
            click.echo(f"faultproxy hook: nothing was analysed: {error.format_message()}", err=True)
            raise click.exceptions.Exit(0) from error


@click.group()
def hook() -> None:
    """Diagnose every job that ends: run by the platform, inside bounds, without ever failing it."""


@hook.command(cls=_Calm)
@click.option("--job-dir", required=True, metavar="D", help="Folder that the job wrote its logs to.")
@click.option("--exit-code", metavar="N", help="Exit code of the job, where the platform knows it.")
@click.option(
    "--job-id", metavar="I", default="", help="Name of the job on the platform; the folder's name by default."
)
@click.option("--lake", metavar="URL", default="", help="Add the diagnosis to this lake of incidents (a folder, or any fsspec URL).")  # fmt: skip
@click.option("--out", metavar="DIR", default="", help="Folder for the reports.  [default: D/faultproxy]")
@click.option("--strict", is_flag=True, help="Exit with the codes above instead of always 0.")
@click.option("--time-limit", type=click.FloatRange(0, 86_400, min_open=True), default=Request.seconds, show_default=True, metavar="S", help="Seconds for the analysis, by the clock on the wall.")  # fmt: skip
@click.option("--memory-limit", type=click.IntRange(1, 1 << 24), default=Request.memory >> 20, show_default=True, metavar="M", help="MiB for the analysis.")  # fmt: skip
def run(job_dir: str, exit_code: str | None, strict: bool, time_limit: float, memory_limit: int, **names: Any) -> None:
    """Analyse the job that left folder D, and write diagnosis.json, report.html, and ticket.md.

    Logs of all ranks and nodes, tracker folders, configurations, and the config.json of checkpoints are found by
    themselves. The files are written whole or not at all; a second run writes the same bytes. One line on stderr says
    what happened. The exit code is 0 whatever happens; where nothing could be judged diagnosis.json says why.

    \b
    Examples:
      faultproxy hook run --job-dir /jobs/1234
      faultproxy hook run --job-dir "$JOB_DIR" --exit-code $? --job-id "$SLURM_JOB_ID" --lake /shared/incidents
      faultproxy hook run --job-dir . --time-limit 300 --memory-limit 2048 --strict

    \b
    Exit status with --strict:
      0  done, whatever the verdict
      2  bad option, nothing in D could be read, or no folder could be written
      3  a limit was reached, or a bug in faultproxy
      130  stopped by a signal
    """
    from faultproxy.analyzer.hook.run import run as run_hook

    # What a platform passes for a code that it does not know is no reason to analyse nothing.
    code = int(exit_code) if exit_code and re.fullmatch(r"\s*-?\d{1,9}\s*", exit_code) else None
    request = Request(job_dir, exit_code=code, seconds=time_limit, memory=memory_limit << 20, **names)
    ended = run_hook(request)
    raise click.exceptions.Exit(ended if strict else 0)


@hook.command()
@click.argument("platform", type=click.Choice(tuple(PLATFORMS)), metavar="PLATFORM")
def install(platform: str) -> None:
    """Print what to put where, so that PLATFORM (slurm, torchrun, kubernetes, volcano, ray) runs the hook.

    \b
    Examples:
      faultproxy hook install slurm > /etc/slurm/epilog.d/50-faultproxy.sh
      faultproxy hook install kubernetes > faultproxy-job.yaml
    """
    from importlib.resources import files

    snippet = files("faultproxy.analyzer.hook").joinpath("snippets", platform + PLATFORMS[platform])
    click.echo(snippet.read_text("utf-8"), nl=False)
