"""The admission of runs when there are more than the server may run at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

from core.runs import SOON, Gated
from rl_conductor.types import Request
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.errors import ApiError
from rl_conductor_server.runs.run_queue import RunQueue
from rl_conductor_server.transport.key_share import KEY_SHARE
from server.chat_requests import BODY, gate, post
from server.conftest import Serve, until

KEYS = {name: {"sha256": hash_key(f"key-of-{name}")} for name in ("red", "blue")}
RED, BLUE = ({"authorization": f"Bearer key-of-{name}"} for name in KEYS)


class Runs:
    """Runs that hold a slot until they are told to end, and the order in which they began."""

    def __init__(self, running: int, waiting: int, *, shared: bool = False) -> None:
        self.shared = shared
        self.queue = RunQueue(running, waiting, is_shared=lambda: self.shared)
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Starts runs; the first letter of each is its key."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
            await self._settle()

    async def _run(self, name: str) -> None:
        async with self.queue.slot(name[0]):
            self.began.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await self.tasks[name]
            await self._settle()

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def runs(running: int, waiting: int, *, shared: bool = False) -> AsyncGenerator[Runs, None]:
    made = Runs(running, waiting, shared=shared)
    yield made
    for task in made.tasks.values():
        task.cancel()
    await asyncio.gather(*made.tasks.values(), return_exceptions=True)
    assert made.queue.waiting == 0


async def test_a_slot_that_is_freed_as_a_waiting_run_is_cancelled_goes_to_the_next_one() -> None:
    async with runs(running=1, waiting=3) as made:
        await made.start("r1", "b2", "b3")
        made.ends["r1"].set()
        made.tasks["b2"].cancel()
        await made.tasks["r1"]
        await asyncio.wait([made.tasks["b3"]], timeout=0.05)
        assert made.began == ["r1", "b3"]


async def test_runs_of_one_key_are_admitted_in_order_and_the_queue_is_bounded() -> None:
    async with runs(2, 2) as made:
        await made.start("a1", "a2", "a3", "a4")
        with pytest.raises(ApiError, match="2 runs are in progress and 2 are queued"):
            async with made.queue.slot("a"):
                pass
        await made.end("a2", "a1")
        assert made.began == ["a1", "a2", "a3", "a4"]


async def test_a_free_slot_goes_to_the_key_with_the_fewest_runs_in_progress() -> None:
    async with runs(3, 9) as made:
        await made.start("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1")
        await made.end("a1", "a2", "a3")
        assert made.began == ["a1", "a2", "a3", "b1", "c1", "a4"]


async def test_a_key_that_fills_the_queue_gives_up_its_newest_run_for_another_key() -> None:
    async with runs(1, 3) as made:
        await made.start("a1", "a2", "a3", "a4", "b1")
        with pytest.raises(ApiError, match="queued; try again later") as caught:
            await made.tasks["a4"]
        assert caught.value.retry_after is not None
        await made.start("b2")  # both keys would have as many
        with pytest.raises(ApiError):
            await made.tasks["b2"]
        await made.end("a1", "b1", "a2")
        assert made.began == ["a1", "b1", "a2", "a3"]


async def test_a_run_that_stops_waiting_leaves_neither_its_place_nor_its_slot_behind() -> None:
    async with runs(1, 9) as made:
        await made.start("a1", "a2", "a3")
        made.tasks["a2"].cancel()
        await made.end("a1")
        assert made.began == ["a1", "a3"]
        await made.start("a4")
        made.ends["a3"].set()
        while made.queue.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        made.tasks["a4"].cancel()  # after it was admitted, before it could run
        await asyncio.gather(made.tasks["a4"], return_exceptions=True)
        await made.start("a5")
        assert "a5" in made.began


async def test_a_key_gets_two_thirds_of_the_slots_if_there_are_others_and_its_runs_stay_in_order() -> None:
    async with runs(3, 99, shared=True) as made:
        await made.start(*(f"a{number}" for number in range(1, 8)), "b1", "b2")
        assert made.began == ["a1", "a2", "b1"]
        await made.end("b1", "b2", "a2", "a1")
        assert made.began == ["a1", "a2", "b1", "b2", "a3", "a4"]
        made.shared = False
        await made.end("a3")
        assert made.began[-2:] == ["a5", "a6"]


async def test_after_the_other_keys_were_revoked_a_new_run_does_not_overtake_those_in_the_queue() -> None:
    async with runs(3, 9, shared=True) as made:
        await made.start("a1", "a2", "a3", "a4")
        made.shared = False
        await made.start("a5")
        assert made.began == ["a1", "a2", "a3"]


async def test_a_shared_server_with_one_slot_gives_it_to_any_key() -> None:
    async with runs(1, 9, shared=True) as made:
        await made.start("a1", "a2")
        await made.end("a1", "a2")


async def test_the_turns_of_keys_are_forgotten_when_no_run_waits() -> None:
    async with runs(running=2, waiting=2) as made:
        await made.start("a1", "b1", "c1", "d1")
        await made.end("a1")
        assert set(made.queue._turns) == {"b", "c"}
        await made.end("b1")
        assert set(made.queue._turns) == {"d"}
        await made.end("c1", "d1")


async def test_a_key_with_many_long_requests_does_not_keep_out_another(serve: Serve) -> None:
    opened, wait = gate()

    async def wait_if_long(request: Request) -> None:
        if "long" in request.messages[-1].text:
            await wait(request)

    at = await serve({"a": Gated("done", wait_if_long)}, keys=KEYS)
    long = [{"role": "user", "content": "A long question."}]
    flood = [asyncio.create_task(post(at, RED, messages=long)) for _ in range(100)]
    await until(lambda: at.service.runs.waiting == 100 - int(at.service.settings.intake.running * KEY_SHARE))
    async with httpx.AsyncClient(base_url=at.url, headers=BLUE, timeout=SOON) as neighbour:
        assert (await neighbour.post("/v1/chat/completions", json=BODY)).status_code == 200
    assert not any(task.done() for task in flood)
    opened.set()
    assert {(await task).status_code for task in flood} == {200}


async def test_a_key_with_many_requests_gives_up_its_place_in_a_full_queue_for_another(serve: Serve) -> None:
    opened, wait = gate()
    at = await serve({"a": Gated("done", wait)}, keys=KEYS, intake={"running": 2, "waiting": 3})
    flood = [asyncio.create_task(post(at, RED)) for _ in range(8)]
    await until(lambda: sum(task.done() for task in flood) == 4)
    neighbours = [asyncio.create_task(post(at, BLUE)) for _ in range(2)]
    await until(lambda: sum(task.done() for task in flood) == 5)
    opened.set()
    assert [(await neighbour).status_code for neighbour in neighbours] == [200, 200]
    assert sorted([(await task).status_code for task in flood]) == [200] * 3 + [429] * 5
