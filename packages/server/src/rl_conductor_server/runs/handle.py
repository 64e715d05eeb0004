"""`RunHandle`: a run in progress, with its events and result for any number of subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Self

from sqlalchemy import Connection

from rl_conductor.trace.events import AnswerDelta, Event, Finished, PlanDelta, StepStarted
from rl_conductor.trace.trace import Trace
from rl_conductor_server.errors import ApiError, shutting_down

START_EVENTS = (StepStarted, PlanDelta, AnswerDelta)
"""Events which show that a run was not rejected, because a model is working on it."""
CANCELLED = "cancelled"
"""The code of the error of a run that a client cancelled."""


class RunHandle:
    """One run and its subscribers."""

    def __init__(self, run: str, created: float, *, detached: bool = False) -> None:
        """A `detached` run continues without subscribers, because the caller can request its result again."""
        self.id = run
        self.created = created
        self.is_replayed = False
        """`True` if nothing was run, because the answer was in the store."""
        self.is_cached = False
        """`True` if the answer repeats that of an earlier run, from the response cache."""
        self.confirm: Callable[[], Awaitable[None]] | None = None
        """Waits until everything is stored that the next request needs, before a subscriber sees the end."""
        self.is_cancelled = False
        """`True` if a client asked to cancel it."""
        self.is_detached = detached
        self._answer_writers: list[Callable[[Trace], Callable[[Connection], object] | None]] = []
        self._observer: Callable[[Event], None] | None = None
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._started = asyncio.Event()
        self._subscribers = 0
        self._task: asyncio.Task[Trace] | None = None

    @classmethod
    def completed(cls, run: str, created: float, trace: Trace) -> Self:
        """Creates the handle of a run that has an answer, which is stored, or will be by the task that it is given."""
        handle = cls(run, created, detached=True)
        is_refusal = trace.completion is not None and trace.completion.is_refusal
        handle.publish(AnswerDelta(text=trace.text, is_refusal=is_refusal))
        handle.publish(Finished(trace=trace))
        return handle

    @classmethod
    def replayed(cls, run: str, created: float, trace: Trace) -> Self:
        """Creates the handle of a stored run."""
        handle = cls.completed(run, created, trace)
        handle.is_replayed = True
        handle.attach(asyncio.create_task(_return(trace)))
        return handle

    def attach(self, task: asyncio.Task[Trace]) -> None:
        """Sets the task that runs it."""
        self._task = task
        task.add_done_callback(self._on_done)

    def publish(self, event: Event) -> None:
        """Records an event and wakes the subscribers."""
        self._events.append(event)
        if self._observer is not None:
            self._observer(event)
        if isinstance(event, START_EVENTS):
            self._started.set()
        self._changed.set()

    @property
    def is_observed(self) -> bool:
        """`True` if there is an observer."""
        return self._observer is not None

    def observe(self, observer: Callable[[Event], None]) -> None:
        """Calls `observer` with all events, each before its consequences are stored."""
        assert self._observer is None
        for event in self._events:
            observer(event)
        self._observer = observer

    def store_with_answer(self, writer: Callable[[Trace], Callable[[Connection], object] | None]) -> None:
        """Executes the write that `writer` returns for the trace in the transaction that stores the answer, if any."""
        self._answer_writers.append(writer)

    def answer_writes(self, trace: Trace) -> Sequence[Callable[[Connection], object]]:
        """Returns the writes that belong to the transaction in which the answer is stored."""
        return [write for writer in self._answer_writers if (write := writer(trace)) is not None]

    def _on_done(self, task: asyncio.Task[Trace]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: there may be no subscriber left
        self._started.set()
        self._changed.set()

    @property
    def task(self) -> asyncio.Task[Trace]:
        """The task that runs it."""
        assert self._task is not None
        return self._task

    @property
    def events_so_far(self) -> Sequence[Event]:
        """All events until now."""
        return self._events

    @contextmanager
    def subscribe(self) -> Iterator[None]:
        """Subscribes for the duration of the block. The end of the last subscription cancels a run unless detached."""
        self._subscribers += 1
        try:
            yield
        finally:
            self._subscribers -= 1
            if not self._subscribers and not self.is_detached:
                self.task.cancel()

    async def wait_started(self) -> None:
        """Waits until a model works on it, or until it ends."""
        await self._started.wait()

    async def check_admitted(self) -> None:
        """Raises `ApiError` if the run has ended already because it was rejected."""
        if self.task.done() and (self.task.cancelled() or isinstance(self.task.exception(), ApiError)):
            await self.result()

    async def event_batches(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yields all events from the first one, those that came meanwhile together.

        At the end, raises the exception of the run if it failed.
        """
        position = 0
        while True:
            events = self._events[position:]
            position += len(events)
            for is_end, batch in groupby(events, lambda event: isinstance(event, Finished)):
                if is_end:
                    await self._wait_ended()  # the store must have the result before the caller sees the end
                yield list(batch)
            if events:
                continue
            if self.task.done():
                await self.result()
                return
            self._changed.clear()  # safe with several subscribers: each checks for new events before it waits
            await self._changed.wait()

    async def result(self) -> Trace:
        """Waits for the end of the run.

        Raises:
            ConductorError: the run has no answer.
        """
        await self._wait_ended()
        if self.task.cancelled() and self.is_cancelled:
            raise ApiError("the run was cancelled", status=409, code=CANCELLED)
        if self.task.cancelled():
            raise shutting_down()
        return self.task.result()

    async def _wait_ended(self) -> None:
        await asyncio.wait([self.task])
        if self.confirm is not None:
            await self.confirm()


async def _return(trace: Trace) -> Trace:
    return trace
