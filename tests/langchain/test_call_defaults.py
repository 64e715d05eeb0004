"""The settings of a `ChatConductor` apply wherever its Conductor is used: node, runnable and worker of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from core.models.wire.base import SECRET
from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from langchain_vendor import Vendor
from rl_conductor import RunError, ScriptedModel

QUESTION: Any = {"messages": "hi"}
SETTINGS: dict[str, Any] = {"temperature": 0.25, "top_p": 0.5, "max_tokens": 77, "seed": 7, "stop": ["END"]}
EFFORT = {"reasoning_effort": "low"}


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


class ModelStarts(BaseCallbackHandler):
    """Counts the calls of chat models."""

    def __init__(self) -> None:
        self.count = 0
        self.tags: list[str] = []

    def on_chat_model_start(self, *_: Any, tags: list[str] | None = None, **__: Any) -> None:
        """Counts a call."""
        self.count += 1
        self.tags += tags or []


def conductor(vendor: Vendor, scenario: str = "gpt-4o-mini", **settings: Any) -> ChatConductor:
    worker = ChatOpenAI(model=scenario, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0)
    return ChatConductor(workers={"writer": worker}, planner=ScriptedModel(plan((0, "Answer.", []))), **settings)


def run_node(chat: ChatConductor) -> Any:
    graph = StateGraph(MessagesState).add_node("solve", create_conductor(chat)).add_edge(START, "solve").compile()
    return graph.invoke(QUESTION)


def run_node_async(chat: ChatConductor) -> Any:
    graph = StateGraph(MessagesState).add_node("solve", create_conductor(chat)).add_edge(START, "solve").compile()
    return asyncio.run(graph.ainvoke(QUESTION))


def run_planned(chat: ChatConductor) -> Any:
    runnable = RunnableConductor(chat)
    return (runnable.plan | runnable.execute).invoke("hi")


def run_nested(chat: Any) -> Any:
    outer = ChatConductor(workers={"inner": chat}, planner=ScriptedModel(plan((0, "Answer.", []))), max_retries=0)
    return outer.invoke("hi")


def stream_nested(chat: ChatConductor) -> Any:
    outer = ChatConductor(workers={"inner": chat}, planner=ScriptedModel(plan((0, "Answer.", []))), max_retries=0)
    return list(outer.stream("hi"))


USES: list[Callable[[ChatConductor], Any]] = [
    run_node,
    run_node_async,
    lambda chat: RunnableConductor(chat).invoke("hi"),
    run_planned,
    run_nested,
    stream_nested,
]
NAMES = ["node", "async node", "runnable", "plan and execute", "nested", "nested stream"]


@pytest.mark.parametrize("use", USES, ids=NAMES)
def test_the_final_worker_gets_the_sampling_of_the_chat_model(vendor: Vendor, use: Callable[..., Any]) -> None:
    use(conductor(vendor, **SETTINGS, **EFFORT))
    body = vendor.last.body
    sent = {**SETTINGS, **EFFORT, "max_completion_tokens": SETTINGS["max_tokens"]}
    sent.pop("max_tokens")
    assert {name: body.get(name) for name in sent} == sent


@pytest.mark.parametrize(
    "answer",
    [
        lambda vendor: conductor(vendor, stop="END").invoke("hi"),
        lambda vendor: conductor(vendor).invoke("hi", stop="END"),
        lambda vendor: conductor(vendor).bind(stop="END").invoke("hi"),
        lambda vendor: run_nested(conductor(vendor).bind(stop="END")),
    ],
    ids=["constructor", "call", "bound", "bound and nested"],
)
def test_a_stop_sequence_may_be_a_text(vendor: Vendor, answer: Callable[[Vendor], Any]) -> None:
    answer(vendor)
    assert vendor.last.body["stop"] == ["END"]


@pytest.mark.parametrize("use", USES, ids=NAMES)
def test_callbacks_and_tags_of_the_chat_model_reach_its_calls(vendor: Vendor, use: Callable[..., Any]) -> None:
    handler = ModelStarts()
    use(conductor(vendor, callbacks=[handler], tags=["mine"]))
    assert handler.count == 1
    assert "mine" in handler.tags


class CountingLimiter(InMemoryRateLimiter):
    """Counts the requests of runs and lets all of them through."""

    def __init__(self) -> None:
        super().__init__(requests_per_second=1000, check_every_n_seconds=0.001)
        self.count = 0

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Counts a request."""
        self.count += 1
        return await super().aacquire(blocking=blocking)


@pytest.mark.parametrize("use", USES, ids=NAMES)
def test_the_rate_limiter_of_the_chat_model_is_asked_once(vendor: Vendor, use: Callable[..., Any]) -> None:
    limiter = CountingLimiter()
    use(conductor(vendor, rate_limiter=limiter))
    assert limiter.count == 1


@pytest.mark.parametrize("use", [*USES[:3], *USES[4:]], ids=[*NAMES[:3], *NAMES[4:]])
def test_the_timeout_of_the_chat_model_ends_the_run(vendor: Vendor, use: Callable[..., Any]) -> None:
    with pytest.raises(RunError):
        use(conductor(vendor, "hang", timeout=0.5, max_retries=0))


def test_settings_of_the_outer_conductor_take_precedence_in_the_final_step(vendor: Vendor) -> None:
    inner = conductor(vendor, temperature=0.25, seed=7)
    planner = ScriptedModel(plan((0, "Answer.", [])))
    ChatConductor(workers={"inner": inner}, planner=planner, temperature=0.75).invoke("hi")
    assert (vendor.last.body["temperature"], vendor.last.body["seed"]) == (0.75, 7)
