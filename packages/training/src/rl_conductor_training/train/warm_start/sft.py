"""Supervised fine-tuning before the first GRPO step, on plans with right answers, so that the model writes valid plans.

The loss is that of the distribution plans are sampled from (see `grammar_constraint`), so tokens that the grammar
forces are not trained. The run's record says which demonstrations were used: a warm start is not reinforcement
learning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
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
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.train.budget import CapReachedError
from rl_conductor_training.train.config import TrainConfig, WarmStartSettings
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.logprobs import TokenLogProbs, plan_logprobs
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_policy, lora_config
from rl_conductor_training.train.prompt_instances import KEY_BYTES, PromptInstance, reasoning_prefix, sample_pool
from rl_conductor_training.train.prompt_lengths import check_prompts
from rl_conductor_training.train.rollouts.grammars import compile_round_grammars
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.run_dir import RunDir, WarmStartState, latest_complete_checkpoint
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.trainers.callbacks import CheckpointCallback
from rl_conductor_training.train.trainers.common_arguments import common_arguments
from rl_conductor_training.train.warm_start.second_rounds import SecondRound, collect_second_rounds
from rl_conductor_training.train.warm_start.sft_data import Demonstration, collect_demonstrations

WARMUP_STEPS = 4
"""Steps over which the learning rate rises."""


class SftExample(NamedTuple):
    """The tokens of one training example."""

    prompt: list[int]
    plan: list[int]
    """Including the end token."""
    is_second_round: bool = False


class Demonstrations(NamedTuple):
    """The demonstrations of both rounds."""

    first_rounds: Sequence[Demonstration]
    second_rounds: Sequence[SecondRound]
    """Empty unless `warm_start.second_rounds` asks for them."""


def run_warm_start(
    setup: TrainingSetup, settings: WarmStartSettings, run_dir: RunDir, save_spending: Callable[[], None] = lambda: None
) -> WarmStartState:
    """Fine-tunes the model that GRPO begins with, unless that is done; resumes an interrupted warm start.

    Args:
        setup: the questions and workers.
        settings: the `[warm_start]` table.
        run_dir: where the model and the demonstrations are saved.
        save_spending: called in every process once the demonstrations of each round are saved, which are all that
            costs anything.

    Raises:
        ConfigError: there is no plan with a right answer, or a prompt is too long.
        CapReachedError: a cap of the run is used up.
    """
    state_file = run_dir.warm_start / "warmth.json"
    if state_file.exists():
        return read_value(state_file, WarmStartState)
    setup.progress.begin("loading the model")
    loaded = load_policy(setup.config)
    check_prompts(setup, loaded)
    demonstrations = _load_demonstrations(setup, settings, run_dir, loaded, save_spending)
    trainer = _build_trainer(setup, settings, run_dir, loaded, demonstrations)
    checkpoint = latest_complete_checkpoint(run_dir.warm_start)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.state.global_step < settings.steps:
        raise CapReachedError
    trainer.save_model(str(run_dir.warm_start))
    state = WarmStartState(
        plans=len(demonstrations.first_rounds),
        second_rounds=len(demonstrations.second_rounds),
        source=str(settings.plans) if settings.plans else f"right plans sampled from the {settings.draw}",
        steps=settings.steps,
        loss=next(logs["loss"] for logs in reversed(trainer.state.log_history) if "loss" in logs),
        masked=MaskedPlans.of(setup.masked_reasons),
    )
    if trainer.is_world_process_zero():
        write_value(state_file, state)
    trainer.accelerator.wait_for_everyone()  # every process loads the model that the main one has saved
    return state


def build_examples(
    setup: TrainingSetup, settings: WarmStartSettings, loaded: LoadedModel, demonstrations: Demonstrations
) -> list[SftExample]:
    """Builds the examples of all steps; each use of a demonstration has a newly sampled pool."""
    size = settings.steps * settings.batch
    recursion = setup.config.recursion
    share = recursion.share / (1 + recursion.share) if recursion and demonstrations.second_rounds else 0.0
    is_second = [int((index + 1) * share) > int(index * share) for index in range(size)]
    first_rounds = _first_round_examples(setup, settings, loaded, demonstrations.first_rounds, size - sum(is_second))
    second_rounds = _second_round_examples(setup, settings, loaded, demonstrations.second_rounds, sum(is_second))
    return [next(second_rounds if second else first_rounds) for second in is_second]


def _first_round_examples(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    loaded: LoadedModel,
    demonstrations: Sequence[Demonstration],
    size: int,
) -> Iterator[SftExample]:
    rng = random.Random(f"{setup.config.seed} warm start order")  # noqa: S311
    pairs: list[tuple[Demonstration, WorkerPool]] = []
    while len(pairs) < size:
        epoch = rng.sample(demonstrations, len(demonstrations))
        pairs += [(demonstration, _sample_pool(setup, demonstration.workflow, rng=rng)) for demonstration in epoch]
    for demonstration, pool in pairs[:size]:
        assert demonstration.workflow is not None  # only right plans are selected
        instance = PromptInstance(Sample(id="", question=demonstration.question), pool, setup.config.plan)
        text = _plan_text(demonstration.workflow, instance, settings.roles, demonstration.reasoning)
        yield _encode(loaded, instance, text)


def _second_round_examples(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    loaded: LoadedModel,
    second_rounds: Sequence[SecondRound],
    size: int,
) -> Iterator[SftExample]:
    """Yields examples that accept and revise in turn, whichever of them there are more of."""
    rng = random.Random(f"{setup.config.seed} warm start second rounds")  # noqa: S311
    kinds = [[each for each in second_rounds if (each.workflow is None) == accepts] for accepts in (True, False)]
    streams = cycle([_repeat_shuffled(kind, rng) for kind in kinds if kind])
    for _ in range(size):
        yield _second_round_example(setup, settings, loaded, next(next(streams)), rng)


def _second_round_example(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    loaded: LoadedModel,
    demonstration: SecondRound,
    rng: random.Random,
) -> SftExample:
    first, second = demonstration.first, demonstration.workflow
    assert first.plan.workflow is not None  # it ran
    pool = _sample_pool(setup, first.plan.workflow, second, rng=rng)
    key = rng.randbytes(KEY_BYTES).hex()
    question = Sample(id="", question=demonstration.question)
    instance = PromptInstance(question, pool, setup.config.plan, delimiter_key=key)
    first_text = _plan_text(first.plan.workflow, instance, settings.roles)
    plan = first.plan.model_copy(update={"text": first_text})
    instance = instance.next_round(first.model_copy(update={"plan": plan}))
    # An accepted plan is the one that is needed, so the reasoning is the same as before it.
    text = _plan_text(second, instance, settings.roles, reasoned=second or first.plan.workflow)
    return _encode(loaded, instance, text)._replace(is_second_round=True)


def _repeat_shuffled(demonstrations: Sequence[SecondRound], rng: random.Random) -> Iterator[SecondRound]:
    """Yields the demonstrations for ever, in a new order each time."""
    while True:
        yield from rng.sample(demonstrations, len(demonstrations))


def _encode(loaded: LoadedModel, instance: PromptInstance, text: str) -> SftExample:
    tokens = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    return SftExample(loaded.plan_tokenizer.encode_prompt(instance.messages), [*tokens, loaded.end_tokens[0]])


def _sample_pool(setup: TrainingSetup, *workflows: Workflow | None, rng: random.Random) -> WorkerPool:
    required = {step.worker for workflow in workflows if workflow for step in workflow.steps}
    return sample_pool(setup.pool, setup.config.curriculum, rng, required=required)


def _plan_text(
    workflow: Workflow | None,
    instance: PromptInstance,
    roles: Mapping[str, str],
    reasoning: str = "",
    *,
    reasoned: Workflow | None = None,
) -> str:
    """Renders a plan; with `roles`, after a line of reasoning about it, or about the plan `reasoned`."""
    subject = reasoned or workflow
    if roles and subject is not None:
        reasoning = reasoning_prefix(subject, tuple(instance.pool), roles)
    return render(workflow, instance.space, instance.plan.form, reasoning=reasoning)


def _load_demonstrations(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    run_dir: RunDir,
    loaded: LoadedModel,
    save_spending: Callable[[], None],
) -> Demonstrations:
    """Collects the demonstrations that an interrupted run has not yet.

    Raises:
        CapReachedError: a cap of the run is used up.
    """
    first_file, second_file = run_dir.warm_start / "plans.jsonl", run_dir.warm_start / "second_rounds.jsonl"
    _collect(first_file, lambda: collect_demonstrations(setup, settings, loaded))
    save_spending()
    first_rounds = read_lines(first_file, Demonstration)
    if not settings.second_rounds:
        return Demonstrations(first_rounds, [])
    _collect(second_file, lambda: collect_second_rounds(setup, settings, first_rounds))
    save_spending()
    return Demonstrations(first_rounds, read_lines(second_file, SecondRound))


def _collect(file: Path, collect: Callable[[], Sequence[Value]]) -> None:
    """Collects demonstrations in the main process, into a file from which an interrupted run resumes.

    Raises:
        CapReachedError: a cap of the run is used up.
    """
    state = PartialState()
    is_over = False
    with state.main_process_first():
        if state.is_main_process and not file.exists():
            try:
                write_lines(file, collect())
            except CapReachedError:
                is_over = True
    if any(gather_object([is_over])):
        raise CapReachedError


def _build_trainer(
    setup: TrainingSetup,
    settings: WarmStartSettings,
    run_dir: RunDir,
    loaded: LoadedModel,
    demonstrations: Demonstrations,
) -> _SftTrainer:
    config, lora = setup.config, lora_config(setup.config)
    instance = setup.prompt_instances(1)[0]
    trainer = _SftTrainer(
        grammars=compile_round_grammars(loaded, instance, has_second_round=bool(demonstrations.second_rounds)),
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

    def __init__(self, *, grammars: Sequence[GrammarConstraint | None], chunk: int | None, **options: Any) -> None:
        super().__init__(**options)
        self._grammars = grammars
        self._chunk = chunk

    def compute_loss(self, model: Any, inputs: dict[str, list[Any]], **_: Any) -> torch.Tensor:
        """Computes the mean negative log-likelihood of a token; forced tokens count as 0."""
        examples = list(map(SftExample, inputs["prompts"], inputs["plans"], inputs["second_round"]))
        plans = self._logprobs(model, [each for each in examples if not each.is_second_round], self._grammars[0])
        if any(inputs["second_round"]):
            plans += self._logprobs(model, [each for each in examples if each.is_second_round], self._grammars[1])
        return -torch.cat([plan.log_probs for plan in plans]).mean()

    def _logprobs(
        self, model: Any, examples: Sequence[SftExample], grammar: GrammarConstraint | None
    ) -> list[TokenLogProbs]:
        if not examples:
            return []
        return plan_logprobs(
            model,
            [example.prompt for example in examples],
            [example.plan for example in examples],
            temperature=1.0,
            grammar=grammar,
            share_prefix=not self.args.gradient_checkpointing,
            chunk=self._chunk,
        )


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


def _collate(examples: Sequence[SftExample]) -> dict[str, list[Any]]:
    prompts, plans, second_round = zip(*examples, strict=True)
    return {"prompts": list(prompts), "plans": list(plans), "second_round": list(second_round)}


def _training_arguments(config: TrainConfig, settings: WarmStartSettings, run_dir: RunDir) -> TrainingArguments:
    return TrainingArguments(
        **common_arguments(run_dir.warm_start, seed=config.seed, dtype=config.dtype),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=WARMUP_STEPS,
        gradient_checkpointing=config.gradient_checkpointing,
        remove_unused_columns=False,
        report_to="none",
        save_steps=config.keep.every,
        save_total_limit=2,
    )
