"""Several processes that train together: each is a fork that runs a function, and prints what it has to say as JSON."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any

from forks import start_fork


def told(main: Callable[..., object], *arguments: Any, count: int) -> list[Any]:
    """What each of so many processes says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    with ExitStack() as files:
        outputs = [files.enter_context(TemporaryFile("w+")) for _ in range(count)]
        started = [
            start_fork(
                main,
                *arguments,
                environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=output.fileno(),
            )
            for rank, output in enumerate(outputs)
        ]
        try:
            for one in started:
                one.join()
        finally:
            for one in started:
                one.kill()  # one that waits for another would wait on
                one.join()
        for output in outputs:
            output.seek(0)
        return [json.load(output) for output in outputs]
