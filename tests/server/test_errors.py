from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rl_conductor.server.errors import api_error
from rl_conductor.store.database import connected


def test_a_store_that_is_away_is_worth_another_try() -> None:
    known = api_error(OperationalError("SELECT 1", {}, ConnectionError("gone")))
    assert (known.status, known.code) == (503, "store_away")
    assert known.headers["x-should-retry"] == "true"


async def test_what_was_asked_is_not_in_the_errors_of_the_store(tmp_path: Path) -> None:
    engine = await connected(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(SQLAlchemyError) as caught:
        async with engine.connect() as connection:
            await connection.execute(text("INSERT INTO no_such_table VALUES (:said)"), {"said": "the secret word"})
    await engine.dispose()
    assert "secret" not in str(caught.value)
