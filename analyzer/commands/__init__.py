"""One command a module: each parses, calls, and prints."""

from __future__ import annotations

from collections.abc import Sequence

import click

#: The option of every command that answers as text or as JSON.
FORMAT = click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True, help="How the answer is written.")  # fmt: skip


def count(number: int, noun: str) -> str:
    """`1 rule`, `2 rules`, `1,024 rules`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell, two blanks apart."""
    lines = [heads, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
