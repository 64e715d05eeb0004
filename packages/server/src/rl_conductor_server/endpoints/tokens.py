"""`/v1/messages/count_tokens` and `/v1/responses/input_tokens`: estimates of the input tokens of a request."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from rl_conductor.workflow.request_tokens import estimate_input_tokens
from rl_conductor_server.api.anthropic_messages.adapter import CountTokens
from rl_conductor_server.api.anthropic_messages.schema import CountTokensBody
from rl_conductor_server.api.openai_responses.adapter import Responses
from rl_conductor_server.api.openai_responses.schema import ResponsesBody
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency, json_body
from rl_conductor_server.exchange import Exchange, read_request

router = APIRouter()


@router.post("/v1/messages/count_tokens", openapi_extra=json_body(CountTokensBody))
async def count_tokens(http: Request, service: ServiceDependency, key: Caller) -> dict[str, int]:
    """Estimates the input tokens of one call with this conversation; a run makes several calls."""
    key.check_rate()
    parsed = await read_request(service, http, CountTokens(), key)
    key.find_model(service.catalog, parsed.model)
    return {"input_tokens": estimate_input_tokens(parsed.request)}


@router.post("/v1/responses/input_tokens", openapi_extra=json_body(ResponsesBody))
async def count_response_tokens(http: Request, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Estimates the input tokens of one call with this request and the turns before it."""
    key.check_rate()
    adapter = Responses()
    parsed = await read_request(service, http, adapter, key)
    key.find_model(service.catalog, parsed.model)
    with Exchange(service, adapter, key) as exchange:
        unstored = parsed.model_copy(update={"keep": False})  # it is no turn of its conversation
        parsed = await exchange.add_history(unstored)
    return {"object": "response.input_tokens", "input_tokens": estimate_input_tokens(parsed.request)}
