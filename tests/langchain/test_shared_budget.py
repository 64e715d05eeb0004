"""A `SharedBudget` around runs of `ChatConductor`, however they are started."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from core.runs import plan
from langchain_conductor import ChatConductor, create_conductor
from rl_conductor import Price, RunError, ScriptedModel, SharedBudget

PRICE = Price(input=1, output=10)


def create_chat() -> ChatConductor:
    workers = {"clerk": ScriptedModel("17 pens.", price=PRICE)}
    return ChatConductor(workers, planner=ScriptedModel(plan((0, "Answer.", [])), price=PRICE))


STARTS: dict[str, Callable[[ChatConductor], object]] = {
    "invoke": lambda chat: chat.invoke("Pens?"),
    "stream": lambda chat: list(chat.stream("Pens?")),
    "agent": lambda chat: create_agent(chat).invoke({"messages": [HumanMessage("Pens?")]}),
    "node": lambda chat: create_conductor(chat).invoke({"messages": [HumanMessage("Pens?")]}),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_it_counts_the_calls_of_a_run(start: Callable[[ChatConductor], object]) -> None:
    budget = SharedBudget()
    with budget.applied():
        start(create_chat())

    assert budget.spending.calls == 2
    assert budget.spending.usd > 0


async def test_a_batch_stays_within_it_and_the_other_questions_fail() -> None:
    budget = SharedBudget(calls=7)
    with budget.applied():
        answers = await create_chat().abatch([f"{n}?" for n in range(20)], return_exceptions=True)

    assert budget.spending.calls <= 7
    assert budget.is_exhausted
    failed = [answer for answer in answers if isinstance(answer, RunError)]
    assert failed
    assert all("SharedBudget.calls=7" in str(error) for error in failed)


def test_threads_of_a_batch_share_it() -> None:
    budget = SharedBudget()
    with budget.applied():
        create_chat().batch([f"{n}?" for n in range(5)], {"max_concurrency": 3})

    assert budget.spending.calls == 10
