"""Finds the named numbers in one line of any style: `a=1`, `a: 1`, `a 1`, `a .... 1`, `| a | 1 |`, `'a': 1`, `1.2k tok/s`.

Clocks, dates, source positions, and process ids go first, so that their digits are no metrics. A number keeps the unit
printed behind it. Where the step stands is for the caller to decide: `steps` offers what could be one. Every expression
takes time linear in the line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from faultproxy.analyzer.ingest.tokens import MAX_KEY, number
from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import FINITE, QUANTISED, Cell

#: Longer lines are data, not metrics.
MAX_LINE = 4000
_NOISE = lazy(
    r"\d{4}[-/.]\d\d[-/.]\d\d(?:[T ]+\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<![\w:])\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?![\w:])"
    r"|(?<![\w])[\w./-]{1,100}\.(?:py|cc|cpp|cuh?|rs|go|java|jl)(?::|, line |\()\d+\)?|\([\w.]{1,60}:\d{1,6}\)"
    r"|(?<!\w)(?:pid|tid|thread|local[_ ]rank|rank|gpu|cuda|node|worker|world[_ ]size|seed|port|device)\s?[=:#]?\s?\d+(?![\w.])"
    r"|^\s*[IWEFD]\d{4}\s|(?<!\w)\d\d[-/]\d\d(?=\s*\|)",
    re.IGNORECASE,
)
#: Words are taken whole (possessive, and never from their middle), which keeps the search linear in the line.
_NAME = r"(?!(?i:nan|inf|infinity|none|null)(?![\w./%@^-]))[A-Za-z][\w./%@^-]*+"
_KEY = rf"{_NAME}(?: {_NAME}){{0,3}}"
_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})++(?![,\d])(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|(?i:nan|inf(?:inity)?))"
_RATE = r"(?:(?i:tok(?:en)?s?|samples?|it(?:er)?s?|steps?|seqs?|imgs?)/s(?:ec)?|(?:m?s|sec)/(?:it(?:er)?|step|batch))"
_UNIT = rf"(?:[kKMG]?\s?{_RATE}|[kKMGT]i?B|(?i:ms|us|secs?|min|hrs?)|[smhkKMGBxX%])"
_PAIR = lazy(
    rf"(?<![\w./%@-])[\d_./%@-]*+(?P<key>{_KEY})[\"'`]?(?:\s*(?P<remark>[(\[][^()\[\]]{{1,20}}[)\]]))?"
    rf"(?P<sep>\s*(?:=>|->|[=:]|\.{{2,80}}|\|)\s*|\s+)[\"'`(\[#]?(?:(?:np\.|torch\.)?(?:float\d{{1,3}}|tensor|array)\(\[?)?"
    rf"(?P<value>{_NUMBER})(?:\s?(?P<unit>{_UNIT})(?![\w/]))?(?!\w)(?!\.\d)(?P<of>\s?/\s?\d{{1,12}}(?![\d.]))?"
)
_FIRST = lazy(rf"(?<![\w.])(?P<value>{_NUMBER})\s?(?P<unit>[kKM]?\s?{_RATE})(?![\w/])")
_FRACTION = lazy(r"(?:^|[\s\[(|#,])(?P<at>\d{1,12})\s?/\s?(?P<of>\d{1,12})(?=[\s\])|,:;]|$)")
_LEADING = lazy(r"\s*[\[(#<]{0,2}\s?(?P<at>\d{1,12})\s?[\])>:|,;.]{0,2}(?=\s|$)")
#: A name of a step, in its normal form, by how well it counts rows.
STEP_NAMES = {
    name: at
    for at, name in enumerate(
        ["num updates", "global step", "total step", "iteration", "iter", "it", "train step", "training step", "optimizer step", "opt step",
         "step", "update", "policy update", "upd", "round", "rollout", "episode", "batch", "minibatch", "mb", "i", "t", "s", "n", "#", "^", "epoch", "ep"]
    )
}  # fmt: skip
#: Of these a row number is no count of the whole run: they begin anew each epoch.
WITHIN_EPOCH = {"batch", "minibatch", "mb", "#", "i", "step", "iter", "iteration", "it"}
_MAGNITUDE = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}


class Pair(NamedTuple):
    """A name, its number, the unit behind it, and whether a sign (not only a space) ties the two."""

    key: str
    cell: Cell
    unit: str
    explicit: bool


class Scan(NamedTuple):
    """What one line names: its pairs in order, and every integer that could be its step (with what it is out of)."""

    pairs: list[Pair]
    steps: dict[str, tuple[int, int | None]]


def step_name(key: str) -> str | None:
    """The normal form of a name that counts steps, or None."""
    name = re.sub(r"[\s_\-.]+", " ", key.lower().rpartition("/")[2]).strip()
    name = name.removeprefix("train ").removesuffix("s") if name not in STEP_NAMES else name
    return name if name in STEP_NAMES else None


def scan(line: str) -> Scan | None:
    """Read one line; None when it names no number or is too long to be a metric line."""
    if len(line) > MAX_LINE:
        return None
    line = _NOISE.sub(" ; ", line)
    pairs: list[Pair] = []
    steps: dict[str, tuple[int, int | None]] = {}
    line = _FIRST.sub(lambda found: _value_first(found, pairs), line)
    end = 0
    rest = []
    for found in _PAIR.finditer(line):
        cell = number(found["value"].rstrip("."))
        key = found["key"]
        if cell is None or len(key) > MAX_KEY:
            continue
        rest.append(line[end : found.start()])
        end = found.end()
        counts = step_name(key) or (step_name(key.rpartition(" ")[2]) if found["sep"].isspace() else None)
        digits = found["value"].rstrip(".").replace(",", "")
        if counts and digits.isdigit() and len(digits) < 16 and not found["unit"]:
            total = int(found["of"].strip(" /")) if found["of"] else None
            steps.setdefault(counts, (int(digits), total))
            continue
        sep = found["sep"].strip()
        name = f"{key} {found['remark']}" if found["remark"] else key
        pairs.append(Pair(name, cell, (found["unit"] or "").replace(" ", ""), sep not in ("", "|")))
    rest.append(line[end:])
    for part in rest:
        if "#" not in steps and (at := _FRACTION.search(part)):
            steps["#"] = (int(at["at"]), int(at["of"]))
    if leading := _LEADING.match(line):
        steps["^"] = (int(leading["at"]), None)
    return Scan(pairs, steps) if pairs or steps else None


def _value_first(found: re.Match[str], pairs: list[Pair]) -> str:
    """Take `4.5k tok/s` as a pair where no name stands before it; what is left of the line has a gap there."""
    before = found.string[: found.start()].rstrip()
    last = before[-40:].rpartition(" ")[2]
    cell = number(found["value"])
    if cell is None or (before and before[-1] not in ",;|([{" and not number(last) and not last[:1].isdigit()):
        return found[0]
    unit = found["unit"].replace(" ", "")
    magnitude = unit[0] if unit[0] in "kKM" else ""
    pairs.append(Pair(unit.removeprefix(magnitude), cell, magnitude, True))
    return " ; "


def in_unit(cell: Cell, printed: str, wanted: str) -> Cell:
    """The number in the unit of its signal: `12ms` in s, `45%` as a fraction, `512MB` in GiB, `4.5k` as 4500."""
    factor = _MAGNITUDE.get(printed, 1.0)
    if wanted == "s":
        factor = {"ms": 1e-3, "us": 1e-6, "min": 60.0, "m": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0}.get(printed.lower(), 1.0)  # fmt: skip
    elif wanted == "fraction" and printed == "%":
        factor = 1e-2
    elif wanted == "GiB":
        factor = {"K": 2.0**-20, "M": 2.0**-10, "T": 2.0**10}.get(printed[:1], 1.0)
    elif len(printed) > 1 and printed[0] in "kKM" and "/" in printed and printed[1:2] != "s":
        factor = _MAGNITUDE[printed[0]]
    if factor == 1.0 or cell.value is None or cell.state not in (FINITE, QUANTISED):
        return cell
    return cell._replace(value=cell.value * factor)
