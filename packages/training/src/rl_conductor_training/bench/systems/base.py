"""`System` answers samples in a `BenchContext`; `SystemEntry` holds its settings and builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from rl_conductor.trace.trace import Trace
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.tasks import Sample

PART = "Do the part of the task that you can do best, and give its result."
"""Subtask of the steps before the last, in workflows that are not written for the question."""


@dataclass(frozen=True)
class Reply:
    """The reply of a system to one sample."""

    text: str
    """Empty when there is no answer."""
    traces: tuple[Trace, ...]
    """All runs that the reply took; they are independent of each other."""
    choice: str = ""
    """The system's decision for this sample, such as the chosen worker."""

    @classmethod
    def from_trace(cls, trace: Trace, choice: str = "") -> Reply:
        """Builds the reply of a single run."""
        return cls(trace.text, (trace,), choice)


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to answer samples, ready to run."""

    name: str
    description: str
    """One line on the method and its source."""
    identity: str
    """Everything that affects its answers besides pool, sample and seed."""
    answer: Callable[[Sample, int], Awaitable[Reply]]
    """Answers a sample; the second argument is the index of the repetition."""
    sees_answers: bool = False
    """Whether it uses the right answers, which makes it an upper bound instead of a competitor."""


class SystemEntry(BaseModel, ABC):
    """Settings of a system: the table `[systems.NAME]`; `kind` selects the subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: tuple[str, ...] = ()
    """Pools to run on; empty for all."""

    @abstractmethod
    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system or systems, after training them on the calibration task if necessary.

        Raises:
            ConfigError: the settings do not fit the pool or the task.
        """

    def learned_questions(self) -> frozenset[str]:
        """Returns the hashes of the questions from which the system learned before the bench, which leaves them out.

        Raises:
            ConfigError: there is no record of them.
        """
        return frozenset()

    @property
    def identity(self) -> str:
        """The settings as JSON, to tell the results of different systems apart."""
        return self.model_dump_json(exclude={"pools"})
