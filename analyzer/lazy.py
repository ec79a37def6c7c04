"""Regular expressions that are compiled when first used.

Every reader is loaded at every start, and a log is of one or two formats: compiling the expressions of all of them took
longer than judging a short log.
"""

from __future__ import annotations

import re
from typing import Any, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "split", "pattern")


class _Lazy:
    def __init__(self, pattern: str, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        # Asked once for each expression: from then on its methods are attributes of their own.
        compiled = re.compile(*self._source)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def lazy(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern like `re.compile` gives; a wrong one raises re.error at its first use (tests use every one)."""
    return cast("re.Pattern[str]", _Lazy(pattern, flags))
