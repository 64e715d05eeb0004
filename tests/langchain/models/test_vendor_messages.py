"""A conversation in which several vendors' models wrote is accepted by each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from core.models.wire.base import SECRET
from langchain_conductor import ChatConductor
from langchain_conductor.messages import core_message, lc_messages
from langchain_conductor.models import ChatModel
from langchain_conductor.models.vendors.messages import adapt_messages
from langchain_vendor import AnthropicVendor, Vendor
from rl_conductor import Message, Policy, Request
from rl_conductor.types import ImagePart, ReasoningPart, TextPart, ToolCall

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
IMAGE = ImagePart(data="iVBORw0KGgo=")
SEALED = {"type": "redacted_thinking", "data": "sealed"}


@pytest.fixture
def vendor() -> Iterator[AnthropicVendor]:
    with AnthropicVendor.running() as service:
        yield service


def claude(vendor: AnthropicVendor, **options: Any) -> ChatAnthropic:
    return ChatAnthropic(
        model_name="claude-haiku-4-5", base_url=vendor.url, api_key=SecretStr(SECRET), max_retries=0, **options
    )


def reply(provider: str, *blocks: Any) -> Message:
    """The reply of a vendor's LangChain model."""
    content = [*blocks, {"type": "text", "text": "Yes."}]
    return core_message(AIMessage(content, response_metadata={"model_provider": provider}))


def sent_to(message: Message, *providers: str) -> Any:
    (converted,) = lc_messages(adapt_messages([message], providers))
    return converted.content


@pytest.mark.parametrize("provider", ["anthropic", "amazon_bedrock", "anthropicvertex"])
def test_signed_reasoning_of_claude_goes_to_claude_wherever_it_is_hosted(provider: str) -> None:
    assert sent_to(reply("anthropic", SEALED, THOUGHT), provider) == [SEALED, THOUGHT, {"type": "text", "text": "Yes."}]


@pytest.mark.parametrize(
    ("signer", "others"), [("anthropic", ("google_genai", "groq")), ("google_genai", ("anthropic", "openai"))]
)
def test_no_other_vendor_gets_it(signer: str, others: tuple[str, ...]) -> None:
    message = reply(signer, THOUGHT)
    assert [sent_to(message, other) for other in others] == ["Yes."] * 2
    assert sent_to(message, signer) == [THOUGHT, {"type": "text", "text": "Yes."}]
    assert sent_to(message, signer, others[0]) == "Yes."  # as a fallback may get it


def test_reasoning_that_an_unknown_vendor_signed_is_sent() -> None:
    assert sent_to(reply("some_vendor", THOUGHT), "some_provider") == [THOUGHT, {"type": "text", "text": "Yes."}]


def test_signed_reasoning_of_a_core_model_reaches_langchains_model_of_the_same_vendor() -> None:
    parts = (ReasoningPart(text="Hm.", signature="anthropic:thinking:s"), *Message.assistant("Yes.").content)
    message = Message(role="assistant", content=parts)
    assert sent_to(message, "anthropic") == [THOUGHT, {"type": "text", "text": "Yes."}]
    assert core_message(lc_messages([message])[0]) == message


def test_a_signature_that_has_no_block_in_langchain_is_left_out() -> None:
    parts = (ReasoningPart(text="", signature="google:call:s:c1"), *Message.assistant("Yes.").content)
    assert sent_to(Message(role="assistant", content=parts), "google_genai") == "Yes."


