"""A host's models are awaited on one event loop, and called in threads on every other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import NoReturn

import pytest

from core.runs import SOON
from rl_conductor._internal.blocking import (
    call_async_or_sync,
    exclude_running_loop,
    in_thread,
    is_loop_error,
    iterate_in_thread,
    stream_async_or_sync,
)
from rl_conductor._internal.sync import run_sync

LOOPS = """
import asyncio, gc, threading
from rl_conductor._internal.blocking import can_await_clients, exclude_running_loop
from rl_conductor._internal.sync import run_sync

async def ask():
    return can_await_clients()

print("background", run_sync(ask()))
first = asyncio.new_event_loop()
print("first", first.run_until_complete(ask()), first.run_until_complete(ask()))
print("second", asyncio.run(ask()))
print("background", run_sync(ask()))

async def beside():
    return await asyncio.to_thread(lambda: asyncio.run(ask())), can_await_clients()

print("thread beside the first", first.run_until_complete(beside()))
first.run_until_complete(first.shutdown_default_executor())  # its thread would keep the loop a little longer
first.close()
print("first closed", asyncio.run(ask()))
del first
gc.collect()
print("first gone", asyncio.run(ask()))

async def excluded():
    exclude_running_loop()
    return can_await_clients()

gc.collect()
print("excluded", asyncio.run(excluded()))
"""


def test_one_event_loop_awaits_clients_until_nothing_holds_it_any_more() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOPS], check=False, capture_output=True, text=True)
    assert ended.stdout.splitlines() == [
        "background False",
        "first True True",
        "second False",
        "background False",
        "thread beside the first (False, True)",
        "first closed False",
        "first gone True",
        "excluded False",
    ], ended.stderr


# ----------------------------------------------------------------------------------------- threads

where: ContextVar[str] = ContextVar("where", default="nowhere")


async def awaited() -> str:
    return "awaited"


def blocking() -> str:
    return "blocking"


def unsupported() -> NoReturn:
    raise NotImplementedError


async def awaited_items() -> AsyncIterator[str]:
    yield "awaited"


async def collected(items: AsyncIterator[str]) -> list[str]:
    return [item async for item in items]


async def test_on_an_excluded_loop_the_sync_function_is_called() -> None:
    exclude_running_loop()
    assert await call_async_or_sync(awaited, blocking) == "blocking"
    assert await collected(stream_async_or_sync(awaited_items, lambda: ["blocking"])) == ["blocking"]


@pytest.mark.parametrize("kind", ["own loop", "background loop"])
def test_what_has_no_sync_function_is_awaited(kind: str) -> None:
    async def both() -> tuple[str, list[str]]:
        return await call_async_or_sync(awaited, unsupported), await collected(
            stream_async_or_sync(awaited_items, unsupported)
        )

    assert (asyncio.run if kind == "own loop" else run_sync)(both()) == ("awaited", ["awaited"])


def test_a_stream_that_has_begun_does_not_start_again() -> None:
    def breaks() -> Iterator[str]:
        yield "blocking"
        raise NotImplementedError("later")

    with pytest.raises(NotImplementedError, match="later"):
        run_sync(collected(stream_async_or_sync(awaited_items, breaks)))


async def test_a_thread_sees_the_context_and_does_not_block_the_loop() -> None:
    where.set("here")
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(SOON)
        return where.get()

    task = asyncio.create_task(in_thread(work))
    await begun.wait()
    go_on.set()
    assert await task == "here"


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt()])
async def test_what_a_thread_raises_is_raised_where_it_is_awaited(error: BaseException) -> None:
    def fail() -> NoReturn:
        raise error

    with pytest.raises(type(error)):
        await in_thread(fail)


async def test_an_exhausted_iterator_in_a_thread_is_an_error_and_no_hang() -> None:
    with pytest.raises(RuntimeError):
        await in_thread(lambda: next(iter(())))


async def test_cancelling_does_not_wait_for_the_thread() -> None:
    begun, go_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(SOON)
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(SOON)


async def test_closing_an_iteration_closes_the_generator_in_its_thread() -> None:
    go_on, closed = threading.Event(), threading.Event()

    def count() -> Iterator[int]:
        try:
            yield 1
            go_on.wait(SOON)
            while True:
                yield 2
        finally:
            closed.set()

    async with aclosing(iterate_in_thread(count)) as items:
        assert await anext(items) == 1
    go_on.set()
    assert await asyncio.to_thread(closed.wait, SOON)


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    go_on, thread_of_work = threading.Event(), list[threading.Thread]()

    def work() -> str:
        thread_of_work.append(threading.current_thread())
        go_on.wait(SOON)
        return "too late"

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_thread(work), 0.01)

    asyncio.run(give_up())
    go_on.set()
    for thread in thread_of_work:
        thread.join(SOON)


# ------------------------------------------------------------------------------------------ errors


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("Event loop is closed"), True),
        (RuntimeError("<asyncio.locks.Event object at 0x1> is bound to a different event loop"), True),
        (RuntimeError("Task got Future attached to a different loop"), True),
        (caused(OSError("Connection error."), RuntimeError("Event loop is closed")), True),
        (RuntimeError("no"), False),
        (ValueError("Event loop is closed"), False),
    ],
)
def test_errors_of_clients_that_are_bound_to_another_loop_are_recognized(error: Exception, is_one: bool) -> None:
    assert is_loop_error(error) is is_one
