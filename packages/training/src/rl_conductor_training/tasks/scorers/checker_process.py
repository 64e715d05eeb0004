"""`CheckerProcess`: runs a grading function in a sandboxed process, because its library may hang or evaluate input.

The process is killed on timeout and otherwise kept for the next call, because such libraries take seconds to import.
The function runs in its main thread, so that timeouts by signal work.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rl_conductor.errors import ConfigError

START_TIMEOUT = 120.0
MEMORY_LIMIT = 4 * 2**30
"""Bytes of address space: a formula such as `9**9**9` would use up any machine."""


class CheckerProcess:
    """Calls `function` (written `module:name`) with JSON arguments in another process, one call at a time."""

    def __init__(self, function: str, *, timeout: float = 15.0) -> None:
        self._function = function
        self._timeout = timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    async def call(self, **arguments: Any) -> Any:
        """Returns the function's result, after a round trip through JSON.

        Raises:
            ValueError: the function raised or timed out; the message says which.
            ConfigError: the process does not start, for example because a library is missing.
        """
        return await asyncio.to_thread(self._call_locked, arguments)

    def close(self) -> None:
        """Kills the process; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _call_locked(self, arguments: dict[str, Any]) -> Any:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # it died after the previous check
            if self._process is None:
                self._start()
            reply = self._exchange(json.dumps(arguments), self._timeout)
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply["result"]

    def _start(self) -> None:
        try:
            self._process = self._spawn()
            self._exchange("", START_TIMEOUT)
        except (ValueError, OSError) as error:
            command = f"{sys.executable} -m {__name__} {self._function}"
            raise ConfigError(
                f"the checker {self._function} does not start: {error}; run '{command}' to see the error"
            ) from error

    def _spawn(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 (this interpreter, on this very file)
            [sys.executable, "-s", "-P", "-m", __name__, self._function],
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def _exchange(self, line: str, timeout: float) -> dict[str, Any]:
        """Writes a line and reads the reply; a process that times out is killed and replies nothing."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply_line = process.stdout.readline()
        except BrokenPipeError:
            reply_line = ""
        finally:
            timer.cancel()
        if not reply_line:
            self.close()
            raise ValueError(f"the check crashed or took more than {timeout:g} seconds")
        try:
            reply: dict[str, Any] = json.loads(reply_line)
        except ValueError:
            self.close()
            raise ValueError("the check crashed while it wrote its result") from None
        if "unusable" in reply:
            self.close()
            raise ConfigError(reply["unusable"])
        return reply


def serve(function: str) -> None:
    """Confines this process, then answers each line of standard input."""
    from rl_conductor_training.sandbox import confinement  # noqa: PLC0415 (it needs a POSIX system, the rest of the file does not)

    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps what libraries print out of the replies
    call = _import_function(function)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        os.chdir(scratch)
        confinement.limit_memory(MEMORY_LIMIT)
        confinement.confine(scratch)
        for line in sys.stdin:
            output.write(json.dumps(_reply_to(call, line)) + "\n")
            output.flush()


def _import_function(function: str) -> Callable[..., Any]:
    """Imports the function; where its library is missing, returns one that raises the error on each call."""
    module, _, name = function.partition(":")
    try:
        call: Callable[..., Any] = getattr(import_module(module), name)
    except ConfigError as error:
        import_error = error

        def call(**_: Any) -> Any:
            raise import_error

    return call


def _reply_to(call: Callable[..., Any], line: str) -> dict[str, Any]:
    try:
        return {"result": call(**json.loads(line)) if line.strip() else None}
    except ConfigError as error:
        return {"unusable": str(error)}
    except Exception as error:  # libraries raise any kind of exception on junk, and the caller gets it as data
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(sys.argv[1])
