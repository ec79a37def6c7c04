"""Losses and the scalars that belong to them, as pure functions of tensors; equal to TRL 1.16 to 1e-6 (tests).

Shapes: B answers of at most R tokens, V token ids, N rows; `mask` [B, R] bool, True on response tokens (up to and
including EOS). A loss function returns (loss, scalars); scalars are detached 0-dim tensors named as the signals they
are recorded under, so that a step needs one device synchronisation for all of them.

Padding is cut out with `where` before any exponential, so what stands there can neither overflow nor leak a NaN into
the gradient (TRL multiplies by the mask: inf * 0 on padding is NaN). On response tokens nothing is hidden: a NaN or an
overflow there is in the loss.

`tokens` divides the losses that are means over tokens. None: the tokens of this call (TRL "bnpo"). To spread one batch
over chunks, pass what the batch holds: TRL's dapo takes num_items_in_batch / num_processes, sums over accumulation
steps and averages over ranks; where all chunks are averaged, pass tokens of the batch / number of chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from faultproxy.analyzer.errors import InputError
from faultproxy.proxy.run.config import RL_ALGORITHMS

Scalars = dict[str, Tensor]
#: Algorithms whose ratio is one number an answer, and those whose KL to the reference is part of the reward.
SEQUENCE_RATIO = ("gspo", "rloo")
KL_IN_REWARD = ("rloo", "ppo")


def token_logps(logits: Tensor, tokens: Tensor) -> Tensor:
    """[B, R] log probabilities of `tokens` [B, R] under `logits` [B, R, V], in float32 at least."""
    return _log_softmax(logits).gather(-1, tokens[..., None]).squeeze(-1)


def entropy_of(logits: Tensor, mask: Tensor) -> Tensor:
    """[B, R] entropy of each token's distribution in nats, 0 on padding (TRL entropy_from_logits)."""
    logps = _log_softmax(logits)
    return torch.where(mask, -(logps.exp() * logps).sum(-1), 0.0)


def policy_loss(
    kind: str,
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    response_length: int,
    logp_ref: Tensor | None = None,
    beta: float = 0.0,
    entropy: Tensor | None = None,
    entropy_coef: float = 0.0,
    importance: Tensor | None = None,
    tokens: float | Tensor | None = None,
) -> tuple[Tensor, Scalars]:
    """Clipped surrogate -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (1707.06347 eq. 7); all tensors [B, R].

    The kinds differ in the ratio r and in what is averaged:
        grpo     token ratio, mean over the tokens of an answer, then over answers (2402.03300 eq. 3)
        dapo     token ratio, mean over all tokens (2503.14476 eq. 8), see `tokens` above
        dr_grpo  token ratio, sum / (B * response_length) (2503.20783 sec. 3.2; TRL max_completion_length)
        gspo     exp(mean log ratio of the answer) (2507.18071 eq. 7), averaged as grpo
        rloo     exp(sum of the log ratios) (2402.14740; TRL RLOOTrainer), averaged as grpo
        ppo      as dapo (verl loss_agg_mode "token-mean"; TRL 1.12 PPOTrainer)
    `importance` (see `importance_weights`) multiplies the surrogate. The KL to the reference is Schulman's k3,
    mean(e^d - d - 1) with d = logp_ref - logp; beta * k3 joins the loss, but not for rloo and ppo, which pay it in the
    reward (`advantages.token_rewards`). `entropy_coef` times the token mean of `entropy` is subtracted last.
    Scalars: policy_loss (without the entropy bonus, as TRL), kl_old (mean logp_old - logp, verl ppo_kl), clip_frac
    (of tokens, or of answers for a ratio per answer), kl_ref where logp_ref is given, entropy where given.
    """
    if kind not in RL_ALGORITHMS:
        raise InputError(f"{kind!r} is no policy loss; allowed are {', '.join(RL_ALGORITHMS)}")
    if beta and logp_ref is None:
        raise InputError(f"{kind}: beta is {beta} but there is no logp_ref; pass it or set beta = 0")
    per_answer = kind in SEQUENCE_RATIO
    lengths, count = _sizes(mask)
    token_ratio = torch.where(mask, logp - logp_old, 0.0)
    log_ratio = token_ratio.sum(1, keepdim=True) if per_answer else token_ratio
    ratio = (log_ratio / lengths[:, None] if kind == "gspo" else log_ratio).exp()
    plain, clipped = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    surrogate = -torch.minimum(plain, clipped)
    if importance is not None:
        surrogate = surrogate * importance
    scalars = {"kl_old": -token_ratio.detach().sum() / count}
    if logp_ref is not None:
        gap = torch.where(mask, logp_ref - logp, 0.0)
        kl = torch.expm1(gap) - gap
        scalars["kl_ref"] = kl.detach().sum() / count
        if beta and kind not in KL_IN_REWARD:
            surrogate = surrogate + beta * kl
    surrogate = torch.where(mask, surrogate, 0.0)
    if kind in ("dapo", "ppo"):
        loss = surrogate.sum() / (count if tokens is None else tokens)
    elif kind == "dr_grpo":
        loss = surrogate.sum() / (len(mask) * response_length)
    else:
        loss = (surrogate.sum(1) / lengths).mean()
    hit = (mask & (clipped < plain)).sum(1)
    scalars["clip_frac"] = (hit / lengths).mean() if per_answer else hit.sum() / count
    scalars["policy_loss"] = loss.detach()
    if entropy is not None:
        mean_entropy = torch.where(mask, entropy, 0.0).sum() / count
        scalars["entropy"] = mean_entropy.detach()
        if entropy_coef:
            loss = loss - entropy_coef * mean_entropy
    return loss, scalars


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float, tokens: float | Tensor | None = None
) -> tuple[Tensor, Scalars]:
    """Half the token mean of max((v - ret)^2, (v clipped to old_v +- clip - ret)^2); all tensors [B, R].

    Critic loss of PPO as in TRL 1.12 PPOTrainer.train and verl compute_value_loss. Scalars: value_loss, value_clip_frac.
    """
    near = old_values + (values - old_values).clamp(-clip, clip)
    plain, clipped = (values - returns).square(), (near - returns).square()
    count = mask.sum().clamp(min=1)
    loss = 0.5 * torch.where(mask, torch.maximum(plain, clipped), 0.0).sum() / (count if tokens is None else tokens)
    hit = (mask & (clipped > plain)).sum() / count
    return loss, {"value_loss": loss.detach(), "value_clip_frac": hit}


