"""Plans that gave right answers: from a file, or drawn, run and kept when the answer is right (rejection sampling)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ConfigDict
from transformers import GenerationConfig

from rl_conductor.errors import ConfigError
from rl_conductor.plan import render
from rl_conductor.prompts import EXAMPLES
from rl_conductor.sync import run_sync
from rl_conductor.tasks.base import Sample
from rl_conductor.train.config import WarmStart
from rl_conductor.train.course import Course
from rl_conductor.train.drawing import draw
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.lines import read_lines
from rl_conductor.train.loading import Loaded
from rl_conductor.types import Value
from rl_conductor.workflow import PlanSpace, Step, Workflow

BATCH = 16
"""Plans that the model draws at once."""
CHAINED = 0.8
"""How often a step that chance draws sees the earlier ones."""


class KnownPlan(Value):
    """A plan that gave a right answer: a line of `warm_start.plans`. The plans that a run keeps can be read as such."""

    model_config = ConfigDict(extra="ignore")

    question: str
    workflow: Workflow | None
    """By the names of the pool's workers; without one, or with another score than 1, the line is passed over."""
    reasoning: str = ""
    score: float | None = 1.0
    round: int = 1
    """A plan of a second round judges an answer that isn't here, so its line is passed over."""


def known_plans(course: Course, entry: WarmStart, loaded: Loaded) -> list[KnownPlan]:
    """The plans to learn from.

    Raises:
        ConfigError: there is none, or one that may not be written in this training.
    """
    found = read_lines(entry.plans, KnownPlan) if entry.plans else _tried(course, entry, loaded)
    plans = shortest(found)
    if not plans:
        raise ConfigError("the warm start has no plan that gave a right answer: draw more, or name a file of plans")
    for plan in plans:
        if problems := _misfits(plan, course):
            raise ConfigError(f"the warm start's plan for {plan.question!r:.80} does not fit: {'; '.join(problems)}")
    return plans


def _misfits(plan: KnownPlan, course: Course) -> list[str]:
    """Why the policy that is trained could not write `plan`."""
    assert plan.workflow is not None  # only right plans are learnt from
    space = Exercise(Sample(id="", question=plan.question), course.pool, course.config.plan).space
    problems = list(space.violations(plan.workflow))
    needed = {step.worker for step in plan.workflow.steps}
    drawn = course.config.curriculum.workers or len(course.pool)
    if len(needed) > drawn:
        problems.append(f"it needs {len(needed)} workers, but curriculum.workers is {drawn}")
    if "\n" in plan.reasoning:
        problems.append("its reasoning has more than one line")
    return problems


def shortest(plans: Sequence[KnownPlan]) -> list[KnownPlan]:
    """The right plans, for each question those with the fewest steps, each once."""
    kept: dict[str, dict[Workflow, KnownPlan]] = {}
    for plan in plans:
        if plan.workflow is not None and plan.score == 1 and plan.round == 1:
            kept.setdefault(plan.question, {}).setdefault(plan.workflow, plan)
    least = {question: min(len(workflow.steps) for workflow in known) for question, known in kept.items()}
    return [
        plan
        for question, known in kept.items()
        for workflow, plan in known.items()
        if len(workflow.steps) == least[question]
    ]


def thought(workflow: Workflow, roster: Sequence[str], does: Mapping[str, str]) -> str:
    """What is best said before a plan is written, by `does`, which tells each worker's part in a word or two.

    First who does what, then who is needed in which order: `0 write, 1 look up, 2 calculate: look up 1, write 0`. So a
    small model reads the cards once, in their order, and the plan's numbers are a copy of what it has just written.
    """
    who = ", ".join(f"{number} {does[worker]}" for number, worker in enumerate(roster))
    needed = ", ".join(f"{does[step.worker]} {roster.index(step.worker)}" for step in workflow.steps)
    return f"{who}: {needed}"


def random_workflow(space: PlanSpace, subtasks: Sequence[str], chance: random.Random) -> Workflow:
    """A workflow of any length, workers and subtasks; a step sees all earlier ones or none."""
    return Workflow(
        steps=tuple(
            Step(
                subtask=chance.choice(subtasks),
                worker=chance.choice(space.choices),
                access=frozenset(range(index)) if chance.random() < CHAINED else frozenset(),
            )
            for index in range(chance.randint(space.min_steps, space.max_steps))
        )
    )


def _tried(course: Course, entry: WarmStart, loaded: Loaded) -> list[KnownPlan]:
    """Plans of any kind, and how right their answers were."""
    by_model = entry.draw == "model"
    # Worked examples help a model that has learnt nothing yet; what it learns from has none if training has none.
    asked = course.exercises(entry.questions, **({"examples": len(EXAMPLES)} if by_model else {}))
    repeated = [one for one in asked for _ in range(entry.samples)]
    texts = _by_model(course, repeated, loaded) if by_model else _by_chance(course, entry, repeated)
    outcomes = run_sync(course.examiner.outcomes(repeated, texts))
    return [
        KnownPlan(question=one.sample.question, workflow=outcome.workflow, score=outcome.score)
        for one, outcome in zip(repeated, outcomes, strict=True)
    ]


def _by_chance(course: Course, entry: WarmStart, asked: Sequence[Exercise]) -> list[str]:
    chance = random.Random(f"{course.config.seed} warm start")  # noqa: S311
    return [render(random_workflow(one.space, entry.subtasks, chance), one.space, one.plan.form) for one in asked]


def _by_model(course: Course, asked: Sequence[Exercise], loaded: Loaded) -> list[str]:
    held = loaded.held_to(asked[0].space, asked[0].plan.form)
    how = _how(course, loaded)
    torch.manual_seed(course.config.seed)
    prompts = [loaded.tokens.prompt(one.messages) for one in asked]
    batches = [prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)]
    return [loaded.tokens.text(plan) for batch in batches for plan in draw(loaded.model, batch, how, held)]


def _how(course: Course, loaded: Loaded) -> GenerationConfig:
    how: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": course.config.grpo.temperature}
    return GenerationConfig(
        **how,
        max_new_tokens=course.config.plan.max_tokens,
        eos_token_id=loaded.ends,
        pad_token_id=loaded.ends[0],
    )
