"""Every error this package raises on purpose.

FaultproxyError
|-- InputError          the input cannot be used (exit 2)
|   |-- UnreadableError   a file cannot be opened, decoded, or is no trace
|   `-- SchemaError       a canonical trace that breaks the schema
`-- RuleError           a rule file is wrong: file, line, and what is allowed (exit 3 outside `rules test`)
"""

from __future__ import annotations

from collections.abc import Collection


class FaultproxyError(Exception):
    """Base of all errors raised on purpose; the message says what was got, what is allowed, and what to do next."""


class InputError(FaultproxyError):
    """The user's input cannot be used."""


def no_such(kind: str, name: str, known: Collection[str], where: str) -> InputError:
    """The error for a name that nothing has: the nearest names, and `where` all are (a command, or the names)."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 3, 0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"{name!r} is no {kind}{hint} ({where}, {len(known)} in all)")


class UnreadableError(InputError):
    """A file cannot be opened or decoded, or holds nothing that any reader knows."""


class SchemaError(InputError):
    """A canonical trace breaks the schema of docs/trace.md."""


class RuleError(FaultproxyError):
    """A rule breaks the contract of docs/rules.md."""
