"""What the settings of frameworks are called: the name a framework uses to the fact it states.

`SETTINGS` holds names that mean one thing wherever they stand: command-line flags with `_` for `-` (Megatron, Hugging Face,
TRL, ms-swift, LLaMA-Factory, OpenRLHF, slime), DeepSpeed's JSON, and the dotted names of verl and NeMo-RL. Names that
mean something only beside others (`beta`, `clip_ratio`) are read in settings.py, shapes of models in model.py.
"""

from __future__ import annotations

#: Facts that are words, flags, and lists; all others are numbers.
TEXTS = {
    "framework", "algorithm", "model.family", "model.name", "model.scoring", "model.quantisation", "precision.rollout_quantisation",
    "precision.loss_scaling", "precision.overflow_mode", "precision.fp8", "parallelism.placement", "parallelism.sharding", "parallelism.rollout_engine",
    "hardware.vendor", "hardware.device", "hyperparameters.estimator", "hyperparameters.lr_schedule", "hyperparameters.optimiser",
    "hyperparameters.loss_aggregation", "hyperparameters.policy_loss", "hyperparameters.kl_estimator", "hyperparameters.importance_level",
    "hyperparameters.router_replay",
}  # fmt: skip
FLAGS = {
    "model.norm_top_k", "precision.softmax_fp32", "precision.reduce_fp32", "parallelism.async", "parallelism.sequence_parallel",
    "hyperparameters.rollout_log_probs", "hyperparameters.kl_in_reward", "hyperparameters.kl_loss", "hyperparameters.importance_correction",
    "hyperparameters.normalise_advantage",
}  # fmt: skip
LISTS = {"model.moe_layers"}
#: Words that a repr shows with the name of their class.
ENUMERATED = {"hyperparameters.lr_schedule", "hyperparameters.optimiser"}

_H, _P, _M, _L = "hyperparameters.", "parallelism.", "model.", "precision."
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."

