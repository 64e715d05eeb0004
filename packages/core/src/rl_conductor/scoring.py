"""Tasks: samples in a fixed order with a scorer, shared by benchmark and training.

Nothing here depends on a data set, calls a model or reads a clock.
"""

from __future__ import annotations

import hashlib
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from rl_conductor._internal.validation import field_errors
from rl_conductor.errors import ConductorError, ConfigError, ScriptError
from rl_conductor.types import Price, Text, Value

Split = Literal["train", "validation", "heldout"]
SHARES: dict[Split, int] = {"train": 60, "validation": 20, "heldout": 20}
"""Percentages of the splits of a data set without predefined splits."""


class Sample(Value):
    """A question with the data needed to score replies to it."""

    id: str
    """Unique within its task, and stable between loads."""
    question: Text
    """The text that a system is asked."""
    answer: Text = ""
    """The expected answer; empty when the scorer computes it."""
    domain: str = ""
    """The kind of question, as in `Card.accuracy`."""
    depth: int | None = None
    """The number of sequential steps that the question needs, if known."""
    contrast: str = ""
    """Id of the contrast set (arXiv 2004.02709): nearly the same question, which needs another plan. Training asks the
    samples of a set one after the other, with the same workers."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Other data for the scorer, such as tests."""


class Score(Value):
    """The score of a reply, with its explanation."""

    value: float = Field(ge=0, le=1)
    """From 0, wrong, to 1, right."""
    answer: Text | None = None
    """The answer extracted from the reply; `None` when there was none."""
    explanation: Text = ""
    """Why the reply got this score."""
    undecided: bool = False
    """`True` if a judge gave no clear verdict; `value` is 0 then."""

    @property
    def right(self) -> bool:
        """`True` if the score is 1."""
        return self.value == 1


Scorer = Callable[[Sample, str], Awaitable[Score]]


@dataclass(frozen=True)
class Task:
    """Samples in a fixed order, with the scorer of replies."""

    name: str
    """The task's name in reports."""
    samples: tuple[Sample, ...]
    """The questions."""
    scorer: Scorer | Callable[[Sample, str], Score]
    """Scores a reply to a sample."""
    judge_price: Price | None = None
    """The price of the model that the scorer asks; `None` if it is unknown or the scorer asks none."""

    def __post_init__(self) -> None:
        if not self.samples:
            raise ConfigError(f"task {self.name!r} has no samples")
        duplicates = [name for name, count in Counter(sample.id for sample in self.samples).items() if count > 1]
        if duplicates:
            raise ConfigError(
                f"task {self.name!r} has several samples with the id {duplicates[0]!r}: give each its own"
            )

    async def score(self, sample: Sample, text: str) -> Score:
        """Scores the reply `text` to `sample`.

        Raises:
            ConfigError: the scorer, which may be the user's own, raised an exception or returned no `Score`.
            ConductorError: the scorer raised it, such as a judge whose call failed.
        """
        try:
            score = self.scorer(sample, text)
            if isinstance(score, Awaitable):
                score = await score
        except (ConductorError, ScriptError):
            raise
        except Exception as error:
            raise self._scorer_error(sample, _describe_exception(error)) from error
        if not isinstance(score, Score):
            problem = f"it returned {type(score).__name__} instead of a Score; write Score(value=...), from 0 to 1"
            raise self._scorer_error(sample, problem)
        return score

    def _scorer_error(self, sample: Sample, problem: str) -> ConfigError:
        question = f"question {sample.id!r} ({sample.question!r:.80})"
        return ConfigError(f"the scorer of {self.name!r} failed on {question}: {problem}")

    def shuffled(self, seed: int) -> Self:
        """Returns a copy with the samples in an order determined by `seed`."""
        samples = list(self.samples)
        random.Random(seed).shuffle(samples)  # noqa: S311
        return replace(self, samples=tuple(samples))

    def first(self, limit: int) -> Self:
        """Returns a copy with the first `limit` samples."""
        return replace(self, samples=self.samples[:limit])

    def where(self, keep: Callable[[Sample], bool]) -> Self:
        """Returns a copy with the samples for which `keep` is true."""
        return replace(self, samples=tuple(filter(keep, self.samples)))


def _describe_exception(error: Exception) -> str:
    """Describes an exception of a scorer, with its innermost line in the scorer's own file."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is ours
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    text = "; ".join(map(str, field_errors(error))) if isinstance(error, ValidationError) else str(error)
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{where}"


def split_of(name: str) -> Split:
    """Assigns a name to a split by its hash."""
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 100
    for split, share in SHARES.items():
        if bucket < share:
            return split
        bucket -= share
    raise AssertionError("the shares sum to less than 100")


def wrong(answer: str | None, explanation: str, *, undecided: bool = False) -> Score:
    """Creates a score of 0."""
    return Score(value=0.0, answer=answer, explanation=explanation, undecided=undecided)


def compared(*, right: bool, answer: str | None, expected: str) -> Score:
    """Creates a score of 1 for a right answer; else of 0, with the expected answer in the explanation."""
    if right:
        return Score(value=1.0, answer=answer, explanation=f"{answer!r} is right")
    finding = "no answer was found" if answer is None else f"{answer!r} was found"
    return wrong(answer, f"{finding}, but {expected!r} is right")


def mean(scores: Sequence[Score]) -> tuple[float, float]:
    """Computes the mean value and its standard error for independent samples.

    Raises:
        ConfigError: there are no scores.
    """
    if not scores:
        raise ConfigError("there are no scores to take the mean of")
    values = [score.value for score in scores]
    average = sum(values) / len(values)
    variance = sum((value - average) ** 2 for value in values) / max(len(values) - 1, 1)
    return average, (variance / len(values)) ** 0.5
