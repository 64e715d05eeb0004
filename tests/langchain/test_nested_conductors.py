"""Conductors inside of a worker, such as a node of `create_conductor`, and functions and agents that call one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableLambda

from conductor_graphs import around as graph_around
from core.runs import ACCEPT, SOON, plan
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from langchain_conductor.pool import pool_of
from rl_conductor import Limits, Price, RunError, ScriptedModel

LONE = plan((0, "Answer.", []))
PAIR = plan((0, "draft", []), (1, "write", ["all"]))
PRICE = Price(input=Decimal(1), output=Decimal(1))
TEAM_CALLS = 3
"""The plan of the team and its steps."""
OWN_TOKENS = UsageMetadata(input_tokens=600, output_tokens=400, total_tokens=1_000)


def team(*plans: str, **options: Any) -> ChatConductor:
    """A conductor whose plans have two steps."""
    models = {name: ScriptedModel(f"From {name}.", price=PRICE) for name in ("drafter", "writer")}
    workers = {name: {"model": model, "description": name} for name, model in models.items()}
    planner = ScriptedModel(plans or (lambda _: PAIR), price=PRICE)
    return ChatConductor(workers, planner=planner, **options)


def chat_team() -> ChatConductor:
    """The same with LangChain's models as workers."""
    models = {name: FakeListChatModel(responses=[f"From {name}."]) for name in ("drafter", "writer")}
    workers = {name: {"model": model, "description": name} for name, model in models.items()}
    return ChatConductor(workers, planner=ScriptedModel(lambda _: PAIR))


def around(worker: Any, **options: Any) -> ChatConductor:
    """A conductor whose only worker it is, and whose plan has one step."""
    return ChatConductor({"team": worker}, planner=ScriptedModel(lambda _: LONE), **options)


def function(chat: ChatConductor) -> Callable[[str], str]:
    return lambda subtask: chat.invoke(subtask).text


def async_function(chat: ChatConductor) -> Callable[[str], Any]:
    async def ask(subtask: str) -> str:
        return (await chat.ainvoke(subtask)).text

    return ask


def function_of_the_core(chat: ChatConductor) -> Callable[[str], str]:
    return lambda subtask: chat.conductor.run_sync(subtask).text


def function_in_two_parts(chat: ChatConductor) -> Callable[[str], str]:
    runnable = RunnableConductor(chat)
    return lambda subtask: runnable.execute.invoke(runnable.plan.invoke(subtask)).text


def chain(chat: ChatConductor) -> Any:
    return RunnableLambda(lambda messages: messages) | chat


def graph(chat: ChatConductor) -> Any:
    return graph_around(create_conductor(chat))


HOSTS: Any = [
    *(function, async_function, function_of_the_core, function_in_two_parts),
    *(chain, graph, create_agent, create_conductor),
]
"""Ways to make a worker that has a conductor inside."""


def team_usage(answer: AIMessage) -> Mapping[str, Any]:
    usage: Mapping[str, Any] = answer.response_metadata["conductor"]["workers"]["team"]
    return usage


class Inputs(BaseCallbackHandler):
    """Keeps the inputs of runs by their names."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.by_name[kwargs["name"]] = inputs


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_node_as_a_worker_runs_a_plan_that_is_longer_than_the_one_around_it(awaited: bool) -> None:
    chat, inputs = around(create_conductor(team())), Inputs()
    config: Any = {"callbacks": [inputs]}
    answer = await chat.ainvoke("Well?", config) if awaited else chat.invoke("Well?", config)
    assert answer.text == "From writer."
    assert inputs.by_name["step 2: writer"]["subtask"] == "write"
    assert inputs.by_name["step 1: team"]["subtask"] == "Answer."


async def test_a_conductor_in_an_agent_answers_while_events_are_streamed() -> None:
    chat = around(create_agent(team()))
    events = [event async for event in chat.astream_events("Well?", version="v2")]
    assert events[-1]["data"]["output"].text == "From writer."
    started = [event["name"] for event in events if event["event"] == "on_chain_start"]
    steps = [name for name in started if name.startswith("step")]
    assert steps == ["step 1: team", "step 1: drafter", "step 2: writer"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("awaited", [True, False])
async def test_calls_and_dollars_of_a_conductor_inside_of_a_worker_are_those_of_the_worker(
    host: Any, awaited: bool
) -> None:
    chat = around(host(team()))
    answer = await chat.ainvoke("Well?") if awaited else chat.invoke("Well?")
    usage = team_usage(answer)
    assert answer.text == "From writer."
    assert (usage["calls"], usage["unpriced_calls"]) == (TEAM_CALLS, 0)
    assert Decimal(usage["cost"]) * 1_000_000 == usage["input_tokens"] + usage["output_tokens"] > 0


def test_a_limit_of_dollars_counts_a_conductor_inside_of_an_agent() -> None:
    worker = {"model": create_agent(team())}
    answer = around(worker, limits=Limits(usd=Decimal(1))).invoke("Well?")
    assert Decimal(team_usage(answer)["cost"]) > 0
    with pytest.raises(RunError, match=r"limits\.usd"):
        around(worker, limits=Limits(usd=Decimal("0.00001"))).invoke("Well?")


def test_each_round_of_a_node_counts_once() -> None:
    answer = around(create_conductor(team(PAIR, PAIR, ACCEPT, rounds=3))).invoke("Well?")
    assert team_usage(answer)["calls"] == 2 * TEAM_CALLS + 1, "two rounds, and the plan that accepts the answer"
    (nested,) = answer.response_metadata["conductor"]["rounds"][0]["steps"][0]["nested"]
    assert len(nested["rounds"]) == 3


@pytest.mark.parametrize("is_function", [True, False])
def test_what_a_worker_uses_itself_is_added_to_the_usage_of_the_conductor_inside(is_function: bool) -> None:
    thought = AIMessage("Hm.", usage_metadata=OWN_TOKENS, response_metadata={"model_name": "own"})
    own = GenericFakeChatModel(messages=iter([thought]))
    inner = team()

    def work(question: Any) -> str:
        own.invoke("Think.")
        return inner.invoke(question).text

    answer = around(work if is_function else RunnableLambda(work)).invoke("Well?")
    usage, (nested,) = team_usage(answer), answer.response_metadata["conductor"]["rounds"][0]["steps"][0]["nested"]
    (round_,) = nested["rounds"]
    inside = [round_["plan"]["usage"], *(step["usage"] for step in round_["steps"])]
    assert usage["output_tokens"] == 400 + sum(each["output_tokens"] for each in inside)
    assert (usage["calls"], usage["unpriced_calls"]) == (TEAM_CALLS + 1, 1)


@pytest.mark.parametrize("host", HOSTS)
def test_a_limit_counts_each_call_of_a_conductor_inside_of_a_worker_once(host: Any) -> None:
    limits = Limits(calls=TEAM_CALLS + 1, concurrency=1, seconds=SOON)
    answer = around(host(chat_team()), limits=limits).invoke("Well?")
    assert answer.text == "From writer."
    assert answer.response_metadata["conductor"]["usage"]["calls"] == TEAM_CALLS + 1


def test_the_planner_is_not_told_that_an_agent_with_a_conductor_is_free() -> None:
    pool = pool_of({"agent": create_agent(team()), "writer": ScriptedModel("Hi.")})
    assert pool["agent"].card.price is None
