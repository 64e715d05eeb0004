"""The scored plans of each question, and the settings of a training on them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Literal, NamedTuple

from pydantic import Field

from rl_conductor.types import Card, Message, Value
from rl_conductor.workflow.workflow import Workflow

Method = Literal["expectation", "groups", "raft", "supervised"]
"""The training after the supervised steps; `supervised` has none."""

SUPERVISED_SECONDS, METHOD_SECONDS = 0.8, 6.0
"""Seconds for a question in a supervised step, and in a step of the method with about nine plans."""


class ScoredWorkflow(Value):
    """A workflow with its score on one question."""

    workflow: Workflow
    score: float
    reasoning: str = ""
    """The line that the planner writes before the plan, if any."""


class TableQuestion(Value):
    """A question with the plans that ran on it."""

    id: str
    conversation: tuple[Message, ...]
    plans: tuple[ScoredWorkflow, ...] = Field(min_length=1)
    """Different workflows, the cheapest first."""
    cards: tuple[Card, ...] = ()
    """The workers as the prompt of this question lists them; empty for those of the training's prompt."""

    @property
    def demonstration(self) -> int | None:
        """Index of the cheapest of the best plans, which are the right ones if any is; `None` if all scores are 0."""
        best = max(range(len(self.plans)), key=lambda index: self.plans[index].score)  # of equal ones the first
        return best if self.plans[best].score > 0 else None

    def score(self, workflow: Workflow | None) -> float | None:
        """Returns the score of a workflow; `None` if it is not among the plans."""
        return next((plan.score for plan in self.plans if plan.workflow == workflow), None)

    @property
    def has_contrast(self) -> bool:
        """Whether the plans differ in their scores, so that a choice among them can be learned."""
        return len({plan.score for plan in self.plans}) > 1


class TableSettings(Value):
    """The settings of a training on a table."""

    model: str = "embedded:smollm2-135m"
    """The model to train: `embedded:NAME`, a folder, or a name on the hub. One that has an adapter already, such as
    `embedded:conductor-135m`, is trained on from there: without supervised steps, and with the rank of that adapter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of computation; `bfloat16` is faster where the processor has instructions for it."""
    seed: int = Field(default=0, ge=0)
    """Seed of the adapter's initial weights and of the order of questions."""
    method: Method = "expectation"
    """The loss of the steps after the supervised ones."""
    supervised_steps: int = Field(default=60, ge=1)
    """Steps on the cheapest right plan of each question."""
    supervised_batch: int = Field(default=8, ge=1)
    """Questions per supervised step."""
    supervised_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the supervised steps."""
    steps: int = Field(default=30, ge=1)
    """Steps of the method."""
    batch: int = Field(default=6, ge=1)
    """Questions per step of the method."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of the method's steps."""
    group_size: int = Field(default=64, ge=2)
    """Plans sampled per question by `groups` and `raft`; they cost nothing, since their scores are in the table."""
    entropy: float = Field(default=0.01, ge=0)
    """Weight of the entropy of the policy over the plans of a question."""
    support: float = Field(default=0.2, ge=0)
    """Weight of the log of the probability that the plan is in the table at all."""
    replay: float = Field(default=0.25, ge=0, lt=1)
    """Share of the questions of a step that the model answers already, so that they are not forgotten. With 0, the
    supervised start is not evaluated on the training questions."""
    evaluate_every: int = Field(default=10, ge=1)
    """Steps between evaluations on the validation questions, and between checkpoints."""
    rank: int = Field(default=8, ge=1)
    """Rank of the LoRA adapter."""
    alpha: float = Field(default=16.0, gt=0)
    """Scale of the LoRA adapter; its weights count `alpha / rank` times."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that the adapter changes, as in peft."""

    @property
    def expected_seconds(self) -> float:
        """Expected seconds of the training, evaluations included; rough, for the default model on one core."""
        supervised = self.supervised_steps * self.supervised_batch * SUPERVISED_SECONDS
        return supervised + (self.steps * self.batch * METHOD_SECONDS if self.method != "supervised" else 0.0)


class TrainingItem(NamedTuple):
    """A question in the order of training."""

    position: int
    """Position of the question in the table."""
    is_supervised: bool
    """Whether it is trained on its cheapest right plan, not by the method."""


def supervised_order(questions: Sequence[TableQuestion], settings: TableSettings) -> list[TrainingItem]:
    """Returns the questions of the supervised steps: those with a right plan, in a new order in each epoch."""
    solvable = [index for index, question in enumerate(questions) if question.demonstration is not None]
    size = settings.supervised_steps * settings.supervised_batch
    return [TrainingItem(index, is_supervised=True) for index in _draw(solvable, size, f"{settings.seed} supervised")]


def method_order(
    questions: Sequence[TableQuestion], solved: Iterable[int], settings: TableSettings
) -> list[TrainingItem]:
    """Returns the questions of the method's steps; each step has the same share of questions that are solved already.

    Questions whose plans all have the same score are left out, because no choice among these can be learned.
    """
    solved = set(solved)
    contrasting = [index for index, question in enumerate(questions) if question.has_contrast]
    hard = [index for index in contrasting if index not in solved]
    easy = [index for index in contrasting if index in solved]
    replayed = round(settings.batch * settings.replay) if hard and easy else settings.batch if easy else 0
    new = settings.batch - replayed
    hard_stream = iter(_draw(hard, settings.steps * new, f"{settings.seed} hard"))
    easy_stream = iter(_draw(easy, settings.steps * replayed, f"{settings.seed} easy"))
    order: list[TrainingItem] = []
    for _ in range(settings.steps):
        indices = [*islice(hard_stream, new), *islice(easy_stream, replayed)]
        order += [TrainingItem(index, is_supervised=False) for index in indices]
    return order


def _draw(indices: Sequence[int], size: int, seed: str) -> list[int]:
    """Repeats `indices` in a new order each time until there are `size`."""
    rng = random.Random(seed)  # noqa: S311
    epochs = (rng.sample(indices, len(indices)) for _ in cycle((None,))) if indices else iter(())
    return list(islice((index for epoch in epochs for index in epoch), size))
