"""What one call to the LLM asks: LlamaIndex's messages and keywords as a `Request` of the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from pydantic import BaseModel, ValidationError

from rl_conductor import Request, Sampling
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.types import JsonFormat, Tool

from .messages import core_messages, core_tool

SAMPLING = frozenset(Sampling.model_fields)
PLAIN = frozenset({"parallel_tool_calls", "timeout"})
TRANSLATED = frozenset({"tools", "tool_choice", "response_format"})


def core_request(messages: Sequence[ChatMessage], keywords: Mapping[str, Any], *, defaults: Sampling) -> Request:
    """The request that a call with these messages and keywords is.

    Raises:
        ConfigError: there is no such keyword or value, or a message or tool that no worker can take.
    """
    unknown = keywords.keys() - SAMPLING - PLAIN - TRANSLATED
    if unknown:
        known = ", ".join(sorted(SAMPLING | PLAIN | TRANSLATED))
        raise ConfigError(f"a call takes no {', '.join(sorted(unknown))}; it takes {known}")
    given = {name: value for name, value in keywords.items() if value is not None}
    tools = tuple(core_tool(tool) for tool in given.get("tools", ()))
    try:
        return Request(
            messages=core_messages(messages),
            tools=tools,
            tool_choice=tool_choice(given.get("tool_choice"), tools) if tools else "auto",
            response_format=_format(given.get("response_format")),
            sampling=_sampling(given, defaults),
            **{name: given[name] for name in PLAIN & given.keys()},
        )
    except ValidationError as error:
        wrong = first_field_error(error)
        raise ConfigError(f"the option {wrong.path} is {wrong.value!r}: {wrong.message}") from None


def tool_choice(wanted: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> str:
    """The choice as the core spells it, from LlamaIndex's or OpenAI's spelling; `None` leaves it to the model.

    Raises:
        ConfigError: no tool has that name.
    """
    if isinstance(wanted, Mapping):
        wanted = str(wanted.get("function", wanted).get("name", "required"))
    choice = {"any": "required"}.get(wanted, wanted) if wanted else "auto"
    names = [tool.name for tool in tools]
    if choice not in {"auto", "none", "required", *names}:
        raise ConfigError(f"tool_choice is {wanted!r}; write 'auto', 'required', 'none' or one of {', '.join(names)}")
    return choice


def _sampling(given: Mapping[str, Any], defaults: Sampling) -> Sampling:
    asked = {name: given[name] for name in SAMPLING & given.keys()}
    if isinstance(asked.get("stop"), str):
        asked["stop"] = (asked["stop"],)
    return Sampling.model_validate(defaults.model_dump() | asked)


def _format(wanted: type[BaseModel] | Mapping[str, Any] | None) -> JsonFormat | None:
    """The reply's form: a pydantic class, or a JSON schema."""
    if wanted is None:
        return None
    match wanted:
        case Mapping():
            return JsonFormat(json_schema=dict(wanted))
        case type() if issubclass(wanted, BaseModel):
            return JsonFormat(name=wanted.__name__, json_schema=wanted.model_json_schema())
    raise ConfigError(f"response_format is {wanted!r}; write a pydantic class or a JSON schema")
