"""Stores the calls that a step made before it paused, or before it failed and ended the run.

Of such a node LangGraph keeps only the interrupt or the error, and the node starts from its beginning when it is
resumed; what it had spent would be missing in the limits and in the usage. So the calls have a small graph of their
own, which is never run: its state is stored by the same checkpointer, in a namespace below the step's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from rl_conductor import RunError
from rl_conductor.trace import Call

NAMESPACE = "previous_attempts"
"""The last part of the namespace."""
CALLS, FAILED = "calls", "failed"
"""The keys of the state."""
CHECKPOINTER = "__pregel_checkpointer"
"""The key under which LangGraph passes the checkpointer on to the graphs that are called in a node."""

AttemptsState = TypedDict("AttemptsState", {CALLS: list[dict[str, Any]], FAILED: bool})  # type: ignore[misc]
_graph = (
    StateGraph(AttemptsState).add_node(NAMESPACE, lambda _: None).add_edge(START, NAMESPACE).compile(name=NAMESPACE)
)


@dataclass
class PreviousAttempts:
    """The calls that a step made before its node was resumed."""

    calls: list[Call] = field(default_factory=list)
    """All of them; the next attempt adds its own."""
    failed: bool = False
    """Whether the last attempt failed and ended the run."""


@contextmanager
def previous_attempts(config: RunnableConfig) -> Iterator[PreviousAttempts]:
    """Provides the previous attempts of the node with this config, and stores them if it pauses or fails again."""
    below = _below(config)
    if below is None:
        yield PreviousAttempts()
        return
    attempts = _read(_graph.get_state(below))
    try:
        yield attempts
    except (GraphInterrupt, RunError) as error:
        _graph.update_state(below, _to_state(attempts, error))
        raise


@asynccontextmanager
async def aprevious_attempts(config: RunnableConfig) -> AsyncIterator[PreviousAttempts]:
    """Works like `previous_attempts`, for async checkpointers."""
    below = _below(config)
    if below is None:
        yield PreviousAttempts()
        return
    attempts = _read(await _graph.aget_state(below))
    try:
        yield attempts
    except (GraphInterrupt, RunError) as error:
        await _graph.aupdate_state(below, _to_state(attempts, error))
        raise


def _below(config: RunnableConfig) -> RunnableConfig | None:
    """Returns the config of the calls' namespace; `None` without a checkpointer."""
    configurable = config["configurable"]
    if configurable.get(CHECKPOINTER) is None:
        return None
    return {"configurable": {**configurable, "checkpoint_ns": f"{configurable['checkpoint_ns']}|{NAMESPACE}"}}


def _read(snapshot: StateSnapshot) -> PreviousAttempts:
    calls = [Call.model_validate(call) for call in snapshot.values.get(CALLS, ())]
    return PreviousAttempts(calls, failed=snapshot.values.get(FAILED, False))


def _to_state(attempts: PreviousAttempts, error: GraphInterrupt | RunError) -> dict[str, Any]:
    return {
        CALLS: [call.model_dump(mode="json") for call in attempts.calls],
        FAILED: isinstance(error, RunError),
    }
