"""Trains a Conductor, from a configuration to a saved model; can be stopped and resumed at any step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from platform import machine, processor
from typing import Any

from rl_conductor._internal.jsonl import read_lines
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.trace import PlanRecord, Round
from rl_conductor_training.train.config import Reporter, TrainConfig
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.metrics import Reference
from rl_conductor_training.train.rewards.verdict import compute_verdict
from rl_conductor_training.train.rollouts.batches import accumulation_steps, count_rounds
from rl_conductor_training.train.run_dir import RunDir, RunRecord, WarmStartState
from rl_conductor_training.train.setup import TrainingSetup

try:
    import torch
    from accelerate import PartialState
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PrinterCallback, TrainerCallback
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error
    from trl import GRPOConfig

    from rl_conductor_training.train.checkpoints import CheckpointCallback
    from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
    from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model, lora_config
    from rl_conductor_training.train.rewards.reward_fn import RewardFunction
    from rl_conductor_training.train.rollouts.rollout_fn import RolloutFunction
    from rl_conductor_training.train.trainer import ConductorTrainer
    from rl_conductor_training.train.warm_start.sft import run_warm_start
except ImportError as missing:
    raise ConfigError(f"training needs {missing.name}: pip install 'rl-conductor-training[train]'") from missing

PACKAGES = ("rl-conductor", "torch", "transformers", "trl", "peft", "accelerate", "xgrammar")
USAGE_METRICS = ("usd", "tokens", "calls")
METRIC_PREFIX = "plans/"
PROCESS_TIMEOUT = timedelta(days=1)
"""Maximum wait for the process that samples demonstrations, or for one with slow workers."""
MASKED_WARNING = "All reward functions returned None"
"""The first words of TRL's warning about a masked plan, which quotes the whole prompt."""

StepMetrics = dict[str, float]
"""The metrics of a step: those of `step_metrics`, and TRL's own."""


@dataclass(frozen=True)
class StopAfter:
    """Limits after which a call of `train` ends before the last step; another call resumes the run."""

    step: int | None = None
    """Ends after this step of the run."""
    seconds: float | None = None
    """Ends after the first step that finishes later than this, counted from the start of the call."""


def train(
    config: TrainConfig,
    output: Path,
    pool: WorkerPool,
    *,
    stop_after: StopAfter | None = None,
    on_step: Callable[[int, StepMetrics], None] = lambda _step, _metrics: None,
) -> RunRecord:
    """Trains a Conductor, or resumes the run in `output`.

    Args:
        config: the training file's content.
        output: the run directory.
        pool: the workers, which are not trained; `pools.open_pool` opens those of the configuration.
        stop_after: limits after which to end early.
        on_step: called after each step with its number, from 1, and its metrics.

    Raises:
        ConfigError: the configuration does not fit the model, the task or the run directory, or needs a package that
            is not installed.
    """
    started_at, stop_after = time.monotonic(), stop_after or StopAfter()
    _ensure_installed(config.keep.report_to)
    setup = TrainingSetup(config, pool)
    state = PartialState(timeout=PROCESS_TIMEOUT)
    with state.main_process_first():
        run_dir = RunDir.open(output, config) if state.is_main_process else RunDir(output)
    record = run_dir.read_record()
    if record is not None and record.step >= min(stop_after.step or config.grpo.steps, config.grpo.steps):
        return record
    warm_start = run_warm_start(setup, config.warm_start, run_dir) if config.warm_start else None
    trainer = _build_trainer(setup, run_dir)
    for callback in (_MetricsCallback(on_step), _StopCallback(stop_after, started_at), CheckpointCallback()):
        trainer.add_callback(callback)
    checkpoint = run_dir.latest_checkpoint()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(run_dir.final))
    record = _build_record(config, trainer, warm_start, time.monotonic() - started_at)
    if trainer.is_world_process_zero():
        run_dir.write_record(record)
    return record


def is_main_process() -> bool:
    """True in the one process of several that prints results."""
    return bool(PartialState().is_main_process)


def silence_libraries() -> None:
    """Turns off the progress bars and warnings of the training libraries, for programs that report progress."""
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_not_masked_warning)


