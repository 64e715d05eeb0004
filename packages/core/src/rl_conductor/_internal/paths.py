"""Paths of the user's files."""

from __future__ import annotations

import os
from pathlib import Path

from rl_conductor.errors import ConfigError

try:
    from platformdirs import user_cache_path
except ImportError as missing:
    raise ConfigError("caching files needs platformdirs: pip install 'rl-conductor[local]'") from missing


def cache_folder() -> Path:
    """Returns the folder for cached weights and replies: `RL_CONDUCTOR_CACHE`, or the platform's cache folder."""
    override = os.environ.get("RL_CONDUCTOR_CACHE")
    return Path(override).expanduser() if override else user_cache_path("rl-conductor")
