"""Tests that need Phoenix: collected only where `PHOENIX` names it, as in `tests/environments/phoenix.sh`."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("PHOENIX") else ["test_*.py"]
