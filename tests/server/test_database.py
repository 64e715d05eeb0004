from __future__ import annotations

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor_server.store.database import open_database, redact_url


@pytest.mark.parametrize("url", ["postgres://me:secret", "postgres://me:secret/runs", "postgres://me@host:secret/runs"])
async def test_a_port_that_is_not_a_number_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match=r"the store URL postgres://.* is not valid; write"):
        await open_database(url)


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("postgres://me:secret@host:5432/runs", "postgres://...@host:5432/runs"),
        ("postgres://host/runs?password=secret", "postgres://host/runs"),
        ("postgres://me:secret", "postgres://me:..."),
        ("postgres://me:5ecret/runs", "postgres://me:.../runs"),
        ("postgres://[::1]:5432/runs", "postgres://[::1]:5432/runs"),
        ("postgres://host:5432", "postgres://host:5432"),
        ("sqlite:///runs:1.db", "sqlite:///runs:1.db"),
    ],
)
def test_urls_are_redacted_of_anything_that_may_be_a_password(url: str, redacted: str) -> None:
    assert redact_url(url) == redacted
