"""Tools that vendors define: the vendor or the client runs them, but workers of other vendors can't call them."""

from __future__ import annotations

import re
from typing import Any

import anthropic
import openai
import pytest

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, TextPart
from server.conftest import Serve

ASKED: list[Any] = [{"role": "user", "content": "Say something."}]
MESSAGE: Any = {"model": "conductor-mini", "max_tokens": 100, "messages": ASKED}
CHAT: Any = {"model": "conductor-mini", "messages": ASKED}
RESPONSE: Any = {"model": "conductor-mini", "input": "Say something."}
LOOK: Any = {"name": "look", "input_schema": {"type": "object"}}
LOOK_FUNCTION: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}
WEB_SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
NONE_LEFT = "tool_choice requires the call of a tool, but none can be called here; write 'auto'"


def ignored(response: Any) -> set[str]:
    return set(response.headers["x-conductor-ignored"].split(", "))


@pytest.mark.parametrize(
    "tool",
    [
        WEB_SEARCH | {"user_location": {"type": "approximate", "city": "Bern"}},
        {"type": "web_search_20260318", "name": "web_search"},
        {"type": "web_fetch_20250910", "name": "web_fetch", "citations": {"enabled": True}},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "mcp_toolset", "mcp_server_name": "files"},
    ],
)
async def test_a_tool_that_anthropic_runs_is_ignored_and_named(serve: Serve, tool: Any) -> None:
    a = ScriptedModel("Done.")
    at = await serve({"a": a})
    raw = await at.anthropic().messages.with_raw_response.create(**MESSAGE, tools=[tool, LOOK])
    assert ignored(raw) == {f"tools.{tool['type']}"}
    assert [offered.name for offered in a.requests[0].tools] == ["look"]
    await at.anthropic().messages.create(**MESSAGE, tools=[tool])
    assert a.requests[1].tools == ()
    count = await at.anthropic().messages.count_tokens(model="conductor-mini", messages=ASKED, tools=[tool])
    assert count.input_tokens > 0


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20251124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
        {"type": "computer_toolset_20260801"},
    ],
)
async def test_a_tool_that_the_client_runs_needs_a_schema_for_other_vendors(serve: Serve, tool: Any) -> None:
    at = await serve()
    says = (
        "tools.1.type is a tool whose parameters only Anthropic's models know; describe it as one of type 'custom', "
        "with name, description and input_schema"
    )
    with pytest.raises(anthropic.BadRequestError, match=re.escape(says)):
        await at.anthropic().messages.create(**MESSAGE, tools=[LOOK, tool])


async def test_an_unknown_type_of_tool_is_rejected(serve: Serve) -> None:
    at = await serve()
    tool: Any = {"type": "crystal_ball", "name": "ball"}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.type is not a supported type .*; write 'custom'"):
        await at.anthropic().messages.create(**MESSAGE, tools=[tool])


async def test_a_strict_server_rejects_tools_that_anthropic_runs(serve: Serve) -> None:
    at = await serve(intake={"strict": True})
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.type is not a supported type of tool"):
        await at.anthropic().messages.create(**MESSAGE, tools=[WEB_SEARCH])


@pytest.mark.parametrize(
    ("choice", "tools", "says"),
    [
        ({"type": "tool", "name": "web_search"}, [WEB_SEARCH, LOOK], "tool_choice names 'web_search', which is not"),
        ({"type": "tool", "name": "nothing"}, [LOOK], "tool_choice names 'nothing', which is not among the tools"),
        ({"type": "any"}, [WEB_SEARCH], NONE_LEFT),
    ],
)
async def test_a_choice_that_only_an_ignored_tool_could_meet_is_rejected(
    serve: Serve, choice: Any, tools: Any, says: str
) -> None:
    at = await serve()
    with pytest.raises(anthropic.BadRequestError, match=says):
        await at.anthropic().messages.create(**MESSAGE, tools=tools, tool_choice=choice)


async def test_blocks_of_earlier_turns_about_tools_of_anthropic_are_left_out_and_named(serve: Serve) -> None:
    a = ScriptedModel("Done.")
    at = await serve({"a": a})
    found = {"type": "web_search_result", "url": "https://x.example", "title": "X", "encrypted_content": "abc"}
    cited = {"type": "web_search_result_location", "url": "https://x.example", "cited_text": "x", "title": "X"}
    paused = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
    ]
    ran = {"type": "code_execution_result", "stdout": "7", "stderr": "", "return_code": 0, "content": []}
    answered = [
        {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": ran},
        {"type": "text", "text": "It is 7.", "citations": [cited]},
    ]
    turns = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": paused},
        {"role": "assistant", "content": answered},
        {"role": "user", "content": "Are you sure?"},
    ]
    raw = await at.anthropic().messages.with_raw_response.create(**MESSAGE | {"messages": turns}, tools=[WEB_SEARCH])
    names = ("server_tool_use", "web_search_tool_result", "code_execution_tool_result")
    assert ignored(raw) == {"tools.web_search_20250305", *(f"messages.content.{name}" for name in names)}
    earlier = [message for message in a.requests[0].messages if message.role == "assistant"]
    assert earlier == [Message(role="assistant", content=(TextPart(text="It is 7."),))]


