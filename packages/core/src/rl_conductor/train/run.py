"""A whole run: from a configuration and a folder to a trained model. Stops and goes on at any step."""

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

from rl_conductor.errors import ConfigError
from rl_conductor.pool import WorkerPool
from rl_conductor.trace import PlanRecord, Round
from rl_conductor.train.batches import passes, rounds
from rl_conductor.train.config import Reporter, TrainConfig
from rl_conductor.train.course import Course
from rl_conductor.train.diagnostics import Reference
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.folder import Folder, RunRecord, Warmth
from rl_conductor.train.lines import read_lines
from rl_conductor.train.verdict import verdict

try:
    import torch
    from accelerate import PartialState
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PrinterCallback, TrainerCallback
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error
    from trl import GRPOConfig

    from rl_conductor.train.held import Held
    from rl_conductor.train.loading import Loaded, load, lora_of
    from rl_conductor.train.marking import Marking
    from rl_conductor.train.rewarding import Reward
    from rl_conductor.train.rollouts import Rollouts
    from rl_conductor.train.trainer import ConductorTrainer
    from rl_conductor.train.warm_start import warm_up
except ImportError as missing:
    raise ConfigError(f"training needs {missing.name}: pip install 'rl-conductor[train]'") from missing

PACKAGES = ("rl-conductor", "torch", "transformers", "trl", "peft", "accelerate", "xgrammar")
SPENT = ("usd", "tokens", "calls")
PREFIX = "plans/"
PATIENCE = timedelta(days=1)
"""How long processes wait for one that draws the warm start's plans, or whose workers take their time."""
MASKED = "All reward functions returned None"
"""What TRL says of a plan that is masked; its whole prompt follows."""

Step = dict[str, float]
"""What is told of a step: the numbers of `diagnostics`, and TRL's own."""


@dataclass(frozen=True)
class Stop:
    """When this call ends; the run itself may go on another time."""

    step: int | None = None
    """After this step, counted from the run's beginning."""
    seconds: float | None = None
    """After the first step that ends so many seconds from the start of the call."""


def train(
    config: TrainConfig,
    output: Path,
    pool: WorkerPool,
    *,
    stop: Stop | None = None,
    told: Callable[[int, Step], None] = lambda _number, _step: None,
) -> RunRecord:
    """Train, or go on with the training that was begun in `output`.

    Args:
        config: what to train on what.
        output: the run's folder.
        pool: the workers, which stay as they are; `pools.opened` gives those that the configuration names.
        stop: when to end before the last step.
        told: told of each step, from 1, and its numbers.

    Raises:
        ConfigError: the configuration does not fit the model, the task or the folder, or names what is not installed.
    """
    began, stop = time.monotonic(), stop or Stop()
    _ensure_installed(config.keep.report_to)
    course = Course(config, pool)
    state = PartialState(timeout=PATIENCE)
    with state.main_process_first():
        folder = Folder.of(output, config) if state.is_main_process else Folder(output)
    past = folder.record()
    if past is not None and past.step >= min(stop.step or config.grpo.steps, config.grpo.steps):
        return past
    warmth = warm_up(course, config.warm_start, folder) if config.warm_start else None
    trainer = _trainer(course, folder)
    for callback in (_Tells(told), _Ends(stop, began), Marking()):
        trainer.add_callback(callback)
    checkpoint = folder.checkpoint()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(folder.final))
    record = _record(config, trainer, warmth, time.monotonic() - began)
    if trainer.is_world_process_zero():
        folder.keep_record(record)
    return record


def speaks() -> bool:
    """Whether this is the one of several processes that tells of the run."""
    return bool(PartialState().is_main_process)


def hush() -> None:
    """Keep the libraries' own bars and remarks from the terminal, for programs that tell of the run themselves."""
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(MASKED)


def _ensure_installed(reporters: Sequence[Reporter]) -> None:
    for name in reporters:
        if find_spec(name) is None:
            raise ConfigError(f"reporting to {name} needs it: pip install {name}")


