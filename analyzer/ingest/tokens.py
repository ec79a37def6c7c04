"""The shared tokenizer: how a number is written in a log, and how a dict is printed. Nothing is ever evaluated.

Every expression here, and in the readers, takes time linear in the line: a log is input nobody vouches for.

`number` turns one token into a cell; `pairs` walks the body of a printed dict (`{'loss': nan, 'kl': np.float64(0.1)}`)
with a regular expression, so bare `nan`, `None`, quoted floats (transformers 5) and numpy wrappers all come out as
cells, and a dict cut off in the middle still gives the pairs before the cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite, isnan

from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import MASKED, NAN, NEG_INF, NONFINITE, POS_INF, QUANTISED, Cell

_WORDS = {
    "nan": NAN, "+nan": NAN, "-nan": NAN, "nan(ind)": NAN, "-nan(ind)": NAN,
    "inf": POS_INF, "+inf": POS_INF, "infinity": POS_INF, "+infinity": POS_INF,
    "-inf": NEG_INF, "-infinity": NEG_INF,
    "null": NONFINITE, "none": NONFINITE,
}  # fmt: skip
_BOOLS = {"true": 1.0, "false": 0.0}
_WRAPPED = lazy(r"[\w.]*+\(([^(),]+)(?:,[^()]*)?\)$")
_FIXED_ZERO = lazy(r"[+-]?0\.0{2,}$")
_THOUSANDS = lazy(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_PLAIN = lazy(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$")
#: A token longer than this is no number: `%f` writes the largest double with 309 digits.
MAX_TOKEN = 400
#: A key longer than this names no signal; readers leave it out, so that no look-up pays for its length.
MAX_KEY = 200
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d\u00a0\uff0c\uff1a", "''\"\" ,:")
#: One number-like token, for readers' regular expressions.
NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf|NaN|NAN|INF|Inf|Infinity)"
ANSI = lazy(r"\x1b\[[0-9;?]*[A-Za-z]")
_PAIR = lazy(
    r"""(['"])(?P<key>[^'"\n]{1,200}?)\1\s*:\s*
        (?: (['"])(?P<quoted>[^'"\n]{0,400}?)\3
          | (?P<wrapped>[A-Za-z_][\w.]*\([^()]{0,80}\))
          | (?P<bare>[^\s,}{\[\]'"][^,}{\[\]'"]{0,60})
        )""",
    re.VERBOSE,
)


def number(token: str) -> Cell | None:
    """Read one token as a number, or None when it is not one.

    Accepts plain and wrapped floats (`np.float64(0.1)`, `tensor(0.1, device='cuda:0')`), thousands separators, the
    words for non-finite values in any case, booleans, and `null`/`None` (state `nonfinite`: the kind is unknown).
    A zero printed with two or more fixed decimals is `quantised`: it may be any value below half the last digit.
    A zero in exponent form (`0.000000E+00`) is exact: that form prints every other number with its digits.
    """
    token = token.strip()
    if not token or len(token) > MAX_TOKEN:
        return None
    first = token[0]
    if first in "0123456789.+-":
        if _PLAIN.match(token):
            if token[0] in "0+-." and _FIXED_ZERO.match(token):
                return Cell(0.0, QUANTISED)
            return _finite(token)
        if _THOUSANDS.match(token):
            return _finite(token.replace(",", ""), token)
    word = token.lower()
    if word in _WORDS:
        return Cell(None, _WORDS[word], token)
    if word in _BOOLS:
        return Cell(_BOOLS[word], raw=token)
    if token[-1] == ")" and len(token) < 120 and (wrapped := _WRAPPED.match(token)):
        inner = number(wrapped.group(1))
        return Cell(inner.value, inner.state, token) if inner else None
    if token[-1] in "%" and _PLAIN.match(token[:-1]):
        return _finite(token[:-1], token)
    return None


def _finite(digits: str, raw: str | None = None) -> Cell:
    value = float(digits)
    if isfinite(value):
        return Cell(value, raw=raw)
    return Cell(None, POS_INF if value > 0 else NEG_INF, raw or digits)  # 1e999: larger than a double


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Walk the `'key': value` pairs of a printed dict, nested ones flattened; yields (key, token)."""
    for found in _PAIR.finditer(text):
        token = found["quoted"] if found["quoted"] is not None else found["wrapped"] or found["bare"]
        yield found["key"], token.strip()


def native(value: object) -> Cell | None:
    """Read a parsed JSON value as a cell; numbers in strings count, other strings, lists, and dicts do not."""
    if isinstance(value, bool):
        return Cell(float(value))
    if isinstance(value, (int, float)):
        try:
            value = float(value)
        except OverflowError:
            return Cell(None, POS_INF if value > 0 else NEG_INF, hex(int(value))[:40])
        if isnan(value):
            return Cell(None, NAN, "NaN")
        if value in (float("inf"), float("-inf")):
            return Cell(None, POS_INF if value > 0 else NEG_INF, "Infinity" if value > 0 else "-Infinity")
        return Cell(value)
    if value is None:
        return Cell(None, NONFINITE, "null")
    if isinstance(value, str) and len(value) < 64:
        return number(value)
    return None


def masked_norm(cell: Cell) -> Cell:
    """DeepSpeed writes -1.0 where a gradient norm was NaN or Inf (`mask_nan_or_inf_with_val_inplace`); say so."""
    return Cell(None, MASKED, cell.raw or "-1.0") if cell.value == -1.0 else cell


def plain(line: str) -> str:
    """The line without ANSI colour codes and with straight quotes (tickets go through editors that curl them)."""
    if "\x1b" in line:
        line = ANSI.sub("", line)
    return line if line.isascii() else line.translate(_STRAIGHT)
