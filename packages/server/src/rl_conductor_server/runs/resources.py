"""`RequestResources`: memory, subscriptions and the turn of a request, until its response ends."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from rl_conductor.trace.trace import Trace


class RequestResources(ExitStack):
    """Room for the body and the history of a request, and subscriptions to its runs, until its response ends."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = self.enter_context(ExitStack())
        """Ends the request's turn in its conversation, unless a run has begun, which does so itself."""
        self.memory = self.enter_context(ExitStack())
        """The room for the body and the history."""

    def keep_memory(self, task: asyncio.Task[Trace]) -> None:
        """Keeps the memory until a run has ended, too, because it goes on without the client."""
        self.memory.callback(_close_after, task, self.memory.pop_all())


def _close_after(task: asyncio.Task[Trace], memory: ExitStack) -> None:
    task.add_done_callback(lambda _: memory.close())
