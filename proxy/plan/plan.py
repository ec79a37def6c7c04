"""The plans for a question about a model: cut, priced, and explained."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.cost.estimate import Setting
from faultproxy.proxy.cost.shape import shape_of
from faultproxy.proxy.families import Config
from faultproxy.proxy.plan import words
from faultproxy.proxy.plan.cuts import Kept, expert_count, kept_ids, reach
from faultproxy.proxy.plan.price import Budget, Price, price, scaled
from faultproxy.proxy.plan.question import Degrees, Question
from faultproxy.proxy.plan.wishes import Wish, wishes
from faultproxy.proxy.recipe import Recipe
from faultproxy.proxy.shape import ModelShape, read_shape

#: Experts of all layers together; the largest public model has 23,000.
_MOST = 200_000


@dataclass(frozen=True)
class Plan:
    """One way to cut the model. `left`, `whole`: what proxy and original take, None where `unpriced` says why."""

    factors: tuple[str, ...]
    title: str
    recipe: Recipe
    shape: ModelShape
    kept: Kept
    device: str
    whole: Price | None
    left: Price | None
    unpriced: str
    weights_why: str
    precision: dict[str, dict[str, Any]]
    environment: dict[str, str]
    keeps: tuple[str, ...]
    saves: tuple[str, ...]
    cannot_reproduce: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the budget holds it; so where nothing is known of its cost."""
        return self.left.fits if self.left else self.whole is None

    @property
    def smaller(self) -> bool:
        """Whether anything is left out."""
        return self.kept.experts is not None or self.kept.layers < self.shape.layers

    @property
    def experts(self) -> tuple[int, int]:
        """Kept and all experts a layer; 0 for a dense model."""
        most = max(self.shape.experts)
        return self.kept.experts or most, most

    def command(self, source: str) -> str:
        """The `proxy build` that makes it from the checkpoint at `source`, into a new folder named for it."""
        out = f"proxy-{self.kept.layers}-layers" + (f"-{self.experts[0]}-experts" if self.experts[1] else "")
        where = source if not source.startswith("-") else f"./{source}"
        return shlex.join(["faultproxy", "proxy", "build", where, out, *self.recipe.flags()])

    def document(self, source: str) -> dict[str, Any]:
        """Plain data (docs/plan.md)."""
        found, whole, (kept, most) = self.left, self.whole, self.experts
        return {
            "factors": list(self.factors), "title": self.title, "layers": self.shape.layers, "layers_kept": list(range(self.kept.layers)),
            "experts": most, "experts_kept": kept, "top_k": max(self.shape.top_k), "weights": self.recipe.weights, "weights_why": self.weights_why,
            "precision": self.precision, "params": found and found.parameters, "params_original": whole and whole.parameters,
            "device": self.device, "devices": found and found.estimate.devices, "devices_original": whole and whole.estimate.devices,
            "device_hours_per_step": found and found.estimate.device_hours,
            "device_hours_per_step_original": whole and whole.estimate.device_hours,
            "cost": found and found.document(), "cost_original": whole and whole.document(), "unpriced": self.unpriced or None, "fits": self.fits,
            "saves": list(self.saves), "keeps": list(self.keeps), "cannot_reproduce": list(self.cannot_reproduce), "warnings": list(self.warnings),
            "environment": self.environment, "recipe": self.recipe.document(), "command": self.command(source),
        }  # fmt: skip


def plans(config: Config, question: Question, setting: Setting, budget: Budget | None = None) -> list[Plan]:
    """The plans for a question, the recommended first; those that the budget does not hold last, an undetermined factor's by cost.

    Raises:
        InputError: The configuration cannot be read or cut, or the question does not fit it.
    """
    budget, shape = budget or Budget(), read_shape(config)
    if (every := sum(shape.experts)) > _MOST:
        raise InputError(f"{every:,} experts in all; at most {_MOST:,} are planned for")
    odd = next((n for n in shape.sparse if not 0 < shape.top_k[n] <= shape.experts[n]), None)
    if odd is not None:
        raise InputError(
            f"layer {odd}: {shape.top_k[odd]} of {shape.experts[odd]} experts a token; 1 to all of them can be picked"
        )
    asked = question if shape.sparse else replace(question, experts={})
    question, setting, whole, why = _original(config, setting, asked)
    maker = _Maker(config, question, setting, budget, shape, whole, why)
    found: dict[tuple[Any, ...], Plan] = {}
    refused: InputError | None = None
    for wish in wishes(question, shape):
        try:
            plan = maker.plan(wish)
        except InputError as error:
            refused = refused or error
            continue
        key = (plan.kept.layers, plan.kept.experts, plan.recipe.weights)
        held = found.setdefault(key, plan)
        if held is not plan and plan.factors != held.factors:
            found[key] = replace(
                held, factors=(*held.factors, *plan.factors), keeps=tuple(dict.fromkeys((*held.keeps, *plan.keeps)))
            )
    if not found and refused is not None:
        raise refused
    made = [plan for plan in found.values() if plan.smaller] or list(found.values())
    ordered = sorted(made, key=_cost) if question.factor == "undetermined" else made
    return sorted(ordered, key=lambda plan: not plan.fits)


