"""A plan in the report of `analyze`, where the run's model configuration is known; and where the weights of a run are.

It is read again from the file that the run's facts name. Nothing here may fail a diagnosis: what cannot be planned is said in
the report.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.facts import ORIGINS
from faultproxy.analyzer.report.clean import encodable, visible

if TYPE_CHECKING:
    from faultproxy.proxy.plan.plan import Plan

#: A model of Hugging Face's hub, as frameworks are told it.
_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
#: What was read from a line is no configuration.
_LINE = re.compile(r":\d+$")
#: Facts that a model's config.json states and hardly anything else does, tried in turn.
_TELLING = ("model.family", "model.kv_heads", "model.vocab", "model.hidden", "model.layers")
#: Stands in the build command for weights that are not known.
_WEIGHTS = "WEIGHTS"
#: Variants that a report has beside the recommended plan.
_OTHERS = 4


def config_path(facts: Mapping[str, Any]) -> str | None:
    """The model configuration that the facts of a run were read from, if it is a file on this machine."""
    origins = facts.get(ORIGINS)
    held = origins if isinstance(origins, Mapping) else {}
    for fact in _TELLING:
        path = held.get(fact)
        if isinstance(path, str) and not _LINE.search(path):
            return path
    return None


def source_of(config: str, facts: Mapping[str, Any]) -> tuple[str, str]:
    """Where the weights are: at the URL or in the folder of the configuration, else at the model path of the run; and what to mind."""
    if "://" in config:
        return config, ""
    path = Path(config)
    folder = path if path.is_dir() else path.parent
    try:
        if any(folder.glob("*.safetensors")) and (folder / "config.json").is_file():
            return str(folder), ""
    except OSError:
        pass
    model = facts.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    if isinstance(name, str) and name and name.isprintable():
        return (f"hf://{name}" if _HUB.fullmatch(name) and not Path(name).exists() else name), ""
    where = str(folder) if (folder / "config.json").is_file() else _WEIGHTS
    return where, f"no weights lie beside {visible(path.name, 200)}"


def documents(found: Sequence[Plan], source: str, note: str) -> tuple[list[dict[str, Any]], str]:
    """Plans as plain data, and what to mind of where their weights are; without any (`note`), only a plan of random ones can be built."""
    if not note:
        return [one.document(source) for one in found], ""
    places = [source if one.recipe.weights == "random" else _WEIGHTS for one in found]
    said = {
        source: "random ones are drawn by transformers (pip install 'faultproxy[proxy]')",
        _WEIGHTS: f"put their folder or URL in the place of {_WEIGHTS}",
    }
    made = [one.document(place) for one, place in zip(found, places, strict=True)]
    return made, f"{note}: {'; '.join(said[place] for place in dict.fromkeys(places))}"


def attach(report: dict[str, Any], device: str | None = None, budget: int | None = None) -> None:
    """Put plans and the commands that build them into the report of a failed run whose model configuration is known; they are for
    `device` instead of the run's, and for `budget` of them."""
    facts = report["run"]["facts"]
    path = config_path(facts) if report["verdict"] == "failed" else None
    if path is None:
        return
    from faultproxy.analyzer.ingest.facts.documents import json_object
    from faultproxy.analyzer.ingest.facts.model import is_model

    config = json_object(Path(path))
    if config is None or not is_model(config):
        return
    try:
        _check_same(config, facts)
        found = _section(config, path, report, device, budget)
    except InputError as error:
        found = {"refused": visible(str(error), 500)}
    except Exception as error:  # noqa: BLE001 - a diagnosis is worth more than a plan
        found = {"refused": f"a bug in faultproxy ({type(error).__name__}); please report it with {visible(path, 300)}"}
    report["proxy"] = {"config": encodable(path), **found}
    if found["refused"] is None:
        note = f" ({found['note']})" if found["note"] else ""
        report["reproduce"] += [
            {"title": f"build the proxy{note}", "command": found["command"]},
            {
                "title": "all plans, for a budget and device of yours",
                "command": _plan_command(report, encodable(path), device, budget),
            },
        ]


def _section(config: dict[str, Any], path: str, report: Mapping[str, Any], device: str | None, budget: int | None) -> dict[str, Any]:  # fmt: skip
    from faultproxy.proxy.cost.setting import setting
    from faultproxy.proxy.plan.plan import plans
    from faultproxy.proxy.plan.price import Budget
    from faultproxy.proxy.plan.question import asked, stated
    from faultproxy.proxy.plan.show import headline, priced

    facts, question = report["run"]["facts"], asked(report)
    used = setting(stated(facts) | ({"device_name": device} if device else {}))
    found = plans(config, question, used, Budget(budget))[: 1 + _OTHERS]
    if not found[0].smaller:
        raise InputError(
            "nothing of this model can be left out for this failure; a smaller model of the family may show it"
        )
    source, note = source_of(path, facts)
    (best, *others), note = documents(found, encodable(source), note)
    return {"refused": None, "summary": headline(best), "note": note or None, "priced": priced(used, question.devices), **best, "others": others}  # fmt: skip


def _check_same(config: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """A configuration beside a log may be another model's: what the log states is nearer to what ran."""
    from faultproxy.analyzer.ingest.facts.model import describe

    said, model = describe(config), facts.get("model")
    for name in ("layers", "experts", "hidden"):
        here, there = said.get(f"model.{name}"), model.get(name) if isinstance(model, Mapping) else None
        if here is not None and there is not None and here != there:
            raise InputError(
                f"the configuration states {here} for {name} and the run {there}; name the model's own with --model-config"
            )


def _plan_command(report: Mapping[str, Any], path: str, device: str | None, budget: int | None) -> str:
    """What gives the same plans: all that the plan took from the report, but for its precision settings."""
    from faultproxy.proxy.plan.question import asked, stated
    from faultproxy.proxy.recipe import write_numbers

    question = asked(report)
    known = stated(question.facts) | ({"device_name": device} if device else {})
    degrees, told = question.degrees, dict[str, Any]()
    told |= {"factor": question.factor, "type": question.failure_type, "layer": question.layer}
    told |= {"cause": "operator" if "operator" in question.causes else None}
    told |= {"layout": degrees and f"{degrees.tp},{degrees.pp},{degrees.cp},{degrees.ep}", "devices": budget}
    told |= {"device": known.get("device_name"), "algorithm": known.get("algorithm")}
    words = ["faultproxy", "proxy", "plan", path if not path.startswith("-") else f"./{path}"]
    words += [word for name, value in told.items() if value is not None for word in (f"--{name}", str(value))]
    for layer, ids in question.experts.items():
        words += ["--expert", f"{'any' if layer is None else layer}:{write_numbers(ids)}"]
    for name in ("batch", "sequence"):
        words += [f"--{name}", *map(str, known[name])] if name in known else []
    return shlex.join(words)
