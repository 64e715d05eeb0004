"""A plan as a `StateGraph` of LangGraph's own: a node for each step, edges from the access lists.

The graph knows neither workers nor limits: each node asks the core's `Stepwise` for its step. What it keeps is plain
JSON, so that every checkpointer can store it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from langchain_conductor.hosts import Host, hosted
from langchain_conductor.parts import Part, parts
from rl_conductor._internal.sync import run_sync
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.trace.trace import StepResult
from rl_conductor.workflow.workflow import Workflow

Update = dict[str, Any]
Graph = CompiledStateGraph[Any, Any, Any, Any]

RESERVED = str.maketrans("|:", "__")
"""LangGraph separates namespaces with these."""


RESULTS = "results"
"""The key of `Steps`."""


class Steps(TypedDict):
    """What is known of a plan while it runs."""

    results: Annotated[dict[str, Update], operator.or_]
    """Each `StepResult` as JSON, by the step's position."""


class AsyncNode(Runnable[Any, Any]):
    """A node made of a coroutine function, for graphs that are invoked or awaited."""

    def __init__(
        self, work: Callable[[Any], Coroutine[Any, Any, Any]], blocking_work: Callable[[Any], Any] | None = None
    ) -> None:
        """`blocking_work` replaces `work` in graphs that are invoked; else `work` runs on the background loop."""
        self._work = work
        self._blocking_work = blocking_work or (lambda state: run_sync(work(state)))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """The update, for `graph.invoke`."""
        with hosted(Host(pauses=GraphBubbleUp)):
            return self._blocking_work(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002, ARG002
        """The update, for `graph.ainvoke`."""
        with hosted(Host(pauses=GraphBubbleUp)):
            return await self._work(input)


def step_graph(stepwise: Stepwise) -> Graph:
    """The steps of `stepwise` that the answer depends on, ready to run; inside a node it uses the parent's saver."""
    return _graph(stepwise, stepwise.workflow.needed)


def results_in(steps: Mapping[str, Any]) -> list[StepResult]:
    """The results that a graph's state holds, in the order of the steps."""
    known = steps.get(RESULTS, {})
    return [StepResult.model_validate(known[key]) for key in sorted(known, key=int)]


def _graph(stepwise: Stepwise, steps: Part) -> Graph:
    graph = StateGraph(Steps)
    workflow = stepwise.workflow
    nodes = parts(workflow, steps)
    for part in nodes:
        name = _name(workflow, part)
        if len(part) == 1:
            (index,) = part
            graph.add_node(name, _step(stepwise, index), metadata=_facts(workflow, index))
        else:
            graph.add_node(name, _graph(stepwise, part))
        graph.add_edge(_read(workflow, part, nodes) or START, name)
    graph.add_edge(_name(workflow, nodes[-1]), END)
    return graph.compile(name="steps")


def _step(stepwise: Stepwise, index: int) -> AsyncNode:
    ends = index == len(stepwise.workflow.steps) - 1

    async def run(state: Steps) -> Update:
        done = results_in(state)
        result = await stepwise.step(index, done)
        known = [*done, result]
        if ends and result.status == "failed" and not stepwise.has_answer(known):
            stepwise.finish(known)  # raises: what a node returns is stored as done, and no resumed run would try again
        return {RESULTS: {str(index): result.model_dump(mode="json")}}

    return AsyncNode(run)


def _name(workflow: Workflow, part: Part) -> str:
    """What a node is called: it has to be the same whenever the graph is built again."""
    if len(part) > 1:
        return "steps_" + "_".join(str(index + 1) for index in sorted(part))
    (index,) = part
    return f"step_{index + 1}_{workflow.steps[index].worker}".translate(RESERVED)


def _facts(workflow: Workflow, index: int) -> dict[str, Any]:
    step = workflow.steps[index]
    return {"subtask": step.subtask, "worker": step.worker, "access": sorted(step.access)}


def _read(workflow: Workflow, part: Part, nodes: Iterable[Part]) -> list[str]:
    """The nodes whose steps this one may read."""
    read = frozenset[int]().union(*(workflow.steps[index].access for index in part)) - part
    return [_name(workflow, node) for node in nodes if node & read]
