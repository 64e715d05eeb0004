"""A `ChatConductor` with bound settings, a config or retries stays a conductor, as a node and as a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor, RunnableModel, create_conductor, pool_of
from rl_conductor import ConfigError, ModelError, Policy, Request, RunError, ScriptedModel

PLAN = plan((0, "Answer.", []))


def conductor(**settings: Any) -> tuple[ChatConductor, list[Request]]:
    requests: list[Request] = []

    def answer(request: Request) -> str:
        requests.append(request)
        return "Hi."

    return ChatConductor({"a": ScriptedModel(answer)}, planner=ScriptedModel(PLAN), **settings), requests


WRAPPERS: dict[str, Callable[[ChatConductor], Runnable[Any, Any]]] = {
    "bind": lambda chat: chat.bind(temperature=0.25),
    "with_config": lambda chat: chat.bind(temperature=0.25).with_config(tags=["mine"]),
    "with_retry": lambda chat: chat.bind(temperature=0.25).with_retry(stop_after_attempt=5),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_it_can_be_a_node(wrap: Callable[[ChatConductor], Any]) -> None:
    chat, requests = conductor()
    graph = StateGraph(MessagesState).add_node("solve", create_conductor(wrap(chat))).add_edge(START, "solve").compile()
    state: Any = {"messages": "hi"}
    assert graph.invoke(state)["messages"][-1].text == "Hi."
    assert requests[0].sampling.temperature == 0.25


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_as_a_worker_it_plans_with_its_settings(wrap: Callable[[ChatConductor], Any]) -> None:
    chat, requests = conductor(seed=3)
    model = pool_of({"inner": wrap(chat)})["inner"].model
    assert model.capabilities.delegates
    assert ChatConductor({"inner": wrap(chat)}, planner=ScriptedModel(PLAN)).invoke("hi").text == "Hi."
    assert (requests[0].sampling.temperature, requests[0].sampling.seed) == (0.25, 3)


def test_attempts_of_with_retry_are_those_of_its_calls() -> None:
    failing = ScriptedModel([ModelError("busy", model="failing", retryable=True)] * 3)
    chat = ChatConductor({"a": failing}, planner=ScriptedModel(PLAN), max_retries=0)
    with pytest.raises(RunError):
        RunnableConductor(chat.with_retry(stop_after_attempt=2)).invoke("hi")
    assert len(failing.requests) == 2


def test_a_bound_policy_applies() -> None:
    chat = ChatConductor({"a": ScriptedModel("A."), "b": ScriptedModel("B.")}, planner=ScriptedModel(PLAN))
    assert RunnableConductor(chat.bind(policy=Policy(single="b"))).invoke("hi").text == "B."


def test_callbacks_of_with_config_get_its_calls() -> None:
    class Recorder(BaseCallbackHandler):
        tags: list[str] | None = None

        def on_llm_start(self, *_: Any, tags: list[str] | None = None, **__: Any) -> None:
            self.tags = tags

    handler = Recorder()
    chat, _ = conductor()
    RunnableConductor(chat.with_config(callbacks=[handler], tags=["mine"])).invoke("hi")
    assert "mine" in (handler.tags or [])


def test_with_fallbacks_or_bound_tools_it_is_a_plain_runnable() -> None:
    chat, _ = conductor()
    for wrapped in (chat.with_fallbacks([chat]), chat.bind(response_format={"type": "json_object"})):
        assert isinstance(pool_of({"inner": wrapped})["inner"].model, RunnableModel)
        with pytest.raises(ConfigError, match=r"conductor is a \w+; write a ChatConductor without bind_tools"):
            create_conductor(wrapped)
