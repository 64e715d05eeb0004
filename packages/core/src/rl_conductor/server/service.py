"""What the routes share: who may ask, what is served, and what becomes of a request of any protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rl_conductor.server.intake import idempotency_key, read, unless_gone
from rl_conductor.server.keys import Keys
from rl_conductor.server.live import Live
from rl_conductor.server.metrics import Metrics
from rl_conductor.server.profiles import Catalogue, Served
from rl_conductor.server.runs import Runs
from rl_conductor.server.settings import Settings
from rl_conductor.server.streaming import EventStream, at_work, frames
from rl_conductor.server.telling import headers
from rl_conductor.server.terms import Asked, on_terms
from rl_conductor.server.wire import Api, Ask, Head
from rl_conductor.store import Store

log = logging.getLogger("rl_conductor.server")

HOUR, DAY = 3_600, 86_400


@dataclass(frozen=True)
class Service:
    """One server's parts."""

    settings: Settings
    catalogue: Catalogue
    store: Store
    keys: Keys
    runs: Runs
    metrics: Metrics
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as the server is told to stop: who only listens must leave."""

    @classmethod
    async def over(cls, catalogue: Catalogue, settings: Settings) -> Self:
        """A service that offers these models.

        Raises:
            ConfigError: its store can't be opened.
        """
        store = await Store.open(settings.store.url, lease=settings.store.lease_seconds)
        metrics = Metrics()
        return cls(settings, catalogue, store, Keys(settings, store), Runs(store, settings.intake, metrics), metrics)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Open while the block runs; at its end, runs in flight may come to theirs."""
        upkeep = asyncio.create_task(self._upkeep(), name="upkeep")
        try:
            yield
        finally:
            await self.runs.drain(self.settings.intake.drain_seconds)
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)
            await self.store.aclose()
            await self.catalogue.aclose()

    async def _upkeep(self) -> None:
        """Say that this process lives, learn what others spend, and forget what is old."""
        store = self.settings.store
        pruned = 0.0
        while True:
            try:
                await self.store.beat()
                for account in self.keys.accounts:
                    await account.refresh()
                if time.time() > pruned + HOUR:
                    pruned = time.time()
                    await self.store.prune(before=pruned - store.retain_days * DAY)
            except SQLAlchemyError as error:
                log.warning("the store is away: %s", type(error).__name__)
            await asyncio.sleep(store.lease_seconds / 5)

    async def answer(self, http: Request, api: Api) -> Response:
        """The reply to a request, whole or streamed.

        Raises:
            ConductorError: it is refused, or there is no answer.
            ClientDisconnect: nobody waits for it any more.
        """
        account = self.keys.account(http.headers)
        account.take_turn()
        intake = self.settings.intake
        ask = api.read(await read(http, most=intake.body_bytes, seconds=intake.client_seconds))
        served = self.catalogue.named(ask.model)
        account.check_model(served)
        wanted = on_terms(account, served, api.name, ask, name=idempotency_key(http))
        with ExitStack() as listening:
            return await unless_gone(http.receive, self._reply(api, served, ask, wanted, listening))

    async def _reply(
        self, api: Api, served: Served, ask: Ask, wanted: Sequence[Asked], listening: ExitStack
    ) -> Response:
        lives = []
        for asked in wanted:
            live = await self.runs.start(asked)
            listening.enter_context(live.heard())
            lives.append(live)
        head = Head(lives[0].id, int(lives[0].created), served.pinned, served.fingerprint)
        known = _headers(lives, ask)
        if ask.stream:
            await at_work(lives)
            made = frames(ask, api.stream(ask, head), lives)
            patience = self.settings.intake.client_seconds
            return EventStream(made, patience=patience, leave=listening.pop_all().close, headers=known)
        traces = await asyncio.gather(*(live.result() for live in lives))
        return JSONResponse(api.reply(ask, head, traces), headers=known | headers(traces))


def _headers(lives: Sequence[Live], ask: Ask) -> dict[str, str]:
    run = lives[0].id
    replayed = {"idempotent-replayed": "true"} if any(live.replayed for live in lives) else {}
    ignored = {"x-conductor-ignored": ", ".join(ask.ignored)} if ask.ignored else {}
    return {"x-request-id": run, "request-id": run, "x-conductor-run": run} | replayed | ignored
