"""The training loop: exact, repeatable, and the same whatever the ranks, engines, and formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="the loop needs the extra `proxy`: pip install -c constraints.txt -e '.[proxy]'"
)

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.record import Recorder
from faultproxy.proxy.run import device, models, optim, precision
from faultproxy.proxy.run.config import FAMILIES, RL_ALGORITHMS, SUPERVISED, ModelSpec, Program
from faultproxy.proxy.run.engine import Engine
from faultproxy.proxy.run.loop import Loop

MOE = ModelSpec("qwen3_moe", layers=2, hidden=32, heads=2, kv_heads=1, width=32, experts=4, top_k=2)
TINY = Program("tiny", "reverse", MOE, prompts=4, group=4, warmup_steps=20, warmup_batch=32)


@pytest.fixture(autouse=True)
def _one_thread(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("FAULTPROXY_CACHE", str(tmp_path_factory.getbasetemp() / "warm"))


def rows(program: Program, seed: int, steps: int, **options: Any) -> list[tuple[Any, ...]]:
    """Every value a run recorded but the wall time, in the order recorded."""
    recorder = Recorder(None, "test", {})
    Loop(program, seed, recorder, **options).run(steps)
    return values(recorder)


def values(recorder: Recorder) -> list[tuple[Any, ...]]:
    table = recorder.table().to_pylist()
    return [tuple(row.values()) for row in table if row["signal"] != "step_time"]


def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run() -> None:
    first = rows(TINY, 0, 5)
    assert first == rows(TINY, 0, 5)
    assert first != rows(TINY, 1, 5)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "dpo"])
@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_a_restored_loop_goes_on_bit_for_bit(algorithm: str, compute: str) -> None:
    program = TINY.changed(
        algorithm=algorithm, trainer_compute=compute, staleness=1 if algorithm == "grpo" else 0, beta=0.05
    )
    whole = Recorder(None, "test", {})
    loop = Loop(program, 0, whole)
    loop.run(3)
    state = loop.snapshot()
    loop.run(6)
    forked = Recorder(None, "test", {})
    fork = Loop(program, 0, forked)
    fork.restore(state)
    fork.run(6)
    assert [row for row in values(whole) if row[3] > 3] == values(forked)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_run_resumes_from_a_checkpoint_on_disk(tmp_path: Path, optimiser: str) -> None:
    program = TINY.changed(optimiser=optimiser, trainer_compute="fp16", staleness=1)
    whole = Recorder(None, "test", {})
    loop = Loop(program, 0, whole)
    loop.run(3)
    loop.checkpoint(tmp_path / "at-3.pt")
    loop.run(5)
    resumed = Recorder(None, "test", {})
    again = Loop(program, 0, resumed)
    again.resume(tmp_path / "at-3.pt")
    again.run(5)
    assert [row for row in values(whole) if row[3] > 3] == values(resumed)
    with pytest.raises(InputError, match="is of tiny, seed 0; this run is tiny, seed 1"):
        Loop(program, 1, None).resume(tmp_path / "at-3.pt")
    (tmp_path / "other.pt").write_bytes(b"text")
    with pytest.raises(InputError, match="no checkpoint of the lab"):
        again.resume(tmp_path / "other.pt")


@pytest.mark.parametrize("algorithm", [*RL_ALGORITHMS, *SUPERVISED])
def test_every_algorithm_runs_and_records_finite_numbers(algorithm: str) -> None:
    found = rows(TINY.changed(algorithm=algorithm), 0, 4)
    signals = {row[9] for row in found}
    assert {"grad_norm", "act_norm", "router_entropy", "expert_load", "curvature_top"} <= signals
    assert {row[13] for row in found} == {"finite"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_builds_trains_and_samples(family: str) -> None:
    dense = family in ("qwen3", "llama")
    program = TINY.changed(family=family, experts=0 if dense else 8, groups=4, top_groups=2, dense_layers=1, beta=0.02)
    layers = {row[5] for row in rows(program, 0, 2) if row[9] == "topk_overlap"}
    assert layers == (set() if dense else {1} if family == "deepseek_v3" else {0, 1})


@pytest.mark.parametrize("optimiser", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("compute", ["bf16", "fp16", "fp8"])
def test_every_optimiser_and_format_moves_the_weights(optimiser: str, compute: str) -> None:
    program = TINY.changed(optimiser=optimiser, trainer_compute=compute, loss_scale=1024.0)
    loop = Loop(program, 0, None)
    before = [m.detach().clone() for m in loop.trainer.masters]
    loop.run(2)
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.trainer.masters, strict=True))
    held = loop.trainer.parameters[0].detach()
    assert torch.equal(held, precision.round_to(loop.trainer.masters[0].detach(), compute))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_a_device_that_has_the_format_computes_in_it(
    algorithm: str, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of cuda and npu, on a CPU that really computes in the type: masters stay float32."""
    monkeypatch.setattr(Engine, "emulated", False)
    program = TINY.changed(
        algorithm=algorithm, trainer_compute=compute, rollout_compute="bf16", rollout_weights="fp8", loss_scale=256.0
    )
    recorder = Recorder(None, "test", {})
    loop = Loop(program, 0, recorder, curvature=False)
    before = [m.detach().clone() for m in loop.trainer.masters]
    loop.run(2)
    assert {p.dtype for p in loop.trainer.parameters} == {precision.DTYPES[compute]}
    assert {m.dtype for m in loop.trainer.masters} == {torch.float32}
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.trainer.masters, strict=True))
    assert {row[13] for row in values(recorder)} == {"finite"}


