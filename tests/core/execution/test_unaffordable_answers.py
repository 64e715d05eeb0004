"""Plans that the limits leave no answer for, which are not made."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from core.runs import plan, pool_of, worker
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Sampling, Usage
from rl_conductor.workflow.limits import Limits

PLANNER_PRICE = Price(input=0, output=0, per_call=Decimal("0.01"))
CHEAP, DEAR = (Price(input=0, output=0, per_call=Decimal(amount)) for amount in ("0.20", "0.50"))
PLAN = plan((0, "Say it.", []))


async def run(limits: Limits, planner: Any = PLAN, **models: Any) -> tuple[Trace, ScriptedModel]:
    """Runs a question; also returns the planner."""
    model = ScriptedModel([planner] * 9, name="planner", price=PLANNER_PRICE)
    workers = models or {
        "dear": ScriptedModel("From the dear one.", name="dear", price=DEAR),
        "cheap": ScriptedModel("From the cheap one.", name="cheap", price=CHEAP),
    }
    try:
        return await Conductor(model, pool_of(**workers)).run("What is it?", limits=limits), model
    except RunError as error:
        return error.trace, model


async def test_nothing_is_planned_if_no_worker_could_answer_afterwards() -> None:
    trace, planner = await run(Limits(usd=Decimal("0.19")))
    assert planner.requests == []
    assert trace.usage == Usage()
    (error,) = trace.rounds[0].plan.errors
    assert error == (
        "a call to scripted:planner and then one to scripted:cheap may cost up to $0.21, "
        "but limits.usd=0.19 leaves $0.19; write limits.usd=0.21 or more"
    )


async def test_the_amount_that_the_error_names_is_enough_for_plan_and_answer() -> None:
    trace, planner = await run(Limits(usd=Decimal("0.21")), planner=plan((1, "Say it.", [])))
    assert trace.text == "From the cheap one."
    assert len(planner.requests) == 1


async def test_the_only_call_that_is_left_is_an_answer_and_no_plan() -> None:
    trace, planner = await run(Limits(calls=1))
    assert trace.text == "From the dear one."
    assert planner.requests == []
    (error,) = trace.rounds[0].plan.errors
    assert error == (
        "limits.calls=1 leaves 1 call; "
        "raise it to 2 or more to allow a call to scripted:planner and then one to scripted:cheap"
    )


async def test_tokens_that_a_worker_may_write_have_to_be_left_as_well() -> None:
    short = worker("short", ScriptedModel("Hi.", name="short"), sampling=Sampling(max_tokens=50))
    trace, planner = await run(Limits(tokens=60), short=short, long=ScriptedModel("Hello.", name="long"))
    assert planner.requests == []
    assert "a call to scripted:planner and then one to scripted:short may use up to" in trace.rounds[0].plan.errors[0]


async def test_another_round_is_not_planned_if_no_worker_could_answer_it() -> None:
    trace, planner = await run(Limits(usd=Decimal("0.35"), rounds=2), planner=plan((1, "Say it.", [])))
    assert trace.text == "From the cheap one."
    assert len(planner.requests) == 1
    assert "planner and then one to scripted:cheap" in trace.rounds[1].plan.errors[0]


@pytest.mark.parametrize("limits", [Limits(), Limits(seconds=60), Limits(concurrency=1)], ids=str)
async def test_a_run_without_limits_on_spending_is_planned(limits: Limits) -> None:
    trace, planner = await run(limits)
    assert trace.text == "From the dear one."
    assert len(planner.requests) == 1


async def test_the_advice_for_models_without_a_price_is_given_once() -> None:
    models = {name: ScriptedModel("Hi.", name=name, price=None) for name in ("a", "b")}
    for model in models.values():
        model.price = None
    trace, _ = await run(Limits(usd=Decimal(1)), **models)
    assert trace.error is not None
    assert trace.error.count("the price of scripted:b") == 1
    assert trace.error.count("write its price in dollars per million tokens") == 1


async def test_nothing_is_planned_if_no_worker_has_a_price_to_compare_with_the_limit() -> None:
    unpriced = ScriptedModel("Hi.", name="unpriced")
    unpriced.price = None
    trace, planner = await run(Limits(usd=Decimal(1)), unpriced=unpriced)
    assert planner.requests == []
    assert trace.usage == Usage()
    assert "the price of scripted:unpriced is unknown" in trace.rounds[0].plan.errors[0]


async def test_a_worker_without_a_price_is_no_reason_not_to_plan_if_another_one_has_one() -> None:
    unpriced = ScriptedModel("Hi.", name="unpriced")
    unpriced.price = None
    priced = ScriptedModel("It is 7.", name="priced", price=CHEAP)
    trace, planner = await run(
        Limits(usd=Decimal(1)), planner=plan((1, "Say it.", [])), unpriced=unpriced, priced=priced
    )
    assert trace.text == "It is 7."
    assert len(planner.requests) == 1