def _cost(plan: Plan) -> tuple[float, float, int]:
    """Device-hours to two digits, then devices; without them a number of experts. What serves more factors comes first at the same."""
    served = -len(plan.factors)
    if plan.left is None:
        return (0.0, plan.kept.layers * max(1, plan.experts[0]), served)
    return (float(f"{plan.left.estimate.device_hours:.1e}"), plan.left.estimate.devices, served)


def _original(config: Config, setting: Setting, question: Question) -> tuple[Question, Setting, Price | None, str]:
    """The price in the layout of the run, and what holds for its proxies too.

    Where that layout needs more of the memory than is usual, it gets all; where no cluster holds it, the run was sharded
    another way (FSDP, ZeRO), and any layout will do.
    """
    full = replace(setting, efficiency=replace(setting.efficiency, memory=1.0))
    why = ""
    for degrees, used in ((question.degrees, setting), (question.degrees, full), (None, setting)):
        try:
            found = price(shape_of(config), used, degrees, Budget())
            return replace(question, degrees=degrees), used, found, ""
        except InputError as error:
            why = str(error)
    return question, setting, None, why


@dataclass(frozen=True)
class _Maker:
    """What all plans of one question share."""

    config: Config
    question: Question
    setting: Setting
    budget: Budget
    shape: ModelShape
    whole: Price | None
    why: str

    def plan(self, wish: Wish) -> Plan:
        """The first step of the wish that the budget holds, else its last."""
        question, shape, vendor = self.question, self.shape, self.question.vendor(self.setting.device.name)
        kept, left, after, why = self._fitting(wish)
        after = replace(after, pp=left.layout.pp) if after is not None and left is not None else after
        weights, weights_why = words.weights_of(question, wish)
        recipe = Recipe(
            tuple(range(kept.layers)) if kept.layers < shape.layers else (), kept.experts,
            keep=kept_ids(shape, kept.layers, question.experts) if kept.experts else {}, weights=weights,
        )  # fmt: skip
        saved: tuple[str, ...] = ()
        if left is not None and self.whole is not None:
            saved = tuple(words.saves(shape, kept, self.config, self.whole, left))
        tight: tuple[str, ...] = ()
        if left is not None and not left.fits:
            tight = (f"beyond the budget: the least of this kind takes {left.estimate.devices:,} device{'s' * (left.estimate.devices > 1)} and {left.estimate.step:,.0f} s a step; fewer or shorter rollouts (--batch, --sequence) take less",)  # fmt: skip
        return Plan(
            (wish.factor,), wish.title, recipe, shape, kept, self.setting.device.name, self.whole, left, why, weights_why,
            words.matched(question, shape, vendor), words.environment(question, vendor), tuple(words.keeps(question, wish, shape, kept)), saved,
            tuple(words.lost(question, wish, shape, kept, weights == "random", question.degrees, after)),
            (*tight, *wish.notes, *words.warnings(question, shape, kept, vendor, question.degrees, after)),
        )  # fmt: skip

    def _fitting(self, wish: Wish) -> tuple[Kept, Price | None, Degrees | None, str]:
        best: tuple[Kept, Price | None, Degrees | None, str] | None = None
        for kept in self._steps(wish):
            if self.whole is None:
                return kept, None, self._degrees(kept), self.why
            for after in self._narrower(self._degrees(kept)):
                try:
                    left = self._price(kept, after)
                except InputError as error:
                    best = best or (kept, None, after, str(error))
                    continue
                if best is None or best[1] is None or left.fits or left.estimate.devices < best[1].estimate.devices:
                    best = (kept, left, after, "")
                if left.fits:
                    return best
        assert best is not None
        return best

    def _steps(self, wish: Wish) -> Iterator[Kept]:
        degrees, most = self.question.degrees, max(self.shape.experts)
        routed = "routing" in (wish.factor, self.question.need)
        each = most // degrees.ep if routed and degrees and degrees.ep > 1 and most % degrees.ep == 0 else 0
        for layers, how in wish.steps():
            for count in dict.fromkeys((expert_count(self.shape, how, each), expert_count(self.shape, how))):
                yield reach(self.config, self.shape, layers, count, self.question.experts)

    def _degrees(self, kept: Kept) -> Degrees | None:
        degrees, most = self.question.degrees, max(self.shape.experts)
        return degrees and scaled(degrees, most, kept.experts or most)

    def _narrower(self, degrees: Degrees | None) -> Sequence[Degrees | None]:
        """Less tensor parallelism only where a budget of devices asks for it."""
        if degrees is None or self.budget.devices is None:
            return (degrees,)
        return [replace(degrees, tp=degrees.tp >> n) for n in range(degrees.tp.bit_length()) if degrees.tp >> n]

    def _price(self, kept: Kept, degrees: Degrees | None) -> Price:
        """Seconds alone never give a proxy more devices than the original takes."""
        most = self.budget.devices or (self.whole.estimate.devices if self.whole and self.budget.seconds else None)
        return price(shape_of(kept.cut.config), self.setting, degrees, replace(self.budget, devices=most))
