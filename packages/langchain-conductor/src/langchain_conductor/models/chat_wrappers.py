"""Looks through the wrappers of `.bind()`, `.with_config()`, `.with_retry()` and `.with_fallbacks()` on chat models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase

ConvertChat = Callable[[BaseChatModel, dict[str, Any]], Runnable[Any, Any]]
"""Converts a chat model with the keyword arguments that are bound to it."""


def find_chat_models(
    runnable: Runnable[Any, Any], kwargs: Mapping[str, Any] | None = None
) -> list[tuple[BaseChatModel, dict[str, Any]]]:
    """Returns the chat models in the wrappers, each with its bound keyword arguments, and fallbacks last.

    The list is empty if `runnable` is not a chat model, such as a chain, or if one of its fallbacks is not.
    """
    kwargs = dict(kwargs or {})
    match runnable:
        case BaseChatModel():
            return [(runnable, kwargs)]
        case RunnableBindingBase():
            return find_chat_models(runnable.bound, {**runnable.kwargs, **kwargs})
        case RunnableWithFallbacks():
            options = [find_chat_models(option, kwargs) for option in runnable.runnables]
            return [chat for models in options for chat in models] if all(options) else []
    return []


def convert_chat_models(
    runnable: Runnable[Any, Any], convert: ConvertChat, kwargs: Mapping[str, Any] | None = None
) -> Runnable[Any, Any]:
    """Copies the wrappers with every chat model converted; retries, fallbacks and configs stay in force."""
    kwargs = dict(kwargs or {})
    match runnable:
        case BaseChatModel():
            return convert(runnable, kwargs)
        case RunnableBindingBase():
            bound = convert_chat_models(runnable.bound, convert, {**runnable.kwargs, **kwargs})
            return runnable.model_copy(update={"bound": bound, "kwargs": {}})
        case RunnableWithFallbacks():
            primary, *fallbacks = [convert_chat_models(option, convert, kwargs) for option in runnable.runnables]
            return runnable.model_copy(update={"runnable": primary, "fallbacks": fallbacks})
    raise AssertionError(f"{runnable!r} has no chat model")
