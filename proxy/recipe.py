"""What to cut out of a model, in the words of the command line: `proxy plan` writes it, `proxy build` obeys it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from faultproxy.analyzer.errors import InputError, no_such
from faultproxy.analyzer.report.clean import visible

#: Ways to choose experts; docs/pruning.md has what each was measured to keep.
METHODS = ("auto", "fused", "frequency", "gate-norm", "weights", "router", "random", "first")
WEIGHTS = ("original", "random")
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
#: More numbers than any model has layers or experts.
_MOST = 100_000


@dataclass(frozen=True)
class Recipe:
    """Kept layers by original number (none: all); experts a layer (none: all), or by layer where budgets differ; experts to keep whatever
    their score, by layer; how the rest is chosen; and whether weights are copied or drawn anew with the original's statistics."""

    layers: tuple[int, ...] = ()
    experts: int | None = None
    budgets: Mapping[int, int] = field(default_factory=dict)
    keep: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    method: str = "auto"
    weights: str = "original"
    seed: int = 0

    def __post_init__(self) -> None:
        for what, given, allowed in (("method", self.method, METHODS), ("weights", self.weights, WEIGHTS)):
            if given not in allowed:
                raise no_such(what, visible(given, 40), allowed, ", ".join(allowed))

    def flags(self) -> list[str]:
        """The options of `proxy build` that give this recipe."""
        found: list[str] = []
        if self.layers:
            found += ["--layers", write_numbers(self.layers)]
        if self.experts is not None:
            found += ["--experts", str(self.experts)]
        for layer, count in sorted(self.budgets.items()):
            found += ["--budget", f"{layer}:{count}"]
        for layer, ids in sorted(self.keep.items()):
            found += ["--keep", f"{layer}:{write_numbers(ids)}"]
        for name, value, usual in (
            ("method", self.method, "auto"),
            ("weights", self.weights, "original"),
            ("seed", self.seed, 0),
        ):
            found += [f"--{name}", str(value)] if value != usual else []
        return found

    def document(self) -> dict[str, Any]:
        """Plain data; keys of layers are strings, as JSON has them."""
        return {
            "layers": list(self.layers) or None,
            "experts": self.experts,
            "budgets": {str(n): count for n, count in sorted(self.budgets.items())},
            "keep": {str(n): list(ids) for n, ids in sorted(self.keep.items())},
            "method": self.method,
            "weights": self.weights,
            "seed": self.seed,
        }


def read_recipe(document: Any) -> Recipe:
    """The recipe that `Recipe.document` wrote.

    Raises:
        InputError: It is none.
    """
    try:
        layers, experts, seed = document["layers"] or (), document["experts"], document["seed"]
        budgets = {int(layer): count for layer, count in document["budgets"].items()}
        keep = {int(layer): tuple(ids) for layer, ids in document["keep"].items()}
        counts = [*layers, *budgets, *budgets.values(), *keep, *(n for ids in keep.values() for n in ids)]
        counts += [] if experts is None else [experts]
        if not all(type(n) is int and 0 <= n < _MOST for n in counts) or not (type(seed) is int and 0 <= seed < 2**63):
            raise ValueError
        return Recipe(tuple(layers), experts, budgets, keep, document["method"], document["weights"], seed)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError("its recipe is not one that `proxy plan` writes; plan again") from error


def read_numbers(text: str) -> tuple[int, ...]:
    """`0-3,7` as (0, 1, 2, 3, 7), in order, each once.

    Raises:
        InputError: Anything but numbers and ascending ranges.
    """
    found: set[int] = set()
    for piece in text.split(","):
        ends = _RANGE.fullmatch(piece.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if last < first or last - first > _MOST:
            raise InputError(f"{visible(text, 60)}: {visible(piece, 20)!r} is no number or range; write 0-3,7")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def write_numbers(numbers: Sequence[int]) -> str:
    """(0, 1, 2, 3, 7) as `0-3,7`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read_by_layer(texts: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """`31:5,7` each as {31: (5, 7)}.

    Raises:
        InputError: No `LAYER:NUMBERS`, or one layer twice.
    """
    found: dict[int, tuple[int, ...]] = {}
    for text in texts:
        layer, colon, numbers = text.partition(":")
        if not colon or not layer.strip().isdecimal() or len(layer) > 6 or int(layer) in found:
            raise InputError(f"{visible(text, 60)}: write LAYER:NUMBERS, each layer once, such as 31:5,7")
        found[int(layer)] = read_numbers(numbers)
    return found
