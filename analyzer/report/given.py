"""Reads a JSON report that somebody hands us: it may come from anywhere, so it is checked against the schema first."""

from __future__ import annotations

import sys
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError

#: Real reports have up to a few hundred kB.
_MOST = 16 << 20


def load(path: str) -> list[Any]:
    """What a file (`-`: stdin) holds that `analyze --format json` may have written; it is not checked.

    Raises InputError for what is no JSON, empty, or larger than any report.
    """
    import orjson

    try:
        with sys.stdin.buffer if path == "-" else Path(path).open("rb") as stream:
            data = stream.read(_MOST + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > _MOST:
        raise InputError(f"{path}: has more than {_MOST >> 20} MiB; give one that `analyze --format json` wrote")
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}: is no JSON ({error}); give one that `analyze --format json` wrote") from error
    reports = found if isinstance(found, list) else [found]
    if not reports:
        raise InputError(f"{path}: holds no report")
    return reports


def given(path: str) -> list[dict[str, Any]]:
    """The reports in a file (`-`: stdin) that `analyze --format json` wrote.

    Raises InputError for what `load` refuses and for what breaks the schema.
    """
    import orjson

    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise InputError("to check a report, pip install 'faultproxy[ticket]' (its jsonschema)") from error
    reports = load(path)
    schema = orjson.loads(files("faultproxy.analyzer.report").joinpath("diagnosis-v1.schema.json").read_bytes())
    check = Draft202012Validator(schema)
    for at, report in enumerate(reports, 1):
        problems = [
            f"\n  - {'/'.join(map(str, error.absolute_path)) or '(top)'}: {error.message[:200]}"
            for error in islice(check.iter_errors(report), 5)
        ]
        if problems:
            raise InputError(f"{path}: report {at} is none of schema 1 (docs/report.md):{''.join(problems)}")
    return reports
