"""Tools of the server benchmarks: a fake vendor on the loopback interface, and programs in their own processes.

The vendor implements Chat Completions over bare sockets, so that it is fast and can violate HTTP. The planner always
returns the same plan: two parallel parts, then a third that reads both. Every reply contains a number and the part of
the question that it answers, so that it can be recognised anywhere. The models in `CHUNK_SECONDS` stream a long reply,
a word at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
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
CHUNKS = 200
CHUNK_SECONDS = {"streamed": 0.001, "burst": 0.0}
"""Models that stream their reply in `CHUNKS` chunks, and the seconds between them."""
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
FAULTS = ("503", "hang", "reset", "truncated", "unfinished")
"""Refused; no reply; closed before the reply; closed in the middle of it; well-formed but incomplete."""
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HANG_SECONDS = 4.0
"""Seconds after which a hanging vendor closes the connection."""
START_TIMEOUT = 180.0
"""Maximum seconds for a program to start."""


@dataclass
class VendorCall:
    """One call in the vendor's log."""

    number: int
    question: int
    part: str
    """A part of the plan, `plan` itself, or `alone` for a worker without a plan."""
    started: float
    """Seconds since 1970."""
    outcome: str = "abandoned"
    """`whole`, one of the faults, or `abandoned` when the client disconnected."""
    ended: float = 0.0
    """Seconds since 1970."""


@dataclass
class FakeVendor:
    """Replies to calls, or fails with probability `faults`."""

    seconds: float
    faults: float
    random: Random
    log: TextIO | None
    number: int = 0

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers all requests of one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self.answer(body, reader, writer)
        writer.close()

    async def answer(self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one call and logs its outcome."""
        request = json.loads(body)
        call = self._call(body, request["model"])
        fault = self.random.choice(FAULTS) if self.random.random() < self.faults else None
        try:
            await asyncio.sleep(self.seconds)
            await self._reply(call, request, fault, reader, writer)
            call.outcome = "whole"
        finally:
            call.outcome = fault or call.outcome
            call.ended = time.time()
            if self.log:
                print(json.dumps(vars(call)), file=self.log, flush=True)

    def _call(self, body: bytes, model: str) -> VendorCall:
        self.number += 1
        parts = [part.decode() for part in PART.findall(body)] or ["alone"]
        question = QUESTION.findall(body)
        number = int(question[-1]) if question else 0
        return VendorCall(self.number, number, "plan" if model == "planner" else parts[-1], started=time.time())

    async def _reply(
        self,
        call: VendorCall,
        request: dict[str, Any],
        fault: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match fault:
            case "hang":
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), HANG_SECONDS)
                writer.close()
            case "reset":
                writer.transport.abort()
            case "503":
                writer.write(_http_response(503, b'{"error": {"message": "overloaded"}}'))
            case None if request["model"] in CHUNK_SECONDS and request.get("stream"):
                await _stream_words(writer, request["model"])
            case _:
                reply = _encode_reply(request, reply_text(call), fault)
                writer.write(reply[: len(reply) // 2] if fault == "truncated" else reply)
                if fault == "truncated":
                    writer.close()
        await writer.drain()


def reply_text(call: VendorCall) -> str:
    """Returns the text of the reply to a call."""
    plan = PLAN.format(call.question) if call.part == "plan" else ""
    return f"Reply {call.number}: {call.part} of question {call.question}.{plan}"


def _encode_reply(request: dict[str, Any], text: str, fault: str | None) -> bytes:
    model = request["model"]
    if not request.get("stream"):
        body = json.dumps(_frame(model, "message", text, finish="stop")).encode()
        return _http_response(200, body[: len(body) // 2] if fault == "unfinished" else body)
    middle = len(text) // 2
    frames = [_frame(model, "delta", text[:middle]), _frame(model, "delta", text[middle:], finish="stop")]
    events = [f"data: {json.dumps(frame)}\n\n".encode() for frame in frames] + [b"data: [DONE]\n\n"]
    if fault == "unfinished":
        events = events[:1]
    return STREAM_HEAD + b"".join(_http_chunk(event) for event in [*events, b""])


async def _stream_words(writer: asyncio.StreamWriter, model: str) -> None:
    """Streams `CHUNKS` words, each in a write of its own."""
    writer.write(STREAM_HEAD)
    for number in range(CHUNKS):
        frame = _frame(model, "delta", f"word{number} ", finish="stop" if number == CHUNKS - 1 else None)
        writer.write(_http_chunk(f"data: {json.dumps(frame)}\n\n".encode()))
        await writer.drain()
        await asyncio.sleep(CHUNK_SECONDS[model])
    writer.write(_http_chunk(b"data: [DONE]\n\n") + _http_chunk(b""))
    await writer.drain()


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(model: str, part: str, text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, part: {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = USAGE if finish else None
    return {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


def _http_response(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d Status\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


# ---------------------------------------------------------------------------------------- processes


def free_port() -> int:
    """Returns a port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def run_program(
    command: list[str], *, ready: Callable[[], bool], env: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program during the block, which begins once it is `ready`; its output goes to `log`."""
    with (log or Path("/dev/null")).open("ab") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        try:
            _wait_until_ready(process, ready, log)
            yield process
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path | None) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"did not start: {process.args!r}\n{log.read_text()[-2000:] if log else ''}")
        time.sleep(0.05)


def responds(url: str) -> Callable[[], bool]:
    """Returns a check whether this URL responds with status 200."""

    def ready() -> bool:
        with suppress(URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
        return False

    return ready


def listens(port: int) -> Callable[[], bool]:
    """Returns a check whether this port accepts connections."""

    def ready() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    return ready


@contextmanager
def vendor(*, seconds: float = 0.0, faults: float = 0.0, seed: int = 0, log: Path | None = None) -> Iterator[str]:
    """Runs a vendor in its own process during the block, and yields its base URL."""
    port = free_port()
    arguments = [f"--port={port}", f"--seconds={seconds}", f"--faults={faults}", f"--seed={seed}"]
    arguments += [f"--log={log}"] if log else []
    with run_program([sys.executable, __file__, *arguments], ready=listens(port)):
        yield f"http://127.0.0.1:{port}/v1"


async def main() -> None:
    """Serves the vendor until it is killed."""
    parser = argparse.ArgumentParser()
    for name, kind in (("port", int), ("seconds", float), ("faults", float), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--log", type=argparse.FileType("a"))
    args = parser.parse_args()
    fake_vendor = FakeVendor(args.seconds, args.faults, Random(args.seed), args.log)
    server = await asyncio.start_server(fake_vendor.serve_connection, "127.0.0.1", args.port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())


def processor_seconds(pid: int) -> float:
    """Reads the processor time of a process in seconds; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
