"""What the server's benchmarks share: a fake vendor on the loopback interface, and programs in processes of their own.

The vendor speaks Chat Completions over bare sockets, so that it costs little and can break any promise of HTTP. The
planner always writes one plan: two parts at once, then a third that reads both. Every reply has a number, and
names the part of the question that it was asked for, so that it can be recognised wherever it turns up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TextIO
from urllib.error import URLError

PLAN = """
model_id = [0, 1, 2]
subtasks = ["Write part one of question {0}.", "Write part two of question {0}.", "Write the answer of question {0}."]
access_list = [[], [], ["all"]]"""
PART = re.compile(rb"(part one|part two|the answer) of question \d+")
QUESTION = re.compile(rb"question (\d+)")
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
FAULTS = ("503", "hang", "reset", "truncated", "unfinished")
"""Refused; silent; cut off before a word; cut off in the middle; ended politely but before the end."""
LONGEST_SILENCE = 4.0
"""Seconds after which a vendor that hangs cuts the connection."""
PATIENCE = 180.0
"""Seconds that a program may take to start."""


@dataclass
class Made:
    """One call, as the vendor sees it."""

    number: int
    question: int
    part: str
    """One of the plan's, `plan` itself, or `alone` for a worker that answers without one."""
    began: float
    """Seconds since 1970."""
    ended: str = "abandoned"
    """`whole`, one of the faults, or `abandoned` when nobody waited for the reply."""
    over: float = 0.0
    """When that was."""


@dataclass
class Vendor:
    """Answers, or fails to with a given chance."""

    seconds: float
    faults: float
    random: Random
    log: TextIO | None
    number: int = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer all that comes over one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self.answer(body, reader, writer)
        writer.close()

    async def answer(self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call, and note how that went."""
        asked = json.loads(body)
        call = self._call(body, asked["model"])
        fault = self.random.choice(FAULTS) if self.random.random() < self.faults else None
        try:
            await asyncio.sleep(self.seconds)
            await self._reply(call, asked, fault, reader, writer)
            call.ended = "whole"
        finally:
            call.ended = fault or call.ended
            call.over = time.time()
            if self.log:
                print(json.dumps(vars(call)), file=self.log, flush=True)

    def _call(self, body: bytes, model: str) -> Made:
        self.number += 1
        parts = [part.decode() for part in PART.findall(body)] or ["alone"]
        question = QUESTION.findall(body)
        number = int(question[-1]) if question else 0
        return Made(self.number, number, "plan" if model == "planner" else parts[-1], began=time.time())

    async def _reply(
        self,
        call: Made,
        asked: dict[str, Any],
        fault: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match fault:
            case "hang":
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), LONGEST_SILENCE)
                writer.close()
            case "reset":
                writer.transport.abort()
            case "503":
                writer.write(_whole(503, b'{"error": {"message": "overloaded"}}'))
            case _:
                reply = _spoken(asked, said(call), fault)
                writer.write(reply[: len(reply) // 2] if fault == "truncated" else reply)
                if fault == "truncated":
                    writer.close()
        await writer.drain()


def said(call: Made) -> str:
    """The reply to a call."""
    plan = PLAN.format(call.question) if call.part == "plan" else ""
    return f"Reply {call.number}: {call.part} of question {call.question}.{plan}"


def _spoken(asked: dict[str, Any], text: str, fault: str | None) -> bytes:
    model = asked["model"]
    if not asked.get("stream"):
        body = json.dumps(_frame(model, "message", text, finish="stop")).encode()
        return _whole(200, body[: len(body) // 2] if fault == "unfinished" else body)
    cut = len(text) // 2
    frames = [_frame(model, "delta", text[:cut]), _frame(model, "delta", text[cut:], finish="stop")]
    events = [f"data: {json.dumps(frame)}\n\n".encode() for frame in frames] + [b"data: [DONE]\n\n"]
    if fault == "unfinished":
        events = events[:1]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in [*events, b""])
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


def _frame(model: str, part: str, text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, part: {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = USAGE if finish else None
    return {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


def _whole(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d Told\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


# ---------------------------------------------------------------------------------------- processes


def free_port() -> int:
    """A port on which nobody listens just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def running(
    command: list[str], *, ready: Callable[[], bool], env: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs while the block does, from when it is `ready`; what it says goes to `log`."""
    with (log or Path("/dev/null")).open("ab") as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
        try:
            _await(process, ready, log)
            yield process
        finally:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path | None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"did not start: {process.args!r}\n{log.read_text()[-2000:] if log else ''}")
        time.sleep(0.05)


def answers(url: str) -> Callable[[], bool]:
    """Whether this address answers with success."""

    def ready() -> bool:
        with suppress(URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
        return False

    return ready


def listens(port: int) -> Callable[[], bool]:
    """Whether somebody listens there."""

    def ready() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    return ready


@contextmanager
def vendor(*, seconds: float = 0.0, faults: float = 0.0, seed: int = 0, log: Path | None = None) -> Iterator[str]:
    """The base URL of a vendor in a process of its own."""
    port = free_port()
    words = [f"--port={port}", f"--seconds={seconds}", f"--faults={faults}", f"--seed={seed}"]
    words += [f"--log={log}"] if log else []
    with running([sys.executable, __file__, *words], ready=listens(port)):
        yield f"http://127.0.0.1:{port}/v1"


async def main() -> None:
    """Be the vendor."""
    told = argparse.ArgumentParser()
    for name, kind in (("port", int), ("seconds", float), ("faults", float), ("seed", int)):
        told.add_argument(f"--{name}", type=kind)
    told.add_argument("--log", type=argparse.FileType("a"))
    given = told.parse_args()
    made = Vendor(given.seconds, given.faults, Random(given.seed), given.log)
    server = await asyncio.start_server(made.talk, "127.0.0.1", given.port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
