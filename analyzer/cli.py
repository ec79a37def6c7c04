"""The commands. Each parses, calls, and prints; nothing is decided here. Heavy imports wait inside the commands."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from faultproxy import __version__
from faultproxy.analyzer.errors import FaultproxyError, InputError
from faultproxy.analyzer.report.clean import encodable, visible

if TYPE_CHECKING:
    from faultproxy.analyzer.report.text import Painter
    from faultproxy.analyzer.trace import Trace

FORMATS = ("text", "json", "markdown", "html", "sarif")
#: Verdicts that make `--fail-on` exit 1.
FAIL_ON: dict[str, tuple[str, ...]] = {"failed": ("failed",), "inconclusive": ("failed", "inconclusive"), "never": ()}
#: Objects made between two collections (700 is what Python starts with).
_GARBAGE = 200_000
DONE, MATCHED, BAD_INPUT, OUR_BUG, INTERRUPTED = 0, 1, 2, 3, 130


def guarded(command: click.Command, name: str) -> Callable[[], None]:
    """Wrap a command with the exit codes of docs/report.md: 2 for bad input, 3 for our own bug, never 1 for a crash.

    It does not go through click's `main`, which turns a closed pipe into exit 1.
    """

    def main() -> None:
        # A short run builds many objects and frees none: collecting among them is 4 % of a start and of a long log.
        gc.set_threshold(_GARBAGE)
        sys.exit(_run(command, name))

    return main


def _run(command: click.Command, name: str) -> int:
    try:
        with command.make_context(name, sys.argv[1:]) as context:
            command.invoke(context)
        return DONE
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except InputError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    except FaultproxyError as error:
        _say(f"error: {error}")
        return OUR_BUG
    except BrokenPipeError:  # whoever closed the pipe has what they wanted
        _discard_stdout()
        return DONE
    except Exception as error:  # noqa: BLE001 - exit 3 for whatever it is, with its traceback
        import traceback

        _say(traceback.format_exc())
        kind = type(error).__name__
        _say(f"error: this is a bug in faultproxy {__version__} ({kind}); please report it with the lines above")
        return OUR_BUG


def _say(message: str) -> None:
    """Print to stderr, whatever file names and log text are in it; a closed stderr changes no exit code."""
    with suppress(OSError):
        click.echo("\n".join(visible(line) for line in message.splitlines()), err=True)


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How the report is written.",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), help="Write the report to this file instead of stdout."
)
@click.option("--force", is_flag=True, help="Overwrite --output when it exists.")
@click.option(
    "--fail-on",
    type=click.Choice(tuple(FAIL_ON)),
    default="never",
    show_default=True,
    help="Exit 1 on this verdict; inconclusive includes failed.",
)
@click.option(
    "--model-config",
    type=click.Path(),
    metavar="CONFIG",
    help="The model's config.json (or its folder), where none lies beside TRACE.",
)
@click.option(
    "--against",
    metavar="GOOD_RUN",
    help="A run that went well (file, folder, canonical trace): compare each TRACE with it.",
)
@click.option(
    "--device", metavar="DEVICE", help="The device that a proxy is planned for, such as h20 or ascend-a3-die."
)
@click.option("--budget", type=click.IntRange(1, 1 << 20), metavar="DEVICES", help="The devices that a proxy may take.")
@click.version_option(__version__, prog_name="faultproxy")  # fmt: skip
def analyze(
    traces: tuple[str, ...],
    format_: str,
    output: str | None,
    force: bool,
    fail_on: str,
    model_config: str | None,
    against: str | None,
    device: str | None,
    budget: int | None,
) -> None:
    """Say what failed in the run that left TRACE behind.

    TRACE is a file, a folder, or - for stdin: console logs, JSON lines, CSV, trainer_state.json, plain or as .gz or
    .zst. A folder is one run; sub-folders that are runs of their own get a diagnosis each. One diagnosis is one JSON
    object, several are an array.

    \b
    Examples:
      analyze run.log
      analyze job_dir/ --format json --output diagnosis.json
      kubectl logs trainer-0 | analyze - --fail-on failed
      analyze attempt_*/ --format markdown
      analyze job_dir/ --format html --output report.html
      analyze failed.log --against last_weeks_good.log

    \b
    Exit status:
      0  done, whatever the verdict
      1  --fail-on matched, never anything else
      2  bad input, or nothing in it could be read
      3  a bug in faultproxy
      130  interrupted (Ctrl-C)
    """
    from faultproxy.analyzer.diagnose import diagnose
    from faultproxy.analyzer.ingest import read
    from faultproxy.analyzer.report.document import document

    _refuse_existing(output, force)
    if device is not None:
        from faultproxy.proxy.cost.device import device as known

        known(device)
    good = None if against is None else _good(against, model_config)
    runs = read(list(traces), model_config)
    reports = [planned(document(diagnose(trace, good)), device, budget) for trace in runs]
    if (device or budget) and any(report["verdict"] == "failed" and not report["proxy"] for report in reports):
        _say("no proxy is planned: the model's configuration is not known; name it with --model-config")
    emit(_render(reports, runs, format_, terminal=output is None and sys.stdout.isatty()), output, force)
    if any(report["verdict"] in FAIL_ON[fail_on] for report in reports):
        raise click.exceptions.Exit(MATCHED)


def planned(report: dict[str, Any], device: str | None = None, budget: int | None = None) -> dict[str, Any]:
    """The report, with proxy plans where the run failed and facts of its model were read from a file; `budget` is in devices."""
    if report["verdict"] == "failed" and "origins" in report["run"]["facts"]:
        from faultproxy.proxy.plan.beside import attach

        attach(report, device, budget)
    return report


def _good(path: str, model_config: str | None) -> Trace:
    """Read the good run once; that it failed itself is said in its warnings, and it is used all the same."""
    from faultproxy.analyzer.against.good import read_good

    return read_good(path, model_config)


def _refuse_existing(output: str | None, force: bool) -> None:
    """Fail before the work, not after it."""
    if output is not None and not force and os.path.lexists(output):
        raise InputError(f"{output}: exists already; choose another name or pass --force")


def _render(reports: list[dict[str, Any]], runs: list[Trace], format_: str, terminal: bool) -> str:
    if format_ == "json":
        from faultproxy.analyzer.report.document import dumps

        return dumps(reports)
    if format_ == "markdown":
        from faultproxy.analyzer.report.markdown import render as markdown

        return markdown(reports)
    if format_ == "html":
        from faultproxy.analyzer.report.html.page import render as page

        return page(reports, runs)
    if format_ == "sarif":
        from faultproxy.analyzer.report.sarif import render as sarif

        return sarif(reports)
    from faultproxy.analyzer.report.text import render

    return render(reports, *_terminal()) if terminal else render(reports)


def _terminal() -> tuple[int, Painter]:
    """Width and painter of the terminal; the painter leaves text alone under NO_COLOR and on dumb terminals."""
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    console = Console(file=sys.stdout)
    styles = {"failed": "bold red", "healthy": "bold green", "inconclusive": "bold yellow", "label": "dim"}
    parsed = {kind: Style.parse(style) for kind, style in styles.items()}
    coloured = console.color_system is not None and not console.no_color and not console.legacy_windows
    system = ColorSystem.STANDARD if coloured else None

    def paint(kind: str, text: str) -> str:
        return parsed[kind].render(text, color_system=system)

    return console.width, paint


def emit(text: str, output: str | None, force: bool) -> None:
    """Write a report to stdout or, atomically, to a file that does not exist yet (unless forced).

    A reader that closes the pipe early (`| head -1`) has what it wanted: that is no error.
    """
    if output is not None:
        from faultproxy.analyzer.files import write_atomic

        write_atomic(output, text.encode(), force)
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(encodable(text).encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise InputError(f"stdout: cannot be written ({error.strerror or error}); check space") from error


def _discard_stdout() -> None:
    """Point stdout at nothing, or Python flushes it once more at exit, complains, and exits 120."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _Lazy(click.Group):
    """A group whose commands are imported when they are asked for: `analyze` must not pay for the others."""

    modules = ("hook", "incidents", "ingest", "lab", "proxy", "rules", "ticket")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted((*super().list_commands(ctx), *self.modules))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name: `commands/NAME.py` holds it under its own name."""
        if cmd_name not in self.modules:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"faultproxy.analyzer.commands.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Lazy)
@click.version_option(__version__, prog_name="faultproxy")
def faultproxy() -> None:
    """Name what failed in a large RL run, from what it left behind."""


faultproxy.add_command(analyze)

analyze_main = guarded(analyze, "analyze")
main = guarded(faultproxy, "faultproxy")


def analyze_script() -> None:
    """What the `analyze` command runs; see `_leave`."""
    _leave(_run(analyze, "analyze"))


def script() -> None:
    """What the `faultproxy` command runs; see `_leave`."""
    _leave(_run(faultproxy, "faultproxy"))


def _leave(code: int) -> NoReturn:
    """End the process at once: freeing millions of values one by one takes up to 0.3 s that nobody waits for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # None where whoever started us has closed it
            stream.flush()
    os._exit(code)
