"""Translates a training file to the arguments of TRL's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import PartialState
from trl import GRPOConfig

from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.rollouts.batches import split_plans
from rl_conductor_training.train.trainers.common_arguments import common_arguments


def training_arguments(config: TrainConfig, output: Path) -> GRPOConfig:
    """Builds the arguments for a run in the folder `output`."""
    grpo = config.grpo
    micro_batch, micro_batches = split_plans(config, PartialState().num_processes)
    return GRPOConfig(
        **common_arguments(output, seed=config.seed, dtype=config.dtype),
        max_steps=grpo.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=micro_batches,
        num_generations=grpo.rollouts,
        max_completion_length=config.plan.max_tokens,
        temperature=grpo.temperature,
        shuffle_dataset=False,  # prompt instances are in random order already
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=grpo.schedule,
        warmup_steps=round(grpo.warmup * grpo.steps),
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.max_grad_norm,
        beta=grpo.kl,
        epsilon=grpo.clip,
        loss_type=grpo.loss,
        scale_rewards=grpo.scale,
        gradient_checkpointing=config.gradient_checkpointing,
        report_to=[reporter.value for reporter in config.keep.report_to] or "none",
        save_steps=config.keep.every,
        save_total_limit=config.keep.checkpoints,
        **_vllm_arguments(config),
    )


def _vllm_arguments(config: TrainConfig) -> dict[str, Any]:
    vllm = config.vllm
    if vllm is None:
        return {}
    return {
        "use_vllm": True,
        "vllm_mode": vllm.mode,
        "vllm_gpu_memory_utilization": vllm.memory,
        "vllm_tensor_parallel_size": vllm.tensor_parallel,
        "vllm_server_base_url": vllm.server,
        "vllm_enable_sleep_mode": vllm.sleep,
        "vllm_max_model_length": vllm.context_length,
    }
