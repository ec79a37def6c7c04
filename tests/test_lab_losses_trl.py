"""Losses and advantages of the lab against TRL's own code on random tensors: values and gradients to 1e-6.

TRL 1.16.0 has everything but PPO, which TRL dropped after 1.12.0. To compare PPO too, put that version first on the path:
pip install --no-deps --target DIR trl==1.12.0; PYTHONPATH=DIR pytest -k ppo tests/test_lab_losses_trl.py
"""

from __future__ import annotations

import inspect
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="TRL is not installed (pip install trl==1.16.0)")

from faultproxy.proxy.run import advantages as adv
from faultproxy.proxy.run import losses

B, R, V = 8, 6, 11


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(got).float(), torch.as_tensor(want).float(), atol=1e-6, rtol=1e-6)


def batch(seed: int = 0) -> SimpleNamespace:
    """Random answers of random lengths; log ratios wide enough that both clips bite."""
    draw = torch.Generator().manual_seed(seed)
    logp = -torch.rand(B, R, generator=draw) * 3
    noise = torch.randn(4, B, R, generator=draw) * 0.4
    mask = torch.arange(R) < torch.randint(1, R + 1, (B, 1), generator=draw)
    rewards = torch.rand(B, generator=draw)
    return SimpleNamespace(
        logp=logp.requires_grad_(), old=logp.detach() + noise[0], ref=logp.detach() + noise[1],
        rollout=logp.detach() + noise[2], entropy=noise[3].exp().requires_grad_(), mask=mask, rewards=rewards,
        advantage=torch.randn(B, generator=draw), generator=draw,
    )  # fmt: skip


def loss_of(kind: str, b: SimpleNamespace, **other: Any) -> tuple[Any, dict[str, Any]]:
    return losses.policy_loss(
        kind,
        b.logp,
        b.old,
        b.advantage[:, None].expand(B, R),
        b.mask,
        clip_low=0.2,
        clip_high=0.28,
        response_length=R,
        **other,
    )


def run_lines(function: Any, first: str, until: str, **names: Any) -> dict[str, Any]:
    """Runs the source lines of `function` from the one that starts with `first` to before `until`, among `names`.

    TRL computes advantages and PPO inside methods of hundreds of lines; this runs those lines themselves, not a copy.
    """
    lines = inspect.getsource(function).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    stop = next(i for i in range(start, len(lines)) if lines[i].strip().startswith(until))
    scope = {**inspect.unwrap(function).__globals__, **names}
    exec(textwrap.dedent("\n".join(lines[start:stop])), scope)  # noqa: S102 - lines of the installed TRL
    return scope


def stand_in(b: SimpleNamespace, **fields: Any) -> Any:
    """The attributes that TRL's loss methods read; the model's forward is replaced by the log probabilities of `b`."""
    return SimpleNamespace(**{
        "_get_per_token_logps_and_entropies": lambda *_, **__: (b.logp, b.entropy, None),
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
        "importance_sampling_level": "token", "loss_type": "grpo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28,
        "use_vllm": False, "vllm_importance_sampling_correction": False, "max_completion_length": R,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, "use_adaptive_entropy": False,
        "model": SimpleNamespace(training=True), "_metrics": {"train": defaultdict(list)},
        "args": SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        "accelerator": SimpleNamespace(
            num_processes=1, sync_gradients=False, gather=lambda x: x, gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x, device=torch.device("cpu"),
        ),
    } | fields)  # fmt: skip


def inputs_of(b: SimpleNamespace, **other: Any) -> dict[str, Any]:
    ids, mask = torch.zeros(B, R, dtype=torch.long), b.mask.long()
    return {
        "prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask,
        "advantages": b.advantage, "old_per_token_logps": b.old, "ref_per_token_logps": b.ref,
        "old_logps": (b.old * mask).sum(1), "num_items_in_batch": mask.sum(),
    } | other  # fmt: skip


