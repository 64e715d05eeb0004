"""Runs from their beginning to their end: one for every name, all of them on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rl_conductor.calls.budget import Amount, Budget, current_budget
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.events import Event, Finished, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.auth.budgets import ANY_DEPTH
from rl_conductor_server.errors import ApiError
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.runs.admission import Admission
from rl_conductor_server.runs.handle import Live
from rl_conductor_server.runs.request import Asked
from rl_conductor_server.runs.tool_continuation import going_on
from rl_conductor_server.store import PLAN, Claim, NewRun, Status, Store

POLL = 0.2
"""Seconds between two looks at a run that is in another process's hands."""


class Runs:
    """Everything that runs in this process."""

    def __init__(
        self, store: Store, admission: Admission, metrics: Metrics, *, on_answer: Callable[[Asked, Trace], None]
    ) -> None:
        """`on_answer` is told of each run that gave an answer; nobody waits for what it makes of that."""
        self._store = store
        self._metrics = metrics
        self._admission = admission
        self._on_answer = on_answer
        self._lives: dict[str, Live] = {}
        self._named: dict[tuple[str, str, int], tuple[str, Live]] = {}
        self._tasks: set[asyncio.Task[Trace]] = set()
        self._draining = False

    @property
    def waiting(self) -> int:
        """How many runs wait for a place."""
        return self._admission.waiting

    @property
    def living(self) -> Iterable[str]:
        """The ids of all runs that go on in this process."""
        return self._lives.keys()

    def live(self, run: str) -> Live | None:
        """The run of this id, as long as it goes on in this process."""
        return self._lives.get(run)

    async def start(self, asked: Asked, *, done: Sequence[Round] = ()) -> Live:
        """The run that gives this answer: a new one, or the one that was begun under the same name.

        A new one without a name may take over what an earlier run has `done`.

        Raises:
            ApiError: the name stands for another request, or the server is stopping.
        """
        self.check_open()
        new = asked.new_run()
        if asked.name is None:
            return self._begin(asked, Claim(id=new.id, created=new.created, outcome="new", rounds=tuple(done)), new)
        while True:
            live = self._alive(asked)
            if live is not None:
                return live
            claim = await self._store.claim(new)
            if claim.outcome == "mismatch":
                raise _mismatch(asked.name)
            if claim.outcome == "done" and claim.trace is not None:
                if asked.shared is not None:
                    asked.shared.charge(Amount.of(claim.trace.usage))
                return Live.over(claim.id, claim.created, claim.trace)
            if claim.outcome != "elsewhere":
                return self._begin(asked, claim, new)
            await asyncio.sleep(POLL)

    def check_open(self) -> None:
        """Raise `ApiError` when the server is stopping."""
        if self._draining:
            raise ApiError("the server is stopping", status=503, code="stopping", retry_after=5)

    def _alive(self, asked: Asked) -> Live | None:
        digest, live = self._named.get((asked.account.name, asked.name or "", asked.choice), ("", None))
        if live is not None and digest != asked.digest:
            raise _mismatch(asked.name or "")
        return live

    def _begin(self, asked: Asked, claim: Claim, new: NewRun) -> Live:
        live = Live(claim.id, claim.created, kept=asked.name is not None)
        conducting = _Conducting(asked, live, claim, new, self._store, self._metrics, self._on_answer)
        task = asyncio.create_task(conducting.go(self._admission), name=claim.id)
        live.goes_on_in(task)
        self._lives[claim.id] = live
        task.add_done_callback(lambda _: self._lives.pop(claim.id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if asked.name is not None:
            place = (asked.account.name, asked.name, asked.choice)
            self._named[place] = (asked.digest, live)
            task.add_done_callback(lambda _: self._named.pop(place))
        return live

    async def drain(self, seconds: float) -> None:
        """Take no more, let what runs come to its end, and stop what has not after `seconds`."""
        self._draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _mismatch(name: str) -> ApiError:
    message = f"Idempotency-Key {name!r} was used for another request; give this one a key of its own"
    return ApiError(message, status=422, code="idempotency_mismatch")


@dataclass
class _Conducting:
    """One run, on record."""

    asked: Asked
    live: Live
    claim: Claim
    new: NewRun
    store: Store
    metrics: Metrics
    on_answer: Callable[[Asked, Trace], None]
    trace: Trace | None = None
    charged: Budget = field(init=False)
    """Counts what the run is charged, whether it is on a budget or not."""
    used: dict[tuple[int, int], Usage] = field(default_factory=dict)
    """By round and step, planning included."""
    is_stored: bool = field(init=False)
    """Whether the store knows the run, and has to be told of its end."""

    def __post_init__(self) -> None:
        self.is_stored = self.asked.name is not None

    async def go(self, admission: Admission) -> Trace:
        """The trace, once there is an answer and it is as safe as the caller needs it."""
        try:
            async with admission.place():
                try:
                    trace = await self._run()
                except ConductorError:
                    await self._end()
                    raise
                await self._end()
                return trace
        finally:
            self._close()

    async def _end(self) -> None:
        """Store the end, and slow the caller down where the store lags: it must not be told what may get lost."""
        self._close()
        if self._is_asked_for_again:
            await self.store.journal.flush()
        else:
            await self.store.journal.pace()

    async def _run(self) -> Trace:
        budget = await self.asked.account.budget()
        if not self.is_stored:
            await self.store.journal.pace()
            self.store.begin(self.new)
            self.is_stored = True
        self._count_on(budget)
        try:
            return await self._conduct()
        except RunError as error:
            self._check_budget(error, budget)
            self.asked.check_shared(error)
            raise

    def _count_on(self, budget: Budget | None) -> None:
        """Have each call counted for the run, and on the budget if there is one."""
        if budget is not None and self.claim.inherited:
            budget.charge(self.claim.charged)
        current_budget.set(budget)
        if self.asked.shared is not None:
            self.asked.shared.charge(self.claim.charged)
            current_budget.set(self.asked.shared.ledger())
        self.charged = Budget(Limits(depth=ANY_DEPTH))
        self.charged.charge(self.claim.charged)
        current_budget.set(self.charged)

    async def _conduct(self) -> Trace:
        asked = self.asked
        request = await going_on(asked.request, self.store, key=asked.account.name)
        with self.metrics.running(asked.counted_as):
            return await asked.served.conductor.run(
                request,
                resume=self.claim.rounds,
                policy=asked.policy,
                limits=asked.limits,
                on_event=self._tell,
                stream=asked.ask.stream,
                run_id=self.live.id,
            )

    def _check_budget(self, error: RunError, budget: Budget | None) -> None:
        """Raise `ApiError` if the run failed because the key's budget does not suffice."""
        refused = any(call.outcome == "refused" for call in error.trace.calls())
        left = list(self._left(budget, self.asked.used(error.trace))) if budget is not None and refused else []
        if left:
            message = f"{' and '.join(left)} is left of this key's budget, which is not enough: {error.trace.error}"
            raise ApiError(message, status=429, code="insufficient_quota") from error

    def _left(self, budget: Budget, used: Amount) -> Iterator[str]:
        """What is left of the budget, where that is less than the request itself might have used further."""
        asked = self.asked.limits
        if budget.limits.usd is not None:
            usd = budget.limits.usd - budget.spent.usd
            if asked.usd is None or asked.usd - used.usd > usd:
                yield f"${max(usd, 0):f}"
        if budget.limits.tokens is not None:
            tokens = budget.limits.tokens - budget.spent.tokens
            if asked.tokens is None or asked.tokens - used.tokens > tokens:
                yield f"{max(tokens, 0):,} tokens"

    @property
    def _is_asked_for_again(self) -> bool:
        """Whether the caller may come back for this very run, perhaps to another process."""
        reply = self.trace.completion if self.trace else None
        calls_tools = bool(reply and reply.message.tool_calls)
        return self.asked.name is not None or (calls_tools and not self.asked.is_beside)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.trace = event.trace
        elif isinstance(event, WorkflowPlanned | StepFinished):
            self._record(event)
        self.live.tell(event)

    def _record(self, event: WorkflowPlanned | StepFinished) -> None:
        if isinstance(event, WorkflowPlanned):
            position, calls = PLAN, event.plan.calls
        else:
            position, calls = event.result.index, event.result.calls
        self.used[event.round, position] = total(call.usage for call in calls)
        # Only a run with a name can be continued from its steps.
        keep = self.asked.ask.keep or self.asked.name is not None
        self.store.record(self.live.id, event, total(self.used.values()), self.charged.spent, keep=keep)

    def _close(self) -> None:
        if not self.is_stored:
            return
        self.is_stored = False
        if self.trace is not None:
            done = self.trace.completion is not None
            ended: Status = "done" if done else "cancelled" if self.trace.error == "cancelled" else "failed"
            keep = self.asked.ask.keep or self._is_asked_for_again
            self.store.finish(self.live.id, self.trace, ended, charged=self.charged.spent, keep=keep)
            self.metrics.run_over(self.asked.counted_as, self.trace)
            if done:
                self.on_answer(self.asked, self.trace)
        else:
            self.store.give_up(self.live.id)
