"""How far a paused or interrupted run has come: LangGraph's own `get_state` does not show graphs made at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from langchain_conductor.node import PLAN, ROUNDS
from langchain_conductor.subgraph import RESULTS, Graph, results_in
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import PlanRecord, StepResult
from rl_conductor.workflow.workflow import Workflow


@dataclass(frozen=True)
class Progress:
    """One plan that waits to go on."""

    plan: PlanRecord = field(repr=False)
    workflow: Workflow
    results: tuple[StepResult, ...] = field(repr=False)
    """The steps that ended; one that failed on the way stays failed, and those after it do without."""

    @property
    def left(self) -> list[int]:
        """Positions of the steps that are still to run."""
        return sorted(self.workflow.needed - {result.index for result in self.results})

    def __str__(self) -> str:
        marks = {result.index: "✓" if result.status == "ok" else "✗" for result in self.results}
        lines = self.workflow.ascii().splitlines()
        return "\n".join(f"{marks.get(index, ' ')} {line}" for index, line in enumerate(lines))


def get_progress(graph: Graph, config: RunnableConfig) -> list[Progress]:
    """Every plan of the thread that waits to go on.

    Args:
        graph: your graph, compiled with a checkpointer.
        config: with the `thread_id`.

    Raises:
        ConfigError: the graph has no checkpointer.
    """
    saver = _saver(graph)
    waiting = list(_waiting(graph.get_state(config, subgraphs=True)))
    stored = list(saver.list(_whole_thread(config))) if waiting else []
    return [_progress(plan, namespace, stored) for plan, namespace in waiting]


async def aget_progress(graph: Graph, config: RunnableConfig) -> list[Progress]:
    """`get_progress` for async checkpointers."""
    saver = _saver(graph)
    waiting = list(_waiting(await graph.aget_state(config, subgraphs=True)))
    stored = [one async for one in saver.alist(_whole_thread(config))] if waiting else []
    return [_progress(plan, namespace, stored) for plan, namespace in waiting]


def _saver(graph: Graph) -> BaseCheckpointSaver[Any]:
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise ConfigError("the graph keeps no state; compile it with a checkpointer")
    return graph.checkpointer


def _whole_thread(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"]["thread_id"]}}


def _waiting(snapshot: StateSnapshot) -> Iterator[tuple[PlanRecord, str]]:
    """The plans that wait, and the namespaces of their graphs."""
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _waiting(task.state)
        elif ROUNDS in snapshot.values and task.name in ("review", "run"):  # a key that no graph around the node has
            inside = snapshot.config["configurable"].get("checkpoint_ns", "")
            yield PlanRecord.model_validate(snapshot.values[PLAN]), "|".join(filter(None, (inside, f"run:{task.id}")))


def _progress(plan: PlanRecord, namespace: str, stored: Iterable[CheckpointTuple]) -> Progress:
    assert plan.workflow is not None
    newest: dict[str, CheckpointTuple] = {}
    for one in sorted(stored, key=lambda one: one.checkpoint["id"]):
        newest[one.config["configurable"]["checkpoint_ns"]] = one
    found: dict[str, Any] = {}
    for inside, one in newest.items():
        if f"{inside}|".startswith(f"{namespace}|"):
            for results in _written(one):
                found |= results
    return Progress(plan=plan, workflow=plan.workflow, results=tuple(results_in({RESULTS: found})))


def _written(stored: CheckpointTuple) -> Iterator[dict[str, Any]]:
    """The results in a checkpoint, and those of steps that were done after it."""
    yield stored.checkpoint["channel_values"].get(RESULTS, {})
    for _, channel, value in stored.pending_writes or ():
        if channel == RESULTS:
            yield value
