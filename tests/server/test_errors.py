from __future__ import annotations

import asyncio
from pathlib import Path

import anthropic
import openai
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.endpoints import health
from rl_conductor_server.errors import to_api_error
from rl_conductor_server.store.database import open_database
from server.conftest import Serve

RED = {"authorization": "Bearer red"}
ADMIN = {"authorization": "Bearer admin"}


def test_a_store_that_is_away_is_worth_another_try() -> None:
    known = to_api_error(OperationalError("SELECT 1", {}, ConnectionError("gone")))
    assert (known.status, known.code) == (503, "store_away")
    assert known.headers["x-should-retry"] == "true"


async def test_a_run_that_another_release_kept_is_refused_in_words(serve: Serve) -> None:
    at = await serve(keys={"red": {"sha256": hash_key("red")}}, admins={"admin": {"sha256": hash_key("admin")}})
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
    asked = await at.http.post("/v1/chat/completions", json=body, headers=RED)
    at.service.store.write_queue.add(lambda kept: kept.execute(text("UPDATE runs SET trace = '{}'")))
    run = asked.headers["x-conductor-run"]
    for path, headers in ((f"/v1/runs/{run}", RED), (f"/admin/runs/{run}", ADMIN)):
        told = await at.http.get(path, headers=headers)
        assert (told.status_code, told.json()["error"]["code"]) == (409, "other_release")
        assert "was stored by another release" in told.json()["error"]["message"]


@pytest.mark.parametrize("run", ["run-%00", "run.1", "x" * 33])
async def test_what_can_be_no_run_is_refused_before_the_store_is_asked(serve: Serve, run: str) -> None:
    at = await serve(admins={"admin": {"sha256": hash_key("admin")}})
    for path in (f"/v1/runs/{run}", f"/admin/runs/{run}"):
        told = await at.http.get(path, headers=ADMIN)
        assert (told.status_code, told.json()["error"]["param"]) == (400, "run")


async def test_unknown_paths_have_errors_in_the_format_of_the_clients_api(serve: Serve) -> None:
    at = await serve()
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings is not supported") as caught:
        await at.openai().embeddings.create(model="conductor-mini", input="hello")
    assert caught.value.code == "unknown_url"
    with pytest.raises(anthropic.NotFoundError) as refused:
        await at.anthropic().messages.batches.create(requests=[])
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "POST /v1/messages/batches is not supported: send batches to /v1/batches, in OpenAI's format",
        },
    }
    for path in ("GET /v1/chat/completions", "POST /v1/responses/compact", "POST /v1/moderations"):
        reply = await at.http.request(*path.split())
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
        assert reply.json()["error"]["message"].startswith(f"{path} is not supported: ")
    reply = await at.http.put("/v1/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "GET"


async def test_a_path_with_one_slash_too_many_is_unknown_and_not_redirected(serve: Serve) -> None:
    at = await serve()
    reply = await at.http.post("/v1/chat/completions/", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
    assert "location" not in reply.headers  # it would send the request again, unencrypted behind a proxy


async def test_the_websocket_mode_of_the_responses_api_is_refused_in_words(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    at = await serve()
    websocket = {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    reply = await at.http.get("/v1/responses", headers={"connection": "upgrade", "upgrade": "websocket", **websocket})
    assert reply.status_code == 404
    message = "GET /v1/responses is not supported: there are no WebSockets; send requests by POST, with stream=true"
    assert reply.json()["error"]["message"] == message
    assert "WebSocket" not in caplog.text


async def test_readiness_is_reported_in_time_if_the_store_hangs(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    at = await serve()
    monkeypatch.setattr(health, "READY_TIMEOUT", 0.1)
    monkeypatch.setattr(at.service.store, "ping", asyncio.Event().wait)
    reply = await at.http.get("/readyz")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_away")


async def test_what_was_asked_is_not_in_the_errors_of_the_store(tmp_path: Path) -> None:
    engine = await open_database(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(SQLAlchemyError) as caught:
        async with engine.connect() as connection:
            await connection.execute(text("INSERT INTO no_such_table VALUES (:said)"), {"said": "the secret word"})
    await engine.dispose()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/files?limit=0", "limit must be greater than or equal to 1"),
        ("/v1/batches?limit=many", "limit must be an integer"),
        ("/v1/responses/resp_1?starting_after=-1", "starting_after must be greater than or equal to 0"),
    ],
)
async def test_errors_of_parameters_name_them_in_a_sentence(serve: Serve, path: str, message: str) -> None:
    at = await serve()
    error = (await at.http.get(path)).json()["error"]
    assert error["message"] == message
    assert message.startswith(f"{error['param']} ")