def same_gradient(b: SimpleNamespace, ours: Any, theirs: Any) -> None:
    close(ours, theirs)
    close(*(torch.autograd.grad(loss, b.logp, retain_graph=True)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("grpo", {}),
        ("dapo", {"loss_type": "bnpo"}),
        ("dapo", {"loss_type": "dapo"}),
        ("dr_grpo", {"loss_type": "dr_grpo"}),
        ("gspo", {"importance_sampling_level": "sequence"}),
    ],
)
def test_group_policy_losses_equal_trl(kind: str, fields: dict[str, Any], beta: float, seed: int) -> None:
    b = batch(seed)
    weights = losses.importance_weights(b.old, b.rollout, b.mask, 1.5)
    ours, scalars = loss_of(
        kind, b, logp_ref=b.ref, beta=beta, entropy=b.entropy, entropy_coef=0.05, importance=weights
    )  # fmt: skip
    corrected = {"use_vllm": True, "vllm_importance_sampling_correction": True}
    bonus = {"_entropy_bonus_enabled": True, "entropy_coef": 0.05}
    trainer = stand_in(b, beta=beta, **fields, **corrected, **bonus)
    theirs = trl.GRPOTrainer._compute_loss(trainer, None, inputs_of(b, importance_sampling_ratio=weights))
    same_gradient(b, ours, theirs)
    logged = trainer._metrics["train"]
    close(scalars["clip_frac"], logged["clip_ratio/region_mean"][0])
    close(scalars["entropy"], logged["entropy"][0])
    close(scalars["policy_loss"], logged["policy_loss"][0])
    if beta:
        close(scalars["kl_ref"], logged["kl"][0])


def test_dapo_divides_by_the_tokens_of_all_ranks_as_trl() -> None:
    """Two ranks of three accumulation steps: TRL divides by num_items_in_batch / ranks and sums over the steps."""
    b, items, ranks = batch(), torch.tensor(190), 2
    trainer = stand_in(b, loss_type="dapo", current_gradient_accumulation_steps=3)
    trainer.accelerator.num_processes, trainer.args.steps_per_generation = ranks, 3
    theirs = trl.GRPOTrainer._compute_loss(trainer, None, inputs_of(b, num_items_in_batch=items))
    same_gradient(b, loss_of("dapo", b, tokens=items / ranks)[0], theirs)


@pytest.mark.parametrize("seed", range(3))
def test_rloo_equals_trl(seed: int) -> None:
    b = batch(seed)
    ours, scalars = loss_of("rloo", b, logp_ref=b.ref, beta=0.3)
    trainer = stand_in(b)
    same_gradient(b, ours, trl.RLOOTrainer._compute_loss(trainer, None, inputs_of(b)))
    close(scalars["clip_frac"], trainer._metrics["train"]["clip_ratio/region_mean"][0])


@pytest.mark.parametrize(("kind", "scale"), [("grpo", "group"), ("dr_grpo", "none")])
def test_group_advantages_equal_trl(kind: str, scale: str) -> None:
    b = batch()
    settings = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": scale}
    scope = run_lines(
        trl.GRPOTrainer._generate_and_score_completions, "if self.multi_objective", "process_slice",
        self=SimpleNamespace(reward_weights=torch.ones(1), **settings), rewards_per_func=b.rewards[:, None],
        unscorable_mask=torch.zeros(B, dtype=torch.bool), device="cpu", num_generations=4,
    )  # fmt: skip
    close(adv.group_advantages(kind, b.rewards, 4), scope["advantages"])


def test_rloo_advantages_and_reward_penalty_equal_trl() -> None:
    b = batch()
    scope = run_lines(
        trl.RLOOTrainer._generate_and_score_completions, "rewards = (rewards_per_func", "is_std_zero",
        self=SimpleNamespace(reward_weights=torch.ones(1), reward_clip_range=None, beta=0.3, normalize_advantages=False),
        rewards_per_func=b.rewards[:, None], unscorable_mask=torch.zeros(B, dtype=torch.bool), device="cpu",
        num_generations=4, old_per_token_logps=b.old, ref_per_token_logps=b.ref, completion_mask=b.mask.long(),
        gather=lambda x: x,
    )  # fmt: skip
    rewards = adv.token_rewards(b.rewards, b.mask, logp_old=b.old, logp_ref=b.ref, beta=0.3).sum(1)
    close(adv.group_advantages("rloo", rewards, 4), scope["advantages"])


def test_importance_weights_equal_trl() -> None:
    b = batch()
    cap = {"vllm_importance_sampling_clip_min": None, "vllm_importance_sampling_clip_max": 1.5}
    scope = run_lines(
        trl.GRPOTrainer._generate_and_score_completions, "mask = completion_mask if tool_mask", "# Compute the per-token",
        self=SimpleNamespace(vllm_importance_sampling_mode="token_truncate", **cap), tool_mask=None,
        completion_mask=b.mask.long(), old_per_token_logps=b.old, sampling_per_token_logps=b.rollout,
    )  # fmt: skip
    close(losses.importance_weights(b.old, b.rollout, b.mask, 1.5), scope["vllm_importance_sampling_ratio"])


