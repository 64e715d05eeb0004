"""A vendor on the loopback interface that counts what it is asked, and servers in processes of their own before it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forks import ForkedCommand
from rl_conductor_server.process.listen import listening_socket
from rl_conductor_server.settings import Settings
from server.conftest import until

PATIENCE = 90.0
"""Seconds that a process may take to start."""


Says = str | Callable[[dict[str, Any]], str]
"""A text, or what makes one of a request's body."""


@dataclass
class Vendor:
    """Answers as each model's script says: what it says, whether it may say it yet, and how often it was asked."""

    says: dict[str, Says]
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)
    """Models that do not answer as long as they are in here."""
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields of a model's replies in place of the usual ones, such as `model` and `usage`."""
    refusals: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """The status and headers of a model that answers with an error."""
    complaint: str = "overloaded"
    """The message of these errors."""

    async def answer(self, http: Request) -> Response:
        """One chat completion."""
        body = await http.json()
        model = body["model"]
        self.asked[model] += 1
        while model in self.held and not await http.is_disconnected():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if model in self.refusals:
            status, headers = self.refusals[model]
            return JSONResponse({"error": {"message": self.complaint}}, status_code=status, headers=headers)
        says = self.says[model]
        said = says if isinstance(says, str) else says(body)
        if not said:
            return JSONResponse({"error": {"message": "out of order"}}, status_code=400)
        changed = self.replies.get(model, {})
        if not body.get("stream"):
            whole = _frame(model, "message", said, finish="stop") | changed
            return Response(json.dumps(whole), media_type="application/json")  # JSONResponse encodes no lone surrogate
        frames = [_frame(model, "delta", said), _frame(model, "delta", "", finish="stop") | changed]
        text = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
        return Response(text + "data: [DONE]\n\n", media_type="text/event-stream")


def _frame(model: str, part: str, text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, part: {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} if finish else None
    return {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


@asynccontextmanager
async def vendor(**says: Says) -> AsyncGenerator[Vendor, None]:
    """A vendor that runs while the block does."""
    made = Vendor(says)
    app = Starlette(routes=[Route("/v1/chat/completions", made.answer, methods=["POST"])])
    with listening_socket(Settings(port=0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        try:
            yield made
        finally:
            made.held.clear()
            server.should_exit = True
            await running


def settings_file(folder: Path, upstream: Vendor, store: str) -> Path:
    """Settings of a server whose planner and workers `a`, `b` and `c` are all at that vendor."""
    options = f'options = {{ base_url = "{upstream.url}" }}'
    price = 'price = { input = "1", output = "2" }'
    tables = [f'[planner]\nmodel = "openai:planner"\n{options}\n{price}']
    tables += [f'[workers.{name}]\nmodel = "openai:{name}"\n{options}\n{price}' for name in "abc"]
    tables += [f'[store]\nurl = "{store}"\nlease_seconds = 2', "[intake]\ndrain_seconds = 60"]
    path = folder / "server.toml"
    path.write_text("port = 0\n" + "\n".join(tables))
    return path


@dataclass
class Process:
    """A server in a process of its own."""

    process: asyncio.subprocess.Process | ForkedCommand
    url: str
    said: str

    async def end(self, sign: signal.Signals) -> int:
        """Send it a signal and wait until it is gone."""
        self.process.send_signal(sign)
        return await self.process.wait()


@asynccontextmanager
async def process(config: Path) -> AsyncGenerator[Process, None]:
    """`rl-conductor serve --config`, killed at the end if it is still there."""
    async with ready(await ForkedCommand.start("serve", "--config", str(config), environment=environment())) as server:
        yield server


@asynccontextmanager
async def ready(started: asyncio.subprocess.Process | ForkedCommand) -> AsyncGenerator[Process, None]:
    """A server that was started, once it answers; killed at the end if it is still there."""
    assert started.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = (await started.stdout.readuntil(b"curl")).decode()
        url = said.split(" at ")[1].split("/v1")[0]
        await _until_ready(url)
        yield Process(started, url, said)
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


def environment() -> dict[str, str]:
    """The environment of a command whose models are at that vendor."""
    return {**os.environ, "OPENAI_API_KEY": "secret-of-the-vendor", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


async def _until_ready(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http, asyncio.timeout(PATIENCE):
        while (await http.get(f"{url}/readyz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
