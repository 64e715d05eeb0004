"""`/v1/messages/count_tokens`: estimates the input tokens of a Messages request."""

from __future__ import annotations

from fastapi import APIRouter, Request

from rl_conductor.workflow.limits import estimate_input_tokens
from rl_conductor_server.api.anthropic_messages.endpoint import CountTokens
from rl_conductor_server.api.anthropic_messages.schema import CountTokensBody
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency, json_body

router = APIRouter()


@router.post("/v1/messages/count_tokens", openapi_extra=json_body(CountTokensBody))
async def count_tokens(http: Request, service: ServiceDependency, key: Caller) -> dict[str, int]:
    """Estimates the input tokens of one call with this conversation; a run makes several calls."""
    key.check_rate()
    parsed = await service.read(http, CountTokens(), key)
    key.find_model(service.catalog, parsed.model)
    return {"input_tokens": estimate_input_tokens(parsed.request)}
