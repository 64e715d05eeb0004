"""Reservations: what fits waits or runs, what never can is refused, and nothing is left reservation."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from core.runs import SOON
from rl_conductor.calls.budget import NOTHING, Amount, Budget, Reservation
from rl_conductor.errors import LimitError
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import UpperBound

TEN = UpperBound(input_tokens=4, output_tokens=6, cost=Decimal("0.10"))


def inside(parent: Budget, limits: Limits | None = None) -> Budget:
    return Budget(limits or Limits(), parent=parent)


async def soon(reservation: Reservation) -> Reservation:
    async with asyncio.timeout(SOON):
        return await reservation.__aenter__()


async def test_a_settled_call_is_charged_what_it_used() -> None:
    budget = Budget(Limits(usd=1, tokens=100, calls=9))
    async with budget.reserve("m", TEN) as reservation:
        assert budget.reserved == Amount(Decimal("0.10"), 10, 1)
        reservation.begin()
        reservation.commit(Usage(input_tokens=2, output_tokens=1, calls=1, cost=Decimal("0.03")))

    assert (budget.spent, budget.reserved) == (Amount(Decimal("0.03"), 3, 1), NOTHING)


async def test_a_call_that_was_never_begun_is_charged_nothing() -> None:
    budget = Budget(Limits(calls=1))
    async with budget.reserve("m", TEN):
        pass

    assert (budget.spent, budget.reserved) == (NOTHING, NOTHING)


async def test_a_call_of_unknown_outcome_is_charged_in_full() -> None:
    budget = Budget(Limits())
    async with budget.reserve("m", TEN) as reservation:
        reservation.begin()

    assert budget.spent == Amount(Decimal("0.10"), 10, 1)


async def test_a_refused_call_is_charged_as_a_call_only() -> None:
    budget = Budget(Limits())
    async with budget.reserve("m", TEN) as reservation:
        reservation.begin()
        reservation.refund()

    assert budget.spent == Amount(calls=1)


@pytest.mark.parametrize(
    ("usage", "spent"),
    [
        (Usage(), Amount(Decimal("0.10"), 10, 1)),
        (Usage(calls=1, unpriced_calls=1), Amount(Decimal("0.10"), 10, 1)),
        (Usage(input_tokens=3, calls=1, unpriced_calls=1), Amount(Decimal("0.10"), 3, 1)),
    ],
)
async def test_what_a_vendor_does_not_tell_is_charged_as_estimated(usage: Usage, spent: Amount) -> None:
    budget = Budget(Limits())
    async with budget.reserve("m", TEN) as reservation:
        reservation.begin()
        reservation.commit(usage)

    assert budget.spent == spent


@pytest.mark.parametrize(("unpriced", "tokens"), [(0, 0), (1, 10)], ids=["a search", "usage that is unknown"])
async def test_a_free_call_without_tokens_is_charged_none_only_if_its_usage_is_known(
    unpriced: int, tokens: int
) -> None:
    budget = Budget(Limits())
    async with budget.reserve("m", replace(TEN, cost=Decimal(0))) as reservation:
        reservation.begin()
        reservation.commit(Usage(calls=1, unpriced_calls=unpriced))

    assert budget.spent == Amount(tokens=tokens, calls=1)


@pytest.mark.parametrize(
    ("limits", "limit", "needed", "remaining"),
    [
        (Limits(usd=Decimal("0.09")), "usd", Decimal("0.10"), Decimal("0.09")),
        (Limits(tokens=9), "tokens", 10, 9),
        (Limits(usd=0), "usd", Decimal("0.10"), 0),
        (Limits(tokens=0), "tokens", 10, 0),
    ],
)
async def test_a_call_that_can_never_fit_is_refused_with_its_numbers(
    limits: Limits, limit: str, needed: Decimal, remaining: Decimal
) -> None:
    budget = Budget(limits)
    with pytest.raises(LimitError) as refused:
        await soon(budget.reserve("openai:gpt", TEN))

    assert (refused.value.limit, refused.value.needed, refused.value.remaining) == (limit, needed, remaining)
    assert (budget.spent, budget.reserved) == (NOTHING, NOTHING)


async def test_calls_are_counted() -> None:
    budget = Budget(Limits(calls=1))
    async with budget.reserve("m", TEN) as reservation:
        reservation.begin()
        reservation.commit(Usage(calls=1, output_tokens=1))

    with pytest.raises(LimitError) as refused:
        await soon(budget.reserve("m", TEN))
    assert (refused.value.limit, refused.value.remaining) == ("calls", 0)


REFUSALS = {
    "dollars": (
        Limits(usd=Decimal("0.000001")),
        Usage(),
        "a call to m may cost up to $0.011, but limits.usd=0.000001 leaves $0.000001; write limits.usd=0.011 or more",
    ),
    "dollars that are spent in part": (
        Limits(usd=Decimal("0.015")),
        Usage(cost=Decimal("0.01004")),
        "a call to m may cost up to $0.011, but limits.usd=0.015 leaves $0.0049; write limits.usd=0.021 or more",
    ),
    "tokens": (
        Limits(tokens=1500),
        Usage(input_tokens=1000),
        "a call to m may use up to 1000 tokens, but limits.tokens=1500 leaves 500; write limits.tokens=2000 or more",
    ),
    "calls": (
        Limits(calls=1),
        Usage(calls=1),
        "limits.calls=1 is used up; raise it to 2 or more to allow a call to m",
    ),
}


@pytest.mark.parametrize(("limits", "spent", "said"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_says_what_was_asked_what_is_left_and_what_to_write(
    limits: Limits, spent: Usage, said: str
) -> None:
    call = UpperBound(input_tokens=400, output_tokens=600, cost=Decimal("0.01004"))
    budget = Budget(limits)
    budget.charge(Amount.of(spent))
    with pytest.raises(LimitError, match=f"^{re.escape(said)}$"):
        await soon(budget.reserve("m", call))


class OfATeam(Budget):
    owner = "team"

    def describe_excess(self, model: str, limit: str, needed: Decimal | int, remaining: Decimal | int) -> str:
        return f"{model} needs {needed} {limit} and the team has {remaining}"

    def describe_unpriced(self, model: str) -> str:
        return f"the team does not know the price of {model}"


async def test_a_budget_that_is_not_a_runs_says_whose_it_is_and_words_its_own_refusals() -> None:
    team = OfATeam(Limits(usd=1, tokens=9), surrounds_runs=True)
    for call, said in (
        (TEN, "m needs 10 tokens and the team has 9"),
        (replace(TEN, cost=None), "the team does not know the price of m"),
    ):
        with pytest.raises(LimitError, match=f"^{said}$") as refused:
            await soon(inside(team).reserve("m", call))
        assert refused.value.owner == "team"

    with pytest.raises(LimitError) as refused:
        await soon(inside(team, Limits(tokens=1)).reserve("m", TEN))
    assert refused.value.owner is None


async def test_without_a_price_a_limit_in_dollars_cannot_be_kept() -> None:
    unpriced = replace(TEN, cost=None)
    with pytest.raises(LimitError, match="write its price in dollars"):
        await soon(Budget(Limits(usd=1)).reserve("m", unpriced))

    async with Budget(Limits()).reserve("m", unpriced) as reservation:
        assert reservation.amount.usd == 0


async def test_a_call_that_does_not_fit_now_waits_until_another_turns_out_cheaper() -> None:
    budget = Budget(Limits(usd=Decimal("0.15")))
    first = await soon(budget.reserve("m", TEN))
    second = asyncio.create_task(soon(budget.reserve("m", TEN)))
    await asyncio.sleep(0.01)
    assert not second.done()

    first.begin()
    first.commit(Usage(output_tokens=1, calls=1, cost=Decimal("0.05")))
    await first.__aexit__()

    assert budget.spent.usd == Decimal("0.05")
    await (await second).__aexit__()


async def test_a_call_that_waits_is_refused_when_the_other_used_it_all_up() -> None:
    budget = Budget(Limits(tokens=15))
    first = await soon(budget.reserve("m", TEN))
    second = asyncio.create_task(soon(budget.reserve("m", TEN)))
    await asyncio.sleep(0)

    first.begin()
    await first.__aexit__()

    with pytest.raises(LimitError) as refused:
        await second
    assert refused.value.remaining == 5
    assert budget.reserved == NOTHING


async def test_no_more_calls_are_in_flight_than_allowed() -> None:
    budget = Budget(Limits(concurrency=2))
    in_flight = peak = 0

    async def call() -> None:
        nonlocal in_flight, peak
        async with budget.reserve("m", TEN):
            in_flight += 1
            peak = max(peak, in_flight)
            await asyncio.sleep(0.001)
            in_flight -= 1

    async with asyncio.timeout(SOON):
        await asyncio.gather(*(call() for _ in range(9)))
    assert (peak, budget.reserved) == (2, NOTHING)


async def test_whoever_is_cancelled_while_waiting_holds_nothing() -> None:
    budget = Budget(Limits(concurrency=1))
    first = await soon(budget.reserve("m", TEN))
    waiting = asyncio.create_task(soon(budget.reserve("m", TEN)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await first.__aexit__()

    await (await soon(budget.reserve("m", TEN))).__aexit__()
    assert (budget.spent, budget.reserved) == (NOTHING, NOTHING)


# -------------------------------------------------------------------------------------- run in run


async def test_a_call_inside_a_run_inside_another_is_charged_to_both() -> None:
    outer = Budget(Limits())
    inner = inside(outer)
    async with inner.reserve("m", TEN) as reservation:
        assert outer.reserved == inner.reserved == reservation.amount
        reservation.begin()
        reservation.commit(Usage(output_tokens=1, calls=1, cost=Decimal("0.01")))

    assert outer.spent == inner.spent == Amount(Decimal("0.01"), 1, 1)
    assert outer.reserved == inner.reserved == NOTHING


async def test_the_run_around_refuses_too_and_nothing_stays_held() -> None:
    outer = Budget(Limits(tokens=9))
    inner = inside(inside(outer))
    with pytest.raises(LimitError):
        await soon(inner.reserve("m", TEN))

    budget: Budget | None = inner
    while budget is not None:
        assert budget.reserved == NOTHING
        budget = budget.parent


async def test_cancelled_while_the_run_around_has_no_room_nothing_stays_held() -> None:
    outer = Budget(Limits(concurrency=1))
    inner = inside(outer)
    first = await soon(outer.reserve("m", TEN))
    waiting = asyncio.create_task(soon(inner.reserve("m", TEN)))
    await asyncio.sleep(0.001)
    assert inner.reserved.calls == 1

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert inner.reserved == NOTHING
    await first.__aexit__()
    assert outer.reserved == NOTHING


@pytest.mark.parametrize(("allowed", "levels"), [(1, 1), (2, 2), (3, 3)])
def test_runs_sit_no_deeper_in_one_another_than_any_of_them_allows(allowed: int, levels: int) -> None:
    budget = Budget(Limits(depth=allowed))
    for _ in range(levels - 1):
        budget = inside(budget, Limits(depth=9))
    budget.check_depth()

    with pytest.raises(LimitError, match=f"{levels + 1} deep") as refused:
        inside(budget, Limits(depth=9)).check_depth()
    assert (refused.value.limit, refused.value.remaining) == ("depth", allowed)


def test_the_error_says_which_conductor_allows_no_deeper_nesting() -> None:
    inner = inside(inside(inside(Budget(Limits(depth=4)), Limits(depth=2))))
    with pytest.raises(LimitError, match=r"3 deep, but limits\.depth of the conductor on level 2 is 2; raise it"):
        inner.check_depth()


def test_budgets_around_runs_are_no_level_of_nesting() -> None:
    around = Budget(Limits(depth=1), surrounds_runs=True)
    around = Budget(Limits(depth=1), parent=around, surrounds_runs=True)
    outer = inside(around, Limits(depth=2))
    within = Budget(Limits(depth=1), parent=outer, surrounds_runs=True)
    inner = inside(within)
    for budget in (outer, inner):
        budget.check_depth()

    with pytest.raises(LimitError, match=r"3 deep, but limits\.depth is 2"):
        inside(inner, Limits(depth=9)).check_depth()


# ---------------------------------------------------------------------------- several event loops


def in_threads(*works: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Each on an event loop of its own, at the same time."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(asyncio.run, work()) for work in works]:
            done.result(timeout=SOON)


def test_room_that_is_given_back_on_one_loop_is_taken_on_another() -> None:
    budget = Budget(Limits(concurrency=1))
    reservation, waits = threading.Event(), threading.Event()

    async def holds() -> None:
        async with budget.reserve("m", TEN):
            reservation.set()
            await asyncio.to_thread(waits.wait, SOON)

    async def wants() -> None:
        await asyncio.to_thread(reservation.wait, SOON)
        loop = asyncio.get_running_loop()
        threading.Timer(0.05, waits.set).start()
        started = loop.time()
        async with asyncio.timeout(SOON), budget.reserve("m", TEN):
            assert loop.time() - started < SOON / 2

    in_threads(holds, wants)
    assert budget.reserved == NOTHING


def test_whoever_waited_on_a_loop_that_is_gone_is_in_nobody_s_way() -> None:
    budget = Budget(Limits(concurrency=1))

    async def holds() -> None:
        async with budget.reserve("m", TEN):
            gone = asyncio.new_event_loop()
            await asyncio.to_thread(_one_step, gone, budget)

    def _one_step(loop: asyncio.AbstractEventLoop, budget: Budget) -> None:
        waiting = loop.create_task(soon(budget.reserve("m", TEN)))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]

    asyncio.run(holds())
    assert budget.reserved == NOTHING


def test_calls_on_several_loops_are_all_counted() -> None:
    budget = Budget(Limits(calls=1_000_000, concurrency=3))

    async def calls() -> None:
        for _ in range(3_000):
            reservation = budget.reserve("m", TEN)
            await reservation.__aenter__()
            reservation.begin()
            budget.release(reservation)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(calls, calls, calls, calls)
    finally:
        sys.setswitchinterval(before)
    assert (budget.spent.calls, budget.reserved) == (12_000, NOTHING)
