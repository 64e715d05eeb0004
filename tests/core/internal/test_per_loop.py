"""One object for each event loop, none of a closed loop, and none from another process."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor

from rl_conductor._internal.per_loop import PerLoop


def test_each_loop_has_its_own_and_the_dead_are_forgotten() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    per_loop = PerLoop(make)

    async def twice() -> tuple[int, int, int]:
        return per_loop.get(), per_loop.get(), len(per_loop._by_loop)

    held = asyncio.new_event_loop()
    assert held.run_until_complete(twice()) == (0, 0, 1)
    assert asyncio.run(twice()) == (1, 1, 2)
    held.close()
    assert asyncio.run(twice()) == (2, 2, 1)


def test_many_loops_at_once_do_not_disturb_one_another() -> None:
    per_loop = PerLoop(object)

    async def get() -> object:
        return per_loop.get()

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: asyncio.run(get()), range(200)))
    assert len(set(map(id, made))) == 200


async def test_a_pickled_one_makes_its_own() -> None:
    per_loop = PerLoop(list[int])
    per_loop.get().append(1)
    assert pickle.loads(pickle.dumps(per_loop)).get() == []


async def test_what_is_dropped_is_made_anew() -> None:
    per_loop = PerLoop(object)
    first = per_loop.get()

    assert per_loop.drop() is first
    assert per_loop.drop() is None
    assert per_loop.get() is not first
