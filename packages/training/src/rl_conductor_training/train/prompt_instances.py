"""Prompt instances: a question with its sampled pool, the prompt and the plan space, built as in serving."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from rl_conductor.errors import ConfigError
from rl_conductor.planning.later_rounds import collect_previous_rounds, next_round_space
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.planner_prompt import PromptSettings, planner_messages
from rl_conductor.scoring import Sample, Task
from rl_conductor.text.delimiters import new_delimiter_key
from rl_conductor.trace.trace import Round
from rl_conductor.types import Message
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.train.config import CurriculumSettings, PlanSettings

POLICY = Policy()
"""Training is unrestricted."""
KEY_BYTES = 16


@dataclass(frozen=True)
class PromptInstance:
    """One occurrence of a question in training."""

    sample: Sample
    pool: WorkerPool
    """The workers sampled for this instance, in the order of their numbers."""
    plan: PlanSettings
    """The prompt and form of plans."""
    index: int = 0
    """Position in the order of training, from 0."""
    delimiter_key: str = field(default_factory=new_delimiter_key)
    """Key of the delimiters around the replies that the prompt quotes."""
    previous_rounds: tuple[Round, ...] = ()
    """Finished rounds, whose answer the next plan revises or accepts."""

    def next_round(self, finished: Round) -> PromptInstance:
        """Returns the instance of the round after `finished`."""
        return replace(self, previous_rounds=(*self.previous_rounds, finished))

    @cached_property
    def space(self) -> PlanSpace:
        """The plans that are allowed in this round."""
        if not self.previous_rounds:
            return self._first_space
        return next_round_space(self._first_space, self.previous_rounds, self.pool, POLICY)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the prompt."""
        settings = PromptSettings(
            form=self.plan.form,
            roster=self.plan.roster,
            wording=self.plan.wording,
            examples=self.plan.examples,
            context=self.plan.context,
        )
        return planner_messages(
            [Message.user(self.sample.question)],
            self.space,
            self.pool.cards,
            settings,
            key=self.delimiter_key,
            previous_rounds=collect_previous_rounds(self.previous_rounds, self._first_space, self.plan.form),
        )

    @cached_property
    def _first_space(self) -> PlanSpace:
        return POLICY.space(self.pool.cards, max_steps=self.plan.max_steps, access=self.plan.access)


def build_instances(
    task: Task, pool: WorkerPool, *, plan: PlanSettings, curriculum: CurriculumSettings, seed: int, size: int
) -> list[PromptInstance]:
    """Builds the first `size` prompt instances: a new order in every epoch, and a sampled pool for each contrast set.

    A question without a contrast set has a pool of its own. `seed` determines everything, and a longer list begins with
    the shorter one.

    Raises:
        ConfigError: `curriculum.workers` is more than the pool has.
    """
    instances: list[PromptInstance] = []
    for contrast_set in _contrast_sets_of_epochs(task, seed):
        sampled_pool = sample_pool(pool, curriculum, _random(f"{seed} pool {len(instances)}"))
        instances += [
            _build_instance(sample, sampled_pool, plan, seed, index)
            for index, sample in enumerate(contrast_set, start=len(instances))
        ]
        if len(instances) >= size:
            break
    return instances[:size]


def _build_instance(sample: Sample, pool: WorkerPool, plan: PlanSettings, seed: int, index: int) -> PromptInstance:
    key = _random(f"{seed} fences {index}").randbytes(KEY_BYTES).hex()
    return PromptInstance(sample, pool, plan, index=index, delimiter_key=key)


def sample_pool(
    pool: WorkerPool, curriculum: CurriculumSettings, rng: random.Random, *, required: Collection[str] = ()
) -> WorkerPool:
    """Samples `curriculum.workers` workers, including the `required` ones, by the settings of `[curriculum]`.

    They get a new order with `curriculum.shuffle`, and other wordings of their cards with `curriculum.cards`.

    Raises:
        ConfigError: `curriculum.workers` is more than the pool has.
    """
    size = curriculum.workers or len(pool)
    if size > len(pool):
        raise ConfigError(f"curriculum.workers = {size} is more than the {len(pool)} workers of the pool: lower it")
    optional = [name for name in pool if name not in required]
    selected = {*required, *rng.sample(optional, size - len(required))}
    names = [name for name in pool if name in selected]
    if curriculum.shuffle:
        rng.shuffle(names)
    return WorkerPool(_sample_wording(pool[name], curriculum.cards.get(name, ()), rng) for name in names)


def _sample_wording(worker: Worker, wordings: Sequence[str], rng: random.Random) -> Worker:
    """Replaces the card's strengths by one of `wordings`, or keeps them."""
    if not wordings:
        return worker
    strengths = rng.choice((worker.card.strengths, *wordings))
    return replace(worker, card=worker.card.model_copy(update={"strengths": strengths}))


def reasoning_prefix(workflow: Workflow, roster: Sequence[str], roles: Mapping[str, str]) -> str:
    """Writes the line of reasoning before a plan, from the role of each worker in a word or two.

    The roles of all workers come first, then the workers of the plan in order: `0 write, 1 look up, 2 calculate: look
    up 1, write 0`. So a small model reads the cards once, in their order, and copies the plan's numbers from its own
    text.
    """
    all_roles = ", ".join(f"{number} {roles[worker]}" for number, worker in enumerate(roster))
    plan_roles = ", ".join(f"{roles[step.worker]} {roster.index(step.worker)}" for step in workflow.steps)
    return f"{all_roles}: {plan_roles}"


def _contrast_sets_of_epochs(task: Task, seed: int) -> Iterator[list[Sample]]:
    """Yields contrast sets forever, in a new order each epoch; their samples stay together."""
    for epoch in count():
        contrast_sets = _group_by_contrast(task.samples)
        _random(f"{seed} order {epoch}").shuffle(contrast_sets)
        yield from contrast_sets


def _group_by_contrast(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Groups samples by contrast set; a sample without one is a set of its own."""
    sets: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        sets.setdefault((sample.contrast, "" if sample.contrast else sample.id), []).append(sample)
    return list(sets.values())


def _random(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311
