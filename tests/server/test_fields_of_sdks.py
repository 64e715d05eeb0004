"""Fields that the vendors' newest SDKs send: none that carries state or safety is dropped as an unknown one."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import input_token_count_params, response_create_params

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, Message, ToolCall, Usage
from rl_conductor_server.api.anthropic_messages.schema import MessagesBody
from rl_conductor_server.api.openai_chat.schema import ChatBody
from rl_conductor_server.api.openai_responses.schema import ResponsesBody
from rl_conductor_server.request_validation.parsing import Body
from server.conftest import Serve

HARMLESS = {
    ChatBody: {"audio", "web_search_options"},
    ResponsesBody: {"access_programs", "background_options", "context_management", "image", "personality"},
    MessagesBody: {
        *("container", "context_management", "diagnostics", "fallback_credit_token", "fallbacks", "speed"),
        *("betas", "user_profile_id", "workspace_id"),  # the SDK sends them as headers
    },
}
"""Fields that the server ignores as unknown: a workflow without them is as safe, and knows the whole conversation."""
ASKED: Any = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (ChatBody, completion_create_params.CompletionCreateParamsStreaming),
        (ResponsesBody, response_create_params.ResponseCreateParamsStreaming),
        (ResponsesBody, input_token_count_params.InputTokenCountParams),
        (MessagesBody, message_create_params.MessageCreateParamsStreaming),
        (MessagesBody, beta_create_params.MessageCreateParamsStreaming),
        (MessagesBody, message_count_tokens_params.MessageCountTokensParams),
        (MessagesBody, beta_count_tokens_params.MessageCountTokensParams),
    ],
)
def test_each_field_of_an_sdk_is_one_of_the_body_unless_it_is_harmless(body: type[Body], params: Any) -> None:
    fields = params.__required_keys__ | params.__optional_keys__
    assert "model" in fields
    assert fields - set(body.model_fields) <= HARMLESS[body]


@pytest.mark.parametrize(
    ("path", "field", "value", "says"),
    [
        ("/v1/messages", "thread", {"type": "create"}, "send the whole conversation"),
        ("/v1/messages/count_tokens", "thread", {"type": "continue", "previous_message_id": "msg_1"}, "send the whole"),
        ("/v1/messages", "compaction", {"type": "summarize"}, "ask for a summary"),
        ("/v1/messages", "inference_geo", "us", "conductor.policy.data_rules"),
        ("/v1/messages", "billing_policy", {"type": "billing_policy", "bill_to": "user_profile"}, "leave it out"),
        ("/v1/chat/completions", "moderation", {"policy": {"input": {"mode": "block"}}}, "guardrails of this server"),
        ("/v1/responses", "moderation", {"policy": {"output": {"mode": "block"}}}, "guardrails of this server"),
    ],
)
async def test_a_field_that_carries_state_or_safety_is_rejected(
    serve: Serve, path: str, field: str, value: Any, says: str
) -> None:
    at = await serve()
    content = {"input": "Hello"} if "responses" in path else {"messages": ASKED, "max_tokens": 10}
    reply = await at.http.post(path, json={"model": "conductor-mini", **content, field: value})
    assert reply.status_code == 400, reply.text
    message = reply.json()["error"]["message"]
    assert message.startswith(f"{field} is not supported")
    assert says in message


@pytest.mark.parametrize(("field", "value"), [("thread", None), ("inference_geo", "global")])
async def test_such_a_field_without_effect_is_accepted(serve: Serve, field: str, value: Any) -> None:
    at = await serve()
    body = {"model": "conductor-mini", "messages": ASKED, "max_tokens": 10, field: value}
    assert (await at.http.post("/v1/messages", json=body)).status_code == 200


async def test_a_request_that_continues_a_thread_names_the_thread_though_it_has_no_messages(serve: Serve) -> None:
    at = await serve()
    thread: Any = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(anthropic.BadRequestError) as error:
        await at.anthropic().beta.messages.create(model="conductor-mini", max_tokens=10, messages=[], thread=thread)
    assert error.value.body["error"]["details"] == {  # type: ignore[index]
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


async def test_the_tool_runner_of_anthropics_sdk_sends_the_whole_conversation(serve: Serve) -> None:
    @beta_async_tool
    async def look(city: str) -> str:
        """Looks at a city."""
        return f"{city} is sunny"

    call = Message.assistant("", tool_calls=(ToolCall(id="1", name="look", arguments='{"city": "Paris"}'),))
    calling = Completion(message=call, finish_reason="tool_calls", usage=Usage(calls=1), model="a")
    a = ScriptedModel([calling, "It is sunny."])
    at = await serve({"a": a})
    runner = at.anthropic().beta.messages.tool_runner(
        model="conductor-mini", max_tokens=100, messages=[{"role": "user", "content": "My question."}], tools=[look]
    )
    answer = await runner.until_done()
    assert [block.text for block in answer.content if block.type == "text"] == ["It is sunny."]
    texts = [message.text for message in a.requests[-1].messages]
    assert any("My question." in text for text in texts)
    assert any("Paris is sunny" in text for text in texts)
    a.assert_complete()
