"""Token events and streamed messages have the answer only, not the planner's JSON or earlier workers' drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from core.models.wire.base import SECRET
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from langchain_vendor import Vendor

TOKENS = ["Hello", " to", " you", "."]
QUESTION: Any = {"messages": "hi"}


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


def conductor(vendor: Vendor, *, worker_settings: Mapping[str, Any] = {}, **options: Any) -> ChatConductor:
    def chat(name: str) -> ChatOpenAI:
        return ChatOpenAI(model=name, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0, **worker_settings)

    return ChatConductor(
        workers={"drafter": chat("gpt-4o"), "writer": chat("gpt-4o-mini")}, planner=chat("gpt-4o-mini"), **options
    )


def graph(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("solve", node).add_edge(START, "solve").compile()


def events(runnable: Any, question: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in runnable.astream_events(question, version="v2")]

    return asyncio.run(collect())


def token_events(runnable: Any, question: Any) -> list[str]:
    tokens = [event for event in events(runnable, question) if event["event"] == "on_chat_model_stream"]
    return [event["data"]["chunk"].text for event in tokens if event["data"]["chunk"].text]


def test_token_events_of_the_chat_model_are_those_of_the_answer(vendor: Vendor) -> None:
    assert token_events(conductor(vendor), "hi") == TOKENS


def test_token_events_of_an_agent_are_those_of_the_answer(vendor: Vendor) -> None:
    assert token_events(create_agent(conductor(vendor)), QUESTION) == TOKENS


def test_token_events_of_a_node_are_those_of_the_last_step(vendor: Vendor) -> None:
    assert token_events(graph(create_conductor(conductor(vendor))), QUESTION) == TOKENS


def test_token_events_of_a_runnable_conductor_are_those_of_the_last_step(vendor: Vendor) -> None:
    assert token_events(RunnableConductor(conductor(vendor)), "hi") == TOKENS
    with_drafts = token_events(RunnableConductor(conductor(vendor, stream_drafts=True)), "hi")
    assert "A draft." in "".join(with_drafts)


class TokenHandler(BaseCallbackHandler):
    """Stores the tokens and counts the calls."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.starts = 0

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.starts += 1

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **_: Any) -> None:
        self.tokens += [str(token)] if token else []


class AsyncTokenHandler(AsyncCallbackHandler):
    """Stores the tokens."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **_: Any) -> None:
        self.tokens += [str(token)] if token else []


@pytest.mark.parametrize("handler_type", [TokenHandler, AsyncTokenHandler])
@pytest.mark.parametrize("build", [ChatConductor, RunnableConductor, create_conductor])
def test_handlers_get_the_tokens_of_the_answer_once(
    vendor: Vendor, build: Callable[..., Any], handler_type: Callable[[], Any]
) -> None:
    chat = conductor(vendor, worker_settings={"streaming": True})
    runnable, question = {
        ChatConductor: (chat, "hi"),
        RunnableConductor: (RunnableConductor(chat), "hi"),
        create_conductor: (graph(create_conductor(chat)), QUESTION),
    }[build]
    list(runnable.stream(question, {"callbacks": [handler := handler_type()]}))
    assert handler.tokens == TOKENS


def test_handlers_get_all_tokens_with_stream_drafts(vendor: Vendor) -> None:
    chat = conductor(vendor, stream_drafts=True, worker_settings={"streaming": True})
    list(chat.stream("hi", {"callbacks": [handler := TokenHandler()]}))
    assert "A draft." in "".join(handler.tokens)


def test_handlers_get_no_tokens_of_a_call_that_does_not_stream(vendor: Vendor) -> None:
    conductor(vendor, worker_settings={"streaming": True}).invoke("hi", {"callbacks": [handler := TokenHandler()]})
    assert handler.tokens == []
    assert handler.starts == 4


def test_a_handler_of_the_workers_and_of_the_call_gets_each_event_once(vendor: Vendor) -> None:
    handler = TokenHandler()
    conductor(vendor, worker_settings={"callbacks": [handler]}).invoke("hi", {"callbacks": [handler]})
    assert handler.starts == 4


def test_starts_and_ends_of_inner_calls_stay_in_the_events(vendor: Vendor) -> None:
    all_events = events(conductor(vendor), "hi")
    ended = [event["name"] for event in all_events if event["event"] == "on_chat_model_end"]
    assert ended == ["ChatOpenAI", "ChatOpenAI", "ChatOpenAI", "ChatConductor"]
    custom = {event["name"] for event in all_events if event["event"] == "on_custom_event"}
    assert custom >= {"conductor_workflow_planned", "conductor_step_started", "conductor_step_finished"}


@pytest.mark.parametrize("is_node", [False, True], ids=["chat model", "node"])
def test_stream_drafts_adds_the_tokens_of_planner_and_workers(vendor: Vendor, is_node: bool) -> None:
    chat = conductor(vendor, stream_drafts=True)
    text = "".join(token_events(graph(create_conductor(chat)) if is_node else chat, QUESTION if is_node else "hi"))
    assert "A draft." in text
    assert ("One drafts, one answers." in text) is not is_node


@pytest.mark.parametrize("subgraphs", [False, True])
def test_streamed_messages_of_a_graph_never_contain_the_plan(vendor: Vendor, subgraphs: bool) -> None:
    solve = graph(create_conductor(conductor(vendor)))
    parts = list(solve.stream(QUESTION, stream_mode="messages", subgraphs=subgraphs))
    texts = [(part[1] if subgraphs else part)[0].text for part in parts]
    drafts = ["A", " draft."] if subgraphs else []
    answer = TOKENS if subgraphs else ["Hello to you."]
    assert [text for text in texts if text][: len(drafts + answer)] == drafts + answer
    assert "One drafts" not in "".join(texts)
