"""`rl-conductor batch-worker`: processes of their own that share the batches of a server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from core.runs import SOON, plan
from forks import ForkedCommand
from rl_conductor_server.store import Store
from server.conftest import until
from server.upstream import PATIENCE, environment, process, settings_file, vendor

PLAN = plan((0, "Draft one.", []), (2, "Finish it.", ["all"]))


@asynccontextmanager
async def batch_worker(config: Path) -> AsyncGenerator[ForkedCommand, None]:
    """`rl-conductor batch-worker --config`, killed at the end if it is still there."""
    started = await ForkedCommand.start("batch-worker", "--config", str(config), environment=environment())
    try:
        async with asyncio.timeout(PATIENCE):
            assert b"Processing batches" in await started.stdout.readline()
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def drafts_recorded(url: str, count: int) -> None:
    """Waits until the first steps of so many runs are in the store."""
    store = await Store.open(url)
    try:
        async with asyncio.timeout(SOON):
            while True:
                rounds = [await store.get_rounds(run.id) for run in await store.list_runs()]
                if sum(bool(each and each[0].results) for each in rounds) == count:
                    return
                await asyncio.sleep(0.05)
    finally:
        await store.aclose()


@pytest.mark.slow
async def test_a_killed_worker_is_replaced_by_another_and_no_finished_step_is_paid_again(
    url: str, tmp_path: Path
) -> None:
    async with vendor(planner=PLAN, a="a draft", b="", c="the end") as upstream:
        config = settings_file(tmp_path, upstream, url)
        config.write_text(config.read_text() + "\n[batches]\nconcurrency = 0\n")
        body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
        lines = [
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
            for number in range(3)
        ]
        upstream.held.add("c")
        async with process(config) as server, httpx.AsyncClient(base_url=server.url, timeout=SOON) as http:
            upload = await http.post("/v1/files", files={"file": "\n".join(lines).encode()}, data={"purpose": "batch"})
            request = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            made = await http.post("/v1/batches", json={"input_file_id": upload.json()["id"], **request})
            path = f"/v1/batches/{made.json()['id']}"
            async with batch_worker(config) as first:
                await until(lambda: upstream.asked["c"] == 3)
                await drafts_recorded(url, 3)
                first.send_signal(signal.SIGKILL)
                await first.wait()
            upstream.held.clear()
            async with batch_worker(config) as second:
                async with asyncio.timeout(SOON):
                    while (batch := (await http.get(path)).json())["status"] == "in_progress":  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
                output = (await http.get(f"/v1/files/{batch['output_file_id']}/content")).text
                second.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(second.wait(), SOON) == 0
        answers = [
            json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] for line in output.split("\n")[:-1]
        ]
        assert answers == ["the end"] * 3
        assert upstream.asked == {"planner": 3, "a": 3, "c": 6}