SETTINGS: dict[str, str] = {
    # flags of Megatron and of what builds on it
    "lr": _H + "lr", "min_lr": _H + "min_lr", "weight_decay": _H + "weight_decay", "clip_grad": _H + "clip_grad",
    "lr_decay_style": _H + "lr_schedule", "lr_warmup_iters": _H + "lr_warmup", "adam_beta1": _H + "beta1", "adam_beta2": _H + "beta2",
    "adam_eps": _H + "epsilon", "micro_batch_size": _H + "micro_batch", "global_batch_size": _H + "batch", "seq_length": _H + "sequence_length",
    "train_iters": "total_steps", "seed": _H + "seed",
    "tensor_model_parallel_size": _P + "tp", "pipeline_model_parallel_size": _P + "pp", "context_parallel_size": _P + "cp",
    "expert_model_parallel_size": _P + "ep", "expert_tensor_parallel_size": _P + "etp", "data_parallel_size": _P + "dp",
    "sequence_parallel": _P + "sequence_parallel", "world_size": "hardware.devices",
    "params_dtype": _L + "params", "main_grads_dtype": _L + "gradients", "initial_loss_scale": _L + "initial_scale", "min_loss_scale": _L + "min_scale",
    "loss_scale_window": _L + "scale_window", "hysteresis": _L + "hysteresis", "fp8": _L + "fp8", "fp8_format": _L + "fp8",
    "attention_softmax_in_fp32": _L + "softmax_fp32", "accumulate_allreduce_grads_in_fp32": _L + "reduce_fp32", "moe_router_dtype": _L + "router",
    "moe_aux_loss_coeff": _H + "aux_coef", "moe_z_loss_coeff": _H + "z_coef", "moe_router_bias_update_rate": _H + "router_bias_rate",
    # flags of Hugging Face, TRL, ms-swift, LLaMA-Factory
    "learning_rate": _H + "lr", "max_grad_norm": _H + "clip_grad", "gradient_accumulation_steps": _H + "accumulation",
    "per_device_train_batch_size": _H + "micro_batch", "num_train_epochs": _H + "epochs", "warmup_steps": _H + "lr_warmup",
    "warmup_ratio": _H + "lr_warmup_ratio", "lr_scheduler_type": _H + "lr_schedule", "max_steps": "total_steps", "optim": _H + "optimiser",
    "num_generations": _H + "group", "max_completion_length": _H + "max_response_length", "max_prompt_length": _H + "max_prompt_length",
    "temperature": _H + "temperature", "top_p": _H + "top_p", "epsilon_high": _H + "clip_high", "num_iterations": _H + "ppo_epochs",
    "loss_type": _H + "policy_loss", "importance_sampling_level": _H + "importance_level", "router_aux_loss_coef": _H + "aux_coef",
    "vllm_importance_sampling_correction": _H + "importance_correction", "vllm_tensor_parallel_size": _P + "rollout_tp",
    "model_name_or_path": _M + "name", "mixed_precision": _L + "compute", "num_processes": "hardware.devices",
    # flags of OpenRLHF, slime, miles
    "actor_learning_rate": _H + "lr", "critic_learning_rate": _H + "critic_lr", "init_kl_coef": _H + "kl_coef", "kl_loss_coef": _H + "kl_coef",
    "eps_clip_high": _H + "clip_high", "entropy_coef": _H + "entropy_coef", "n_samples_per_prompt": _H + "group", "rollout_batch_size": _H + "prompts",
    "generate_max_len": _H + "max_response_length", "prompt_max_len": _H + "max_prompt_length", "rollout_max_response_len": _H + "max_response_length",
    "rollout_temperature": _H + "temperature", "advantage_estimator": _H + "estimator", "max_norm": _H + "clip_grad", "zero_stage": _P + "zero_stage",
    "rollout_num_gpus_per_engine": _P + "rollout_tp", "kl_loss_type": _H + "kl_estimator", "use_tis": _H + "importance_correction",
    "async_train": _P + "async", "pretrain": _M + "name", "hf_checkpoint": _M + "name",
    # DeepSpeed: its JSON, and the lines it prints
    "fp16.loss_scale_window": _L + "scale_window", "fp16.hysteresis": _L + "hysteresis",
    "fp16.min_loss_scale": _L + "min_scale", "gradient_clipping": _H + "clip_grad", "communication_data_type": _L + "gradients", "zero_optimization.stage": _P + "zero_stage",
    "zero_optimization_stage": _P + "zero_stage", "train_batch_size": _H + "batch", "train_micro_batch_size_per_gpu": _H + "micro_batch",
    "optimizer.params.lr": _H + "lr", "initial_dynamic_scale": _L + "initial_scale",
    # verl
    "algorithm.adv_estimator": _H + "estimator", "algorithm.gamma": _H + "gamma", "algorithm.lam": _H + "lam",
    "algorithm.use_kl_in_reward": _H + "kl_in_reward", "algorithm.norm_adv_by_std_in_grpo": _H + "normalise_advantage",
    "algorithm.rollout_correction.rollout_is_threshold": _H + "importance_cap", "actor_rollout_ref.model.path": _M + "name",
    "data.train_batch_size": _H + "prompts", "data.max_prompt_length": _H + "max_prompt_length", "data.max_response_length": _H + "max_response_length",
    "critic.optim.lr": _H + "critic_lr", "trainer.total_epochs": _H + "epochs", "trainer.total_training_steps": "total_steps",
    "trainer.nnodes": "hardware.nodes", "trainer.n_gpus_per_node": "hardware.devices_per_node", "trainer.device": "hardware.device",
    **{_ACTOR + key: fact for key, fact in {
        "optim.lr": _H + "lr", "optim.lr_warmup_steps": _H + "lr_warmup", "optim.weight_decay": _H + "weight_decay",
        "grad_clip": _H + "clip_grad", "optim.clip_grad": _H + "clip_grad", "clip_ratio_low": _H + "clip_low", "clip_ratio_high": _H + "clip_high",
        "clip_ratio_c": _H + "clip_dual", "use_kl_loss": _H + "kl_loss", "kl_loss_type": _H + "kl_estimator", "entropy_coeff": _H + "entropy_coef",
        "ppo_mini_batch_size": _H + "mini_batch", "ppo_micro_batch_size_per_gpu": _H + "micro_batch", "ppo_epochs": _H + "ppo_epochs",
        "loss_agg_mode": _H + "loss_aggregation", "policy_loss.loss_mode": _H + "policy_loss", "strategy": _P + "sharding",
        "ulysses_sequence_parallel_size": _P + "cp", "fsdp_config.model_dtype": _L + "params", "fsdp_config.dtype": _L + "compute",
        "fsdp_config.mixed_precision.param_dtype": _L + "compute", "fsdp_config.mixed_precision.reduce_dtype": _L + "gradients", "megatron.tensor_model_parallel_size": _P + "tp",
        "megatron.pipeline_model_parallel_size": _P + "pp", "megatron.context_parallel_size": _P + "cp",
        "megatron.expert_model_parallel_size": _P + "ep", "megatron.expert_tensor_parallel_size": _P + "etp", "megatron.dtype": _L + "compute",
        "megatron.override_transformer_config.moe_router_dtype": _L + "router", "megatron.override_transformer_config.moe_aux_loss_coeff": _H + "aux_coef", "router_replay.mode": _H + "router_replay",
        "megatron.router_replay.mode": _H + "router_replay",
    }.items()},
    **{_ROLLOUT + key: fact for key, fact in {
        "name": _P + "rollout_engine", "dtype": _L + "rollout", "quantization": _L + "rollout_quantisation", "n": _H + "group",
        "kv_cache_dtype": _L + "kv_cache", "tensor_model_parallel_size": _P + "rollout_tp", "temperature": _H + "temperature", "top_p": _H + "top_p",
        "calculate_log_probs": _H + "rollout_log_probs", "response_length": _H + "max_response_length", "prompt_length": _H + "max_prompt_length",
    }.items()},
    # NeMo-RL
    "grpo.num_prompts_per_step": _H + "prompts", "grpo.num_generations_per_prompt": _H + "group", "grpo.max_num_steps": "total_steps",
    "grpo.adv_estimator.name": _H + "estimator", "loss_fn.reference_policy_kl_penalty": _H + "kl_coef", "loss_fn.ratio_clip_min": _H + "clip_low",
    "loss_fn.ratio_clip_max": _H + "clip_high", "loss_fn.ratio_clip_c": _H + "clip_dual", "loss_fn.use_importance_sampling_correction": _H + "importance_correction",
    "policy.model_name": _M + "name", "policy.precision": _L + "compute", "policy.max_grad_norm": _H + "clip_grad",
    "policy.optimizer.kwargs.lr": _H + "lr", "policy.megatron_cfg.optimizer.lr": _H + "lr", "policy.train_global_batch_size": _H + "batch",
    "policy.train_micro_batch_size": _H + "micro_batch", "policy.generation.temperature": _H + "temperature", "policy.generation.top_p": _H + "top_p",
    "policy.generation.vllm_cfg.precision": _L + "rollout", "policy.generation.vllm_cfg.tensor_parallel_size": _P + "rollout_tp",
    "policy.megatron_cfg.tensor_model_parallel_size": _P + "tp", "policy.megatron_cfg.pipeline_model_parallel_size": _P + "pp",
    "policy.megatron_cfg.context_parallel_size": _P + "cp", "policy.megatron_cfg.expert_model_parallel_size": _P + "ep",
    "cluster.num_nodes": "hardware.nodes", "cluster.gpus_per_node": "hardware.devices_per_node",
}  # fmt: skip