def test_ranks_and_accumulation_do_not_change_the_gradient() -> None:
    """With equal chunks the mean of chunk means is the mean: only the order of additions differs."""
    norms = []
    for change in ({}, {"ranks": 2}, {"ranks": 2, "accumulate": 2}):
        found = rows(TINY.changed(algorithm="sft", task="sort", prompts=4, group=4, task_args={}, **change), 0, 1)
        norms.append(next(row[12] for row in found if row[9] == "grad_norm" and row[4] is None and row[5] is None))
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-4)


def test_engines_of_equal_formats_agree_and_narrow_ones_do_not() -> None:
    gap = {}
    for weights in ("fp32", "bf16", "fp8"):
        found = rows(TINY.changed(rollout_weights=weights), 0, 1)
        gap[weights] = next(row[12] for row in found if row[9] == "mismatch_logp_abs")
    assert gap["fp32"] < 1e-5 < gap["bf16"] < gap["fp8"]


def test_replay_makes_the_trainer_use_the_rollouts_experts() -> None:
    for replay, exact in ((False, False), (True, True)):
        found = rows(TINY.changed(rollout_weights="fp8", replay=replay), 0, 1)
        overlap = [row[12] for row in found if row[9] == "topk_overlap"]
        assert all(value == 1.0 for value in overlap) == exact


def test_a_stale_rollout_is_the_trainer_of_steps_ago() -> None:
    loop = Loop(TINY.changed(staleness=2, rollout_weights="fp32"), 0, None)
    kept = []
    for _ in range(4):
        kept.append(loop.trainer.parameters[0].detach().clone())
        loop.step()
    assert loop.rollout is not None and torch.equal(loop.rollout.parameters[0], kept[1])


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_rounding_is_what_the_type_does(fmt: str) -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-9, 6, 4096)
    assert torch.equal(precision.round_to(x, fmt), x.to(precision.DTYPES[fmt]).float())
    assert torch.isinf(precision.round_to(torch.tensor([1e5]), "fp16")).all()


def test_fp8_keeps_the_largest_value_of_a_block_and_four_bits_of_the_others() -> None:
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    x[0, 0], x[3, 50] = 1000.0, float("nan")
    y = precision.round_to(x, "fp8")
    assert y[0, 0] == 1000.0 and torch.isnan(y[3, 50]) and y.shape == x.shape
    assert ((y[4] - x[4]).abs() <= x[4].abs() / 16 + x[4].abs().max() / 448 / 256).all()


def test_the_scaler_halves_on_overflow_and_doubles_after_a_window() -> None:
    scaler = precision.LossScaler(8.0, window=2)
    assert [scaler.update(bad) for bad in (True, False, False, True)] == [True, False, False, True]
    assert scaler.scale == 4.0


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    loop = Loop(TINY.changed(algorithm="sft", trainer_compute="fp16", loss_scale=2.0**40), 0, None)
    before = [m.detach().clone() for m in loop.trainer.masters]
    loop.step()
    assert all(torch.equal(a, b) for a, b in zip(before, loop.trainer.masters, strict=True))
    assert loop.scaler is not None and loop.scaler.scale == 2.0**39


def test_muon_steps_along_a_nearly_orthogonal_matrix() -> None:
    x = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    assert torch.linalg.svdvals(optim.orthogonal(x)).sub(1).abs().max() < 0.35


def test_a_checkpoint_folder_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    built = models.build(MOE, 20, 16, 3)
    built.save_pretrained(tmp_path / "model")
    loaded = models.build(ModelSpec(path=str(tmp_path / "model")), 20, 16, 0)
    tokens = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(built(tokens).logits, loaded(tokens).logits, atol=1e-5)
    with pytest.raises(InputError, match=r"no config\.json"):
        models.build(ModelSpec(path=str(tmp_path)), 20, 16, 0)


def test_a_loop_trains_a_checkpoint_whose_shape_only_its_folder_tells(tmp_path: Path) -> None:
    models.build(MOE, 64, 32, 3).save_pretrained(tmp_path)
    found = rows(TINY.changed(path=str(tmp_path), aux_coef=0.01), 0, 4)
    assert len({row[6] for row in found if row[9] == "expert_load"}) == MOE.experts
    assert {row[13] for row in found} == {"finite"}
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    with pytest.raises(InputError, match="use grpo, not ppo"):
        Loop(TINY.changed(path=str(tmp_path), algorithm="ppo"), 0, None)


def test_nothing_of_a_step_is_kept_for_the_next() -> None:
    """Router logits with their graph: of critics and preference pairs, whose loss has no balancing term, none."""
    for algorithm in ("ppo", "dpo"):
        loop = Loop(TINY.changed(algorithm=algorithm), 0, None)
        loop.run(2)
        assert all(engine.routed is None for engine in (loop.trainer, loop.critic) if engine is not None)


def test_the_cache_gives_the_same_logits_as_the_whole_sequence() -> None:
    engine = Engine(MOE, 20, 16, 0)
    prompts = torch.randint(4, 20, (4, 5), generator=torch.Generator().manual_seed(0))
    tokens, mask, logps = engine.sample(prompts, 6, torch.Generator().manual_seed(1))
    whole = engine.answer_logits(prompts, tokens).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(whole[mask], logps[mask], atol=1e-5)


def test_broken_logits_give_token_zero_and_nan_not_an_exception() -> None:
    engine = Engine(MOE, 20, 16, 0)
    with torch.no_grad():
        engine.parameters[-1].fill_(float("nan"))
    tokens, _, logps = engine.sample(torch.full((2, 3), 5), 4, torch.Generator().manual_seed(1))
    assert (tokens == 0).all() and torch.isnan(logps).all()


def test_an_npu_that_is_not_there_is_an_input_error_that_says_what_to_do() -> None:
    with pytest.raises(InputError, match="--device cpu"):
        device.device("npu")
    with pytest.raises(InputError, match="allowed are cpu, cuda, npu"):
        device.device("tpu")
