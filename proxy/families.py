"""What each family of models calls its numbers and tensors: the rows of families.toml, checked.

docs/families.md has the keys of a row. proxy/shape.py reads one model by its row, proxy/cut.py cuts it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from faultproxy.analyzer.errors import FaultproxyError, InputError, no_such
from faultproxy.analyzer.report.clean import visible

Keys = tuple[str, ...]
Config = dict[str, Any]
#: Levels of a config; those of models known here have at most 6.
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Fused:
    """One tensor with the weights of all experts; axis `E`, or `EI` where experts lie below each other in one axis."""

    name: str
    axes: Keys
    gate_up: str = ""

    @property
    def axis(self) -> int:
        """The axis that counts experts."""
        return next(n for n, letter in enumerate(self.axes) if letter in ("E", "EI"))

    @property
    def stacked(self) -> bool:
        """Whether an expert is several rows of the axis."""
        return "EI" in self.axes


@dataclass(frozen=True)
class Family:
    """A row of families.toml; docs/families.md says what each key means."""

    name: str
    model_types: Keys
    experts: Keys = ()
    block: str = ""
    router: Keys = ()
    prefixes: Keys = ()
    layers: Keys = ()
    layers_twice: Keys = ()
    top_k: Keys = ()
    expert_width: Keys = ()
    parts: Keys = ()
    fused: tuple[Fused, ...] = ()
    router_axis: Mapping[str, int] = field(default_factory=dict)
    tables: Keys = ()
    zero_experts: Keys = ()
    shared: Keys = ()
    shared_count: Keys = ()
    shared_width: Keys = ()
    mtp: Keys = ()
    mtp_prefixes: Keys = ()
    groups: Keys = ()
    top_groups: Keys = ()
    group_score: str = ""
    grouped_by_top_k: bool = False
    fixed_top_k: int = 0
    whole_experts: str = ""
    scoring: str = "softmax"
    renormalise: str = "always"
    sparse_lists: Keys = ()
    sparse_values: Keys = ("sparse",)
    hashed: Keys = ()
    sparse_index: Keys = ()
    dense_index: Keys = ()
    dense_first: Keys = ()
    last_sparse: Keys = ()
    step: Keys = ()
    frequency: Keys = ()
    period: Keys = ()
    attention_lists: Keys = ()
    attention_step: Keys = ()
    attention_period: Keys = ()
    attention_index: str = ""
    attention_between: str = "linear_attention"
    attends: Keys = ()
    depth_scaled: Keys = ()
    listed: Keys = ()
    borrows: Keys = ()
    index_from_one: Keys = ()
    per_layer: Keys = ()
    not_per_layer: Keys = ()
    leading: Keys = ()
    nested: Keys = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = True
    qk_norm: str = ""
    qkv_bias: bool = False
    expert_bias: bool = False
    tied: bool = False
    gated_delta: bool = False
    uncounted: str = ""

    @cached_property
    def layer_name(self) -> re.Pattern[str]:
        """A tensor of a layer: the prefix, the layer's number, the rest."""
        return re.compile(rf"({'|'.join(map(re.escape, self.prefixes))})\.([0-9]{{1,6}})\.(.+)")

    @cached_property
    def expert_name(self) -> re.Pattern[str]:
        """Within a layer, a tensor of one expert: the path, the expert's number, its part, and what it is of that part."""
        return re.compile(
            rf"({re.escape(self.block)}\.experts)\.(0|[1-9][0-9]{{0,5}})\.({'|'.join(self.parts) or '(?!)'})\.([a-z0-9_]+)"
        )


@cache
def companions() -> Mapping[str, Keys]:
    """Suffixes of quantised tensors, of fused tensors and of one expert's."""
    return {key: tuple(value) for key, value in _document()["companions"].items()}


@cache
def families() -> Mapping[str, Family]:
    """All rows of families.toml by name.

    Raises:
        FaultproxyError: A row is wrong; the message names it and the key.
    """
    return read_families(_document())


