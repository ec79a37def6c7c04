"""Resolves a writer's key to a canonical signal (`signals.toml`); one definition of every name.

Lookup order: the key as written; the key normalised (case, spaces, dashes); then, for an unknown prefix, the key with
its leading path segments removed one by one (`my_run/train/grad_norm`). A prefix that means evaluation moves the
signal to the `eval` axis. What resolves to nothing keeps its raw key as its signal and is listed as unrecognised.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from faultproxy.analyzer.trace import Key

_STATS = "mean|max|min|std|median|p25|p50|p75|p99"
_PLACE = {
    "stat": rf"(?P<stat>{_STATS})",
    "layer": r"(?P<layer>\d+)",
    "expert": r"(?P<expert>\d+)",
    "label": r"(?P<label>.+?)",
}
_EVAL = re.compile(r"^(?:eval|validation|valid|val|test)(?:[_/\-. ]|(?=loss))(?:set[_/ ])?(?P<rest>.+)$", re.IGNORECASE)
#: `train_rollout_kl (megatron impl)`: a name with a remark behind it.
_REMARK = re.compile(r"^(?P<key>.*\S)\s+[(\[][^()\[\]]*[)\]]$")
#: First segments under which a familiar word means something else (`timing_s/reward` is a time).
_OTHER = {
    "timing",
    "timing_s",
    "timing_per_token_ms",
    "time",
    "timer",
    "perf",
    "performance",
    "system",
    "memory",
    "ray",
}
#: Writers that number layers otherwise than the model does (verl counts router-returning layers only): the index
#: stays in `module` until a config resolves it (docs/formats.md).
_MODULE_LAYERS = ("rollout/moe/",)


class Resolved(NamedTuple):
    """A canonical key, the factor to its unit, and the alias rank (lower wins when two keys meet)."""

    key: Key
    scale: float = 1.0
    rank: int = 0
    known: bool = True


@cache
def signals() -> dict[str, dict[str, Any]]:
    """The vocabulary as data: signal entry name to its table."""
    return tomllib.loads(files("faultproxy.analyzer").joinpath("signals.toml").read_text(encoding="utf-8"))


def _normal(key: str) -> str:
    return re.sub(r"[\s\-]+", "_", key.strip().lower())


@cache
def _tables() -> tuple[dict[str, tuple[Key, float, int]], list[tuple[re.Pattern[str], str, Key, int]]]:
    exact: dict[str, tuple[Key, float, int]] = {}
    patterns: list[tuple[re.Pattern[str], str, Key, int]] = []
    for name, entry in signals().items():
        base = Key(entry.get("signal", name), entry.get("axis", "train"), entry.get("role"))
        scale = entry.get("scale", {})
        for rank, alias in enumerate(entry["keys"]):
            if "{" in alias:
                pattern = re.escape(alias).replace(r"\{", "{").replace(r"\}", "}")
                for place, regex in _PLACE.items():
                    pattern = pattern.replace("{" + place + "}", regex)
                prefix = alias.partition("{")[0]
                patterns.append((re.compile(pattern + r"\Z"), prefix, base, rank))
            else:
                exact[alias] = (base, scale.get(alias, 1.0), rank)
        exact.setdefault(name, (base, 1.0, 99))
    for alias, found in list(exact.items()):
        exact.setdefault(_normal(alias), found)
    return exact, patterns


def _lookup(key: str) -> Resolved | None:
    exact, patterns = _tables()
    found = exact.get(key) or exact.get(_normal(key))
    if found:
        return Resolved(found[0], found[1], found[2])
    for pattern, prefix, base, rank in patterns:
        if key.startswith(prefix) and (match := pattern.match(key)):
            groups = match.groupdict()
            layer = int(groups["layer"]) if groups.get("layer") else None
            module = None
            if layer is not None and key.startswith(_MODULE_LAYERS):
                layer, module = None, f"moe[{layer}]"
            expert = int(groups["expert"]) if groups.get("expert") else None
            stat, label = groups.get("stat"), groups.get("label")
            return Resolved(
                base._replace(
                    stat=None if stat == "mean" else stat, label=label, layer=layer, expert=expert, module=module
                ),
                1.0,
                rank,
            )
    return None


@lru_cache(maxsize=65_536)
def resolve(key: str) -> Resolved:
    """Resolve one raw key. Never fails: an unknown key comes back as its own signal with `known` False."""
    found = _lookup(key)
    if found:
        return found
    evaluated = _EVAL.match(key)
    if evaluated:
        inner = _lookup(evaluated["rest"]) or _lookup(evaluated["rest"].rpartition("/")[2])
        if inner:
            return inner._replace(key=inner.key._replace(axis="eval"))
        if evaluated["rest"].endswith(("_loss", "/loss")):  # `eval_<set>_loss`: the loss on one of several sets
            return Resolved(Key("loss", axis="eval"), rank=300)
    rest = key
    while "/" in rest:
        head, _, rest = rest.partition("/")
        if rest and head.lower() not in _OTHER and (inner := _lookup(rest)):
            axis = "eval" if _EVAL.match(head + "/x") else "train"
            # A component of a longer name is weaker evidence than the name itself, so any exact key outranks it.
            return inner._replace(key=inner.key._replace(axis=axis), rank=inner.rank + 100)
    remark = _REMARK.match(key)
    if remark and (inner := resolve(remark["key"])).known:
        return inner._replace(rank=inner.rank + 200)
    return Resolved(Key(key, axis="eval" if evaluated else "train"), known=False)
