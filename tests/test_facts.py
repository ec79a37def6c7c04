"""Facts about a run: where each is read, which of two sources counts, and what must never be taken for one."""

from __future__ import annotations

import ast
import json
import os
import pprint
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from faultproxy.analyzer import facts as run_facts
from faultproxy.analyzer.advice import not_judged
from faultproxy.analyzer.against.config import differences
from faultproxy.analyzer.against.good import read_good
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.ingest.facts import gather, launch, literal, yamlish
from faultproxy.analyzer.ingest.facts.found import scalar
from faultproxy.analyzer.ingest.facts.model import describe
from faultproxy.analyzer.ingest.facts.names import CARD, SETTINGS
from faultproxy.analyzer.ingest.merge import merge
from faultproxy.analyzer.ingest.source import File
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.rulecases import trace as case_trace
from faultproxy.analyzer.trace import Key, Trace
from faultproxy.analyzer.views import Views

ROOT = Path(__file__).resolve().parents[1]
ROWS = "\n".join(f"step: {s}  loss: {3 - s / 50:.4f}  grad_norm: {1 + s % 3 / 10:.4f}" for s in range(1, 31)) + "\n"
MOE_ROWS = (
    "\n".join(
        f"step:{s} - actor/pg_loss:0.01{s} - rollout/moe/max_vio/layer_0:0.1{s} - rollout/moe/max_vio/layer_3:0.2"
        for s in range(1, 31)
    )
    + "\n"
)
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 10, "n_routed_experts": 64,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "hidden_size": 2048, "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid",
    "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
