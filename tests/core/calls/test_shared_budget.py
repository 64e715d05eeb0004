"""A budget that several runs share: what it counts, what it refuses, and where it applies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from rl_conductor import Conductor, ConfigError, Event, Limits, Price, RunError, ScriptedModel, SharedBudget

PLAN = 'model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]'
PRICE = Price(input=1, output=10)


def create_conductor(*, limits: Limits | None = None, delay: float = 0) -> Conductor:
    workers = {"clerk": ScriptedModel("17 pens.", price=PRICE, delay=delay)}
    return Conductor(ScriptedModel(PLAN, price=PRICE), workers, limits=limits)


async def test_runs_in_the_block_spend_from_it_and_others_do_not() -> None:
    budget, conductor = SharedBudget(), create_conductor()
    with budget.applied():
        traces = await asyncio.gather(*[conductor.run(question) for question in ("Pens?", "Blue pens?")])
    await conductor.run("Red pens?")

    assert budget.spending.usd == sum(trace.usage.cost for trace in traces) > 0
    assert budget.spending.tokens == sum(trace.usage.total_tokens for trace in traces)
    assert budget.spending.calls == 4


async def test_runs_side_by_side_never_spend_more_than_it() -> None:
    budget, conductor = SharedBudget(usd="0.1"), create_conductor(delay=0.001)
    with budget.applied():
        replies = await asyncio.gather(*[conductor.run(f"{n}?") for n in range(200)], return_exceptions=True)

    assert Decimal("0.05") < budget.spending.usd <= Decimal("0.1")
    assert any(isinstance(reply, RunError) for reply in replies)
    assert budget.is_exhausted


async def test_the_error_names_the_budget_to_raise() -> None:
    budget, conductor = SharedBudget(calls=2), create_conductor()
    with budget.applied():
        await conductor.run("Pens?")
        assert not budget.is_exhausted
        with pytest.raises(RunError, match=r"SharedBudget\.calls=2 is used up; raise it to 3 or more"):
            await conductor.run("Blue pens?")

    assert budget.is_exhausted
    assert budget.spending.calls == 2


async def test_the_limits_of_each_run_hold_as_well() -> None:
    budget, conductor = SharedBudget(calls=9), create_conductor(limits=Limits(usd="0.0001"))
    with budget.applied(), pytest.raises(RunError, match=r"limits\.usd=0\.0001 leaves"):
        await conductor.run("Pens?")

    assert not budget.is_exhausted


async def test_a_model_without_a_price_is_refused_while_it_limits_dollars() -> None:
    conductor = Conductor(ScriptedModel(PLAN, price=PRICE), {"clerk": ScriptedModel("17 pens.", price=None)})
    budget = SharedBudget(usd=1)
    with budget.applied(), pytest.raises(RunError, match=r"so SharedBudget\.usd can't be enforced"):
        await conductor.run("Pens?")

    assert not budget.is_exhausted, "a larger budget would not help"


async def test_a_cancelled_run_is_charged_what_its_call_may_have_cost() -> None:
    budget, conductor = SharedBudget(usd=1), create_conductor(delay=30)
    started = asyncio.Event()

    def notice(event: Event) -> None:
        if event.type == "step_started":
            started.set()

    with budget.applied():
        run = asyncio.create_task(conductor.run("Pens?", on_event=notice))
    await started.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)

    assert budget.spending.calls == 2
    assert budget.spending.usd > PRICE.output * 4096 / 10**6


def test_threads_that_apply_it_share_it() -> None:
    budget, conductor = SharedBudget(), create_conductor()

    def ask(question: str) -> str:
        with budget.applied():
            return conductor.run_sync(question).text

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(ask, ["Pens?", "Blue pens?", "Red pens?"]))

    assert answers == ["17 pens."] * 3
    assert budget.spending.calls == 6


async def test_threads_of_asyncio_are_in_the_block() -> None:
    budget, conductor = SharedBudget(), create_conductor()
    with budget.applied():
        await asyncio.gather(*[asyncio.to_thread(conductor.run_sync, f"{n}?") for n in range(3)])

    assert budget.spending.calls == 6


async def test_it_may_be_applied_again_inside_of_its_own_block() -> None:
    budget, conductor = SharedBudget(), create_conductor()
    with budget.applied(), budget.applied():
        await conductor.run("Pens?")
    await conductor.run("Blue pens?")

    assert budget.spending.calls == 2


async def test_another_one_is_refused_inside_of_its_block() -> None:
    with SharedBudget().applied(), pytest.raises(ConfigError, match="inside of a block of another SharedBudget"):
        SharedBudget().applied().__enter__()


async def test_it_is_refused_inside_of_a_worker_whose_run_has_a_budget() -> None:
    def nested(subtask: str) -> str:
        with SharedBudget().applied():
            return subtask

    conductor = Conductor(ScriptedModel(PLAN), {"nested": nested})
    with pytest.raises(RunError, match=r"applied\(\) was called inside of a call of a run"):
        await conductor.run("Pens?")


async def test_a_stream_that_is_closed_elsewhere_raises_nothing() -> None:
    budget, conductor = SharedBudget(), create_conductor()

    async def stream() -> AsyncGenerator[str, None]:
        with budget.applied():
            async for event in conductor.events("Pens?"):
                yield event.type

    events = stream()
    await asyncio.create_task(anext(events))
    await events.aclose()

    with SharedBudget().applied():
        pass
