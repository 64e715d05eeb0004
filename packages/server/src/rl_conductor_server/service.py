"""`Service`: the components of one server, and its background tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from starlette.requests import HTTPConnection

from rl_conductor._internal.formatting import counted
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.auth.keys import REFRESH_SECONDS, ApiKey, ApiKeys, check_names
from rl_conductor_server.catalog import ModelCatalog
from rl_conductor_server.experiments.canary import CanaryController
from rl_conductor_server.experiments.experiment import Experiments
from rl_conductor_server.experiments.shadow import ShadowRunners
from rl_conductor_server.logs import filter_run_log, log_failures
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.runs.registry import RunRegistry
from rl_conductor_server.runs.run_queue import RunQueue
from rl_conductor_server.settings import Settings, StoreEntry
from rl_conductor_server.shutdown import ShutdownEvent
from rl_conductor_server.store import Store, StoreUnreachableError
from rl_conductor_server.store.tables import DAY
from rl_conductor_server.transport.access_log import add_log_fields
from rl_conductor_server.transport.body import ReadingLimit
from rl_conductor_server.transport.body_budget import BodyBudget
from rl_conductor_server.transport.connection_limit import count_for_key
from rl_conductor_server.transport.streams import StreamLimit

if TYPE_CHECKING:
    from rl_conductor_server.auth.oidc import OidcClient

log = logging.getLogger("rl_conductor_server")

HOUR = 3_600
MAX_REPLAYS = 2
"""Maximum number of stored answers that are read at once; each keeps the processor of this process busy."""
MAX_FORMS = 20
"""Maximum number of forms of the pages that are read at once; the one to sign in needs no key."""
MAX_STORE_DELAY = 4.0
"""Maximum pause between two attempts to open the store, in seconds."""


@dataclass(frozen=True)
class Service:
    """The components of one server."""

    settings: Settings
    experiments: Experiments
    store: Store
    keys: ApiKeys
    runs: RunRegistry
    shadows: ShadowRunners
    canaries: CanaryController
    metrics: Metrics
    stopping: ShutdownEvent
    bodies: BodyBudget
    streams: StreamLimit
    forms: ReadingLimit
    oidc: OidcClient | None = None

    @classmethod
    async def create(cls, catalog: ModelCatalog, settings: Settings) -> Self:
        """Creates a service that offers the models of `catalog` and the experiments of `settings`.

        Raises:
            ConfigError: the store can't be opened, an experiment or a key names an unknown model, or a key has a
                reserved name.
        """
        filter_run_log()
        experiments = Experiments(settings.experiments, catalog)
        check_names(settings)
        experiments.catalog.check_keys(settings.keys)
        metrics = Metrics()
        oidc = _create_oidc_client(settings)
        store = await open_store(settings.store, on_lost_write=metrics.count_lost_write)
        keys = ApiKeys(settings, store)
        await keys.refresh()
        for warning in experiments.catalog.price_warnings({key.name: key.entry for key in keys if key.entry}):
            log.warning(warning)
        shadows = ShadowRunners(experiments, store, metrics)
        limit = partial(RunQueue, max_waiting=settings.intake.waiting, is_shared=lambda: keys.are_several)
        runs = RunRegistry(
            store,
            limit(settings.intake.running, on_queue=metrics.set_queue_depth),
            metrics,
            replays=limit(MAX_REPLAYS),
            on_answer=shadows.offer,
        )
        return cls(
            settings=settings,
            experiments=experiments,
            store=store,
            keys=keys,
            runs=runs,
            shadows=shadows,
            canaries=CanaryController(experiments, store, metrics),
            metrics=metrics,
            stopping=ShutdownEvent(settings.intake.drain_seconds),
            bodies=BodyBudget(settings.intake.total_body_bytes),
            streams=StreamLimit(settings.intake.streams),
            forms=ReadingLimit(MAX_FORMS),
            oidc=oidc,
        )

    @property
    def catalog(self) -> ModelCatalog:
        """All models, including those of experiments."""
        return self.experiments.catalog

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Runs background tasks for the duration of the block. At its end, drains the runs and closes the store."""
        await self.canaries.start()
        interval = self.settings.store.lease_seconds / 5
        background = [
            asyncio.create_task(_repeat(work, seconds), name=work.__name__)
            for work, seconds in (
                (self._heartbeat, interval),
                (self.keys.refresh, REFRESH_SECONDS),
                (self._cancel_requested, interval),
                (self._refresh, interval),
                (self._prune, HOUR),
                (self._sum_days, HOUR),
            )
        ]
        try:
            async with self.shadows.open():
                yield
        finally:
            self.stopping.set()
            await self.runs.drain(self.stopping.remaining_seconds)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            for budget in self._budgets:
                budget.close()
            await self.store.aclose()
            await self.experiments.aclose()

    async def _heartbeat(self) -> None:
        """Renews the leases of this process's runs; a task of its own, because `_refresh` may take longer."""
        self.update_gauges()
        await self.store.renew_leases(self.active_runs)

    def update_gauges(self) -> None:
        """Updates the metrics of amounts that change with every call and write."""
        self.metrics.set_reserved(self.runs.reserved)
        self.metrics.set_store_lag(self.store.write_queue.lag)

    async def _cancel_requested(self) -> None:
        """Cancels the runs in the background for which another process received the request to cancel them."""
        for run in await self.store.responses.list_cancelled(list(self.runs.active_ids)):
            self.runs.cancel(run)

    async def _refresh(self) -> None:
        """Ends runs of servers that are gone, returns unused shares of budgets, and reads the canaries of others."""
        expired = await self.store.end_expired_runs(self.active_runs)
        if expired:
            log.warning("%s of servers that are gone ended as failed", counted(len(expired), "run"))
            self.metrics.count_expired_runs(len(expired))
        for budget in self._budgets:
            budget.return_unused()
        await self.canaries.refresh()

    async def _sum_days(self) -> None:
        """Adds up the usage of days that have ended."""
        await self.store.spending.sum_days(now=self.store.now())

    async def _prune(self) -> None:
        await self.store.prune(before=self.store.now() - self.settings.store.retain_days * DAY)
        await self.store.erasure.merge_index()

    @property
    def _budgets(self) -> list[KeyBudget]:
        """The budgets of all keys and shadows."""
        return [*self.keys, *(shadow.budget for shadow in self.shadows.values())]

    @property
    def active_runs(self) -> list[str]:
        """The ids of all runs in progress in this process."""
        return [*self.runs.active_ids, *(run for shadow in self.shadows.values() for run in shadow.active_runs)]

    def authenticate(self, http: HTTPConnection) -> ApiKey:
        """Returns the API key of a request, and counts the request for it.

        Raises:
            ApiError: the request has no valid key, or too many of this key are in progress.
        """
        key = self.keys.authenticate(http)
        add_log_fields(http, key=key.name)
        count_for_key(http, key.name, is_shared=self.keys.are_several)
        return key

    @property
    def max_body_bytes(self) -> int:
        """The memory that the requests of one key may take together."""
        return self.bodies.key_limit(is_shared=self.keys.are_several)

    def reserve_body(self, size: int, key: str) -> AbstractContextManager[Callable[[int], None]]:
        """Reserves memory for a request of the key of this name, or of `ADMINISTRATOR`; see `BodyBudget.reserve`."""
        return self.bodies.reserve(size, key=key, is_shared=self.keys.are_several)


def _create_oidc_client(settings: Settings) -> OidcClient | None:
    if settings.oidc is None:
        return None
    from rl_conductor_server.auth.oidc import OidcClient  # needs an extra  # noqa: PLC0415

    return OidcClient(settings.oidc)


async def open_store(
    entry: StoreEntry, *, create: bool = True, on_lost_write: Callable[[], None] = lambda: None
) -> Store:
    """Opens the store of the settings. Waits for a database that does not answer yet, such as one that starts, too.

    Raises:
        StoreMissingError: there is no store, and `create` is false.
        ConfigError: it can't be opened, or does not answer in time.
    """
    deadline = time.monotonic() + entry.wait_seconds
    delay = 0.25
    while True:
        try:
            return await Store.open(
                entry.url,
                lease=entry.lease_seconds,
                search_index=entry.search_index,
                create=create,
                on_lost_write=on_lost_write,
            )
        except StoreUnreachableError as error:
            if time.monotonic() + delay > deadline:
                raise
            log.warning("%s; trying again in %g s", error, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_STORE_DELAY)


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Calls `work` for ever, with a pause of `seconds` after each call."""
    while True:
        with log_failures("upkeep"):
            await work()
        await asyncio.sleep(seconds)
