"""`faultproxy incidents`: the diagnoses of a fleet in one lake (docs/incidents.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from faultproxy.analyzer.catalogue import CAUSES, FACTORS, FAILURE_TYPES
from faultproxy.analyzer.commands import FORMAT, count, table
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible

if TYPE_CHECKING:
    from faultproxy.analyzer.incidents.query import Lake

_TYPES = (*(kind for kinds in FAILURE_TYPES.values() for kind in kinds), "healthy")
_SPAN = re.compile(r"(\d{1,4})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_LAKE = click.option("--lake", required=True, envvar="FAULTPROXY_LAKE", metavar="URL", help="Folder or fsspec URL of the lake; $FAULTPROXY_LAKE when not given.")  # fmt: skip
_FILTERS = (
    click.option("--text", metavar="TEXT", help="Only those whose report or job holds this text, in any case."),
    click.option("--job", metavar="ID", help="Only this job."),
    click.option("--factor", type=click.Choice((*FACTORS, "undetermined")), help="Only this factor."),
    click.option("--type", type=click.Choice(_TYPES), metavar="TYPE", help="Only this failure type; a label counts before the diagnosis."),
    click.option("--until", metavar="TIME", help="Only before this time, as --since."),
    click.option("--since", metavar="TIME", help="Only from this time on: ISO 8601 (UTC), or 12h, 7d, 4w ago."),
)  # fmt: skip


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    return reduce(lambda made, option: option(made), _FILTERS, command)


@click.group()
def incidents() -> None:
    """List, count, label, and keep the incidents of a lake.

    A lake is a folder, or an fsspec URL with the extra `lake`, that `faultproxy hook run --lake` adds diagnoses to.
    """


@incidents.command("list")
@_LAKE
@_filtered
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@FORMAT
def list_(lake: str, limit: int, format_: str, **filters: Any) -> None:
    """List incidents, the newest first.

    \b
    Examples:
      faultproxy incidents list --lake /shared/incidents --since 7d
      faultproxy incidents list --lake s3://bucket/incidents --type out_of_memory --format json
    """
    from faultproxy.analyzer.incidents.query import listed

    opened, where = _open(lake, filters)
    rows = listed(opened, where, limit)
    if not rows:
        _nothing(opened)
    if format_ == "json":
        _json(rows)
    elif rows:
        shown = [(r["id"], r["time"], r["job_id"], r["run"], r["failure_type"] or r["verdict"], r["factor"], r["cause"], "label" if r["labelled"] else f"{r['confidence']:.2f}") for r in rows]  # fmt: skip
        _table(("id", "time", "job", "run", "type", "factor", "cause", "sure"), shown)


@incidents.command()
@click.argument("incident", metavar="ID")
@_LAKE
@FORMAT
def show(incident: str, lake: str, format_: str) -> None:
    """Show one incident: its report, its job, and its labels. The beginning of an id is enough.

    \b
    Example:
      faultproxy incidents show 3fa9 --lake /shared/incidents
    """
    from faultproxy.analyzer.incidents.query import one
    from faultproxy.analyzer.report.text import render

    opened, _ = _open(lake, {})
    row = one(opened, incident)
    try:
        # A platform's JSON can hold NaN, which orjson does not read.
        row |= {name: json.loads(row[name]) for name in ("diagnosis", "job")}
        text = "" if format_ == "json" else render([row["diagnosis"]])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"incident {row['id']}: what it holds is no report of schema 1 ({error}); analyse the job again") from error  # fmt: skip
    if format_ == "json":
        _json(row)
        return
    click.echo(f"incident {row['id']}  {_cell(row['time'])}  job {_cell(row['job_id'])}\n{text}", nl=False)
    for label in row["labels"]:
        click.echo(f"  label        {_verdict(label)} (by {_cell(label['author'])}, {_cell(label['written'])})")


@incidents.command()
@_LAKE
@_filtered
@FORMAT
def stats(lake: str, format_: str, **filters: Any) -> None:
    """Count failures by type, factor, week, and framework, and name those that recur.

    \b
    Example:
      faultproxy incidents stats --lake /shared/incidents --since 4w
    """
    from faultproxy.analyzer.incidents.query import stats as counted

    opened, where = _open(lake, filters)
    found = counted(opened, where)
    if not found["incidents"]:
        _nothing(opened)
    if format_ == "json":
        _json(found)
    else:
        click.echo(f"{count(found['incidents'], 'incident')}, {found['failed']} failed, {found['labelled']} labelled (type right in {found['type_right']}, factor in {found['factor_right']} of {found['factor_labelled']})")  # fmt: skip
        for name, rows in found.items():
            if isinstance(rows, list) and rows:
                click.echo(f"\n{name.replace('_', ' ')}")
                _table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@incidents.command()
@click.argument("incident", metavar="ID")
@_LAKE
@click.option("--type", "failure_type", type=click.Choice(_TYPES), required=True, metavar="TYPE", help="What failed, a type of docs/diagnosis.md, or healthy.")  # fmt: skip
@click.option("--factor", type=click.Choice(FACTORS), help="Factor that it came from.")
@click.option("--cause", type=click.Choice(CAUSES), help="Class of cause.")
@click.option("--fix", metavar="TEXT", help="What ended it.")
@click.option("--by", required=True, metavar="NAME", help="Who says so.")
def label(incident: str, lake: str, failure_type: str, factor: str | None, cause: str | None, fix: str | None, by: str) -> None:  # fmt: skip
    """Store a human's verdict on an incident. The newest counts, those before it are kept.

    \b
    Example:
      faultproxy incidents label 3fa9 --lake /shared/incidents --type data_fault --cause data --fix "shard 12" --by mia
    """
    from faultproxy.analyzer.incidents.lake import add_label
    from faultproxy.analyzer.incidents.query import one

    if failure_type == "healthy" and (factor not in (None, "none") or cause):
        raise InputError("a healthy run has no factor and no cause; leave --factor and --cause out")
    opened, _ = _open(lake, {})
    row = one(opened, incident)
    factor = "none" if failure_type == "healthy" else factor
    verdict = {"failure_type": failure_type, "factor": factor, "cause": cause, "fix": fix, "author": by}
    stored = add_label(opened.store, row["id"], verdict, row["diagnosis"])
    click.echo(f"incident {row['id']}: {_verdict(verdict)} (by {_cell(by)})")
    click.echo(visible(stored), err=True)


@incidents.command()
@_LAKE
@click.option("--keep", type=click.IntRange(0), metavar="DAYS", help="Also remove the incidents of days that ended longer ago; labels stay. Lists them only, without --yes.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Really remove what --keep lists.")
@FORMAT
def compact(lake: str, keep: int | None, yes: bool, format_: str) -> None:
    """Merge the files of each day, beside writers and readers, without losing any.

    \b
    Examples:
      faultproxy incidents compact --lake /shared/incidents
      faultproxy incidents compact --lake /shared/incidents --keep 365 --yes
    """
    from faultproxy.analyzer.incidents.lake import compact as merge
    from faultproxy.analyzer.incidents.lake import expired
    from faultproxy.analyzer.incidents.store import open_store

    store = open_store(lake)
    old = [] if keep is None else expired(store, keep)
    for name in old if yes else ():
        store.remove(name)
    before, after, skipped = merge(store)
    if format_ == "json":
        _json({"merged": before, "into": after, "expired": old, "removed": bool(old and yes), "skipped": skipped})
    else:
        click.echo(f"{count(before, 'file')} merged into {after}")
        for name in old:
            click.echo(f"{'removed' if yes else 'would remove (--yes)'} {visible(name)}")
    _skipped(skipped)


def _open(url: str, filters: dict[str, Any]) -> tuple[Lake, dict[str, Any]]:
    from faultproxy.analyzer.incidents.query import open_lake
    from faultproxy.analyzer.incidents.store import open_store

    where = filters | {name: _time(filters[name], name) for name in ("since", "until") if filters.get(name)}
    opened = open_lake(open_store(url), where.get("since"), where.get("until"), where.get("text"))
    _skipped(opened.skipped)
    return opened, where


def _time(value: str, name: str) -> str:
    from faultproxy.analyzer.incidents.lake import moment

    span = _SPAN.fullmatch(value)
    if span:
        return str(datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])}))
    return str(moment(value, f"--{name}", "ISO 8601 in UTC (2026-11-30, 2026-11-30T12:00), or a time ago (12h, 7d, 4w)"))  # fmt: skip


def _nothing(lake: Lake) -> None:
    """Say whether there is nothing at all, or nothing that passes the filters."""
    from faultproxy.analyzer.incidents.lake import day_folders

    empty = not any(lake.store.files(folder) for folder in day_folders(lake.store))
    click.echo(f"no incidents in {visible(lake.store.url)}" if empty else "no incident matches", err=True)


def _verdict(label: Mapping[str, Any]) -> str:
    return visible(", ".join(f"{name} {label[name]}" for name in ("failure_type", "factor", "cause", "fix") if label[name]))  # fmt: skip


def _json(value: Any) -> None:
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _cell(value: Any) -> str:
    shown = f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else "-" if value is None else str(value)
    return visible(shown, 40)


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table(heads, [tuple(map(_cell, row)) for row in rows])


def _skipped(paths: list[str]) -> None:
    for path in paths:
        click.echo(f"skipped {visible(path)}: torn, or no file of a lake; remove it", err=True)
