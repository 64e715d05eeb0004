"""Answers as objects: what is asked of the worker that answers, and how its JSON becomes an object. Pure."""

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
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import SkipValidation

from langchain_conductor.messages import core_tool, plain_name
from rl_conductor.errors import ConfigError

Schema = dict[str, Any] | type
Method = Literal["json_schema", "function_calling", "json_mode"]

CUT_OFF = "the answer reached its limit of tokens in the middle of its JSON; raise max_tokens"


def response_format(schema: Schema, method: Method, *, strict: bool | None = None) -> dict[str, Any]:
    """The `response_format` of a call whose answer is to be of `schema`.

    Raises:
        ConfigError: there is no such method, or `schema` is none.
    """
    if method == "json_mode":
        return {"type": "json_object"}
    if method != "json_schema":
        raise ConfigError(f"no method {method!r}: write 'json_schema', 'function_calling' or 'json_mode'")
    try:
        made = convert_to_json_schema(schema, strict=strict)
    except ValueError as error:
        why = f"{schema!r} is no schema; give a pydantic class, a TypedDict or a JSON schema with a title"
        raise ConfigError(why) from error
    return {"type": "json_schema", "json_schema": {"name": plain_name(made.get("title", "reply")), "schema": made}}


def structured(
    chat: Runnable[LanguageModelInput, AIMessage], schema: Schema, method: Method, *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """`chat` with its answers read as `schema`."""
    parser = _of_a_call(schema) if method == "function_calling" else Whole(parser=_of_text(schema))
    if not include_raw:
        return chat | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=chat) | parsed.with_fallbacks([unparsed], exception_key="parsing_error")


def _of_a_call(schema: Schema) -> BaseOutputParser[Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=core_tool(schema).name, first_tool_only=True)


def _of_text(schema: Schema) -> BaseOutputParser[Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


class Whole(BaseCumulativeTransformOutputParser[Any]):
    """Takes no half of an answer: LangChain's own parsers close the brackets of what was cut off, and say nothing."""

    parser: SkipValidation[BaseOutputParser[Any]]

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """What `parser` makes of it.

        Raises:
            OutputParserException: it reached its limit of tokens in the middle, or `parser` can't read it.
        """
        generation = result[0]
        assert isinstance(generation, ChatGeneration)
        if generation.message.response_metadata.get("finish_reason") == "length" and not _is_json(generation.text):
            raise OutputParserException(CUT_OFF, llm_output=generation.text)
        return self.parser.parse_result(result, partial=partial)

    def parse(self, text: str) -> Any:
        """What `parser` makes of `text`."""
        return self.parser.parse(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
