"""Demonstrations of second rounds: first plans with their replies, and the plan that should follow each.

A right answer should be accepted. A wrong one should be revised by the shortest plan that then gives a right answer:
the question's own plan, or only the last steps of it, which read the replies of the first round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import render
from rl_conductor.scoring import Task
from rl_conductor.trace.trace import Round
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.train.budget import CapReachedError
from rl_conductor_training.train.config import WarmStartSettings
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rollouts.scoring import RolloutScorer, ScoredPlan
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.warm_start.sft_data import Demonstration


class SecondRound(Value):
    """A finished first round, and the plan that should follow it."""

    question: str
    first: Round
    workflow: Workflow | None
    """The plan of the second round; `None` accepts the answer of the first."""


class _FirstRound(NamedTuple):
    """A first plan that gave an answer."""

    instance: PromptInstance
    own: Workflow
    """The right plan of the question."""
    scored: ScoredPlan
    round: Round


def collect_second_rounds(
    setup: TrainingSetup, settings: WarmStartSettings, demonstrations: Sequence[Demonstration]
) -> list[SecondRound]:
    """Runs first plans for each question, then the plans that may follow the wrong ones.

    The first plans of a question are its own right one and those of `settings.second_rounds` other questions.

    Raises:
        ConfigError: no question of the demonstrations is in the task, so that answers can't be scored.
        CapReachedError: a cap of the run is used up.
    """
    task = settings.task.build() if settings.task else setup.task
    runner = _Runner(setup, replace(setup.rollout_scorer, scorer=task.score))
    right_plans = _right_plans(setup, task, demonstrations)
    first_rounds = runner.run_first_plans(right_plans, settings.second_rounds)
    accepted = [(first, None) for first in first_rounds if first.scored.right]
    revised = runner.find_revisions([first for first in first_rounds if not first.scored.right])
    return [
        SecondRound(question=first.instance.sample.question, first=first.round, workflow=workflow)
        for first, workflow in (*accepted, *revised)
    ]


def _right_plans(
    setup: TrainingSetup, task: Task, demonstrations: Sequence[Demonstration]
) -> list[tuple[PromptInstance, Workflow]]:
    """Returns a demonstrated plan of each question of the task."""
    samples = {sample.question: sample for sample in task.samples}
    plans = {each.question: each.workflow for each in demonstrations if each.question in samples and each.workflow}
    if not plans:
        raise ConfigError(
            "warm_start.second_rounds needs the scores of first answers, but [task] has none of the questions of the "
            "demonstrations: name the task for which the plans were found in [warm_start.task]"
        )
    return [
        (PromptInstance(samples[question], setup.pool, setup.config.plan), workflow)
        for question, workflow in plans.items()
    ]


@dataclass(frozen=True)
class _Runner:
    """Runs plans of both rounds and scores their answers."""

    setup: TrainingSetup
    scorer: RolloutScorer

    def run_first_plans(
        self, right_plans: Sequence[tuple[PromptInstance, Workflow]], wrong_plans: int
    ) -> list[_FirstRound]:
        """Runs the plan of each question, and those of `wrong_plans` others."""
        rng = random.Random(f"{self.setup.config.seed} second rounds")  # noqa: S311
        firsts: list[tuple[PromptInstance, Workflow, Workflow]] = []
        for instance, own in right_plans:
            others = sorted({other for _, other in right_plans if other != own}, key=Workflow.model_dump_json)
            from_others = rng.sample(others, min(wrong_plans, len(others)))
            firsts += [(instance, own, workflow) for workflow in (own, *from_others)]
        scored_plans = self._score("first rounds", [(instance, workflow) for instance, _, workflow in firsts])
        return [
            _FirstRound(instance, own, scored, scored.round)
            for (instance, own, _), scored in zip(firsts, scored_plans, strict=True)
            if scored.round is not None and not scored.masked
        ]

    def find_revisions(self, wrong: Sequence[_FirstRound]) -> list[tuple[_FirstRound, Workflow]]:
        """Returns the shortest plan that corrects each wrong answer, if any does."""
        tried = [(first, candidate) for first in wrong for candidate in endings(first.own)]
        plans = [(first.instance.next_round(first.round), candidate) for first, candidate in tried]
        scored_plans = self._score("second rounds", plans, [first.scored for first, _ in tried])
        shortest: dict[int, tuple[_FirstRound, Workflow]] = {}
        for (first, _), scored in zip(tried, scored_plans, strict=True):
            if scored.right and scored.workflow is not None:  # of a question, the shortest candidates come first
                shortest.setdefault(id(first), (first, scored.workflow))
        return list(shortest.values())

    def _score(
        self, name: str, plans: Sequence[tuple[PromptInstance, Workflow]], previous: Sequence[ScoredPlan] = ()
    ) -> list[ScoredPlan]:
        self.setup.progress.begin(f"warm start: running plans of {name}", len(plans))
        instances = [instance for instance, _ in plans]
        texts = [render(workflow, instance.space, instance.plan.form) for instance, workflow in plans]
        scored_plans = run_sync(self.scorer.score_plans(instances, texts, previous))
        if self.setup.budget.is_over:
            raise CapReachedError
        return scored_plans


def endings(workflow: Workflow) -> list[Workflow]:
    """Returns the last steps of a workflow, the shortest ending first; replies of the other steps are recalled."""
    return [_ending(workflow.steps, start) for start in range(len(workflow.steps) - 1, -1, -1)]


def _ending(steps: Sequence[Step], start: int) -> Workflow:
    steps_left = (
        step.model_copy(
            update={
                "access": frozenset(index - start for index in step.access if index >= start),
                "recall": step.recall or any(index < start for index in step.access),
            }
        )
        for step in steps[start:]
    )
    return Workflow(steps=tuple(steps_left))