def dpo_loss(
    chosen_logp: Tensor, rejected_logp: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, beta: float
) -> tuple[Tensor, Scalars]:
    """-log sigmoid(beta * (chosen - rejected log ratio)), mean over N pairs (2305.18290 eq. 7; TRL loss_type "sigmoid").

    Arguments are [N] sums of token log probabilities of an answer. Scalars: loss and the implicit rewards beta * log ratio
    as reward_chosen, reward_rejected, reward_margin, reward_accuracy (share of pairs with a positive margin).
    """
    chosen, rejected = beta * (chosen_logp - chosen_ref), beta * (rejected_logp - rejected_ref)
    margin = chosen - rejected
    loss = -F.logsigmoid(margin).mean()
    return loss, {
        "loss": loss.detach(),
        "reward_chosen": chosen.detach().mean(),
        "reward_rejected": rejected.detach().mean(),
        "reward_margin": margin.detach().mean(),
        "reward_accuracy": (margin > 0).float().mean(),
    }


def sft_loss(
    logits: Tensor, labels: Tensor, mask: Tensor, tokens: float | Tensor | None = None
) -> tuple[Tensor, Scalars]:
    """Token mean of the cross entropy of `logits` [B, R, V] against `labels` [B, R] (transformers ForCausalLMLoss).

    Logits are already shifted: row t predicts label t. Scalars: loss, accuracy (share of tokens where the label is the
    largest logit; TRL mean_token_accuracy).
    """
    count = mask.sum().clamp(min=1)
    loss = -torch.where(mask, token_logps(logits, labels), 0.0).sum() / (count if tokens is None else tokens)
    right = (mask & (logits.argmax(-1) == labels)).sum() / count
    return loss, {"loss": loss.detach(), "accuracy": right}


