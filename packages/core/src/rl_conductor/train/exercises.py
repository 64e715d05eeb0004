"""Exercises: a question, the pool drawn for it, and what the Conductor is told: the prompt and space of serving."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from rl_conductor.errors import ConfigError
from rl_conductor.fences import new_key
from rl_conductor.parser import Form
from rl_conductor.policy import Policy
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.prompts import planner_messages
from rl_conductor.tasks.base import Sample, Task
from rl_conductor.train.config import Curriculum, PlanEntry
from rl_conductor.types import Message
from rl_conductor.workflow import PlanSpace


@dataclass(frozen=True)
class Exercise:
    """A question as the Conductor meets it once."""

    number: int
    """Its place in the order of training, from 0."""
    sample: Sample
    pool: WorkerPool
    """The workers there are this time, by the numbers that they have this time."""
    space: PlanSpace
    form: Form
    messages: tuple[Message, ...]
    """What the Conductor is told."""


def exercise(sample: Sample, pool: WorkerPool, plan: PlanEntry, *, number: int = 0) -> Exercise:
    """`sample` over all of `pool`."""
    space = Policy().space(pool.cards, max_steps=plan.max_steps, access=plan.access)
    messages = planner_messages(
        [Message.user(sample.question)],
        space,
        pool.cards,
        key=new_key(),  # of fences, which stand in later rounds only
        form=plan.form,
        roster=plan.roster,
        examples=plan.examples,
    )
    return Exercise(number, sample, pool, space, plan.form, messages)


def exercises(
    task: Task, pool: WorkerPool, *, plan: PlanEntry, curriculum: Curriculum, seed: int, size: int
) -> list[Exercise]:
    """The first `size` exercises: the questions in a new order each time round, a pool drawn for each.

    They follow from `seed` alone, and a longer list begins with the shorter one.

    Raises:
        ConfigError: more workers are to be drawn than there are.
    """
    return [
        exercise(sample, subset(pool, curriculum, _random(f"{seed} pool {number}")), plan, number=number)
        for number, sample in enumerate(islice(_rounds(task, seed), size))
    ]


def subset(
    pool: WorkerPool, curriculum: Curriculum, draw: random.Random, *, needed: Collection[str] = ()
) -> WorkerPool:
    """As many of the workers as `curriculum` says, the `needed` ones among them, or more if more are needed.

    With new numbers, that is in a new order, and with other words on their cards, if it says so.

    Raises:
        ConfigError: there are not so many.
    """
    wanted = curriculum.workers or len(pool)
    if wanted > len(pool):
        raise ConfigError(f"curriculum.workers is {wanted}, but the pool has {len(pool)}; write at most that")
    others = [name for name in pool if name not in needed]
    chosen = {*needed, *draw.sample(others, max(wanted - len(needed), 0))}
    drawn = [name for name in pool if name in chosen]
    if curriculum.shuffle:
        draw.shuffle(drawn)
    return WorkerPool(_reworded(pool[name], curriculum.cards.get(name, ()), draw) for name in drawn)


def _reworded(worker: Worker, others: Sequence[str], draw: random.Random) -> Worker:
    """`worker` with one of `others` as what it is good at, or as it is."""
    if not others:
        return worker
    strengths = draw.choice((worker.card.strengths, *others))
    return replace(worker, card=worker.card.model_copy(update={"strengths": strengths}))


def _rounds(task: Task, seed: int) -> Iterator[Sample]:
    for turn in count():
        order = list(task.samples)
        _random(f"{seed} order {turn}").shuffle(order)
        yield from order


def _random(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311
