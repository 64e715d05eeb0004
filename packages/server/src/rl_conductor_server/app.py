"""The ASGI application: routes and error handlers."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from rl_conductor._internal.validation import clean_message
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.telemetry import called_by
from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.anthropic_messages.endpoint import Messages
from rl_conductor_server.api.openai_chat.endpoint import ChatCompletions
from rl_conductor_server.api.openai_responses.endpoint import Responses
from rl_conductor_server.endpoints import admin, feedback, health, models, runs
from rl_conductor_server.endpoints.dependencies import get_service
from rl_conductor_server.errors import ApiError, anthropic_error_body, invalid_request, openai_error_body, to_api_error
from rl_conductor_server.service import Service
from rl_conductor_server.web.pages import router as pages

log = logging.getLogger("rl_conductor_server")

ADAPTERS: dict[str, ApiAdapter] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]"]
"""The only accepted `Host` headers without API keys: a website could otherwise reach the server by DNS rebinding."""


def create_app(service: Service) -> FastAPI:
    """Creates the ASGI application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with service.open():
            yield

    app = FastAPI(title="RL Conductor", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    if not service.settings.keys:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    for router in (models.router, runs.router, feedback.router, admin.router, health.router, pages):
        app.include_router(router)
    for path, adapter in ADAPTERS.items():
        app.post(path)(_endpoint(adapter))
    for error in (ConductorError, OperationalError, InterfaceError):
        app.add_exception_handler(error, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    return app


def _endpoint(adapter: ApiAdapter) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(http: Request) -> Response:
        service = get_service(http)
        try:
            with called_by(http.headers):
                response = await service.answer(http, adapter)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # nothing further out knows the error format of the adapter's API
            response = _error_response(error, adapter)
        service.metrics.count_request(http.url.path, response.status_code)
        return response

    return endpoint


def _error_response(error: Exception, adapter: ApiAdapter) -> Response:
    converted = _convert_error(error)
    cause = error if isinstance(error, RunError) else error.__cause__  # an `ApiError` may stand for it
    run = {"x-conductor-run": cause.trace.id} if isinstance(cause, RunError) else {}
    return JSONResponse(adapter.error_body(converted), status_code=converted.status, headers=converted.headers | run)


async def _handle_error(_: Request, error: Exception) -> Response:
    converted = _convert_error(error)
    return JSONResponse(openai_error_body(converted), status_code=converted.status, headers=converted.headers)


async def _handle_validation_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return await _handle_error(http, invalid_request(clean_message(first["msg"]), param=str(first["loc"][-1])))


async def _handle_http_error(http: Request, error: Exception) -> Response:
    """Answers unknown paths and methods in the format of the API that the client uses."""
    assert isinstance(error, HTTPException)
    path = http.url.path
    message = f"there is no {http.method} {path}" if error.status_code in (404, 405) else str(error.detail)
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    converted = ApiError(message, status=error.status_code, code=code)
    is_anthropic = "anthropic-version" in http.headers or path.startswith("/v1/messages")
    body = anthropic_error_body(converted) if is_anthropic else openai_error_body(converted)
    headers = converted.headers | dict(error.headers or {})
    return JSONResponse(body, status_code=error.status_code, headers=headers)


def _convert_error(error: Exception) -> ApiError:
    converted = to_api_error(error)
    if converted.status == 500:
        log.error("a request failed", exc_info=error)
    return converted
