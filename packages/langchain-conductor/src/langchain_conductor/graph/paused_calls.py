"""Stores the calls that a step made before it paused.

Of a paused node LangGraph keeps only the interrupt, and the node starts from its beginning when it is resumed; what it
had spent would be missing in the limits and in the usage. So the calls have a small graph of their own, which is never
run: its state is stored by the same checkpointer, in a namespace below the step's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from rl_conductor.trace import Call

CALLS = "paused_calls"
"""The last part of the namespace, and the key of the state."""
CHECKPOINTER = "__pregel_checkpointer"
"""The key under which LangGraph passes the checkpointer on to the graphs that are called in a node."""

PausedCalls = TypedDict("PausedCalls", {CALLS: list[dict[str, Any]]})  # type: ignore[misc]
_graph = StateGraph(PausedCalls).add_node(CALLS, lambda _: None).add_edge(START, CALLS).compile(name=CALLS)


@contextmanager
def paused_calls(config: RunnableConfig) -> Iterator[list[Call]]:
    """Provides the calls that the node with this config made before, and stores the list if it pauses again."""
    below = _below(config)
    if below is None:
        yield []
        return
    calls = _read(_graph.get_state(below))
    try:
        yield calls
    except GraphInterrupt:
        _graph.update_state(below, _to_state(calls))
        raise


@asynccontextmanager
async def apaused_calls(config: RunnableConfig) -> AsyncIterator[list[Call]]:
    """Works like `paused_calls`, for async checkpointers."""
    below = _below(config)
    if below is None:
        yield []
        return
    calls = _read(await _graph.aget_state(below))
    try:
        yield calls
    except GraphInterrupt:
        await _graph.aupdate_state(below, _to_state(calls))
        raise


def _below(config: RunnableConfig) -> RunnableConfig | None:
    """Returns the config of the calls' namespace; `None` without a checkpointer."""
    configurable = config["configurable"]
    if configurable.get(CHECKPOINTER) is None:
        return None
    return {"configurable": {**configurable, "checkpoint_ns": f"{configurable['checkpoint_ns']}|{CALLS}"}}


def _read(snapshot: StateSnapshot) -> list[Call]:
    return [Call.model_validate(call) for call in snapshot.values.get(CALLS, ())]


def _to_state(calls: Sequence[Call]) -> dict[str, Any]:
    return {CALLS: [call.model_dump(mode="json") for call in calls]}
