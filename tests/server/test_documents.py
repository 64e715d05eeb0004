"""Documents and search results of Anthropic's and OpenAI's clients reach workers of any vendor."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import anthropic
import pytest

from core.runs import prompt_of
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import FilePart, ImagePart, Request
from server.conftest import At, Serve

QUESTION = {"type": "text", "text": "Who wrote it?"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PDF = "JVBERi0="
LETTER = "Dear Ada,\nyours, Charles"


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


async def ask(at: At, *blocks: Any) -> Any:
    """Sends content blocks as the user's message and returns the response with its headers."""
    turns: Any = [{"role": "user", "content": [*blocks, QUESTION]}]
    return await at.anthropic().messages.with_raw_response.create(
        model="conductor-mini", max_tokens=100, messages=turns
    )


def user_message(worker: ScriptedModel) -> Any:
    request: Request = worker.requests[0]
    return next(message for message in request.messages if message.role == "user")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"source": {"type": "text", "media_type": "text/plain", "data": LETTER}}, f"[Document]\n{LETTER}"),
        (
            {"source": {"type": "text", "media_type": "text/plain", "data": LETTER}, "title": "A letter"}
            | {"context": "Found in 1843.", "citations": {"enabled": True}},
            f"[Document: A letter]\n[Context: Found in 1843.]\n{LETTER}",
        ),
        ({"source": {"type": "content", "content": LETTER}, "title": "A"}, f"[Document: A]\n{LETTER}"),
        (
            {"source": {"type": "content", "content": [QUESTION, {"type": "text", "text": "Ada."}]}},
            "[Document]\nWho wrote it?\nAda.",
        ),
        (
            {"source": {"type": "base64", "media_type": "text/plain", "data": encoded("Grüße")}, "title": "A"},
            "[Document: A]\nGrüße",
        ),
    ],
)
async def test_a_document_with_text_is_text_for_the_worker(serve: Serve, block: Any, text: str) -> None:
    a = ScriptedModel("Charles.")
    at = await serve({"a": a})
    raw = await ask(at, {"type": "document", **block})
    assert f"task:\n{text}\n[End of the document]\nWho wrote it?" in prompt_of(a.requests[0])
    ignored = ["messages.content.citations"] if "citations" in block else []
    assert [name for name in raw.headers.get("x-conductor-ignored", "").split(", ") if name] == ignored


async def test_images_in_a_document_follow_its_text(serve: Serve) -> None:
    a = ScriptedModel("Charles.")
    content = [{"type": "image", "source": PIXEL}, {"type": "text", "text": "A pixel."}]
    await ask(await serve({"a": a}), {"type": "document", "source": {"type": "content", "content": content}})
    assert "[Document]\nA pixel.\n[End of the document]\n" in prompt_of(a.requests[0])
    assert ImagePart(media_type="image/png", data="iVBORw0KGgo=") in user_message(a).content


async def test_a_pdf_stays_a_file_with_its_title_and_context(serve: Serve) -> None:
    a = ScriptedModel("Charles.")
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    block = {"type": "document", "source": source, "title": "A letter", "context": "Found in 1843."}
    await ask(await serve({"a": a}), block)
    assert "[Context of the document A letter: Found in 1843.]\n[file 1]\nWho wrote it?" in prompt_of(a.requests[0])
    assert FilePart(name="A letter", data=PDF) in user_message(a).content


async def test_a_search_result_is_text_for_the_worker_also_in_a_tool_result(serve: Serve) -> None:
    a = ScriptedModel(["Charles.", "Charles."])
    at = await serve({"a": a})
    result: Any = {"type": "search_result", "source": "https://ada.example", "title": "Letters"}
    result |= {"content": [{"type": "text", "text": LETTER}], "citations": {"enabled": True}}
    text = f"[Search result: Letters]\n[Source: https://ada.example]\n{LETTER}\n[End of the search result]\n"
    raw = await ask(at, result)
    assert f"task:\n{text}Who wrote it?" in prompt_of(a.requests[0])
    assert raw.headers["x-conductor-ignored"] == "messages.content.citations"
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
    found: Any = {"type": "tool_result", "tool_use_id": "toolu_1"}
    found["content"] = [result, {"type": "tool_reference", "tool_name": "x"}]
    turns: Any = [
        {"role": "user", "content": "Search."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [found]},
    ]
    await at.anthropic().messages.create(model="conductor-mini", max_tokens=100, messages=turns)
    assert [message.text for message in a.requests[1].messages if message.role == "tool"] == [text]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"type": "url", "url": "https://ada.example/letter.pdf"}, "source.type is not supported for documents; send"),
        ({"type": "file", "file_id": "file_1"}, "source.type is not supported for documents; send the content itself"),
        ({"type": "base64", "media_type": "text/plain", "data": "/w=="}, "source.data must be base64 of UTF-8 text"),
        ({"type": "scroll"}, "has the unsupported type 'scroll'; write one of 'base64', 'text', 'content'"),
    ],
)
async def test_a_document_that_can_not_be_read_here_is_rejected_with_what_to_send(
    serve: Serve, source: Any, says: str
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=says):
        await ask(await serve(), {"type": "document", "source": source})


async def test_text_files_of_openai_clients_are_text_for_the_worker(serve: Serve) -> None:
    a = ScriptedModel(["Charles.", "Charles."])
    at = await serve({"a": a})
    url = f"data:text/plain;base64,{encoded(LETTER)}"
    part: Any = {"type": "input_file", "file_data": url, "filename": "letter.txt"}
    asked: Any = [{"role": "user", "content": [part]}]
    await at.openai().responses.create(model="conductor-mini", input=asked)
    file: Any = {"type": "file", "file": {"file_data": url, "filename": "letter.txt"}}
    turns: Any = [{"role": "user", "content": [file]}]
    await at.openai().chat.completions.create(model="conductor-mini", messages=turns)
    text = f"[Document: letter.txt]\n{LETTER}\n[End of the document]\n"
    assert [text in prompt_of(request) for request in a.requests] == [True] * 2
