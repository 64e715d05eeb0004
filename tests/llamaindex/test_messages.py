"""Messages and tools cross over and come back; what comes back may have been tampered with."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from llama_index.llms.conductor.messages import carrying, chat_message, core_message, core_tool
from llama_index.llms.conductor.requests import tool_choice
from llamaindex.scripts import conductor, core_of
from rl_conductor import ConfigError, Message
from rl_conductor.types import Continuation, FilePart, ImagePart, ReasoningPart, TextPart, Tool, ToolCall

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4 a page"


def test_images_and_documents_pass_through() -> None:
    message = ChatMessage(blocks=[TextBlock(text="Look:"), ImageBlock(image=PIXEL), DocumentBlock(data=PDF)])
    text, image, file = core_message(message).content
    assert text == TextPart(text="Look:")
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    assert base64.b64decode(image.data or "") == PIXEL
    assert isinstance(file, FilePart)
    assert (file.media_type, base64.b64decode(file.data)) == ("application/pdf", PDF)


def test_an_image_and_a_document_reach_the_workers() -> None:
    llm = conductor()
    llm.chat([ChatMessage(blocks=[TextBlock(text="What is it?"), ImageBlock(image=PIXEL), DocumentBlock(data=PDF)])])
    kinds = {part.type for message in core_of(llm, "writer").requests[0].messages for part in message.content}
    assert kinds == {"text", "image", "file"}


def test_an_image_by_address_is_left_to_the_vendor_to_fetch() -> None:
    (image,) = core_message(ChatMessage(blocks=[ImageBlock(url="https://example.org/kite.png")])).content
    assert image == ImagePart(url="https://example.org/kite.png", media_type="image/png")


def test_an_image_in_a_data_address_is_content() -> None:
    address = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    (image,) = core_message(ChatMessage(blocks=[ImageBlock(url=address)])).content
    assert isinstance(image, ImagePart)
    assert base64.b64decode(image.data or "") == PIXEL


def test_a_document_by_address_is_not_fetched() -> None:
    with pytest.raises(ConfigError, match="give its content"):
        core_message(ChatMessage(blocks=[DocumentBlock(url="http://127.0.0.1:1/secret.pdf")]))


def test_what_no_worker_takes_is_told() -> None:
    with pytest.raises(ConfigError, match="no worker takes a AudioBlock"):
        core_message(ChatMessage(blocks=[AudioBlock(audio=b"abc", format="wav")]))


def test_citable_text_is_text_and_hints_are_dropped() -> None:
    blocks: list[Any] = [
        CitableBlock(title="t", source="s", content=[TextBlock(text="A fact.")]),
        CachePoint(cache_control=CacheControl(type="ephemeral")),
    ]
    assert core_message(ChatMessage(blocks=blocks)).content == (TextPart(text="A fact."),)


@pytest.mark.parametrize(
    "message",
    [
        Message.user("Why?"),
        Message.system("Be brief."),
        Message.tool("call-1", "It is 7."),
        Message.assistant("Wait.", tool_calls=[ToolCall(id="1", name="look", arguments='{"at": "x"}')]),
        Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="no JSON")]),
        Message(role="assistant", content=(ReasoningPart(text="Hm.", signature="s"), TextPart(text="So."))),
        Message(role="user", content=(ImagePart(data=base64.b64encode(PIXEL).decode()), TextPart(text="What?"))),
    ],
)
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert core_message(ChatMessage.model_validate(chat_message(message).model_dump())) == message


@pytest.mark.parametrize(
    ("role", "expected"),
    [("developer", "system"), ("chatbot", "assistant"), ("model", "assistant"), ("function", "tool")],
)
def test_every_role_has_a_place(role: str, expected: str) -> None:
    assert core_message(ChatMessage(role=MessageRole(role), content="x")).role == expected


def test_a_continuation_survives_json() -> None:
    reply = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    reply = reply.model_copy(update={"continuation": Continuation(worker="writer", prompt="Do it.")})
    stored = carrying(chat_message(reply), reply).model_dump_json()
    assert core_message(ChatMessage.model_validate_json(stored)) == reply


@pytest.mark.parametrize(
    "forged", [7, "writer", {"worker": 1}, {"worker": "w"}, {"worker": "w", "prompt": "p", "x": 1}, []]
)
def test_a_malformed_continuation_is_forgotten(forged: Any) -> None:
    message = ChatMessage(role="assistant", content="x", additional_kwargs={"continuation": forged})
    assert core_message(message).continuation is None


def test_only_an_assistants_message_continues() -> None:
    given = {"continuation": {"worker": "w", "prompt": "p"}}
    assert core_message(ChatMessage(role="user", content="x", additional_kwargs=given)).continuation is None


def test_a_thought_without_words_is_no_part() -> None:
    assert core_message(ChatMessage(role="assistant", blocks=[ThinkingBlock()])).content == ()


def test_a_call_without_an_id_goes_by_its_tools_name() -> None:
    (call,) = core_message(ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_name="look")])).tool_calls
    assert (call.id, call.arguments) == ("look", "{}")


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        (None, "auto"),
        ("any", "required"),
        ("none", "none"),
        ("look", "look"),
        ({"type": "function", "function": {"name": "look"}}, "look"),
    ],
)
def test_a_tool_choice_is_read_in_either_spelling(wanted: Any, meant: str) -> None:
    assert tool_choice(wanted, [Tool(name="look", description="", parameters={})]) == meant


def test_a_tool_that_is_not_there_can_not_be_chosen() -> None:
    with pytest.raises(ConfigError, match="tool_choice is 'lok'; write 'auto', 'required', 'none' or one of look"):
        tool_choice("lok", [Tool(name="look", description="", parameters={})])


def test_what_is_no_tool_is_told() -> None:
    with pytest.raises(ConfigError, match="to_openai_tool"):
        core_tool({"name": "look"})
