"""The application: its routes, and what is told when one fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from rl_conductor._internal.validation import clean_message
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.telemetry import called_by
from rl_conductor_server.api.anthropic_messages.endpoint import Messages
from rl_conductor_server.api.openai_chat.endpoint import ChatCompletions
from rl_conductor_server.api.openai_responses.endpoint import Responses
from rl_conductor_server.endpoints.lookups import router, service_of
from rl_conductor_server.errors import ApiError, api_error, openai_body, refused
from rl_conductor_server.protocol import Api
from rl_conductor_server.service import Service
from rl_conductor_server.web.pages import router as pages

log = logging.getLogger("rl_conductor_server")

PROTOCOLS: dict[str, Api] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]"]
"""Without keys, a web page must not reach us under a name of its own that leads here."""


def create_app(service: Service) -> FastAPI:
    """The server as an ASGI application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with service.open():
            yield

    app = FastAPI(title="RL Conductor", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    if not service.settings.keys:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    app.include_router(router)
    app.include_router(pages)
    for path, api in PROTOCOLS.items():
        app.post(path)(_speaking(api))
    for kind in (ConductorError, OperationalError, InterfaceError):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(RequestValidationError, _misread)
    return app


def _speaking(api: Api) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of one protocol."""

    async def endpoint(http: Request) -> Response:
        service = service_of(http)
        try:
            with called_by(http.headers):
                reply = await service.answer(http, api)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # the last place where it can be told in the protocol's own words
            reply = _told(error, api)
        service.metrics.answered(http.url.path, reply.status_code)
        return reply

    return endpoint


def _told(error: Exception, api: Api) -> Response:
    known = _known(error)
    run = {"x-conductor-run": error.trace.id} if isinstance(error, RunError) else {}
    return JSONResponse(api.error(known), status_code=known.status, headers=known.headers | run)


async def _refused(_: Request, error: Exception) -> Response:
    known = _known(error)
    return JSONResponse(openai_body(known), status_code=known.status, headers=known.headers)


async def _misread(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return await _refused(http, refused(clean_message(first["msg"]), param=str(first["loc"][-1])))


def _known(error: Exception) -> ApiError:
    known = api_error(error)
    if known.status == 500:
        log.error("a request failed", exc_info=error)
    return known
