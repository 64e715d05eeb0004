from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

CONFIG = 'model = "m"\n[task]\nname = "composite:train"\n[pool.small]\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "train.toml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


@pytest.mark.skipif(find_spec("trl") is not None, reason="the extra is installed")
def test_a_missing_extra_is_reported_with_its_install_command(cli: Cli, config: Path) -> None:
    result = cli("train", str(config))
    assert result.exit_code == 2
    assert "pip install 'rl-conductor-training[train]'" in result.stderr


def test_a_mistake_in_the_file_is_told_before_anything_is_loaded(cli: Cli, config: Path) -> None:
    config.write_text(f"{CONFIG}[grpo]\nrollouts = 1\n", encoding="utf-8")
    result = cli("train", str(config))
    assert result.exit_code == 2
    assert "grpo.rollouts: Input should be greater than or equal to 2" in result.stderr