VERL = {
    "actor_rollout_ref": {
        "actor": {"optim": {"lr": 1e-06, "lr_warmup_steps": -1}, "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "use_kl_loss": False, "kl_loss_coef": 0.001, "grad_clip": 1.0, "fsdp_config": {"model_dtype": "fp32", "dtype": "bfloat16"}},
        "rollout": {"n": 8, "dtype": "bfloat16", "quantization": "fp8", "calculate_log_probs": True, "tensor_model_parallel_size": 2, "name": "vllm"},
        "model": {"path": "Qwen/Qwen3-30B-A3B", "override_config": {}},
    },
    "algorithm": {"adv_estimator": "gae", "use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.002}},
    "data": {"train_batch_size": 256, "max_response_length": 8192},
    "trainer": {"nnodes": 4, "n_gpus_per_node": 8, "device": "npu", "logger": ["console", "wandb"]},
}  # fmt: skip
VERL_FACTS = {
    "algorithm": "ppo", "precision.compute": "bf16", "precision.params": "fp32", "precision.rollout": "bf16", "precision.rollout_quantisation": "fp8",
    "hyperparameters.lr": 1e-06, "hyperparameters.clip_low": 0.2, "hyperparameters.clip_high": 0.28, "hyperparameters.group": 8,
    "hyperparameters.prompts": 256, "hyperparameters.rollout_log_probs": True, "hyperparameters.kl_reward_coef": 0.002, "hyperparameters.lr_warmup": None,
    "hyperparameters.kl_coef": None, "hyperparameters.max_response_length": 8192, "parallelism.rollout_tp": 2, "hardware.devices": 32, "hardware.vendor": "ascend",
    "model.name": "Qwen/Qwen3-30B-A3B",
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def one(path: Path) -> Trace:
    (trace,) = read([str(path)])
    return trace


def held(trace: Trace, key: str) -> Any:
    group, _, name = key.partition(".")
    value = trace.facts.get(group)
    return value.get(name) if name and isinstance(value, dict) else None if name else value


def assert_holds(trace: Trace, wanted: dict[str, Any]) -> None:
    assert {key: held(trace, key) for key in wanted} == wanted


# -- sources ----------------------------------------------------------------------------------------------------------
MEGATRON = {
    "num_layers": 48, "hidden_size": 2048, "num_experts": 128, "moe_router_topk": 8, "moe_layer_freq": [0] * 3 + [1] * 45, "fp16": True, "bf16": False,
    "loss_scale": None, "initial_loss_scale": 65536, "clip_grad": 1.0, "tensor_model_parallel_size": 2, "world_size": 16, "lr": 1e-5,
    "micro_batch_size": 1, "global_batch_size": 64,
}  # fmt: skip


def dump(arguments: dict[str, Any]) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(arguments.items())]
    lines.insert(3, "[rank1]: NCCL version 2.21.5")
    title = "-" * 24
    return "\n".join([f"{title} arguments {title}", *lines, f"{'-' * 20} end of arguments {'-' * 21}", ""])


TEXTS = {
    "megatron-arguments": (
        dump(MEGATRON),
        {"framework": "megatron", "model.layers": 48, "model.experts": 128, "model.top_k": 8, "model.dense_layers": 3, "precision.compute": "fp16", "precision.loss_scaling": "dynamic", "precision.initial_scale": 65536, "parallelism.tp": 2, "hardware.devices": 16, "hyperparameters.batch": 64, "origins": {}},
    ),
    "verl-dict": ("".join(f"(TaskRunner pid=7) {line}\n" for line in pprint.pformat(VERL).split("\n")), VERL_FACTS),
    "torchrun": (
        "+ torchrun --nproc_per_node=8 --nnodes 2 pretrain_gpt.py --bf16 --num-experts 128 --num-layers=48 --moe-layer-freq '([0]*1+[1]*47)' --lr 1e-5 --seq-length 4096\n",
        {"framework": "megatron", "algorithm": "supervised", "hardware.devices": 16, "precision.compute": "bf16", "precision.loss_scaling": "none", "model.experts": 128, "model.dense_layers": 1, "hyperparameters.lr": 1e-5, "hyperparameters.sequence_length": 4096},
    ),
    "deepspeed-command": (
        "cmd = deepspeed --num_gpus 8 train.py --deepspeed ds.json --learning_rate 2e-5 --fp16\n",
        {"hardware.devices": 8, "hyperparameters.lr": 2e-5, "precision.compute": "fp16", "precision.loss_scaling": None},
    ),
    "deepspeed-print": (
        ("[2026-08-01 10:00:00,018] [INFO] [config.py:997:print] DeepSpeedEngine configuration:\n"
        "[2026-08-01 10:00:00,018] [INFO] [config.py:1001:print]   fp16_enabled ................. True\n"
        "[2026-08-01 10:00:00,018] [INFO] [config.py:1001:print]   gradient_clipping ............ 0.5\n"
        "[2026-08-01 10:00:00,018] [INFO] [config.py:1001:print]   loss_scale ................... 0\n"
        '[2026-08-01 10:00:00,018] [INFO] [config.py:987:print_user_config]   json = {\n    "train_batch_size": 64, \n    "fp16": {\n        "enabled": true, \n        "initial_scale_power": 16, "hysteresis": 2\n    }, "zero_optimization": {"stage": 3}\n}\n'),
        {"precision.compute": "fp16", "precision.loss_scaling": "dynamic", "precision.initial_scale": 65536, "precision.hysteresis": 2, "hyperparameters.clip_grad": 0.5, "parallelism.zero_stage": 3, "hyperparameters.batch": 64},
    ),
    "training-arguments": (
        "Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\naccelerator_config={'split_batches': False},\nbf16=True,\neval_strategy=IntervalStrategy.NO,\nlearning_rate=2e-05,\nlr_scheduler_type=SchedulerType.COSINE,\nmax_grad_norm=1.0,\nmax_steps=-1,\nnum_train_epochs=3.0,\n)\n",
        {"precision.compute": "bf16", "hyperparameters.lr": 2e-05, "hyperparameters.lr_schedule": "cosine", "hyperparameters.clip_grad": 1.0, "hyperparameters.epochs": 3.0, "total_steps": None},
    ),
    "trl-config": (
        "GRPOConfig(beta=0.04, epsilon=0.2, epsilon_high=0.3, num_generations=8, learning_rate=1e-06, vllm_mode='colocate')\n",
        {"framework": "hf", "algorithm": "rl", "hyperparameters.kl_coef": 0.04, "hyperparameters.clip_low": 0.2, "hyperparameters.clip_high": 0.3, "hyperparameters.group": 8, "parallelism.placement": "colocated"},
    ),
    "model-config": (
        'Model config Qwen3MoeConfig {\n  "decoder_sparse_step": 1,\n  "mlp_only_layers": [\n    0\n  ],\n  "model_type": "qwen3_moe",\n  "num_experts": 128,\n  "num_experts_per_tok": 8,\n  "num_hidden_layers": 48\n}\n',
        {"model.family": "qwen3_moe", "model.layers": 48, "model.experts": 128, "model.dense_layers": 1},
    ),
    "nemo-rl": (
        "Final config:\n{'grpo': {'num_prompts_per_step': 32,\n          'num_generations_per_prompt': 16},\n 'loss_fn': {'ratio_clip_min': 0.2, 'ratio_clip_max': 0.28},\n 'policy': {'precision': 'bfloat16'}}\n",
        {"hyperparameters.prompts": 32, "hyperparameters.group": 16, "hyperparameters.clip_high": 0.28, "precision.compute": "bf16"},
    ),
    "vllm": (
        "(pid=9) INFO 08-01 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.8.2) with config: model='Q', dtype=torch.bfloat16, tensor_parallel_size=2, quantization=fp8, kv_cache_dtype=auto, seed=0, compilation_config={'level': 0}\n",
        {"precision.rollout": "bf16", "parallelism.rollout_tp": 2, "precision.rollout_quantisation": "fp8", "precision.kv_cache": None, "hyperparameters.seed": None},
    ),
    "sglang": (
        "server_args=ServerArgs(model_path='Q', dtype='bfloat16', tp_size=4, kv_cache_dtype='fp8_e5m2', random_seed=1)\n",
        {"precision.rollout": "bf16", "parallelism.rollout_tp": 4, "precision.kv_cache": "fp8_e5m2"},
    ),
    "openrlhf": (
        "Running entrypoint: ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --advantage_estimator gae --eps_clip_low_high 0.2 --n_samples_per_prompt 8 --init_kl_coef 1e-3 --zero_stage 3 --colocate_all_models\n",
        {"framework": "openrlhf", "algorithm": "ppo", "hyperparameters.kl_coef": 1e-3, "hyperparameters.group": 8, "parallelism.zero_stage": 3, "parallelism.placement": "colocated"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_log_prints_of_its_configuration_is_read(name: str, tmp_path: Path) -> None:
    text, wanted = TEXTS[name]
    trace = one(write(tmp_path, {"run.log": text + ROWS}) / "run.log")
    assert_holds(trace, {key: value for key, value in wanted.items() if key != "origins"})
    assert len(trace.frame) == 30
    known = [key for key, value in wanted.items() if value is not None and "." in key and key != "hardware.devices"]
    assert all(str(trace.facts["origins"][key]).startswith(f"{tmp_path}/run.log:") for key in known)


FILES = {
    "hydra": ({".hydra/config.yaml": "actor_rollout_ref:\n  actor:\n    optim:\n      lr: 1.0e-06\n      betas: [0.9, 0.99]\n  rollout:\n    n: 8 # a group\n    dtype: bfloat16\n    logger:\n    - console\nalgorithm: {adv_estimator: grpo, gamma: 1.0}\n"},
              {"framework": "verl", "algorithm": "rl", "hyperparameters.lr": 1e-06, "hyperparameters.group": 8, "hyperparameters.gamma": 1.0, "precision.rollout": "bf16"}),
    "wandb": ({"config.yaml": "wandb_version: 1\n\n_wandb:\n  desc: null\n  value:\n    python_version: 3.11.5\nlearning_rate:\n  desc: null\n  value: 1.0e-05\nfp16:\n  value: true\nactor_rollout_ref:\n  value:\n    rollout:\n      n: 4\n"},
              {"hyperparameters.lr": 1e-05, "precision.compute": "fp16", "hyperparameters.group": 4}),
    "accelerate": ({"accelerate_config.yaml": "mixed_precision: bf16\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 2\n"},
                   {"precision.compute": "bf16", "hardware.devices": 8, "parallelism.zero_stage": 3, "hyperparameters.accumulation": 2}),
    "deepspeed": ({"ds_config_zero2.json": json.dumps({"fp16": {"enabled": True, "initial_scale_power": 12}, "gradient_clipping": "auto", "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4})},
                  {"precision.compute": "fp16", "precision.loss_scaling": "dynamic", "precision.initial_scale": 4096, "hyperparameters.clip_grad": None, "parallelism.zero_stage": 2, "hyperparameters.micro_batch": 4}),
    "model": ({"config.json": json.dumps(DEEPSEEK)},
              {"model.layers": 10, "model.experts": 64, "model.top_k": 8, "model.groups": 8, "model.top_groups": 4, "model.scoring": "sigmoid", "model.dtype": "bf16", "model.quantisation": "fp8", "model.mtp_layers": 1, "model.moe_layers": [3, 4, 5, 6, 7, 8, 9]}),
    "ms-swift": ({"args.json": json.dumps({"rlhf_type": "grpo", "num_generations": 8, "beta": 0.04, "epsilon": 0.2, "learning_rate": 1e-06, "deepspeed": {"zero_optimization": {"stage": 3}}})},
                 {"algorithm": "rl", "hyperparameters.group": 8, "hyperparameters.kl_coef": 0.04, "hyperparameters.clip_high": 0.2, "parallelism.zero_stage": 3}),
    "card": ({"README.md": "# model\n\nThe following hyperparameters were used during training:\n- learning_rate: 5e-05\n- train_batch_size: 8\n- num_devices: 4\n- total_train_batch_size: 64\n- mixed_precision_training: Native AMP\n\n### Results\n- seed: 7\n"},
             {"hyperparameters.lr": 5e-05, "hyperparameters.micro_batch": 8, "hyperparameters.batch": 64, "hardware.devices": 4, "precision.loss_scaling": "dynamic", "hyperparameters.seed": None}),
    "wandb-metadata": (
        {"wandb-metadata.json": json.dumps({"program": "/job/train.py", "args": ["--learning_rate", "1e-5", "--bf16"], "gpu": "NVIDIA H100 80GB HBM3", "gpu_count": 8})},
        {"hyperparameters.lr": 1e-5, "precision.compute": "bf16", "hardware.vendor": "nvidia", "hardware.devices_per_node": 8},
    ),
    "script": ({"train.sh": "#!/bin/bash\n#SBATCH -N 4\nLR=1e-6\nexport INF_NAN_MODE_ENABLE=0\nTP=${TP:-4}\nMODEL_ARGS=(\n  --num-layers 48\n  # dense first\n  --num-experts 128\n)\nCUDA_LAUNCH_BLOCKING=1 torchrun --nproc_per_node $GPUS pretrain_gpt.py \\\n  \"${MODEL_ARGS[@]}\" \\\n  --lr $LR \\\n  --tensor-model-parallel-size $TP --bf16\n"},
               {"hyperparameters.lr": 1e-6, "parallelism.tp": 4, "model.layers": 48, "model.experts": 128, "precision.compute": "bf16", "precision.overflow_mode": "saturation", "hardware.devices": None, "framework": "megatron"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_what_lies_beside_a_log_is_read_for_the_log_and_for_its_folder(name: str, tmp_path: Path) -> None:
    files, wanted = FILES[name]
    write(tmp_path, {"run.log": ROWS, **files})
    for path in (tmp_path / "run.log", tmp_path):
        trace = one(path)
        assert_holds(trace, wanted)
        assert (len(trace.sources), len(trace.frame), trace.unrecognised) == (1, 30, [])
        assert not any("config" in warning or "json" in warning for warning in trace.warnings)


def test_nothing_beside_a_log_means_no_facts_and_no_origins(tmp_path: Path) -> None:
    assert one(write(tmp_path, {"run.log": ROWS}) / "run.log").facts == {"steps_are_rows": False}


# -- models -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, [0, 1, 2, 3, 4, 5]),
        ({"model_type": "qwen2_moe", "num_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        ({"model_type": "deepseek_v2", "n_routed_experts": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1}, [1, 2, 3, 4, 5]),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_layer_start_index": 1, "moe_layer_interval": 1, "moe_layer_end_index": -1}, [1, 2, 3, 4, 5]),
        ({"model_type": "jamba", "num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3, 5]),
        ({"model_type": "llama4_text", "num_local_experts": 8, "interleave_moe_layer_step": 2}, [1, 3, 5]),
        ({"model_type": "glm4_moe", "n_routed_experts": 8, "mlp_layer_types": ["dense", "sparse"] * 3}, [1, 3, 5]),
        ({"model_type": "nemotron_h", "n_routed_experts": 8, "layers_block_type": ["mamba", "moe", "attention"] * 2}, [1, 4]),
        ({"model_type": "lfm2_moe", "num_experts": 8, "num_dense_layers": 2}, [2, 3, 4, 5]),
        ({"moe_layer_freq": "([0]*2+[1]*4)", "num_experts": 8}, [2, 3, 4, 5]),
        ({"moe_layer_freq": "([0]*2+[1]*9)", "num_experts": 8}, None),
        ({"moe_layer_freq": "__import__('os')", "num_experts": 8}, None),
        ({"model_type": "a_new_moe", "num_experts": 8}, None),
        ({"model_type": "qwen3", "num_experts": None}, None),
    ],
)  # fmt: skip
def test_which_layers_route_follows_the_family(config: dict[str, Any], layers: list[int] | None) -> None:
    found = describe({"num_hidden_layers": 6, **config})
    assert found.get("model.moe_layers") == layers
    assert found.get("model.dense_layers") == (None if layers is None else 6 - len(layers))


def test_a_language_model_inside_a_larger_one_is_found() -> None:
    outer = {"model_type": "kimi_k25", "text_config": {"num_hidden_layers": 61, "n_routed_experts": 384}}
    assert describe(outer)["model.experts"] == 384
    assert describe({"n_layers": 40, "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}})["model.top_k"] == 4


# -- layers -----------------------------------------------------------------------------------------------------------
def layers_of(trace: Trace) -> set[tuple[int | None, str | None]]:
    return {(key.layer, key.module) for key in trace.detail.columns}


def test_layers_that_route_get_their_absolute_index_from_the_model(tmp_path: Path) -> None:
    log = write(tmp_path, {"run.log": MOE_ROWS}) / "run.log"
    assert layers_of(one(log)) == {(None, "moe[0]"), (None, "moe[3]")}
    write(tmp_path, {"config.json": json.dumps(DEEPSEEK)})
    trace = one(log)
    assert layers_of(trace) == {(3, None), (6, None)}
    run = document(diagnose(trace))["run"]
    assert (run["layers"], run["experts"], run["facts"]["model"]["dense_layers"]) == (10, 64, 3)


def test_a_model_that_the_log_does_not_fit_changes_no_layer(tmp_path: Path) -> None:
    small = {**DEEPSEEK, "num_hidden_layers": 5}
    trace = one(write(tmp_path, {"run.log": MOE_ROWS, "config.json": json.dumps(small)}) / "run.log")
    assert layers_of(trace) == {(None, "moe[0]"), (None, "moe[3]")}
    assert any("it is not this model's, layers stay as numbered" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("last", "wanted"),
    [(4, {(1, None), (2, None), (3, None), (None, "mtp[0]")}), (5, {(n, None) for n in range(6)})],
)
def test_megatron_puts_zeros_for_dense_layers_and_prediction_layers_last(
    last: int, wanted: set[Any], tmp_path: Path
) -> None:
    config = {**DEEPSEEK, "num_hidden_layers": 4, "first_k_dense_replace": 1}
    rows = [
        json.dumps({"step": s, "lm loss": 2.0, **{f"moe/z_loss_layer_{n}": 0.1 * n for n in range(last + 1)}})
        for s in range(1, 31)
    ]
    trace = one(write(tmp_path, {"run.jsonl": "\n".join(rows), "config.json": json.dumps(config)}) / "run.jsonl")
    assert layers_of(trace) == wanted


def test_model_config_is_given_by_hand_and_outranks_what_lies_beside(tmp_path: Path) -> None:
    write(tmp_path, {"job/run.log": MOE_ROWS, "job/config.json": json.dumps({**DEEPSEEK, "num_hidden_layers": 12})})
    write(tmp_path, {"model/config.json": json.dumps({**DEEPSEEK, "first_k_dense_replace": 1})})
    (trace,) = read([str(tmp_path / "job" / "run.log")], str(tmp_path / "model"))
    assert layers_of(trace) == {(1, None), (4, None)}
    assert any("model.layers is 10 in" in warning and "12 in" in warning for warning in trace.warnings)


@pytest.mark.parametrize("content", [None, "[]", "{", '{"tokenizer": 1}', "\x00" * 100])
def test_a_model_config_that_is_none_is_bad_input(content: str | None, tmp_path: Path) -> None:
    log = write(tmp_path, {"run.log": ROWS}) / "run.log"
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="is no model configuration; --model-config takes"):
        read([str(log)], str(path))


# -- sources that differ ----------------------------------------------------------------------------------------------
def test_the_source_nearest_to_the_run_counts_and_the_other_is_named(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.lr=1e-6 trainer.nnodes=1\n"
    printed = pprint.pformat({"actor_rollout_ref": {"actor": {"optim": {"lr": 2e-6, "weight_decay": 0.1}}}}) + "\n"
    script = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.weight_decay=0.2 data.train_batch_size=8\n"
    hydra = "actor_rollout_ref:\n  actor:\n    optim: {lr: 4e-6, weight_decay: 0.3}\ndata:\n  train_batch_size: 16\n"
    printed = printed.replace("{'actor_rollout_ref': {", "{'actor_rollout_ref': {", 1)
    trace = one(write(tmp_path, {"run.log": printed + command + ROWS, "run.sh": script, ".hydra/config.yaml": hydra}))
    assert_holds(trace, {"hyperparameters.lr": 1e-6, "hyperparameters.weight_decay": 0.1, "hyperparameters.prompts": 8})
    (lr,) = [warning for warning in trace.warnings if warning.startswith("hyperparameters.lr ")]
    assert lr == (
        f"hyperparameters.lr is 1e-06 in {tmp_path}/run.log:2 and 2e-06 in {tmp_path}/run.log:1; the first is used"
    )
    assert any("hyperparameters.prompts is 8 in" in warning for warning in trace.warnings)


def test_many_differences_are_counted_not_listed(tmp_path: Path) -> None:
    names = {
        name: index for index, name in enumerate(("lr", "clip_grad", "seed", "weight_decay", "min_lr", "adam_beta1"))
    }
    command = "torchrun pretrain_gpt.py " + " ".join(f"--{name} {value + 1}" for name, value in names.items()) + "\n"
    trace = one(write(tmp_path, {"run.log": command + dump(names) + ROWS}))
    assert sum("the first is used" in warning for warning in trace.warnings) == 4
    assert "2 more facts differ between sources" in trace.warnings


def test_of_several_candidates_the_one_that_is_named_counts_or_none(tmp_path: Path) -> None:
    ds = {n: json.dumps({"zero_optimization": {"stage": n}, "train_micro_batch_size_per_gpu": n}) for n in (2, 3)}
    write(tmp_path, {"run.log": ROWS, "ds_config_2.json": ds[2], "ds_config_3.json": ds[3]})
    assert held(one(tmp_path / "run.log"), "parallelism.zero_stage") is None
    write(tmp_path, {"run.sh": "deepspeed --num_gpus 8 train.py --deepspeed conf/ds_config_3.json --bf16\n"})
    assert held(one(tmp_path / "run.log"), "parallelism.zero_stage") == 3


def test_a_script_is_not_taken_for_the_wrong_log(tmp_path: Path) -> None:
    script = "torchrun --nproc_per_node {} train.py --lr {}\n"
    write(tmp_path, {"a.log": ROWS, "b.log": ROWS, "a.sh": script.format(1, 1e-3), "other.sh": script.format(2, 2e-3)})
    assert held(one(tmp_path / "a.log"), "hyperparameters.lr") == 1e-3
    assert held(one(tmp_path / "b.log"), "hyperparameters.lr") is None


# -- what facts decide ------------------------------------------------------------------------------------------------
def test_the_configuration_tells_rl_where_the_metrics_do_not(tmp_path: Path) -> None:
    log = write(tmp_path, {"run.log": ROWS}) / "run.log"
    assert "policy" not in [area["what"] for area in not_judged(one(log))]
    write(tmp_path, {"args.json": json.dumps({"rlhf_type": "grpo", "num_generations": 8})})
    trace = one(log)
    assert trace.facts["algorithm"] == "rl" and "policy" in [area["what"] for area in not_judged(trace)]
    assert Key("policy_loss") in trace.frame.columns and Key("loss") not in trace.frame.columns


def test_the_objective_has_one_name_in_the_frame_and_by_rank(tmp_path: Path) -> None:
    from faultproxy.analyzer.ingest.log import Log
    from faultproxy.analyzer.trace import Cell, Source

    log = Log(0, Source("x", "jsonl", "0" * 64))
    for step in range(1, 5):
        for rank in (0, 1):
            log.rank = rank
            log.row(step, [("loss", Cell(0.1)), ("reward", Cell(0.5))], "jsonl")
    log.table = "SELECT 0 AS segment, 1 AS step, 'loss' AS signal UNION ALL SELECT 0, 1, 'eval_loss'"
    trace = merge("x", [log])
    names = {key.signal for frame in (trace.frame, trace.detail) for key in frame.columns}
    assert names == {"policy_loss", "reward"}
    import duckdb

    assert trace.table is not None
    assert sorted(row[2] for row in duckdb.sql(trace.table).fetchall()) == ["eval_loss", "policy_loss"]


def test_a_loss_beside_the_policy_loss_of_an_rl_run_is_its_objective_and_not_judged_by_its_level(
    tmp_path: Path,
) -> None:
    rows = [{"step": at, "loss": 0.01 * at, "policy_loss": 0.001 * (-1) ** at, "reward": 0.3, "grad_norm": 0.4} for at in range(1, 40)]  # fmt: skip
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    trace = read([str(path)])[0]
    assert {Key("objective"), Key("policy_loss")} <= set(trace.frame.columns)
    assert Key("loss") not in trace.frame.columns


def test_rules_read_facts_as_a_table_and_by_name() -> None:
    facts = {"precision.compute": "fp16", "hyperparameters.clip_high": 0.28, "hyperparameters.kl_loss": True}
    trace = case_trace({"series": {"clip_frac": "0.1x20 0.4x5"}, "facts": facts})
    views = Views(trace, {"train": {"clip_frac"}})
    assert views.con.execute("SELECT key, value, number FROM facts ORDER BY key").fetchall() == [
        ("hyperparameters.clip_high", "0.28", 0.28),
        ("hyperparameters.kl_loss", "true", 1.0),
        ("precision.compute", "fp16", None),
    ]
    query = "SELECT count(*) FROM train WHERE clip_frac > fact('hyperparameters.clip_high') AND fact_text('precision.compute') = 'fp16' AND fact('model.layers') IS NULL"
    assert views.con.execute(query).fetchall() == [(5,)]


def test_names_of_the_lab_are_seen_under_the_common_name_too() -> None:
    rows = {
        key: value
        for key, value, _ in run_facts.flat({"precision": {"trainer_compute": "bf16"}, "origins": {"x": "y"}})
    }
    assert rows == {"precision.trainer_compute": "bf16", "precision.compute": "bf16"}


def test_every_fact_is_documented() -> None:
    text = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    section = text.split("## Run facts")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert {fact.rpartition(".")[2] for fact in (*SETTINGS.values(), *CARD.values())} <= named


def test_facts_survive_the_canonical_form(tmp_path: Path) -> None:
    from faultproxy.analyzer.canonical import write_folder

    write(
        tmp_path,
        {
            "job/run.log": MOE_ROWS,
            "job/config.json": json.dumps(DEEPSEEK),
            "job/run.sh": FILES["script"][0]["train.sh"],
        },
    )
    trace = one(tmp_path / "job")
    (tmp_path / "out").mkdir()
    write_folder(trace, tmp_path / "out" / "job.trace")
    write(tmp_path, {"out/job.trace/config.json": json.dumps({**DEEPSEEK, "num_hidden_layers": 4})})
    again = one(tmp_path / "out" / "job.trace")
    assert again.facts == trace.facts and layers_of(again) == layers_of(trace)


# -- what must not be taken for a fact --------------------------------------------------------------------------------
#: What a model_type may be and no name.
FAMILIES: list[Any] = [["mixtral"], ["mixtral", "mixtral"], {"mixtral": 1}, [["x"]], []]
#: What looks like a number and is none.
ODD = ["1_", "1__2", "+1_", "1_.5e3", "_1", "1_e5"]
HOSTILE = {
    "config.yaml": [
        "a: &a [x, x]\n" + "\n".join(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}]" for n in range(1, 500)),  # an alias bomb
        "\n".join("  " * n + f"k{n}:" for n in range(3000)),
        "lr: !!python/object/apply:os.system ['touch /tmp/x']\nmodel: {num_layers: 3",
        "[" * 100_000, "{" * 100_000, "- " * 100_000, ("x" + " " * 199 + "y\n") * 5000, "x: &" + "&" * 400_000, "a: b: c: d\n\t x: 1\n? y\n: z\n", "'" * 5000 + ":", "k: |\n  lr: 3\n  seed: 4\n", "\x00\x01\x02" * 999,
        "\n".join(f"lr: {n}" for n in range(100_000)), "learning_rate: '" + "9" * 100_000,
        *(f"lr: {number}\n" for number in ODD),
    ],
    "config.json": ["[" * 100_000, '{"model_type": "x", "num_hidden_layers": 1e999}', '{"model_type": "x", "num_hidden_layers": 99999999999, "num_experts": 8, "decoder_sparse_step": 1}', "{}", '{"a":' * 2000 + "1" + "}" * 2000, '{"model_type": "x", "num_hidden_layers": "9; rm -rf /", "n_layer": true}', *(json.dumps({"model_type": family, "num_hidden_layers": 4, "num_experts": 8}) for family in FAMILIES)],
    "args.json": [
        json.dumps({"k" * 150_000: {f"a{n}": 1 for n in range(20_000)}}), json.dumps({f"g{g}": {f"a{n}": 1 for n in range(300)} for g in range(250)}),
        '{"' + '":{"'.join(["k" * 100] * 47) + '":{' + ",".join(f'"a{n}":1' for n in range(20_000)) + "}" * 48,
    ],
    "train.sh": ["A=x\n" + "A=$A$A\n" * 5000 + "torchrun --a 1 --b $A\n", "torchrun " + "\\\n" * 100_000, "torchrun --a '" + "\\'" * 30_000, "X=(" * 9000, "python " * 20_000 + "--a 1 --b 2", "$(torchrun --a 1 --b 2)\n`torchrun`\n", *(f"torchrun x.py --lr {number}\n" for number in ODD)],
    "run.log": ["{'actor_rollout_ref': {" * 40_000 + "\n", "-" * 30 + " arguments " + "-" * 30 + "\n" + "".join(f"  a{n} ........ {n}\n" for n in range(1_000_000)), "Namespace(" * 90_000 + "\n", "Namespace('" + "\\'" * 400_000 + "\n", "torchrun " + "=,/" * 300_000 + "\n", "torchrun --a 1 " + "\\'\"" * 300_000 + "\n", "torchrun " * 100_000 + "\n", "python -m x --a 1 --b 2\n" * 20_000, "json = {\n" * 60_000, *(f"Namespace(lr={number}, fp16=False)\n" for number in ODD), *(dump({"lr": number, "seed": number, "clip_grad": number}) for number in ODD)],
    "README.md": ["hyperparameters were used during training:\n" * 9000, "hyperparameters were used during training:\n" + "- learning_rate: 1e999\n- seed: nan\n"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "index"), [(name, i) for name, texts in HOSTILE.items() for i in range(len(texts))])
def test_hostile_neighbours_cost_little_and_state_nothing(name: str, index: int, tmp_path: Path) -> None:
    text = HOSTILE[name][index]
    path = write(tmp_path, {"run.log": ROWS, name: text}) / "run.log"
    start = time.process_time()
    found = gather(tmp_path, [path], [File(path)], True, {})
    assert time.process_time() - start < 4
    if name == "args.json":
        tracemalloc.start()
        gather(tmp_path, [path], [File(path)], True, {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 << 20
    rows = run_facts.flat(found.facts() if found else {})
    assert len(rows) < 60 and all(0 <= number <= 1e18 for _, _, number in rows if number is not None)
    if name != "run.log":
        assert len(one(path).frame) == 30


@pytest.mark.parametrize("number", ODD)
def test_what_python_takes_for_no_number_stays_text(number: str) -> None:
    assert (scalar(number), scalar("1_000"), scalar("-1_0.5e3")) == (number, 1000, -10500.0)


@pytest.mark.parametrize("family", [*FAMILIES, 7])
def test_a_family_that_is_no_name_is_unknown(family: Any, tmp_path: Path) -> None:
    config = {"model_type": family, "num_hidden_layers": 4, "num_local_experts": 8}
    trace = one(write(tmp_path, {"run.log": ROWS, "config.json": json.dumps(config)}) / "run.log")
    assert_holds(trace, {"model.layers": 4, "model.experts": 8, "model.family": None, "model.moe_layers": None})


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, str(2**63), "1e300", "1e999", "NaN", "-Infinity"])
def test_a_fact_that_no_report_could_hold_is_left_out(number: str, tmp_path: Path) -> None:
    history = [{"step": step, "loss": 3 - step / 50} for step in range(1, 31)]
    state = json.dumps({"log_history": history, "logging_steps": 5, "other": float("nan"), "max_steps": 0})
    trace = one(write(tmp_path, {"state.json": state.replace('"max_steps": 0', f'"max_steps": {number}')}))
    assert_holds(trace, {"max_steps": None, "logging_steps": 5})
    assert json.loads(orjson.dumps(document(diagnose(trace))))["run"]["steps"]


def test_settings_of_any_size_can_be_compared() -> None:
    (setting,) = differences({"max_steps": 10**400}, {"max_steps": 10})
    assert (setting.here, setting.good) == ("1" + "0" * 199, "10")
    assert not differences({"max_steps": 10**400}, {"max_steps": 10**400})


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 2500, "x\0y"])
def test_a_model_config_whose_path_no_system_takes_is_bad_input(path: str, tmp_path: Path) -> None:
    log = write(tmp_path, {"run.log": ROWS}) / "run.log"
    with pytest.raises(InputError, match="cannot be reached|is no model configuration"):
        read([str(log)], path)


@pytest.mark.parametrize(
    "empty",
    [lambda log: read([""]), lambda log: read([log], ""), lambda log: read_good(""), lambda log: read_good(log, "")],
    ids=["trace", "model-config", "against", "against-model-config"],
)
def test_an_empty_path_is_not_the_current_folder(
    empty: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path, {"run.log": ROWS, "config.json": json.dumps(DEEPSEEK)}) / "run.log"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^no path: .* is empty; give"):
        empty(str(log))


def test_links_that_lead_out_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {"out/config.json": json.dumps(DEEPSEEK), "out/.hydra/config.yaml": "learning_rate: 1\n"})
    job = write(tmp_path, {"job/run.log": ROWS}) / "job"
    (job / "config.json").symlink_to(tmp_path / "out" / "config.json")
    (job / ".hydra").symlink_to(tmp_path / "out" / ".hydra")
    (job / "config.yaml").symlink_to("config.yaml")
    (job / "args.json").mkdir()
    os.mkfifo(job / "run.sh")
    assert set(one(job / "run.log").facts) == {"steps_are_rows"}
    (job / "config.json").unlink()
    write(job, {"model.json": json.dumps(DEEPSEEK)})
    (job / "config.json").symlink_to("model.json")
    assert held(one(job / "run.log"), "model.layers") == 10


def test_a_data_set_of_json_files_is_no_configuration(tmp_path: Path) -> None:
    rows = {f"{n}.json": json.dumps({"num_layers": n, "learning_rate": n}) for n in range(50)}
    write(
        tmp_path,
        {
            "run.log": ROWS,
            "config.json": json.dumps({"data": "x", "seed": 1}),
            "README.md": "- learning_rate: 3\n",
            **rows,
        },
    )
    assert set(one(tmp_path / "run.log").facts) == {"steps_are_rows"}


def test_prose_about_a_command_and_a_traceback_state_nothing(tmp_path: Path) -> None:
    prose = 'File "/usr/lib/python3.11/site.py", line 3, in main\nplease run python train.py first, --lr matters\nuse deepspeed --help\n'
    assert set(one(write(tmp_path, {"run.log": prose + ROWS}) / "run.log").facts) == {"steps_are_rows"}


def test_a_log_with_nothing_to_say_pays_for_no_reader(tmp_path: Path) -> None:
    log = write(tmp_path, {"run.log": ROWS}) / "run.log"
    code = (
        "import sys; from faultproxy.analyzer.ingest import read; read([sys.argv[1]]);"
        "print([name for name in sys.modules if '.ingest.facts.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    loaded = [f"faultproxy.analyzer.ingest.facts.{name}" for name in ("marks", "neighbours")]
    assert sorted(ast.literal_eval(done.stdout)) == loaded


def test_a_crowded_folder_is_not_listed(tmp_path: Path) -> None:
    write(tmp_path, {"run.log": ROWS, "config.json": json.dumps(DEEPSEEK), **{f"{n}.bin": "" for n in range(1100)}})
    write(tmp_path, {"run.sh": "torchrun --nproc_per_node 8 train.py --lr 1e-3\n"})
    assert_holds(one(tmp_path / "run.log"), {"model.layers": 10, "hyperparameters.lr": None})


# -- readers ----------------------------------------------------------------------------------------------------------
def values(leaves: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, (value, _) in leaves.items()}


def test_a_printed_dict_is_walked_not_evaluated() -> None:
    text = "x {'a': {'b': 1e-06, 'c': [1, 2], 'd': None}, 'e': <Enum.X: 'x'>, 'f': float('inf'), 'g': \"it's\", 'h': {"
    assert values(literal.leaves(text)) == {
        "a.b": 1e-06,
        "a.c": [1, 2],
        "a.d": None,
        "e": "<Enum.X",
        "f": "float",
        "g": "it's",
    }


def test_the_yaml_subset_reads_what_hydra_writes() -> None:
    text = "a:\n  b: 1.0e-06\n  c:\n  - x\n  - 2\n  d: null\n  'e/f': \"q # r\"  # why\ng: [1, 2]\nh: *x\ni: &y\n  j: true\nk: >\n  text: 1\nl:\n- m: 1\n  n: 2\no: ${a.b}\n"
    assert values(yamlish.leaves(text)) == {
        "a.b": 1e-06, "a.c": ["x", 2], "a.d": None, "a.e/f": "q # r", "g": [1, 2], "i.j": True, "o": "${a.b}",
    }  # fmt: skip


def test_a_script_is_read_with_its_arrays_and_plain_sums() -> None:
    text = "N=$((1024 * 8 + 1))\nA=(\n  --graph 1 2 $(seq 16 8 256)\n  # --no 1\n  --a $N\n)\nB=$(nproc)\npython3 x.py \\\n  ${A[@]} --b $B --c ${C:-5} --d $((N * 2)) --e $(($B))\n"
    (entry,), variables = launch.script(text)
    command, line = entry
    known = {"graph": 1, "a": 8193, "c": 5}
    assert {key: value for key, value in values(command.settings).items() if isinstance(value, int)} == known
    assert (line, values(variables)["N"]) == (8, 8193)


def test_a_command_is_taken_apart() -> None:
    found = launch.command("LR=3 torchrun --a=1 --b -0.5 --c --d 'x y' +e.f=1e-3 -m pkg.mod g.h=[1,2]", 7)
    assert found is not None
    assert values(found.settings) == {"a": 1, "b": -0.5, "c": True, "d": "x y", "e.f": 1e-3, "g.h": "[1,2]"}
    assert (values(found.environment), found.words) == ({"LR": 3}, ["torchrun", "pkg.mod"])
