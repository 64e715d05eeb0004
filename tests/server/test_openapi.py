"""The OpenAPI document, and the server against it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CheckFunction
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.settings import Settings
from server.conftest import ONE_STEP, Serve, served

KEY, ADMIN = "key-of-red", "key-of-admin"
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that runs in a thread of its own, because schemathesis sends requests from this one."""
    store = {"url": f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'runs.db'}"}
    keys = {"red": {"sha256": hash_key(KEY)}}
    made = Settings.model_validate(
        {"port": 0, "store": store, "keys": keys, "admins": {"admin": {"sha256": hash_key(ADMIN)}}}
    )
    pool = WorkerPool({"a": ScriptedModel("from a"), "b": ScriptedModel("from b")})
    loop, stop, urls = asyncio.new_event_loop(), asyncio.Event(), list[str]()
    started = threading.Event()

    async def serve_until_stopped() -> None:
        async with served(pool, ScriptedModel(ONE_STEP), made) as at:
            urls.append(at.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve_until_stopped(),))
    thread.start()
    assert started.wait(30)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def check_operation(operation: Any) -> None:
    """Send generated requests, and check each answer against the document."""
    key = ADMIN if operation.path.startswith("/admin") else KEY

    @settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(headers={"authorization": f"Bearer {key}"}, checks=CHECKS)

    check()


def test_every_answer_is_as_the_document_says(address: str) -> None:
    operations = []
    for found in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():
        assert isinstance(found, Ok), found
        operations.append(found.ok())
    for operation in operations:
        check_operation(operation)
    assert {"/v1/chat/completions", "/v1/responses/{response}/cancel", "/admin/keys"} <= {op.path for op in operations}


async def test_the_document_describes_the_bodies_of_all_apis_and_their_keys(serve: Serve) -> None:
    at = await serve(keys={"red": {"sha256": hash_key(KEY)}})
    document = (await at.http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    for path, body in (
        ("/v1/chat/completions", "ChatBody"),
        ("/v1/responses", "ResponsesBody"),
        ("/v1/messages", "MessagesBody"),
        ("/v1/messages/count_tokens", "CountTokensBody"),
    ):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{body}"}
        assert "model" in document["components"]["schemas"][body]["required"]
        assert document["paths"][path]["post"]["security"]
    assert document["paths"]["/healthz"]["get"]["security"] == []
    assert "/sign-in" not in document["paths"]
    named = {ref.split('"')[0] for ref in str(document).replace("'", '"').split("#/components/schemas/")[1:]}
    assert named <= document["components"]["schemas"].keys()


async def test_every_endpoint_that_reads_a_body_describes_it(serve: Serve) -> None:
    at = await serve(keys={"red": {"sha256": hash_key(KEY)}})
    document = (await at.http.get("/openapi.json")).json()
    without_body = {
        path
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method in ("post", "put", "patch") and "requestBody" not in operation
    }
    assert without_body == {"/v1/responses/{response}/cancel", "/v1/batches/{batch_id}/cancel"}
