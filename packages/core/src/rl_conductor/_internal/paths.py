"""Where files of this user are kept."""

from __future__ import annotations

import os
from pathlib import Path

from rl_conductor.errors import ConfigError

try:
    from platformdirs import user_cache_path
except ImportError as missing:
    raise ConfigError("files to be kept need platformdirs: pip install 'rl-conductor[local]'") from missing


def cache_folder() -> Path:
    """The folder of what can be had again, weights and replies: `RL_CONDUCTOR_CACHE`, or the system's own."""
    own = os.environ.get("RL_CONDUCTOR_CACHE")
    return Path(own).expanduser() if own else user_cache_path("rl-conductor")
