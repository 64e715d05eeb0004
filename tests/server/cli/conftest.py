"""The command line, a service of models for it, and the address of an empty store."""

from pathlib import Path

import pytest

from command_line import _bare_environment, cli, command, pool, running, service

__all__ = ["_bare_environment", "cli", "command", "pool", "running", "service"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'kept.db'}"
