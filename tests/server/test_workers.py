"""`serve --workers`: several processes behind one address."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from core.runs import plan
from server.conftest import until
from server.upstream import PATIENCE, Process, environment, ready, settings_file, vendor

ASK = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}


def children(pid: int) -> set[int]:
    """The processes that a process has started and that serve requests."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncGenerator[Process, None]:
    """A server of two processes, in a new interpreter."""
    async with vendor(planner=plan((0, "Say it.", [])), a="from a", b="", c="") as upstream:
        config = settings_file(folder, upstream, f"sqlite:///{folder / 'runs.db'}")
        command = (sys.executable, "-m", "rl_conductor.cli.main", "serve", "--config", str(config), "--workers", "2")
        async with ready(await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment())) as server:
            yield server


@pytest.mark.slow
async def test_processes_share_the_address_and_metrics_and_are_replaced_when_they_die(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as server:
        parent = server.process.pid
        workers = children(parent)
        assert len(workers) == 2
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
            for _ in range(6):  # each on a connection of its own, so that both processes get some
                reply = await http.post("/v1/chat/completions", json=ASK, headers={"connection": "close"})
                assert reply.json()["choices"][0]["message"]["content"] == "from a"
            metrics = (await http.get("/metrics")).text
            counted = re.search(r'conductor_requests_total\{path="/v1/chat/completions",status="200"\} (\S+)', metrics)
            assert counted is not None
            assert float(counted[1]) == 6
            killed = workers.pop()
            os.kill(killed, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE):
                await until(lambda: killed not in children(parent))
                while len(children(parent)) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200
        assert await server.end(signal.SIGTERM) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)  # noqa: ASYNC240


@pytest.mark.slow
async def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as server:
        workers = children(server.process.pid)
        assert len(workers) == 2
        server.process.kill()
        async with asyncio.timeout(PATIENCE):
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
