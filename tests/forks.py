"""Programs in processes of their own, without their imports: forks of a process that has imported all of it.

Importing the server, or the frameworks that programs of the docs use, takes more processor time than most tests.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "rl_conductor.cli.main",
        "rl_conductor.models.openai.adapter",
        "rl_conductor_server.app",
        "rl_conductor_server.batches.processor",
        "rl_conductor_server.cli.serve",
        "rl_conductor_server.process.listen",
        "rl_conductor_server.process.tuning",
        "uvicorn.protocols.http.httptools_impl",
        "aiosqlite",
        "psycopg",
        "anthropic",
        "langchain_openai",
        "langgraph.graph",
        "llama_index.core",
    ]
)


def start_fork(
    main: Callable[..., object], *arguments: Any, environment: Mapping[str, str], stdout: int = 1, stderr: int = 2
) -> ForkServerProcess:
    """Starts a function with this environment, which writes to these file descriptors."""
    with Connection(os.dup(stdout), readable=False) as out, Connection(os.dup(stderr), readable=False) as errors:
        fork = FORKS.Process(target=_run, args=(main, arguments, dict(environment), out, errors))
        fork.start()
    return fork


def _run(
    main: Callable[..., object],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    stdout: Connection,
    stderr: Connection,
) -> None:
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # type: ignore[misc] # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    main(*arguments)


def run_program(source: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a program, as `python -c` does."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        module = {"__name__": "__main__"}
        outputs = {"stdout": stdout.fileno(), "stderr": stderr.fileno()}
        fork = start_fork(exec, source, module, environment=environment, **outputs)
        fork.join()
        assert fork.exitcode is not None
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(source, fork.exitcode, stdout.read(), stderr.read())


class ForkedCommand:
    """`rl-conductor` in a fork; it has what tests use of `asyncio.subprocess.Process`."""

    def __init__(self, fork: ForkServerProcess, stdout: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._fork = fork
        self._pipe = pipe
        self.stdout = stdout

    @classmethod
    async def start(cls, *arguments: str, environment: Mapping[str, str]) -> ForkedCommand:
        """Starts the command."""
        reading, writing = os.pipe()
        fork = start_fork(run_command, *arguments, environment=environment, stdout=writing, stderr=2)
        os.close(writing)
        stdout = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reading, "rb")
        )
        return cls(fork, stdout, pipe)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._fork.pid is not None
        return self._fork.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._fork.exitcode

    def send_signal(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self._fork.kill()

    async def wait(self) -> int:
        """Waits until it ends."""
        await asyncio.to_thread(self._fork.join)
        assert self._fork.exitcode is not None
        return self._fork.exitcode

    async def communicate(self) -> None:
        """Waits until it ends, and closes its output."""
        await self.wait()
        self._pipe.close()


def run_command(*arguments: str) -> None:
    """Runs the command line, as the installed program does."""
    from rl_conductor.cli.main import main  # noqa: PLC0415 - is imported before the fork

    sys.argv = ["rl-conductor", *arguments]
    main()
