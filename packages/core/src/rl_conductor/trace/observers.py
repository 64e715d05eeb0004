"""Observers of all runs in this process: the hook for tracing, metrics and logging."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from rl_conductor.trace.events import Event, Listener


@dataclass(frozen=True)
class RunInfo:
    """The metadata of a run at its start."""

    id: str
    """The run's id."""
    conductor: str
    """The conductor's name."""
    planner: str
    """The planner's model, as `provider:name`."""
    workers: Mapping[str, str]
    """The model of each worker."""
    elapsed: float = 0.0
    """Seconds since the run began: more than 0 when an interrupted run is resumed."""


Observer = Callable[[RunInfo], AbstractContextManager[Listener]]
"""A context manager entered when a run begins and left when it ends; it yields a listener for the run's events.

The listener is called before the caller's own. Where a host starts the steps itself, the observer is entered for the
plan, for each step and for the end, perhaps in several processes.

Events are emitted in the run's own context, except that `StepStarted` is emitted in the context of the task which then
makes the call: context variables that a listener sets there apply to the call, so that spans of a conductor in the pool
or of a vendor's SDK become children of the step's span.
"""

_observers: list[Observer] = []


def observe(observer: Observer) -> Callable[[], None]:
    """Registers `observer` for all runs that begin from now on, and returns a function that removes it."""
    _observers.append(observer)
    return lambda: _observers.remove(observer)


def observe_run(info: Callable[[], RunInfo], emit: Listener) -> AbstractContextManager[Listener]:
    """Enters all observers in a `with` block, for a listener that calls theirs and then `emit`."""
    return _observed(info, emit) if _observers else nullcontext(emit)


@contextmanager
def _observed(info: Callable[[], RunInfo], emit: Listener) -> Iterator[Listener]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(observer(info())) for observer in _observers]

        def notify(event: Event) -> None:
            for listener in listeners:
                listener(event)
            emit(event)

        yield notify
