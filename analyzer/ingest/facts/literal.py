"""Reads a printed dict, a JSON object, or a repr (`TrainingArguments(lr=0.1, ...)`) into leaves by dotted key.

It walks tokens and evaluates nothing, so it takes what no parser does: bare words, enumerations, a dict that was cut off.
Depth, leaves, and the length of lists are bounded, and time is linear in the text.
"""

from __future__ import annotations

import re
from typing import Any

from faultproxy.analyzer.ingest.facts.found import Leaf, scalar
from faultproxy.analyzer.lazy import lazy

MAX_LEAVES, MAX_DEPTH, MAX_LIST = 20_000, 48, 4096
_TOKEN = lazy(
    r"""(?P<blank>\s++) | (?P<open>[{\[(]) | (?P<close>[}\])]) | (?P<mark>[,:=])
      | (?P<text>'(?:[^'\\\n]|\\.)*+'? | "(?:[^"\\\n]|\\.)*+"?) | (?P<word>[^\s{}\[\](),:='"]++ | .)""",
    re.VERBOSE,
)


class _Frame:
    """One open bracket: the key its leaves hang under, and what has been read of the entry at hand."""

    __slots__ = ("filled", "items", "key", "pending", "prefix")

    def __init__(self, prefix: str, listed: bool) -> None:
        self.prefix = prefix
        self.items: list[Any] | None = [] if listed else None
        self.pending: str | None = None
        self.key: str | None = None
        self.filled = False

    def place(self) -> str:
        """The dotted key of what opens inside this frame."""
        name = self.key if self.key is not None else self.pending or "" if self.items is None else "[]"
        return f"{self.prefix}.{name}" if self.prefix and name else self.prefix or name


def leaves(text: str, start: int = 0, line: int = 1) -> dict[str, Leaf]:
    """The leaves of the bracket that opens at or after `start`; `line` is the number of its first line."""
    found: dict[str, Leaf] = {}
    frames: list[_Frame] = []
    for token in _TOKEN.finditer(text, start):
        what, piece = token.lastgroup, token[0]
        if what == "blank":
            line += piece.count("\n")
        elif what == "open":
            if len(frames) >= MAX_DEPTH:
                break
            frames.append(
                _Frame(frames[-1].place() if frames else "", piece != "{" and not _calls(text, token.start()))
            )
        elif not frames:
            continue
        elif what == "close":
            closed = frames.pop()
            if not frames:
                break
            outer = frames[-1]
            if closed.items is not None and outer.key is not None and not outer.filled:
                found[closed.prefix] = (closed.items, line)
            outer.filled = True
        elif what == "mark":
            frame = frames[-1]
            if piece == ",":
                frame.pending = frame.key = None
                frame.filled = False
            elif frame.key is None and frame.pending is not None:
                frame.key, frame.filled = frame.pending, False
        else:
            _value(frames[-1], piece, found, line)
        if len(found) >= MAX_LEAVES:
            break
    return found


def _calls(text: str, at: int) -> bool:
    """Whether a parenthesis belongs to a call (`Name(`), whose entries are `key=value`."""
    return text[at] == "(" and at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_")


def _value(frame: _Frame, piece: str, found: dict[str, Leaf], line: int) -> None:
    if frame.items is not None:
        if len(frame.items) < MAX_LIST:
            frame.items.append(scalar(piece))
    elif frame.key is None:
        frame.pending = str(scalar(piece))[:100]
    elif not frame.filled:
        key = f"{frame.prefix}.{frame.key}" if frame.prefix else frame.key
        found[key] = (scalar(piece), line)
        frame.filled = True