def read_families(document: Mapping[str, Any]) -> dict[str, Family]:
    """The rows of a document laid out like families.toml."""
    found: dict[str, Family] = {}
    rows = document["family"]
    owner: dict[str, str] = {}
    for name in rows:
        row = dict(document["common"])
        for ancestor in reversed(_ancestry(name, rows)):
            row |= rows[ancestor]
        row.pop("like", None)
        family = _family(name, row)
        for model_type in family.model_types:
            if owner.setdefault(model_type, name) != name:
                raise FaultproxyError(
                    f"families.toml: {name} and {owner[model_type]} both claim model_type {model_type!r}"
                )
        found[name] = family
    return found


def find_family(config: Config) -> Family:
    """The family of a config.json, by the model_type of its nested text config, else by its own."""
    _check_depth(config)
    known = {model_type: family for family in families().values() for model_type in family.model_types}
    nested = next(iter(families().values())).nested
    tried = [holder.get("model_type") for _, holder in holders(config, nested)]
    for model_type in tried:
        if isinstance(model_type, str) and model_type in known:
            return known[model_type]
    raise no_such("model_type of a known family", visible(str(tried[0]))[:80], known, "docs/families.md lists all")


def holders(config: Config, nested: Keys) -> list[tuple[str, Config]]:
    """The dicts of a config that may describe its language model, the innermost first, each with its dotted path."""
    found = [("", config)]
    while inner := [
        (f"{found[0][0]}{key}.", found[0][1][key]) for key in nested if isinstance(found[0][1].get(key), dict)
    ]:
        found.insert(0, inner[0])
    return found


def _check_depth(config: Config) -> None:
    level: list[Any] = [config]
    for _ in range(MAX_DEPTH):
        inner = (each for one in level for each in (one.values() if isinstance(one, dict) else one))
        if not (level := [each for each in inner if isinstance(each, (dict, list))]):
            return
    raise InputError(f"this config nests deeper than the {MAX_DEPTH} levels that are read; is it a model's?")


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((files("faultproxy.proxy") / "families.toml").read_text("utf-8"))


def _ancestry(name: str, rows: Mapping[str, Any]) -> list[str]:
    line = [name]
    while like := rows[line[-1]].get("like"):
        if like not in rows or like in line:
            raise FaultproxyError(f"families.toml, row {line[-1]}: like = {like!r} is no other row")
        line.append(like)
    return line


def _family(name: str, row: dict[str, Any]) -> Family:
    wanted = {each.name: str(each.type) for each in fields(Family)}
    made: dict[str, Any] = {"name": name}
    kinds = {"Keys": list, "tuple[Fused, ...]": list, "str": str, "int": int, "bool": bool}
    for key, given in row.items():
        if key not in wanted:
            raise FaultproxyError(
                f"families.toml, row {name}: {no_such('key of a family', key, wanted, 'docs/families.md')}"
            )
        kind, got = kinds.get(wanted[key], dict), type(given)
        if got is not kind or (wanted[key] == "Keys" and not all(isinstance(one, str) for one in given)):
            raise FaultproxyError(
                f"families.toml, row {name}: {key} must be a {kind.__name__} ({wanted[key]}), not {given!r}"
            )
        made[key] = tuple(given) if kind is list else given
    try:
        fused = [Fused(**{**one, "axes": tuple(one["axes"])}) for one in row.get("fused", ())]
        family = Family(**made | {"fused": tuple(fused)})
    except (TypeError, KeyError) as error:
        raise FaultproxyError(f"families.toml, row {name}: {error}") from error
    allowed = {"scoring": ("softmax", "sigmoid", "sparsemixer"), "group_score": ("", "max", "top2")}
    wrong = [f"{key} must be one of {', '.join(ok)}" for key, ok in allowed.items() if getattr(family, key) not in ok]
    lacking = [key for key in ("block", "router") if not getattr(family, key)] + ["parts or fused"] * (
        not family.parts and not family.fused
    )
    wrong += [f"has experts, so it needs {', '.join(lacking)}"] * bool(family.experts and lacking)
    wrong += [f"fused {one.name} needs one axis E or EI" for one in family.fused if not {"E", "EI"} & set(one.axes)]
    wrong += [
        f"router_axis names {key}, which is no router tensor" for key in family.router_axis if key not in family.router
    ]
    if wrong:
        raise FaultproxyError(f"families.toml, row {name}: {'; '.join(wrong)}")
    return family
