"""Exercises: a question, the pool drawn for it, and what the Conductor is told: the prompt and space of serving."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from rl_conductor.errors import ConfigError
from rl_conductor.fences import new_key
from rl_conductor.policy import Policy
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.prompts import planner_messages
from rl_conductor.reviewing import later_space, reviews
from rl_conductor.tasks.base import Sample, Task
from rl_conductor.trace import Round
from rl_conductor.train.config import Curriculum, PlanEntry
from rl_conductor.types import Message
from rl_conductor.workflow import PlanSpace

POLICY = Policy()
"""In training everything is allowed."""
KEY_BYTES = 16


@dataclass(frozen=True)
class Exercise:
    """A question as the Conductor meets it once."""

    sample: Sample
    pool: WorkerPool
    """The workers there are this time, by the numbers that they have this time."""
    plan: PlanEntry
    """How plans are asked for."""
    number: int = 0
    """Its place in the order of training, from 0."""
    key: str = field(default_factory=new_key)
    """Of the fences around the answers that the Conductor is shown."""
    before: tuple[Round, ...] = ()
    """The rounds that the Conductor is to judge."""

    def after(self, done: Round) -> Exercise:
        """The same question one round later."""
        return replace(self, before=(*self.before, done))

    @cached_property
    def space(self) -> PlanSpace:
        """What may be planned."""
        return later_space(self._first_space, self.before, self.pool, POLICY) if self.before else self._first_space

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """What the Conductor is told."""
        return planner_messages(
            [Message.user(self.sample.question)],
            self.space,
            self.pool.cards,
            key=self.key,
            form=self.plan.form,
            roster=self.plan.roster,
            examples=self.plan.examples,
            reviews=reviews(self.before, self._first_space, self.plan.form),
        )

    @cached_property
    def _first_space(self) -> PlanSpace:
        return POLICY.space(self.pool.cards, max_steps=self.plan.max_steps, access=self.plan.access)


def exercises(
    task: Task, pool: WorkerPool, *, plan: PlanEntry, curriculum: Curriculum, seed: int, size: int
) -> list[Exercise]:
    """The first `size` exercises: the questions in a new order each time round, a pool drawn for each contrast set.

    A question without one has a pool of its own. All of it follows from `seed` alone, and a longer list begins with the
    shorter one.

    Raises:
        ConfigError: more workers are to be drawn than there are.
    """
    made: list[Exercise] = []
    for kin in _rounds(task, seed):
        drawn = subset(pool, curriculum, _random(f"{seed} pool {len(made)}"))
        made += [_exercise(sample, drawn, plan, seed, number) for number, sample in enumerate(kin, start=len(made))]
        if len(made) >= size:
            break
    return made[:size]


def _exercise(sample: Sample, pool: WorkerPool, plan: PlanEntry, seed: int, number: int) -> Exercise:
    key = _random(f"{seed} fences {number}").randbytes(KEY_BYTES).hex()
    return Exercise(sample, pool, plan, number=number, key=key)


def subset(
    pool: WorkerPool, curriculum: Curriculum, draw: random.Random, *, needed: Collection[str] = ()
) -> WorkerPool:
    """As many of the workers as `curriculum` says, the `needed` ones among them.

    With new numbers, that is in a new order, and with other words on their cards, if it says so.

    Raises:
        ConfigError: there are not so many.
    """
    wanted = curriculum.workers or len(pool)
    if wanted > len(pool):
        raise ConfigError(f"curriculum.workers is {wanted}, but the pool has {len(pool)}; write at most that")
    others = [name for name in pool if name not in needed]
    chosen = {*needed, *draw.sample(others, wanted - len(needed))}
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


def _rounds(task: Task, seed: int) -> Iterator[list[Sample]]:
    """The questions in a new order each time round; those of a contrast set stay together."""
    for turn in count():
        order = _contrast_sets(task.samples)
        _random(f"{seed} order {turn}").shuffle(order)
        yield from order


def _contrast_sets(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by contrast set; one without is a set of its own."""
    sets: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        sets.setdefault((sample.contrast, "" if sample.contrast else sample.id), []).append(sample)
    return list(sets.values())


def _random(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311
