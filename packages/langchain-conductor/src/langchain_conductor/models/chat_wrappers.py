"""Looks through the wrappers of chat models: bound options, configs, retries, fallbacks and configurable fields.

`init_chat_model(..., configurable_fields=...)` returns a class of its own, which is private in LangChain, as is its way
to apply a config.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.configurable import (
    DynamicRunnable,
    RunnableConfigurableAlternatives,
    RunnableConfigurableFields,
)

ConvertChat = Callable[[BaseChatModel, dict[str, Any]], Runnable[Any, Any]]
"""Converts a chat model with the keyword arguments that are bound to it."""


def find_chat_models(
    runnable: Runnable[Any, Any], kwargs: Mapping[str, Any] | None = None
) -> list[tuple[BaseChatModel, dict[str, Any]]]:
    """Returns the chat models in the wrappers, each with its bound keyword arguments, and fallbacks last.

    The list is empty if `runnable` is not a chat model, such as a chain, or if one of its fallbacks is not.
    """
    kwargs = dict(kwargs or {})
    parts: Iterable[Any] = ()
    match runnable:
        case BaseChatModel():
            return [(runnable, kwargs)]
        case RunnableBindingBase():
            return find_chat_models(runnable.bound, {**runnable.kwargs, **kwargs})
        case RunnableWithFallbacks():
            parts = runnable.runnables
        case RunnableConfigurableFields():
            parts = [runnable.default]
        case RunnableConfigurableAlternatives():
            parts = [runnable.default, *runnable.alternatives.values()]
        case _ if _is_configurable_model(runnable) and not has_no_model(runnable):
            parts = [runnable._model()]  # noqa: SLF001
    models_of_parts = [find_chat_models(part, kwargs) if isinstance(part, Runnable) else [] for part in parts]
    return [chat for models in models_of_parts for chat in models] if all(models_of_parts) else []


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
        case DynamicRunnable():
            configured, _ = runnable.prepare(ensure_config())
            return convert_chat_models(configured, convert, kwargs)
    if _is_configurable_model(runnable):
        return convert_chat_models(runnable._model(ensure_config()), convert, kwargs)  # noqa: SLF001
    raise AssertionError(f"{runnable!r} has no chat model")


def has_no_model(runnable: Runnable[Any, Any]) -> bool:
    """Whether `runnable` is a result of `init_chat_model` that has no model until a config names one."""
    return _is_configurable_model(runnable) and not runnable._default_config.get("model")  # noqa: SLF001


def _is_configurable_model(runnable: Runnable[Any, Any]) -> TypeGuard[Any]:
    base = sys.modules.get("langchain.chat_models.base")  # an extra
    return base is not None and isinstance(runnable, base._ConfigurableModel)  # noqa: SLF001
