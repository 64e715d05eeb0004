"""Lets a worker pause the LangGraph graph that it runs in, or hand over to another node of it.

LangGraph does both with exceptions that must leave the node. The core treats every exception of a worker as a failure,
to be retried or given to another worker; so inside the core the exception is wrapped in a `WorkerInterrupt`, which the
core passes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import Runnable, ensure_config

from langchain_conductor.models.invocation import invoke
from rl_conductor.errors import ModelError, PausedError
from rl_conductor.integration import PauseSignal
from rl_conductor.types import Usage

SCRATCHPAD, RESUME_MAP = "__pregel_scratchpad", "__pregel_resume_map"
"""The keys of the values with which LangGraph was resumed: of the only interrupt, and of each by its id."""


class WorkerInterrupt(PauseSignal):
    """Carries `interrupt`, the exception with which a worker pauses or leaves the graph around it, through the core."""

    def __init__(self, interrupt: Exception) -> None:
        super().__init__(str(interrupt))
        self.interrupt = interrupt


class HandoffError(ModelError):
    """An agent hands over to a node where nothing can go there; a mistake in the program, so the run ends."""

    ends_run = True


class ResumeError(ModelError):
    """An agent failed on the value that a person resumed it with, so no other worker may take its place."""

    ends_run = True


_is_allowed: ContextVar[Callable[[Exception], bool] | None] = ContextVar("conductor_interrupts", default=None)


def interrupt_error(error: Exception, name: str) -> ModelError | None:
    """Returns the error for the runnable `name` if it interrupted or handed over where it can't."""
    errors = sys.modules.get("langgraph.errors")  # an extra; without it, nothing raises its exceptions
    if errors is None:
        return None
    if isinstance(error, errors.ParentCommand):
        return _handoff_error(error.args[0], name)
    return paused_error(name) if isinstance(error, errors.GraphInterrupt) else None


def _handoff_error(command: Any, name: str) -> HandoffError:
    targets = command.goto if isinstance(command.goto, list | tuple) else [command.goto]
    names = ", ".join(repr(getattr(target, "node", target)) for target in targets) or "the graph around it"
    message = f"{name} hands over to {names}, which a plan can't do; add create_conductor to the graph with that node"
    return HandoffError(message, model=name)


def paused_error(name: str, usage: Usage | None = None) -> PausedError:
    """Builds the error for the runnable `name` that paused, after it used `usage`, where it can't be resumed."""
    message = f"{name} paused with an interrupt, which can't be resumed here; use create_conductor in a graph with a "
    return PausedError(f"{message}checkpointer", model=name, usage=usage)


def is_resumed() -> bool:
    """Whether somebody resumed the graph around with a value, and no worker has read it yet."""
    if _is_allowed.get() is None:
        return False
    values = ensure_config()["configurable"]
    scratchpad = values.get(SCRATCHPAD)
    return bool(values.get(RESUME_MAP)) or (scratchpad is not None and scratchpad.get_null_resume(False) is not None)


def resume_error(error: ModelError, name: str) -> ResumeError:
    """Builds the error for the runnable `name` that failed with `error` after it was resumed."""
    expected = "what its interrupt asks for, for HumanInTheLoopMiddleware {'decisions': [{'type': 'approve'}]}"
    message = f"{error}, after it was resumed; if it does not accept the value, ask again in a new thread, because"
    return ResumeError(f"{message} LangGraph keeps the value, and resume it with {expected}", model=name)


@contextmanager
def allow_interrupts(is_allowed: Callable[[Exception], bool]) -> Iterator[None]:
    """Lets workers called in this block pause or leave the surrounding graph by exceptions that are allowed."""
    token = _is_allowed.set(is_allowed)
    try:
        with unwrap_interrupts():
            yield
    finally:
        _is_allowed.reset(token)


@contextmanager
def unwrap_interrupts() -> Iterator[None]:
    """Raises the exceptions with which workers called in this block pause or leave the graph."""
    try:
        yield
    except WorkerInterrupt as wrapper:
        raise wrapper.interrupt from None


async def invoke_interruptible(runnable: Runnable[Any, Any], value: Any, **options: Any) -> Any:
    """Calls `runnable` as `invoke` does, and wraps its interrupts inside a graph that can pause.

    Raises:
        WorkerInterrupt: `runnable` paused or left the graph.
    """
    is_allowed = _is_allowed.get()
    token = _is_allowed.set(None)  # models called by `runnable` itself are in its graph, not in the outer one
    try:
        return await invoke(runnable, value, **options)
    except Exception as error:
        if is_allowed is not None and is_allowed(error):
            raise WorkerInterrupt(error) from None
        raise
    finally:
        _is_allowed.reset(token)
