from __future__ import annotations

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor_server.store.database import connected, shown


@pytest.mark.parametrize("url", ["postgres://me:secret", "postgres://me:secret/runs", "postgres://me@host:secret/runs"])
async def test_a_port_that_is_no_number_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no store at postgres://.*: write"):
        await connected(url)


@pytest.mark.parametrize(
    ("url", "told"),
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
def test_a_url_is_shown_without_what_may_be_a_password(url: str, told: str) -> None:
    assert shown(url) == told
