"""Makes text that came out of a log safe to show: nothing a log holds may move a cursor or reorder what a reader sees.

Reports keep log text as it was (JSON); the views for people pass it through here first.
"""

from __future__ import annotations

import re

#: C0 and C1 controls (escape sequences start with one), DEL, line and paragraph separators, the bidirectional
#: overrides that make text read as other text, and lone surrogates (file names that are no UTF-8).
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_BLANKS = re.compile(r"[\t\n\r\v\f]+")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def visible(text: str, limit: int | None = None) -> str:
    """One line in which every unsafe character is shown as its escape; cut at `limit` characters."""
    line = _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], _BLANKS.sub(" ", text))
    return line if limit is None or len(line) <= limit else line[: limit - 3].rstrip() + "..."


def encodable(text: str) -> str:
    """The text with lone surrogates, which no UTF-8 writer accepts, replaced by `?`."""
    return _SURROGATES.sub("?", text)
