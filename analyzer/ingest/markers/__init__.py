"""What a process, its launcher, and its machine say when something goes wrong, as data: one module a family.

A family is a tuple `MARKERS` of rows (kind, hint, expression[, value]). `hint` is a substring that must be in the line,
so that a line without one costs no regular expression; the expression must match, and its groups `rank`, `step`, and
`value` become the event's. Order matters: the first row that matches names the line. `ASIDES` are events beside the one
that names the line. Expressions take time linear in the line.

The rules under rules/process give the kinds meaning; a marker alone is never a verdict. Kinds: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from re import Pattern
from typing import NamedTuple

from faultproxy.analyzer.ingest.markers import cann, collectives, launchers, machine, rerun, training
from faultproxy.analyzer.lazy import lazy


class Marker(NamedTuple):
    """One row: what the line must hold, what it then means, and the value of the event where the line prints none."""

    kind: str
    hint: str
    pattern: Pattern[str]
    value: float | None = None


def _rows(rows: Iterable[tuple[str, str, str] | tuple[str, str, str, float]]) -> tuple[Marker, ...]:
    return tuple(Marker(kind, hint, lazy(pattern), *value) for kind, hint, pattern, *value in rows)


#: Families in the order they are asked: what names a cause comes before what could be anybody's words. An error code
#: stands between (cann.py): it is more exact than a word, but a word more exact than a code that frames another.
EXACT = _rows(row for family in (rerun, launchers, machine) for row in family.MARKERS)
WORDS = _rows(row for family in (collectives, training) for row in family.MARKERS)
LAST = _rows(cann.MARKERS)
ASIDES = _rows(collectives.ASIDES)
HINTS = tuple(dict.fromkeys([*(row.hint for row in (*EXACT, *WORDS, *LAST, *ASIDES)), *cann.HINTS]))
