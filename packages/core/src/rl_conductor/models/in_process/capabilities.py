"""Capabilities of in-process models, and requests that they can't take."""

from __future__ import annotations

from typing import Literal

from rl_conductor.errors import BadRequestError, ContextLengthError
from rl_conductor.models.base import Capabilities, Model, require
from rl_conductor.models.tool_emulation import offered_tools
from rl_conductor.types import Request


def in_process_capabilities(
    *, tools: bool, images: bool = False, lengths: Literal["grammar", "check"] = "check", context: int | None = None
) -> Capabilities:
    """Capabilities of an in-process model, which always supports response formats.

    Replies begin outside of reasoning: llama.cpp separates it, and `ChatTemplate.reasoning_prefix` restores an opened
    block.
    """
    return Capabilities(
        tools=tools,
        images=images,
        json_schema=True,
        array_bounds=True,
        grammar=True,
        lengths=lengths,
        reasoning_start="outside",
        context=context,
        runs_in="process",
    )


def require_supported(model: Model, request: Request) -> None:
    """Raises `BadRequestError` if `model` or its chat template does not support `request`."""
    names = [tool.name for tool in request.tools]
    if names and not model.capabilities.tools:
        raise BadRequestError(
            f"the chat template of model {model.name!r} can't take tools, or does not write calls as JSON: take a "
            "checkpoint whose template does, or a vllm-server that was started with a --tool-call-parser for this one",
            model=model.name,
        )
    if request.tool_choice not in ("auto", "none") and not offered_tools(request):
        message = f"{model.name}: tool_choice is {request.tool_choice!r} and the tools are {names}: name one of them"
        raise BadRequestError(message, model=model.name)
    require(model, request)


def require_room(tokens: int, *, limit: int, model: str) -> None:
    """Raises `ContextLengthError` if a prompt of `tokens` leaves no room for a reply."""
    if tokens >= limit:
        raise ContextLengthError(
            f"{model}: the conversation is {tokens} tokens long and the model reads at most {limit - 1}", model=model
        )
