"""`faultproxy lab`: small training runs with known faults, on this machine. What it needs is imported by its commands."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from faultproxy.analyzer.commands import count, table
from faultproxy.analyzer.errors import InputError

if TYPE_CHECKING:
    from faultproxy.analyzer.trace import Trace
    from faultproxy.proxy.lab.oracle import Label
    from faultproxy.proxy.run.config import FaultSpec, Program

#: Healthy runs with other seeds that a single faulty run is measured against, beside its twin.
_OTHER_SEEDS = 2
#: How far the effect of a run that is made again may be off.
_TOLERANCE = 0.05


@click.group()
def lab() -> None:
    """Run small models with known faults, and look at what they do.

    Runs need the extra `proxy`: pip install 'faultproxy[proxy]'.
    """


@lab.command("list")
@click.option("--faults", is_flag=True, help="List the faults instead of the programs.")
@click.option("--json", "as_json", is_flag=True, help="Write everything known of each as JSON.")
def list_(faults: bool, as_json: bool) -> None:
    """List the programs, or the faults that can be injected into them.

    \b
    Examples:
      faultproxy lab list
      faultproxy lab list --faults
      faultproxy lab list --faults --json
    """
    from dataclasses import asdict

    from faultproxy.proxy.lab import programs
    from faultproxy.proxy.run import inject

    chosen: list[Any] = list(inject.faults() if faults else programs.programs())
    if as_json:
        import orjson

        click.echo(orjson.dumps([asdict(entry) for entry in chosen], option=orjson.OPT_INDENT_2).decode())
        return
    heads = _FAULT_HEADS if faults else _PROGRAM_HEADS
    table(heads, [_fault(entry) if faults else _program(entry) for entry in chosen])


_PROGRAM_HEADS = ("program", "task", "algorithm", "optimiser", "family", "depth", "feed-forward")
#: A need with a minus is one that the program must not have.
_FAULT_HEADS = ("fault", "factor", "cause", "kind", "needs", "what it is")


def _program(program: Program) -> tuple[str, ...]:
    model = program.model
    shape = f"{model.experts} experts, top {model.top_k}" if model.experts else "dense"
    return (
        program.name,
        program.task,
        program.algorithm,
        program.optimiser,
        model.family,
        count(model.layers, "layer"),
        shape,
    )


def _fault(fault: FaultSpec) -> tuple[str, ...]:
    return (fault.name, fault.factor, fault.cause, fault.kind, ", ".join(fault.needs) or "any program", fault.title)


@lab.command()
@click.argument("program_name", metavar="PROGRAM")
@click.option("--fault", "fault_name", metavar="NAME", help="Inject this fault (see `lab list --faults`).")
@click.option("--severity", type=click.IntRange(0, 2), help="Of the fault: 0 is mild, 2 strong (the default).")
@click.option("--onset", type=click.IntRange(1), help="First step with the fault; 12 by default.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of data and sampling.")
@click.option("--steps", type=click.IntRange(1), help="Steps to run; the program's own number by default.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, or npu; corpus runs are all on the CPU.")
@click.option("--output", "-o", metavar="OUT", help="Keep the run as NAME.trace (a folder) or NAME.parquet.")
@click.option("--force", is_flag=True, help="Overwrite OUT when it exists.")
def run(
    program_name: str, fault_name: str | None, severity: int | None, onset: int | None, seed: int, steps: int | None,
    device: str, output: str | None, force: bool,
) -> None:  # fmt: skip
    """Run PROGRAM, with a fault or healthy, and show it.

    With a fault, its healthy twin and two healthy runs with other seeds run too: signals are shown beside the twin, the
    most moved first, and the failure is named from them. Numbers depend on the CPU type, not on other load.

    \b
    Examples:
      faultproxy lab run PROGRAM
      faultproxy lab run PROGRAM --fault NAME -o broken.trace
      faultproxy lab run PROGRAM --fault NAME --severity 0 --onset 8 --seed 3
    """
    _needs("torch", "transformers", "numpy")
    from faultproxy.analyzer.cli import emit
    from faultproxy.analyzer.record import trace_of
    from faultproxy.proxy.lab import effect, oracle, programs, show
    from faultproxy.proxy.lab.corpus import simulate
    from faultproxy.proxy.run import inject

    if fault_name is None and (severity, onset) != (None, None):
        raise InputError(
            "--severity and --onset are of a fault; pass --fault NAME too (`faultproxy lab list --faults`)"
        )
    severity, onset = 2 if severity is None else severity, onset or 12
    program = programs.program(program_name)
    fault = inject.fault(fault_name) if fault_name else None
    steps = steps or program.steps
    if fault is not None:
        _check(program, fault, onset, steps)
    if output is not None:
        _check_target(output, force)
    if fault is None:
        made = simulate(program, seed=seed, steps=steps, device=device)
        shown = show.text(effect.series(made.table), None, {}, width=_width())
    else:
        click.echo(f"{program.name}: twin, {count(_OTHER_SEEDS, 'other seed')}, and {fault.name}", err=True)
        twin = simulate(program, seed=seed, steps=steps, keep=[onset], device=device)
        made = simulate(program, fault, severity, onset, seed, steps, start=twin.starts[onset], device=device)
        others = [simulate(program, seed=seed + at, steps=steps, device=device) for at in range(1, _OTHER_SEEDS + 1)]
        faulty, *healthy = [effect.series(result.table) for result in (made, twin, *others)]
        found = effect.effects(faulty, healthy[0], healthy, onset)
        label = oracle.label(faulty, healthy[0], found, fault, onset)
        shown = show.text(faulty, healthy[0], found, onset, width=_width()) + _said(label)
    if output is not None:
        _write(trace_of(made.table, made.facts), output, force)
    emit(shown, None, False)


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def _said(label: Label) -> str:
    where = f" from step {label.first_bad_step}" if label.first_bad_step is not None else ""
    more = f"; then {', '.join(label.also)}" if label.also else ""
    return f"\nlabel   {label.type}{where}: {label.reason}{more}\n"


def _check(program: Program, fault: FaultSpec, onset: int, steps: int) -> None:
    """What would otherwise fail only after the twin has run."""
    from faultproxy.proxy.lab import programs

    if not fault.fits(program):
        fitting = [other.name for other in programs.programs() if fault.fits(other)]
        raise InputError(
            f"{fault.name} does not fit {program.name}: it lacks {', '.join(fault.lacking(program))}; programs that fit are "
            f"{', '.join(fitting)}"
        )
    if onset > steps:
        raise InputError(f"got onset {onset}; allowed is a step from 1 to {steps}; choose one, or pass more --steps")


def _check_target(output: str, force: bool) -> None:
    if not Path(output).absolute().parent.is_dir():
        raise InputError(f"{output}: its folder does not exist; make it first")
    if Path(output).suffix not in (".parquet", ".trace"):
        raise InputError(f"{output}: got no known form; allowed are NAME.parquet and NAME.trace; choose one")
    if os.path.lexists(output) and not force:
        raise InputError(f"{output}: exists already; choose another name or pass --force")


def _write(trace: Trace, output: str, force: bool) -> None:
    from faultproxy.analyzer.canonical import write_file, write_folder

    trace.sources.clear()  # no log lies behind it: the trace itself is what evidence cites
    written = (write_file if output.endswith(".parquet") else write_folder)(trace, output, force)
    click.echo(f"{output}: run {trace.run}, {count(written.values, 'value')}", err=True)


@lab.command()
@click.option("--out", default="fixtures/corpus", show_default=True, metavar="DIR", help="Folder of the corpus.")
@click.option("--size", type=click.IntRange(1), default=2500, show_default=True, help="Least number of runs.")
@click.option("--only", multiple=True, metavar="PROGRAM", help="Make this program's runs only; may be repeated.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes, one thread each.")
@click.option("--force", is_flag=True, help="Make runs again that are there and current.")
def generate(out: str, size: int, only: tuple[str, ...], workers: int, force: bool) -> None:
    """Make the corpus: every program, healthy and with faults, or continue it where it stopped.

    \b
    Examples:
      faultproxy lab generate
      faultproxy lab generate --size 6000
      faultproxy lab generate --only PROGRAM --workers 1 --out corpus
    """
    _needs("torch", "transformers", "numpy")
    from faultproxy.proxy.lab import corpus

    corpus.generate(Path(out), size=size, programs=only, workers=workers, force=force)


@lab.command()
@click.argument("folder", default="fixtures/corpus", metavar="[FOLDER]")
@click.option(
    "--relabel", is_flag=True, help="Write labels, manifest, and datasheet anew from the runs that are there."
)
@click.option("--again", type=click.IntRange(1), metavar="N", help="Also make N random runs again and compare them.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which runs --again draws.")
def check(folder: str, relabel: bool, again: int | None, seed: int) -> None:
    """Say what is wrong or out of date with a corpus: checksums, design, labels, counts. Exit 2 when anything is.

    A run made again must have the same label and an effect within 5 %; on the machine type of the corpus it is bit-identical.

    \b
    Examples:
      faultproxy lab check
      faultproxy lab check --relabel
      faultproxy lab check --again 10 --seed 1
    """
    _needs("numpy", *(("torch", "transformers") if again else ()))
    from faultproxy.proxy.lab import corpus, labels

    programs, faults = corpus.catalogues()
    if relabel:
        labels.relabel(Path(folder), faults)
    problems = labels.check(Path(folder), programs, faults)
    for made in corpus.regenerate(Path(folder), again, seed) if again else ():
        bits = "bit-identical" if made.identical else "other bits"
        click.echo(
            f"{made.run}: {bits}, label {'same' if made.same_type else 'CHANGED'}, effect {made.effect_difference:.1%} off"
        )
        if not made.same_type or made.effect_difference > _TOLERANCE:
            problems.append(f"{made.run}: does not come out again")
    for problem in problems:
        click.echo(problem)
    click.echo(f"{folder}: {count(len(problems), 'problem')}", err=True)
    if problems:
        raise click.exceptions.Exit(2)


@lab.command()
@click.argument("trace", metavar="TRACE")
@click.option("--format", "format_", required=True, metavar="FORMAT", help="The log to write; a wrong one lists all.")
@click.option(
    "--level",
    type=click.IntRange(1, 4),
    default=1,
    show_default=True,
    help="What it shows: 1 plain scalars, 2 rollout against trainer, 3 layers, 4 router and experts.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file instead of stdout.")
@click.option("--force", is_flag=True, help="Overwrite --output when it exists.")
def export(trace: str, format_: str, level: int, output: str | None, force: bool) -> None:
    """Write TRACE as the log that a framework would have left of the same run.

    \b
    Examples:
      faultproxy lab export broken.trace --format verl-console
      faultproxy lab export broken.trace --format trl --level 3 -o train.log
    """
    from faultproxy.analyzer.cli import emit
    from faultproxy.proxy.lab.export import export as exported

    emit(exported(_one(trace), format_, level), output, force)


@lab.command()
@click.argument("trace", metavar="TRACE")
@click.option(
    "--against",
    multiple=True,
    metavar="HEALTHY",
    help="A healthy run: the twin first; more of them say how much healthy runs differ.",
)
@click.option("--html", "page", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page of plots instead.")
@click.option("--all", "everything", is_flag=True, help="Show every signal, not the most moved ones only.")
@click.option("--force", is_flag=True, help="Overwrite FILE when it exists.")
def show(trace: str, against: tuple[str, ...], page: str | None, everything: bool, force: bool) -> None:
    """Show the signals of TRACE as sparklines, beside a healthy run if there is one.

    \b
    Examples:
      faultproxy lab show broken.trace
      faultproxy lab show broken.trace --against healthy.trace
      faultproxy lab show broken.trace --against twin.trace --against other.trace --html broken.html
    """
    _needs("numpy")
    from faultproxy.analyzer.cli import emit
    from faultproxy.proxy.lab import effect
    from faultproxy.proxy.lab import show as shown

    read = _one(trace)
    run, healthy = effect.series_of(read), [effect.series_of(_one(path)) for path in against]
    twin, onset, found = None, None, {}
    if healthy:
        twin = healthy[0]
        onset = shown.fork(run, twin)
        if onset is None:
            raise InputError(
                f"{trace} and {against[0]} record the same numbers; compare a faulty run with a healthy one"
            )
        if onset == 1:
            click.echo(f"{against[0]}: no twin, it differs from the first step on; z compares levels", err=True)
        if len(healthy) < 3:
            click.echo(
                f"{count(len(healthy), 'healthy run')}: z is coarse; give two more seeds with --against", err=True
            )
        found = effect.effects(run, twin, healthy, onset)
    if page is not None:
        notes = [f"{trace} against {', '.join(against)}, from step {onset} on" if against else trace]
        emit(shown.html(read.run, run, twin, found, onset, notes), page, force)
        click.echo(f"{page}: {count(len(shown.order(run, found)), 'signal')}", err=True)
        return
    emit(shown.text(run, twin, found, onset, 0 if everything else 24, _width()), None, False)


def _one(path: str) -> Trace:
    """The one run at a path."""
    from faultproxy.analyzer.ingest import read

    found = read([path])
    if len(found) != 1:
        raise InputError(f"{path}: got {len(found)} runs ({', '.join(t.run for t in found[:5])}); name one of them")
    return found[0]


def _needs(*modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(f"this needs {' and '.join(missing)}, not installed here; run pip install 'faultproxy[proxy]'")
