"""Callbacks as an async iterator: no item is lost, and no task outlives its consumer. Iterators with a timeout."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from core.runs import SOON
from rl_conductor._internal.streams import callback_to_async_iterator, until_silent, within

Tell = Callable[[Any], None]


class Unhurried:
    """Work that tells `a` and waits for ever; its clean-up takes a while too."""

    def __init__(self) -> None:
        self.ended = False

    async def __call__(self, tell: Tell) -> None:
        """Until it is cancelled."""
        tell("a")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            self.ended = True


async def drained(items: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in items]


async def test_items_are_yielded_in_order_even_none() -> None:
    async def work(tell: Tell) -> None:
        tell("a")
        await asyncio.sleep(0)
        tell(None)
        tell("b")

    assert await drained(callback_to_async_iterator(work)) == ["a", None, "b"]


async def test_each_item_is_yielded_immediately() -> None:
    read = asyncio.Event()

    async def work(tell: Tell) -> None:
        tell("a")
        await read.wait()
        tell("b")

    async with asyncio.timeout(SOON), aclosing(callback_to_async_iterator(work)) as items:
        assert await anext(items) == "a"
        read.set()
        assert await anext(items) == "b"


async def test_work_without_items_ends_the_iterator() -> None:
    async def work(_: Tell) -> None:
        await asyncio.sleep(0)

    assert await drained(callback_to_async_iterator(work)) == []


async def test_an_error_before_the_first_item_is_raised() -> None:
    async def work(_: Tell) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await drained(callback_to_async_iterator(work))


async def test_an_error_is_raised_after_the_items() -> None:
    async def work(tell: Tell) -> None:
        tell("a")
        tell("b")
        raise ZeroDivisionError

    items = callback_to_async_iterator(work)
    assert [await anext(items), await anext(items)] == ["a", "b"]
    with pytest.raises(ZeroDivisionError):
        await anext(items)


async def test_a_reader_who_leaves_early_cancels_the_work_and_waits_for_its_end() -> None:
    work = Unhurried()
    async with asyncio.timeout(SOON), aclosing(callback_to_async_iterator(work)) as items:
        assert await anext(items) == "a"
    assert work.ended


async def test_cancelling_the_reader_cancels_the_work_and_waits_for_its_end() -> None:
    work = Unhurried()
    reading = asyncio.create_task(drained(callback_to_async_iterator(work)))
    await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.wait([reading], timeout=SOON)
    assert reading.cancelled()
    assert work.ended


async def test_a_failure_that_nobody_stayed_for_is_not_complained_about() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def work(tell: Tell) -> None:
        tell("a")
        raise ZeroDivisionError

    async with aclosing(callback_to_async_iterator(work)) as items:
        await anext(items)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_nothing_begins_before_somebody_reads() -> None:
    begun = []

    async def work(_: Tell) -> None:
        begun.append(True)

    items = callback_to_async_iterator(work)
    await asyncio.sleep(0)
    await items.aclose()
    assert begun == []


async def test_work_runs_in_the_context_argument() -> None:
    seen: ContextVar[str] = ContextVar("seen", default="the reader's")

    async def work(tell: Tell) -> None:
        tell(seen.get())

    context = copy_context()
    context.run(seen.set, "another")
    assert await drained(callback_to_async_iterator(work, context=context)) == ["another"]
    assert await drained(callback_to_async_iterator(work)) == ["the reader's"]


# ---------------------------------------------------------------------------------------- timeouts


class Source:
    """Numbers, `gap` seconds apart; knows when it was closed."""

    def __init__(self, gap: float = 0.0) -> None:
        self.gap = gap
        self.closed = False

    async def numbers(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(5):
                await asyncio.sleep(self.gap)
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_items_within_the_limit_pass(limit: float | None) -> None:
    assert [item async for item in within(limit, Source().numbers())] == [0, 1, 2, 3, 4]


async def test_the_limit_counts_for_all_items_together() -> None:
    source, seen = Source(gap=0.4), []
    with pytest.raises(TimeoutError):  # noqa: PT012
        async for item in within(1.0, source.numbers()):
            seen.append(item)  # noqa: PERF401
    assert 1 <= len(seen) < 4
    assert source.closed


async def test_a_slow_reader_is_never_cancelled_itself() -> None:
    items = within(0.5, Source().numbers())
    assert await anext(items) == 0
    await asyncio.sleep(0.6)
    with pytest.raises(TimeoutError):
        await anext(items)


async def test_leaving_early_closes_the_source() -> None:
    source = Source()
    items = within(5, source.numbers())
    assert await anext(items) == 0
    await items.aclose()
    assert source.closed


# ----------------------------------------------------------------------------------------- silence


async def test_items_pass_until_there_is_none_for_some_seconds() -> None:
    ended = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with asyncio.timeout(SOON):
        assert await drained(until_silent(0.05, numbers())) == [1, 2]
    assert ended == [True]
    assert await drained(until_silent(SOON, Source().numbers())) == [0, 1, 2, 3, 4]


async def test_a_timeout_of_the_source_is_no_silence() -> None:
    async def late() -> AsyncGenerator[int, None]:
        yield 1
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await drained(until_silent(SOON, late()))
