"""Whatever is planned, priced, late or broken: no limit is passed, nothing stays reserved, nothing waits for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.runs import SOON, leftover_tasks, plan, worker, workflow
from rl_conductor.calls.budget import NOTHING, Budget
from rl_conductor.calls.scope import current_scope
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ModelError, RateLimitError, RunError
from rl_conductor.models import Model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.events import Event, Finished
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message, Price, Request, Sampling, Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import upper_bound
from rl_conductor.workflow.workflow import Workflow

OUTCOMES = ("ok", "ok", "ok", "broken", "flaky", "refused", "hangs", "silent")
TOKENS = Sampling(max_tokens=100)


@dataclass
class Vendor:
    """Bills every call for real, by a share of what it was estimated to need at most."""

    outcomes: list[str]
    shares: list[float]
    """Of the bound that calls really use; above 1 the bound was too low."""
    delays: list[float]
    concurrency: int | None = None
    billed: Decimal = Decimal(0)
    tokens: int = 0
    calls: int = 0
    models: list[ScriptedModel] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)

    def model(self, name: str, price: Price, says: str = "ok") -> ScriptedModel:
        """A model of this vendor."""
        turns: dict[int, tuple[str, Usage]] = {}

        def begin(request: Request) -> float:
            turns[id(request)] = self._begin(request, price)
            return 60.0 if turns[id(request)][0] == "hangs" else self.delays[self.calls % len(self.delays)]

        def answer(request: Request) -> Any:
            outcome, usage = turns[id(request)]
            if outcome == "broken":
                return ModelError("broken", model=name)
            if outcome == "flaky":
                return ModelError("flaky", model=name, retryable=True, retry_after=0.001)
            if outcome == "refused":
                return RateLimitError("busy", model=name, status=429, retry_after=0.001)
            told = Usage(calls=1, unpriced_calls=1) if outcome == "silent" else usage
            return Completion(message=Message.assistant(says), usage=told, model=name)

        self.models.append(ScriptedModel(answer, name=name, price=price, delay=begin))
        return self.models[-1]

    def _begin(self, request: Request, price: Price) -> tuple[str, Usage]:
        most = upper_bound(request, price)
        outcome = self.outcomes[self.calls % len(self.outcomes)]
        share = 0.0 if outcome == "refused" else self.shares[self.calls % len(self.shares)]
        read, written = int(most.input_tokens * share), int(most.output_tokens * share)
        cost = price.cost(input_tokens=read, output_tokens=written) if share else Decimal(0)
        self.calls += 1
        self.billed += cost
        self.tokens += read + written
        self._check()
        return outcome, Usage(input_tokens=read, output_tokens=written, calls=1, cost=cost)

    def _check(self) -> None:
        """As a call begins, all that is spent and reserved lies within the limits of every run around it."""
        budget = current_scope.get().budget
        assert budget is not None
        while budget is not None:
            self.budgets.append(budget)
            held, limits = budget.spent + budget.reserved, budget.limits
            assert limits.usd is None or held.usd <= limits.usd
            assert limits.tokens is None or held.tokens <= limits.tokens
            assert limits.calls is None or held.calls <= limits.calls
            budget = budget.parent
        assert self.concurrency is None or sum(model.in_flight for model in self.models) <= self.concurrency


prices = st.builds(
    Price,
    input=st.integers(0, 20).map(Decimal),
    output=st.integers(0, 200).map(Decimal),
    per_call=st.sampled_from([Decimal(0), Decimal("0.001")]),
)
limits_ = st.builds(
    Limits,
    usd=st.none() | st.integers(0, 60).map(lambda mills: Decimal(mills) / 1000),
    tokens=st.none() | st.integers(0, 6_000),
    calls=st.none() | st.integers(1, 8),
    concurrency=st.none() | st.integers(1, 2),
    seconds=st.just(0.4),
    rounds=st.integers(1, 2),
    hedges=st.integers(0, 2),
)


@st.composite
def vendors(draw: st.DrawFn, *, most_share: float = 1.0) -> Vendor:
    return Vendor(
        outcomes=draw(st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=6)),
        shares=draw(st.lists(st.floats(0.01, most_share), min_size=1, max_size=4)),
        delays=draw(st.lists(st.sampled_from([0.0, 0.0, 0.002]), min_size=1, max_size=4)),
    )


@st.composite
def plans(draw: st.DrawFn, workers: int) -> str:
    steps: list[tuple[int, str, list[Any]]] = []
    for index in range(draw(st.integers(1, 4))):
        access = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append((draw(st.integers(0, workers - 1)), f"subtask {index}", sorted(access)))
    return plan(*steps)


def conductor_of(vendor: Vendor, data: st.DataObject, limits: Limits, *, nested: bool) -> Conductor:
    vendor.concurrency = limits.concurrency
    workers = [
        worker(
            name,
            vendor.model(name, data.draw(prices)),
            sampling=TOKENS,
            timeout=0.02,
            hedge_after=data.draw(st.sampled_from([None, 0.001])),
            concurrency=data.draw(st.sampled_from([None, 1])),
        )
        for name in "ab"
    ]
    if nested:
        inner = Conductor(
            planner_of(vendor, data, workers=2), WorkerPool(workers), limits=data.draw(limits_), access="positional"
        )
        workers.append(worker("inner", inner, timeout=0.1))
    return Conductor(
        planner_of(vendor, data, workers=len(workers)), WorkerPool(workers), limits=limits, access="positional"
    )


def planner_of(vendor: Vendor, data: st.DataObject, *, workers: int) -> Planner:
    model = vendor.model("planner", data.draw(prices), says=data.draw(plans(workers)))
    return Planner(model=model, sampling=TOKENS, samples=2, timeout=0.02)


WIDE = workflow(("a", "x", ()), ("b", "y", ()), ("a", "z", ()), ("b", "join", (0, 1, 2)))


async def traced(conductor: Conductor, given: Workflow | None = None) -> Trace:
    async with asyncio.timeout(SOON):
        try:
            trace = await conductor.run("What is it?", workflow=given)
        except RunError as failed:
            trace = failed.trace
    assert not leftover_tasks()
    return trace


def nothing_is_left(vendor: Vendor) -> bool:
    assert {budget.reserved for budget in vendor.budgets} <= {NOTHING}
    return not any(model.in_flight for model in vendor.models)


@given(data=st.data(), vendor=vendors(), limits=limits_, nested=st.booleans(), planned=st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_limit_is_ever_passed_while_estimates_hold(
    data: st.DataObject, vendor: Vendor, limits: Limits, nested: bool, planned: bool
) -> None:
    conductor = conductor_of(vendor, data, limits, nested=nested)
    trace = asyncio.run(traced(conductor, None if planned else WIDE))

    assert limits.usd is None or vendor.billed <= limits.usd
    assert limits.tokens is None or vendor.tokens <= limits.tokens
    assert limits.calls is None or vendor.calls <= limits.calls
    assert trace.usage.cost <= vendor.billed
    assert trace.usage.cost == vendor.billed or trace.usage.unpriced_calls
    assert nothing_is_left(vendor)


@given(data=st.data(), vendor=vendors(most_share=4.0), limits=limits_)
@settings(max_examples=40, deadline=None)
def test_a_vendor_that_needs_more_than_estimated_costs_no_more_than_what_was_in_flight(
    data: st.DataObject, vendor: Vendor, limits: Limits
) -> None:
    """As each call begins the limits hold (the vendor checks it), so only those begun before can pass them."""
    vendor.outcomes = ["ok"]
    asyncio.run(traced(conductor_of(vendor, data, limits, nested=False), WIDE))

    assert nothing_is_left(vendor)


@given(data=st.data(), vendor=vendors(), limits=limits_, moment=st.floats(0, 0.02))
@settings(max_examples=40, deadline=None)
def test_cancelled_at_any_moment_nothing_is_left_and_the_trace_still_comes(
    data: st.DataObject, vendor: Vendor, limits: Limits, moment: float
) -> None:
    conductor = conductor_of(vendor, data, limits, nested=True)

    async def run() -> list[Event]:
        events: list[Event] = []
        task = asyncio.create_task(conductor.run("What is it?", on_event=events.append))
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not leftover_tasks()
        return events

    events = asyncio.run(run())
    assert not events or isinstance(events[-1], Finished)  # none at all: it was cancelled before it began
    assert nothing_is_left(vendor)
    assert limits.usd is None or vendor.billed <= limits.usd


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_conductor_in_its_own_pool_with_one_slot_for_everything_never_waits_for_itself(depth: int) -> None:
    model = ScriptedModel("ok", name="a")
    planner = Planner(model=ScriptedModel(plan((1, "delegate", []), (1, "again", []), (0, "join", ["all"])), name="p"))
    limits = Limits(concurrency=1, depth=depth)
    conductor = Conductor(planner, WorkerPool([worker("a", model, concurrency=1)]), limits=limits)
    pool = WorkerPool([*conductor.pool.values(), worker("itself", conductor, concurrency=1)])
    conductor.config = replace(conductor.config, pool=pool)

    async with asyncio.timeout(SOON):
        trace = await conductor.run("What is it?")

    assert trace.completion is not None
    assert trace.completion.text == "ok"
    assert (model.peak, model.in_flight) == (1, 0)
    leaves = 2**depth  # each level asks the level below it twice; the lowest asks `a` instead
    assert len(model.requests) == leaves + (2**depth - 1)
    await conductor.aclose()


async def test_what_a_conductor_in_the_pool_spends_counts_in_the_run_around_it_even_when_it_fails() -> None:
    price = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
    inner_planner = ScriptedModel("garbage", name="p", price=price)
    broken = ScriptedModel(lambda _: ModelError("broken", model="b", status=400), name="b", price=price)
    inner = Conductor(Planner(model=inner_planner, samples=3), WorkerPool({"b": broken}))
    pool: dict[str, Model | str] = {"inner": inner, "a": ScriptedModel("ok", name="a", price=price)}
    outer = Conductor(ScriptedModel(plan((0, "delegate", [])), name="p", price=price), WorkerPool(pool))

    trace = await outer.run("What is it?")

    assert trace.usage_by_worker["inner"].cost == Decimal("0.03")
    assert trace.usage.cost == Decimal("0.05")
    assert trace.usage.calls == 6
