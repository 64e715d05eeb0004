from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.runs import SOON, plan
from rl_conductor_server.store import Store
from server.conftest import until
from server.upstream import Vendor, process, settings_file, vendor

PLAN = plan((0, "Draft one.", []), (1, "Draft two.", []), (2, "Join them.", ["all"]))
BODY = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
NAMED = {"idempotency-key": "order-7"}


@pytest.fixture
async def upstream() -> AsyncGenerator[Vendor, None]:
    async with vendor(planner=PLAN, a="one", b="two", c="one and two") as made:
        yield made


async def post(url: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = BODY | {"model": "conductor-ultra", "conductor": {"limits": {"rounds": 1}}} | more
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def recorded(url: str, *, results: int) -> None:
    """Wait until the results of so many steps of the newest run are on record."""
    store = await Store.open(url)
    try:
        async with asyncio.timeout(SOON):
            run = (await store.list_runs())[0].id
            while sum(len(made.results) for made in await store.get_rounds(run)) < results:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await store.aclose()


async def test_a_killed_server_goes_on_where_it_was_and_pays_for_no_finished_step_again(
    upstream: Vendor, url: str, tmp_path: Path
) -> None:
    config = settings_file(tmp_path, upstream, url)
    upstream.held.add("c")
    async with process(config) as first:
        asking = asyncio.create_task(post(first.url, NAMED))
        await until(lambda: upstream.asked["c"] == 1)
        await recorded(url, results=2)
        await first.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asking
    upstream.held.clear()
    async with process(config) as second:
        reply = await post(second.url, NAMED)
        again = await post(second.url, NAMED, stream=True)
        other = await post(second.url, NAMED, seed=1)
    assert reply.json()["choices"][0]["message"]["content"] == "one and two"
    assert upstream.asked == {"planner": 1, "a": 1, "b": 1, "c": 2}
    assert again.headers["idempotent-replayed"] == "true"
    assert "one and two" in again.text
    assert again.headers["x-conductor-run"] == reply.headers["x-conductor-run"]
    assert other.status_code == 422
    calls = reply.json()["usage"]["conductor"]["total"]["calls"]
    assert calls == 4
    assert "secret-of-the-vendor" not in reply.text


async def test_a_restarted_server_neither_shows_nor_returns_the_reply_of_a_worker_that_is_denied_now(
    upstream: Vendor, tmp_path: Path
) -> None:
    config = settings_file(tmp_path, upstream, f"sqlite:///{tmp_path / 'runs.db'}")
    house = "\n[models.house]\nreleased = 2026-01-01\nlimits = { rounds = 1 }\n"
    config.write_text(config.read_text() + house)
    seen: list[str] = []

    def join(body: dict[str, Any]) -> str:
        seen.append(str(body))
        return "two alone"

    upstream.says |= {"a": "forbidden", "c": join}
    upstream.held.add("c")
    async with process(config) as first:
        asking = asyncio.create_task(post(first.url, NAMED, model="house", conductor={}))
        await until(lambda: upstream.asked["c"] == 1)
        await asyncio.sleep(0.3)
        await first.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asking
    upstream.held.clear()
    await until(lambda: len(seen) == 1)  # the vendor answers the process that is gone
    upstream.says["planner"] = plan((1, "Draft two.", []), (2, "Join them.", ["all"]))
    config.write_text(config.read_text() + 'policy = { deny = ["a"] }\n')
    async with process(config) as second:
        reply = await post(second.url, NAMED, model="house", conductor={"trace": "full"})
    assert reply.json()["choices"][0]["message"]["content"] == "two alone"
    assert len(seen) == 2
    assert "forbidden" not in seen[1]
    told = reply.json()["conductor"]["trace"]["rounds"][0]["plan"]["errors"]
    assert "'a': policy.deny names it" in str(told)
    assert upstream.asked["a"] == 1


async def test_another_process_over_the_same_store_takes_over_when_one_is_killed(
    upstream: Vendor, postgres: str, tmp_path: Path
) -> None:
    config = settings_file(tmp_path, upstream, postgres)
    upstream.held.add("c")
    async with process(config) as first, process(config) as second:
        asking = asyncio.create_task(post(first.url, {"idempotency-key": "order-8"}))
        await until(lambda: upstream.asked["c"] == 1)
        retry = asyncio.create_task(post(second.url, {"idempotency-key": "order-8"}))
        await recorded(postgres, results=2)
        await asyncio.sleep(2.5)  # longer than the lease: as long as the first lives, the second only waits
        assert upstream.asked["c"] == 1
        await first.end(signal.SIGKILL)
        upstream.held.clear()
        assert (await retry).json()["choices"][0]["message"]["content"] == "one and two"
        with pytest.raises(httpx.TransportError):
            await asking
    assert upstream.asked == {"planner": 1, "a": 1, "b": 1, "c": 2}


async def test_what_hangs_is_waited_for_once_not_by_each_who_waits(upstream: Vendor, tmp_path: Path) -> None:
    config = settings_file(tmp_path, upstream, f"sqlite:///{tmp_path / 'runs.db'}")
    config.write_text(config.read_text().replace("drain_seconds = 60", "drain_seconds = 8"))
    upstream.held.add("c")
    async with process(config) as only:
        asking = asyncio.create_task(post(only.url, NAMED))  # its run goes on even after its request was given up
        await until(lambda: upstream.asked["c"] == 1)
        began = time.monotonic()
        await only.end(signal.SIGTERM)
        assert 7.5 < time.monotonic() - began < 15
        reply = await asking
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "stopping"
        assert reply.headers["x-should-retry"] == "true"


async def test_a_stream_that_the_shutdown_ends_ends_with_an_error_and_the_log_has_no_traceback(
    upstream: Vendor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = settings_file(tmp_path, upstream, f"sqlite:///{tmp_path / 'runs.db'}")
    config.write_text(config.read_text().replace("drain_seconds = 60", "drain_seconds = 1"))
    upstream.held.add("c")
    async with process(config) as only:
        asking = asyncio.create_task(post(only.url, {}, stream=True))
        await until(lambda: upstream.asked["c"] == 1)
        await only.end(signal.SIGTERM)
        reply = await asking
        assert reply.status_code == 200
        assert '"code":"stopping"' in reply.text.replace(" ", "")
    log = capfd.readouterr().err
    assert "run ended" in log
    assert "Traceback" not in log


async def ask_until_refused(url: str) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(SOON):
        while True:
            await http.get(f"{url}/healthz")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
async def test_a_server_that_is_told_to_stop_or_whose_terminal_is_closed_answers_what_it_began(
    upstream: Vendor, tmp_path: Path, sign: signal.Signals
) -> None:
    config = settings_file(tmp_path, upstream, f"sqlite:///{tmp_path / 'runs.db'}")
    upstream.held.add("c")
    async with process(config) as only:
        asking = asyncio.create_task(post(only.url))
        await until(lambda: upstream.asked["c"] == 1)
        ending = asyncio.create_task(only.end(sign))
        with pytest.raises(httpx.TransportError):
            await ask_until_refused(only.url)
        upstream.held.clear()
        assert (await asking).json()["choices"][0]["message"]["content"] == "one and two"
        await asyncio.wait_for(ending, SOON)
