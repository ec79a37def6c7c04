"""`faultproxy ticket`: a diagnosis where the engineers read (docs/ticket.md)."""

from __future__ import annotations

import os
from pathlib import Path

import click
import orjson

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible
from faultproxy.analyzer.ticket.render import SITES, Ticket
from faultproxy.analyzer.ticket.render import render as rendered

_NO_REDACT = click.option("--no-redact", is_flag=True, help="Hide nothing; only where the log itself may be read.")
_DIAGNOSIS = click.argument("diagnosis", metavar="DIAGNOSIS.json")


@click.group()
def ticket() -> None:
    """Render a diagnosis as a ticket without secrets and names, and post it."""


@ticket.command()
@_DIAGNOSIS
@_NO_REDACT
@click.option("--to", type=click.Choice(SITES), required=True, help="Whose syntax and limits.")
def render(diagnosis: str, to: str, no_redact: bool) -> None:
    """Write the ticket to stdout: Markdown, an ADF document as JSON (jira), or text (plain).

    \b
    Examples:
      faultproxy ticket render diagnosis.json --to github
      analyze run.log --format json | faultproxy ticket render - --to plain
    """
    made = _made(diagnosis, to, no_redact)
    click.echo(made.body, nl=not made.body.endswith("\n"))
    _hidden(made)


@ticket.command()
@_DIAGNOSIS
@_NO_REDACT
@click.option("--to", type=click.Choice(SITES[:-1]), required=True, help="What the site is; github for Gitea and Forgejo too.")  # fmt: skip
@click.option("--url", required=True, metavar="URL", help="An issue or merge request (gets a comment), or a project (gets an issue).")  # fmt: skip
@click.option("--send", is_flag=True, help="Send it; without this the request is printed and nothing is sent.")
@click.option("--token-env", metavar="NAME", help="Environment variable with the token.  [default: GITHUB_TOKEN, GITLAB_TOKEN, JIRA_TOKEN]")  # fmt: skip
@click.option("--token-file", type=click.Path(), metavar="FILE", help="File with the token, instead.")
@click.option("--issue-type", default="Bug", show_default=True, help="Of a new issue in Jira.")
def post(diagnosis: str, to: str, url: str, send: bool, token_env: str | None, token_file: str | None, issue_type: str, no_redact: bool) -> None:  # fmt: skip
    """Post the ticket; an earlier one of the same run, by the same account, is updated.

    \b
    Examples:
      faultproxy ticket post diagnosis.json --to github --url https://github.com/OWNER/REPO/issues/7
      faultproxy ticket post diagnosis.json --to gitlab --url https://gitlab.com/GROUP/PROJECT --send
      faultproxy ticket post diagnosis.json --to jira --url https://SITE.atlassian.net/browse/OPS-7 --send --token-file jira.token

    \b
    Exit status:
      0  sent, or printed
      2  bad input, or the site did not take it
    """
    from faultproxy.analyzer.ticket.forge import open_forge
    from faultproxy.analyzer.ticket.post import post as posted

    made = _made(diagnosis, to, no_redact)
    forge = open_forge(to, url, made.mark, issue_type)
    if send:
        done, where = posted(forge, made, _token(token_env or f"{to.upper()}_TOKEN", token_file))
        click.echo(f"{done} {visible(where)}")
    else:
        request = forge.request(made.title, made.body)
        click.echo(f"{request.method} {request.url}\n{orjson.dumps(request.json, option=orjson.OPT_INDENT_2).decode()}")
        click.echo("nothing sent; --send sends it, or updates an earlier ticket of this run", err=True)
    _hidden(made)


def _made(path: str, to: str, no_redact: bool) -> Ticket:
    from faultproxy.analyzer.report.given import given

    report, *others = given(path)
    if others:
        raise InputError(f"{path}: holds {len(others) + 1} runs, a ticket is of one; `jq '.[0]'` takes the first")
    try:
        return rendered(report, to, hide=not no_redact)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: contradicts itself ({error}); analyse the run again") from error


def _token(name: str, file: str | None) -> str:
    try:
        token = Path(file).read_text("utf-8").strip() if file else os.environ.get(name, "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file {file}: cannot be read as text; check the path and its rights") from error
    if not token:
        raise InputError(f"no token; put it into {file or '$' + name} (--token-env, --token-file)")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(f"what is in {file or name} is no token: one word of ASCII")
    return token


def _hidden(made: Ticket) -> None:
    counts = ", ".join(f"{kind} {number}" for kind, number in sorted(made.redacted.items())) or "nothing"
    click.echo(f"hidden: {counts}", err=True)
