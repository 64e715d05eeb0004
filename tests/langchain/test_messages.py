"""Messages, tools and usage are converted between LangChain and the core without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.tools import tool
from langchain_openai import custom_tool
from pydantic import BaseModel

from langchain_conductor.messages import (
    TURN_STATE_KEY,
    core_message,
    core_messages,
    core_usage,
    lc_message,
    lc_messages,
    lc_reply,
    lc_usage,
)
from langchain_conductor.models.replies import core_completion
from langchain_conductor.tools import core_tool, lc_tool
from rl_conductor.errors import BadResponseError, ConfigError
from rl_conductor.types import (
    FREE,
    Continuation,
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCall,
    Usage,
)

PNG = "iVBORw0KGgo="

TURNS = [
    (SystemMessage("Be brief."), Message.system("Be brief.")),
    (HumanMessage("Hi", name="ann"), Message(role="user", content="Hi", name="ann")),
    (HumanMessage(["Hi", {"type": "text", "text": " there"}]), Message.user("Hi", TextPart(text=" there"))),
    (AIMessage("Yes."), Message.assistant("Yes.")),
    (AIMessageChunk(content="Yes."), Message.assistant("Yes.")),
    (ChatMessage(content="Hi", role="user"), Message.user("Hi")),
    (ChatMessage(content="Hi", role="developer"), Message(role="system", content="Hi", is_developer=True)),
    (ToolMessage("18 degrees", tool_call_id="c1"), Message.tool("c1", "18 degrees")),
    (ToolMessage("no such city", tool_call_id="c1", status="error"), Message.tool("c1", "no such city", is_error=True)),
]


@pytest.mark.parametrize(("theirs", "ours"), TURNS, ids=lambda turn: type(turn).__name__)
def test_a_turn_of_text_becomes_a_message_of_its_role(theirs: AnyMessage, ours: Message) -> None:
    assert core_message(theirs) == ours


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "url": "https://x/y.png"}, ImagePart(url="https://x/y.png")),
        ({"type": "image", "base64": PNG, "mime_type": "image/gif"}, ImagePart(data=PNG, media_type="image/gif")),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}, ImagePart(data=PNG)),
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, ImagePart(url="https://x/y.png")),
        ({"type": "image_url", "image_url": "https://x/y.png"}, ImagePart(url="https://x/y.png")),
        (
            {"type": "image_url", "image_url": f"data:image/gif;base64,{PNG}"},
            ImagePart(data=PNG, media_type="image/gif"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            ImagePart(url="https://x/y.png", detail="low"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": ["?"]}},
            ImagePart(url="https://x/y.png"),
        ),
        ({"type": "image", "url": f"data:image/gif;base64,{PNG}"}, ImagePart(data=PNG, media_type="image/gif")),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": PNG}},
            ImagePart(data=PNG, media_type="image/gif"),
        ),
        ({"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"}, ImagePart(data=PNG)),
        ({"type": "file", "base64": PNG, "mime_type": "application/pdf"}, FilePart(data=PNG)),
        (
            {"type": "file", "base64": PNG, "mime_type": "text/csv", "filename": "a.csv"},
            FilePart(data=PNG, media_type="text/csv", name="a.csv"),  # it is no text, whatever its type says
        ),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PNG}"}},
            FilePart(data=PNG, name="a.pdf"),
        ),
        ({"type": "file", "url": f"data:application/pdf;base64,{PNG}"}, FilePart(data=PNG)),
        (
            {"type": "file", "base64": PNG, "mime_type": "application/pdf", "metadata": "a.pdf"},
            FilePart(data=PNG),
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PNG},
                "title": "a.pdf",
            },
            FilePart(data=PNG, name="a.pdf"),
        ),
        (
            {
                "type": "file",
                "source_type": "base64",
                "data": PNG,
                "mime_type": "application/pdf",
                "metadata": {"name": "a.pdf"},
            },
            FilePart(data=PNG, name="a.pdf"),
        ),
        ({"type": "text-plain", "text": "notes", "mime_type": "text/plain"}, TextPart(text="notes")),
        ({"type": "text-plain", "base64": "R3LDvMOfZQ==", "mime_type": "text/plain"}, TextPart(text="Grüße")),
        (
            {"type": "file", "base64": "R3LDvMOfZQ==", "mime_type": "text/markdown", "filename": "a.md"},
            TextPart(text="[Document: a.md]\nGrüße\n[End of the document]\n"),
        ),
        (
            {"type": "text-plain", "text": "notes", "mime_type": "text/plain", "title": "a.txt", "context": "of May"},
            TextPart(text="[Document: a.txt]\n[Context: of May]\nnotes\n[End of the document]\n"),
        ),
        ({"type": "input_text", "text": "notes"}, TextPart(text="notes")),
        (
            {"type": "input_image", "image_url": f"data:image/gif;base64,{PNG}", "detail": "low"},
            ImagePart(data=PNG, media_type="image/gif", detail="low"),
        ),
        ({"type": "input_image", "image_url": "https://x/y.png"}, ImagePart(url="https://x/y.png")),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PNG}"},
            FilePart(data=PNG, name="a.pdf"),
        ),
        ({"type": "input_file", "filename": "a.pdf", "file_data": PNG}, FilePart(data=PNG, name="a.pdf")),
        (
            {"type": "input_file", "filename": "a.md", "file_data": "R3LDvMOfZQ=="},
            TextPart(text="[Document: a.md]\nGrüße\n[End of the document]\n"),
        ),
        ({"type": "media", "mime_type": "application/pdf", "data": PNG}, FilePart(data=PNG)),
        ({"type": "media", "mime_type": "image/gif", "data": PNG}, ImagePart(data=PNG, media_type="image/gif")),
        ({"type": "media", "mime_type": "text/plain", "data": "Grüße".encode()}, TextPart(text="Grüße")),
        (
            {
                "type": "search_result",
                "source": "https://x/y",
                "title": "Prices",
                "content": [{"type": "text", "text": "Tea: 3"}, {"type": "text", "text": "Coffee: 4"}],
            },
            TextPart(
                text="[Search result: Prices]\n[Source: https://x/y]\nTea: 3\nCoffee: 4\n[End of the search result]\n"
            ),
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "notes"}]},
                "title": "a.txt",
            },
            TextPart(text="[Document: a.txt]\nnotes\n[End of the document]\n"),
        ),
    ],
    ids=str,
)
def test_pictures_and_documents_are_read_in_every_spelling(block: dict[str, Any], part: object) -> None:
    assert core_message(HumanMessage([block])).content == (part,)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "google_genai"])
@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "input_image", "image_url": f"data:image/gif;base64,{PNG}"},
            ImagePart(data=PNG, media_type="image/gif"),
        ),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": PNG}},
            ImagePart(data=PNG, media_type="image/gif"),
        ),
        ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, ImagePart(url="https://x/y.png")),
        ({"type": "media", "mime_type": "application/pdf", "data": PNG}, FilePart(data=PNG)),
        ({"type": "refusal", "refusal": "I can't."}, TextPart(text="I can't.")),
        (
            {"type": "input_file", "file_id": "f1"},
            TextPart(text="[a block of type 'input_file' is left out: it can't be sent to every worker]"),
        ),
        (
            {"type": "media", "mime_type": "audio/wav", "data": PNG},
            TextPart(text="[a block of type 'audio' is left out: it can't be sent to every worker]"),
        ),
    ],
    ids=str,
)
def test_a_block_of_a_reply_is_converted_or_a_note_says_that_it_is_left_out(
    provider: str, block: dict[str, Any], part: object
) -> None:
    assert core_message(AIMessage([block], response_metadata={"model_provider": provider})).content == (part,)


def test_a_refusal_beside_the_same_text_is_not_repeated() -> None:
    refusal = lc_reply(Message.assistant("I can't."), is_refusal=True)
    assert core_message(refusal) == Message.assistant("I can't.")


def test_the_context_of_a_pdf_precedes_it() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": PNG}
    block = {"type": "document", "source": source, "title": "a.pdf", "context": "of May"}
    context, file = core_message(HumanMessage([block])).content
    assert context == TextPart(text="[Context of the document a.pdf: of May]\n")
    assert file == FilePart(data=PNG, name="a.pdf")


@pytest.mark.parametrize(
    ("block", "expected_error"),
    [
        ({"type": "audio", "base64": PNG, "mime_type": "audio/wav"}, "'audio'.*write text, images or files"),
        ({"type": "file", "url": "https://x/y.pdf"}, "'file'.*write its content as base64"),
        ({"type": "image", "file_id": "f1"}, "'image'.*write its content as base64"),
        ({"type": "input_image", "file_id": "f1"}, "'input_image'.*write its content as base64"),
        ({"type": "input_file", "file_url": "https://x/y.pdf"}, "'input_file'.*write its content as base64"),
        ({"type": "media", "mime_type": "image/png", "file_uri": "gs://x"}, "'media'.*write its content as base64"),
        ({"type": "media", "mime_type": "audio/wav", "data": PNG}, "'audio'.*write text, images or files"),
        ({"type": "search_result", "content": [{"type": "image"}]}, "'search_result'.*write text, images or files"),
        ({"type": "hologram"}, "'hologram'"),
    ],
    ids=str,
)
def test_a_block_that_not_every_worker_can_take_is_refused_by_name(block: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(ConfigError, match=expected_error):
        core_message(HumanMessage([block]))


@pytest.mark.parametrize("message", [RemoveMessage("1"), ChatMessage(content="Hi", role="stranger")], ids=str)
def test_a_message_of_an_unsupported_type_is_refused(message: AnyMessage) -> None:
    with pytest.raises(ConfigError, match="write a system, human, AI or tool message"):
        core_message(message)


def test_other_vendors_own_blocks_in_replies_are_dropped() -> None:
    noted = AIMessage([{"type": "server_tool_result", "tool_call_id": "s1", "status": "success"}, "Done."])
    assert core_message(noted) == Message.assistant("Done.")


def test_a_refusal_in_a_block_of_its_own_is_the_text_of_the_reply() -> None:
    refusal = AIMessage([{"type": "refusal", "refusal": "I can't."}])
    completion = core_completion(refusal, model="m", price=None)
    assert (completion.text, completion.finish_reason) == ("I can't.", "content_filter")


def test_the_explanation_of_anthropics_refusal_is_the_text_of_the_reply() -> None:
    details = {"type": "refusal", "explanation": "I can't."}
    refusal = AIMessage("", response_metadata={"stop_reason": "refusal", "stop_details": details})
    completion = core_completion(refusal, model="m", price=None)
    assert (completion.text, completion.finish_reason) == ("I can't.", "content_filter")


def test_thoughts_are_kept_apart_from_the_answer() -> None:
    blocks: list[str | dict[Any, Any]] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Yes."},
    ]
    assert core_message(AIMessage(blocks)).content == (ReasoningPart(text="Hm.", signature="s"), TextPart(text="Yes."))


@pytest.mark.parametrize("provider", [{}, {"model_provider": "anthropic"}], ids=str)
def test_reasoning_that_anthropic_encrypted_is_kept_and_sent_back_unchanged(provider: dict[str, str]) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "now", "input": {}}
    blocks: list[Any] = [
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
    ]
    made = {"name": "now", "args": {}, "id": "c1"}
    reply = core_message(AIMessage([*blocks, call], tool_calls=[made], response_metadata=provider))
    assert lc_message(reply).content == blocks
    assert core_message(lc_message(reply)) == reply


def test_tool_calls_come_over_with_their_arguments_as_text_even_invalid_ones() -> None:
    reply = AIMessage(
        "",
        tool_calls=[{"name": "weather", "args": {"city": "Kyïv"}, "id": "c1"}, {"name": "now", "args": {}, "id": None}],
        invalid_tool_calls=[{"name": "send", "args": '{"to":', "id": "c3", "error": "cut"}],
    )
    assert core_message(reply).tool_calls == (
        ToolCall(id="c1", name="weather", arguments='{"city": "Kyïv"}'),
        ToolCall(id="call_1", name="now", arguments="{}"),
        ToolCall(id="c3", name="send", arguments='{"to":'),
    )


@pytest.mark.parametrize("arguments", ['{"to":', "[1]", "[" * 100_000], ids=["cut off", "a list", "too deep"])
def test_arguments_that_are_no_object_are_an_invalid_tool_call(arguments: str) -> None:
    reply = lc_reply(Message.assistant(tool_calls=[ToolCall(id="c1", name="send", arguments=arguments)]))
    assert reply.tool_calls == []
    assert reply.invalid_tool_calls[0]["args"] == arguments


def test_arguments_left_empty_are_an_empty_object() -> None:
    assert lc_reply(Message.assistant(tool_calls=[ToolCall(id="c", name="now", arguments="")])).tool_calls == [
        {"name": "now", "args": {}, "id": "c", "type": "tool_call"}
    ]


def test_texts_of_a_tools_result_stay_apart() -> None:
    result = ToolMessage([{"type": "text", "text": text} for text in ("18", "95", "7")], tool_call_id="c1")
    assert lc_message(core_message(result)).content == "18\n95\n7"


def test_a_conversation_survives_the_way_there_and_back() -> None:
    turns = (
        Message.system("Be brief."),
        Message.user("Look.", ImagePart(data=PNG), ImagePart(url="https://x/y.png"), FilePart(data=PNG, name="a.pdf")),
        Message.assistant("I will.", tool_calls=[ToolCall(id="c1", name="look", arguments='{"at": "it"}')]),
        Message(role="tool", tool_call_id="c1", content="a cat", name="look"),
        Message(role="tool", tool_call_id="c2", content="no camera", is_error=True),
        Message(role="assistant", content=(ReasoningPart(text="Hm.", signature="s"), TextPart(text="A cat."))),
    )
    assert core_messages(lc_message(turn) for turn in turns) == turns
    (failed,) = (turn for turn in lc_messages(turns) if isinstance(turn, ToolMessage) and turn.status == "error")
    assert failed.text == "error: no camera"


def test_unsigned_reasoning_reaches_only_the_caller() -> None:
    thought = Message(role="assistant", content=(ReasoningPart(text="Hm."), TextPart(text="Yes.")))
    assert lc_message(thought) == AIMessage("Yes.")
    assert lc_reply(thought).content_blocks[0] == {"type": "reasoning", "reasoning": "Hm."}
    assert lc_reply(thought).text == "Yes."


GOING_ON = Message(
    role="assistant",
    content=(ReasoningPart(text="Hm.", signature="s"),),
    tool_calls=(ToolCall(id="c1", name="look", arguments="{}"),),
    continuation=Continuation(worker="coder", prompt="Task: look."),
)


def test_a_continuation_survives_being_stored_as_json() -> None:
    stored = json.dumps(messages_to_dict([lc_reply(GOING_ON)]))
    assert core_messages(messages_from_dict(json.loads(stored))) == (GOING_ON,)


def test_a_continuation_survives_being_streamed_in_chunks() -> None:
    reply = lc_reply(GOING_ON)
    last = AIMessageChunk(content="", additional_kwargs=reply.additional_kwargs)
    merged = AIMessageChunk(content="I") + AIMessageChunk(content=" will") + last
    assert isinstance(merged, AIMessage)
    assert core_message(merged).continuation == GOING_ON.continuation


def test_a_continuation_is_meant_for_the_conductor_alone() -> None:
    assert TURN_STATE_KEY not in lc_message(GOING_ON).additional_kwargs


@pytest.mark.parametrize(
    "forged", [None, "x", [], {"continuation": {"worker": 7}}, {"continuation": {"worker": "a", "prompt": "b"}, "x": 1}]
)
def test_a_malformed_continuation_is_forgotten(forged: Any) -> None:
    assert core_message(AIMessage("Hi", additional_kwargs={TURN_STATE_KEY: forged})) == Message.assistant("Hi")


def test_usage_comes_over_with_its_shares_and_back() -> None:
    usage = Usage(input_tokens=10, cached_tokens=4, cache_write_tokens=3, output_tokens=5, reasoning_tokens=2)
    assert core_usage(lc_usage(usage)) == usage
    assert lc_usage(usage)["total_tokens"] == 15
    assert core_usage(None) == Usage()


def test_counts_that_cannot_be_are_put_in_bounds() -> None:
    metadata: Any = {
        "input_tokens": 3,
        "output_tokens": -5,
        "total_tokens": 1,
        "input_token_details": {"cache_read": 9, "cache_creation": 9},
        "output_token_details": {"reasoning": None},
    }
    assert core_usage(metadata) == Usage(input_tokens=3, cached_tokens=3)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"finish_reason": "stop"}, "stop"),
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"finish_reason": "SAFETY"}, "content_filter"),
        ({"stop_reason": "refusal"}, "content_filter"),
        ({"prompt_feedback": {"block_reason": "PROHIBITED_CONTENT"}}, "content_filter"),
        ({"prompt_feedback": {"block_reason": 0, "safety_ratings": []}, "finish_reason": "STOP"}, "stop"),
        ({"stopReason": "max_tokens"}, "length"),
        ({"stopReason": "guardrail_intervened"}, "content_filter"),
        ({"finish_reason": "something new"}, "stop"),
        ({}, "stop"),
    ],
    ids=str,
)
def test_the_end_of_a_reply_is_understood_in_every_vendors_words(metadata: dict[str, Any], reason: str) -> None:
    reply = AIMessage("Hi", response_metadata=metadata)
    assert core_completion(reply, model="x:y", price=None).finish_reason == reason


@pytest.mark.parametrize(
    ("metadata", "is_complete"),
    [
        ({"model_provider": "openai"}, False),
        ({"model_provider": "anthropic", "model_name": "claude"}, False),
        ({"model_provider": "openai", "finish_reason": "stop"}, True),
        ({"model_provider": "openai", "status": "completed"}, True),
        ({"model_provider": "anthropic", "stop_reason": "end_turn"}, True),
        ({"model_provider": "someone"}, True),
        ({}, True),
    ],
    ids=str,
)
def test_a_streamed_reply_that_broke_off_is_an_error(metadata: dict[str, str], is_complete: bool) -> None:
    reply = AIMessageChunk(content="A reply th", response_metadata=metadata)
    if is_complete:
        assert core_completion(reply, model="x:y", price=None).text == "A reply th"
    else:
        with pytest.raises(BadResponseError, match="x:y: the reply broke off"):
            core_completion(reply, model="x:y", price=None)


def test_a_completion_has_the_answering_model_and_its_cost() -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    reply = AIMessage("Hi", response_metadata={"model_name": "gpt-x"}, usage_metadata=usage)
    completion = core_completion(reply, model="openai:gpt", price=FREE)
    assert completion.model == "gpt-x"
    assert completion.usage == Usage(input_tokens=3, output_tokens=2, calls=1)


def test_a_completion_without_usage_is_unpriced() -> None:
    completion = core_completion(AIMessage("Hi"), model="openai:gpt", price=FREE)
    assert completion.model == "openai:gpt"
    assert completion.usage == Usage(calls=1, unpriced_calls=1)


class Search(BaseModel):
    """Search the web."""

    query: str


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


@pytest.mark.parametrize(
    ("theirs", "name", "argument"),
    [
        (Search, "Search", "query"),
        (look, "look", "at"),
        ({"name": "pick", "description": "Pick.", "input_schema": {"properties": {"it": {}}}}, "pick", "it"),
        ({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}, "f", "a"),
    ],
    ids=["pydantic", "tool", "Anthropic's", "OpenAI's"],
)
def test_a_tool_is_read_in_every_spelling(theirs: Any, name: str, argument: str) -> None:
    tool = core_tool(theirs)
    assert tool.name == name
    assert list(tool.parameters["properties"]) == [argument]


def test_a_tool_without_arguments_takes_an_empty_object() -> None:
    assert core_tool({"name": "now", "description": "Now."}) == Tool(name="now", description="Now.")
    assert core_tool(lc_tool(Tool(name="now"))) == Tool(name="now")


@pytest.mark.parametrize("tool", ["search", {"type": "object"}, 7])
def test_an_invalid_tool_is_refused(tool: Any) -> None:
    with pytest.raises(ConfigError, match="is not a tool; write a function"):
        core_tool(tool)


@pytest.mark.parametrize(
    "tool", [{"type": "web_search_preview"}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
)
def test_a_tool_of_a_vendors_server_is_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="runs only on its vendor's server"):
        core_tool(tool)


def test_a_tool_in_anthropics_form_is_a_function() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = core_tool({"type": "custom", "name": "weather", "input_schema": schema})
    assert tool == Tool(name="weather", parameters=schema)


@custom_tool
def run_code(code: str) -> str:
    """Runs code."""
    return f"ran {code}"


FREEFORM = {"type": "custom", "name": "run_code", "description": "Runs code."}


@pytest.mark.parametrize(
    "tool", [run_code, FREEFORM, {"type": "custom", "custom": FREEFORM | {"format": {"type": "text"}}}]
)
def test_a_tool_of_openai_that_takes_a_text_is_a_function_of_one(tool: Any) -> None:
    converted = core_tool(tool)
    assert (converted.name, converted.description) == ("run_code", "Runs code.")
    assert converted.parameters["required"] == ["__arg1"]


def test_a_tool_with_a_grammar_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'run_code' has a grammar, .*; leave out its format="):
        core_tool(FREEFORM | {"format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}})


def test_what_a_tool_that_takes_a_text_returns_is_read() -> None:
    result = run_code.invoke({"type": "tool_call", "id": "1", "name": "run_code", "args": {"__arg1": "1 + 1"}})
    assert core_message(result).text == "ran 1 + 1"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "bedrock_converse"])
def test_plain_texts_beside_blocks_are_read(provider: str) -> None:
    content: list[Any] = ["My name is Bob.", {"type": "text", "text": " Yours?"}]
    message = AIMessage(content, response_metadata={"model_provider": provider})
    assert core_message(message).text == message.text == "My name is Bob. Yours?"


@pytest.mark.parametrize("lifetime", ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"])
def test_writes_to_anthropics_cache_are_counted_by_their_lifetime(lifetime: str) -> None:
    details = {"cache_read": 0, "cache_creation": 0, lifetime: 70}
    usage: Any = {"input_tokens": 100, "output_tokens": 1, "total_tokens": 101, "input_token_details": details}
    assert core_usage(usage).cache_write_tokens == 70


def test_a_hit_of_langchains_cache_is_a_cached_call() -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "total_cost": 0}
    completion = core_completion(AIMessage("Hi", usage_metadata=usage), model="openai:gpt", price=FREE)
    assert completion.usage == Usage(input_tokens=3, output_tokens=2, calls=1, cached_calls=1)


@pytest.mark.parametrize(("provider", "output"), [("openai", 103), ("bedrock_converse", 9)])
def test_reasoning_that_openais_compatible_servers_count_in_the_total_alone_is_output(
    provider: str, output: int
) -> None:
    usage: Any = {
        "input_tokens": 32,
        "output_tokens": 9,
        "total_tokens": 135,
        "output_token_details": {"reasoning": 94},
    }
    message = AIMessage("Hi", usage_metadata=usage, response_metadata={"model_provider": provider})
    assert core_completion(message, model="xai:grok", price=FREE).usage.output_tokens == output


@pytest.mark.parametrize("tier", ["priority", "flex"])
def test_a_call_of_a_tier_with_its_own_price_is_unpriced_and_its_tokens_are_read(tier: str) -> None:
    usage: Any = {"input_tokens": 100, "output_tokens": 30, "total_tokens": 130}
    usage["input_token_details"] = {f"{tier}_cache_read": 40, f"{tier}_cache_creation": 10, tier: 60}
    usage["output_token_details"] = {f"{tier}_reasoning": 20, tier: 10}
    completion = core_completion(AIMessage("Hi", usage_metadata=usage), model="openai:gpt", price=FREE)
    tokens = Usage(input_tokens=100, cached_tokens=40, cache_write_tokens=10, output_tokens=30, reasoning_tokens=20)
    assert completion.usage == tokens.model_copy(update={"calls": 1, "unpriced_calls": 1})
