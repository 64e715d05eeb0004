"""The five-step graph of `executor_overhead.py` in other frameworks, and written by hand."""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any, TypedDict

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when it is imported

from haystack import Pipeline, component
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import END, START, StateGraph
from pydantic_graph import GraphBuilder, reduce_list_append
from workflows import Context
from workflows import Workflow as IndexWorkflow
from workflows import step as index_step
from workflows.events import Event, StartEvent, StopEvent

from rl_conductor import Completion, Message, Request, Usage
from rl_conductor.models.scripted import ALL
from rl_conductor.types import FREE, Delta

QUESTION = "Which of three sorting algorithms suits nearly sorted data?"
READS: tuple[tuple[int, ...], ...] = ((), (), (), (0, 1), (2, 3))
"""The steps that each step reads: three independent ones, one that joins two of them, one that joins the rest."""

Run = Callable[[], Awaitable[object]]
"""Runs the graph once."""


class Noop:
    """A model that replies immediately, or after a fixed time."""

    name = "noop"
    price = FREE
    capabilities = ALL

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.reply = Completion(message=Message.assistant("ok"), usage=Usage(), model="noop")

    async def complete(self, _: Request) -> Completion:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self.reply

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(completion=await self.complete(request))

    async def aclose(self) -> None:
        pass


def by_hand() -> Run:
    """Lower bound: the graph written with bare asyncio and joined strings."""
    model = Noop()

    async def join(*steps: Awaitable[str]) -> str:
        return await ask(model, *await asyncio.gather(*steps))

    return lambda: join(ask(model), join(ask(model), ask(model)))


async def ask(model: Noop, *seen: str) -> str:
    """Calls the model with the question and the replies that a step reads."""
    request = Request.user("\n".join((QUESTION, *seen)))
    return (await model.complete(request)).text


class State(TypedDict):
    """Graph state: replies by step."""

    replies: Annotated[dict[int, str], operator.or_]


def build_langgraph() -> Run:
    """Compiles the graph in LangGraph."""
    model = Noop()

    def node(index: int) -> Runnable[State, State]:
        async def run(state: State) -> State:
            return {"replies": {index: await ask(model, *(state["replies"][i] for i in READS[index]))}}

        return RunnableLambda(run)

    graph = StateGraph(State)
    for index, reads in enumerate(READS):
        graph.add_node(f"s{index}", node(index))
        graph.add_edge([f"s{i}" for i in reads] if reads else START, f"s{index}")
    graph.add_edge(f"s{len(READS) - 1}", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"replies": {}})


@component
class Ask:
    """A step as a component of Haystack, with one input for each reply that it reads."""

    def __init__(self, reads: tuple[int, ...]) -> None:
        self.model = Noop()
        for name in [f"reply_{i}" for i in reads] or ["question"]:
            component.set_input_type(self, name, str)

    @component.output_types(reply=str)
    def run(self, **seen: str) -> dict[str, str]:
        """Haystack requires a synchronous method, too; it is not called."""
        raise AssertionError(f"run_async is called instead, also with {sorted(seen)}")

    @component.output_types(reply=str)
    async def run_async(self, **seen: str) -> dict[str, str]:
        """Returns the model's reply."""
        return {"reply": await ask(self.model, *seen.values())}


def build_haystack() -> Run:
    """Connects the graph as a pipeline of Haystack."""
    pipeline = Pipeline()
    for index, reads in enumerate(READS):
        pipeline.add_component(f"s{index}", Ask(reads))
        for i in reads:
            pipeline.connect(f"s{i}.reply", f"s{index}.reply_{i}")
    inputs = {f"s{index}": {"question": QUESTION} for index, reads in enumerate(READS) if not reads}
    return lambda: pipeline.run_async(inputs)


def build_pydantic_graph() -> Run:
    """Builds the graph with Pydantic's graph library."""
    model = Noop()
    builder: Any = GraphBuilder(output_type=str)  # mypy can't infer its type parameters

    async def leaf(_: Any) -> str:
        return await ask(model)

    async def read(context: Any) -> str:
        return await ask(model, *context.inputs)

    first, second, third = (builder.step(leaf, node_id=f"s{index}") for index in range(3))
    fourth, last = builder.step(read, node_id="s3"), builder.step(read, node_id="s4")
    for_fourth, for_last = (
        builder.join(reduce_list_append, initial_factory=list[str], node_id=name) for name in ("for_s3", "for_s4")
    )
    builder.add(
        builder.edge_from(builder.start_node).to(first, second, third),
        builder.edge_from(first, second).to(for_fourth),
        builder.edge_from(for_fourth).to(fourth),
        builder.edge_from(third, fourth).to(for_last),
        builder.edge_from(for_last).to(last),
        builder.edge_from(last).to(builder.end_node),
    )
    run: Run = builder.build().run
    return run


class Part(Event):
    """Event with the reply of a step for the join."""

    index: int
    text: str


class Joined(Event):
    """Event with the reply of the first join."""

    text: str


class Graph(IndexWorkflow):
    """The graph as a LlamaIndex workflow."""

    model = Noop()

    @index_step
    async def leaves(self, ctx: Context, _: StartEvent) -> Part | None:
        for index, text in enumerate(await asyncio.gather(*(ask(self.model) for _ in range(3)))):
            ctx.send_event(Part(index=index, text=text))
        return None

    @index_step
    async def join(self, ctx: Context, part: Part) -> Joined | None:
        parts = ctx.collect_events(part, [Part] * 3)
        return Joined(text=await ask(self.model, *(part.text for part in parts[:2]))) if parts else None

    @index_step
    async def last(self, joined: Joined) -> StopEvent:
        return StopEvent(result=await ask(self.model, joined.text))


def build_llama_index() -> Run:
    """Creates the LlamaIndex workflow."""
    graph = Graph()

    async def run() -> object:
        return await graph.run()

    return run


PEERS: dict[str, Callable[[], Run]] = {
    "langgraph": build_langgraph,
    "haystack-ai": build_haystack,
    "pydantic-graph": build_pydantic_graph,
    "llama-index-workflows": build_llama_index,
}
"""The functions that build the graph, by the name of the package."""
