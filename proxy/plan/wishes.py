"""What to try for a factor, the recommended first: how many layers and experts, and how far they may shrink under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.plan.cuts import fewer_layers
from faultproxy.proxy.plan.question import Question, rules
from faultproxy.proxy.shape import ModelShape


@dataclass(frozen=True)
class Wish:
    """Leading `layers` and `experts` a layer in the words of cuts.py; later entries are what a budget may force."""

    factor: str
    title: str
    layers: tuple[int, ...]
    experts: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def steps(self) -> Iterator[tuple[int, str]]:
        """Experts shrink first: they cost devices, and layers cost the fault."""
        return product(self.layers, self.experts)


def wishes(question: Question, shape: ModelShape) -> list[Wish]:
    """The variants for the question's factor; for `undetermined` the first of each factor.

    Raises:
        InputError: The question does not fit the model.
    """
    bad = question.layer
    if too_deep := [n for n in (bad, *question.experts) if n is not None and n >= shape.layers]:
        raise InputError(
            f"layer {too_deep[0]} is named, and this model has {shape.layers}; give the config.json of the model that ran"
        )
    wrong = [n for ids in question.experts.values() for n in ids if n >= max(shape.experts)]
    if wrong:
        raise InputError(
            f"expert {wrong[0]} is named, and this model has {max(shape.experts)}; give the config.json of the model that ran"
        )
    if question.factor == "routing" and not shape.sparse:
        raise InputError(
            f"{shape.family.name} has no router, so the factor cannot be routing; plan for --factor undetermined"
        )
    by_factor = {"routing": _routing, "depth": _depth, "precision": _precision, "none": _none}
    if question.factor != "undetermined":
        return by_factor[question.factor](question, shape)
    return [make(question, shape)[0] for factor, make in by_factor.items() if factor != "routing" or shape.sparse]


def _few(question: Question, shape: ModelShape) -> tuple[int, ...]:
    return fewer_layers(shape) if question.deepest is None else (question.deepest + 1,)


def _experts(shape: ModelShape) -> str:
    return ", fewer experts" if shape.sparse else ""


def _routing(question: Question, shape: ModelShape, factor: str = "routing") -> list[Wish]:
    through = shape.layers if question.layer is None else (question.deepest or 0) + 1
    whole = Wish(factor, "fewer experts", (through,), ("twice", "floor"))
    kernels = Wish(
        factor, "fewer layers, all experts: routing kernels stay as they are", _few(question, shape), ("all",)
    )
    return [kernels, whole] if "operator" in question.causes else [whole, kernels]


def _depth(question: Question, shape: ModelShape) -> list[Wish]:
    if question.layer is not None:
        through = ((question.deepest or 0) + 1,)
        fewer = Wish("depth", "layers up to the first bad one, fewer experts", through, ("twice", "floor"))
        exact = Wish(
            "depth", "layers up to the first bad one, whole: hidden states are the original's", through, ("all",)
        )
        return [fewer, exact] if shape.sparse else [exact]
    said = (
        "the first bad layer is not known: a gradient norm or activation by layer would name it, and --layer cuts there"
    )
    title = f"first half of the layers{_experts(shape)}: whether it still fails halves the search"
    half = Wish("depth", title, (max(-(-shape.layers // 2), (question.deepest or 0) + 1),), ("twice", "floor"), (said,))
    note = f"{said}; until then all {shape.layers} are kept, which saves no work"
    return (
        [Wish("depth", "all layers, fewer experts", (shape.layers,), ("twice", "floor"), (note,)), half]
        if shape.sparse
        else [half]
    )


def _precision(question: Question, shape: ModelShape) -> list[Wish]:
    few = Wish("precision", f"fewer layers{_experts(shape)}", _few(question, shape), ("twice", "floor"))
    whole = Wish("precision", "all layers, fewer experts: still a policy", (shape.layers,), ("twice", "floor"))
    kernels = Wish("precision", "fewer layers, all experts: kernels stay as they are", _few(question, shape), ("all",))
    found = [whole, few] if question.need == "policy" and question.layer is None and shape.sparse else [few]
    return [*found, kernels] if "operator" in question.causes and shape.sparse else found


def _none(question: Question, shape: ModelShape) -> list[Wish]:
    if question.need == "routing" and shape.sparse:
        return _routing(question, shape, "none")
    row = rules()["need"][question.need or "unknown"]
    if row["layers"] == "few":
        return [Wish("none", "few layers, each kind among them", _few(question, shape), (row["experts"], "floor"))]
    note = (
        ()
        if shape.sparse
        else (
            "nothing is left out: without experts a policy needs all its layers; a smaller model of the family may do",
        )
    )
    return [
        Wish("none", f"all layers{_experts(shape)}: still a policy", (shape.layers,), (row["experts"], "twice"), note)
    ]
