"""`faultproxy rules`: what the catalogue judges, why, and whether its proof holds. The contract is docs/rules.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from faultproxy.analyzer.commands import FORMAT, count, table
from faultproxy.analyzer.errors import InputError, RuleError, no_such

if TYPE_CHECKING:
    from faultproxy.analyzer.catalogue import Rule


@click.group()
def rules() -> None:
    """List, explain, and test the rules that diagnoses rest on."""


@rules.command("list")
@FORMAT
def list_(format_: str) -> None:
    """List every rule: id, failure type, status, severity, title.

    \b
    Examples:
      faultproxy rules list
      faultproxy rules list --format json
    """
    from faultproxy.analyzer.catalogue import catalogue

    rows = [
        {"id": r.id, "failure_type": r.failure_type, "role": r.role, "status": r.status, "severity": r.severity, "title": r.title}
        for r in catalogue()
    ]  # fmt: skip
    if format_ == "json":
        import orjson

        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    shown = [(r["id"], r["failure_type"] or r["role"], r["status"], r["severity"], r["title"]) for r in rows]
    table(("rule", "type or role", "status", "severity", "title"), [tuple(map(str, cells)) for cells in shown])


@rules.command()
@click.argument("rule_id", metavar="ID")
def explain(rule_id: str) -> None:
    """Explain one rule: what it sees, why that is bad, what it is not, and what to do.

    \b
    Example:
      faultproxy rules explain numerics/zero-gradient
    """
    from faultproxy.analyzer.report.article import article

    click.echo(article(_named([rule_id])[0]))


@rules.command()
@click.argument("rule_ids", nargs=-1, metavar="[ID]...")
def test(rule_ids: tuple[str, ...]) -> None:
    """Run the cases and the checks of the catalogue, or of the rules named.

    The cases are in the repository only: run this from a checkout (pip install -e .).

    \b
    Examples:
      faultproxy rules test
      faultproxy rules test numerics/zero-gradient

    \b
    Exit status:
      0  every case and check holds; known gaps (todo_ cases) are still gaps
      2  one does not, or there are no cases here
    """
    from faultproxy.analyzer.catalogue_checks import check
    from faultproxy.analyzer.rulecases import all_cases, problem

    chosen = _named(rule_ids)
    try:
        cases = all_cases(chosen)
        if not cases:
            raise InputError(
                "no cases here: the installed package has the rules without NAME.cases.toml; clone the repository, pip install -e . there, and run this again"
            )
        wrong, gaps = check(chosen), 0
        for case in cases:
            said = problem(case)
            if not case.todo and said:
                wrong.append(f"{case.id}: {said}")
            elif case.todo and said is None:
                wrong.append(f"{case.id}: holds now; rename it to [[{case.verdict.removeprefix('todo_')}]]")
            gaps += case.todo
    except RuleError as error:
        raise InputError(str(error)) from error
    for sentence in wrong:
        click.echo(sentence)
    counts = (count(len(chosen), "rule"), count(len(cases), "case"), count(gaps, "known gap"))
    click.echo(f"{', '.join(counts)}, {len(wrong)} wrong", err=True)
    if wrong:
        raise click.exceptions.Exit(2)


@rules.command()
@click.option("--same-version", is_flag=True, help="Let preview rules change without a new version.")
def lock(same_version: bool) -> None:
    """Rewrite rules.lock; refuse while a rule changed and its version did not.

    \b
    Example:
      faultproxy rules lock
    """
    from faultproxy.analyzer.catalogue import catalogue
    from faultproxy.analyzer.catalogue_checks import lock_path, new_lock, read_lock
    from faultproxy.analyzer.files import write_atomic

    text = new_lock(catalogue(), read_lock(), same_version)
    write_atomic(str(lock_path()), text.encode(), True)
    click.echo(f"{lock_path()}: {count(len(text.splitlines()), 'rule')}", err=True)


def _named(rule_ids: Sequence[str]) -> list[Rule]:
    """The rules of these ids, all of them where none is named."""
    from faultproxy.analyzer.catalogue import catalogue

    held = {rule.id: rule for rule in catalogue()}
    for rule_id in rule_ids:
        if rule_id not in held:
            raise no_such("rule", rule_id, held, "`faultproxy rules list`")
    return [held[rule_id] for rule_id in rule_ids] or list(held.values())
