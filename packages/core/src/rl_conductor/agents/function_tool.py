"""`FunctionTool`: a Python function that a model may call, with a JSON schema made from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from rl_conductor._internal.blocking import in_thread
from rl_conductor._internal.validation import field_errors
from rl_conductor.agents.function_result import collect_result, result_text
from rl_conductor.agents.tool import MAX_NAME_CHARS, ToolError, check_argument_length
from rl_conductor.errors import ConfigError
from rl_conductor.types import Tool


class FunctionTool:
    """A Python function as a tool; sync functions run in a thread. Arguments are validated by their annotations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Creates a tool from a function.

        Args:
            function: a sync or async function with named parameters; its docstring is the tool's description. Describe
                a parameter with `Annotated[str, pydantic.Field(description="...")]`.

        Raises:
            ConfigError: the function has no usable name or parameters.
        """
        inner = function.func if isinstance(function, partial) else function
        name = getattr(inner, "__name__", "")
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS:
            raise ConfigError(
                f"tools={function!r} has no name that a model could call; pass a function made with `def`"
            )
        self._function = function
        self._is_async = inspect.iscoroutinefunction(inner)
        self._arguments = _arguments_model(function, inner, name)
        schema = _json_schema(self._arguments, name)
        self.definition = Tool(name=name, description=inspect.getdoc(inner) or "", parameters=schema)

    async def run(self, arguments: str) -> str:
        """Calls the function with validated arguments and returns its result as text.

        Raises:
            ToolError: the arguments are too long or invalid, or the result is an object that is no data.
        """
        check_argument_length(arguments)
        try:
            parsed = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolError("invalid arguments: " + "; ".join(map(str, field_errors(error)))) from None
        values = {str(field.alias): getattr(parsed, name) for name, field in type(parsed).model_fields.items()}
        call = partial(self._function, **values)
        result = await collect_result(await (call() if self._is_async else in_thread(call)), self.definition.name)
        text = result_text(result)
        if text is None:
            raise ToolError(f"the tool returned an object of the type {type(result).__name__}, which is no data")
        return text


def _arguments_model(function: Callable[..., Any], inner: Callable[..., Any], name: str) -> type[BaseModel]:
    """Creates a pydantic model of the parameters; fields have aliases because parameters may have any name."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # many built-in types and functions of C libraries have none
        raise ConfigError(f"tool {name!r} has no signature; wrap it in a function with named parameters") from None
    try:
        hints = get_type_hints(inner, include_extras=True)
    except NameError as error:
        raise ConfigError(f"tool {name!r}: an annotation can't be resolved: {error}") from None
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {name!r}: parameter {parameter.name!r} accepts any arguments; write named parameters only"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"argument_{index}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    with _type_errors(name):
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _json_schema(arguments: type[BaseModel], name: str) -> dict[str, Any]:
    with _type_errors(name):
        schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


@contextmanager
def _type_errors(name: str) -> Iterator[None]:
    try:
        yield
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"tool {name!r}: a parameter's type has no JSON schema: {reason}") from None
