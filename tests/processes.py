"""Several processes that train together: each runs a program, and prints what it has to say as JSON."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def told(program: str, *arguments: str, count: int) -> list[Any]:
    """What each of so many processes says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    started = [
        subprocess.Popen(
            [sys.executable, program, *arguments],
            stdout=subprocess.PIPE,
            env=os.environ
            | shared
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(Path(__file__).parent)},
        )
        for rank in range(count)
    ]
    try:
        said = [one.communicate()[0] for one in started]
    finally:
        for one in started:
            one.kill()  # one that waits for another would wait on
            one.wait()
    return [json.loads(each) for each in said]