async def test_instructions_among_the_messages_of_anthropic_reach_the_worker(serve: Serve) -> None:
    a = ScriptedModel("Done.")
    at = await serve({"a": a})
    turns: Any = [*ASKED, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, *ASKED]
    await at.anthropic().messages.create(**MESSAGE | {"messages": turns})
    assert "Be brief." in [message.text for message in a.requests[0].messages if message.role == "system"]


async def test_searches_of_chat_completions_are_ignored_and_named(serve: Serve) -> None:
    at = await serve()
    raw = await at.openai().chat.completions.with_raw_response.create(**CHAT, web_search_options={})
    assert ignored(raw) == {"web_search_options"}
    tools: Any = [{"type": "web_search_preview"}, {"type": "openrouter:web_search"}]
    raw = await at.openai().chat.completions.with_raw_response.create(**CHAT, tools=tools)
    assert ignored(raw) == {"tools.web_search_preview", "tools.openrouter?web_search"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
            "tools.0.type is not a supported type of tool; write",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, NONE_LEFT),
    ],
)
async def test_tools_of_chat_completions_that_can_not_be_called_are_rejected(
    serve: Serve, wrong: Any, says: str
) -> None:
    at = await serve()
    with pytest.raises(openai.BadRequestError, match=says):
        await at.openai().chat.completions.create(**CHAT | wrong)


async def test_tools_that_openai_runs_are_ignored_and_named(serve: Serve) -> None:
    a = ScriptedModel("Done.")
    at = await serve({"a": a})
    tools: Any = [
        {"type": "web_search", "search_context_size": "low"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "mcp", "server_label": "x", "server_url": "https://x.example", "require_approval": "never"},
        {"type": "image_generation"},
        LOOK_FUNCTION,
    ]
    raw = await at.openai().responses.with_raw_response.create(**RESPONSE, tools=tools)
    assert ignored(raw) == {f"tools.{tool['type']}" for tool in tools[:-1]}
    assert [offered.name for offered in a.requests[0].tools] == ["look"]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("required", NONE_LEFT),
        ({"type": "web_search"}, "tool_choice.type is not a supported type of tool; write 'function'"),
        ({"type": "function", "name": "nothing"}, "tool_choice names 'nothing', which is not among the tools"),
    ],
)
async def test_a_choice_of_a_tool_that_openai_runs_is_rejected(serve: Serve, choice: Any, says: str) -> None:
    at = await serve()
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        await at.openai().responses.create(**RESPONSE, tools=[{"type": "web_search"}], tool_choice=choice)
    assert (refused.value.param or "").startswith("tool_choice")


async def test_items_of_earlier_responses_about_other_tools_are_accepted(serve: Serve) -> None:
    a = ScriptedModel(["Done.", "Done again."])
    at = await serve({"a": a})
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    patched = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "apply_patch", "input": "+ x"}
    result = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "patched"}
    texts: Any = {
        "type": "custom_tool_call_output",
        "call_id": "call_2",
        "output": [{"type": "input_text", "text": "y"}],
    }
    asked: Any = [{"role": "user", "content": "Patch."}, searched, patched, result, patched | {"call_id": "call_2"}]
    raw = await at.openai().responses.with_raw_response.create(model="conductor-mini", input=[*asked, texts])
    assert ignored(raw) == {"input.web_search_call"}
    messages = a.requests[0].messages
    assert [(call.name, call.arguments) for message in messages for call in message.tool_calls] == [
        ("apply_patch", '{"input": "+ x"}')
    ] * 2
    assert [message.text for message in messages if message.role == "tool"] == ["patched", "y"]
    first = raw.parse()
    await at.openai().responses.create(model="conductor-mini", input="Again.", previous_response_id=first.id)
    assert [message.text for message in a.requests[1].messages if message.role == "tool"] == ["patched", "y"]
    items = await at.openai().responses.input_items.list(first.id)
    assert {item.type for item in items.data} >= {"custom_tool_call", "web_search_call"}


@pytest.mark.parametrize("kind", ["shell_call", "local_shell_call", "apply_patch_call", "computer_call"])
async def test_calls_of_openais_own_tools_and_their_results_are_left_out_of_a_history(serve: Serve, kind: str) -> None:
    a = ScriptedModel("from a")
    at = await serve({"a": a})
    items = [
        {"type": "compaction", "encrypted_content": "x"},
        {"role": "user", "content": "Go."},
        {"type": kind, "call_id": "c1", "action": {}},
        {"type": f"{kind}_output", "call_id": "c1", "output": "done"},
    ]
    answered = await at.http.post("/v1/responses", json={"model": "conductor-mini", "input": items})
    assert answered.status_code == 200
    ignored = ("compaction", kind, f"{kind}_output")
    assert answered.headers["x-conductor-ignored"] == ", ".join(f"input.{name}" for name in ignored)
    assert [message.role for message in a.requests[0].messages] == ["user"]