def _trainer(course: Course, folder: Folder) -> ConductorTrainer:
    config = course.config
    asked = course.exercises(config.grpo.steps * config.grpo.questions)
    loaded = _loaded(config, folder)
    trainer = ConductorTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        rollouts=Rollouts(asked, course.examiner, loaded.tokens, held=_held(config, asked[0], loaded)),
        reward_funcs=Reward(config, asked, _references(config), told=folder.keep_plans),
        args=_arguments(config, folder.path),
        train_dataset=Dataset.from_list([row for one in asked for row in _rows(config, one)]),
        peft_config=None if isinstance(loaded.model, PeftModel) else lora_of(config),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _held(config: TrainConfig, one: Exercise, loaded: Loaded) -> list[Held | None]:
    """The grammar of each round.

    One exercise speaks for all: the grammar knows workers by number, there are equally many each time, and who replied
    in the first round makes no difference to it.
    """
    played = [one, one.after(Round(plan=PlanRecord(source="planner")))] if config.recursion else [one]
    return [loaded.held_to(each.space, config.plan.form) if config.plan.grammar else None for each in played]


def _loaded(config: TrainConfig, folder: Folder) -> Loaded:
    """The model to begin with; a checkpoint then takes its place."""
    warm = folder.warm_start if config.warm_start else None
    if warm is None or config.lora is None:
        return load(str(warm or config.model), dtype=config.weights)
    loaded = load(config.model, dtype=config.weights)
    return replace(loaded, model=PeftModel.from_pretrained(loaded.model, warm, is_trainable=True))


def _rows(config: TrainConfig, one: Exercise) -> list[dict[str, Any]]:
    """A row for each round, of which TRL makes a group; the prompts of the second one are made on the way."""
    told = [{"role": message.role, "content": message.text} for message in one.messages]
    return [{"prompt": told, "exercise": one.number, "round": turn + 1} for turn in range(rounds(config, one.number))]


def _references(config: TrainConfig) -> dict[str, Reference]:
    found = read_lines(config.references, Reference) if config.references else []
    return {reference.id: reference for reference in found}


def _arguments(config: TrainConfig, output: Path) -> GRPOConfig:
    grpo, cuda = config.grpo, torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output),
        max_steps=grpo.steps,
        per_device_train_batch_size=grpo.micro_batch,
        gradient_accumulation_steps=passes(config, PartialState().num_processes),
        num_generations=grpo.rollouts,
        max_completion_length=config.plan.max_tokens,
        temperature=grpo.temperature,
        shuffle_dataset=False,  # the order of exercises is already drawn
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
        report_to=[one.value for one in config.keep.report_to] or "none",
        save_steps=config.keep.every,
        save_total_limit=config.keep.checkpoints,
        **_vllm(config),
    )


def _vllm(config: TrainConfig) -> dict[str, Any]:
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


def _record(config: TrainConfig, trainer: ConductorTrainer, warmth: Warmth | None, seconds: float) -> RunRecord:
    steps = [_numbers(logs) for logs in trainer.state.log_history if "loss" in logs]
    return RunRecord(
        config=config.model_dump(mode="json"),
        versions={name: version(name) for name in PACKAGES},
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else f"{processor() or machine()}, CPU only",
        warm_start=warmth,
        step=trainer.state.global_step,
        seconds=seconds,
        totals={name: sum(step.get(name, 0.0) for step in steps) for name in SPENT},
        verdict=verdict(steps),
    )


def _numbers(logs: Mapping[str, Any]) -> Step:
    return {name.removeprefix(PREFIX): float(value) for name, value in logs.items() if value is not None}


class _Tells(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Passes on what TRL logs of a step."""

    def __init__(self, told: Callable[[int, Step], None]) -> None:
        self._told = told

    def on_log(self, _args: Any, state: Any, _control: Any, *, logs: dict[str, Any], **_: Any) -> None:
        """A step is done."""
        if state.is_world_process_zero and "loss" in logs:
            self._told(state.global_step, _numbers(logs))


class _Ends(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Ends this call early, with a checkpoint."""

    def __init__(self, stop: Stop, began: float) -> None:
        self._stop = stop
        self._began = began

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done; another one may be too many."""
        late = self._stop.seconds is not None and time.monotonic() - self._began > self._stop.seconds
        if late or (self._stop.step is not None and state.global_step >= self._stop.step):
            control.should_save = control.should_training_stop = True
