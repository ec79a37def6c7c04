"""The programs of the lab, read from programs.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from faultproxy.analyzer.errors import no_such
from faultproxy.proxy.run.config import ModelSpec, Program, build


@cache
def _by_name() -> dict[str, Program]:
    rows = tomllib.loads(files("faultproxy.proxy.lab").joinpath("programs.toml").read_text(encoding="utf-8"))
    found = {}
    for name, row in rows.items():
        where = f"programs.toml, {name}"
        model = build(ModelSpec, row.pop("model", {}), f"{where}, model")
        found[name] = build(Program, row | {"name": name, "model": model}, where)
    return found


def programs() -> list[Program]:
    """Every program, in the order of programs.toml."""
    return list(_by_name().values())


def program(name: str) -> Program:
    """The program called `name`; an unknown name is an InputError with the nearest ones."""
    known = _by_name()
    if name not in known:
        raise no_such("program", name, known, "`faultproxy lab list`")
    return known[name]
