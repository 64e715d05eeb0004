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
                self._process = self._start()
                self._exchange("", START_SECONDS)
            answer = json.loads(self._exchange(json.dumps(arguments), self._seconds))
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["result"]

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 (this interpreter, on this very file)
            [sys.executable, "-s", "-P", "-m", __name__, self._function],
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def _exchange(self, line: str, seconds: float) -> str:
        """Write a line and read one; nothing comes back from a process that had to be stopped."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            self.close()
            raise ValueError(f"the check broke down or took more than {seconds:g} seconds")
        return answer


def serve(function: str) -> None:
    """Answer each line of standard input, once everything but the work itself is given up."""
    from rl_conductor import jail  # noqa: PLC0415 (it needs a POSIX system, the rest of the file does not)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    module, _, name = function.partition(":")
    call = getattr(import_module(module), name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        os.chdir(scratch)
        jail.limit_memory(MEMORY)
        jail.confine(scratch)
        for line in sys.stdin:
            answers.write(json.dumps(_answer(call, line)) + "\n")
            answers.flush()


def _answer(call: Callable[..., Any], line: str) -> dict[str, Any]:
    try:
        return {"result": call(**json.loads(line)) if line.strip() else None}
    except Exception as error:  # the failure is the answer: libraries raise of every kind on junk
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(sys.argv[1])
