"""`serve --new-key`: the key, and its table for the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rl_conductor_server.auth.keys import hashed
from rl_conductor_server.settings import read_settings

Cli = Callable[..., Result]


@pytest.mark.parametrize("name", ["team-a", "team.a"])
def test_the_table_of_a_new_key_is_what_the_settings_read(cli: Cli, tmp_path: Path, name: str) -> None:
    key, _, table = cli("serve", "--new-key", name).stdout.partition("\n\n")
    settings = tmp_path / "conductor.toml"
    settings.write_text(table)
    assert read_settings(settings).keys[name].sha256 == hashed(key)


@pytest.mark.parametrize("name", ["team a", "", '"', "-a", "x" * 65, "a\n"])
def test_a_name_that_the_settings_would_refuse_gets_no_key(cli: Cli, name: str) -> None:
    told = cli("serve", "--new-key", name)
    assert told.exit_code == 2
    assert "sha256" not in told.stdout
    assert "can't name a key: write" in told.stderr
