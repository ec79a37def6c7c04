"""What a run is made of: the model, the program, the fault, and the batch that a step works on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from faultproxy.analyzer.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

#: Token ids that every task shares; task symbols start at FIRST_SYMBOL.
PAD, EOS, BOS, SEP, FIRST_SYMBOL = 0, 1, 2, 3, 4
FAMILIES = ("qwen3_moe", "mixtral", "deepseek_v3", "olmoe", "qwen3", "llama")
RL_ALGORITHMS = ("grpo", "dapo", "dr_grpo", "gspo", "rloo", "ppo")
SUPERVISED = ("pretrain", "sft", "classify", "dpo")
OPTIMISERS = ("adamw", "sgd", "muon")
#: Tasks whose right answers differ in length.
VARIED = frozenset({"add", "below", "brackets", "copy", "count_up", "dedupe", "repeat", "subtract", "successor"})
#: Number formats of weights and activations. fp8 is e4m3 with a scale a block of 32 values.
FORMATS = ("fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a model that is built from a configuration, or a folder to load one from."""

    family: str = "qwen3_moe"
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    #: Width of a dense feed-forward layer; of one expert where the layer has experts.
    width: int = 64
    experts: int = 0
    top_k: int = 2
    #: Router groups and how many of them a token may use (deepseek_v3).
    groups: int = 1
    top_groups: int = 1
    #: Leading layers without experts (deepseek_v3: first_k_dense_replace) and shared experts beside the routed ones.
    dense_layers: int = 0
    shared_experts: int = 1
    norm_top_k: bool = True
    path: str | None = None


@dataclass(frozen=True)
class Program:
    """One training program: everything that decides a healthy run but the seed."""

    name: str
    task: str
    model: ModelSpec
    algorithm: str = "grpo"
    optimiser: str = "adamw"
    task_args: dict[str, Any] = field(default_factory=dict)
    lr: float = 3e-4
    lr_warmup: int = 0
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.95
    clip_grad: float = 1.0
    #: Prompts a step and answers a prompt (`group` is 1 in supervised programs).
    prompts: int = 8
    group: int = 8
    steps: int = 32
    #: Passes over a batch, and pieces it is cut into, an optimiser step each.
    epochs: int = 1
    minibatches: int = 1
    ranks: int = 1
    accumulate: int = 1
    #: Weight of the KL term to the frozen reference; 0 means no reference model at all.
    beta: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    entropy_coef: float = 0.0
    aux_coef: float = 0.0
    gamma: float = 1.0
    lam: float = 0.95
    temperature: float = 1.0
    #: Weight versions the rollout lags behind; the trainer reuses the experts the rollout chose.
    staleness: int = 0
    replay: bool = False
    #: Truncated importance sampling of rollout against trainer (None: off), the cap of a token's weight.
    importance_cap: float | None = None
    trainer_compute: str = "fp32"
    rollout_weights: str = "bf16"
    rollout_compute: str = "fp32"
    #: fp16 trainer: first loss scale, and steps without overflow before it doubles.
    loss_scale: float = 65536.0
    scale_window: int = 16
    #: Supervised warm-up before RL, until this share of sampled answers is right (checked every 10 steps).
    warmup_target: float = 0.4
    warmup_steps: int = 300
    warmup_lr: float = 3e-3
    warmup_batch: int = 64
    #: Share of warm-up answers with wrong values in them. The model learns to err as often, which leaves RL a clear way
    #: up: 32 steps then gain 0.1-0.2 of reward, without it 0.04, which is within the noise of a batch of 48 answers.
    warmup_noise: float = 0.5

    @property
    def rl(self) -> bool:
        """True where answers are sampled and rewarded."""
        return self.algorithm in RL_ALGORITHMS

    @property
    def tags(self) -> frozenset[str]:
        """What a fault may need of a program."""
        model = self.model
        holds = {
            "rl": self.rl, "supervised": not self.rl, "moe": model.experts > 0, "dense": model.experts == 0,
            "kl": self.beta > 0, "critic": self.algorithm == "ppo", "dp": self.ranks > 1, "replay": self.replay,
            "stale": self.staleness > 0, "deep": model.layers >= 8, "varied": self.task in VARIED, "groups": model.groups > 1, "top1": model.experts > 0 and model.top_k == 1,
            "shared": model.family == "deepseek_v3" and model.shared_experts > 0,
            "fp16": self.trainer_compute == "fp16", "bf16": self.trainer_compute == "bf16", "aux": self.aux_coef > 0,
            "epochs": self.epochs * self.minibatches > 1,
        }  # fmt: skip
        return frozenset(
            {name for name, held in holds.items() if held} | {self.algorithm, model.family, self.optimiser}
        )

    def changed(self, **values: Any) -> Program:
        """The same program with other values; names of the model's fields are taken too."""
        inner = {f.name for f in fields(ModelSpec)}
        model = replace(self.model, **{k: v for k, v in values.items() if k in inner})
        return replace(self, model=model, **{k: v for k, v in values.items() if k not in inner})


@dataclass(frozen=True)
class FaultSpec:
    """One fault as declared in faults.toml; `levels` are arguments of the mechanism from mild to strong."""

    name: str
    title: str
    mechanism: str
    factor: str
    cause: str
    levels: tuple[dict[str, Any], ...]
    place: str
    moves: dict[str, str]
    models: str
    clean: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    kind: str = "fault"

    def fits(self, program: Program) -> bool:
        """True where the program has all that the fault needs; a need that starts with `-` must be missing."""
        return not self.lacking(program)

    def lacking(self, program: Program) -> list[str]:
        """The needs that the program does not meet, `no X` for one that must be missing."""
        tags = program.tags
        return [
            f"no {need[1:]}" if need.startswith("-") else need
            for need in self.needs
            if (need[1:] in tags if need.startswith("-") else need not in tags)
        ]


@dataclass
class Batch:
    """What one RL step works on. B answers of at most R tokens, P prompt tokens, answers of one prompt adjacent."""

    items: Any
    group: int
    prompts: Tensor
    responses: Tensor
    mask: Tensor
    logp_rollout: Tensor
    true_rewards: Tensor
    rewards: Tensor
    advantages: Tensor
    logp_old: Tensor
    logp_ref: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    #: Experts the rollout chose, by layer: [B, P + R - 1, K]; filled where the program replays them.
    routes: dict[int, Tensor] | None = None

    @property
    def sequences(self) -> Tensor:
        """[B, P + R] prompts and answers."""
        import torch

        return torch.cat([self.prompts, self.responses], 1)


def build(kind: type, row: dict[str, Any], where: str) -> Any:
    """A dataclass from a TOML row; unknown or missing names are an InputError that lists the allowed ones."""
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(row) - set(known))
    if unknown:
        raise InputError(f"{where}: unknown {', '.join(unknown)}; allowed are {', '.join(known)}")
    try:
        return kind(**row)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from error
