"""Tests that need torch: collected only where it is installed. `tests/environments/torch.sh` makes such a place."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import processes

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []

os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that wait for each other on busy cores make a tiny model many times slower.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shared_training(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two processes says that share a warm start and a step."""
    program = Path(processes.__file__).with_name("shared_training.py")
    return processes.told(str(program), str(tmp_path_factory.mktemp("shared")), count=2)
