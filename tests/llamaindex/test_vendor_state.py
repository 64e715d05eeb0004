"""The thought signatures of Google's LLM, from a reply with tool calls to the request with their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama

from llama_index.llms.conductor import Conductor, LLMModel
from llama_index.llms.conductor.messages import core_message, core_tool
from llama_index.llms.conductor.models.vendor_state import VENDOR_STATE_PREFIX
from llamaindex.scripts import plan, planner
from rl_conductor import Message, Request
from rl_conductor.types import ReasoningPart

CALL = ToolCallBlock(tool_call_id="call-1", tool_name="look", tool_kwargs={"at": "the sky"})
KINDS: list[type] = [ThinkingBlock, TextBlock, ToolCallBlock]
"""The order of the blocks of a reply in the core."""
SIGNED_REPLIES = [
    pytest.param([CALL], [b"\xff call"], [b"\xff call"], id="call"),
    pytest.param([TextBlock(text="So."), CALL], [None, b"call"], [None, b"call"], id="text and call"),
    pytest.param([CALL, TextBlock(text="So.")], [b"call", b"text"], [b"text", b"call"], id="call before text"),
    pytest.param([ThinkingBlock(content="Hm."), CALL], [b"thought"], [b"thought", None], id="thought"),
]


def look(at: str) -> str:
    """Looks."""
    return f"{at} is blue"


LOOK = FunctionTool.from_defaults(look)
QUESTION = Request(messages=(Message.user("Look."),), tools=(core_tool(LOOK.metadata.to_openai_tool()),))


@pytest.fixture
def histories(monkeypatch: pytest.MonkeyPatch) -> list[list[ChatMessage]]:
    """Makes an integration reply as Google's does with `reply`, and returns the conversations that it gets."""
    received: list[list[ChatMessage]] = []

    def reply(llm: Ollama, tools: object, chat_history: list[ChatMessage], **_: Any) -> ChatResponse:
        received.append(chat_history)
        blocks, signatures = llm.additional_kwargs["reply"]
        kwargs = {"thought_signatures": signatures}
        return ChatResponse(message=ChatMessage(role="model", blocks=blocks, additional_kwargs=kwargs))

    async def areply(*args: Any, **kwargs: Any) -> ChatResponse:
        return reply(*args, **kwargs)

    monkeypatch.setattr(Ollama, "chat_with_tools", reply)
    monkeypatch.setattr(Ollama, "achat_with_tools", areply)
    return received


def google_llm(blocks: Sequence[object], signatures: object, model: str = "gemini") -> Any:
    return Ollama(model=model, context_window=8000, additional_kwargs={"reply": (blocks, signatures)})


def answered(question: ChatMessage, reply: ChatMessage) -> list[ChatMessage]:
    """Returns the conversation after the tool call of `reply`, as a store returns it."""
    (call,) = core_message(reply).tool_calls
    result = ChatMessage(role="tool", content="blue", additional_kwargs={"tool_call_id": call.id})
    return [question, ChatMessage.model_validate_json(reply.model_dump_json()), result]


@pytest.mark.parametrize(("blocks", "signatures", "expected"), SIGNED_REPLIES)
async def test_signatures_come_back_in_the_reply_to_which_they_belong(
    histories: list[list[ChatMessage]], blocks: list[Any], signatures: list[Any], expected: list[Any]
) -> None:
    llm = Conductor({"a": google_llm(blocks, signatures)}, planner=planner(plan((0, "Go.", []))))
    question = ChatMessage(content="What colour is the sky?")
    reply = (await llm.achat_with_tools([LOOK], chat_history=[question])).message
    await llm.achat_with_tools([LOOK], chat_history=answered(question, reply))
    sent = histories[1][-2]
    assert (sent.role, sent.additional_kwargs) == ("model", {"thought_signatures": expected})
    assert [type(block) for block in sent.blocks] == sorted(map(type, blocks), key=KINDS.index)


async def test_another_model_gets_no_signatures(histories: list[list[ChatMessage]]) -> None:
    first = await LLMModel(google_llm([CALL], [b"call"])).complete(QUESTION)
    conversation = (*QUESTION.messages, first.message, Message.tool("call-1", "blue"))
    other = LLMModel(google_llm([CALL], [b"call"], model="other"))
    await other.complete(QUESTION.model_copy(update={"messages": conversation}))
    sent = histories[1][1]
    assert (sent.role, sent.additional_kwargs) == ("assistant", {})
    assert [type(block) for block in sent.blocks] == [ToolCallBlock]


@pytest.mark.parametrize("signature", ["{", '{"owner": "llamaindex:gemini", "signatures": "x"}'])
async def test_a_malformed_state_is_ignored(histories: list[list[ChatMessage]], signature: str) -> None:
    forged = ReasoningPart(text="", signature=VENDOR_STATE_PREFIX + signature)
    reply = core_message(ChatMessage(role="assistant", blocks=[CALL])).model_copy(update={"content": (forged,)})
    conversation = (*QUESTION.messages, reply, Message.tool("call-1", "blue"))
    await LLMModel(google_llm([CALL], [])).complete(QUESTION.model_copy(update={"messages": conversation}))
    assert histories[0][1] == ChatMessage(role="assistant", blocks=[CALL])


async def test_a_reply_without_signatures_has_no_state(histories: list[list[ChatMessage]]) -> None:
    completion = await LLMModel(google_llm([CALL], [None])).complete(QUESTION)
    assert completion.message.content == ()
    assert len(histories) == 1
