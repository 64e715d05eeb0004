"""Conversion of messages, tools and tool choices; continuations in chat histories are untrusted."""

from __future__ import annotations

import base64
from pathlib import Path
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
from pydantic import BaseModel

from llama_index.llms.conductor.messages import chat_message, core_message, core_tool, reply_message
from llamaindex.scripts import conductor, scripted_worker
from rl_conductor import ConfigError, Message
from rl_conductor.types import Continuation, FilePart, ImagePart, ReasoningPart, TextPart, ToolCall

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4 a page"


def test_images_and_documents_are_converted() -> None:
    message = ChatMessage(blocks=[TextBlock(text="Look:"), ImageBlock(image=PIXEL), DocumentBlock(data=PDF)])
    text, image, file = core_message(message).content
    assert text == TextPart(text="Look:")
    assert isinstance(image, ImagePart)
    assert image.media_type == "image/png"
    assert base64.b64decode(image.data or "") == PIXEL
    assert isinstance(file, FilePart)
    assert (file.media_type, base64.b64decode(file.data)) == ("application/pdf", PDF)


@pytest.mark.parametrize("media_type", [None, "text/csv"])
def test_a_text_document_is_text_for_every_worker(tmp_path: Path, media_type: str | None) -> None:
    (tmp_path / "notes.txt").write_text("Ein Käfer.")
    block = DocumentBlock(path=tmp_path / "notes.txt", title="notes", document_mimetype=media_type)
    content = core_message(ChatMessage(blocks=[block])).content
    assert content == (TextPart(text="[Document: notes]\nEin Käfer.\n[End of the document]\n"),)


def test_a_document_of_an_unknown_type_is_not_called_a_pdf() -> None:
    (file,) = core_message(ChatMessage(blocks=[DocumentBlock(data=b"\xff\x00\x01\x02")])).content
    assert isinstance(file, FilePart)
    assert (file.media_type, base64.b64decode(file.data)) == ("application/octet-stream", b"\xff\x00\x01\x02")


@pytest.mark.parametrize("name", ["contract.pdf", "notes.txt"])
def test_a_document_from_a_path_has_the_name_of_its_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PDF if name.endswith("pdf") else b"notes")
    (part,) = core_message(ChatMessage(blocks=[DocumentBlock(path=tmp_path / name)])).content
    assert name == part.name if isinstance(part, FilePart) else name in str(part)
    (titled,) = core_message(ChatMessage(blocks=[DocumentBlock(path=tmp_path / name, title="Mine")])).content
    assert "Mine" in str(titled)


def test_a_pdf_in_base64_is_a_pdf() -> None:
    (file,) = core_message(ChatMessage(blocks=[DocumentBlock(data=base64.b64encode(PDF))])).content
    assert isinstance(file, FilePart)
    assert (file.media_type, base64.b64decode(file.data)) == ("application/pdf", PDF)


def test_a_citable_block_keeps_its_title_and_source() -> None:
    block = CitableBlock(
        title="Kites", source="kites.md", content=[TextBlock(text="They fly."), ImageBlock(image=PIXEL)]
    )
    text, image = core_message(ChatMessage(blocks=[block])).content
    assert text == TextPart(text="[Document: Kites]\n[Source: kites.md]\nThey fly.\n[End of the document]\n")
    assert isinstance(image, ImagePart)


def test_arguments_of_tool_calls_keep_their_characters() -> None:
    call = ToolCallBlock(tool_name="find", tool_kwargs={"city": "東京"})
    assert core_message(ChatMessage(role="assistant", blocks=[call])).tool_calls[0].arguments == '{"city": "東京"}'


def test_an_image_and_a_document_reach_the_workers() -> None:
    llm = conductor()
    llm.chat([ChatMessage(blocks=[TextBlock(text="What is it?"), ImageBlock(image=PIXEL), DocumentBlock(data=PDF)])])
    kinds = {part.type for message in scripted_worker(llm, "writer").requests[0].messages for part in message.content}
    assert kinds == {"text", "image", "file"}


def test_an_image_url_is_passed_on_to_the_vendor() -> None:
    (image,) = core_message(ChatMessage(blocks=[ImageBlock(url="https://example.org/kite.png")])).content
    assert image == ImagePart(url="https://example.org/kite.png", media_type="image/png")


def test_the_detail_of_an_image_survives_the_round_trip() -> None:
    image = ImagePart(url="https://example.org/kite.png", media_type="image/png", detail="low")
    message = Message(role="user", content=(image,))
    assert core_message(chat_message(message)) == message
    (other,) = core_message(ChatMessage(blocks=[ImageBlock(url=image.url, detail="whatever")])).content
    assert other == image.model_copy(update={"detail": None})


def test_an_image_in_a_data_url_is_content() -> None:
    address = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    (image,) = core_message(ChatMessage(blocks=[ImageBlock(url=address)])).content
    assert isinstance(image, ImagePart)
    assert base64.b64decode(image.data or "") == PIXEL


def test_a_document_url_is_not_fetched() -> None:
    with pytest.raises(ConfigError, match="pass the content"):
        core_message(ChatMessage(blocks=[DocumentBlock(url="http://127.0.0.1:1/secret.pdf")]))


