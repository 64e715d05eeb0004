"""Token events and streamed messages have the answer only, not the planner's JSON or earlier workers' drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from core.models.wire.base import SECRET
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor

from .vendor import Vendor

TOKENS = ["Hello", " to", " you", "."]
QUESTION: Any = {"messages": "hi"}


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


def conductor(vendor: Vendor, **options: Any) -> ChatConductor:
    def chat(name: str) -> ChatOpenAI:
        return ChatOpenAI(model=name, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0)

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
