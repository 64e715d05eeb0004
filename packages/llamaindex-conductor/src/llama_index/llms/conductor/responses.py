"""What a run gave, as LlamaIndex's responses: the message, its usage, and a summary of the trace. Pure."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.llms.llm import ToolSelection

from rl_conductor import Completion, Trace, Usage
from rl_conductor.models.base import arguments_of
from rl_conductor.trace import StepResult

from .messages import carrying, chat_message, core_message


def piece(text: str, delta: str) -> ChatResponse:
    """A part of a streamed answer: `text` so far, of which `delta` is new."""
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta)


def reply(completion: Completion) -> ChatResponse:
    """One model's reply, with what it used."""
    return ChatResponse(
        message=chat_message(completion.message),
        raw={"model": completion.model, "finish_reason": completion.finish_reason, "usage": usage(completion.usage)},
    )


def answer(trace: Trace, *, delta: str | None = None) -> ChatResponse:
    """A run's answer; `raw` has the usage of the whole run and a summary of its trace, in plain JSON."""
    message = ChatMessage(role=MessageRole.ASSISTANT)
    raw = {"model": trace.planner, "usage": usage(trace.usage), "trace": summary(trace)}
    if trace.completion is not None:
        message = carrying(chat_message(trace.completion.message), trace.completion.message)
        raw |= {"model": trace.completion.model, "finish_reason": trace.completion.finish_reason}
    return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=tokens(trace.usage))


def without_usage(response: ChatResponse) -> ChatResponse:
    """`response` as told to those who count the calls inside of it one by one."""
    raw = {name: value for name, value in (response.raw or {}).items() if name != "usage"}
    return response.model_copy(update={"raw": raw, "additional_kwargs": {}})


def usage(used: Usage) -> dict[str, Any]:
    """Usage as plain JSON; dollars are a string."""
    return used.model_dump(mode="json")


def tokens(used: Usage) -> dict[str, int]:
    """Token counts by the names under which LlamaIndex's integrations give them."""
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
    }


def summary(trace: Trace) -> dict[str, Any]:
    """Who did what and what it cost, without what was said."""
    return {
        "id": trace.id,
        "planner": trace.planner,
        "rounds": [
            {"plan": one.plan.source, "steps": [_step(result) for result in one.results]} for one in trace.rounds
        ],
        "error": trace.error,
        "seconds": trace.seconds,
        "planning": usage(trace.planning),
        "workers": {worker: usage(used) for worker, used in trace.usage_by_worker().items()},
    }


def tool_selections(response: ChatResponse) -> list[ToolSelection]:
    """The tool calls of a response; arguments that are no JSON object stand under `invalid_json`."""
    return [
        ToolSelection(tool_id=call.id, tool_name=call.name, tool_kwargs=arguments_of(call))
        for call in core_message(response.message).tool_calls
    ]


def _step(result: StepResult) -> dict[str, Any]:
    return {
        "worker": result.step.worker,
        "subtask": result.step.subtask,
        "reads": sorted(result.step.access),
        "status": result.status,
        "seconds": result.seconds,
    }
