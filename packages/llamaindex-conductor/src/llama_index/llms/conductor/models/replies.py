"""Reads the replies of LlamaIndex's LLMs: their tokens, refusal and why they ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ContentBlock, DocumentBlock, ImageBlock
from llama_index.core.callbacks.schema import EventPayload
from llama_index.core.callbacks.token_counting import get_llm_token_counts
from llama_index.core.utilities.token_counting import TokenCounter

from rl_conductor import Usage
from rl_conductor.integration import TIERS_WITH_OWN_PRICE

log = logging.getLogger("llama_index.llms.conductor")

FINISH_REASON_FIELDS = ("finish_reason", "stop_reason", "done_reason", "stopReason", "finishReason")
"""Names of the vendors' fields: OpenAI's and Google's, Anthropic's, Ollama's, Bedrock's, Google's in JSON."""

# The vendors' names of counts, OpenAI's (of both its APIs) first. A dot leads into the details of a count.
INPUT = ("prompt_tokens", "input_tokens", "prompt_token_count", "inputTokens")
OUTPUT = ("completion_tokens", "output_tokens", "candidates_token_count", "outputTokens")
CACHED = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_content_token_count")
REASONING = (
    "completion_tokens_details.reasoning_tokens",
    "output_tokens_details.reasoning_tokens",
    "output_tokens_details.thinking_tokens",
)
CACHE_READS = ("cache_read_input_tokens", "cacheReadInputTokens")
"""Counts of cached tokens of Anthropic and Bedrock, which are not among their other input tokens."""
CACHE_WRITES = ("cache_creation_input_tokens", "cacheWriteInputTokens")
"""Counts of tokens that are written to the cache, likewise."""
TOOL_INPUT = ("tool_use_prompt_token_count",)
"""Google's, which is not among its other input tokens."""
THOUGHTS = ("thoughts_token_count",)
"""Google's, which is not among its other output tokens."""


def reply_usage(messages: Sequence[ChatMessage], response: ChatResponse) -> Usage:
    """Reads the reported usage; tokens that are not reported are estimated with LlamaIndex's token counter.

    Its tokenizer may have to be downloaded. If that fails, the usage is unknown, but the reply is not lost. Images and
    documents are not counted: the counter would fetch them, from any address that a conversation names.
    """
    usage = reported_usage(response)
    if usage.input_tokens and usage.output_tokens:
        return usage
    texts = [ChatMessage(role=message.role, blocks=_text_blocks(message)) for message in messages]
    # Without what the vendor reports, which the counter would take as it is, and which may be below 0 or no number.
    payload: dict[str, Any] = {
        EventPayload.MESSAGES: texts,
        EventPayload.RESPONSE: ChatResponse(message=response.message),
    }
    try:
        counts = get_llm_token_counts(TokenCounter(), payload)
    except OSError as error:
        log.warning("tokens can't be estimated, because LlamaIndex has no tokenizer: %s", error)
        return usage
    input_tokens = usage.input_tokens or counts.prompt_token_count
    output_tokens = usage.output_tokens or counts.completion_token_count
    return usage.model_copy(update={"input_tokens": input_tokens, "output_tokens": output_tokens})


def reported_usage(response: ChatResponse) -> Usage:
    """Returns the tokens that the vendor reports, in the form of any vendor; 0 if the response doesn't have them."""
    return next((_usage_of(counts) for counts in _reported_counts(response) if _has_counts(counts)), Usage())


def finish_reason(response: ChatResponse) -> str:
    """Returns the vendor's reason why the reply ended; empty if the response doesn't have it."""
    for source in (response.additional_kwargs, *_raw_replies(response)):
        if reason := _get(_get(source, "incomplete_details"), "reason"):  # OpenAI's Responses API
            return str(reason)
        for part in (source, *_choices(source)):
            for name in FINISH_REASON_FIELDS:
                if reason := _get(part, name):
                    return str(getattr(reason, "value", reason))
    return ""


def has_usual_price(response: ChatResponse) -> bool:
    """Whether the reply was not of a service tier of OpenAI with prices of its own."""
    return not any(_get(source, "service_tier") in TIERS_WITH_OWN_PRICE for source in _raw_replies(response))


def refusal_text(response: ChatResponse) -> str:
    """Returns the text with which OpenAI's models refuse a request, and which is not part of the content."""
    refusals = [_get(_get(choice, "message"), "refusal") for choice in _choices(response.raw)]
    refusals.append(response.additional_kwargs.get("refusal"))  # of OpenAI's Responses API
    return next((refusal for refusal in refusals if isinstance(refusal, str)), "")


def _raw_replies(response: ChatResponse) -> tuple[object, object]:
    """Returns the raw response, and the one in it: OpenAI's Responses API ends a stream with the whole reply."""
    return response.raw, _get(response.raw, "response")


def _reported_counts(response: ChatResponse) -> Iterator[object]:
    """Returns where the vendors report counts: mappings, or objects of their SDKs, which can't always be dumped."""
    for source in (*_raw_replies(response), response.additional_kwargs):
        yield _get(source, "usage")
        yield _get(source, "usage_metadata")
    yield response.additional_kwargs


def _has_counts(counts: object) -> bool:
    return bool(_count(counts, INPUT) or _count(counts, OUTPUT))


def _usage_of(counts: object) -> Usage:
    cache_reads, cache_writes = _count(counts, CACHE_READS), _count(counts, CACHE_WRITES)
    thoughts = _count(counts, THOUGHTS)
    # Gateways in OpenAI's form repeat their vendor's counts, but their own sum contains them.
    beside_input = 0
    if _get(counts, "prompt_tokens") is None:
        beside_input = cache_reads + cache_writes + _count(counts, TOOL_INPUT)
    input_tokens, output_tokens = _count(counts, INPUT) + beside_input, _count(counts, OUTPUT) + thoughts
    if prompt_tokens := _count(counts, ("prompt_tokens",)):  # where reasoning may be part of the total alone
        output_tokens = max(output_tokens, _count(counts, ("total_tokens",)) - prompt_tokens)
    cached_tokens = min(_count(counts, CACHED) or cache_reads, input_tokens)
    return Usage(
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        cache_write_tokens=min(cache_writes, input_tokens - cached_tokens),
        output_tokens=output_tokens,
        reasoning_tokens=min(_count(counts, REASONING) or thoughts, output_tokens),
    )


def _count(counts: object, paths: Sequence[str]) -> int:
    """Returns the first of these counts that is reported, or 0."""
    for path in paths:
        value: Any = counts
        for name in path.split("."):
            value = _get(value, name)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _text_blocks(message: ChatMessage) -> list[ContentBlock]:
    return [block for block in message.blocks if not isinstance(block, ImageBlock | DocumentBlock)]


def _choices(source: object) -> Sequence[object]:
    """Returns the first choice (OpenAI) or candidate (Google) of a raw response."""
    choices = _get(source, "choices") or _get(source, "candidates")
    return choices[:1] if isinstance(choices, Sequence) else ()


def _get(source: object, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
