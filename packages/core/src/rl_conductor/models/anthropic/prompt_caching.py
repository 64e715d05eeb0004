"""Marks the parts of a request that the next one is likely to begin with, so that the API caches them.

The API caches a prompt up to each block with `cache_control`, and a write costs a quarter more than plain input. So
only parts that tend to come again are marked: the system prompt, the turns before the last one, and a last turn that
grows from call to call (tool results, or a conversation in several blocks, as planners see it). The API ignores marks
on prompts that are too short to be cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from anthropic import types as wire

CACHE_CONTROL: wire.CacheControlEphemeralParam = {"type": "ephemeral"}
UNMARKABLE = ("thinking", "redacted_thinking")
"""Types of blocks that can't have `cache_control`."""


def cached_system(text: str) -> list[wire.TextBlockParam]:
    """Returns the system prompt as a block that is cached."""
    return [{"type": "text", "text": text, "cache_control": CACHE_CONTROL}]


def mark_turns(turns: list[wire.MessageParam]) -> None:
    """Marks the end of the turns before the last, and of the last one if it is likely to grow."""
    if len(turns) > 1:
        _mark_last([block for block in _blocks(turns[-2]) if block["type"] not in UNMARKABLE])
    if turns:
        _mark_last([block for block in _blocks(turns[-1]) if block["type"] == "tool_result"])
        texts = [block for block in _blocks(turns[-1]) if block["type"] == "text"]
        _mark_last(texts if len(texts) > 1 else [])


def _blocks(turn: wire.MessageParam) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", turn["content"])


def _mark_last(blocks: list[dict[str, Any]]) -> None:
    if blocks:
        blocks[-1]["cache_control"] = CACHE_CONTROL
