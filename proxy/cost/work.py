"""FLOPs and critical-path depth of the stages of a step: generation, assessment, training.

Symbols: B prompts, K rollouts a prompt, S prompt and T response tokens, m = S + T, L layers, d width, c context. Multiply
and add count apart; attention is causal. The forms are those of arXiv 2608.27046 (tables 3-9) with grouped-query and
latent attention, gated feed-forward blocks, and top-k experts in place of its multi-head, two-matrix ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from faultproxy.proxy.cost.shape import Shape, parameters


@dataclass(frozen=True)
class Workload:
    """One step: `prompts` x `group` rollouts; lengths in tokens, `longest` is the response that ends last.

    `packed` tokens share a micro-batch on a context-parallel rank; 0 is one sequence.
    """

    algorithm: str = "grpo"
    prompts: int = 256
    group: int = 16
    prompt: int = 1024
    response: int = 4096
    longest: int = 0
    packed: int = 0
    critic: str = "none"
    reference: bool = True
    reward_model: bool = False

    @property
    def rollouts(self) -> int:
        """B K."""
        return self.prompts * self.group

    @property
    def sequence(self) -> int:
        """S + T, in tokens."""
        return self.prompt + self.response

    @property
    def tail(self) -> int:
        """Tokens of the longest response."""
        return max(self.longest, self.response)


def workload(algorithm: str, **changes: int | str | bool) -> Workload:
    """The defaults of an algorithm: PPO has a critic; GRPO and PPO a reference for their KL term, DAPO and REINFORCE none."""
    base: dict[str, int | str | bool] = {
        "algorithm": algorithm,
        "critic": "separate" if algorithm == "ppo" else "none",
        "reference": algorithm in ("grpo", "ppo"),
    }
    return Workload(**(base | changes))  # type: ignore[arg-type]


def context_flops(s: Shape, context: float, dims: int) -> float:
    """Attention FLOPs of one token over `context` earlier ones, all layers: 2 c dims a layer, windowed layers capped.

    A layer of linear attention reads, corrects, and writes its state, 6 FLOPs an element (the recurrent form of arXiv 2412.06464).
    """
    return (
        2 * dims * (s.attending * context + s.windowed * min(context, s.window))
        + 6 * s.linear_layers * s.state_elements
    )


def forward_flops(s: Shape, tokens: int) -> float:
    """FLOPs of a causal pass over a sequence, a token: 2 active + 2 c dims L, mean context c = m / 2 (arXiv 2608.27046, table 5)."""
    return 2 * parameters(s).active + context_flops(s, tokens / 2, s.score_dims)


def decode_flops(s: Shape, context: float) -> float:
    """FLOPs of one decoded token at a context: 2 active + 2 c dims L; a latent cache is read in latent space (2405.04434)."""
    return 2 * parameters(s).active + context_flops(s, context, s.decode_dims)


def generation_flops(s: Shape, w: Workload) -> float:
    """W_G = B K (S forward + sum over t of decode): FLOPs of all rollouts; prompts of a group are each prefilled."""
    decode = (w.response - 1) * decode_flops(s, w.prompt + w.response / 2)
    return w.rollouts * (w.prompt * forward_flops(s, w.prompt) + decode)


def assessments(w: Workload) -> int:
    """Forward passes between generation and training: old log-probabilities, reference, reward model, separate critic."""
    return 1 + w.reference + w.reward_model + (w.critic == "separate")


def assessment_flops(s: Shape, w: Workload) -> float:
    """W_A = B K m (sum of forwards); models beside the policy are taken to be of its size."""
    return w.rollouts * w.sequence * assessments(w) * forward_flops(s, w.sequence)


def training_flops(s: Shape, w: Workload) -> float:
    """W_T = B K m 3 forward (backward is twice a forward), once more for a separate critic; a shared one adds a row only."""
    return w.rollouts * w.sequence * 3 * forward_flops(s, w.sequence) * (1 + (w.critic == "separate"))


def depth(s: Shape, w: Workload, placement: str) -> float:
    """Dependent operations of a step: D_f = L (log2 d + log2 m) + log2 d, D_b = D_f + log2(B K m), D_G = T D_f.

    Placements combine them as `combine` does times (arXiv 2608.27046, appendix B).
    """
    forward = s.layers * (log2(s.hidden) + log2(max(2, w.sequence))) + log2(s.hidden)
    train = 2 * forward + log2(max(2, w.rollouts * w.sequence))
    trained = 1 + (w.critic == "separate")
    return combine(placement, w.tail * forward, [forward] * assessments(w), [train] * trained)


def combine(placement: str, generation: float, assess: list[float], train: list[float]) -> float:
    """Length of a step from the lengths of its stages, where each stage has its own devices or all of them in turn.

    Co-located, hybrid: G + sum A + sum T. Partial (actor and rollout share, the rest apart), disaggregated: G + max A +
    max T. Fused: max(G, max A) + max T. Asynchronous: max(G + max A, max T). Source: arXiv 2608.27046, section 5.
    """
    most_a, most_t = max(assess), max(train)
    if placement in ("partial", "disaggregated"):
        return generation + most_a + most_t
    if placement == "fused":
        return max(generation, most_a) + most_t
    if placement == "asynchronous":
        return max(generation + most_a, most_t)
    return generation + sum(assess) + sum(train)
