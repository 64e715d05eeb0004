"""Structured output: the response format that is requested, and the parser that turns the answer into an object."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import (
    BaseCumulativeTransformOutputParser,
    BaseOutputParser,
    JsonOutputKeyToolsParser,
    JsonOutputParser,
    PydanticOutputParser,
    PydanticToolsParser,
)
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.json import parse_json_markdown
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import SkipValidation

from langchain_conductor.tools import core_tool
from rl_conductor.errors import ConfigError
from rl_conductor.integration import vendor_safe_name

Schema = dict[str, Any] | type
Method = Literal["json_schema", "function_calling", "json_mode"]

TRUNCATED = "the answer reached max_tokens in the middle of its JSON; raise max_tokens"


def unwrap_schema(schema: Schema, strict: bool | None) -> tuple[Schema, bool | None]:
    """Converts OpenAI's form of a response format to that of a function, which LangChain's converters read.

    Returns other schemas as they are, and `strict`, by default that of the response format.
    """
    if not isinstance(schema, dict):
        return schema, strict
    inner = schema["json_schema"] if schema.get("type") == "json_schema" and "json_schema" in schema else schema
    if not ("name" in inner and "schema" in inner):
        return schema, strict
    function = {name: inner[name] for name in ("name", "description") if inner.get(name)}
    return {**function, "parameters": inner["schema"]}, inner.get("strict") if strict is None else strict


def response_format(schema: Schema, method: Method, *, strict: bool | None = None) -> dict[str, Any]:
    """Builds the `response_format` of a call, so that the answer matches `schema`.

    Raises:
        ConfigError: the method does not exist, or `schema` is not a schema.
    """
    if method == "json_mode":
        return {"type": "json_object"}
    if method != "json_schema":
        raise ConfigError(f"method is {method!r}; write 'json_schema', 'function_calling' or 'json_mode'")
    try:
        json_schema = convert_to_json_schema(schema, strict=strict)
    except ValueError as error:
        message = f"schema is {schema!r}; write a pydantic class, a TypedDict or a JSON schema with a title"
        raise ConfigError(message) from error
    name = vendor_safe_name(json_schema.get("title", "reply"))
    strictness = {} if strict is None else {"strict": strict}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": json_schema, **strictness}}


def with_parser(
    chat: Runnable[LanguageModelInput, AIMessage], schema: Schema, method: Method, *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """Appends the parser of `schema` to `chat`."""
    is_call = method == "function_calling"
    parser = _tool_call_parser(schema) if is_call else CompleteJsonParser(parser=_text_parser(schema))
    if not include_raw:
        return chat | parser
    checked_parser = RunnableLambda(_require_accepted) | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | checked_parser, parsing_error=lambda _: None)
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    outputs = parsed.with_fallbacks([unparsed], exception_key="parsing_error")
    return RunnableMap(raw=chat) | RunnableLambda(outputs.invoke, outputs.ainvoke)  # a stream of it would raise errors


def _require_accepted(answer: AIMessage) -> AIMessage:
    """Returns the answer, unless the Conductor rejected it because it lacks the required format.

    Raises:
        OutputParserException: it was rejected; LangChain's parsers would accept some of these answers.
    """
    if (error := answer.response_metadata["conductor"]["error"]) is not None:
        raise OutputParserException(error, llm_output=str(answer.text))
    return answer


def _tool_call_parser(schema: Schema) -> BaseOutputParser[Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=core_tool(schema).name, first_tool_only=True)


def _text_parser(schema: Schema) -> BaseOutputParser[Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


class CompleteJsonParser(BaseCumulativeTransformOutputParser[Any]):
    """Rejects truncated answers; LangChain's own parsers silently close the open brackets of truncated JSON."""

    parser: SkipValidation[BaseOutputParser[Any]]

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Parses the answer if it is complete.

        Raises:
            OutputParserException: the answer is truncated, or `parser` rejects it.
        """
        generation = result[0]
        assert isinstance(generation, ChatGeneration)
        if generation.message.response_metadata.get("finish_reason") == "length":
            _require_complete(generation.text)
        return self.parser.parse_result(result, partial=partial)

    def parse(self, text: str) -> Any:
        return self.parser.parse(text)


def _require_complete(text: str) -> None:
    """Checks that a text is JSON to its end, as it is or in a code block.

    Raises:
        OutputParserException: it is not.
    """
    try:
        parse_json_markdown(text, parser=json.loads)
    except (ValueError, RecursionError):
        raise OutputParserException(TRUNCATED, llm_output=text) from None
