"""Converts completions and traces of the core into LlamaIndex's responses. Pure."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import NodeWithScore
from pydantic_core import to_jsonable_python

from rl_conductor import Completion, Trace
from rl_conductor.integration import arguments_of, token_counts
from rl_conductor.trace import Summary
from rl_conductor.types import Delta

from .messages import chat_message, core_message, reply_message
from .models.sources import SourcedCall, sourced_calls, unique_nodes


def chunk_response(text: str, reasoning: str, delta: Delta) -> ChatResponse:
    """Builds the response for a chunk of a streamed answer: all `text` and `reasoning` so far, and the new `delta`."""
    thinking = [ThinkingBlock(content=reasoning)] if reasoning else []
    message = ChatMessage(role=MessageRole.ASSISTANT, blocks=[*thinking, TextBlock(text=text)])
    extra = {"thinking_delta": delta.reasoning} if delta.reasoning else {}
    return ChatResponse(message=message, delta=delta.text, additional_kwargs=extra)


def completion_response(completion: Completion) -> ChatResponse:
    """Builds the response of a single model call."""
    raw = completion.model_dump(mode="json", include={"model", "finish_reason", "usage"})
    return ChatResponse(message=chat_message(completion.message), raw=raw)


def trace_response(trace: Trace, *, delta: str | None = None) -> ChatResponse:
    """Builds the response of a run.

    `raw` contains, as plain JSON, the usage of the whole run, a summary of its trace and the sources of each step;
    `additional_kwargs` the token counts, and the source nodes as objects.
    """
    message = ChatMessage(role=MessageRole.ASSISTANT)
    summary = Summary.of(trace).model_dump(mode="json")
    raw = {"model": trace.planner, "usage": summary["usage"], "conductor": summary}
    if trace.completion is not None:
        message = reply_message(trace.completion.message)
        raw |= {"model": trace.completion.model, "finish_reason": trace.completion.finish_reason}
    keywords: dict[str, Any] = dict(token_counts(trace.usage))
    if calls := list(sourced_calls(trace)):
        raw["sources"] = [_source_json(call) for call in calls]
        keywords["source_nodes"] = list(unique_nodes(calls))
    return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=keywords)


def without_usage(response: ChatResponse) -> ChatResponse:
    """Removes the usage, for observers that count the calls inside the run one by one."""
    raw = {name: value for name, value in (response.raw or {}).items() if name != "usage"}
    keywords = {name: value for name, value in response.additional_kwargs.items() if name == "source_nodes"}
    return response.model_copy(update={"raw": raw, "additional_kwargs": keywords})


def tool_selections(response: ChatResponse) -> list[ToolSelection]:
    """Returns the tool calls of a response; arguments that are not a JSON object are returned under `invalid_json`."""
    return [
        ToolSelection(tool_id=call.id, tool_name=call.name, tool_kwargs=arguments_of(call))
        for call in core_message(response.message).tool_calls
    ]


# ----------------------------------------------------------------------------------------- sources


def _source_json(call: SourcedCall) -> dict[str, Any]:
    return {
        "round": call.round,
        "step": call.step,
        "worker": call.worker,
        "source_nodes": [_node_json(node) for node in call.completion.source_nodes],
        "metadata": to_jsonable_python(dict(call.completion.response_metadata), fallback=str),
    }


def _node_json(node: NodeWithScore) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "ref_doc_id": getattr(node.node, "ref_doc_id", None),
        "score": None if node.score is None else float(node.score),  # stores may return NumPy's numbers
        "text": node.node.get_content(),
        "metadata": to_jsonable_python(node.node.metadata, fallback=str),
    }
