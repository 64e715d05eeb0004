"""Environments of their own for peers whose requirements contradict ours, under the user's cache folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from platformdirs import user_cache_path


def install(requirement: str) -> Path:
    """Installs a pinned package such as `litellm[proxy]==1.106.2`, once; returns the folder of its programs."""
    folder = user_cache_path("rl-conductor") / "benchmarks" / requirement.replace("==", "-")
    programs, complete = folder / "bin", folder / "complete"
    if not complete.exists():
        subprocess.run(["uv", "venv", "--quiet", "--clear", str(folder)], check=True)
        command = ["uv", "pip", "install", "--quiet", "--python", str(programs / "python"), requirement]
        subprocess.run(command, check=True)
        complete.touch()
    return programs
