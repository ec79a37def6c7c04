"""The catalogue of faults is complete and consistent, and mechanisms act on a loop through the published points."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.lab.programs import programs
from faultproxy.proxy.run.config import FaultSpec, ModelSpec, Program
from faultproxy.proxy.run.inject import fault, faults, inject

FACTORS = {"depth", "routing", "precision", "none"}
CAUSES = {"precision", "operator", "framework", "hyperparameter", "data", "reward", "config", "hardware"}
#: Faults that look alike on the signal named first, and the factors among them.
LOOK_ALIKES = {
    "nonfinite_act_frac": {"fp16_activation_overflow": "precision", "learning_rate_nan": "none", "input_feature_infinite": "none"},
    "nonfinite_grad_frac": {"attention_backward_nan": "precision", "log_of_zero": "none", "reward_nan": "none"},
    "mismatch_logp_abs": {
        "fp8_rollout_weights": "precision",
        "router_noise": "routing",
        "layer_gain": "depth",
        "logps_off_by_one": "none",
        "weights_not_synced": "none",
    },
    "grad_norm": {"loss_summed": "none", "layer_gradient_wrong": "depth", "reduction_summed": "none", "rank_nan": "none"},
}  # fmt: skip


def test_the_catalogue_covers_every_factor_and_cause() -> None:
    every = [row for row in faults() if row.kind == "fault"]
    assert len(every) >= 54
    assert {row.factor for row in every} == FACTORS
    assert {row.cause for row in every} == CAUSES
    assert sum(row.kind == "benign" for row in faults()) >= 5


@pytest.mark.parametrize("row", faults(), ids=lambda row: row.name)
def test_a_fault_is_declared_in_full(row: FaultSpec) -> None:
    assert row.factor in FACTORS and row.cause in CAUSES
    assert row.kind in {"fault", "benign"}
    assert len(row.levels) == 3
    assert len({tuple(sorted((name, str(value)) for name, value in level.items())) for level in row.levels}) == 3
    assert row.title and row.place and row.models
    assert set(row.moves.values()) <= {"+", "-", "?"}
    assert row.kind == "benign" or 1 <= len(row.moves) <= 4
    assert not set(row.moves) & set(row.clean)


def test_every_need_is_a_tag_of_some_program_and_every_fault_fits_some() -> None:
    tags = {tag for program in programs() for tag in program.tags}
    for row in faults():
        assert {need.removeprefix("-") for need in row.needs} <= tags, row.name
        assert any(row.fits(program) for program in programs()), row.name


@pytest.mark.parametrize("signal", LOOK_ALIKES)
def test_look_alikes_move_one_signal_and_differ_in_factor(signal: str) -> None:
    group = LOOK_ALIKES[signal]
    assert all(signal in fault(name).moves for name in group)
    assert {name: fault(name).factor for name in group} == group


def test_an_unknown_fault_names_the_nearest() -> None:
    with pytest.raises(InputError, match="router_noise"):
        fault("router_nois")


def fake_loop(**program: Any) -> Any:
    """A loop as far as the mechanisms below look into it: one trainer of two layers, points, and its own randomness."""
    torch = pytest.importorskip("torch")
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    points: dict[str, list[Any]] = {}
    engine = SimpleNamespace(
        layers=list(layers),
        names=[f"model.layers.{number}.weight" for number in range(2)],
        parameters=list(layers.parameters()),
        masters=list(layers.parameters()),
        refresh=lambda: None,
    )
    return SimpleNamespace(
        program=Program("tiny", "sort", ModelSpec(layers=2), ranks=2).changed(**program),
        trainer=engine,
        rollout=None,
        faults_rng=torch.Generator().manual_seed(0),
        points=points,
        at=lambda point, function: points.setdefault(point, []).append(function),
        step_number=0,
        lr=0.1,
    )


@pytest.mark.parametrize("row", faults(), ids=lambda row: row.name)
def test_arguments_of_a_fault_bind_to_its_mechanism(row: FaultSpec) -> None:
    pytest.importorskip("torch")
    from faultproxy.proxy.run.inject import mechanisms

    for level in row.levels:
        inspect.signature(mechanisms()[row.mechanism]).bind(None, **level)


def test_a_layer_gain_acts_on_what_the_layer_adds() -> None:
    torch = pytest.importorskip("torch")
    loop = fake_loop()
    x = torch.ones(1, 4)
    first, second = (layer(x).detach() for layer in loop.trainer.layers)
    inject(
        loop,
        FaultSpec(
            "f",
            "",
            "layer_gain",
            "depth",
            "operator",
            ({"gain": 2.0, "start": 1.0, "engine": "trainer"},) * 3,
            "",
            {},
            "",
        ),
        2,
    )
    assert torch.equal(first, loop.trainer.layers[0](x))
    torch.testing.assert_close(x + 2 * (second - x), loop.trainer.layers[1](x))


def test_a_backward_scale_leaves_the_forward_and_compounds_downwards() -> None:
    torch = pytest.importorskip("torch")
    loop = fake_loop()
    x = torch.ones(1, 4)

    def gradients() -> list[Any]:
        out = loop.trainer.layers[1](loop.trainer.layers[0](x))
        return [out.detach(), *torch.autograd.grad(out.sum(), loop.trainer.parameters)]

    healthy = gradients()
    inject(loop, fault("backward_scale"), 2)
    factor = fault("backward_scale").levels[2]["factor"]
    for wanted, found in zip((1.0, factor**2, factor), gradients(), strict=True):
        torch.testing.assert_close(wanted * healthy.pop(0), found)


def test_a_dropped_rank_loses_its_gradient_only() -> None:
    torch = pytest.importorskip("torch")
    loop = fake_loop()
    inject(loop, fault("rank_dropped"), 2)
    (change,) = loop.points["grad"]
    assert [1.0, 0.0] == [float(change(loop, [torch.ones(1)], rank)[0]) for rank in (0, 1)]


def test_a_fault_draws_from_its_own_generator() -> None:
    torch = pytest.importorskip("torch")
    drawing = [row for row in faults() if row.mechanism in {"bit_flip", "layer_reset"}]
    loops = [fake_loop() for _ in drawing]
    before = torch.random.get_rng_state()
    for loop, row in zip(loops, drawing, strict=True):
        own = loop.faults_rng.get_state()
        inject(loop, row, 2)
        assert not torch.equal(own, loop.faults_rng.get_state())
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_fault_that_does_not_fit_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="it lacks dp"):
        inject(fake_loop(ranks=1), fault("rank_nan"), 0)
    with pytest.raises(InputError, match="allowed are 0"):
        inject(fake_loop(), fault("rank_nan"), 3)


def test_other_routing_follows_the_family() -> None:
    """The decision for the router's own logits is the router's own decision, groups and bias included."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from faultproxy.proxy.run import models
    from faultproxy.proxy.run.mechanisms.routing import route

    for family in ("qwen3_moe", "mixtral", "olmoe", "deepseek_v3"):
        spec = ModelSpec(family, layers=1, hidden=16, heads=2, width=8, experts=8, top_k=2, groups=4, top_groups=2)
        (router,) = models.routers(models.decoder(models.build(spec, 16, 8, 0)).layers).values()
        torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
        own = router(torch.randn(32, 16, generator=torch.Generator().manual_seed(1)))
        _, weights, indices = route(router, own[0])
        assert torch.equal(own[2].sort(-1)[0], indices.sort(-1)[0]), family
        torch.testing.assert_close(own[1].sort(-1)[0], weights.sort(-1)[0])
