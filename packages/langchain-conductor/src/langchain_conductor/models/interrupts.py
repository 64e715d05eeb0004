"""Lets a worker pause the LangGraph graph that it runs in.

LangGraph pauses a graph with an exception that must leave its top level. The core treats every exception of a worker as
a failure, to be retried or given to another worker; so inside the core the exception is wrapped in a `WorkerInterrupt`,
which the core passes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import Runnable

from langchain_conductor.models.invocation import invoke
from rl_conductor.errors import PausedError
from rl_conductor.integration import PauseSignal


class WorkerInterrupt(PauseSignal):
    """Carries `interrupt`, the exception with which a worker pauses the graph around it, through the core."""

    def __init__(self, interrupt: Exception) -> None:
        super().__init__(str(interrupt))
        self.interrupt = interrupt


_interrupt_type: ContextVar[type[Exception] | None] = ContextVar("conductor_interrupt_type", default=None)


def is_interrupt(error: Exception) -> bool:
    """Whether `error` pauses a LangGraph graph."""
    errors = sys.modules.get("langgraph.errors")  # an extra; without it, nothing raises its exceptions
    return errors is not None and isinstance(error, errors.GraphInterrupt)


def paused_error(name: str) -> PausedError:
    """Builds the error for the runnable `name` that paused where it can't be resumed."""
    message = f"{name} paused with an interrupt, which can't be resumed here; use create_conductor in a graph with a "
    return PausedError(f"{message}checkpointer", model=name)


@contextmanager
def allow_interrupts(interrupt_type: type[Exception]) -> Iterator[None]:
    """Lets workers called in this block pause the surrounding graph by raising `interrupt_type`."""
    token = _interrupt_type.set(interrupt_type)
    try:
        yield
    except WorkerInterrupt as wrapper:
        raise wrapper.interrupt from None
    finally:
        _interrupt_type.reset(token)


async def invoke_interruptible(runnable: Runnable[Any, Any], value: Any, **options: Any) -> Any:
    """Calls `runnable` as `invoke` does, and wraps its interrupts inside a graph that can pause.

    Raises:
        WorkerInterrupt: `runnable` paused the graph.
    """
    interrupt_type = _interrupt_type.get()
    if interrupt_type is None:
        return await invoke(runnable, value, **options)
    token = _interrupt_type.set(None)  # models called by `runnable` itself are in its graph, not in the outer one
    try:
        return await invoke(runnable, value, **options)
    except interrupt_type as interrupt:
        raise WorkerInterrupt(interrupt) from None
    finally:
        _interrupt_type.reset(token)
