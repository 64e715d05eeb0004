"""Adapts a conversation to the vendor of a LangChain model, as other vendors' models wrote parts of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from langchain_core.language_models import BaseChatModel

from rl_conductor.integration import REDACTED_PREFIX, THINKING_PREFIX, THOUGHT_PREFIX, move_attachments
from rl_conductor.types import ContentPart, Message, ReasoningPart, Request, Tool

CLAUDE = ("anthropic", "bedrock")
"""Parts of LangChain's names of the providers of Claude models."""
SIGNERS = {"anthropic:": CLAUDE, "google:": ("google",)}
"""The prefixes of signatures, with parts of the names of the only providers that accept them."""
TOOL_IMAGE_READERS = (*CLAUDE, "google")
"""Parts of the names of the providers whose models read images and files in tool results. `image_tool_message` in
LangChain's profiles is no guide: those of OpenAI have it, but OpenAI's Chat Completions refuse such images, or models
answer as if there were none."""
BLOCK_PREFIXES = (THINKING_PREFIX, REDACTED_PREFIX, THOUGHT_PREFIX)
"""The prefixes of the signatures for which LangChain has a block."""


def adapt_messages(messages: Sequence[Message], providers: Collection[str]) -> list[Message]:
    """Returns the conversation as all `providers`, a model's own and those of its fallbacks, accept it.

    Reasoning that another vendor signed is left out. Images and files come in messages of the user, and in tool results
    where all providers read them there. For Claude models, system messages that are not together become
    one at the beginning, because LangChain's packages for them accept no others.
    """
    accepting = ("user", "tool") if all(_includes([name], TOOL_IMAGE_READERS) for name in providers) else ("user",)
    moved = move_attachments(messages, accepting=accepting)
    adapted = [_without_foreign_reasoning(message, providers) for message in moved]
    return _with_one_system_message(adapted) if _includes(providers, CLAUDE) else adapted


def is_anthropic(chat: BaseChatModel) -> bool:
    """Whether `chat` speaks Anthropic's own API."""
    provider = chat._get_ls_params().get("ls_provider", "")  # noqa: SLF001 (LangChain's only common way)
    return provider.startswith("anthropic")


def with_called_tools(request: Request) -> Request:
    """Defines the tools of earlier calls if `request` has no tools; Anthropic's API rejects the calls without them."""
    names = dict.fromkeys(call.name for message in request.messages for call in message.tool_calls)
    if request.tools or not names:
        return request
    return request.model_copy(update={"tools": tuple(Tool(name=name) for name in names), "tool_choice": "none"})


def _without_foreign_reasoning(message: Message, providers: Collection[str]) -> Message:
    content = tuple(part for part in message.content if _is_accepted(part, providers))
    return message if len(content) == len(message.content) else message.model_copy(update={"content": content})


def _is_accepted(part: ContentPart, providers: Collection[str]) -> bool:
    signature = part.signature or "" if isinstance(part, ReasoningPart) else ""
    for prefix, signers in SIGNERS.items():
        if signature.startswith(prefix):
            return signature.startswith(BLOCK_PREFIXES) and all(_includes([name], signers) for name in providers)
    return True


def _includes(providers: Collection[str], vendors: Collection[str]) -> bool:
    return any(vendor in provider for provider in providers for vendor in vendors)


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    groups = [role for role, _ in groupby(message.role for message in messages)]
    if groups.count("system") <= 1:
        return messages
    texts = [message.text for message in messages if message.role == "system"]
    return [Message.system("\n\n".join(texts)), *(message for message in messages if message.role != "system")]
