"""Supervised fine-tuning before the first GRPO step, on plans with right answers, so that the model writes valid plans.

The loss is that of the distribution plans are sampled from (see `grammar_constraint`), so tokens that the grammar
forces are not trained. The run's record says which demonstrations were used: a warm start is not reinforcement
learning.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from peft import get_peft_model
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from rl_conductor._internal.jsonl import read_lines, read_value, write_lines, write_value
from rl_conductor.plan_text.forms import render
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample
from rl_conductor_training.spending import CapReachedError
from rl_conductor_training.train.checkpoints import CheckpointCallback
from rl_conductor_training.train.config import TrainConfig, WarmStartSettings
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.logprobs import plan_logprobs
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model, lora_config
from rl_conductor_training.train.prompt_instances import PromptInstance, reasoning_prefix, sample_pool
from rl_conductor_training.train.run_dir import RunDir, WarmStartState, latest_complete_checkpoint
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.warm_start.sft_data import Demonstration, collect_demonstrations

WARMUP_STEPS = 4
"""Steps over which the learning rate rises."""


class SftExample(NamedTuple):
    """The tokens of one training example."""

    prompt: list[int]
    plan: list[int]
    """Including the end token."""


def run_warm_start(setup: TrainingSetup, settings: WarmStartSettings, run_dir: RunDir) -> WarmStartState:
    """Fine-tunes the model that GRPO begins with, unless that is done; resumes an interrupted warm start.

    Raises:
        ConfigError: there is no plan with a right answer.
        CapReachedError: a cap of the run is used up.
    """
    state_file = run_dir.warm_start / "warmth.json"
    if state_file.exists():
        return read_value(state_file, WarmStartState)
    setup.progress.begin("loading the model")
    loaded = load_model(setup.config.model, dtype=setup.config.weight_dtype)
    demonstrations = _load_demonstrations(setup, settings, run_dir, loaded)
    trainer = _build_trainer(setup, settings, run_dir, loaded, demonstrations)
    checkpoint = latest_complete_checkpoint(run_dir.warm_start)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.state.global_step < settings.steps:
        raise CapReachedError
    trainer.save_model(str(run_dir.warm_start))
    state = WarmStartState(
        plans=len(demonstrations),
        source=str(settings.plans) if settings.plans else f"right plans sampled from the {settings.draw}",
        steps=settings.steps,
        loss=next(logs["loss"] for logs in reversed(trainer.state.log_history) if "loss" in logs),
    )
    if trainer.is_world_process_zero():
        write_value(state_file, state)
    trainer.accelerator.wait_for_everyone()  # every process loads the model that the main one has saved
    return state


def build_examples(
    setup: TrainingSetup, settings: WarmStartSettings, loaded: LoadedModel, demonstrations: Sequence[Demonstration]
) -> list[SftExample]:
    """Builds the examples of all steps; each use of a demonstration has a newly sampled pool."""
    rng = random.Random(f"{setup.config.seed} warm start order")  # noqa: S311
    size = settings.steps * settings.batch
    pairs: list[tuple[Demonstration, WorkerPool]] = []
    while len(pairs) < size:
        epoch = rng.sample(demonstrations, len(demonstrations))
        pairs += [(demonstration, _sample_pool(setup, demonstration, rng)) for demonstration in epoch]
    examples: list[SftExample] = []
    for demonstration, pool in pairs[:size]:
        instance = PromptInstance(Sample(id="", question=demonstration.question), pool, setup.config.plan)
        text = _plan_text(demonstration, instance, settings.thoughts)
        tokens = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        prompt = loaded.plan_tokenizer.encode_prompt(instance.messages)
        examples.append(SftExample(prompt, [*tokens, loaded.end_tokens[0]]))
    return examples


def _sample_pool(setup: TrainingSetup, demonstration: Demonstration, rng: random.Random) -> WorkerPool:
    required = {step.worker for step in demonstration.workflow.steps} if demonstration.workflow else ()
    return sample_pool(setup.pool, setup.config.curriculum, rng, required=required)


def _plan_text(demonstration: Demonstration, instance: PromptInstance, roles: Mapping[str, str]) -> str:
    assert demonstration.workflow is not None  # only right plans are selected
    reasoning = (
        reasoning_prefix(demonstration.workflow, tuple(instance.pool), roles) if roles else demonstration.reasoning
    )
    return render(demonstration.workflow, instance.space, instance.plan.form, reasoning=reasoning)


def _load_demonstrations(
    setup: TrainingSetup, settings: WarmStartSettings, run_dir: RunDir, loaded: LoadedModel
) -> list[Demonstration]:
    """Collects demonstrations in the main process, into a file from which an interrupted run resumes.

    Raises:
        CapReachedError: a cap of the run is used up.
    """
    file = run_dir.warm_start / "plans.jsonl"
    state = PartialState()
    is_over = False
    with state.main_process_first():
        if state.is_main_process and not file.exists():
            try:
                write_lines(file, collect_demonstrations(setup, settings, loaded))
            except CapReachedError:
                is_over = True
    if any(gather_object([is_over])):
        raise CapReachedError
    return read_lines(file, Demonstration)


def _build_trainer(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    run_dir: RunDir,
    loaded: LoadedModel,
    demonstrations: Sequence[Demonstration],
) -> _SftTrainer:
    config, lora = setup.config, lora_config(setup.config)
    instance = setup.prompt_instances(1)[0]
    trainer = _SftTrainer(
        grammar=loaded.compile_grammar(instance.space, instance.plan.form) if config.plan.grammar else None,
        chunk=config.grpo.loss_chunk,
        model=get_peft_model(loaded.model, lora) if lora else loaded.model,
        processing_class=loaded.tokenizer,
        train_dataset=build_examples(setup, settings, loaded, demonstrations),
        data_collator=_collate,
        args=_training_arguments(config, settings, run_dir),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(CheckpointCallback())
    trainer.add_callback(_WarmStartCallback(setup))
    return trainer


class _SftTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """Maximizes the likelihood of plans, under the grammar that they are sampled by."""

    def __init__(self, *, grammar: GrammarConstraint | None, chunk: int | None, **options: Any) -> None:
        super().__init__(**options)
        self._grammar = grammar
        self._chunk = chunk

    def compute_loss(self, model: Any, inputs: dict[str, list[list[int]]], **_: Any) -> torch.Tensor:
        """Computes the mean negative log-likelihood of a token; forced tokens count as 0."""
        share_prefix = not self.args.gradient_checkpointing
        plans = plan_logprobs(
            model,
            inputs["prompts"],
            inputs["plans"],
            temperature=1.0,
            grammar=self._grammar,
            share_prefix=share_prefix,
            chunk=self._chunk,
        )
        return -torch.cat([plan.log_probs for plan in plans]).mean()


class _WarmStartCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports the supervised steps, and ends them with a checkpoint when the time is over."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Begins the stage, where an interrupted one ended."""
        self._setup.progress.begin("warm start: supervised steps", state.max_steps)
        self._setup.progress.advance(state.global_step)

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Counts the step, and stops at the cap in minutes."""
        self._setup.progress.advance()
        if any(gather_object([self._setup.budget.is_over])):
            control.should_save = control.should_training_stop = True


def _collate(examples: Sequence[SftExample]) -> dict[str, list[list[int]]]:
    return {"prompts": [example.prompt for example in examples], "plans": [example.plan for example in examples]}


def _training_arguments(config: TrainConfig, settings: WarmStartSettings, run_dir: RunDir) -> TrainingArguments:
    cuda = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(run_dir.warm_start),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=WARMUP_STEPS,
        seed=config.seed,
        use_cpu=not cuda,
        bf16=config.dtype == "bfloat16",
        dataloader_pin_memory=cuda,
        gradient_checkpointing=config.gradient_checkpointing,
        remove_unused_columns=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_steps=config.keep.every,
        save_total_limit=2,
    )
