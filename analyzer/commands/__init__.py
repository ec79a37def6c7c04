"""One command a module: each parses, calls, and prints."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 rule`, `2 rules`, `1,024 rules`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
