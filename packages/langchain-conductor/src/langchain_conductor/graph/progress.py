"""Progress of paused or interrupted runs; LangGraph's own `get_state` does not show graphs made at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from langchain_conductor.graph.node import PLAN, ROUNDS
from langchain_conductor.graph.step_graph import RESULTS, Graph, read_results
from rl_conductor.errors import ConfigError
from rl_conductor.trace import PlanRecord, StepResult
from rl_conductor.workflow import Workflow


@dataclass(frozen=True)
class Progress:
    """The progress of one plan that waits to be resumed."""

    plan: PlanRecord = field(repr=False)
    """The plan, with its reasons and its cost."""
    workflow: Workflow
    """The workflow that runs."""
    results: tuple[StepResult, ...] = field(repr=False)
    """Results of the steps that ended. A failed step is only repeated if the last step failed, too, and reads it."""

    @property
    def remaining(self) -> list[int]:
        """Positions of the steps that have not run yet."""
        return sorted(self.workflow.needed - {result.index for result in self.results})

    def __str__(self) -> str:
        marks = {result.index: "✓" if result.status == "ok" else "✗" for result in self.results}
        lines = self.workflow.ascii().splitlines()
        return "\n".join(f"{marks.get(index, ' ')} {line}" for index, line in enumerate(lines))


def get_progress(graph: Graph, config: RunnableConfig) -> list[Progress]:
    """Returns the progress of every plan of the thread that waits to be resumed.

    Args:
        graph: your graph, compiled with a checkpointer.
        config: a config with the `thread_id`.

    Raises:
        ConfigError: the graph has no checkpointer.
    """
    checkpointer = _checkpointer(graph)
    waiting = list(_waiting_plans(graph.get_state(config, subgraphs=True)))
    checkpoints = list(checkpointer.list(_thread_config(config))) if waiting else []
    return [_progress(plan, namespace, checkpoints) for plan, namespace in waiting]


async def aget_progress(graph: Graph, config: RunnableConfig) -> list[Progress]:
    """Works like `get_progress`, for async checkpointers."""
    checkpointer = _checkpointer(graph)
    waiting = list(_waiting_plans(await graph.aget_state(config, subgraphs=True)))
    checkpoints = [checkpoint async for checkpoint in checkpointer.alist(_thread_config(config))] if waiting else []
    return [_progress(plan, namespace, checkpoints) for plan, namespace in waiting]


def _checkpointer(graph: Graph) -> BaseCheckpointSaver[Any]:
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise ConfigError("the graph has no checkpointer; write builder.compile(checkpointer=...)")
    return graph.checkpointer


def _thread_config(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"]["thread_id"]}}


def _waiting_plans(snapshot: StateSnapshot) -> Iterator[tuple[PlanRecord, str]]:
    """Yields the waiting plans with the namespaces of their graphs."""
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from _waiting_plans(task.state)
        elif ROUNDS in snapshot.values and task.name in ("review", "run"):  # only the node's own graph has this key
            namespace = snapshot.config["configurable"].get("checkpoint_ns", "")
            plan = PlanRecord.model_validate(snapshot.values[PLAN])
            yield plan, "|".join(filter(None, (namespace, f"run:{task.id}")))


def _progress(plan: PlanRecord, namespace: str, checkpoints: Iterable[CheckpointTuple]) -> Progress:
    assert plan.workflow is not None
    newest: dict[str, CheckpointTuple] = {}
    for checkpoint in sorted(checkpoints, key=lambda item: item.checkpoint["id"]):
        newest[checkpoint.config["configurable"]["checkpoint_ns"]] = checkpoint
    results: dict[str, Any] = {}
    for checkpoint_namespace, checkpoint in newest.items():
        if f"{checkpoint_namespace}|".startswith(f"{namespace}|"):
            for update in _stored_results(checkpoint):
                results |= update
    return Progress(plan=plan, workflow=plan.workflow, results=tuple(read_results({RESULTS: results})))


def _stored_results(stored: CheckpointTuple) -> Iterator[dict[str, Any]]:
    """Yields the results in a checkpoint, and those of steps that ended after it."""
    yield stored.checkpoint["channel_values"].get(RESULTS, {})
    for _, channel, value in stored.pending_writes or ():
        if channel == RESULTS:
            yield value
