"""Runs a server in several processes that share a listening socket, and replaces those that die."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

from prometheus_client.multiprocess import mark_process_dead

from rl_conductor.errors import ConfigError
from rl_conductor_server.metrics import MULTIPROCESS_FOLDER
from rl_conductor_server.process.signals import stop_on_hangup
from rl_conductor_server.settings import Settings

log = logging.getLogger("rl_conductor_server")

CONFIG_ERROR_EXIT = 78
"""Exit code of a worker that can't start because of its settings (`EX_CONFIG`); it would fail again."""
POLL_SECONDS = 0.2
RESTART_SECONDS = 1.0
"""Pause before a process that died is replaced."""
KILL_SECONDS = 10.0
"""Seconds after `drain_seconds` at which a process that has not stopped is killed."""

RunWorker = Callable[[Settings, socket.socket, bool], None]
"""Serves requests of a socket until a signal; the flag says whether to print the banner. Must be importable."""


class Supervisor:
    """The parent of the worker processes."""

    def __init__(self, run_worker: RunWorker, settings: Settings, listener: socket.socket, count: int) -> None:
        self._run_worker = run_worker
        self._settings = settings
        self._listener = listener
        self._count = count
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[SpawnProcess] = []
        self._is_stopping = False

    def run(self) -> None:
        """Runs the processes until SIGTERM, SIGINT or SIGHUP, and then stops them.

        Raises:
            ConfigError: the processes can't start with these settings; the first one has printed the reason.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        stop_on_hangup()
        with tempfile.TemporaryDirectory(prefix="rl-conductor-metrics-") as folder:
            os.environ[MULTIPROCESS_FOLDER] = folder
            self._processes = [self._start(show_banner=number == 0) for number in range(self._count)]
            try:
                while not self._is_stopping:
                    wait([process.sentinel for process in self._processes], timeout=POLL_SECONDS)
                    self._replace_dead()
            finally:
                self._stop_processes()

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _start(self, *, show_banner: bool = False) -> SpawnProcess:
        process = self._context.Process(
            target=_run_in_child,
            args=(self._run_worker, self._settings, self._listener, show_banner),
            name="rl-conductor-worker",
        )
        process.start()
        return process

    def _replace_dead(self) -> None:
        for index, process in enumerate(self._processes):
            if self._is_stopping or process.exitcode is None:
                continue
            if process.exitcode == CONFIG_ERROR_EXIT:
                raise ConfigError("the server's processes can't start; see the message above")
            log.error("worker process %s ended with exit code %s; starting another", process.pid, process.exitcode)
            mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
            time.sleep(RESTART_SECONDS)
            self._processes[index] = self._start()

    def _stop_processes(self) -> None:
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + self._settings.intake.drain_seconds + KILL_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()


def _run_in_child(
    run_worker: RunWorker,
    settings: Settings,
    listener: socket.socket,
    show_banner: bool,
) -> None:
    """Runs a worker, which is stopped as by SIGTERM if its parent is killed."""
    threading.Thread(target=_stop_after_parent, daemon=True).start()
    run_worker(settings, listener, show_banner)


def _stop_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
