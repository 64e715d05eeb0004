"""Shared by the tests of the node: conductors over scripted workers, and a graph around the node."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from core.runs import evidence_of, plan, pool_of, subtask_of
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import Conductor, Request, ScriptedModel

DIAMOND = plan((0, "look", []), (1, "count", []), (0, "join", [0, 1]), (1, "tell", [2]))
"""Two steps side by side, one that reads both, and the answer."""
ANSWER = "tell(join(look(), count()))"
THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}


def told(request: Request) -> str:
    """A reply that shows what was asked and seen."""
    return f"{subtask_of(request)}({', '.join(text for _, _, text in evidence_of(request))})"


def conductor(*plans: str, **options: Any) -> Conductor:
    """A conductor over the workers `a` and `b`, who repeat what they were told."""
    workers = options.pop("workers", {"a": told, "b": told})
    return Conductor(ScriptedModel(plans or [DIAMOND]), pool_of(**workers), access="positional", **options)


def around(node: Graph, *, saver: Any = None, schema: Any = MessagesState, **options: Any) -> Graph:
    """A graph whose only node is this one."""
    builder = StateGraph(schema)
    builder.add_node("solve", node, **options)
    builder.add_edge(START, "solve")
    return builder.compile(checkpointer=saver)


def asked(one: Conductor) -> list[str]:
    """The subtasks that workers were given, worker by worker."""
    models = [worker.model for worker in one.pool.values()]
    return [subtask_of(request) for model in models if isinstance(model, ScriptedModel) for request in model.requests]
