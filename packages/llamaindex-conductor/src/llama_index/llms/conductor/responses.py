"""What a run gave, as LlamaIndex's responses: the message, its usage, and a summary of the trace. Pure."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.llms.llm import ToolSelection

from rl_conductor import Completion, Trace, Usage
from rl_conductor.models.base import arguments_of
from rl_conductor.trace.summary import Summary

from .messages import carrying, chat_message, core_message


def piece(text: str, delta: str) -> ChatResponse:
    """A part of a streamed answer: `text` so far, of which `delta` is new."""
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta)


def reply(completion: Completion) -> ChatResponse:
    """One model's reply, with what it used."""
    raw = completion.model_dump(mode="json", include={"model", "finish_reason", "usage"})
    return ChatResponse(message=chat_message(completion.message), raw=raw)


def answer(trace: Trace, *, delta: str | None = None) -> ChatResponse:
    """A run's answer; `raw` has the usage of the whole run and a summary of its trace, in plain JSON."""
    message = ChatMessage(role=MessageRole.ASSISTANT)
    told = Summary.of(trace).model_dump(mode="json")
    raw = {"model": trace.planner, "usage": told["usage"], "conductor": told}
    if trace.completion is not None:
        message = carrying(chat_message(trace.completion.message), trace.completion.message)
        raw |= {"model": trace.completion.model, "finish_reason": trace.completion.finish_reason}
    return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=tokens(trace.usage))


def without_usage(response: ChatResponse) -> ChatResponse:
    """`response` as told to those who count the calls inside of it one by one."""
    raw = {name: value for name, value in (response.raw or {}).items() if name != "usage"}
    return response.model_copy(update={"raw": raw, "additional_kwargs": {}})


def tokens(used: Usage) -> dict[str, int]:
    """Token counts by the names under which LlamaIndex's integrations give them."""
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
    }


def tool_selections(response: ChatResponse) -> list[ToolSelection]:
    """The tool calls of a response; arguments that are no JSON object stand under `invalid_json`."""
    return [
        ToolSelection(tool_id=call.id, tool_name=call.name, tool_kwargs=arguments_of(call))
        for call in core_message(response.message).tool_calls
    ]
