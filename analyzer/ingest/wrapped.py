"""A printed dict behind a head (`step 12: {...}`), also when a terminal or an editor broke it over several lines.

The reader gives the head it looks for; what comes back are whole dicts, or what there was of one that was cut off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from faultproxy.analyzer.ingest.log import Log
from faultproxy.analyzer.lazy import lazy

#: A dict that is still open after this many characters, or lines, is no metric row.
_MOST, _LINES = 64_000, 4_000
#: What begins another record or a message, never the rest of a dict.
_OTHER = lazy(r"\s*(?:[\[(]|Traceback|File |\w+Error\b|20\d\d-|\x60{3})")


@dataclass(slots=True)
class Dict:
    """A dict's head, the lines it began and (so far) ends on, the rank that printed it, and its text so far."""

    head: re.Match[str]
    first: int
    last: int
    rank: int | None
    parts: list[str] = field(default_factory=list)
    size: int = 0
    depth: int = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)

    def add(self, part: str) -> bool:
        """Add what a line holds of it, and say whether every brace that opens is then closed."""
        self.parts.append(part)
        self.size += len(part)
        self.depth += part.count("{") - part.count("}")
        return self.depth <= 0

    def takes(self, line: str, number: int) -> bool:
        """Whether a line may be the rest of it."""
        fits = self.size < _MOST and len(self.parts) < _LINES
        return fits and number - self.last <= 1 and not _OTHER.match(line)


def dicts(line: str, log: Log, head: re.Pattern[str]) -> tuple[list[Dict], bool]:
    """The dicts that this line completes (or shows to be cut off), and whether the line was part of one.

    `head` ends right before the opening brace, behind a colon; `log.memory` keeps the dict that is still open under the head's own text.
    """
    found = head.search(line) if ": {" in line or ":{" in line else None
    done = []
    held: Dict | None = log.memory.get(head.pattern)
    if held is not None:
        del log.memory[head.pattern]
        if found is None and held.takes(line, log.line):
            held.last = log.line
            if held.add(line.strip()):
                return [held], True
            log.memory[head.pattern] = held
            return [], True
        done.append(held)
    if found is not None:
        new = Dict(found, log.line, log.line, log.rank)
        if new.add(line[found.end() :]):
            done.append(new)
        else:
            log.memory[head.pattern] = new
    return done, found is not None


def rest(log: Log, head: re.Pattern[str]) -> list[Dict]:
    """The dict that the end of the file left open, if any."""
    held: Dict | None = log.memory.pop(head.pattern, None)
    return [held] if held is not None else []
