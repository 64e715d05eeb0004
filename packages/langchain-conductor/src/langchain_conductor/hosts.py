"""Runnables that work inside of a graph's node: they are called as the graph is, may pause it, and show in its streams.

LangGraph pauses a graph by an exception that must come out at its top. To the core every exception of a worker is a
failure, to be retried or given to another worker; so a pause crosses it as a `Paused`, which nothing there catches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable

from langchain_conductor.invoking import invoke
from rl_conductor.trace.events import Event
from rl_conductor.trace.summary import progress


@dataclass(frozen=True)
class Host:
    """The graph around a worker."""

    pauses: type[Exception]
    """What its pauses are raised as."""


class Paused(BaseException):
    """A worker waits for somebody; `signal` is what the graph expects to be raised."""

    def __init__(self, signal: Exception) -> None:
        super().__init__(str(signal))
        self.signal = signal


_host: ContextVar[Host | None] = ContextVar("conductor_host", default=None)


@contextmanager
def hosted(host: Host) -> Iterator[None]:
    """Call workers as `host` wants it, and let their pauses through to it."""
    token = _host.set(host)
    try:
        yield
    except Paused as paused:
        raise paused.signal from None
    finally:
        _host.reset(token)


async def called(runnable: Runnable[Any, Any], given: Any, *, async_only: bool) -> Any:
    """The output of `runnable` for `given`, by `invoke`.

    Raises:
        Paused: it waits for somebody, inside of a graph that can wait too.
    """
    host = _host.get()
    if host is None:
        return await invoke(runnable, given, async_only=async_only)
    token = _host.set(None)  # it is not the host of what `runnable` itself calls
    try:
        return await invoke(runnable, given, async_only=async_only)
    except host.pauses as signal:
        raise Paused(signal) from None
    finally:
        _host.reset(token)


def announcement(event: Event) -> dict[str, Any] | None:
    """What custom events and custom data tell of `event`; `None` for what is told in other ways, such as tokens."""
    told = progress(event)
    return None if told is None else told | {"type": f"conductor_{event.type}"}


def write_custom(data: dict[str, Any]) -> None:
    """Show `data` to whoever streams the graph around in the mode `custom`; nowhere, if there is no graph."""
    if "langgraph" not in sys.modules:
        return
    # Inside, because LangGraph is an extra and takes long to import: who works in a graph has done so already.
    from langgraph.config import get_stream_writer  # noqa: PLC0415

    try:
        write = get_stream_writer()
    except (KeyError, RuntimeError):  # so it says that no graph is around
        return
    write(data)
