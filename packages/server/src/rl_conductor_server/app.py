"""The ASGI application: routes and error handlers."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.guardrails.loading import build_guardrails
from rl_conductor.telemetry import called_by
from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.adapters import ADAPTERS
from rl_conductor_server.batches.processor import BatchProcessor
from rl_conductor_server.catalog import catalog_of
from rl_conductor_server.endpoints import (
    admin,
    batches,
    conversations,
    feedback,
    files,
    health,
    keys,
    models,
    responses,
    runs,
    tokens,
)
from rl_conductor_server.endpoints.dependencies import get_service, json_body
from rl_conductor_server.errors import STORE_ERRORS, ApiError, error_body, to_api_error
from rl_conductor_server.exchange import answer
from rl_conductor_server.openapi import ANSWERS, openapi_document
from rl_conductor_server.request_validation.errors import invalid_parameter
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings, WebEntry
from rl_conductor_server.transport.access_log import CLIENT_GONE, AccessLog, add_log_fields
from rl_conductor_server.transport.connection_limit import RequestLimit
from rl_conductor_server.transport.cors import ApiCors
from rl_conductor_server.transport.request_guard import RequestGuard
from rl_conductor_server.web.pages import router as pages
from rl_conductor_server.web.routing import error_page, wants_page

log = logging.getLogger("rl_conductor_server")

UNSUPPORTED = {
    "/v1/embeddings": "the models of this server generate text; send embeddings to the vendor",
    "/v1/completions": "send a chat to /v1/chat/completions",
    "/v1/chat/completions": "chats are not stored for later; send requests to /v1/responses, which stores them",
    "/v1/responses": "there are no WebSockets; send requests by POST, with stream=true",
    "/v1/responses/compact": "only its vendor can read a compacted conversation; send the turns themselves",
    "/v1/moderations": "guardrails of the server may check requests; send texts to the vendor",
    "/v1/messages/batches": "send batches to /v1/batches, in OpenAI's format",
}
"""Endpoints of the vendors that clients may expect, with the reason for their absence, or what to use instead. The
methods that there are have routes."""


def create_app(*conductors: Conductor, settings: Settings | None = None) -> FastAPI:
    """Creates an ASGI application that serves conductors made in Python, each as the model of its name.

    Any ASGI server can run it; `rl-conductor serve` also limits the time that slow clients may take.

    Args:
        conductors: the models; their names must differ. The application closes them when it stops.
        settings: the store, keys, administrators, limits, and guardrails besides those of the conductors; the pool,
            models and experiments in them are not used.

    Raises:
        ConfigError: two conductors have one name, there is none, or a guardrail can't be created.
    """
    effective = settings or Settings()
    if guardrails := build_guardrails(effective.guardrails):
        conductors = tuple(each.replaced(guardrails=(*each.config.guardrails, *guardrails)) for each in conductors)
    return _build(partial(Service.create, catalog_of(conductors), effective), effective.web)


def service_app(service: Service, *, max_connections: int | None = None) -> FastAPI:
    """Creates the ASGI application of a service, which it opens and closes.

    `max_connections` of its server limits the requests in progress, see `RequestLimit`.
    """

    async def create() -> Service:
        return service

    app = _build(create, service.settings.web, max_connections=max_connections)
    app.state.service = service
    return app


def _build(create: Callable[[], Awaitable[Service]], web: WebEntry, *, max_connections: int | None = None) -> FastAPI:
    """Builds the application of the service that `create` returns."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        app.state.service = service = await create()
        async with service.open(), BatchProcessor(service).open():
            yield

    app = FastAPI(
        title="RL Conductor",
        routes=ROUTES,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # behind a proxy that terminates TLS, the new address would be a plain one
    )
    app.add_middleware(RequestGuard, origins=web.origins)
    if max_connections is not None:
        app.add_middleware(RequestLimit, max_connections=max_connections)
    if web.origins:  # outside of those which reject requests, so that websites can read the reason
        app.add_middleware(ApiCors, origins=web.origins)
    app.add_middleware(AccessLog)
    app.openapi = partial(openapi_document, app)  # type: ignore[method-assign]
    for error in (ConductorError, *STORE_ERRORS):
        app.add_exception_handler(error, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(ClientDisconnect, _handle_disconnect)
    return app


def _endpoint(adapter: ApiAdapter) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(http: Request) -> Response:
        service = get_service(http)
        try:
            with called_by(http.headers):
                return await answer(service, http, adapter)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except Exception as error:  # nothing further out knows the error format of the adapter's API
            return _error_response(http, error, adapter)

    return endpoint


def _create_routes() -> list[BaseRoute]:
    inference = APIRouter()
    for path, (adapter, body) in ADAPTERS.items():
        register = inference.post(path, openapi_extra=json_body(body), responses=ANSWERS, summary=adapter.name)
        register(_endpoint(adapter))
    endpoints = (models, runs, feedback, responses, conversations, files, batches, tokens, admin, keys, health)
    # The first are found fastest, since a request is compared with one route after the other.
    routers = (inference, *(module.router for module in endpoints), pages)
    return [route for router in routers for route in router.routes]


ROUTES = _create_routes()
"""Shared by the applications of a process: analysing the endpoints takes 30 ms."""


def _error_response(http: Request, error: Exception, adapter: ApiAdapter) -> Response:
    converted = _convert_error(http, error)
    cause = error if isinstance(error, RunError) else error.__cause__  # an `ApiError` may stand for it
    run = {"x-conductor-run": cause.trace.id} if isinstance(cause, RunError) else {}
    return JSONResponse(adapter.error_body(converted), status_code=converted.status, headers=converted.headers | run)


async def _handle_disconnect(http: Request, error: Exception) -> Response:  # noqa: ARG001
    """Ends a request after its client has disconnected; nobody gets this response."""
    return Response(status_code=CLIENT_GONE)


async def _handle_error(http: Request, error: Exception) -> Response:
    converted = _convert_error(http, error)
    return JSONResponse(error_body(http, converted), status_code=converted.status, headers=converted.headers)


async def _handle_validation_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _handle_error(http, invalid_parameter(error.errors()[0]))


async def _handle_http_error(http: Request, error: Exception) -> Response:
    """Answers unknown paths and methods in the format of the API that the client uses."""
    assert isinstance(error, HTTPException)
    path = http.url.path
    status = error.status_code
    message = f"there is no {http.method} {path}" if status in (404, 405) else str(error.detail)
    if path in UNSUPPORTED and status in (404, 405):
        status, message = 404, f"{http.method} {path} is not supported: {UNSUPPORTED[path]}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(status, "http_error")
    converted = ApiError(message, status=status, code=code)
    add_log_fields(http, cause=code)
    if wants_page(http) and http.method in ("GET", "HEAD") and not path.startswith(("/v1/", "/admin/")):
        return error_page(http, ApiError(f"There is no page {path}.", status=status, code=code))
    headers = converted.headers | dict(error.headers or {})
    return JSONResponse(error_body(http, converted), status_code=status, headers=headers)


def _convert_error(http: Request, error: Exception) -> ApiError:
    converted = to_api_error(error)
    add_log_fields(http, cause=converted.code)
    if converted.status == 500:
        log.error("a request failed", exc_info=error)
    return converted