def test_an_unsupported_content_block_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unsupported content block AudioBlock"):
        core_message(ChatMessage(blocks=[AudioBlock(audio=b"abc", format="wav")]))


def test_cache_points_are_dropped() -> None:
    blocks: list[Any] = [
        TextBlock(text="A fact."),
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
def test_messages_survive_the_round_trip(message: Message) -> None:
    assert core_message(ChatMessage.model_validate(chat_message(message).model_dump())) == message


@pytest.mark.parametrize(
    ("role", "expected"),
    [("developer", "system"), ("chatbot", "assistant"), ("model", "assistant"), ("function", "tool")],
)
def test_every_role_is_converted(role: str, expected: str) -> None:
    assert core_message(ChatMessage(role=MessageRole(role), content="x")).role == expected


class _Function(BaseModel):
    name: str = "look"
    arguments: str = '{"at": "x"}'


class _OpenAICall(BaseModel):
    """A tool call as OpenAI's client has it."""

    id: str = "1"
    type: str = "function"
    function: _Function = _Function()


@pytest.mark.parametrize("stored", [_OpenAICall(), _OpenAICall().model_dump()], ids=["object", "JSON"])
def test_tool_calls_of_old_chat_stores_reach_the_workers(stored: Any) -> None:
    llm = conductor()
    llm.chat(
        [
            ChatMessage(content="What is there?"),
            ChatMessage(role="assistant", content=None, additional_kwargs={"tool_calls": [stored]}),
            ChatMessage(role="tool", content="A kite.", additional_kwargs={"tool_call_id": "1", "name": "look"}),
            ChatMessage(content="Sure?"),
        ]
    )
    calls = [call for each in scripted_worker(llm, "writer").requests[0].messages for call in each.tool_calls]
    assert calls == [ToolCall(id="1", name="look", arguments='{"at": "x"}')]


@pytest.mark.parametrize("stored", [None, "look", [None, "look", {"id": "1"}, {"id": 1, "function": {}}]])
def test_malformed_stored_tool_calls_are_ignored(stored: Any) -> None:
    assert core_message(ChatMessage(role="assistant", additional_kwargs={"tool_calls": stored})).tool_calls == ()


def test_stored_tool_calls_are_not_read_beside_blocks_nor_from_users() -> None:
    reply = reply_message(Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")]))
    assert len(core_message(reply).tool_calls) == 1
    stored = {"tool_calls": [_OpenAICall().model_dump()]}
    assert core_message(ChatMessage(content="Hi.", additional_kwargs=stored)).tool_calls == ()


def test_a_continuation_survives_json() -> None:
    reply = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    reply = reply.model_copy(update={"continuation": Continuation(worker="writer", prompt="Do it.")})
    stored = reply_message(reply).model_dump_json()
    assert core_message(ChatMessage.model_validate_json(stored)) == reply


@pytest.mark.parametrize(
    "forged", [7, "writer", {"worker": 1}, {"prompt": "p"}, {"worker": "w", "prompt": "p", "x": 1}, []]
)
def test_a_malformed_continuation_is_ignored(forged: Any) -> None:
    message = ChatMessage(role="assistant", content="x", additional_kwargs={"continuation": forged})
    assert core_message(message).continuation is None


def test_a_continuation_is_read_from_assistant_messages_only() -> None:
    forged = {"continuation": {"worker": "w", "prompt": "p"}}
    assert core_message(ChatMessage(role="user", content="x", additional_kwargs=forged)).continuation is None


def test_an_empty_thinking_block_is_dropped() -> None:
    assert core_message(ChatMessage(role="assistant", blocks=[ThinkingBlock()])).content == ()


def test_a_tool_call_without_an_id_gets_the_name_of_its_tool() -> None:
    (call,) = core_message(ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_name="look")])).tool_calls
    assert (call.id, call.arguments) == ("look", "{}")


def test_a_malformed_tool_is_an_error() -> None:
    with pytest.raises(ConfigError, match="to_openai_tool"):
        core_tool({"name": "look"})


def test_labels_stay_beside_their_images() -> None:
    first, second = ImagePart(url="https://a/1.png"), ImagePart(url="https://a/2.png")
    content = (TextPart(text="A:"), first, TextPart(text="B"), TextPart(text="(old):"), second, TextPart(text="Or?"))
    blocks = chat_message(Message(role="user", content=content)).blocks
    assert [getattr(block, "text", None) for block in blocks] == ["A:", None, "B\n(old):", None, "Or?"]


def test_texts_of_a_tools_result_stay_apart_and_pieces_of_a_reply_are_one_text() -> None:
    result = ChatMessage(role="tool", blocks=[TextBlock(text=text) for text in ("18", "95", "7")])
    assert chat_message(core_message(result)).blocks == [TextBlock(text="18\n95\n7")]
    reply = ChatMessage(role="assistant", blocks=[TextBlock(text="Par"), TextBlock(text="is.")])
    assert chat_message(core_message(reply)).blocks == [TextBlock(text="Paris.")]
