"""`serve`: the starts that it refuses, and the table of a new key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.settings import read_settings

Cli = Callable[..., Result]


@pytest.mark.parametrize("name", ["team-a", "team.a"])
def test_the_table_of_a_new_key_can_be_pasted_into_the_settings(cli: Cli, tmp_path: Path, name: str) -> None:
    key, _, table = cli("serve", "--new-key", name).stdout.partition("\n\n")
    settings = tmp_path / "server.toml"
    settings.write_text(table)
    assert read_settings(settings).keys[name].sha256 == hash_key(key)


@pytest.mark.parametrize("name", ["team a", "", '"', "-a", "x" * 65, "a\n"])
def test_no_key_is_created_for_an_invalid_name(cli: Cli, name: str) -> None:
    result = cli("serve", "--new-key", name)
    assert result.exit_code == 2
    assert "sha256" not in result.stdout
    assert "can't be the name of a key; use" in result.stderr


def test_a_server_that_is_refused_for_want_of_a_key_creates_no_store(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    result = cli("serve", "--host", "0.0.0.0", "--store", f"sqlite:///{file}")
    assert result.exit_code == 2
    assert "has no API key" in result.stderr
    assert not file.exists()