def _is_not_masked_warning(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(MASKED_WARNING)


def _ensure_installed(reporters: Sequence[Reporter]) -> None:
    for name in reporters:
        if find_spec(name) is None:
            raise ConfigError(f"reporting to {name} needs its package: pip install {name}")


def _build_trainer(setup: TrainingSetup, run_dir: RunDir) -> ConductorTrainer:
    config = setup.config
    instances = setup.prompt_instances(config.grpo.steps * config.grpo.questions)
    loaded = _load_policy(config, run_dir)
    grammars = _round_grammars(config, instances[0], loaded)
    trainer = ConductorTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        rollout_function=RolloutFunction(instances, setup.rollout_scorer, loaded.plan_tokenizer, grammars=grammars),
        reward_funcs=RewardFunction(config, instances, _read_references(config), log_plans=run_dir.write_plans),
        args=_training_arguments(config, run_dir.path),
        train_dataset=Dataset.from_list([row for instance in instances for row in _dataset_rows(config, instance)]),
        peft_config=None if isinstance(loaded.model, PeftModel) else lora_config(config),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _round_grammars(
    config: TrainConfig, instance: PromptInstance, loaded: LoadedModel
) -> list[GrammarConstraint | None]:
    """Compiles the grammar of each round.

    It is the same for all instances: it has workers as numbers, every pool has the same size, and the replies of the
    first round don't affect it.
    """
    rounds = [instance]
    if config.recursion:
        rounds.append(instance.next_round(Round(plan=PlanRecord(source="planner"))))
    return [loaded.compile_grammar(each.space, config.plan.form) if config.plan.grammar else None for each in rounds]


def _load_policy(config: TrainConfig, run_dir: RunDir) -> LoadedModel:
    """Loads the model that GRPO begins with; when resuming, the trainer replaces its weights with the checkpoint's."""
    warm_start = run_dir.warm_start if config.warm_start else None
    if warm_start is None or config.lora is None:
        return load_model(str(warm_start or config.model), dtype=config.weight_dtype)
    loaded = load_model(config.model, dtype=config.weight_dtype)
    return replace(loaded, model=PeftModel.from_pretrained(loaded.model, warm_start, is_trainable=True))


def _dataset_rows(config: TrainConfig, instance: PromptInstance) -> list[dict[str, Any]]:
    """Builds a row for each round, which TRL repeats to a group; second rounds get their prompts in the rollout."""
    prompt = [{"role": message.role, "content": message.text} for message in instance.messages]
    return [
        {"prompt": prompt, "instance": instance.index, "round": index + 1}
        for index in range(count_rounds(config, instance.index))
    ]


def _read_references(config: TrainConfig) -> dict[str, Reference]:
    references = read_lines(config.references, Reference) if config.references else []
    return {reference.id: reference for reference in references}


def _training_arguments(config: TrainConfig, output: Path) -> GRPOConfig:
    grpo, cuda = config.grpo, torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output),
        max_steps=grpo.steps,
        per_device_train_batch_size=grpo.micro_batch,
        gradient_accumulation_steps=accumulation_steps(config, PartialState().num_processes),
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
        seed=config.seed,
        use_cpu=not cuda,
        bf16=config.dtype == "bfloat16",
        dataloader_pin_memory=cuda,
        gradient_checkpointing=config.gradient_checkpointing,
        logging_steps=1,
        disable_tqdm=True,
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
    }


def _build_record(
    config: TrainConfig, trainer: ConductorTrainer, warm_start: WarmStartState | None, seconds: float
) -> RunRecord:
    steps = [_parse_metrics(logs) for logs in trainer.state.log_history if "loss" in logs]
    return RunRecord(
        config=config.model_dump(mode="json"),
        versions={name: version(name) for name in PACKAGES},
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else f"{processor() or machine()}, CPU only",
        warm_start=warm_start,
        step=trainer.state.global_step,
        seconds=seconds,
        totals={name: sum(step.get(name, 0.0) for step in steps) for name in USAGE_METRICS},
        verdict=compute_verdict(steps),
    )


def _parse_metrics(logs: Mapping[str, Any]) -> StepMetrics:
    return {name.removeprefix(METRIC_PREFIX): float(value) for name, value in logs.items() if value is not None}


class _MetricsCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Passes the logged metrics of each step to `on_step`."""

    def __init__(self, on_step: Callable[[int, StepMetrics], None]) -> None:
        self._on_step = on_step

    def on_log(self, _args: Any, state: Any, _control: Any, *, logs: dict[str, Any], **_: Any) -> None:
        """Reports logs that have a loss, which are those of a step."""
        if state.is_world_process_zero and "loss" in logs:
            self._on_step(state.global_step, _parse_metrics(logs))


class _StopCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Ends this call early, with a checkpoint."""

    def __init__(self, stop_after: StopAfter, started_at: float) -> None:
        self._stop_after = stop_after
        self._started_at = started_at

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops once a limit of `StopAfter` is reached."""
        step, seconds = self._stop_after.step, self._stop_after.seconds
        is_late = seconds is not None and time.monotonic() - self._started_at > seconds
        if is_late or (step is not None and state.global_step >= step):
            control.should_save = control.should_training_stop = True
