"""What a system is: something that answers samples in an arena, and the settings that it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from rl_conductor.bench.arena import Arena
from rl_conductor.tasks import Sample
from rl_conductor.trace import Trace

PART = "Do the part of the task that you can do best, and give its result."
"""What a step before the last is told where plans are not written for the question."""


@dataclass(frozen=True)
class Reply:
    """What a system answered."""

    text: str
    """Empty when there is no answer."""
    traces: tuple[Trace, ...]
    """Every run that it took. Runs do not wait for each other."""
    choice: str = ""
    """What the system decided, in its own words."""

    @classmethod
    def of(cls, trace: Trace, choice: str = "") -> Reply:
        """The answer of a single run."""
        return cls(trace.text, (trace,), choice)


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to answer samples."""

    name: str
    about: str
    """What it does and whose idea it is, in a line."""
    identity: str
    """All that decides its answers beside pool, sample and seed."""
    answer: Callable[[Sample, int], Awaitable[Reply]]
    """The answer to a sample in one of its repetitions, from 0."""
    peeks: bool = False
    """Whether it knows the right answers: then it is a bound, not a competitor."""


class SystemEntry(BaseModel, ABC):
    """The settings of a system: `[systems.NAME]`. `kind` says which."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: tuple[str, ...] = ()
    """The pools that it runs over; none named means all."""

    @abstractmethod
    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system, or systems, once they have learned what they may.

        Raises:
            ConfigError: the settings do not fit the pool or the task.
        """

    @property
    def identity(self) -> str:
        """The settings, for telling one system's rows from another's."""
        return self.model_dump_json(exclude={"pools"})
