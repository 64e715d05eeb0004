"""What a task is: samples in a fixed order, and a way to score a reply. Benchmark and training use the same.

Nothing here knows a data set, calls a model or reads a clock.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field

from rl_conductor.errors import ConfigError
from rl_conductor.types import Text, Value

Split = Literal["train", "validation", "heldout"]
SHARES: dict[Split, int] = {"train": 60, "validation": 20, "heldout": 20}
"""Percent of a data set that has no splits of its own."""


class Sample(Value):
    """A question and what is needed to score replies to it."""

    id: str
    """Unique within its task, and the same every time it is loaded."""
    question: Text
    answer: Text = ""
    """The right answer; empty where only a checker knows."""
    domain: str = ""
    """What kind of question it is, as in `Card.accuracy`."""
    depth: int | None = None
    """How many different things have to be done one after the other, where that is known."""
    contrast: str = ""
    """Samples with the same one are a contrast set (arXiv 2004.02709): nearly the same question, but not to be planned
    alike. Training asks them one after the other, over the same workers."""
    details: dict[str, Any] = Field(default_factory=dict)
    """What else its scorer needs, such as tests."""


class Score(Value):
    """How good a reply is, and why."""

    value: float = Field(ge=0, le=1)
    answer: Text | None
    """The answer as it was found in the reply; `None` when there was none."""
    explanation: Text

    @property
    def right(self) -> bool:
        """Whether it is wholly right."""
        return self.value == 1


Scorer = Callable[[Sample, str], Awaitable[Score]]


@dataclass(frozen=True)
class Task:
    """Samples in a fixed order, and how replies to them are scored."""

    name: str
    samples: tuple[Sample, ...]
    scorer: Scorer

    def __post_init__(self) -> None:
        if not self.samples:
            raise ConfigError(f"task {self.name!r} has no samples")
        twice = [name for name, count in Counter(sample.id for sample in self.samples).items() if count > 1]
        if twice:
            raise ConfigError(f"task {self.name!r} has several samples with the id {twice[0]!r}: give each its own")

    async def score(self, sample: Sample, text: str) -> Score:
        """How good the reply `text` to `sample` is."""
        return await self.scorer(sample, text)

    def shuffled(self, seed: int) -> Self:
        """The same samples in an order that `seed` alone decides."""
        samples = list(self.samples)
        random.Random(seed).shuffle(samples)  # noqa: S311
        return replace(self, samples=tuple(samples))

    def first(self, limit: int) -> Self:
        """The first `limit` samples."""
        return replace(self, samples=self.samples[:limit])

    def where(self, keep: Callable[[Sample], bool]) -> Self:
        """The samples that `keep` holds true for."""
        return replace(self, samples=tuple(filter(keep, self.samples)))


def split_of(name: str) -> Split:
    """The split that something of this name is in."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("the shares sum to less than 100")


def wrong(answer: str | None, explanation: str) -> Score:
    """A score of 0."""
    return Score(value=0.0, answer=answer, explanation=explanation)


def compared(*, right: bool, answer: str | None, expected: str) -> Score:
    """1 for a right answer; 0, and what was expected, for a wrong one or none."""
    if right:
        return Score(value=1.0, answer=answer, explanation=f"{answer!r} is right")
    found = "no answer was found" if answer is None else f"{answer!r} was found"
    return wrong(answer, f"{found}, but {expected!r} is right")


def mean(scores: Sequence[Score]) -> tuple[float, float]:
    """The mean value and its standard error (of a mean of independent samples).

    Raises:
        ConfigError: there are no scores, so there is no mean.
    """
    if not scores:
        raise ConfigError("there are no scores to take the mean of")
    values = [score.value for score in scores]
    average = sum(values) / len(values)
    variance = sum((value - average) ** 2 for value in values) / max(len(values) - 1, 1)
    return average, (variance / len(values)) ** 0.5
