"""Tests that need torch: collected only where it is installed. `tests/environments/torch.sh` makes such a place."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []

os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that wait for each other on busy cores make a tiny model many times slower.
os.environ["OMP_NUM_THREADS"] = "1"