def test_the_signer_is_named_as_vendors_packages_expect_it() -> None:
    (converted,) = lc_messages([reply("google_genai", THOUGHT)])
    assert converted.response_metadata == {"model_provider": "google_genai"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_claude_accepts_system_messages_in_the_middle_of_a_conversation(
    vendor: AnthropicVendor, *, is_stream: bool
) -> None:
    chat = ChatConductor({"a": claude(vendor)}, policy=Policy(single="a"))
    conversation = [SystemMessage("Be brief."), HumanMessage("Hi."), AIMessage("Hello."), SystemMessage("It is noon.")]
    conversation.append(HumanMessage("What time is it?"))
    if is_stream:
        list(chat.stream(conversation))
    else:
        chat.invoke(conversation)
    body = vendor.requests[-1].body
    assert body["system"] == "Be brief.\n\nIt is noon."
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize("has_tools", [False, True])
def test_claude_can_read_calls_of_earlier_turns_without_making_any(vendor: AnthropicVendor, *, has_tools: bool) -> None:
    chat: Any = ChatConductor({"a": claude(vendor)}, policy=Policy(single="a"))
    if has_tools:
        chat = chat.bind_tools([{"name": "weather", "description": "Now.", "parameters": {}}], tool_choice="none")
    call = {"type": "tool_call", "id": "c1", "name": "weather", "args": {"city": "Kyiv"}}
    turn = [HumanMessage("Is it warm?"), AIMessage("", tool_calls=[call]), ToolMessage("9", tool_call_id="c1")]
    chat.invoke([*turn, AIMessage("No."), HumanMessage("Thanks.")])
    body = vendor.requests[-1].body
    assert [tool["name"] for tool in body["tools"]] == ["weather"]
    assert body["tool_choice"] == {"type": "none"}


def test_system_messages_at_the_beginning_stay_apart() -> None:
    messages = [Message.system("Be brief."), Message.system("It is noon."), Message.user("What time is it?")]
    assert adapt_messages(messages, ["anthropic"]) == messages


def test_other_vendors_get_system_messages_where_they_are() -> None:
    messages = [Message.user("Hi."), Message.system("It is noon."), Message.user("Now?"), Message.system("Be brief.")]
    assert adapt_messages(messages, ["openai"]) == messages


def image_in_a_tool_result() -> list[Message]:
    call = ToolCall(id="c1", name="camera", arguments="{}")
    result = Message(role="tool", content=(IMAGE,), tool_call_id="c1")
    return [Message.user("Look."), Message(role="assistant", tool_calls=(call,)), result]


@pytest.mark.parametrize("providers", [["openai"], ["azure"], ["ollama"], ["anthropic", "openai"]], ids=str)
def test_images_of_tool_results_come_in_a_message_of_the_user_where_not_all_vendors_read_them(
    providers: list[str],
) -> None:
    *_, result, follow_up = adapt_messages(image_in_a_tool_result(), providers)
    assert (result.role, follow_up.role) == ("tool", "user")
    assert result.text == "[image: attachment 1 in the user's next message]"
    assert follow_up.content[-1] == IMAGE


@pytest.mark.parametrize("provider", ["anthropic", "amazon_bedrock", "google_genai"])
def test_images_of_tool_results_stay_where_the_vendor_reads_them(provider: str) -> None:
    assert adapt_messages(image_in_a_tool_result(), [provider]) == image_in_a_tool_result()


def test_images_of_several_system_messages_are_kept_when_these_become_one() -> None:
    messages = [
        Message(role="system", content=(TextPart(text="A logo:"), IMAGE)),
        Message.user("Hi."),
        Message.system("Be brief."),
    ]
    system, question = adapt_messages(messages, ["anthropic"])
    assert (system.role, IMAGE in question.content) == ("system", True)


def test_an_image_of_a_tool_result_reaches_openai_in_a_message_of_the_user() -> None:
    with Vendor.running() as vendor:
        chat = ChatOpenAI(model="gpt-4o-mini", base_url=f"{vendor.url}/v1", api_key=SecretStr(SECRET), max_retries=0)
        asyncio.run(ChatModel(chat).complete(Request(messages=tuple(image_in_a_tool_result()))))
    *_, result, follow_up = vendor.last.body["messages"]
    assert "image_url" not in str(result)
    assert follow_up["role"] == "user"
    assert follow_up["content"][-1]["type"] == "image_url"