#: The list of hyper-parameters on a model card that Trainer wrote, where a few words mean something else.
CARD: dict[str, str] = {
    "learning_rate": _H + "lr", "train_batch_size": _H + "micro_batch", "total_train_batch_size": _H + "batch", "num_devices": "hardware.devices",
    "gradient_accumulation_steps": _H + "accumulation", "num_epochs": _H + "epochs", "lr_scheduler_type": _H + "lr_schedule",
    "lr_scheduler_warmup_ratio": _H + "lr_warmup_ratio", "lr_scheduler_warmup_steps": _H + "lr_warmup", "training_steps": "total_steps", "seed": _H + "seed",
}  # fmt: skip

#: What vLLM and SGLang print of a rollout engine.
ENGINE: dict[str, str] = {
    "dtype": _L + "rollout", "quantization": _L + "rollout_quantisation", "kv_cache_dtype": _L + "kv_cache",
    "tensor_parallel_size": _P + "rollout_tp", "tp_size": _P + "rollout_tp",
}  # fmt: skip

#: Environment variables that state a fact: name to (fact, value it must have or None for any, what it states).
ENVIRONMENT: dict[str, tuple[tuple[str, str | None, str], ...]] = {
    "INF_NAN_MODE_ENABLE": ((_L + "overflow_mode", "1", "inf_nan"), (_L + "overflow_mode", "0", "saturation")),
    "INF_NAN_MODE_FORCE_DISABLE": ((_L + "overflow_mode", "1", "saturation"),),
    "ASCEND_RT_VISIBLE_DEVICES": (("hardware.vendor", None, "ascend"),),
    "HCCL_CONNECT_TIMEOUT": (("hardware.vendor", None, "ascend"),),
    "ROCR_VISIBLE_DEVICES": (("hardware.vendor", None, "amd"),),
    "HIP_VISIBLE_DEVICES": (("hardware.vendor", None, "amd"),),
}

#: Estimators of verl, OpenRLHF, slime, and NeMo-RL that learn a critic; all others are of the `rl` kind.
CRITICS = {"gae"}
#: What a trainer is told to do (`rlhf_type`, `stage`, `swift rlhf`, `trl grpo`), as the fact `algorithm`.
STAGES = {
    "grpo": "rl", "rloo": "rl", "gspo": "rl", "dapo": "rl", "ppo": "ppo", "dpo": "preference", "kto": "preference", "orpo": "preference",
    "simpo": "preference", "cpo": "preference", "rm": "preference", "sft": "supervised", "pt": "supervised",
}  # fmt: skip
