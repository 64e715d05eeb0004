"""`Live`: a run on its way, told from its beginning to everybody who asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rl_conductor.trace.events import AnswerDelta, Event, Finished, PlanDelta, StepStarted
from rl_conductor.trace.trace import Trace
from rl_conductor_server.errors import ApiError

SIGNS = (StepStarted, PlanDelta, AnswerDelta)
"""Events that show that a run was not refused: a model is at work."""


class Live:
    """One run, and who listens to it."""

    def __init__(self, run: str, created: float, *, kept: bool = False) -> None:
        """A run that is `kept` goes on when nobody listens any more, because the caller can ask for it again."""
        self.id = run
        self.created = created
        self.answered_before = False
        """Whether nothing had to be run, because the answer was on record."""
        self._kept = kept
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[Trace] | None = None

    @classmethod
    def over(cls, run: str, created: float, trace: Trace) -> Self:
        """A run that is done: its answer is told at once."""
        made = cls(run, created, kept=True)
        made.answered_before = True
        made.tell(AnswerDelta(text=trace.text))
        made.tell(Finished(trace=trace))
        made.goes_on_in(asyncio.create_task(_give(trace)))
        return made

    def goes_on_in(self, task: asyncio.Task[Trace]) -> None:
        """Where it runs."""
        self._task = task
        task.add_done_callback(self._ended)

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        self._events.append(event)
        if isinstance(event, SIGNS):
            self._begun.set()
        self._wake()

    def _ended(self, task: asyncio.Task[Trace]) -> None:
        if not task.cancelled():
            task.exception()  # whoever still listens is told; nobody need be
        self._begun.set()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @property
    def task(self) -> asyncio.Task[Trace]:
        """The run itself."""
        assert self._task is not None
        return self._task

    @property
    def so_far(self) -> Sequence[Event]:
        """Everything that has happened."""
        return self._events

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen while the block runs; the last to leave ends a run that is not kept."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and not self._kept:
                self.task.cancel()

    async def begun(self) -> None:
        """Wait for the first sign of work, or the end."""
        await self._begun.wait()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything from the beginning. At the end, raises what the run raised."""
        seen = 0
        while True:
            news = self._news
            while seen < len(self._events):
                if isinstance(self._events[seen], Finished):
                    await asyncio.wait([self.task])  # what the caller may come back for is on record by then
                yield self._events[seen]
                seen += 1
            if self.task.done() and seen == len(self._events):
                await self.result()
                return
            if news is self._news:
                await news.wait()

    async def result(self) -> Trace:
        """The trace, once there is an answer.

        Raises:
            ConductorError: there is none.
        """
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise ApiError("the server is stopping", status=503, code="stopping", retry_after=5)
        return self.task.result()


async def _give(trace: Trace) -> Trace:
    return trace
