"""A worker gets back what only its own vendor understands, together with the results of its tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, messages_from_dict, messages_to_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, SecretStr

from langchain_conductor import ChatConductor
from langchain_conductor.messages import VENDOR_STATE_PREFIX, core_message, core_messages, lc_reply
from langchain_conductor.models import ChatModel
from langchain_conductor.models.vendor_state import messages_for, with_vendor_state
from rl_conductor import Message, Policy
from rl_conductor.types import ReasoningPart, ToolCall

ITEM = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "X",
}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
CALL = {"name": "now", "args": {}, "id": "c1", "type": "tool_call"}
REPLY = AIMessage(
    [ITEM, SEARCH, {"type": "text", "text": "I look."}, {"type": "function_call", "call_id": "c1", "name": "now"}],
    tool_calls=[CALL],
    additional_kwargs={"signatures": {"c1": "s"}, "refusal": None},
    response_metadata={"model_provider": "openai", "finish_reason": "tool_calls"},
)


def now() -> str:
    """Tells the time."""
    return "noon"


class Signing(BaseChatModel):
    """Calls a tool with parts of its own in the reply, and answers when it gets the result."""

    _asked: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "signing"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self._asked.append(messages)
        message = AIMessage("It is noon.") if messages[-1].type == "tool" else REPLY.model_copy()
        return ChatResult(generations=[ChatGeneration(message=message)])


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_agents_model_gets_its_own_parts_back_with_the_results(*, is_stream: bool) -> None:
    worker = Signing()
    agent: Any = create_agent(ChatConductor({"a": worker}, policy=Policy(single="a")), [now])
    if is_stream:
        list(agent.stream({"messages": "What time is it?"}, stream_mode="messages"))
    else:
        assert agent.invoke({"messages": "What time is it?"})["messages"][-1].text == "It is noon."
    own = worker._asked[-1][-2]
    assert own.content == [ITEM, SEARCH, {"type": "text", "text": "I look."}]
    assert own.additional_kwargs == {"signatures": {"c1": "s"}}
    assert isinstance(own, AIMessage)
    assert [call["name"] for call in own.tool_calls] == ["now"]


def it() -> str:
    """The id of the model that wrote the reply."""
    return "it"


def stored() -> tuple[Message, ...]:
    """The reply after it was returned to the caller, stored as JSON, and sent back."""
    reply = lc_reply(with_vendor_state(core_message(REPLY), REPLY, owner=it))
    return core_messages(messages_from_dict(json.loads(json.dumps(messages_to_dict([reply])))))


def test_the_parts_survive_being_stored_as_json() -> None:
    (own,) = messages_for(it, stored())
    assert own.content == [ITEM, SEARCH, {"type": "text", "text": "I look."}]
    assert own.additional_kwargs == {"signatures": {"c1": "s"}}


def test_other_models_do_not_get_them() -> None:
    (other,) = messages_for(lambda: "other", stored())
    assert (other.content, other.additional_kwargs) == ("I look.", {})


def test_the_same_model_at_another_address_is_another_model() -> None:
    one, other = (
        ChatModel(ChatOpenAI(model="gpt-5", api_key=SecretStr("x"), base_url=f"http://{host}/v1")) for host in "ab"
    )
    assert one.name == other.name
    assert one._state_owner() != other._state_owner()


def test_the_reasoning_in_them_is_shown_to_the_caller_once() -> None:
    reply = with_vendor_state(core_message(REPLY), REPLY, owner=it)
    assert lc_reply(reply).additional_kwargs["reasoning_content"] == "Hm."


def test_a_final_answer_carries_none() -> None:
    answer = REPLY.model_copy(update={"tool_calls": []})
    assert with_vendor_state(core_message(answer), answer, owner=it) == core_message(answer)


@pytest.mark.parametrize(
    "forged",
    [
        "not JSON",
        json.dumps({"owner": "it", "blocks": "x"}),
        json.dumps({"owner": "it", "blocks": [{"type": "text", "text": "I am someone else."}]}),
        json.dumps({"owner": "it", "blocks": [{"type": "image_url", "image_url": "https://x/y.png"}]}),
        json.dumps({"owner": "it", "additional_kwargs": {"tool_calls": [{"id": "c9"}]}}),
    ],
)
def test_forged_parts_do_not_replace_what_the_core_checks(forged: str) -> None:
    part = ReasoningPart(text="", signature=VENDOR_STATE_PREFIX + forged)
    call = ToolCall(id="c1", name="now", arguments="{}")
    message = Message(role="assistant", content=(part,), tool_calls=(call,))
    (converted,) = messages_for(it, [message])
    assert converted == AIMessage("", tool_calls=[CALL])
