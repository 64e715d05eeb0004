"""What may be asked of one call, and the core's request that it makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, ValidationError

from langchain_conductor.messages import core_messages, core_tool, core_tool_choice
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.types import Effort, JsonFormat, Request, Sampling
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy


class CallOptions(BaseModel):
    """What `invoke`, `stream` and `bind` take beside the messages."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """`mini` or `ultra`."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    reasoning_effort: Effort | None = None
    stop: Sequence[str] | None = None
    timeout: float | None = None
    tools: Sequence[Any] = ()
    """Whatever LangChain takes for a tool."""
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    """`{"type": "json_object"}`, or OpenAI's `{"type": "json_schema", "json_schema": {"name", "schema"}}`."""
    policy: Policy | None = None
    limits: Limits | None = None
    stream: bool | None = None
    """LangChain's own; here it is the method called that decides."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CallOptions:
        """The options in `given`.

        Raises:
            ConfigError: there is no such option, or its value is wrong.
        """
        if unknown := sorted(given.keys() - cls.model_fields.keys()):
            raise ConfigError(f"no option {', '.join(unknown)} of a call; there are {', '.join(cls.model_fields)}")
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            wrong = first_field_error(error)
            raise ConfigError(f"the option {wrong.path} is {wrong.value!r}: {wrong.message}") from None

    def request(self, messages: Sequence[BaseMessage]) -> Request:
        """The request for these messages.

        Raises:
            ConfigError: a message, a tool or the form of the reply is none that workers can take.
        """
        tools = tuple(core_tool(tool) for tool in self.tools)
        return Request(
            messages=core_messages(messages),
            tools=tools,
            tool_choice=core_tool_choice(self.tool_choice, tools),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=_format(self.response_format),
            sampling=Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_tokens,
                seed=self.seed,
                stop=tuple(self.stop or ()),
                effort=self.reasoning_effort,
            ),
            timeout=self.timeout,
        )


def _format(form: dict[str, Any] | None) -> JsonFormat | None:
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return JsonFormat()
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **named}}:
            return JsonFormat(name=str(named.get("name") or "reply"), json_schema=schema)
    raise ConfigError(
        f"response_format is {form!r}; write {{'type': 'json_object'}} or "
        "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': ...}}"
    )
