"""Runs written into a server's store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from core.runs import plan, pool_of
from rl_conductor import Conductor, RunError, ScriptedModel
from rl_conductor.trace.events import Listener
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store import NewRun, Store

TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


def new_run(run: str, **more: object) -> NewRun:
    known = {"id": run, "key": "red", "digest": "d", "api": "chat", "model": "conductor-mini", "created": time.time()}
    return NewRun.model_validate(known | {"question": f"Who is {run}?"} | more)


def keep(url: str, work: Callable[[Store], Awaitable[None]]) -> None:
    """Have `work` write into the store."""

    async def kept() -> None:
        store = await Store.open(url)
        await work(store)
        await store.aclose()

    asyncio.run(kept())


def ran(run: str, b: object = "from b", on_event: Listener | None = None) -> Trace:
    """A run of two steps."""
    made = Conductor(ScriptedModel(TWO), pool_of(a="from a", b=b))
    try:
        return asyncio.run(made.run("Say something.", run_id=run, on_event=on_event))
    except RunError as error:
        return error.trace
