"""Guardrails in LangChain: on a `ChatConductor`, in a graph's node, and as middleware of any agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from core.runs import plan
from core.scripted_guardrails import HIDDEN, SECRET, Check, Hide, always
from langchain_conductor import ChatConductor, GuardrailMiddleware, create_conductor
from langchain_conductor.tracing import untraced
from rl_conductor.errors import ConfigError, GuardrailError, RefusedError
from rl_conductor.guardrails import Refuse
from rl_conductor.models.scripted import ScriptedModel

TWO_STEPS = plan((0, "find it", []), (1, "say it", ["all"]))


def chat(*guardrails: Any, **workers: Any) -> ChatConductor:
    models = {"a": f"found {SECRET}", "b": f"it is {SECRET}", **workers}
    scripts = {name: ScriptedModel(model, name=name) for name, model in models.items()}
    return ChatConductor(scripts, planner=ScriptedModel(TWO_STEPS), guardrails=guardrails)


def sent(chat: ChatConductor) -> str:
    """Everything that planner and workers were sent."""
    models = [chat.conductor.planner.model, *(worker.model for worker in chat.conductor.pool.values())]
    requests = [request for model in models for request in cast("ScriptedModel", untraced(model)).requests]
    assert requests
    return str(requests)


async def test_a_chat_model_redacts_what_goes_in_and_what_comes_out() -> None:
    model = chat(Hide())
    reply = await model.ainvoke(f"call {SECRET}")
    assert reply.text == f"it is {HIDDEN}"
    checks = reply.response_metadata["conductor"]["rounds"][0]["plan"]["checks"]
    assert [check["outcome"] for check in checks] == ["redacted"]
    chunks = [chunk.text async for chunk in model.astream(f"call {SECRET}")]
    assert "".join(chunks) == f"it is {HIDDEN}"
    assert SECRET not in sent(model)


def test_a_refusal_raises_and_other_guardrails_may_be_set_later() -> None:
    model = chat(Check(stages=("answer",), verdict=always(Refuse("rude"))))
    with pytest.raises(RefusedError, match="refused the answer: rude"):
        model.invoke("hello")
    model.guardrails = ()
    assert model.invoke("hello").text == f"it is {SECRET}"


def test_answers_of_models_with_other_guardrails_are_not_shared_in_a_cache() -> None:
    assert chat(Hide())._get_llm_string() != chat()._get_llm_string()


async def test_a_node_of_a_graph_is_checked() -> None:
    model = chat(Hide())
    graph: Any = StateGraph(MessagesState)
    graph.add_node("solve", create_conductor(model))
    graph.add_edge(START, "solve")
    compiled = graph.compile()
    result = await compiled.ainvoke({"messages": [HumanMessage(f"call {SECRET}")]})
    assert result["messages"][-1].text == f"it is {HIDDEN}"
    assert SECRET not in sent(model)
    result = compiled.invoke({"messages": [HumanMessage(f"call {SECRET}")]})
    assert result["messages"][-1].text == f"it is {HIDDEN}"


async def test_a_chat_conductor_in_an_agent_works_beside_other_middleware() -> None:
    agent = create_agent(chat(Hide()), middleware=[ModelCallLimitMiddleware(run_limit=3)])
    result = await agent.ainvoke({"messages": [HumanMessage(f"call {SECRET}")]})
    assert result["messages"][-1].text == f"it is {HIDDEN}"


class Fake(GenericFakeChatModel):
    """A chat model with predefined replies that takes tools."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def dial(number: str) -> str:
    """Dials a number."""
    return f"{number} answered: {SECRET}"


@pytest.mark.parametrize("is_async", [True, False])
async def test_middleware_redacts_the_state_of_any_agent(*, is_async: bool) -> None:
    call = AIMessage("", tool_calls=[{"name": "dial", "args": {"number": SECRET}, "id": "c1"}])
    model = Fake(messages=iter([call, AIMessage(f"it is {SECRET}", response_metadata={"model_name": "fake"})]))
    guard = Hide()
    middleware = [GuardrailMiddleware([guard]), ModelCallLimitMiddleware(run_limit=3)]
    agent = create_agent(model, tools=[dial], middleware=middleware)
    question: Any = {"messages": [HumanMessage(f"call {SECRET}", id="q")]}
    result = await agent.ainvoke(question) if is_async else agent.invoke(question)
    assert SECRET not in str(result["messages"])
    assert [type(message) for message in result["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert result["messages"][0].id == "q"
    assert result["messages"][1].tool_calls[0]["args"] == {"number": HIDDEN}
    assert result["messages"][-1].text == f"it is {HIDDEN}"
    assert result["messages"][-1].response_metadata["model_name"] == "fake"


class Contact(BaseModel):
    """Whom to call."""

    number: str
    age: int = 7


@dataclass
class ContactData:
    """Whom to call, as a dataclass."""

    number: str


class ContactDict(TypedDict):
    """Whom to call, as a dictionary."""

    number: str


class Structured(Fake):
    """A model that fills in the form."""

    profile: Any = Field(default={"structured_output": True})

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


@pytest.mark.parametrize("form", [Contact, ContactData, ContactDict])
@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
async def test_middleware_redacts_structured_responses(strategy: Any, form: Any) -> None:
    args = {"number": SECRET}
    if strategy is ToolStrategy:
        reply = AIMessage("", tool_calls=[{"name": form.__name__, "args": args, "id": "c1"}])
    else:
        reply = AIMessage(json.dumps(args))
    agent = create_agent(
        Structured(messages=iter([reply])), response_format=strategy(form), middleware=[GuardrailMiddleware([Hide()])]
    )
    result = await agent.ainvoke({"messages": [HumanMessage("Whom?")]})
    response = result["structured_response"]
    assert SECRET not in str(result)
    assert isinstance(response, dict if form is ContactDict else form)
    assert (response["number"] if isinstance(response, dict) else response.number) == HIDDEN


async def test_a_refused_reply_leaves_no_structured_response() -> None:
    reply = AIMessage("", tool_calls=[{"name": "Contact", "args": {"number": "an insult"}, "id": "c1"}])
    guard = GuardrailMiddleware([Check(stages=("answer",), verdict=always(Refuse("rude")))], exit_behavior="end")
    agent = create_agent(Structured(messages=iter([reply])), response_format=ToolStrategy(Contact), middleware=[guard])
    result = await agent.ainvoke({"messages": [HumanMessage("Whom?")]})
    assert result["structured_response"] is None
    assert "an insult" not in str(result["messages"])


@pytest.mark.parametrize("stage", ["input", "answer"])
async def test_middleware_refuses_with_an_error_or_ends_the_agent(stage: Any) -> None:
    guard = Check(stages=(stage,), verdict=always(Refuse("rude")))

    def agent(**options: Any) -> Any:
        return create_agent(Fake(messages=iter(["bad words"])), middleware=[GuardrailMiddleware([guard], **options)])

    with pytest.raises(GuardrailError, match="rude"):
        await agent().ainvoke({"messages": [HumanMessage("hello")]})
    result = await agent(exit_behavior="end").ainvoke({"messages": [HumanMessage("hello")]})
    assert [message.text for message in result["messages"]] == ["hello", "I can't answer this: rude"]
    assert result["messages"][-1].response_metadata == {"finish_reason": "content_filter"}


def test_a_wrong_exit_behavior_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match="write 'error' or 'end'"):
        GuardrailMiddleware([], exit_behavior="stop")  # type: ignore[arg-type]


def test_chunks_are_still_chunks() -> None:
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chat(Hide()).stream("hello"))
