"""Starts runs and keeps track of those in progress: one run for every idempotency key, all of them in the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from rl_conductor._internal.formatting import counted
from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Usage
from rl_conductor_server.errors import ApiError, shutting_down
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.request import AdmittedRequest
from rl_conductor_server.runs.run_queue import RunQueue
from rl_conductor_server.runs.task import RunTask
from rl_conductor_server.store import Claim, NewRun, Store, StoredAnswer

log = logging.getLogger("rl_conductor_server.runs")

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""Interval between checks of a run that another process runs; it grows by half each time."""
CLAIM_SECONDS = 5.0
"""Interval between attempts to claim such a run, which succeed if its process has died; they need the write lock."""


class RunRegistry:
    """All runs in progress in this process."""

    def __init__(
        self,
        store: Store,
        queue: RunQueue,
        metrics: Metrics,
        *,
        replays: RunQueue,
        on_answer: Callable[[AdmittedRequest, Trace], None],
    ) -> None:
        """Creates a registry without runs.

        Args:
            store: where runs and answers are stored.
            queue: limits the runs.
            metrics: counts the runs.
            replays: limits the stored answers that are read at once.
            on_answer: called at the end of each run with an answer; must not block.
        """
        self._store = store
        self._metrics = metrics
        self._queue = queue
        self._replays = replays
        self._on_answer = on_answer
        self._runs: dict[str, RunTask] = {}
        self._by_idempotency_key: dict[tuple[str, str, int], tuple[str, RunHandle]] = {}
        """Digest and handle, by API key, idempotency key and choice."""
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """The number of queued runs."""
        return self._queue.waiting

    @property
    def active_ids(self) -> Iterable[str]:
        """The ids of all runs in progress in this process."""
        return self._runs.keys()

    def get(self, run: str) -> RunHandle | None:
        """Returns the run with this id if it is in progress in this process."""
        task = self._runs.get(run)
        return None if task is None else task.handle

    def request_of(self, run: str) -> AdmittedRequest | None:
        """Returns the request of the run with this id if it is in progress in this process."""
        task = self._runs.get(run)
        return None if task is None else task.request

    def executes(self, request: AdmittedRequest) -> bool:
        """Returns `True` if a run is in progress for this very request, not for an earlier one that it repeats."""
        return any(task.request is request for task in self._runs.values())

    @property
    def reserved(self) -> Amount:
        """The amount that is reserved for calls in flight."""
        return sum((task.run_budget.reserved for task in self._runs.values()), NOTHING)

    @property
    def _tasks(self) -> list[asyncio.Task[Trace]]:
        return [run.handle.task for run in self._runs.values()]

    def cancel(self, run: str) -> asyncio.Task[Trace] | None:
        """Cancels a run that is in progress in this process, and returns its task; `None` if it isn't here."""
        handle = self.get(run)
        if handle is None:
            return None
        handle.is_cancelled = True
        handle.task.cancel()
        return handle.task

    async def start(
        self,
        request: AdmittedRequest,
        *,
        rounds: Sequence[Round] = (),
        reserve: Callable[[int], None] = lambda _: None,
    ) -> RunHandle:
        """Starts a run, or returns the run with the same idempotency key.

        Args:
            request: the requested answer.
            rounds: the completed rounds and steps of an earlier run, for a request without an idempotency key.
            reserve: reserves memory for a number of bytes, before that many are read of a run that has ended.

        Raises:
            ApiError: the idempotency key was used for another request, the server is shutting down, or too busy to
                read the run that has ended.
        """
        new = request.new_run(self._store.now())
        if request.idempotency_key is None:
            self.check_open()
            cached = None if rounds else await self._answer_from_cache(request, new)
            if cached is not None:
                return cached
            if request.parsed.is_background:  # the caller may ask any process for it, even while it waits for a slot
                self._store.begin_run(new)
                await self._store.write_queue.flush()
            return self._begin(request, Claim(id=new.id, created=new.created, outcome="new", rounds=tuple(rounds)), new)
        delay = MIN_POLL_SECONDS
        while True:
            self.check_open()
            active = self._find_active(request, request.idempotency_key)
            if active is not None:
                return active
            answer = await self._store.idempotency.find_replay(new)
            if answer is not None:
                if replayed := await self._replay(request, answer, reserve):
                    return replayed
                continue  # the answer was deleted meanwhile
            claim = await self._store.claim(new)
            if claim.outcome == "mismatch":
                raise _mismatch(request.idempotency_key)
            if claim.outcome in ("new", "resumed"):
                return self._begin(request, claim, new)
            if claim.outcome == "elsewhere":
                delay = await self._wait_elsewhere(claim.id, delay)

    async def _replay(
        self, request: AdmittedRequest, answer: StoredAnswer, reserve: Callable[[int], None]
    ) -> RunHandle | None:
        """Reads the answer to an earlier request, few of them at once; `None` if it is gone."""
        if answer.digest != request.digest:
            raise _mismatch(request.idempotency_key)
        key = request.key.name
        async with self._replays.slot(key):
            reserve(await self._store.measure_trace(answer.id, key=key))
            trace = await self._store.get_trace(answer.id, key=key)
        if trace is None:
            return None
        if request.shared_limits is not None:
            request.shared_limits.charge(Amount.of(trace.usage))
        return RunHandle.replayed(answer.id, answer.created, trace)

    async def _wait_elsewhere(self, run: str, delay: float) -> float:
        """Waits until a run of another process has ended, or it is time to claim it; returns the next delay.

        A run that another request has just begun here needs no waiting.
        """
        deadline = time.monotonic() + CLAIM_SECONDS
        while run not in self._runs and time.monotonic() < deadline:
            await asyncio.sleep(delay)
            delay = min(1.5 * delay, MAX_POLL_SECONDS)
            row = await self._store.get_run(run)
            if row is None or row.status != "running":
                break
        return delay

    async def _answer_from_cache(self, request: AdmittedRequest, new: NewRun) -> RunHandle | None:
        """Records a run with the answer of an earlier one, if the response cache has the answer."""
        if new.cache_digest is None or request.cache_seconds is None or not request.reads_cache:
            return None
        earlier = await self._store.cache.find(new, max_age=request.cache_seconds)
        if earlier is None:
            return None
        request.key.check_storage()
        saved, trace = earlier.usage.cost, _cached_trace(earlier, new)
        self._metrics.count_cache_hit(request.metrics_label, saved)
        handle = RunHandle.completed(new.id, new.created, trace)
        handle.is_cached = True

        async def store() -> Trace:
            self._store.begin_run(new.model_copy(update={"cached_from": earlier.id, "saved_usd": saved}))
            writes = handle.answer_writes(trace)
            self._store.finish_run(new.id, trace, "done", charged=NOTHING, answer_writes=writes, source=earlier.id)
            await self._store.write_queue.throttle()
            return trace

        handle.attach(asyncio.create_task(store(), name=new.id))
        return handle

    def check_open(self) -> None:
        """Raises `ApiError` if the server is shutting down."""
        if self._is_draining:
            raise shutting_down()

    def _find_active(self, request: AdmittedRequest, idempotency_key: str) -> RunHandle | None:
        digest, handle = self._by_idempotency_key.get((request.key.name, idempotency_key, request.choice), ("", None))
        if handle is not None and digest != request.digest:
            raise _mismatch(idempotency_key)
        return handle

    def _begin(self, request: AdmittedRequest, claim: Claim, new: NewRun) -> RunHandle:
        handle = RunHandle(claim.id, claim.created, detached=request.continues_alone)
        run = RunTask(request, handle, claim, new, self._store, self._metrics, self._on_answer)
        task = asyncio.create_task(run.run(self._queue), name=claim.id)
        handle.attach(task)
        self._runs[claim.id] = run
        task.add_done_callback(lambda _: self._runs.pop(claim.id))
        if request.idempotency_key is not None:
            index = (request.key.name, request.idempotency_key, request.choice)
            self._by_idempotency_key[index] = (request.digest, handle)
            task.add_done_callback(lambda _: self._by_idempotency_key.pop(index))
        return handle

    async def drain(self, seconds: float) -> None:
        """Rejects new runs, waits up to `seconds` for those in progress, and cancels the rest."""
        if self._tasks and not self._is_draining:
            log.info("stopping; %s in progress may take %.0f s more", counted(len(self._tasks), "run"), seconds)
        self._is_draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        if self._tasks:
            log.warning("%s cancelled after drain_seconds", counted(len(self._tasks), "run"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _cached_trace(trace: Trace, run: NewRun) -> Trace:
    """Returns the trace of an earlier run as that of `run`, in which nothing was called or paid."""
    assert trace.completion is not None
    return trace.model_copy(
        update={
            "id": run.id,
            "created": datetime.fromtimestamp(run.created, UTC),
            "rounds": tuple(round_.without_usage() for round_ in trace.rounds),
            "completion": trace.completion.model_copy(update={"usage": Usage()}),
            "seconds": 0.0,
        }
    )


def _mismatch(idempotency_key: str | None) -> ApiError:
    message = f"Idempotency-Key {idempotency_key!r} was used for another request; use a new one for this request"
    return ApiError(message, status=422, code="idempotency_mismatch")
