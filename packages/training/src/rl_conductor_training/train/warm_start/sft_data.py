"""Demonstrations for the warm start: read from a file, or sampled and selected by their scores (rejection sampling)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from pydantic import ConfigDict
from transformers import GenerationConfig

from rl_conductor._internal.formatting import counted
from rl_conductor._internal.jsonl import read_lines
from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import render
from rl_conductor.scoring import Sample
from rl_conductor.types import Value
from rl_conductor.workflow.example import MAX_EXAMPLES
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.tasks.groups import shared_questions
from rl_conductor_training.train.budget import CapReachedError
from rl_conductor_training.train.config import WarmStartSettings
from rl_conductor_training.train.policy.model_loading import LoadedModel
from rl_conductor_training.train.policy.sampling import generate
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.prompt_lengths import describe_overflow
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.setup import TrainingSetup

BATCH_SIZE = 16
"""Number of plans that the model samples at the same time."""
FULL_ACCESS_PROBABILITY = 0.8
"""Probability that a step of a random plan reads all earlier ones."""


class Demonstration(Value):
    """A line of `warm_start.plans`: a plan with a right answer. The `plans/*.jsonl` of a run have this format too."""

    model_config = ConfigDict(extra="ignore")

    question: str
    workflow: Workflow | None
    """With the names of the pool's workers; a line without one, or with another score than 1, is skipped."""
    reasoning: str = ""
    score: float | None = 1.0
    round: int = 1
    """Plans of a second round are skipped, since the answer that they revise is not in the file."""


def collect_demonstrations(
    setup: TrainingSetup, settings: WarmStartSettings, loaded: LoadedModel
) -> list[Demonstration]:
    """Reads or samples the demonstrations of a warm start.

    Raises:
        ConfigError: there is none, one is for a validation question, or the trained policy can't write one.
        CapReachedError: a cap of the run is used up.
    """
    candidates = (
        read_lines(settings.plans, Demonstration) if settings.plans else _sample_candidates(setup, settings, loaded)
    )
    demonstrations = select_shortest(candidates)
    if not demonstrations:
        masked = MaskedPlans.of(setup.masked_reasons)
        raise ConfigError(
            "the warm start has no plan with a right answer: raise warm_start.samples or warm_start.questions, or"
            " name a file with warm_start.plans" + (f"; {masked.text}" if masked.reasons else "")
        )
    _check_validation_questions(demonstrations, setup)
    for demonstration in demonstrations:
        if problems := _find_problems(demonstration, setup, loaded):
            raise ConfigError(
                f"the warm start's plan for {demonstration.question!r:.80} does not fit: {'; '.join(problems)}"
            )
    return demonstrations


def _check_validation_questions(demonstrations: Sequence[Demonstration], setup: TrainingSetup) -> None:
    """Checks that no validation question is learned from."""
    validation = [instance.sample for instance in setup.validation_instances]
    if shared := shared_questions((Sample(id="", question=each.question) for each in demonstrations), validation):
        raise ConfigError(
            f"warm_start.plans has {counted(len(shared), 'plan')} for validation questions, such as {shared[0]!r:.80}:"
            " remove them, or choose another split or seed of validation.task"
        )


def _find_problems(demonstration: Demonstration, setup: TrainingSetup, loaded: LoadedModel) -> list[str]:
    """Lists the reasons why the trained policy could not write this plan."""
    assert demonstration.workflow is not None  # only right plans are selected
    sample = Sample(id="", question=demonstration.question)
    instance = PromptInstance(sample, setup.pool, setup.config.plan)
    problems = list(instance.space.violations(demonstration.workflow))
    required = {step.worker for step in demonstration.workflow.steps}
    pool_size = setup.config.curriculum.workers or len(setup.pool)
    if len(required) > pool_size:
        problems.append(f"it needs {len(required)} workers, but curriculum.workers is {pool_size}")
    if "\n" in demonstration.reasoning:
        problems.append("its reasoning has more than one line")
    if overflow := describe_overflow(setup, loaded, instance):
        problems.append(overflow)
    return problems


def select_shortest(candidates: Sequence[Demonstration]) -> list[Demonstration]:
    """Selects the right plans with the fewest steps for each question, without duplicates."""
    by_question: dict[str, dict[Workflow, Demonstration]] = {}
    for candidate in candidates:
        if candidate.workflow is not None and candidate.score == 1 and candidate.round == 1:
            by_question.setdefault(candidate.question, {}).setdefault(candidate.workflow, candidate)
    min_steps = {
        question: min(len(workflow.steps) for workflow in workflows) for question, workflows in by_question.items()
    }
    return [
        demonstration
        for question, workflows in by_question.items()
        for workflow, demonstration in workflows.items()
        if len(workflow.steps) == min_steps[question]
    ]


def random_workflow(space: PlanSpace, subtasks: Sequence[str], rng: random.Random) -> Workflow:
    """Samples a workflow of random length, workers and subtasks; each step reads all earlier ones or none."""
    return Workflow(
        steps=tuple(
            Step(
                subtask=rng.choice(subtasks),
                worker=rng.choice(space.choices),
                access=frozenset(range(index)) if rng.random() < FULL_ACCESS_PROBABILITY else frozenset(),
            )
            for index in range(rng.randint(space.min_steps, space.max_steps))
        )
    )


def _sample_candidates(setup: TrainingSetup, settings: WarmStartSettings, loaded: LoadedModel) -> list[Demonstration]:
    """Samples and scores plans, right and wrong ones."""
    by_model = settings.draw == "model"
    # Worked examples help the untrained model to write plans; the demonstrations have the prompts of training.
    overrides = {"examples": MAX_EXAMPLES} if by_model else {}
    instances = [
        instance
        for instance in setup.prompt_instances(settings.questions, **overrides)
        for _ in range(settings.samples)
    ]
    setup.progress.begin("warm start: sampling plans", len(instances) if by_model else 0)
    texts = _model_plans(setup, instances, loaded) if by_model else _random_plans(setup, settings, instances)
    setup.progress.begin("warm start: running plans", len(instances))
    scored_plans = run_sync(setup.rollout_scorer.score_plans(instances, texts))
    if setup.budget.is_over:
        raise CapReachedError
    return [
        Demonstration(question=instance.sample.question, workflow=scored.workflow, score=scored.score)
        for instance, scored in zip(instances, scored_plans, strict=True)
    ]


def _random_plans(setup: TrainingSetup, settings: WarmStartSettings, instances: Sequence[PromptInstance]) -> list[str]:
    rng = random.Random(f"{setup.config.seed} warm start")  # noqa: S311
    return [
        render(random_workflow(instance.space, settings.subtasks, rng), instance.space, instance.plan.form)
        for instance in instances
    ]


def _model_plans(setup: TrainingSetup, instances: Sequence[PromptInstance], loaded: LoadedModel) -> list[str]:
    grammar = loaded.compile_grammar(instances[0].space, instances[0].plan.form)
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        temperature=setup.config.grpo.temperature,
        max_new_tokens=setup.config.plan.max_tokens,
        eos_token_id=loaded.end_tokens,
        pad_token_id=loaded.end_tokens[0],
    )
    torch.manual_seed(setup.config.seed)
    prompts = [loaded.plan_tokenizer.encode_prompt(instance.messages) for instance in instances]
    batches = [prompts[start : start + BATCH_SIZE] for start in range(0, len(prompts), BATCH_SIZE)]
    texts: list[str] = []
    for batch in batches:
        texts += [loaded.plan_tokenizer.decode_plan(plan) for plan in generate(loaded.model, batch, config, grammar)]
        setup.progress.advance(len(batch))
    return texts
