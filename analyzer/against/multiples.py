"""Round factors by which a gradient norm is off when a sum was taken for a mean, and what in the run has that size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from faultproxy.analyzer.against.config import flat

#: Facts that count what is summed over, by the last part of their name.
_COUNTS = (
    (re.compile(r"(^|[._])(dp|data_parallel(_size)?)$"), "the data-parallel size"),
    (
        re.compile(r"(^|[._])(cp|context_parallel(_size)?|ulysses_sequence_parallel_size|sp)$"),
        "the context-parallel size",
    ),
    (re.compile(r"accumulation(_steps)?$|num_micro_?batches$"), "the gradient-accumulation steps"),
    (re.compile(r"(^|[._])(world_size|n_gpus|num_processes|ranks)$"), "the number of ranks"),
)
_POWERS = (2, 4, 8, 16)


class Multiple(NamedTuple):
    """A factor with what it stands for; of two of one size the lower `place` is named."""

    what: str
    size: float
    place: int


def multiples(facts: dict[str, Any]) -> tuple[Multiple, ...]:
    """The factors to look for in a run with these facts: its own counts first, then 2, sqrt(2), and powers of 2."""
    found = [
        *_counted(facts),
        ("twice", 2.0),
        ("half", 0.5),
        ("the square root of 2", 2**0.5),
        ("1 / the square root of 2", 0.5**0.5),
    ]
    for power in _POWERS[1:]:
        found += [(f"{power} times", float(power)), (f"1/{power}", 1 / power)]
    return tuple(Multiple(what, size, place) for place, (what, size) in enumerate(found))


def _counted(facts: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in flat(facts):
        if isinstance(value, int | float) and not isinstance(value, bool) and 1 < value < 1e6:
            for pattern, what in _COUNTS:
                if pattern.search(key.lower()):
                    yield f"{what}, {value:g}", float(value)
                    yield f"1 / {what}, {value:g}", 1 / value
                    yield f"the square root of {what}, {value:g}", value**0.5
