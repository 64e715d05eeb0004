"""Refusals that a model writes in place of an answer, as OpenAI's models do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, Message, Usage
from server.conftest import At, Serve

ASKED: Any = [{"role": "user", "content": "Say something."}]
WHY = "I can't help with that."
REFUSED = Completion(
    message=Message.assistant(WHY), is_refusal=True, finish_reason="content_filter", model="a", usage=Usage(calls=1)
)


class Event(BaseModel):
    name: str


async def chat(at: At) -> Any:
    reply = await at.openai().chat.completions.parse(model="conductor-mini", messages=ASKED, response_format=Event)
    return reply.choices[0].message.content, reply.choices[0].message.refusal, reply.choices[0].finish_reason


async def chat_stream(at: At) -> Any:
    options: Any = {"model": "conductor-mini", "messages": ASKED, "response_format": Event}
    async with at.openai().chat.completions.stream(**options) as stream:
        (choice,) = (await stream.get_final_completion()).choices
    return choice.message.content or None, choice.message.refusal, choice.finish_reason


async def responses(at: At) -> Any:
    reply = await at.openai().responses.parse(model="conductor-mini", input="Say something.", text_format=Event)
    message: Any = reply.output[0]
    (part,) = message.content
    assert (reply.status, reply.output_parsed, part.type) == ("completed", None, "refusal")
    return reply.output_text or None, part.refusal, "stop"


async def responses_stream(at: At) -> Any:
    client, text = at.openai(), ""
    async with client.responses.stream(model="conductor-mini", input="Say something.", text_format=Event) as stream:
        async for event in stream:
            text += event.delta if event.type == "response.refusal.delta" else ""
        reply: Any = await stream.get_final_response()
    assert text == reply.output[0].content[0].refusal
    return reply.output_text or None, text, "stop"


@pytest.mark.parametrize("ask", [chat, chat_stream, responses, responses_stream])
async def test_a_refusal_is_one_in_openais_apis(serve: Serve, ask: Any) -> None:
    a = ScriptedModel([REFUSED])
    assert await ask(await serve({"a": a})) == (None, WHY, "stop")
    a.assert_complete()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_the_text_of_a_message_in_anthropics_api(serve: Serve, *, stream: bool) -> None:
    at = await serve({"a": ScriptedModel([REFUSED])})
    options: Any = {"model": "conductor-mini", "messages": ASKED, "max_tokens": 10}
    if stream:
        async with at.anthropic().messages.stream(**options) as events:
            reply = await events.get_final_message()
    else:
        reply = await at.anthropic().messages.create(**options)
    assert (reply.content[0].text, reply.stop_reason) == (WHY, "refusal")  # type: ignore[union-attr]
