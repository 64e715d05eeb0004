"""A vLLM server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SETTINGS = ["--enforce-eager", "--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}']


@dataclass(frozen=True)
class Server:
    """A vLLM server that is starting, ready or dead."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def await_ready(self, limit: float = 240) -> None:
        """Return once it answers; fail when it dies first or takes longer than `limit` seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.5)
            else:
                return
        raise AssertionError(f"the vLLM server did not get ready; its log ends:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-6000:]

    def metric(self, name: str) -> float:
        """The current value of one of its counters or gauges."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


@contextmanager
def starting(model: Path, *, log: Path, name: str) -> Iterator[Server]:
    """A server of `model` on a free port of this machine; it is not ready yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # The `vllm` command asks for a distribution of that name, which the CPU build hasn't; this is the same server.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *SETTINGS]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", port]
    with log.open("wb") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file, start_new_session=True)
        try:
            yield Server(f"http://127.0.0.1:{port}", process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to leave; then end it with its children, for a server that is still starting may miss the asking."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
