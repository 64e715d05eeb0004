"""Tests that need torch: collected only where it is installed. `tests/environments/torch.sh` makes such a place."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

import processes
from forks import FORKS

collect_ignore_glob = ["test_*.py"]
if find_spec("torch") is not None:
    collect_ignore_glob = []
    # Imported once for all processes that train: torch and TRL take half a minute of processor time.
    FORKS.set_forkserver_preload(["rl_conductor_training.train.train"])

os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that wait for each other on busy cores make a tiny model many times slower.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shared_training(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of each of two processes that share a warm start and a step."""
    from shared_training import share_training  # noqa: PLC0415 - needs torch

    return processes.run_together(share_training, tmp_path_factory.mktemp("shared"), count=2)
