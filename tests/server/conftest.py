"""Real servers on the loopback interface, over scripted models, and the vendors' own clients to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
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
from postgres import postgres
from rl_conductor.config.discovery import DiscoveredPool
from rl_conductor.guardrails import Guardrail
from rl_conductor.models import Model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.listen import http_server, listening_socket
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings

__all__ = ["postgres"]

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


@asynccontextmanager
async def served(
    pool: WorkerPool, planner: Model, settings: Settings, guardrails: tuple[Guardrail, ...] = ()
) -> AsyncGenerator[At, None]:
    """A server over this pool."""
    found = DiscoveredPool(pool, Planner(model=planner), ("a test needs it",), guardrails=guardrails)
    service = await Service.create(build_catalog(found, settings.profiles), settings)
    with listening_socket(settings) as listener:
        url = "http://{}:{}".format(*listener.getsockname()[:2])
        server = http_server(service)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        async with AsyncExitStack() as clients:
            http = await clients.enter_async_context(httpx.AsyncClient(base_url=url, timeout=SOON))
            await until(lambda: server.started)
            yield At(url, service, http, clients, server)
        server.should_exit = True
        await running


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncGenerator[Serve, None]:
    """Starts servers: by default two workers, `a` and `b`, and a planner that lets `a` say it."""
    async with AsyncExitStack() as stack:

        async def start(
            pool: WorkerPool | dict[str, Any] | None = None,
            planner: Any = ONE_STEP,
            guards: tuple[Guardrail, ...] = (),
            **settings: Any,
        ) -> At:
            workers = {"a": "from a", "b": "from b"} if pool is None else pool
            made = (
                workers if isinstance(workers, WorkerPool) else WorkerPool({n: scripted(m) for n, m in workers.items()})
            )
            written = {"port": 0, "store": {"url": f"sqlite:///{tmp_path / 'runs.db'}"}, **settings}
            checked = Settings.model_validate(written)
            return await stack.enter_async_context(served(made, scripted(planner), checked, guards))

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


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens."""
    async with asyncio.timeout(SOON):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
