"""Builds a LangGraph `StateGraph` for a plan: a node for each step, edges from the access lists.

The graph has no workers or limits: each node asks the core's `Stepwise` for its step. Its state is plain JSON, so that
every checkpointer can store it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from langchain_conductor.graph.previous_attempts import PreviousAttempts, aprevious_attempts, previous_attempts
from langchain_conductor.graph.signals import allow_signals, raise_signals
from langchain_conductor.graph.step_groups import StepGroup, group_steps
from langchain_conductor.run_errors import raise_langchain_errors
from langchain_conductor.tracing import hide_tokens, track_workflow
from rl_conductor.integration import Stepwise, run_sync
from rl_conductor.trace import StepResult
from rl_conductor.workflow import Workflow

Update = dict[str, Any]
Graph = CompiledStateGraph[Any, Any, Any, Any]

RESERVED_CHARACTERS = str.maketrans("|:", "__")
"""LangGraph separates namespaces with these."""

RESULTS = "results"
"""The key of `StepState`."""


class StepState(TypedDict):
    """The state of a plan's graph."""

    results: Annotated[dict[str, Update], operator.or_]
    """Each `StepResult` as JSON, by the step's position."""


class AsyncNode(Runnable[Any, Any]):
    """A node made of a coroutine function, for sync and async graph runs."""

    def __init__(
        self, work: Callable[[Any], Coroutine[Any, Any, Any]], blocking_work: Callable[[Any], Any] | None = None
    ) -> None:
        """`blocking_work` replaces `work` in sync runs; by default `work` runs on the background event loop."""
        self._work = work
        self._blocking_work = blocking_work or (lambda state: run_sync(work(state)))

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002
        """Returns the state update, for `graph.invoke`."""
        with allow_signals(config), raise_langchain_errors():
            return self._blocking_work(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002
        """Returns the state update, for `graph.ainvoke`."""
        with allow_signals(config), raise_langchain_errors():
            return await self._work(input)


class StepNode(Runnable[Any, Any]):
    """A node made of a coroutine function that adds its calls to those of its previous attempts."""

    def __init__(self, work: Callable[[StepState, PreviousAttempts], Coroutine[Any, Any, Update]]) -> None:
        self._work = work

    def invoke(self, input: StepState, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: A002
        """Returns the state update, for `graph.invoke`."""
        with previous_attempts(ensure_config(config)) as attempts, raise_signals(), raise_langchain_errors():
            return run_sync(self._work(input, attempts))

    async def ainvoke(self, input: StepState, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: A002
        """Returns the state update, for `graph.ainvoke`."""
        async with aprevious_attempts(ensure_config(config)) as attempts:
            with raise_signals(), raise_langchain_errors():
                return await self._work(input, attempts)


def read_results(state: Mapping[str, Any]) -> list[StepResult]:
    """Returns the results in a graph's state, in the order of the steps."""
    results = state.get(RESULTS, {})
    return [StepResult.model_validate(results[key]) for key in sorted(results, key=int)]


def build_step_graph(stepwise: Stepwise, steps: StepGroup, *, stream_drafts: bool) -> Graph:
    """Builds the graph of some steps; inside a node it uses the parent's checkpointer.

    Unless `stream_drafts` is set, handlers get tokens of the last step only.
    """
    graph = StateGraph(StepState)
    workflow = stepwise.workflow
    groups = group_steps(workflow, steps)
    for group in groups:
        name = _node_name(workflow, group)
        if len(group) == 1:
            (index,) = group
            graph.add_node(name, _step_node(stepwise, index, stream_drafts), metadata=_step_metadata(workflow, index))
        else:
            graph.add_node(name, build_step_graph(stepwise, group, stream_drafts=stream_drafts))
        graph.add_edge(_nodes_to_read(workflow, group, groups) or START, name)
    graph.add_edge(_node_name(workflow, groups[-1]), END)
    return graph.compile(name="steps")


def _step_node(stepwise: Stepwise, index: int, stream_drafts: bool) -> StepNode:
    is_last = index == len(stepwise.workflow.steps) - 1

    async def run_step(state: StepState, attempts: PreviousAttempts) -> Update:
        results = {result.index: result for result in read_results(state)}
        track_workflow(stepwise.workflow)
        again = _failed_steps_to_retry(stepwise.workflow, index, results) if is_last and attempts.failed else []
        with nullcontext() if stream_drafts else hide_tokens(from_graph=False):
            for failed in again:
                calls = [*results.pop(failed).calls]
                results[failed] = await stepwise.step(failed, results.values(), calls=calls)
        with nullcontext() if is_last or stream_drafts else hide_tokens(from_graph=False):
            results[index] = await stepwise.step(index, results.values(), calls=attempts.calls)
        if is_last and results[index].status == "failed" and not stepwise.has_answer(results.values()):
            # It raises: a returned result would be checkpointed, and a resumed run would not retry.
            stepwise.finish(results.values())
        return {RESULTS: {str(step): results[step].model_dump(mode="json") for step in (*again, index)}}

    return StepNode(run_step)


def _failed_steps_to_retry(workflow: Workflow, index: int, results: Mapping[int, StepResult]) -> list[int]:
    """Returns the failed steps that the step at `index` reads, directly or through others of them, in order."""
    again = {index}
    for step in sorted(results, reverse=True):
        if results[step].status == "failed" and any(step in workflow.steps[reader].access for reader in again):
            again.add(step)
    return sorted(again - {index})


def _node_name(workflow: Workflow, group: StepGroup) -> str:
    """Names a node; the name has to be the same whenever the graph is built again, for checkpoints."""
    if len(group) > 1:
        return "steps_" + "_".join(str(index + 1) for index in sorted(group))
    (index,) = group
    return f"step_{index + 1}_{workflow.steps[index].worker}".translate(RESERVED_CHARACTERS)


def _step_metadata(workflow: Workflow, index: int) -> dict[str, Any]:
    step = workflow.steps[index]
    return {"subtask": step.subtask, "worker": step.worker, "access": sorted(step.access)}


def _nodes_to_read(workflow: Workflow, group: StepGroup, groups: Iterable[StepGroup]) -> list[str]:
    """Returns the nodes that `group` may read."""
    access = frozenset[int]().union(*(workflow.steps[index].access for index in group)) - group
    return [_node_name(workflow, other) for other in groups if other & access]
