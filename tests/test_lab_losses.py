"""Losses and advantages of the lab: tiny examples by hand, what must stay true, transformers' own losses."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.run import advantages as adv
from faultproxy.proxy.run import losses
from faultproxy.proxy.run.config import RL_ALGORITHMS

B, R, V = 8, 6, 11
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "response_length": R}


def close(got: Any, want: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        torch.as_tensor(got).float(), torch.as_tensor(want).float(), atol=tolerance, rtol=tolerance
    )


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
    return losses.policy_loss(kind, b.logp, b.old, b.advantage[:, None].expand(B, R), b.mask, **CLIP | other)


# ---- by hand ----------------------------------------------------------------------------------------------------------
#: Two answers of 1 and 2 tokens, ratios 2 | 1 and 0.5, advantages 1 and -1; clip 0.2 | 0.28.
#: Surrogates by token: -1.28 | 1, max(0.5, 0.8) = 0.8; answer ratios: gspo 2 | sqrt(0.5), rloo 2 | 0.5.
BY_HAND = {
    "grpo": (-1.28 + 0.9) / 2,
    "dapo": (-1.28 + 1 + 0.8) / 3,
    "ppo": (-1.28 + 1 + 0.8) / 3,
    "dr_grpo": (-1.28 + 1 + 0.8) / (2 * R),
    "gspo": (-1.28 + 0.8) / 2,
    "rloo": (-1.28 + 0.8) / 2,
}


@pytest.mark.parametrize("kind", RL_ALGORITHMS)
def test_a_policy_loss_worked_out_by_hand(kind: str) -> None:
    logp = torch.tensor([[math.log(2), 9.0], [0.0, math.log(0.5)]])
    mask = torch.tensor([[True, False], [True, True]])
    advantages = torch.tensor([[1.0, math.nan], [-1.0, -1.0]])
    loss, scalars = losses.policy_loss(kind, logp, torch.zeros(2, 2), advantages, mask, **CLIP)
    close(loss, BY_HAND[kind])
    close(scalars["clip_frac"], 1.0 if kind in losses.SEQUENCE_RATIO else 2 / 3)
    close(scalars["kl_old"], 0.0)


def test_group_advantages_by_hand() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    close(adv.group_advantages("dr_grpo", rewards, 4), [0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0])
    close(adv.group_advantages("rloo", rewards, 4), [1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    close(adv.group_advantages("grpo", rewards, 4)[:2], torch.tensor([0.75, -0.25]) / (0.5 + 1e-4))


def test_gae_with_lambda_one_is_the_return_and_with_lambda_zero_the_td_error() -> None:
    mask = torch.tensor([[True, True, True, False]])
    values = torch.tensor([[0.5, 0.25, 0.75, math.nan]])
    rewards = adv.token_rewards(torch.tensor([1.0]), mask)
    close(rewards, [[0, 0, 1, 0]])
    advantages, returns = adv.gae(rewards, values, mask, gamma=1.0, lam=1.0)
    close(returns, [[1, 1, 1, 0]])
    close(advantages, [[0.5, 0.75, 0.25, 0]])
    close(adv.gae(rewards, values, mask, gamma=0.5, lam=0.0)[0], [[-0.375, 0.125, 0.25, 0]])


def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens() -> None:
    b = batch()
    white = adv.whiten(b.old, b.mask)
    close(white[b.mask].mean(), 0.0)
    close(white[b.mask].std(), 1.0)
    assert not white[~b.mask].any()


def test_mismatch_by_hand() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    train = torch.tensor([[0.5, 0.25], [1.0, 0.1]]).log()
    rollout = torch.tensor([[0.25, 0.5], [1.0, math.nan]]).log()
    got = losses.mismatch(rollout, train, mask)
    weights = torch.tensor([2.0, 0.5, 1.0])
    close(got["mismatch_prob_diff"], 0.5 / 3)
    close(got["mismatch_prob_diff:max"], 0.25)
    close(got["mismatch_prob_diff:std"], torch.tensor([0.25, 0.25, 0.0]).std())
    close(got["mismatch_pearson"], torch.corrcoef(torch.tensor([[0.5, 0.25, 1], [0.25, 0.5, 1]]))[0, 1])
    close(got["mismatch_kl"], -weights.log().mean())
    close(got["mismatch_k3"], (weights - weights.log() - 1).mean())
    close(got["mismatch_logp_abs"], weights.log().abs().mean())
    close(got["mismatch_is_mean"], weights.mean())
    close(got["mismatch_ess_raw"], weights.sum() ** 2 / (3 * weights.square().sum()))
    close(got["mismatch_ppl_gap"], 1.0)


def test_a_router_loss_is_1_when_balanced_and_experts_over_k_when_collapsed() -> None:
    balanced = torch.eye(4).repeat(3, 1) * 1e-3
    collapsed = torch.tensor([[50.0, 50.0, 0.0, 0.0]]).expand(12, 4)
    close(losses.load_balancing_loss([balanced], 1), 1.0, 1e-5)
    close(losses.load_balancing_loss([collapsed], 2), 2.0)
    close(
        losses.load_balancing_loss([balanced, collapsed[:, [1, 3, 2, 0]] * torch.tensor([2.0, 1, 1, 1])], 1), 2.5, 1e-3
    )


# ---- what must stay true ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", RL_ALGORITHMS)
def test_padding_reaches_neither_loss_nor_gradient(kind: str) -> None:
    b = batch()
    want = loss_of(kind, b, logp_ref=b.ref, beta=0.1, entropy=b.entropy, entropy_coef=0.1)[0]
    junk = torch.where(torch.rand(B, R, generator=b.generator) < 0.5, math.nan, 1e4)
    dirty = SimpleNamespace(**vars(b))
    for name in ("logp", "old", "ref", "entropy"):
        setattr(dirty, name, torch.where(b.mask, getattr(b, name).detach(), junk))
    dirty.logp.requires_grad_()
    got = loss_of(kind, dirty, logp_ref=dirty.ref, beta=0.1, entropy=dirty.entropy, entropy_coef=0.1)[0]
    got.backward()
    assert torch.equal(got, want)
    assert dirty.logp.grad.isfinite().all() and not dirty.logp.grad[~b.mask].any()


@pytest.mark.parametrize("kind", RL_ALGORITHMS)
@pytest.mark.parametrize("place", ["logp", "old", "advantage"])
def test_a_nan_on_a_response_token_is_in_the_loss(kind: str, place: str) -> None:
    b = batch()
    with torch.no_grad():
        getattr(b, place).view(B, -1)[0, 0] = math.nan
    assert loss_of(kind, b)[0].isnan()


@pytest.mark.parametrize("log_ratio", [50.0, -50.0])
def test_mismatch_stays_finite_at_log_ratios_of_50_and_passes_a_nan_on(log_ratio: float) -> None:
    b = batch()
    base = b.old.clamp(max=0.0)
    apart = base.clone()
    apart[0, 0] -= abs(log_ratio)
    pair = (apart, base) if log_ratio > 0 else (base, apart)
    got = losses.mismatch(*pair, b.mask)
    assert all(value.isfinite() and value.ndim == 0 and not value.requires_grad for value in got.values()), got
    assert 0 < got["mismatch_ess_raw"] <= 1
    apart[0, 0] = math.nan
    assert all(value.isnan() for value in losses.mismatch(*pair, b.mask).values())


def test_equal_engines_have_no_mismatch() -> None:
    b = batch()
    got = losses.mismatch(b.old, b.old, b.mask)
    ones = {"mismatch_pearson", "mismatch_is_mean", "mismatch_ess_raw", "mismatch_ppl_gap"}
    for name, value in got.items():
        close(value, float(name in ones))


def test_k3_keeps_its_digits_where_the_ratio_is_almost_1() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    got = losses.mismatch(torch.full((2, 3), -1e-4), torch.zeros(2, 3), mask)["mismatch_k3"]
    assert got.item() == pytest.approx(5.000167e-9, rel=5e-3)


def test_token_divisors_put_the_chunks_of_a_batch_together() -> None:
    b = batch()
    share = b.mask.sum() / 2
    whole = loss_of("dapo", b)[0]
    parts = [
        losses.policy_loss(
            "dapo", b.logp[rows], b.old[rows], b.advantage[rows, None], b.mask[rows], **CLIP, tokens=share
        )[0]
        for rows in (slice(0, 3), slice(3, B))
    ]
    close(sum(parts) / 2, whole)


def test_what_cannot_be_computed_is_refused() -> None:
    b = batch()
    with pytest.raises(InputError, match="allowed are grpo"):
        loss_of("cispo", b)
    with pytest.raises(InputError, match="no logp_ref"):
        loss_of("grpo", b, beta=0.1)
    for kind, group in (("grpo", 1), ("grpo", 3), ("ppo", 2)):
        with pytest.raises(InputError, match=kind):
            adv.group_advantages(kind, b.rewards, group)


def test_supervised_losses_against_transformers() -> None:
    transformers = pytest.importorskip("transformers.loss.loss_utils", reason="transformers is not installed")
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    draw = torch.Generator().manual_seed(1)
    logits, mask = torch.randn(B, R, V, generator=draw), batch().mask
    labels = torch.randint(0, V, (B, R), generator=draw)
    marked = labels.masked_fill(~mask, -100)
    for tokens in (None, 7):
        loss, scalars = losses.sft_loss(logits, labels, mask, tokens)
        close(loss, transformers.ForCausalLMLoss(logits, None, V, num_items_in_batch=tokens, shift_labels=marked))
    close(scalars["accuracy"], (logits.argmax(-1) == labels)[mask].float().mean())
    for k in (1, 3):
        want = mixtral.load_balancing_loss_func((logits.flatten(0, 1),), V, k)
        close(losses.load_balancing_loss([logits.flatten(0, 1)], k) * k, want)
