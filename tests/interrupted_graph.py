"""A graph with the node, in a process that its tests kill: see `run`.

`store` is a Postgres address, a path to SQLite for `invoke`, or `async:` and such a path for `ainvoke`. Every call that
is begun writes a line to the file `calls`; the one of the subtask `hang` never returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from conductor_graphs import DIAMOND, THREAD, around, told
from core.runs import Gated, forever, pool_of, subtask_of
from langchain_conductor.graph.node import create_conductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import Conductor, Request

ASYNC = "async:"


@contextmanager
def opened(store: str) -> Iterator[Any]:
    """The checkpointer."""
    kind = PostgresSaver if store.startswith("postgres") else SqliteSaver
    with kind.from_conn_string(store.removeprefix(ASYNC)) as saver:
        saver.setup()
        yield saver


def built(saver: Any, calls: Path, hang: str) -> Graph:
    """The graph; `hang` is the subtask that never ends."""

    def note(line: str) -> None:
        with calls.open("a") as file:
            file.write(line + "\n")

    async def work(request: Request) -> None:
        note(subtask_of(request))
        if subtask_of(request) == hang:
            await forever(request)

    async def plan(_: Request) -> None:
        note("plan")

    workers = {name: Gated(told, work, name=name) for name in "ab"}
    conductor = Conductor(Gated(DIAMOND, plan), pool_of(**workers), access="positional")
    return around(create_conductor(conductor), saver=saver)


def run(store: str, calls: Path, hang: str) -> str:
    """Ask, or go on where the thread was left."""
    if store.startswith(ASYNC):
        return asyncio.run(run_async(store, calls, hang))
    with opened(store) as saver:
        graph = built(saver, calls, hang)
        begun = graph.get_state(THREAD).next
        result = graph.invoke(None if begun else {"messages": [HumanMessage("q")]}, THREAD, durability="sync")
        return str(result["messages"][-1].text)


async def run_async(store: str, calls: Path, hang: str) -> str:
    """`run`, awaited."""
    async with AsyncSqliteSaver.from_conn_string(store.removeprefix(ASYNC)) as saver:
        graph = built(saver, calls, hang)
        begun = (await graph.aget_state(THREAD)).next
        told = None if begun else {"messages": [HumanMessage("q")]}
        result = await graph.ainvoke(told, THREAD, durability="sync")
        return str(result["messages"][-1].text)
