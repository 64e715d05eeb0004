from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor._internal.paths import cache_folder


def test_the_variable_names_the_folder_else_the_system_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", "~/mine")
    assert cache_folder() == Path.home() / "mine"
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", "")
    assert cache_folder().name == "rl-conductor"
