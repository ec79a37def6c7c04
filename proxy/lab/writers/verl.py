"""verl: the console line of two ages, and the FileLogger's JSON lines of two ages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from faultproxy.proxy.lab.writers.rows import Row, Run

VERL = {
    "score_mean": "critic/score/mean", "score_max": "critic/score/max", "score_min": "critic/score/min",
    "reward_mean": "critic/rewards/mean", "reward_max": "critic/rewards/max", "reward_min": "critic/rewards/min",
    "advantage_mean": "critic/advantages/mean", "advantage_max": "critic/advantages/max", "advantage_min": "critic/advantages/min",
    "entropy": "actor/entropy", "policy_loss": "actor/pg_loss", "kl": "actor/kl_loss", "kl_coef": "actor/kl_coef",
    "clip_frac": "actor/pg_clipfrac", "clip_frac_lower": "actor/pg_clipfrac_lower", "kl_old": "actor/ppo_kl",
    "grad_norm": "actor/grad_norm", "lr": "actor/lr", "value_loss": "critic/vf_loss", "critic_grad_norm": "critic/grad_norm",
    "length_mean": "response_length/mean", "length_max": "response_length/max", "length_min": "response_length/min",
    "truncated_frac": "response_length/clip_ratio", "prompt_mean": "prompt_length/mean", "prompt_max": "prompt_length/max",
    "prompt_min": "prompt_length/min", "prob_diff_mean": "training/rollout_probs_diff_mean",
    "prob_diff_max": "training/rollout_probs_diff_max", "prob_diff_std": "training/rollout_probs_diff_std",
    "mismatch_pearson": "training/rollout_actor_probs_pearson_corr", "mismatch_kl": "rollout_corr/kl",
    "mismatch_k3": "rollout_corr/k3_kl", "mismatch_ppl_gap": "rollout_corr/ppl_ratio", "mismatch_is_mean": "rollout_corr/rollout_is_mean",
    "staleness": "training/off_policy/trajectory_staleness/mean", "gen_time": "timing_s/gen", "step_time": "timing_s/step",
    "memory": "perf/max_memory_allocated_gb", "host_memory": "perf/cpu_memory_used_gb", "tokens_total": "perf/total_num_tokens",
    "throughput": "perf/throughput", "eval_accuracy": "val-core/lab/acc/mean@1", "step": "training/global_step",
}  # fmt: skip
VERL_SFT = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/lr"}
#: `reduce_metrics` takes np.mean of these, so under numpy 2 they print as np.float64(...).
_REDUCED = ("actor/", "critic/vf", "critic/grad", "perf/max", "perf/cpu", "rollout_corr/")


def verl_row(row: Row, extra: Sequence[str] = ()) -> Row:
    """One step's metrics under verl's names, in the order verl logs them."""
    rl = "reward_mean" in row
    data = {name: row[key] for key, name in (VERL if rl else VERL_SFT).items() if key in row}
    if "tokens_total" in row:
        data = {"global_seqlen/min": 22900.0, "global_seqlen/max": 31120.0, "global_seqlen/mean": 27010.5, **data}
    if rl:
        data["training/epoch"] = 0
    return data | {key: row[key] for key in extra if key in row}


def verl_console(
    run: Run,
    *,
    new: bool = True,
    ray: bool = True,
    warn: set[int] | None = None,
    colour: bool = False,
    extra: Sequence[str] = (),
) -> str:
    """Console lines; `new` prints reprs (numpy 2 wrappers included), else three decimals. `warn` holds the steps whose
    update the engine skipped: its line comes before the step's own."""
    head = "(TaskRunner pid=4242) " if ray else ""
    if colour and ray:
        head = "\x1b[36m(TaskRunner pid=4242)\x1b[0m "
    lines = [
        head + "{'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06}}}}",
        head + "Size of train dataloader: 200",
    ]
    for row in run:
        step = int(row["step"])
        if warn and step in warn:
            lines.append("(WorkerDict pid=5151, ip=10.0.0.3) WARN: rank 0 grad_norm is not finite: nan")
            lines.append(
                "(WorkerDict pid=5152, ip=10.0.0.3) WARN: rank 1 grad_norm is not finite: nan [repeated 7x across cluster]"
            )
        parts = [f"step:{step}"]
        for name, value in verl_row(row, extra).items():
            if not new:
                parts.append(f"{name}:{value:.3f}")
            elif name.startswith(_REDUCED):
                parts.append(f"{name}:np.float64({value!r})")
            else:
                parts.append(f"{name}:{value!r}")
        lines.append(head + " - ".join(parts))
    return "\n".join(lines) + "\n"


def verl_jsonl(run: Run, *, new: bool = True, extra: Sequence[str] = ()) -> str:
    """FileLogger: orjson writes NaN and both infinities as null; before 2026-01-08 the standard library wrote them bare."""
    lines = []
    for row in run:
        data = verl_row(row, extra)
        if new:
            clean = {k: v if math.isfinite(v) else None for k, v in data.items()}
            lines.append(json.dumps({"step": int(row["step"]), "data": clean}, separators=(",", ":")))
        else:
            lines.append(json.dumps({"step": int(row["step"]), "data": data}))
    return "\n".join(lines) + "\n"
