"""Reads the block YAML that Hydra, W&B, Accelerate, and trainers write into leaves by dotted key.

A subset, on purpose: mappings by indentation, lists of scalars, one-line flow values, comments. Tags construct nothing,
an alias is no value (so nothing can multiply), lists of mappings and block text are passed over. `1e-06` is a number here.
"""

from __future__ import annotations

from typing import Any

from faultproxy.analyzer.ingest.facts.found import Leaf, scalar
from faultproxy.analyzer.ingest.facts.literal import MAX_LEAVES, MAX_LIST
from faultproxy.analyzer.ingest.facts.literal import leaves as flow
from faultproxy.analyzer.lazy import lazy

_MAX_DEPTH = 48
_ENTRY = lazy(
    r"""(?P<key>"[^"]{1,200}"|'[^']{1,200}'|[^\s:#\[\]{},&*!|>'"%@`-][^:#]{0,200}+)\s*:(?:\s+(?P<rest>.*))?$"""
)
_MARK = lazy(r"\A(?:[&!]\S++\s*)++")


def leaves(text: str) -> dict[str, Leaf]:
    """Leaves of one document; a line that is no entry of the subset is passed over, with all that is deeper."""
    found: dict[str, Leaf] = {}
    stack: list[tuple[int, str]] = []  # indentation and dotted key of the open mappings
    hidden: int | None = None  # lines deeper than this belong to what is passed over
    for number, raw in enumerate(text.split("\n"), 1):
        content = raw.strip()
        if not content or content[0] == "#" or content in ("---", "..."):
            continue
        indent = len(raw) - len(raw.lstrip(" "))
        if hidden is not None and indent > hidden:
            continue
        hidden = None
        if content[0] == "-" and content[1:2] in ("", " "):
            while stack and stack[-1][0] > indent:
                stack.pop()
            if stack and not _item(found, stack[-1][1], content[1:].strip(), number):
                hidden = indent
            continue
        while stack and stack[-1][0] >= indent:
            stack.pop()
        entry = _ENTRY.match(content)
        if entry is None or len(stack) >= _MAX_DEPTH or len(found) >= MAX_LEAVES:
            hidden = indent
            continue
        name = str(scalar(entry["key"].strip()))
        key = f"{stack[-1][1]}.{name}" if stack else name
        rest = _MARK.sub("", _bare(entry["rest"] or "")).strip()
        if not rest:
            stack.append((indent, key))
        elif rest[0] in "|>":
            hidden = indent
        elif rest[0] in "{[":
            _flow(found, key, rest, number)
        elif rest[0] != "*":
            found[key] = (scalar(rest), number)
    return found


def _item(found: dict[str, Leaf], key: str, text: str, line: int) -> bool:
    """Take a scalar of a list; anything larger is passed over."""
    rest = _bare(text)
    if not rest or rest[0] in "&*!{[|>-" or _ENTRY.match(rest):
        return False
    items: Any = found.setdefault(key, ([], line))[0]
    if isinstance(items, list) and len(items) < MAX_LIST:
        items.append(scalar(rest))
    return True


def _flow(found: dict[str, Leaf], key: str, text: str, line: int) -> None:
    if text[0] == "[":
        listed = flow("{x:" + text + "}").get("x")
        if listed is not None:
            found[key] = (listed[0], line)
        return
    found.update({f"{key}.{inner}": (value, line) for inner, (value, _) in flow(text).items()})


def _bare(text: str) -> str:
    """The text without the comment behind it; a quoted text is kept up to its end."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        return text[: end + 1] if end > 0 else text
    return text.partition(" #")[0].strip()
