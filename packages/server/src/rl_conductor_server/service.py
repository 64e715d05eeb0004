"""What the routes share: who may ask, what is served, and what becomes of a request of any protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rl_conductor_server.api.body import idempotency_key, read, unless_gone
from rl_conductor_server.api.metadata import headers
from rl_conductor_server.api.sse import EventStream, at_work, frames
from rl_conductor_server.auth.keys import Account, Keys
from rl_conductor_server.catalog import Catalogue, Served
from rl_conductor_server.experiments.canary import Canaries
from rl_conductor_server.experiments.experiment import Routes
from rl_conductor_server.experiments.shadow import Shadows
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.protocol import Api, Ask, Head
from rl_conductor_server.runs.admission import Admission
from rl_conductor_server.runs.handle import Live
from rl_conductor_server.runs.manager import Runs
from rl_conductor_server.runs.request import Asked, on_terms
from rl_conductor_server.settings import Settings
from rl_conductor_server.shutdown import Stopping
from rl_conductor_server.store import Side, Store, StoreAwayError

log = logging.getLogger("rl_conductor_server")

HOUR, DAY = 3_600, 86_400


@dataclass(frozen=True)
class Service:
    """One server's parts."""

    settings: Settings
    routes: Routes
    store: Store
    keys: Keys
    runs: Runs
    shadows: Shadows
    canaries: Canaries
    metrics: Metrics
    stopping: Stopping

    @classmethod
    async def over(cls, catalogue: Catalogue, settings: Settings) -> Self:
        """A service that offers these models, and the routes of the settings.

        Raises:
            ConfigError: its store can't be opened, or a route leads nowhere.
        """
        routes = Routes(settings.routes, catalogue)
        metrics = Metrics()
        lease = settings.store.lease_seconds
        store = await Store.open(settings.store.url, lease=lease, on_lost_write=metrics.write_lost)
        shadows = Shadows(routes, store, metrics)
        admission = Admission(settings.intake.running, settings.intake.waiting)
        return cls(
            settings=settings,
            routes=routes,
            store=store,
            keys=Keys(settings, store),
            runs=Runs(store, admission, metrics, on_answer=shadows.offer),
            shadows=shadows,
            canaries=Canaries(routes, store, metrics),
            metrics=metrics,
            stopping=Stopping(settings.intake.drain_seconds),
        )

    @property
    def catalogue(self) -> Catalogue:
        """Every model by its name."""
        return self.routes.catalogue

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Open while the block runs; at its end, runs in flight may come to theirs."""
        await self.canaries.begin()
        often = self.settings.store.lease_seconds / 5
        background = [
            asyncio.create_task(_regularly(work, seconds), name=work.__name__)
            for work, seconds in ((self._beat, often), (self._keep_up, often), (self._prune, HOUR))
        ]
        try:
            async with self.shadows.open():
                yield
        finally:
            self.stopping.set()
            await self.runs.drain(self.stopping.left)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.store.aclose()
            await self.routes.aclose()

    async def _beat(self) -> None:
        """Say that this process lives, with nothing before it that may take long."""
        await self.store.beat(self.living)

    async def _keep_up(self) -> None:
        """End runs that other servers left behind, and learn what others spend."""
        expired = await self.store.expire(self.living)
        if expired:
            log.warning("%d runs ended as failed, as the server that ran them is gone", len(expired))
            self.metrics.expired(len(expired))
        for purse in (*self.keys.accounts, *(shadow.purse for shadow in self.shadows.values())):
            await purse.refresh()
        await self.canaries.refresh()

    async def _prune(self) -> None:
        """Forget what is old."""
        await self.store.prune(before=time.time() - self.settings.store.retain_days * DAY)

    @property
    def living(self) -> list[str]:
        """The ids of all runs under way in this process."""
        return [*self.runs.living, *(run for shadow in self.shadows.values() for run in shadow.living)]

    async def answer(self, http: Request, api: Api) -> Response:
        """The reply to a request, whole or streamed.

        Raises:
            ConductorError: it is refused, or there is no answer.
            ClientDisconnect: nobody waits for it any more.
        """
        account = self.keys.account(http)
        account.take_turn()
        intake = self.settings.intake
        ask = api.read(await read(http, most=intake.body_bytes, seconds=intake.client_seconds))
        served, name = self.catalogue.named(ask.model), idempotency_key(http)
        account.check_model(served)
        side = await self._side(account, served, ask, name)
        wanted = on_terms(account, self.routes.on(side, served), api.name, ask, name=name)
        with ExitStack() as listening:
            return await unless_gone(http.receive, self._reply(api, ask, wanted, listening))

    async def _side(self, account: Account, served: Served, ask: Ask, name: str | None) -> Side | None:
        """Who answers where a route was asked; what was begun under a name is ended by whoever began it."""
        route = self.routes.get(served.name)
        if route is None:
            return None
        begun = await self.store.side(account.name, name) if name is not None else None
        return begun or self.canaries.side(route, account.name, ask)

    async def _reply(self, api: Api, ask: Ask, wanted: Sequence[Asked], listening: ExitStack) -> Response:
        lives = []
        for asked in wanted:
            live = await self.runs.start(asked)
            listening.enter_context(live.heard())
            lives.append(live)
        served = wanted[0].served
        head = Head(lives[0].id, int(lives[0].created), served.pinned, served.fingerprint)
        known = _headers(lives, ask, served.side)
        if ask.stream:
            await at_work(lives)
            made = frames(ask, api.stream(ask, head), lives)
            patience = self.settings.intake.client_seconds
            return EventStream(made, patience=patience, leave=listening.pop_all().close, headers=known)
        traces = await asyncio.gather(*(live.result() for live in lives))
        return JSONResponse(api.reply(ask, head, traces), headers=known | headers(traces))


async def _regularly(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do this again and again, with so many seconds in between."""
    while True:
        try:
            await work()
        except (SQLAlchemyError, StoreAwayError) as error:
            log.warning("the store is away: %s", type(error).__name__)
        except Exception:  # the next time may be better; without it other servers would take over the runs of this one
            log.exception("upkeep failed")
        await asyncio.sleep(seconds)


def _headers(lives: Sequence[Live], ask: Ask, side: Side | None) -> dict[str, str]:
    run = lives[0].id
    before = {"idempotent-replayed": "true"} if any(live.answered_before for live in lives) else {}
    ignored = {"x-conductor-ignored": ", ".join(ask.ignored)} if ask.ignored else {}
    answered = {"x-conductor-side": side} if side else {}
    return {"x-request-id": run, "request-id": run, "x-conductor-run": run} | before | ignored | answered
