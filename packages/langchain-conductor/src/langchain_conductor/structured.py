"""Answers as objects: what is asked of the worker that answers, and how its JSON becomes an object. Pure."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from rl_conductor.errors import ConfigError

Schema = dict[str, Any] | type
Method = Literal["json_schema", "function_calling", "json_mode"]


def response_format(schema: Schema, method: Method, *, strict: bool | None = None) -> dict[str, Any]:
    """The `response_format` of a call whose answer is to be of `schema`.

    Raises:
        ConfigError: there is no such method.
    """
    if method == "json_mode":
        return {"type": "json_object"}
    if method != "json_schema":
        raise ConfigError(f"no method {method!r}: write 'json_schema', 'function_calling' or 'json_mode'")
    made = convert_to_json_schema(schema, strict=strict)
    return {"type": "json_schema", "json_schema": {"name": made.get("title", "reply"), "schema": made}}


def structured(
    chat: Runnable[LanguageModelInput, AIMessage], schema: Schema, *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """`chat` with its answers read as `schema`."""
    parser: BaseOutputParser[Any] = JsonOutputParser()
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        parser = PydanticOutputParser(pydantic_object=schema)
    if not include_raw:
        return chat | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=chat) | parsed.with_fallbacks([unparsed], exception_key="parsing_error")
