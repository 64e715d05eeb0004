"""The OpenAPI document of the server, from its routes and the schemas of its request bodies."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rl_conductor._internal.version import package_version
from rl_conductor_server.endpoints.dependencies import BODIES

REFERENCE = "#/components/schemas/{model}"
OBJECT = {"type": "object", "additionalProperties": True}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, as server-sent events.",
        "content": {"application/json": {"schema": OBJECT}, "text/event-stream": {"schema": {"type": "string"}}},
    },
}
OPEN_PATHS = ("/healthz", "/readyz")
"""Paths that need no key."""
DESCRIPTION = (
    "Models of OpenAI's and Anthropic's APIs, each of which plans a workflow over a pool of models. Unknown fields of "
    "a request are ignored, and listed in the response header x-conductor-ignored, unless the server is strict."
)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Returns the document, which is built once."""
    if app.openapi_schema is None:
        app.openapi_schema = _build(app)
    return app.openapi_schema


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title="RL Conductor", version=package_version(), description=DESCRIPTION, routes=app.routes)
    components = document.setdefault("components", {})
    _, bodies = models_json_schema([(body, "validation") for body in BODIES], ref_template=REFERENCE)
    components["schemas"] = components.get("schemas", {}) | _allow_unknown_fields(bodies["$defs"]) | {"Error": OBJECT}
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    errors = {code: {"description": "An error, in the format of the API.", "content": error} for code in ("4XX", "5XX")}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own format; the server answers with status 400
            operation["responses"] |= errors
            operation["security"] = [] if path in OPEN_PATHS else [{"bearer": []}, {"header": []}]
    return document


def _allow_unknown_fields(schema: Any) -> Any:
    """Removes `additionalProperties: false`: the server ignores unknown fields."""
    if isinstance(schema, list):
        return [_allow_unknown_fields(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _allow_unknown_fields(value)
        for name, value in schema.items()
        if (name, value) != ("additionalProperties", False)
    }
