"""Several processes that train together: each is a fork that runs a function, which prints a result as JSON."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any

from forks import start_fork


def run_together(main: Callable[..., object], *arguments: Any, count: int) -> list[Any]:
    """Runs a function in `count` processes of one group, and returns the results that they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    with ExitStack() as files:
        outputs = [files.enter_context(TemporaryFile("w+")) for _ in range(count)]
        processes = [
            start_fork(
                main,
                *arguments,
                environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=output.fileno(),
            )
            for rank, output in enumerate(outputs)
        ]
        try:
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()  # one that waits for another would wait on
                process.join()
        for output in outputs:
            output.seek(0)
        return [json.load(output) for output in outputs]
