"""The public `create_app`, and a server that waits for its database."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url

from core.runs import SOON
from rl_conductor import Conductor, ScriptedModel, WorkerPool
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool_file import GuardrailEntry
from rl_conductor_server.app import create_app
from rl_conductor_server.service import open_store
from rl_conductor_server.settings import Settings, StoreEntry
from server.conftest import ONE_STEP


def conductor(name: str) -> Conductor:
    return Conductor(ScriptedModel(ONE_STEP), WorkerPool({"a": ScriptedModel(f"from {name}")}), name=name)


async def test_conductors_made_in_python_are_served_by_their_names(tmp_path: Path) -> None:
    settings = Settings(store=StoreEntry(url=f"sqlite:///{tmp_path / 'runs.db'}"))
    app = create_app(conductor("one"), conductor("two"), settings=settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        for name in ("one", "two"):
            body = {"model": name, "messages": [{"role": "user", "content": "Say something."}]}
            reply = await http.post("/v1/chat/completions", json=body)
            assert reply.json()["choices"][0]["message"]["content"] == f"from {name}"
        foreign = await http.get("/v1/models", headers={"host": "example.com"})
        assert foreign.status_code == 400


async def test_guardrails_of_the_settings_are_those_of_all_conductors(tmp_path: Path) -> None:
    entry = GuardrailEntry.model_validate({"type": "presidio", "options": {"entities": ["EMAIL_ADDRESS"]}})
    settings = Settings(store=StoreEntry(url=f"sqlite:///{tmp_path / 'runs.db'}"), guardrails=(entry,))
    app = create_app(conductor("ann@example.com"), settings=settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        body = {"model": "ann@example.com", "messages": [{"role": "user", "content": "Say something."}]}
        reply = await http.post("/v1/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == "from <EMAIL_ADDRESS>"


def test_conductors_to_serve_need_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="two conductors are named 'one'"):
        create_app(conductor("one"), conductor("one"))
    with pytest.raises(ConfigError, match="no conductor"):
        create_app()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_the_server_waits_for_a_database_that_starts_later(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = make_url(postgres)
    socket_file = f"{address.query['host']}/.s.PGSQL.{address.port or 5432}"
    port = free_port()

    forwarding: list[asyncio.Task[None] | None] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.append(asyncio.current_task())
        upstream = await asyncio.open_unix_connection(socket_file)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    target.write(data)
            finally:
                target.close()

        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer), return_exceptions=True)

    url = f"postgres://{address.username or 'postgres'}@127.0.0.1:{port}/{address.database}"
    opening = asyncio.create_task(open_store(StoreEntry(url=url, wait_seconds=SOON)))
    async with asyncio.timeout(SOON):
        while "trying again" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with await asyncio.start_server(forward, "127.0.0.1", port):
            store = await opening
            await store.ping()
            await store.aclose()
    await asyncio.gather(*filter(None, forwarding), return_exceptions=True)


async def test_the_server_gives_up_on_a_database_that_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    entry = StoreEntry(url=f"postgres://conductor@127.0.0.1:{free_port()}/conductor", wait_seconds=1.5)
    with pytest.raises(ConfigError, match="can't open the store"):
        await open_store(entry)
    assert "trying again" in caplog.text
