"""Resolves a writer's key to a canonical signal (`signals.toml`); one definition of every name.

Lookup order, which is also the order of trust (`how`): the key as written (`exact`); normalised for case, spaces, dashes,
dots (`normalised`); with its leading path segments removed one by one (`suffix`: `my_run/train/grad_norm`); by its words,
where each that is not the signal's says only where, when, or which statistic (`token`: `Policy Loss`, `trainGradNorm`).
A prefix that means evaluation moves the signal to the `eval` axis, one that means the critic to its role; one that means
another model, a time, or a setting ends the search. What resolves to nothing keeps its raw key as its signal and is
listed as unrecognised; a name listed as `plain` keeps it too and is not.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from faultproxy.analyzer.lazy import lazy
from faultproxy.analyzer.trace import Key

_STATS = "mean|max|min|std|median|p10|p25|p50|p75|p90|p95|p99"
_PLACE = {
    "stat": rf"(?P<stat>{_STATS})",
    "layer": r"(?P<layer>\d+)",
    "expert": r"(?P<expert>\d+)",
    "label": r"(?P<label>.+?)",
    "n": r"\d+",
}
_EVAL = lazy(r"^(?:eval|validation|valid|val|test)(?:[_/\-. ]|(?=loss))(?:set[_/ ])?(?P<rest>.+)$", re.IGNORECASE)
#: `train_rollout_kl (megatron impl)`: a name with a remark behind it.
_REMARK = lazy(r"^(?P<key>.*\S)\s+[(\[][^()\[\]]*[)\]]$")
#: Words of a path segment under which a familiar word means something else (`timing_s/reward` is a time).
FOREIGN = frozenset((
    "timing", "time", "timer", "timers", "times", "perf", "performance", "system", "ray", "machine", "hardware",
    "reward_model", "rm", "teacher", "ref", "reference", "draft", "discriminator", "target", "ema",
    "config", "configs", "cfg", "args", "hparams", "hyperparameters", "params", "vs",
))  # fmt: skip
CRITIC = frozenset({"critic", "value", "values", "vf"})
_ACTOR = frozenset({"actor", "policy"})
_EVALUATION = frozenset({"eval", "val", "valid", "validation", "test", "dev", "heldout"})
#: Words that say when or over what a value was taken, nothing about what it is.
_FILLERS = frozenset((
    "train", "training", "trn", "avg", "average", "mean", "total", "global", "overall", "batch", "minibatch", "mb",
    "current", "cur", "curr", "running", "smoothed", "ppo", "grpo", "rl", "rlhf", "dpo", "sft", "dapo", "gspo", "rloo",
    "trainer", "optim", "optimizer", "metrics", "metric", "stats", "losses",
))  # fmt: skip
_WORD = lazy(r"p\d{2}(?!\d)|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME = lazy(r"[\w\s/.:()\[\]#%-]+\Z", re.ASCII)
#: `learning-rate(group0)`, `lr/group_0`, `lr-pg_0`: the first of several groups stands for the run.
_GROUP = lazy(r"[\s_/(\[.-]*(?:group|pg)[\s_]?0[)\]]?\Z", re.IGNORECASE)
#: A unit among the words of a name, and the factor to the unit of the signal it may stand beside.
_UNITS = {
    "s": {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0},
    "GiB": {"mb": 1 / 1024, "mib": 1 / 1024},
    "fraction": {"pct": 1e-2, "percent": 1e-2, "%": 1e-2},
}
#: `max_grad_norm`, `max_lr`, `max_response_length` are settings; only of these does a leading word take a statistic.
_LEADING_STAT = {"reward", "score", "return", "advantage", "entropy", "loss"}
#: Signals that a critic has of its own; its loss is `value_loss`.
_OF_CRITIC = {"grad_norm", "lr", "loss", "params_norm", "update_time", "mfu"}
#: One letter is a name only as loops write it.
_LETTERS = {"L": "loss", "R": "return"}
#: Exporters that allow no slash write an underscore (Prometheus): `actor_pg_loss`. Only below these is that safe.
_FLAT = ("actor/", "critic/", "rollout_corr/", "response_length/", "prompt_length/", "training/", "timing_s/", "perf/")
#: Writers that number layers otherwise than the model does (verl counts router-returning layers only): the index
#: stays in `module` until a config resolves it (docs/formats.md).
_MODULE_LAYERS = ("rollout/moe/",)
#: What each way of finding a name adds to its rank, so that a better one wins where two keys meet.
_RANK = {"exact": 0, "normalised": 100, "suffix": 200, "remark": 300, "token": 400}


class Resolved(NamedTuple):
    """A canonical key, the factor to its unit, the alias rank (lower wins when two keys meet), and how it was found."""

    key: Key
    scale: float = 1.0
    rank: int = 0
    known: bool = True
    how: str = "exact"

    @property
    def listed(self) -> bool:
        """Whether the vocabulary has the name, as a signal or as a plain name."""
        return self.known or self.how == "plain"


class _Tables(NamedTuple):
    """The vocabulary, indexed: aliases as written and normalised; patterns with what comes before and behind their places;
    phrases by their sorted words; the unit of every signal."""

    exact: dict[str, Resolved]
    normal: dict[str, Resolved]
    patterns: list[tuple[str, str, str, Resolved]]
    phrases: dict[tuple[str, ...], Resolved]
    units: dict[str, str]


@cache
def signals() -> dict[str, dict[str, Any]]:
    """The vocabulary as data: signal entry name to its table."""
    return tomllib.loads(files("faultproxy.analyzer").joinpath("signals.toml").read_text(encoding="utf-8"))


def _normal(key: str) -> str:
    return re.sub(r"(?<=[a-z_])\.(?=[a-z_])", "/", re.sub(r"[\s\-]+", "_", key.strip().lower()))


@cache
def _tables() -> _Tables:
    tables = _Tables({}, {}, [], {}, {})
    flat: list[tuple[str, Resolved]] = []
    for name, entry in signals().items():
        base = Key(entry.get("signal", name), entry.get("axis", "train"), entry.get("role"), entry.get("stat"))
        plain = entry.get("plain", False)
        tables.units.setdefault(base.signal, entry.get("unit", ""))
        for rank, alias in enumerate(entry["keys"]):
            found = Resolved(
                base, entry.get("scale", {}).get(alias, 1.0), rank, not plain, "plain" if plain else "exact"
            )
            if "{" in alias:
                tables.patterns.append((alias.partition("{")[0], alias.rpartition("}")[2], alias, found))
            else:
                tables.exact[alias] = found
            if alias.startswith(_FLAT) and "{label}" not in alias and not plain:
                flat.append(
                    (alias.replace("/", "_"), found._replace(rank=rank + _RANK["normalised"], how="normalised"))
                )
        if not plain:
            tables.exact.setdefault(name, Resolved(base, rank=99))
        for phrase in entry.get("words", ()):
            tables.phrases[tuple(sorted(phrase.split()))] = Resolved(base, rank=_RANK["token"], how="token")
    for alias, found in tables.exact.items():
        how = found._replace(rank=found.rank + _RANK["normalised"], how="normalised" if found.known else found.how)
        tables.normal.setdefault(_normal(alias), how)
    for alias, found in flat:
        if "{" in alias:
            tables.patterns.append((alias.partition("{")[0], alias.rpartition("}")[2], alias, found))
        else:
            tables.normal.setdefault(alias, found)
    return tables


@cache
def _pattern(alias: str) -> re.Pattern[str]:
    pattern = re.escape(alias).replace(r"\{", "{").replace(r"\}", "}")
    for place, regex in _PLACE.items():
        pattern = pattern.replace("{" + place + "}", regex)
    return lazy(pattern + r"\Z")


@cache
def _patterns(first: str) -> list[tuple[str, str, str, Resolved]]:
    """The patterns a name that begins with this character may have; most names are asked of few."""
    return [pattern for pattern in _tables().patterns if pattern[0][:1] in ("", first)]


def _lookup(key: str) -> Resolved | None:
    """The key as an alias or by a pattern; a plain name comes back under its own name, not `known`."""
    tables = _tables()
    found = tables.exact.get(key) or tables.normal.get(_normal(key))
    if found:
        return found if found.known else _plain(key)
    for before, behind, alias, base in _patterns(key[:1]):
        if key.startswith(before) and key.endswith(behind) and (match := _pattern(alias).match(key)):
            if not base.known:
                return _plain(key)
            groups = match.groupdict()
            layer = int(groups["layer"]) if groups.get("layer") else None
            module = None
            if layer is not None and key.startswith(_MODULE_LAYERS):
                layer, module = None, f"moe[{layer}]"
            expert = int(groups["expert"]) if groups.get("expert") else None
            stat, label = groups.get("stat", base.key.stat), groups.get("label")
            key_ = base.key._replace(
                stat=None if stat == "mean" else stat, label=label, layer=layer, expert=expert, module=module
            )
            return base._replace(key=key_)
    return None


def _plain(key: str) -> Resolved:
    return Resolved(Key(key, axis="eval" if _EVAL.match(key) else "train"), known=False, how="plain")


@lru_cache(maxsize=65_536)
def resolve(key: str) -> Resolved:
    """Resolve one raw key. Never fails: an unknown key comes back as its own signal with `known` False."""
    found = _lookup(key)
    if found and found.known:
        return found
    evaluated = _EVAL.match(key)
    if evaluated and not found:
        rest = evaluated["rest"]
        inner = _lookup(rest) or _suffix(rest)
        if inner and inner.known:
            return inner._replace(key=inner.key._replace(axis="eval"))
        if rest.endswith(("_loss", "/loss")) and not FOREIGN & set(words(rest)):
            return Resolved(Key("loss", axis="eval"), rank=300, how="suffix")  # `eval_<set>_loss`: one of several sets
    if not found:
        found = _suffix(key) or _by_words(key)
        remark = _REMARK.match(key) if found is None else None
        if remark and (inner := resolve(remark["key"])).known:
            return inner._replace(rank=inner.rank + _RANK["remark"], how="suffix")
    return found or Resolved(Key(key, axis="eval" if evaluated else "train"), known=False, how="raw")


def _suffix(key: str) -> Resolved | None:
    """The longest tail of a path that is a name, where no segment before it means something else."""
    rest = key if "/" in key or key.count(".") > 1 else _normal(key)  # `a.b.c` is a setting's path
    critic = evaluated = False
    while "/" in rest:
        head, _, rest = rest.partition("/")
        before = set(words(head)) | {head.lower()}
        if before & FOREIGN or not rest:
            return None
        critic |= bool(before & CRITIC)
        evaluated |= bool(before & _EVALUATION)
        inner = _lookup(rest) or (_by_words(rest) if "/" not in rest else None)
        if inner and not inner.known:
            return _plain(key)
        if inner:
            # A component of a longer name is weaker evidence than the name itself, so any exact key outranks it.
            inner = inner._replace(rank=inner.rank + _RANK["suffix"], how="suffix" if inner.how != "token" else "token")
            if evaluated:
                inner = inner._replace(key=inner.key._replace(axis="eval"))
            return _of_critic(inner) if critic else inner
    return None


def _of_critic(found: Resolved) -> Resolved | None:
    """The same signal of the critic, or None where only the policy has it."""
    if found.key.role == "critic":
        return found
    if found.key.signal not in _OF_CRITIC:
        return None
    signal = "value_loss" if found.key.signal == "loss" else found.key.signal
    return found._replace(key=found.key._replace(signal=signal, role="critic"))


def words(key: str) -> list[str]:
    """The words of a name in lower case: `trainGradNorm`, `train/grad-norm`, and `Train grad norm` have the same."""
    return [word.lower() for word in _WORD.findall(key)]


def _by_words(key: str) -> Resolved | None:
    """A name by its words: all are a phrase of one signal, or say where, when, by whom, or which statistic."""
    tables = _tables()
    if key in _LETTERS:
        return Resolved(Key(_LETTERS[key]), rank=_RANK["token"], how="token")
    if not _NAME.match(key) or key.count(".") > 1:
        return None
    grouped = _GROUP.search(key)
    parts = words(key[: grouped.start()] if grouped else key)
    if "%" in key:
        parts.append("%")
    if not parts or len(parts) > 8:
        return None
    statistics = [part for part in parts if re.fullmatch(_STATS, part) and part != "mean"]
    core = [part for part in parts if part not in _FILLERS | _EVALUATION and part not in statistics]
    found = tables.phrases.get(tuple(sorted(parts))) or tables.phrases.get(tuple(sorted(core)))
    critic = False
    if found is None and (found := tables.phrases.get(tuple(sorted(p for p in core if p not in _ACTOR)))) is None:
        critic = bool(CRITIC & set(core))
        found = tables.phrases.get(tuple(sorted(p for p in core if p not in CRITIC))) if critic else None
    if found is None:
        found = _with_unit(core)
    if found is None or len(statistics) > 1 or (grouped and found.key.signal != "lr"):
        return None
    key_ = found.key
    if statistics:
        if parts[0] == statistics[0] and key_.signal not in _LEADING_STAT:
            return None
        key_ = key_._replace(stat=statistics[0])
        if key_.column in signals():  # `rewards_std`: over the batch or within groups, it does not say
            return None
    if _EVALUATION & set(parts):
        key_ = key_._replace(axis="eval")
    found = found._replace(key=key_)
    return _of_critic(found) if critic else found


def _with_unit(core: list[str]) -> Resolved | None:
    """`step time ms`: a phrase beside a unit of what it measures."""
    tables = _tables()
    for at, part in enumerate(core):
        found = tables.phrases.get(tuple(sorted(core[:at] + core[at + 1 :])))
        factor = _UNITS.get(tables.units[found.key.signal], {}).get(part) if found else None
        if found and factor is not None:
            return found._replace(scale=factor)
    return None