def test_dpo_equals_trl() -> None:
    b = batch()
    logps = torch.where(b.mask, b.logp, 0.0)
    chosen, rejected = logps.sum(1).chunk(2)
    reference = torch.where(b.mask, b.ref, 0.0).sum(1).chunk(2)
    flat = torch.zeros(B, R)
    outputs = SimpleNamespace(log_probs=logps, entropy=flat, mean_logits=flat, is_top1=flat.bool())
    trainer = stand_in(
        b, beta=0.3, ld_alpha=None, precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=["sigmoid"],
        loss_weights=[1.0], use_weighting=False, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    trainer.model = lambda **_: outputs
    trainer.model.training = True
    ids = torch.zeros(B, R + 1, dtype=torch.long)
    inputs = {
        "input_ids": ids, "attention_mask": ids, "completion_mask": torch.cat([ids[:, :1], b.mask.long()], 1),
        "ref_chosen_logps": reference[0], "ref_rejected_logps": reference[1],
    }  # fmt: skip
    theirs = trl.DPOTrainer._compute_loss(trainer, trainer.model, inputs, False)
    ours, scalars = losses.dpo_loss(chosen, rejected, *reference, 0.3)
    same_gradient(b, ours, theirs)
    for name, key in (
        ("chosen", "chosen"),
        ("rejected", "rejected"),
        ("margin", "margins"),
        ("accuracy", "accuracies"),
    ):
        close(scalars[f"reward_{name}"], trainer._metrics["train"][f"rewards/{key}"][0])


def test_token_log_probabilities_and_entropies_equal_trl() -> None:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    draw = torch.Generator().manual_seed(2)
    logits, tokens = torch.randn(B, R, V, generator=draw) * 3, torch.randint(0, V, (B, R), generator=draw)
    close(losses.token_logps(logits, tokens), selective_log_softmax(logits, tokens))
    close(losses.entropy_of(logits, torch.ones(B, R, dtype=torch.bool)), entropy_from_logits(logits))


@pytest.mark.parametrize("seed", range(3))
def test_ppo_equals_the_last_trl_that_had_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    reason = "this TRL has no PPO; the last was 1.12.0"
    train = pytest.importorskip("trl.experimental.ppo.ppo_trainer", reason=reason).PPOTrainer.train
    b = batch(seed)
    scores = b.rewards[:, None] * torch.randn(B, R, generator=b.generator)
    values = torch.where(b.mask, torch.randn(B, R, generator=b.generator), 0.0)
    args = SimpleNamespace(gamma=0.97, lam=0.9, cliprange=0.2, cliprange_value=0.15, vf_coef=0.0)
    theirs = run_lines(
        train, "lastgaelam = 0", "empty_cache()", args=args, responses=scores, values=values,
        rewards=torch.where(b.mask, scores, 0.0), padding_mask=~b.mask,
    )  # fmt: skip
    advantages, returns = adv.gae(scores, values, b.mask, args.gamma, args.lam)
    white = adv.whiten(advantages, b.mask)
    close(returns[b.mask], theirs["returns"][b.mask])
    close(white, theirs["advantages"])
    predicted = (values + torch.randn(B, R, generator=b.generator) * 0.3).requires_grad_()
    step = run_lines(
        train, "vpredclipped = torch.clamp(", "accelerator.backward", args=args, micro_batch_inds=slice(None),
        padding_mask=~b.mask, padding_mask_p1=~b.mask, vpred=predicted, new_logprobs=b.logp, mb_logprobs=b.old,
        mb_values=values, mb_return=returns, mb_advantage=white,
    )  # fmt: skip
    ours = losses.policy_loss("ppo", b.logp, b.old, white, b.mask, clip_low=0.2, clip_high=0.2, response_length=R)
    same_gradient(b, ours[0], step["pg_loss"])
    critic = losses.value_loss(predicted, values, returns, b.mask, args.cliprange_value)
    close(critic[0], step["vf_loss"])
    close(critic[1]["value_clip_frac"], step["vf_clipfrac"])
    close(*(torch.autograd.grad(loss, predicted)[0] for loss in (critic[0], step["vf_loss"])))
