"""What one call to the LLM asks: LlamaIndex's messages and keywords as a `Request` of the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from pydantic import BaseModel

from rl_conductor import Request, Sampling
from rl_conductor.errors import ConfigError
from rl_conductor.types import JsonFormat

from .messages import core_messages, core_tool

SAMPLING = frozenset(Sampling.model_fields)
PLAIN = frozenset({"parallel_tool_calls", "timeout"})
TRANSLATED = frozenset({"tools", "tool_choice", "response_format"})


def core_request(messages: Sequence[ChatMessage], keywords: Mapping[str, Any], *, defaults: Sampling) -> Request:
    """The request that a call with these messages and keywords is.

    Raises:
        ConfigError: there is no such keyword, or a message or tool that no worker can take.
    """
    unknown = keywords.keys() - SAMPLING - PLAIN - TRANSLATED
    if unknown:
        known = ", ".join(sorted(SAMPLING | PLAIN | TRANSLATED))
        raise ConfigError(f"a call takes no {', '.join(sorted(unknown))}; it takes {known}")
    given = {name: value for name, value in keywords.items() if value is not None}
    tools = tuple(core_tool(tool) for tool in given.get("tools", ()))
    return Request(
        messages=core_messages(messages),
        tools=tools,
        tool_choice=tool_choice(given.get("tool_choice")) if tools else "auto",
        response_format=_format(given.get("response_format")),
        sampling=_sampling(given, defaults),
        **{name: given[name] for name in PLAIN & given.keys()},
    )


def tool_choice(wanted: str | Mapping[str, Any] | None) -> str:
    """The choice as the core spells it, from LlamaIndex's or OpenAI's spelling; `None` leaves it to the model."""
    if isinstance(wanted, Mapping):
        return str(wanted.get("function", wanted).get("name", "required"))
    return {"any": "required"}.get(wanted, wanted) if wanted else "auto"


def _sampling(given: Mapping[str, Any], defaults: Sampling) -> Sampling:
    asked = {name: given[name] for name in SAMPLING & given.keys()}
    if isinstance(asked.get("stop"), str):
        asked["stop"] = (asked["stop"],)
    return Sampling.model_validate(defaults.model_dump() | asked)


def _format(wanted: type[BaseModel] | Mapping[str, Any] | None) -> JsonFormat | None:
    """The reply's form: a pydantic class, or a JSON schema."""
    if wanted is None:
        return None
    if isinstance(wanted, Mapping):
        return JsonFormat(json_schema=dict(wanted))
    return JsonFormat(name=wanted.__name__, json_schema=wanted.model_json_schema())
