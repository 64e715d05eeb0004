"""`Service`: the components of one server, and the path of a request through them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rl_conductor_server.api.adapter import ApiAdapter, HistoryContext
from rl_conductor_server.api.body import read_idempotency_key, read_json, run_until_disconnect, wants_cached
from rl_conductor_server.api.body_limits import BodyBudget, check_counts
from rl_conductor_server.api.headers import http_headers, response_header
from rl_conductor_server.api.results import Results
from rl_conductor_server.api.sse import EventStream, StreamLimit, encode_frames, wait_started
from rl_conductor_server.api.threads import run_by_size
from rl_conductor_server.api.tool_results import check_tool_results
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.auth.keys import REFRESH_SECONDS, ApiKey, ApiKeys
from rl_conductor_server.catalog import ModelCatalog, ServedModel
from rl_conductor_server.errors import invalid_request
from rl_conductor_server.experiments.canary import CanaryController
from rl_conductor_server.experiments.experiment import Experiments
from rl_conductor_server.experiments.shadow import ShadowRunners
from rl_conductor_server.logs import add_log_fields, log_failures
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.protocol import ParsedRequest
from rl_conductor_server.runs.admission import Admission
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.registry import RunRegistry
from rl_conductor_server.runs.request import AdmittedRequest, admit
from rl_conductor_server.runs.resources import RequestResources
from rl_conductor_server.settings import Settings, StoreEntry
from rl_conductor_server.shutdown import ShutdownEvent
from rl_conductor_server.store import Arm, Store, StoreUnreachableError

if TYPE_CHECKING:
    from rl_conductor_server.auth.oidc import OidcClient

log = logging.getLogger("rl_conductor_server")

HOUR, DAY = 3_600, 86_400
MAX_STORE_DELAY = 4.0
"""Maximum pause between two attempts to open the store, in seconds."""


@dataclass(frozen=True)
class CompletedRequest:
    """The response to a request without a client."""

    body: dict[str, Any]
    run: str
    """The id of the (first) run."""


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
    oidc: OidcClient | None = None

    @classmethod
    async def create(cls, catalog: ModelCatalog, settings: Settings) -> Self:
        """Creates a service that offers the models of `catalog` and the experiments of `settings`.

        Raises:
            ConfigError: the store can't be opened, or an experiment or a key names an unknown model.
        """
        experiments = Experiments(settings.routes, catalog)
        experiments.catalog.check_keys(settings.keys)
        metrics = Metrics()
        oidc = _create_oidc_client(settings)
        store = await open_store(settings.store, on_lost_write=metrics.count_lost_write)
        keys = ApiKeys(settings, store)
        await keys.refresh()
        for warning in experiments.catalog.price_warnings({key.name: key.entry for key in keys if key.entry}):
            log.warning(warning)
        shadows = ShadowRunners(experiments, store, metrics)
        admission = Admission(settings.intake.running, settings.intake.waiting, on_queue=metrics.set_queue_depth)
        return cls(
            settings=settings,
            experiments=experiments,
            store=store,
            keys=keys,
            runs=RunRegistry(store, admission, metrics, on_answer=shadows.offer),
            shadows=shadows,
            canaries=CanaryController(experiments, store, metrics),
            metrics=metrics,
            stopping=ShutdownEvent(settings.intake.drain_seconds),
            bodies=BodyBudget(settings.intake.total_body_bytes),
            streams=StreamLimit(settings.intake.streams),
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
        """Ends runs of servers that are gone, and reads the spending and canaries of other processes."""
        expired = await self.store.end_expired_runs(self.active_runs)
        if expired:
            log.warning("%d runs ended as failed, as the server that ran them is gone", len(expired))
            self.metrics.count_expired_runs(len(expired))
        for budget in self._budgets:
            await budget.refresh()
        await self.canaries.refresh()

    async def _sum_days(self) -> None:
        """Adds up the usage of days that have ended."""
        await self.store.spending.sum_days(now=self.store.now())

    async def _prune(self) -> None:
        await self.store.prune(before=self.store.now() - self.settings.store.retain_days * DAY)

    @property
    def _budgets(self) -> list[KeyBudget]:
        """The budgets of all keys and shadows."""
        return [*self.keys, *(shadow.budget for shadow in self.shadows.values())]

    @property
    def active_runs(self) -> list[str]:
        """The ids of all runs in progress in this process."""
        return [*self.runs.active_ids, *(run for shadow in self.shadows.values() for run in shadow.active_runs)]

    async def answer(self, http: Request, adapter: ApiAdapter) -> Response:
        """Answers a request, in one response or as a stream.

        Raises:
            ConductorError: the request is rejected, or there is no answer.
            ClientDisconnect: the client has disconnected.
        """
        key = self.keys.authenticate(http)
        add_log_fields(http, key=key.name)
        key.check_rate()
        with RequestResources() as resources:
            body = await self._read_body(http, key)
            resources.memory.enter_context(self.reserve_body(len(body), key.name))
            parsed = await self._parse(body, adapter)
            parsed = await self.add_history(adapter, parsed, key, read_idempotency_key(http), resources)
            return await self._answer(http, adapter, key, parsed, resources)

    async def read(self, http: Request, adapter: ApiAdapter, key: ApiKey) -> ParsedRequest:
        """Reads and parses a request that is answered without a run. Raises `ApiError`."""
        body = await self._read_body(http, key)
        with self.reserve_body(len(body), key.name):
            return await self._parse(body, adapter)

    async def _read_body(self, http: Request, key: ApiKey) -> bytes:
        """Reads a body. What has arrived is reserved, not what is announced: a client may never send it."""
        intake = self.settings.intake
        with self.reserve_body(0, key.name) as reserve:
            return await read_json(http, max_bytes=intake.body_bytes, seconds=intake.client_seconds, on_chunk=reserve)

    def reserve_body(self, size: int, key: str) -> AbstractContextManager[Callable[[int], None]]:
        """Reserves memory for a request of the key of this name, or of `ADMINISTRATOR`; see `BodyBudget.reserve`."""
        return self.bodies.reserve(size, key=key, is_shared=self.keys.are_several)

    async def _parse(self, body: bytes, adapter: ApiAdapter) -> ParsedRequest:
        """Parses a body; a long one in a thread, so that other requests are answered meanwhile."""
        intake = self.settings.intake

        def parse() -> ParsedRequest:
            check_counts(body, intake)
            return adapter.parse(body, strict=intake.strict)

        return await run_by_size(len(body), parse)

    async def complete(
        self, adapter: ApiAdapter, key: ApiKey, body: bytes, *, idempotency_key: str
    ) -> CompletedRequest:
        """Answers a request that no client waits for. If this is cancelled, so are its runs.

        Raises:
            ConductorError: the request is rejected, or there is no answer.
        """
        with RequestResources() as resources:
            resources.memory.enter_context(self.reserve_body(len(body), key.name))
            await key.wait_for_rate()
            admitted = await self._admit_item(adapter, key, body, idempotency_key, resources)
            runs = list[RunHandle]()
            try:
                for request in admitted:
                    runs.append(await self._start(adapter, request, resources))
                results = Results(await asyncio.gather(*(run.result() for run in runs)))
            except asyncio.CancelledError:
                tasks = [self.runs.cancel(run.id) for run in runs]
                await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
                raise
        response = adapter.response(admitted[0].parsed, response_header(runs, admitted[0].model), results)
        return CompletedRequest(response, runs[0].id)

    async def _admit_item(
        self, adapter: ApiAdapter, key: ApiKey, body: bytes, idempotency_key: str, resources: RequestResources
    ) -> list[AdmittedRequest]:
        parsed = await self._parse(body, adapter)
        for field, is_set in (("stream", parsed.stream), ("background", parsed.is_background)):
            if is_set:
                raise invalid_request(f"{field} can't be used in a batch; leave it out", param=field)
        parsed = await self.add_history(adapter, parsed, key, idempotency_key, resources)
        admitted = await self._admit(adapter, key, parsed, idempotency_key, reads_cache=False)
        if admitted[0].is_checked:
            raise invalid_request(
                "the guardrails of this model must check a request before it is stored, as that of a batch is; send it "
                "by itself",
                param="model",
            )
        return admitted

    async def add_history(
        self,
        adapter: ApiAdapter,
        parsed: ParsedRequest,
        key: ApiKey,
        idempotency_key: str | None,
        resources: RequestResources,
    ) -> ParsedRequest:
        """Adds the turns before a request; `resources` has them until the request ends. Raises `ApiError`."""

        def reserve(size: int) -> None:
            resources.memory.enter_context(self.reserve_body(size, key.name))

        intake, storage = self.settings.intake, self.settings.conversations
        context = HistoryContext(self.store, key.name, intake, storage, idempotency_key, reserve)
        parsed = await adapter.add_history(parsed, context)
        resources.turn.callback(adapter.end_turn, parsed, self.store)
        check_tool_results(parsed)
        return parsed

    async def _answer(
        self, http: Request, adapter: ApiAdapter, key: ApiKey, parsed: ParsedRequest, resources: RequestResources
    ) -> Response:
        admitted = await self._admit(adapter, key, parsed, read_idempotency_key(http), reads_cache=wants_cached(http))
        if parsed.is_background and admitted[0].is_checked:
            raise invalid_request(
                "background can't be combined with the guardrails of this model: the request may not be stored before "
                "they have checked it",
                param="background",
            )
        return await run_until_disconnect(http.receive, self._respond(adapter, admitted, resources))

    async def _admit(
        self, adapter: ApiAdapter, key: ApiKey, parsed: ParsedRequest, idempotency_key: str | None, *, reads_cache: bool
    ) -> list[AdmittedRequest]:
        """Selects the model, which the key must have access to, and the arm of an experiment."""
        model = key.find_model(self.catalog, parsed.model)
        arm = await self._select_arm(key, model, parsed, idempotency_key)
        model = self.experiments.select_model(arm, model)
        return admit(
            key,
            model,
            adapter.name,
            parsed,
            idempotency_key=idempotency_key,
            cache_seconds=key.cache_seconds,
            reads_cache=reads_cache,
        )

    async def _select_arm(
        self, key: ApiKey, model: ServedModel, parsed: ParsedRequest, idempotency_key: str | None
    ) -> Arm | None:
        """Selects the arm of an experiment; a repeated idempotency key stays with the arm of its first use."""
        experiment = self.experiments.get(model.name)
        if experiment is None:
            return None
        earlier = await self.store.find_arm(key.name, idempotency_key) if idempotency_key is not None else None
        return earlier or self.canaries.assign_arm(experiment, key.name, parsed)

    async def _start(self, adapter: ApiAdapter, request: AdmittedRequest, resources: RequestResources) -> RunHandle:
        run = await self.runs.start(request)
        adapter.record(request.parsed, run, self.store, key=request.key.name, is_checked=request.is_checked)
        resources.turn.pop_all()  # the run ends it
        if request.continues_alone and self.runs.executes(request):
            resources.keep_memory(run.task)
        return run

    async def _respond(
        self, adapter: ApiAdapter, admitted: Sequence[AdmittedRequest], resources: RequestResources
    ) -> Response:
        runs = []
        for request in admitted:
            run = await self._start(adapter, request, resources)
            resources.enter_context(run.subscribe())
            runs.append(run)
        parsed, model = admitted[0].parsed, admitted[0].model
        header = response_header(runs, model)
        headers = http_headers(runs, parsed, model.arm)
        if admitted[0].cache_digest is not None:
            headers["x-conductor-cache"] = "hit" if all(run.is_cached for run in runs) else "miss"
        is_new_background = parsed.is_background and not runs[0].is_replayed
        if is_new_background:  # whoever learns its id may ask any server for it
            await self.store.write_queue.flush()
        if parsed.stream:
            await wait_started(runs)
            frames = encode_frames(parsed, adapter.stream(parsed, header), runs)
            timeout = self.settings.intake.client_seconds
            return EventStream(frames, timeout=timeout, on_close=resources.pop_all().close, headers=headers)
        if is_new_background:
            await runs[0].check_admitted()
            return JSONResponse(adapter.response(parsed, header, Results(())), headers=headers)
        results = Results(await asyncio.gather(*(run.result() for run in runs)))
        return JSONResponse(adapter.response(parsed, header, results), headers=headers | results.headers)


def _create_oidc_client(settings: Settings) -> OidcClient | None:
    if settings.oidc is None:
        return None
    from rl_conductor_server.auth.oidc import OidcClient  # needs an extra  # noqa: PLC0415

    return OidcClient(settings.oidc)


async def open_store(entry: StoreEntry, *, on_lost_write: Callable[[], None] = lambda: None) -> Store:
    """Opens the store of the settings. Waits for a database that does not answer yet, such as one that starts, too.

    Raises:
        ConfigError: it can't be opened, or does not answer in time.
    """
    deadline, delay = time.monotonic() + entry.wait_seconds, 0.25
    options: dict[str, Any] = {"lease": entry.lease_seconds, "search_index": entry.search_index}
    while True:
        try:
            return await Store.open(entry.url, **options, on_lost_write=on_lost_write)
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
