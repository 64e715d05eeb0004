"""The commands of our other packages, and how to install these."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

SERVER, TRAINING = "rl-conductor-server", "rl-conductor-training"
ADD_ONS = {
    "serve": SERVER,
    "batch-worker": SERVER,
    "runs": SERVER,
    "show": SERVER,
    "audit": SERVER,
    "keys": SERVER,
    "experiments": SERVER,
    "audit-spend": SERVER,
    "bench": TRAINING,
    "calibrate": TRAINING,
    "learn": TRAINING,
    "train": TRAINING,
}
"""The package of each command. They are listed even if their package is not installed."""


def install_command(package: str) -> str:
    """Returns the command that installs one of our packages: from the checkout that this one was installed from."""
    origin = distribution("rl-conductor").read_text("direct_url.json")
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    if url.scheme == "file":
        folder = Path(url2pathname(url.path)).parent / package.removeprefix("rl-conductor-")
        if (folder / "pyproject.toml").is_file():
            near = folder.is_relative_to(Path.cwd())
            return f"pip install -e {folder.relative_to(Path.cwd()) if near else folder}"
    return f"pip install {package}"
