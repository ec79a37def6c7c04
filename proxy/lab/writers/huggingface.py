"""The Hugging Face Trainer and what is built on it: TRL and ms-swift (console, trainer_state.json, logging.jsonl)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from faultproxy.proxy.lab.writers.rows import Row, Run, span, windows, words

HF = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
TRL = {
    "loss": "loss", "policy_loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate", "tokens": "num_tokens",
    "length_mean": "completions/mean_length", "length_min": "completions/min_length", "length_max": "completions/max_length",
    "truncated_frac": "completions/clipped_ratio", "reward_mean": "reward", "reward_std": "reward_std",
    "zero_std_frac": "frac_reward_zero_std", "mismatch_logp_abs": "sampling/sampling_logp_difference/mean",
    "aux_loss": "aux_loss", "kl": "kl", "entropy": "entropy",
    "clip_frac": "clip_ratio/region_mean", "clip_frac_lower": "clip_ratio/low_mean", "step_time": "step_time",
    "reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected", "reward_accuracy": "rewards/accuracies",
    "reward_margin": "rewards/margins", "accuracy": "mean_token_accuracy",
}  # fmt: skip
#: ms-swift's GRPO is TRL's with verl's correction metrics in place of TRL's own.
SWIFT = {key: name for key, name in TRL.items() if not name.startswith("sampling/")} | {
    "mismatch_kl": "rollout_correction/kl", "mismatch_k3": "rollout_correction/k3_kl",
    "mismatch_ppl_gap": "rollout_correction/ppl_ratio",
}  # fmt: skip
SWIFT_SFT = HF | {"accuracy": "token_acc"}
_SWIFT_MEGATRON = HF | {"aux_loss": "load_balancing_loss"}
#: TRL averages these itself and writes None when every value was NaN; the other three are the trainer's.
_OWN = {*TRL.values(), *SWIFT.values()} - {"loss", "grad_norm", "learning_rate"}
#: What tqdm draws a tenth of its bar with.
_FULL = "\u2588"


def history(
    run: Run,
    names: Mapping[str, str] = HF,
    *,
    interval: int = 1,
    nan_filter: bool = True,
    digits: bool = True,
    extra: Sequence[str] = (),
) -> list[Row]:
    """The rows `Trainer.log` gets: the loss is the mean since the last row, and a bad loss is hidden by the NaN filter.

    `digits`: the loss is rounded to four decimals, as before transformers 5. Row keys that start with `eval_` make a row
    of their own behind the step's.
    """
    rows, epoch_steps = [], 200
    for window in windows(run, interval):
        total = 0.0
        for n, row in enumerate(window):
            loss = row.get("loss", row.get("policy_loss", 0.0))
            # `_tr_loss += _tr_loss / (1 + global_step - _globalstep_last_logged)`: the running mean, 0.0 if nothing is there.
            total += total / (1 + n) if nan_filter and not math.isfinite(loss) else loss
        last = window[-1]
        record: Row = {}
        for key, name in names.items():
            if key in last:
                record[name] = last[key]
                if name in _OWN and math.isnan(last[key]):
                    record[name] = None  # type: ignore[assignment]
        mean = total / len(window)
        record["loss"] = round(mean, 4) if digits and math.isfinite(mean) else mean
        record |= {key: last[key] for key in extra if key in last}
        place: Row = {"epoch": round(last["step"] / epoch_steps, 4), "step": int(last["step"])}
        rows.append(record | place)
        evaluation = {key: value for key, value in last.items() if key.startswith("eval_")}
        if evaluation:
            speed = {"eval_runtime": 3.1042, "eval_samples_per_second": 10.2, "eval_steps_per_second": 1.3}
            rows.append(evaluation | speed | place)
    return rows


def hf_console(rows: list[Row], run: Run, *, version: int = 4, bar: bool = False, summary: bool = False) -> str:
    """What ProgressCallback prints. From transformers 5 on every float is a string of four digits; no step anywhere."""
    total, out, elapsed, at = int(run[-1]["step"]), [], 0.0, 0
    for row in rows:
        shown = {key: value for key, value in row.items() if key != "step"}
        if version >= 5:
            text = str({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in shown.items()})
        else:
            text = str(shown)
        step = int(row["step"])
        if not bar:
            out.append(text + "\n")
            continue
        while at < step:
            elapsed += run[min(at, len(run) - 1)]["step_time"]
            at += 1
            bar_text = _bar(at, total, elapsed)
            out.append(f"\r{bar_text}")
        out.append(f"\n\r{' ' * 50}\n\r{text}\n\r\r{bar_text}")
    if summary:
        end = {"train_runtime": 611.4, "train_samples_per_second": 5.2, "train_steps_per_second": 0.6, "train_loss": 1.8, "epoch": 1.0}  # fmt: skip
        out.append(f"{ {k: f'{v:.4g}' for k, v in end.items()} if version >= 5 else end }\n")
    return "".join(out)


def _bar(step: int, total: int, elapsed: float) -> str:
    done = int(10 * step / total)
    left = elapsed / step * (total - step)
    rate = f"{elapsed / step:5.2f}s/it" if elapsed >= step else f"{step / elapsed:5.2f}it/s"
    return f"{100 * step // total:3d}%|{_FULL * done}{' ' * (10 - done)}| {step}/{total} [{span(elapsed)}<{span(left)}, {rate}]"


def trainer_state(rows: list[Row], run: Run) -> str:
    """`trainer_state.json`: `json.dumps(indent=2, sort_keys=True)`, which writes NaN bare."""
    last = rows[-1]
    summary = {"epoch": last["epoch"], "step": last["step"], "total_flos": 1.0e15, "train_loss": 1.8, "train_runtime": 611.4,
               "train_samples_per_second": 5.2, "train_steps_per_second": 0.6}  # fmt: skip
    state: dict[str, object] = {
        "best_global_step": None, "best_metric": None, "best_model_checkpoint": None, "epoch": last["epoch"], "eval_steps": 500,
        "global_step": last["step"], "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True,
        "log_history": [*rows, summary], "logging_steps": 1, "max_steps": int(run[-1]["step"]), "num_input_tokens_seen": 0,
        "num_train_epochs": 1, "save_steps": 500, "stateful_callbacks": {}, "total_flos": 0.0, "train_batch_size": 2,
        "trial_name": None, "trial_params": None,
    }  # fmt: skip
    return json.dumps(state, indent=2, sort_keys=True) + "\n"


def ms_swift(
    run: Run, *, backend: str = "hf", nan_filter: bool = False, interval: int = 1, extra: Sequence[str] = ()
) -> str:
    """`logging.jsonl`; floats rounded to 8 decimals, NaN bare, the step inside a string `"12/200"`."""
    total, lines, elapsed = int(run[-1]["step"]), [], 0.0
    trl = "reward_mean" in run[0] or "reward_margin" in run[0]
    names = SWIFT if trl else _SWIFT_MEGATRON if backend == "megatron" else SWIFT_SFT
    for window in windows(run, interval):
        last = window[-1]
        elapsed += sum(row["step_time"] for row in window)
        step, left = int(last["step"]), elapsed / last["step"] * (total - last["step"])
        memory: dict[str, object] = {"memory(GiB)": round(last["memory"], 2)} if "memory" in last else {}
        speed = memory | {"train_speed(s/it)": round(elapsed / step, 6)}
        for record in history(window, names, interval=interval, nan_filter=nan_filter, extra=extra):
            record.pop("step")
            epoch = record.pop("epoch")
            row: dict[str, object] = {k: round(v, 8) if isinstance(v, float) else v for k, v in record.items()}
            if backend == "hf":
                row |= speed | {"epoch": epoch, "global_step/max_steps": f"{step}/{total}", "percentage": f"{100 * step / total:.2f}%",
                                "elapsed_time": words(elapsed), "remaining_time": words(left)}  # fmt: skip
            else:
                row |= {"iteration": f"{step}/{total}", "elapsed_time": words(elapsed), "remaining_time": words(left)} | speed  # fmt: skip
            lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"
