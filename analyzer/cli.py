"""The commands. Each parses, calls, and prints; nothing is decided here. Heavy imports wait inside the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from faultproxy import __version__
from faultproxy.analyzer.errors import FaultproxyError, InputError

FORMATS = ("text", "json", "markdown")


def guarded(command: click.Command) -> Callable[[], None]:
    """Wrap a command with the exit codes of DESIGN 6: 2 for bad input, 3 for our own bug, never 1 for a crash."""

    def main() -> None:
        try:
            command.main(standalone_mode=False)
        except click.exceptions.Exit as exit_:
            sys.exit(exit_.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(2)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except InputError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(2)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)
        except FaultproxyError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(3)
        except Exception as error:
            import traceback

            traceback.print_exc()
            click.echo(f"error: this is a bug in faultproxy {__version__} ({type(error).__name__}); please report it with the lines above", err=True)
            sys.exit(3)

    return main


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True, help="Report format.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write the report here instead of stdout.")
@click.option("--force", is_flag=True, help="Overwrite --output when it exists.")
@click.option("--fail-on", type=click.Choice(("failed", "inconclusive", "never")), default="never", show_default=True, help="Exit 1 when a verdict is this (inconclusive includes failed).")
@click.version_option(__version__, prog_name="faultproxy")
def analyze(traces: tuple[str, ...], format_: str, output: str | None, force: bool, fail_on: str) -> None:
    """Say what failed in the run that left TRACE: a file, a folder, or - for stdin.

    \b
    analyze run.log
    analyze job_dir/ --format json
    cat run.log | analyze - --fail-on failed
    """
    from faultproxy.analyzer.diagnose import diagnose
    from faultproxy.analyzer.ingest import read
    from faultproxy.analyzer.report.document import document

    reports = [document(diagnose(trace)) for trace in read(list(traces))]
    emit(_render(reports, format_), output, force)
    bad = {"failed": ("failed",), "inconclusive": ("failed", "inconclusive"), "never": ()}[fail_on]
    if any(report["verdict"] in bad for report in reports):
        raise click.exceptions.Exit(1)


def _render(reports: list[dict[str, Any]], format_: str) -> str:
    if format_ == "json":
        import orjson

        return orjson.dumps(reports[0] if len(reports) == 1 else reports, option=orjson.OPT_INDENT_2).decode() + "\n"
    if format_ == "markdown":
        from faultproxy.analyzer.report.markdown import render as markdown

        return markdown(reports)
    from faultproxy.analyzer.report.text import render

    return render(reports)


def emit(text: str, output: str | None, force: bool) -> None:
    """Write a report to stdout or, atomically, to a file that does not exist yet (unless forced)."""
    if output is None:
        click.echo(text, nl=False)
        return
    from faultproxy.analyzer.files import write_atomic

    write_atomic(output, text.encode(), force)


@click.group()
@click.version_option(__version__, prog_name="faultproxy")
def faultproxy() -> None:
    """Name what failed in a large RL run, from what it left behind."""


faultproxy.add_command(analyze)

analyze_main = guarded(analyze)
main = guarded(faultproxy)
