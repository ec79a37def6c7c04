"""Every name that a framework writes reaches the signal of its formula, and names that look like one do not."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.trace import Key
from faultproxy.analyzer.vocabulary import _STATS, Resolved, resolve, signals

ROOT = Path(__file__).parent.parent
UPDATE = bool(os.environ.get("FAULTPROXY_UPDATE_DOCS"))


# -- the table --------------------------------------------------------------------------------------------------------
def _table() -> Iterator[tuple[str, str, str]]:
    framework = ""
    for line in (Path(__file__).parent / "vocabulary.txt").read_text(encoding="utf-8").splitlines()[3:]:
        if line.startswith("# "):
            framework = line[2:].partition(" | ")[0]
        elif line:
            key, _, wanted = line.rpartition(" -> ")
            yield framework, key, wanted


TABLE = list(_table())


def _shown(found: Resolved) -> str:
    if not found.known:
        return "." if found.how == "plain" else "-"
    text = found.key.column
    text += f" layer {found.key.layer}" if found.key.layer is not None else ""
    text += f" {found.key.module}" if found.key.module else ""
    return text + (f" x{found.scale:.9g}" if found.scale != 1 else "")


def test_every_name_of_every_framework_reaches_its_signal() -> None:
    assert len(TABLE) > 800 and len({framework for framework, _, _ in TABLE}) > 20
    found = [(framework, key, _shown(resolve(key)), wanted) for framework, key, wanted in TABLE]
    assert [row for row in found if row[2] != row[3]] == []


#: Formulas that look alike and are not, and what each is.
APART = [
    ("rollout_corr/log_ppl_abs_diff", "sampling/sampling_logp_difference/mean"),  # of sequences; of tokens
    ("rollout_corr/kl", "rollout_corr/k3_kl"),  # k1; k3
    ("rollout_corr/kl", "train/gen_kl_error"),  # k1; k3 unless the config says otherwise
    ("train/gen_kl_error", "train/policy_kl_error"),  # forward; backward
    ("actor/ppo_kl", "train/policy_kl_error"),  # to the old policy; to the rollout engine
    ("logprobs_diff", "train/train_rollout_logprob_abs_diff"),  # to the reference; to the rollout engine
    ("train/ois", "train/tis"),  # new over old policy; trainer over rollout
    ("rollout_corr/rollout_is_mean", "sampling/importance_sampling_ratio/mean"),  # before; after truncation
    ("rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_seq_mean"),  # tokens; sequences
    ("rollout_corr/rollout_is_eff_sample_size", "mismatch_ess_raw"),  # clamped; not
    ("rollout_corr/chi2_token", "rollout_corr/chi2_seq"),
    ("train/token_mult_prob_error", "train/tis_abs"),  # mean exp|d|; mean |w - 1|
    ("train/tis_clipfrac", "actor/pg_clipfrac"),  # importance weights; the PPO ratio
    ("actor/pg_clipfrac", "actor/pg_clipfrac_lower"),
    ("clip_ratio/low_mean", "clip_ratio/high_mean"),
    ("response_length/clip_ratio", "clip_ratio"),  # answers cut; tokens clipped
    ("rollout/raw_reward", "rollout/rewards"),  # as scored; normalised within groups
    ("reward_std", "rollout/reward_std"),  # within groups; over the batch
    ("objective/kl", "kl"),  # summed over a response; a token's
    ("objective/entropy", "entropy"),
    ("train/block 3/load imbalance", "rollout/moe/max_vio/layer_3"),  # max over mean; that less one
    ("load_balancing_loss", "seq_load_balancing_loss"),
    ("train/Z loss", "train/router Z loss"),  # of the output softmax; of the router
    ("critic/grad_norm", "actor/grad_norm"),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_formulas_are_different_signals(one: str, other: str) -> None:
    first, second = resolve(one), resolve(other)
    assert first.known and second.known
    assert (first.key.signal, first.key.role) != (second.key.signal, second.key.role)


# -- names that look like a signal ------------------------------------------------------------------------------------
#: A time, another model's, a setting, a count: what a familiar word in it does not make a signal.
NOT_SIGNALS = [
    "reward_model/loss", "reward_model_loss", "rm/accuracy", "teacher/entropy", "ref/grad_norm", "discriminator/loss", "target/value_loss",
    "time/reward", "timers/loss", "timing/train/entropy", "system/gpu.0.memory_util", "perf/reward_fn", "config/lr", "args/kl", "hparams/entropy",
    "max_grad_norm", "max_lr", "min_lr", "target_kl", "max_kl", "max_response_length", "max_prompt_length", "clip_grad_norm",
    "loss_mask_sum", "loss_per_token", "num_loss_tokens", "reward_weight", "format_reward", "reward_fn_calls", "kl_estimator", "entropy_target",
    "rewards_std", "std_reward", "lr_scheduler_step", "lr0", "values/x", "actor.optim.lr", "trainer.optim.learning_rate",
    "lm loss vs samples", "n_loss", "gradient_accumulation_steps", "grad_norm_clip_value", "advantage_estimator", "train_batch_size",
    "loss_fn", "token", "accurate", "relative", "color", "r", "l", "", "/", "a/b/c", "grad_norm_after_clip", "best_loss", "prev_loss",
    "my/value_fn/entropy", "critic/entropy_like", "eval/rm/loss", "norm", "kl_penalty_type", "ema_loss_rate",
]  # fmt: skip


@pytest.mark.parametrize("key", NOT_SIGNALS)
def test_a_name_that_only_looks_like_a_signal_stays_its_own(key: str) -> None:
    found = resolve(key)
    assert not found.known and found.key.signal == key


@pytest.mark.parametrize(
    ("key", "how"),
    [
        ("actor/grad_norm", "exact"), ("critic/rewards/max", "exact"), ("Grad Norm", "normalised"), ("actor.grad_norm", "normalised"),
        ("actor_pg_loss", "normalised"), ("a/b/actor/grad_norm", "suffix"), ("eval_math_loss", "suffix"), ("trainGradNorm", "token"),
        ("my/run/meanReward", "token"), ("time/x", "raw"), ("timing_s/x", "plain"),
    ],
)  # fmt: skip
def test_how_a_name_was_found_is_remembered(key: str, how: str) -> None:
    assert resolve(key).how == how


@pytest.mark.parametrize(
    "better_first",
    [("actor/grad_norm", "Grad Norm", "x/actor/grad_norm", "trainGradNorm"), ("kl", "KL", "x/kl", "kl_divergence")],
)
def test_a_name_found_in_a_better_way_keeps_the_signal(better_first: tuple[str, ...], tmp_path: Path) -> None:
    ranks = [resolve(key).rank for key in better_first]
    assert ranks == sorted(ranks) and len({resolve(key).key for key in better_first}) == 1
    log = tmp_path / "metrics.csv"
    rows = [",".join(["step", *reversed(better_first)])]
    rows += [f"{step},4.0,3.0,2.0,1.0" for step in range(1, 5)]
    log.write_text("\n".join(rows) + "\n")
    frame = read([str(log)])[0].frame
    assert frame.columns[resolve(better_first[0]).key].values == [1.0] * 4
    assert frame.columns[resolve(better_first[0]).key].raw_key == better_first[0]


def test_axis_and_role_follow_the_path() -> None:
    assert resolve("val/exp/loss").key == Key("loss", axis="eval")
    assert resolve("exp/val/my_loss").key.axis == "train"  # nobody's name: it keeps its own
    assert resolve("exp/critic/lr").key == Key("lr", role="critic")
    assert resolve("exp/vf/loss").key == Key("value_loss", role="critic")


# -- the vocabulary itself --------------------------------------------------------------------------------------------
def test_no_name_stands_twice_and_no_phrase_means_two_things() -> None:
    aliases = Counter(alias for entry in signals().values() for alias in entry["keys"])
    assert [alias for alias, times in aliases.items() if times > 1] == []
    phrases: dict[tuple[str, ...], set[str]] = {}
    for name, entry in signals().items():
        for phrase in entry.get("words", ()):
            phrases.setdefault(tuple(sorted(phrase.split())), set()).add(name)
    assert [phrase for phrase, names in phrases.items() if len(names) > 1] == []


def test_every_entry_says_what_it_is() -> None:
    allowed = {"signal", "axis", "role", "stat", "unit", "meaning", "healthy", "keys", "words", "scale", "plain"}
    for name, entry in signals().items():
        assert set(entry) <= allowed and entry["meaning"] and (entry.get("plain") or entry["unit"]), name
        assert set(entry.get("scale", ())) <= set(entry["keys"]), name


def test_no_statistic_of_one_signal_is_written_like_another_signal() -> None:
    columns = {Key(e.get("signal", n), e.get("axis", "train"), e.get("role"), e.get("stat")).column for n, e in signals().items()}  # fmt: skip
    read_into = {
        Key(*resolve(key).key[:4]).column: resolve(key).key.signal for _, key, _ in TABLE if resolve(key).key.stat
    }
    clash = {
        column: signal for column, signal in read_into.items() if column in columns and not column.startswith(signal)
    }
    assert clash == {}
    assert re.fullmatch(_STATS, "mean")


@pytest.mark.parametrize("size", [100, 2000])
def test_a_long_name_is_looked_up_in_time_linear_in_it(size: int) -> None:
    for key in ("a/" * size, "loss " * size, "(" * size, "A" * size, "a." * size, "_1" * size):
        assert not resolve(key).known


# -- what nobody knows ------------------------------------------------------------------------------------------------
def test_a_name_nobody_knows_reaches_the_report_and_bookkeeping_does_not(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    line = "step:{} - training/global_step:{} - actor/pg_loss:0.01 - actor/grad_norm:0.2 - timing_s/dump:1.2 - agent_loop/slowest/x:3 - my/thing:0.5"
    log.write_text("\n".join(line.format(step, step) for step in range(1, 9)) + "\n")
    trace = read([str(log)])[0]
    assert trace.frame.columns[Key("my/thing")].values == [0.5] * 8
    assert trace.frame.columns[Key("timing_s/dump")].values == [1.2] * 8
    assert document(diagnose(trace))["unrecognised"] == ["my/thing"]


# -- docs/signals.md --------------------------------------------------------------------------------------------------
def _page() -> str:
    text = (ROOT / "analyzer" / "signals.toml").read_text(encoding="utf-8")
    parts = re.split(r"^# -{4} (.+?) -{2,}$", text, flags=re.MULTILINE)
    lines = [
        "# Signals",
        "",
        "What every name of a log is read into: analyzer/signals.toml as a table, written by tests/test_vocabulary.py.",
        "A column of a rule is the signal, with `critic_` or `eval_` before it and a statistic (`_max`) behind it.",
        "In a name `{stat}` is a statistic, `{layer}` and `{expert}` are numbers, `{label}` names a component; (xN) is the",
        "factor to the unit. How a name nobody listed is found: analyzer/vocabulary.py.",
    ]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        names = re.findall(r"^\[(\w+)\]$", body, re.MULTILINE)
        lines += [
            "",
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| signal | unit | meaning | names |",
            "|---|---|---|---|",
        ]
        lines += [_row(name) for name in names]
    return "\n".join(lines) + "\n"


def _row(name: str) -> str:
    entry = signals()[name]
    key = Key(entry.get("signal", name), entry.get("axis", "train"), entry.get("role"), entry.get("stat"))
    column = name if entry.get("plain") or key.axis == "system" else key.column
    meaning = entry["meaning"] + (f". Healthy: {entry['healthy']}" if "healthy" in entry else "")
    scale = entry.get("scale", {})
    names = ", ".join(f"`{alias}`" + (f" (x{scale[alias]:g})" if alias in scale else "") for alias in entry["keys"])
    return f"| `{column}` | {entry.get('unit') or '-'} | {meaning} | {names} |".replace("|n", "\\|n")


def test_the_page_of_signals_is_the_vocabulary_as_it_is() -> None:
    path = ROOT / "docs" / "signals.md"
    if UPDATE:
        path.write_text(_page(), encoding="utf-8")
    held = path.read_text(encoding="utf-8") if path.exists() else ""
    assert held == _page(), (
        "docs/signals.md is stale: FAULTPROXY_UPDATE_DOCS=1 python -m pytest tests/test_vocabulary.py"
    )
