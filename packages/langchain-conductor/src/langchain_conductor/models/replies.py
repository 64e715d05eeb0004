"""Reads the replies of LangChain's models: their message, tokens, refusal and why they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata

from langchain_conductor.messages import core_message, core_usage
from rl_conductor.errors import BadResponseError
from rl_conductor.integration import TIERS_WITH_OWN_PRICE, TokenCounts, parse_finish_reason, priced
from rl_conductor.types import Completion, FinishReason, Price, TextPart, Usage

REFUSAL = "refusal"
"""The key of a refusal in the `additional_kwargs` of an AI message, and the type of a block with one."""
REFUSAL_DETAILS = "stop_details"
"""The key in the `response_metadata` of Anthropic's replies."""

FINISH_KEYS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""The keys of the reason why a reply ended, in vendors' packages; OpenAI's Responses API has a `status` instead."""
INCOMPLETE_DETAILS = "incomplete_details"
"""The key of the reason why a reply with the status `incomplete` ended, in that API."""
PROMPT_FEEDBACK, BLOCK_REASON = "prompt_feedback", "block_reason"
"""The keys of the reason why a prompt was blocked, in Google's package; the reply to it is empty."""
OPENAI_USAGE = "token_usage"
"""The key of OpenAI's token counts, which stand only there if a server repeats the role in each chunk of JSON."""
PROVIDERS_WITH_REASON = ("openai", "anthropic")


def core_completion(message: AIMessage, *, model: str, price: Price | None) -> Completion:
    """Converts a model's reply. `model` is the requested one, for replies that don't name the model.

    Raises:
        BadResponseError: the stream of the reply ended before the reply was complete.
    """
    if _is_cut_off(message):
        raise BadResponseError(f"{model}: the reply broke off before it was complete", model=model)
    metadata = message.response_metadata
    refusal = refusal_text(message)
    reply = core_message(message)
    if refusal and not reply.text:
        reply = reply.model_copy(update={"content": (*reply.content, TextPart(text=refusal))})
    return Completion(
        message=reply,
        usage=reply_usage(message, price),
        finish_reason="content_filter" if refusal else finish_reason(message),
        is_refusal=bool(refusal) and reply.text == refusal,
        model=str(metadata.get("model_name") or metadata.get("model") or model),
    )


def reply_usage(message: AIMessage, price: Price | None) -> Usage:
    """Converts the token counts of a reply, with its cost if they and the price are known."""
    counts = cast("Mapping[str, Any]", message.usage_metadata or {})
    reported = message.response_metadata.get(OPENAI_USAGE)
    if not counts and isinstance(reported, Mapping):
        usage = priced(TokenCounts.model_validate(reported).to_usage(), price)
    else:
        has_own_price = any(tier in counts.get("input_token_details", {}) for tier in TIERS_WITH_OWN_PRICE)
        usage = priced(_chat_usage(message), price if counts and not has_own_price else None)
    is_cached = counts.get("total_cost") == 0  # as LangChain's caches mark a hit
    return usage.model_copy(update={"cached_calls": usage.calls}) if is_cached else usage


def _chat_usage(message: AIMessage) -> Usage:
    """Converts the token counts; some servers with OpenAI's API, such as xAI's, count reasoning in the total alone.

    The totals of other vendors contain tokens of caches and tools, which are no output.
    """
    counts = message.usage_metadata
    if counts and message.response_metadata.get("model_provider") == "openai":
        output_tokens = max(counts["output_tokens"], counts["total_tokens"] - counts["input_tokens"])
        counts = cast("UsageMetadata", {**counts, "output_tokens": output_tokens})
    return core_usage(counts)


def reasoning_text(piece: Any) -> str:
    """Returns the reasoning in a piece of a streamed reply, which may also be a parsed value without any."""
    if not isinstance(piece, AIMessage) or (isinstance(piece.content, str) and not piece.additional_kwargs):
        return ""
    return core_message(piece).reasoning


def refusal_text(message: AIMessage) -> str:
    """Returns the text of a refusal, which is not part of the text of OpenAI's and Anthropic's replies."""
    if isinstance(refusal := message.additional_kwargs.get(REFUSAL), str):
        return refusal
    details = message.response_metadata.get(REFUSAL_DETAILS)
    if isinstance(details, Mapping) and isinstance(explanation := details.get("explanation"), str):
        return explanation
    blocks = [block for block in message.content if isinstance(block, dict) and block.get("type") == REFUSAL]
    return "".join(str(block.get(REFUSAL) or "") for block in blocks)


def finish_reason(message: AIMessage) -> FinishReason:
    """Maps the vendor's reason why the reply ended."""
    metadata = message.response_metadata
    if isinstance(feedback := metadata.get(PROMPT_FEEDBACK), Mapping) and feedback.get(BLOCK_REASON):
        return "content_filter"
    reason = next((metadata[key] for key in FINISH_KEYS if metadata.get(key)), None)
    if isinstance(details := metadata.get(INCOMPLETE_DETAILS), Mapping):
        reason = reason or details.get("reason")
    return parse_finish_reason(reason, tool_calls=bool(message.tool_calls))


def _is_cut_off(message: AIMessage) -> bool:
    """Whether chunks of a vendor that always says why a reply ended don't say it."""
    metadata = message.response_metadata
    if not isinstance(message, AIMessageChunk) or metadata.get("model_provider") not in PROVIDERS_WITH_REASON:
        return False
    return not any(metadata.get(key) for key in (*FINISH_KEYS, "status"))
