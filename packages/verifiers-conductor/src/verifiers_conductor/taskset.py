"""A training file's exercises as tasks: the prompt of serving, and the reward of running the plan for real."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import verifiers.v1 as vf

from rl_conductor.errors import ConfigError
from rl_conductor.train.config import read_config
from rl_conductor.train.course import Course
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.outcomes import Outcome
from rl_conductor.train.pools import opened
from rl_conductor.train.rewards import rewards
from rl_conductor.types import Message

TURNS = {"user": vf.UserMessage, "assistant": vf.AssistantMessage}


class PlanTaskConfig(vf.TaskConfig):  # type: ignore[misc, unused-ignore]
    """What the task reads when a plan is scored."""

    recipe: Path | None = None
    """A file as `rl-conductor train` takes it. `[task]`, `[pool]`, `[plan]`, `[curriculum]`, `[reward]` and the seed
    count; the model and the algorithm are the trainer's own matter."""


class ConductorConfig(vf.TasksetConfig):  # type: ignore[misc, unused-ignore]
    """Which exercises there are."""

    task: PlanTaskConfig = PlanTaskConfig()
    size: int | None = None
    """How many; each question once when left out. The first ones are those of `rl-conductor train`."""


class PlanData(vf.TaskData):  # type: ignore[misc, unused-ignore]
    """What the Conductor is told."""

    number: int
    """The exercise's place in the order of training, from 0."""


class PlanTask(vf.Task[PlanData, vf.State, PlanTaskConfig]):  # type: ignore[misc, unused-ignore]
    """One question, for which a plan is to be written."""

    @vf.reward  # type: ignore[untyped-decorator, unused-ignore]
    async def plan(self, trace: vf.Trace) -> float:
        """What the plan is worth, as `train.rewards` has it, once the workers have run it.

        Raises:
            RuntimeError: a call to a worker failed, so that nothing is known of the plan: the rollout counts as failed.
        """
        course = course_of(self.config.recipe)
        exercise = _exercise(self.config.recipe, self.data.number)
        outcome = await course.examiner.outcome(exercise, trace.last_reply)
        trace.record_metrics(_metrics(outcome))
        [reward] = rewards([outcome], course.config.reward)
        if reward is None:
            raise RuntimeError(outcome.explanation)
        return reward


class ConductorTaskset(vf.Taskset[PlanTask, ConductorConfig]):  # type: ignore[misc, unused-ignore]
    """The exercises of a training file."""

    def load(self) -> Iterator[PlanTask]:
        """Each exercise as a task.

        Raises:
            ConfigError: no training file was named, or it can't be used here.
        """
        course = course_of(self.config.task.recipe)
        for number in range(len(course.task.samples) if self.config.size is None else self.config.size):
            yield PlanTask(_data(_exercise(self.config.task.recipe, number)), self.config.task)


@cache
def course_of(recipe: Path | None) -> Course:
    """The course of a training file. Its workers stay open until the process ends.

    Raises:
        ConfigError: see `ConductorTaskset.load`.
    """
    if recipe is None:
        raise ConfigError("name a training file: --env.taskset.task.recipe FILE.toml")
    config = read_config(recipe)
    if config.reward.thrift:
        raise ConfigError(
            f"{str(recipe)!r}: reward.thrift compares a group's answers, which here are scored alone; write thrift = 0"
        )
    if config.recursion:
        raise ConfigError(f"{str(recipe)!r}: here a plan is written in a single turn; remove [recursion]")
    closing = ExitStack()
    atexit.register(closing.close)
    return Course(config, closing.enter_context(opened(config.pool, recipe.with_name("replies.sqlite"))))


def _exercise(recipe: Path | None, number: int) -> Exercise:
    size = len(course_of(recipe).task.samples)
    return _exercises(recipe, number // size + 1)[number]


@cache
def _exercises(recipe: Path | None, rounds: int) -> list[Exercise]:
    """As many rounds of all questions."""
    course = course_of(recipe)
    return course.exercises(rounds * len(course.task.samples))


def _data(exercise: Exercise) -> PlanData:
    system = "\n\n".join(message.text for message in exercise.messages if message.role == "system")
    turns = [_turn(message) for message in exercise.messages if message.role != "system"]
    return PlanData(id=exercise.sample.id, number=exercise.number, system_prompt=system or None, prompt=turns)


def _turn(message: Message) -> vf.Message:
    return TURNS[message.role](content=message.text)


def _metrics(outcome: Outcome) -> dict[str, float]:
    steps = outcome.workflow.steps if outcome.workflow else ()
    return {
        "valid": float(outcome.valid),
        "right": float(outcome.right),
        "steps": float(len(steps)),
        "workers": float(len({step.worker for step in steps})),
        "usd": float(outcome.usage.cost),
        "tokens": float(outcome.usage.total_tokens),
    }
