"""`Checker`: a function that grades untrusted text with a library that may hang on it or evaluate it.

It runs in a process of its own, in the sandbox's jail, and is stopped when it takes too long. The process stays for the
next question, because such libraries take seconds to load. There its main thread is free, so time-outs by signal work.
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

START_SECONDS = 120.0
MEMORY = 4 * 2**30
"""Bytes of address space: what a formula such as `9**9**9` would take is more than any machine has."""


class Checker:
    """Calls `function` (as `module:name`) with JSON arguments in another process, one call at a time."""

    def __init__(self, function: str, *, seconds: float = 15.0) -> None:
        self._function = function
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    async def ask(self, **arguments: Any) -> Any:
        """What the function returns, as JSON knows it.

        Raises:
            ValueError: it raised or took too long; the message says which.
            ConfigError: it can't be called here at all, as when its library is missing.
        """
        return await asyncio.to_thread(self._ask, arguments)

    def close(self) -> None:
        """Stop the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, arguments: dict[str, Any]) -> Any:
        with self._lock:
            if self._process is None:
                self._start()
            answer = self._exchange(json.dumps(arguments), self._seconds)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["result"]

    def _start(self) -> None:
        try:
            self._process = self._started()
            self._exchange("", START_SECONDS)
        except (ValueError, OSError) as why:
            told = f"'{sys.executable} -m {__name__} {self._function}' tells why"
            raise ConfigError(f"the checker {self._function} does not start: {why}; {told}") from why

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 (this interpreter, on this very file)
            [sys.executable, "-s", "-P", "-m", __name__, self._function],
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def _exchange(self, line: str, seconds: float) -> dict[str, Any]:
        """Write a line and read an answer; nothing comes back from a process that had to be stopped."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            told = process.stdout.readline()
        except BrokenPipeError:
            told = ""
        finally:
            timer.cancel()
        if not told:
            self.close()
            raise ValueError(f"the check broke down or took more than {seconds:g} seconds")
        answer: dict[str, Any] = json.loads(told)
        if "unusable" in answer:
            self.close()
            raise ConfigError(answer["unusable"])
        return answer


def serve(function: str) -> None:
    """Answer each line of standard input, once everything but the work itself is given up."""
    from rl_conductor import jail  # noqa: PLC0415 (it needs a POSIX system, the rest of the file does not)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    call = _named(function)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        os.chdir(scratch)
        jail.limit_memory(MEMORY)
        jail.confine(scratch)
        for line in sys.stdin:
            answers.write(json.dumps(_answer(call, line)) + "\n")
            answers.flush()


def _named(function: str) -> Callable[..., Any]:
    """The function; where its library is missing, one that says so to whoever asks."""
    module, _, name = function.partition(":")
    try:
        call: Callable[..., Any] = getattr(import_module(module), name)
    except ConfigError as missing:
        why = missing

        def call(**_: Any) -> Any:
            raise why

    return call


def _answer(call: Callable[..., Any], line: str) -> dict[str, Any]:
    try:
        return {"result": call(**json.loads(line)) if line.strip() else None}
    except ConfigError as error:
        return {"unusable": str(error)}
    except Exception as error:  # the failure is the answer: libraries raise of every kind on junk
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(sys.argv[1])
