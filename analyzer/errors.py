"""Every error this package raises on purpose.

FaultproxyError
|-- InputError          the input cannot be used (exit 2)
|   |-- UnreadableError   a file cannot be opened, decoded, or is no trace
|   `-- SchemaError       a canonical trace that breaks the schema
`-- RuleError           a rule file is wrong: file, line, and what is allowed (exit 3 outside `rules test`)
"""


class FaultproxyError(Exception):
    """Base of all errors raised on purpose; the message says what was got, what is allowed, and what to do next."""


class InputError(FaultproxyError):
    """The user's input cannot be used."""


class UnreadableError(InputError):
    """A file cannot be opened or decoded, or holds nothing that any reader knows."""


class SchemaError(InputError):
    """A canonical trace breaks the schema of docs/trace.md."""


class RuleError(FaultproxyError):
    """A rule breaks the contract of docs/rules.md."""
