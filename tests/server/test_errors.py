from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rl_conductor_server.auth.keys import hashed
from rl_conductor_server.errors import api_error
from rl_conductor_server.store.database import connected
from server.conftest import Serve

RED = {"authorization": "Bearer red"}
ADMIN = {"authorization": "Bearer admin"}


def test_a_store_that_is_away_is_worth_another_try() -> None:
    known = api_error(OperationalError("SELECT 1", {}, ConnectionError("gone")))
    assert (known.status, known.code) == (503, "store_away")
    assert known.headers["x-should-retry"] == "true"


async def test_a_run_that_another_release_kept_is_refused_in_words(serve: Serve) -> None:
    at = await serve(keys={"red": {"sha256": hashed("red")}}, admin_sha256=hashed("admin"))
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
    asked = await at.http.post("/v1/chat/completions", json=body, headers=RED)
    at.service.store.journal.add(lambda kept: kept.execute(text("UPDATE runs SET trace = '{}'")))
    run = asked.headers["x-conductor-run"]
    for path, headers in ((f"/v1/runs/{run}", RED), (f"/admin/runs/{run}", ADMIN)):
        told = await at.http.get(path, headers=headers)
        assert (told.status_code, told.json()["error"]["code"]) == (409, "other_release")
        assert "was kept by another release" in told.json()["error"]["message"]


@pytest.mark.parametrize("run", ["run-%00", "run.1", "x" * 33])
async def test_what_can_be_no_run_is_refused_before_the_store_is_asked(serve: Serve, run: str) -> None:
    at = await serve(admin_sha256=hashed("admin"))
    for path in (f"/v1/runs/{run}", f"/admin/runs/{run}"):
        told = await at.http.get(path, headers=ADMIN)
        assert (told.status_code, told.json()["error"]["param"]) == (400, "run")


async def test_what_was_asked_is_not_in_the_errors_of_the_store(tmp_path: Path) -> None:
    engine = await connected(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(SQLAlchemyError) as caught:
        async with engine.connect() as connection:
            await connection.execute(text("INSERT INTO no_such_table VALUES (:said)"), {"said": "the secret word"})
    await engine.dispose()
    assert "secret" not in str(caught.value)
