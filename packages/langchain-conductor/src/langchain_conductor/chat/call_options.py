"""`CallOptions`: the keyword arguments of one call, validated and converted to the core's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import ConfigDict, ValidationError

from langchain_conductor.call_defaults import AnswerOptions
from langchain_conductor.chat.structured_output import response_format
from langchain_conductor.messages import core_messages
from langchain_conductor.tools import core_tool
from rl_conductor.errors import ConfigError
from rl_conductor.integration import allows_parallel_calls, first_field_error, parse_response_format, parse_tool_choice
from rl_conductor.types import Request
from rl_conductor.workflow import Limits, Policy


class CallOptions(AnswerOptions):
    """The keyword arguments of `invoke`, `stream` and `bind`."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """The profile, `mini` or `ultra`, as in the settings."""
    tools: Sequence[Any] = ()
    """Tools in any form that LangChain accepts."""
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | type | None = None
    """`{"type": "json_object"}`, OpenAI's `{"type": "json_schema", "json_schema": {"name", "schema", "strict"}}`, or a
    pydantic class."""
    include_rejected: bool = False
    """Whether an answer that was rejected, because it lacks the required format, is returned and no error raised; the
    error is then in the summary of the run, `response_metadata["conductor"]`."""
    policy: Policy | None = None
    limits: Limits | None = None
    stream: bool | None = None
    """Set by LangChain, and ignored: the called method decides."""

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> CallOptions:
        """Validates the keyword arguments of a call.

        Raises:
            ConfigError: an option does not exist, or its value is wrong.
        """
        if unknown := sorted(kwargs.keys() - cls.model_fields.keys()):
            raise ConfigError(
                f"unknown option of a call: {', '.join(unknown)}; write one of {', '.join(cls.model_fields)}"
            )
        try:
            return cls.model_validate(dict(kwargs))
        except ValidationError as error:
            field_error = first_field_error(error)
            message = f"the option {field_error.path} is {field_error.value!r}: {field_error.message}"
            raise ConfigError(message) from None

    def to_request(self, messages: Sequence[BaseMessage]) -> Request:
        """Builds the request for these messages.

        Raises:
            ConfigError: workers can't take a message, a tool or the response format.
        """
        tools = tuple(core_tool(tool) for tool in self.tools)
        return Request(
            messages=core_messages(messages),
            tools=tools,
            tool_choice=parse_tool_choice(self.tool_choice, tools),
            parallel_tool_calls=self.parallel_tool_calls and allows_parallel_calls(self.tool_choice),
            response_format=parse_response_format(
                response_format(self.response_format, "json_schema")
                if isinstance(self.response_format, type)
                else self.response_format
            ),
            sampling=self.sampling,
            timeout=self.timeout,
        )
