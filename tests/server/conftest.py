"""Real servers on the loopback interface, over scripted models, and the vendors' own clients to ask them."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from uvicorn import Server

from core.runs import SOON, plan
from memory_folder import memory_folder
from postgres import postgres, postgres_server
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.guardrails import Guardrail
from rl_conductor.models import Model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import Usage
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.process.listen import http_server, listening_socket
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import Store

__all__ = ["postgres", "postgres_server"]

ONE_STEP = plan((0, "Say it.", []))
TWO_STEPS = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


@dataclass
class At:
    """A server that runs, and how to ask it."""

    url: str
    service: Service
    http: httpx.AsyncClient
    clients: AsyncExitStack
    server: Server

    def openai(self, key: str = "none", **options: Any) -> AsyncOpenAI:
        """OpenAI's own client; it does not ask twice unless told to."""
        made = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0} | options)
        self.clients.push_async_callback(made.close)
        return made

    def anthropic(self, key: str = "none", **options: Any) -> AsyncAnthropic:
        """Anthropic's own client."""
        made = AsyncAnthropic(base_url=self.url, api_key=key, **{"max_retries": 0} | options)
        self.clients.push_async_callback(made.close)
        return made


Serve = Callable[..., Awaitable[At]]


def sent_events(reply: httpx.Response) -> list[Any]:
    """The events of a stream as they were sent, also those for which clients raise an exception."""
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


@asynccontextmanager
async def served(
    pool: WorkerPool, planner: Model, settings: Settings, guardrails: tuple[Guardrail, ...] = ()
) -> AsyncGenerator[At, None]:
    """A server over this pool."""
    found = DiscoveredPool(
        planner=Planner(model=planner), pool=pool, guardrails=guardrails, reasons=("a test needs it",)
    )
    service = await Service.create(build_catalog(found, settings.models), settings)
    with listening_socket(settings) as listener:
        url = "http://{}:{}".format(*listener.getsockname()[:2])
        async with AsyncExitStack() as clients, listening(http_server(service), listener) as server:
            http = await clients.enter_async_context(httpx.AsyncClient(base_url=url, timeout=SOON))
            yield At(url, service, http, clients, server)
            await clients.aclose()


@asynccontextmanager
async def listening(server: Server, listener: socket.socket) -> AsyncGenerator[Server, None]:
    """Runs a server while the block does.

    `Server.serve` would look only every 100 ms whether it should stop, and then wait for as long again.
    """
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    await server.on_tick(0)
    yield server
    for accepting in server.servers:
        accepting.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    await until(lambda: not server.server_state.connections)
    await server.lifespan.shutdown()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder, in memory if possible, because most of these tests commit to a database in it."""
    with memory_folder() as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that several servers may share."""
    return request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    """An empty store."""
    opened = await Store.open(url)
    yield opened
    await opened.aclose()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all tables and no run: copying it is faster than to create another."""
    path = tmp_path_factory.mktemp("store") / "runs.db"

    async def create() -> None:
        await (await Store.open(f"sqlite:///{path}")).aclose()

    asyncio.run(create())
    return path


@asynccontextmanager
async def serving(tmp_path: Path, empty_store: Path) -> AsyncGenerator[Serve, None]:
    """Starts servers that stop with the block: by default two workers, `a` and `b`; the planner lets `a` say it."""
    if not (tmp_path / "runs.db").exists():
        shutil.copy(empty_store, tmp_path / "runs.db")
    async with AsyncExitStack() as stack:

        async def start(
            pool: WorkerPool | dict[str, Any] | None = None,
            planner: Any = ONE_STEP,
            guardrails: tuple[Guardrail, ...] = (),
            **settings: Any,
        ) -> At:
            workers = {"a": "from a", "b": "from b"} if pool is None else pool
            made = (
                workers if isinstance(workers, WorkerPool) else WorkerPool({n: scripted(m) for n, m in workers.items()})
            )
            written = {"port": 0, "store": {"url": f"sqlite:///{tmp_path / 'runs.db'}"}, **settings}
            checked = Settings.model_validate(written)
            return await stack.enter_async_context(served(made, scripted(planner), checked, guardrails))

        yield start


@pytest.fixture
async def serve(tmp_path: Path, empty_store: Path) -> AsyncGenerator[Serve, None]:
    """Starts servers on the event loop of the test."""
    async with serving(tmp_path, empty_store) as start:
        yield start


def scripted(replies: Any) -> Model:
    """A model that says this, or the model itself."""
    return replies if isinstance(replies, Model) else ScriptedModel(replies)


async def hang_up(asking: Coroutine[Any, Any, Any], *, once: asyncio.Event) -> None:
    """Send a request, and close its connection once something happened."""
    task = asyncio.create_task(asking)
    await asyncio.wait_for(once.wait(), SOON)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def usage_of_key(store: Store, key: str, *, since: float = 0) -> Usage:
    """The usage of an API key since a time."""
    return (await store.spending.read_keys([key], start=since))[key].usage


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(SOON):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