def load_balancing_loss(router_logits: list[Tensor], top_k: int) -> Tensor:
    """Router loss E / K * sum_e f_e P_e, mean over layers: 1 when balanced, E / K at most (2101.03961 eq. 4-6).

    One [N, E] tensor of router logits a layer; f_e is assignments to expert e a token (top_k of the logits), P_e its mean
    softmax probability. For one layer it is transformers' load_balancing_loss_func / K; over several layers that pools
    the tokens of all layers, where one layer's imbalance can hide behind another's.
    """
    probs = torch.stack(router_logits).softmax(-1)
    layers, rows, experts = probs.shape
    chosen = probs.topk(top_k, -1).indices.view(layers, -1)
    assigned = torch.zeros_like(probs[:, 0]).scatter_add_(1, chosen, torch.ones_like(chosen, dtype=probs.dtype))
    return (assigned * probs.mean(1)).sum() * experts / (layers * rows * top_k)


def importance_weights(logp_old: Tensor, logp_rollout: Tensor, mask: Tensor, cap: float) -> Tensor:
    """[B, R] truncated importance weights min(p_train / p_rollout, cap), detached, 1 on padding.

    TIS (fengyao.notion.site; TRL vllm_importance_sampling_mode "token_truncate"; verl rollout_is "token"). TRL turns the
    NaN of a token the rollout engine could not score into weight 1; here it stays NaN.
    """
    return torch.where(mask, logp_old - logp_rollout, 0.0).exp().clamp(max=cap).detach()


@torch.no_grad()
def mismatch(logp_rollout: Tensor, logp_train: Tensor, mask: Tensor) -> Scalars:
    """How far the two engines are apart on the sampled tokens; log probabilities [B, R] of rollout and trainer.

    With x = logp_train - logp_rollout over n response tokens (verl compute_offpolicy_metrics, calculate_debug_metrics):
    mismatch_prob_diff (|p_rollout - p_train|, also :max and :std), mismatch_pearson of the probabilities (NaN where they
    do not vary, as verl), mismatch_kl = mean(-x), mismatch_k3 = mean(e^x - x - 1), mismatch_logp_abs = mean|x|,
    mismatch_is_mean = mean(e^x), mismatch_ess_raw = (sum e^x)^2 / (n sum e^2x), mismatch_ppl_gap = mean over answers of
    exp(mean(-x)). No ratio is clamped (verl clamps before its ESS, which then cannot fall below 0.64 at the default
    threshold); sums of ratios are taken in log space, so |x| = 50 stays finite in float32.
    """
    lengths, count = _sizes(mask)
    logps = torch.where(mask, torch.stack([logp_rollout, logp_train]), 0.0)
    x = logps[1] - logps[0]
    probs = logps.exp()
    # Both are e^0 on padding, so that differences vanish there without another mask.
    apart = (probs[0] - probs[1]).abs()
    mean_apart = apart.sum() / count
    spread = torch.where(mask, apart - mean_apart, 0.0).square().sum() / (count - 1).clamp(min=1)
    probs = torch.where(mask, probs, 0.0)
    centred = torch.where(mask, probs - probs.sum((1, 2), keepdim=True) / count, 0.0).flatten(1)
    norms = torch.linalg.vector_norm(centred, dim=1)
    log_weights = x.masked_fill(~mask, -torch.inf).flatten()
    log_sum, log_count = log_weights.logsumexp(0), count.log()
    return {
        "mismatch_prob_diff": mean_apart,
        "mismatch_prob_diff:max": apart.max(),
        "mismatch_prob_diff:std": spread.sqrt(),
        "mismatch_pearson": (centred[0] * centred[1]).sum() / (norms[0] * norms[1]),
        "mismatch_kl": -x.sum() / count,
        "mismatch_k3": (torch.expm1(x) - x).sum() / count,
        "mismatch_logp_abs": x.abs().sum() / count,
        "mismatch_is_mean": (log_sum - log_count).exp(),
        "mismatch_ess_raw": (2 * log_sum - (2 * log_weights).logsumexp(0) - log_count).exp(),
        "mismatch_ppl_gap": (-x.sum(1) / lengths).exp().mean(),
    }


def _sizes(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of each answer [B] and of all of them; at least 1, since they divide."""
    lengths = mask.sum(1)
    return lengths.clamp(min=1), lengths.sum().clamp(min=1)


def _log_softmax(logits: Tensor) -> Tensor:
    """Log softmax over the last axis; half precision is widened first, as engines that keep an exact head do."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
