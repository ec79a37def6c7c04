"""What a plan says in sentences: what it keeps and why, what it saves, what it cannot reproduce, what to mind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faultproxy.proxy.cost.shape import parameters, shape_of
from faultproxy.proxy.cut import cut_model
from faultproxy.proxy.families import Config
from faultproxy.proxy.plan.cuts import Kept, kept_ids
from faultproxy.proxy.plan.price import Price
from faultproxy.proxy.plan.question import Degrees, Question, rules
from faultproxy.proxy.plan.wishes import Wish
from faultproxy.proxy.recipe import write_numbers
from faultproxy.proxy.shape import ModelShape

#: Below this share of the parameters a part of the saving goes without saying.
_SHARE = 0.01


def weights_of(question: Question, wish: Wish) -> tuple[str, str]:
    """`original` or `random`, and why."""
    row = rules()["factor"][wish.factor]
    row = row if "weights" in row else rules()["need"][row.get("need") or question.need or "unknown"]
    return row["weights"], row["why"]


def keeps(question: Question, wish: Wish, shape: ModelShape, kept: Kept) -> Iterator[str]:
    """What is kept and why."""
    yield from rules()["factor"][wish.factor].get("keeps", ())
    if question.need and (kept.layers == shape.layers or question.need != "policy"):
        yield rules()["need"][question.need]["keeps"]
    if shape.sparse:
        used, held = max(shape.top_k), kept.experts or max(shape.experts)
        choice = "so the router still chooses" if held > used else "so this router never chose"
        groups = f", the same number of each of {shape.groups} groups" if shape.groups > 1 else ""
        most = max(shape.experts)
        yield (
            f"{held} of {most} experts a layer: {held / used:.3g} x top-{used}, {choice}{groups}"
            if held < most
            else f"all {most} experts of each layer"
        )
    if question.layer is not None and kept.layers > question.layer:
        yield f"all layers up to {question.layer}, the first bad one, in order"
    for layer, ids in kept_ids(shape, kept.layers, question.experts).items() if None not in question.experts else ():
        yield f"experts {write_numbers(ids)} of layer {layer}, which are implicated"
    for ids in (question.experts[None],) if None in question.experts else ():
        yield f"experts {write_numbers(ids)} of each layer, which are implicated in one that is not known"


def lost(question: Question, wish: Wish, shape: ModelShape, kept: Kept, random: bool, before: Degrees | None, after: Degrees | None) -> Iterator[str]:  # fmt: skip
    """What the plan cannot reproduce."""
    most = max(shape.experts)
    if kept.experts is not None:
        yield f"faults of dropped experts, load and imbalance over {most} experts, kernels and tuning tables chosen by the number of experts"
        if question.layer is not None and wish.factor == "depth":
            yield f"exact values in layer {question.layer}: dropped experts change the hidden states that reach it"
    if before and after and before.ep > after.ep:
        yield f"all-to-all over {before.ep} ranks: {f'{after.ep} are' if after.ep > 1 else 'none is'} left"
    if before and after and before.pp > after.pp:
        yield f"a pipeline of {before.pp} stages: {f'{after.pp} are' if after.pp > 1 else 'none is'} left"
    yield "collectives, stragglers, and link faults at the original's scale"
    if kept.layers < shape.layers:
        yield f"faults of layers {kept.layers} to {shape.layers - 1}, and what builds up over them"
        if not random:
            yield f"reward and text of the trained policy: its head would read what layer {kept.layers - 1} hands on"
    if random:
        yield "what trained weights bring: outlier activations, a sharp policy"
    if shape.mtp_layers:
        yield "multi-token prediction: its layers are dropped"
    kind = question.failure_type or ""
    if kind in rules()["lost"] and (kept.experts is not None or not kind.startswith(("expert", "router"))):
        yield rules()["lost"][kind]


def saves(shape: ModelShape, kept: Kept, config: Config, whole: Price, left: Price) -> Iterator[str]:
    """Which saving comes from where."""
    deep = parameters(shape_of(cut_model(config, range(kept.layers)).config)).total
    layers, experts = whole.parameters - deep, deep - left.parameters
    if experts > _SHARE * whole.parameters:
        yield f"experts {max(shape.experts)} -> {kept.experts}: {_count(experts)} of {_count(whole.parameters)} parameters, so memory and devices; the work a token stays"
    if layers > _SHARE * whole.parameters:
        yield f"layers {shape.layers} -> {kept.layers}: {_count(layers)} parameters, and {1 - left.work / whole.work:.0%} of the work a step"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:,.1f} B" if parameters >= 1e8 else f"{parameters / 1e6:,.2f} M"


def warnings(
    question: Question, shape: ModelShape, kept: Kept, vendor: str, before: Degrees | None, after: Degrees | None
) -> Iterator[str]:
    """What to mind before the proxy is believed."""
    yield from kept.cut.warnings
    most = max(shape.experts)
    if vendor == "ascend" and kept.experts is not None:
        yield (
            f"{kept.experts} instead of {most} experts may route by another kernel: npu_moe_gating_top_k took 256 experts only, 384 from CANN 8.3, any "
            "number from CANN 8.3.RC1 with vllm-ascend #4356; if routing kernels are suspected, keep all experts and cut layers"
        )
    if before is None:
        yield "the layout is the smallest that fits, since the run's is not known or does not hold the model; --layout TP,PP,CP,EP scales yours down"
    elif after is not None:
        if kept.experts is not None and (rank := most // before.ep) != (now := kept.experts // after.ep):
            yield f"a rank holds {now} experts instead of {rank}: grouped matrix products have another shape"
        if after.tp != before.tp:
            yield f"TP {before.tp} -> {after.tp} to stay in the budget: matrix shapes and the order of sums change"


def matched(question: Question, shape: ModelShape, vendor: str) -> dict[str, dict[str, Any]]:
    """Precision settings of the run by name: `value` (None: not known) and `how` to find it in the original."""
    facts = question.facts.get("precision")
    known = facts if isinstance(facts, dict) else {}
    on = {"ascend": vendor == "ascend", "experts": bool(shape.sparse), "fp16": known.get("compute") in (None, "fp16"), "known": False}  # fmt: skip
    return {
        row["says"]: {"value": value, "how": row["how"]}
        for name, row in rules()["match"].items()
        if (value := known.get(name)) is not None or on.get(row.get("when", ""), True)
    }


def environment(question: Question, vendor: str) -> dict[str, str]:
    """Variables to set for the proxy and for the original that it is compared with."""
    facts = question.facts.get("precision")
    mode = facts.get("overflow_mode") if isinstance(facts, dict) else None
    asked = rules()["overflow"].get(mode, {}) if isinstance(mode, str) and vendor == "ascend" else {}
    return {**asked, **rules()["environment"][vendor]}
