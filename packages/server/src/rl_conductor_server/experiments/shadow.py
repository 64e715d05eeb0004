"""Shadows: after a user has the answer, the route's other side is asked the same, and the two are compared.

It happens behind a queue of its own, on an account of its own, and never reaches the user: a full queue, a used-up
budget or a judge who talks nonsense leaves a pair out, and is counted. When the server stops, what is unfinished ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, Request
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.auth.budgets import Purse
from rl_conductor_server.catalog import Served
from rl_conductor_server.errors import ApiError
from rl_conductor_server.experiments.experiment import Route
from rl_conductor_server.experiments.judge import Answers, UnclearError, judged
from rl_conductor_server.extension import Extension
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.protocol import Ask
from rl_conductor_server.runs.admission import Admission
from rl_conductor_server.runs.manager import Runs
from rl_conductor_server.runs.request import JUDGE, SHADOW, Asked, on_terms
from rl_conductor_server.settings import ShadowEntry
from rl_conductor_server.store import Pair, Side, Store
from rl_conductor_server.store.models import BESIDE

log = logging.getLogger("rl_conductor_server")

RUNS_A_PAIR = 2
"""Most of a pair's runs that are under way together: those of the judge, who reads both orders."""
WAITING = 64
"""Answers of a route that wait for their shadow; what comes beside is left out."""
OF = "shadow_of"
"""The label of a run beside another: that one's id."""


@dataclass(frozen=True)
class UserAnswer:
    """What a user got."""

    asked: Asked
    trace: Trace


class Shadow:
    """What runs beside the answers of one route."""

    def __init__(self, route: Route, entry: ShadowEntry, store: Store, metrics: Metrics) -> None:
        self.purse = Purse(f"shadow:{route.name}", entry, store)
        self._route = route
        self._entry = entry
        self._store = store
        self._metrics = metrics
        self._runs = Runs(store, Admission(entry.concurrency * RUNS_A_PAIR, 0), metrics, on_answer=_ignore)
        self._queue: asyncio.Queue[UserAnswer] = asyncio.Queue(WAITING)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Compare while the block runs; what is unfinished then ends at once."""
        # They are not started by the runs that they follow, whose budget they would inherit.
        workers = [asyncio.create_task(self._work(), name="shadow") for _ in range(self._entry.concurrency)]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self._runs.drain(0)

    @property
    def living(self) -> Iterable[str]:
        """The ids of its runs under way."""
        return self._runs.living

    def offer(self, answer: UserAnswer) -> None:
        """Have an answer compared, if it is drawn and there is room; returns at once."""
        if drawn(answer.trace.id) >= self._entry.share:
            return
        try:
            self._queue.put_nowait(answer)
        except asyncio.QueueFull:
            self._metrics.compared(self._route.name, "busy")

    async def _work(self) -> None:
        while True:
            outcome = await self._outcome(await self._queue.get())
            self._metrics.compared(self._route.name, outcome)

    async def _outcome(self, answer: UserAnswer) -> str:
        """What became of it: a verdict, or why there is none."""
        try:
            return (await self._compared(answer)).verdict
        except UnclearError as unclear:
            log.warning("no verdict on %s: %s", answer.trace.id, unclear)
            return "unclear"
        except ConductorError as error:
            if isinstance(error, ApiError) and error.code == "insufficient_quota":
                return "budget"
            log.warning("no shadow of %s: %s", answer.trace.id, error)
            return "refused"
        except Exception:  # the worker must live on for what comes next
            log.exception("no shadow of %s", answer.trace.id)
            return "error"

    async def _compared(self, answer: UserAnswer) -> Pair:
        route, asked = self._route, answer.asked
        side: Side = "conductor" if asked.served.side == "incumbent" else "incumbent"
        ask = asked.ask.model_copy(update={"choices": 1, "labels": {OF: answer.trace.id}})
        shadow = await self._run(route.sides[side], SHADOW, ask)
        traces = {asked.served.side: answer.trace, side: shadow}
        theirs, ours = traces["incumbent"], traces["conductor"]
        both = Answers(asked.ask.request, incumbent=_said(theirs), conductor=_said(ours))
        judgement = await judged(both, judge=self._judge(answer) if route.judge else None, scorer=route.scorer)
        pair = Pair(
            run=answer.trace.id,
            shadow=shadow.id,
            route=route.pinned,
            created=time.time(),
            answered=asked.served.side or "incumbent",
            verdict=judgement.verdict,
            reason=judgement.reason if asked.ask.keep else "",
            incumbent_cost=_cost(theirs),
            incumbent_seconds=theirs.seconds,
            conductor_cost=_cost(ours),
            conductor_seconds=ours.seconds,
        )
        self._store.trials.add(pair)
        return pair

    def _judge(self, answer: UserAnswer) -> Callable[[Request], Awaitable[str]]:
        """Asks the route's judge, who sees data only of a class that it may see."""
        judge, asked = self._route.judge, answer.asked
        assert judge is not None
        seen = Policy(data_class=asked.policy.data_class, data_rules=asked.policy.data_rules)
        held = judge.conductor.capabilities.json_schema

        async def opinion(request: Request) -> str:
            request = request if held else request.model_copy(update={"response_format": None})
            ask = Ask(
                model=judge.pinned,
                request=request,
                extension=Extension(policy=seen),
                labels={OF: answer.trace.id},
                keep=asked.ask.keep,
            )
            said = await self._run(judge, JUDGE, ask)
            if said.completion is None:
                raise UnclearError(f"the judge gave no answer: {said.error}")
            return said.text

        return opinion

    async def _run(self, served: Served, api: str, ask: Ask) -> Trace:
        """A run on the shadow's account, whatever became of it."""
        (asked,) = on_terms(self.purse, served, api, ask, name=None)
        live = await self._runs.start(asked)
        with live.heard():
            try:
                return await live.result()
            except RunError as error:
                return error.trace


class Shadows(Mapping[str, Shadow]):
    """Those of all routes that have one, by name."""

    def __init__(self, routes: Mapping[str, Route], store: Store, metrics: Metrics) -> None:
        self._shadows = {
            name: Shadow(route, route.entry.shadow, store, metrics)
            for name, route in routes.items()
            if route.entry.shadow is not None
        }

    def __getitem__(self, name: str) -> Shadow:
        return self._shadows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shadows)

    def __len__(self) -> int:
        return len(self._shadows)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """See `Shadow.open`."""
        async with AsyncExitStack() as stack:
            for shadow in self.values():
                await stack.enter_async_context(shadow.open())
            yield

    def offer(self, asked: Asked, trace: Trace) -> None:
        """Have what a user got compared; of several choices, only the first."""
        shadow = self.get(asked.served.name)
        if shadow is not None and not asked.choice and asked.api not in BESIDE:
            shadow.offer(UserAnswer(asked, trace))


def drawn(run: str) -> float:
    """A number from 0 to 1 that belongs to this run and no other."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big") / 2**64


def _said(trace: Trace) -> Message | None:
    return trace.completion.message if trace.completion else None


def _cost(trace: Trace) -> Decimal | None:
    usage = trace.usage
    return None if usage.unpriced_calls else usage.cost


def _ignore(_asked: Asked, _trace: Trace) -> None:
    """Nothing follows what is itself a shadow."""
