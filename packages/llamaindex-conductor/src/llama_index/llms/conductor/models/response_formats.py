"""Requests JSON from LlamaIndex's LLMs of OpenAI and Anthropic, in the way of each vendor."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

from llama_index.core.llms import LLM

from rl_conductor.errors import BadRequestError
from rl_conductor.integration import claude_schema, response_format_of
from rl_conductor.types import JsonFormat


def is_openai(llm: LLM) -> TypeGuard[Any]:
    """Whether `llm` is LlamaIndex's model of OpenAI, or one of its subclasses for other vendors with the same API."""
    openai = sys.modules.get("llama_index.llms.openai")  # a package of its own
    return openai is not None and isinstance(llm, openai.OpenAI)


def has_response_format(llm: LLM) -> bool:
    """Whether `llm` constrains its replies to a JSON schema."""
    if is_openai(llm):
        return bool(llm._should_use_structure_outputs())  # noqa: SLF001
    return _is_claude_with_schemas(llm)


def format_keywords(llm: LLM, response_format: JsonFormat, *, model: str) -> dict[str, Any]:
    """Returns the keywords of a call that requests JSON; LlamaIndex's model of Anthropic passes them to its client.

    Raises:
        BadRequestError: a Claude model needs a schema, and there is none; the message calls it `model`.
    """
    if not _is_claude_with_schemas(llm):
        return {"response_format": response_format_of(response_format)}
    if response_format.json_schema is None:
        raise BadRequestError(f"{model} writes JSON only with a schema: set json_schema", model=model)
    json_format = {"type": "json_schema", "schema": claude_schema(response_format.json_schema)}
    own_body = llm.additional_kwargs.get("extra_body") or {}
    # As a part of the body, since its clients name the parameter differently, depending on their version.
    return {"extra_body": {**own_body, "output_config": {**own_body.get("output_config", {}), "format": json_format}}}


def _is_claude_with_schemas(llm: LLM) -> TypeGuard[Any]:
    anthropic = sys.modules.get("llama_index.llms.anthropic.base")  # a package of its own
    if anthropic is None or not isinstance(llm, anthropic.Anthropic):
        return False
    is_supported = getattr(anthropic, "is_anthropic_structured_output_supported", None)
    return is_supported is not None and bool(is_supported(llm.model))
