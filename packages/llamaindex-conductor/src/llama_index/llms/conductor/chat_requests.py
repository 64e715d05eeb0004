"""Converts LlamaIndex's messages and keyword arguments of one call into a `Request` of the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from pydantic import ValidationError

from rl_conductor import Request, Sampling
from rl_conductor.errors import ConfigError
from rl_conductor.integration import first_field_error, parse_response_format, parse_tool_choice

from .messages import core_messages, core_tool

SAMPLING_KEYWORDS = frozenset(Sampling.model_fields)
ALIASES = {"reasoning_effort": "effort"}
"""LlamaIndex's and the vendors' names of sampling parameters."""
UNCHANGED_KEYWORDS = frozenset({"parallel_tool_calls", "timeout"})
CONVERTED_KEYWORDS = frozenset({"tools", "tool_choice", "response_format"})
SINGLE_ANSWER = ("n", 1)
"""A keyword that changes nothing: libraries such as Ragas pass it to every LLM."""
KEYWORDS = SAMPLING_KEYWORDS | ALIASES.keys() | UNCHANGED_KEYWORDS | CONVERTED_KEYWORDS


def core_request(messages: Sequence[ChatMessage], keywords: Mapping[str, Any], *, defaults: Sampling) -> Request:
    """Builds the request of a call with these messages and keyword arguments.

    Raises:
        ConfigError: an unknown keyword or invalid value, or a message or tool that no worker accepts.
    """
    keywords = {name: value for name, value in keywords.items() if (name, value) != SINGLE_ANSWER}
    unknown = keywords.keys() - KEYWORDS
    if unknown:
        names = ", ".join(sorted(unknown))
        accepted = ", ".join(sorted(KEYWORDS))
        raise ConfigError(
            f"unknown keyword arguments: {names}; this LLM accepts {accepted}, and a vendor's other options belong to "
            "the LLM of the worker"
        )
    options = {ALIASES.get(name, name): value for name, value in keywords.items() if value is not None}
    tools = tuple(core_tool(tool) for tool in options.get("tools", ()))
    try:
        return Request(
            messages=core_messages(messages),
            tools=tools,
            tool_choice=parse_tool_choice(options.get("tool_choice"), tools) if tools else "auto",
            response_format=parse_response_format(options.get("response_format")),
            sampling=_sampling(options, defaults),
            **{name: options[name] for name in UNCHANGED_KEYWORDS & options.keys()},
        )
    except ValidationError as error:
        field = first_field_error(error)
        raise ConfigError(f"{field.path}={field.value!r} is invalid: {field.message}") from None


def _sampling(options: Mapping[str, Any], defaults: Sampling) -> Sampling:
    overrides = {name: options[name] for name in SAMPLING_KEYWORDS & options.keys()}
    if isinstance(overrides.get("stop"), str):
        overrides["stop"] = (overrides["stop"],)
    return Sampling.model_validate(defaults.model_dump() | overrides)
