"""Applies the sampling settings of a request to a LangChain chat model, by the fields that the model has for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from langchain_core.language_models import BaseChatModel

from rl_conductor.types import Sampling

SAMPLING_ALIASES = {"reasoning_effort": "effort", "stop_sequences": "stop", "num_predict": "max_tokens"}
"""Names that some vendors' models use for the fields of `Sampling`."""


def apply_sampling(
    chat: BaseChatModel, sampling: Sampling, kwargs: Mapping[str, Any] | None = None
) -> tuple[BaseChatModel, dict[str, Any]]:
    """Copies `chat` with the settings of `sampling`; returns `chat` itself if nothing changes.

    The copy skips the constructor: that would mark every field as set by the user, which makes LangChain take
    `streaming=False` as an explicit choice, and it would lose private state and fail on users' own constructors.

    Args:
        chat: the chat model.
        sampling: the settings; those that `chat` has no field for are ignored.
        kwargs: keyword arguments that are bound to `chat`; `sampling` takes precedence over them.

    Returns:
        The chat model, and the keyword arguments that still have to be passed to its calls.
    """
    fields = _fields(chat)
    requested = sampling.model_dump(exclude_defaults=True, mode="json")
    options: dict[str, Any] = {}
    for option, value in (kwargs or {}).items():
        name = SAMPLING_ALIASES.get(option, option)
        if name not in Sampling.model_fields or not any(name == field_name for _, field_name in fields):
            options[option] = requested.get(name, value)
        elif value is not None:
            requested.setdefault(name, value)
    settings = _usage_setting(chat) | {
        field: requested[name] for field, name in fields if requested.get(name) is not None
    }
    if requested.get("stop") and not any(name == "stop" for _, name in fields):
        options["stop"] = list(requested["stop"])  # passed as an option only then: some models refuse both at once
    if not settings:
        return chat, options
    copy = chat.model_copy(update=settings)
    for name in _cached_properties(type(chat)) & vars(copy).keys():
        del vars(copy)[name]  # computed from the previous settings
    return copy, options


def _usage_setting(chat: BaseChatModel) -> dict[str, Any]:
    """Returns the setting that makes streamed replies report their tokens, unless the user chose.

    LangChain's OpenAI model asks for them at OpenAI's own address only; at any other, the tokens would count as none.
    """
    has_choice = "stream_usage" not in type(chat).model_fields or "stream_usage" in chat.model_fields_set
    return {} if has_choice or getattr(chat, "stream_usage", None) else {"stream_usage": True}


def _fields(chat: BaseChatModel) -> list[tuple[str, str]]:
    """Lists the chat model's fields, each with its possible name in `Sampling`."""
    return [
        (field, SAMPLING_ALIASES.get(name, name))
        for field, info in type(chat).model_fields.items()
        for name in (field, info.alias)
        if name is not None
    ]


def _cached_properties(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, cached_property)}
