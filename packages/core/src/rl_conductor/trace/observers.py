"""The one hook for tracing, metrics and logs of one's own: who is told of every run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from rl_conductor.trace.events import Event, Listener


@dataclass(frozen=True)
class Begun:
    """What is known of a run when it begins."""

    id: str
    conductor: str
    """Its conductor's name."""
    planner: str
    """The Conductor's own model, as `provider:name`."""
    workers: Mapping[str, str]
    """The model of each worker."""
    elapsed: float = 0.0
    """Seconds since the run began: more than 0 when it goes on where it was cut short."""


Observer = Callable[[Begun], AbstractContextManager[Listener]]
"""Entered when a run begins and left when it is over; what it yields is told of every event, before the caller is.

Where a host starts the steps itself, it is entered for the plan, for each step and for the end, perhaps in several
processes.

All of that happens in the run's own context, but `StepStarted` comes in that of the task which then makes the call:
what a listener sets there holds for the call, so that a conductor in the pool, or a vendor's SDK, is seen in its step.
"""

_observers: list[Observer] = []


def observe(observer: Observer) -> Callable[[], None]:
    """Have `observer` told of every run that begins from now on, until what is returned is called."""
    _observers.append(observer)
    return lambda: _observers.remove(observer)


@contextmanager
def observed(begun: Begun, emit: Listener) -> Iterator[Listener]:
    """What a run tells its events to: all observers, then `emit`."""
    with ExitStack() as watching:
        told = [watching.enter_context(observer(begun)) for observer in _observers]

        def tell(event: Event) -> None:
            for one in told:
                one(event)
            emit(event)

        yield tell if told else emit
