"""`create_conductor`: a LangGraph node that plans, and then grows the graph that carries the plan out.

It is a compiled graph, as `create_agent` makes them, because only of graphs does LangGraph know what is inside:
drawings, `get_state(subgraphs=True)`, streams and checkpoints come without any work of ours. In it, `plan` writes the
plan into the state, `review` waits for a person if one is asked for, and `run` builds the plan's own graph and runs it.
The plan must be in the state before `run` begins, since a node that is resumed begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import push_message
from langgraph.types import Command
from typing_extensions import TypedDict

from langchain_conductor.asked import facts
from langchain_conductor.hosts import announcement, write_custom
from langchain_conductor.messages import AnyTool, core_messages, core_tool, lc_reply
from langchain_conductor.models import ChatModel, RunnableModel
from langchain_conductor.pool import Conducted, conducted
from langchain_conductor.review import Edit, Reject, Respond, ask, objection
from langchain_conductor.subgraph import RESULTS, AsyncNode, Graph, Update, results_in, step_graph
from langchain_conductor.tracing import note, unreported
from rl_conductor import Conductor, ConfigError, Trace
from rl_conductor._internal.sync import run_sync
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.trace.events import Event, StepFinished
from rl_conductor.trace.trace import PlanRecord, Round, StepResult
from rl_conductor.types import Message, Request, Tool
from rl_conductor.workflow.workflow import Workflow

OUTPUT_MODES = ("last_message", "full_history")
MESSAGES = "messages"
PLAN, ROUNDS, OBJECTIONS = "conductor_plan", "conductor_rounds", "conductor_objections"
"""Keys of the node's own state. The graph around it sees the plan if its state has that key, and never the others."""


def create_conductor(
    conductor: Conductor | Conducted | None = None,
    *,
    input_key: str = MESSAGES,
    output_key: str = MESSAGES,
    output_mode: Literal["last_message", "full_history"] = "last_message",
    tools: Sequence[AnyTool] = (),
    interrupt_before_run: bool = False,
    name: str = "conductor",
) -> Graph:
    """A node that plans, and runs the plan as a graph of its own; add it with `builder.add_node("solve", ...)`.

    Args:
        conductor: a `ChatConductor` or `Conductor` with the workers, policy and limits; else one over what this machine
            offers.
        input_key: where your state holds the question: messages, one message, or plain words.
        output_key: where the answer goes. A key of messages (`messages`, or the one the question came from) gets
            messages, any other key the answer's text.
        output_mode: whether only the answer becomes a message of your state, or the workers' drafts before it as well.
        tools: what the worker of the last step may call; your graph runs the calls and comes back with the results.
        interrupt_before_run: pause before each plan runs, until a `Command(resume=...)` decides about it; see `review`.
        name: its name in drawings and traces.

    Raises:
        ConfigError: there is no such `output_mode`, or one of the tools is none.
    """
    if output_mode not in OUTPUT_MODES:
        raise ConfigError(f"no output_mode {output_mode!r}; write {' or '.join(map(repr, OUTPUT_MODES))}")
    node = _Node(
        conductor=conducted(conductor),
        input_key=input_key,
        output_key=output_key,
        drafts=output_mode == "full_history",
        tools=tuple(core_tool(tool) for tool in tools),
        reviewed=interrupt_before_run,
    )
    return node.graph().compile(name=name)


@dataclass(frozen=True)
class _Node:
    """The three nodes inside, and what they share."""

    conductor: Conductor
    input_key: str
    output_key: str
    drafts: bool
    tools: tuple[Tool, ...]
    reviewed: bool

    def graph(self) -> StateGraph[Any, Any, Any, Any]:
        private = {PLAN: Update, ROUNDS: list[Update], OBJECTIONS: list[Update]}
        read, written = ({key: _kind(key)} for key in (self.input_key, self.output_key))
        state = TypedDict("ConductorState", read | written | private)  # type: ignore[misc]
        asked = TypedDict("ConductorInput", read)  # type: ignore[misc]
        answered = TypedDict("ConductorOutput", {**written, PLAN: Update})  # type: ignore[misc]
        graph = StateGraph(state, input_schema=asked, output_schema=answered)
        after_plan = "review" if self.reviewed else "run"
        graph.add_node("plan", AsyncNode(self.plan), destinations=(after_plan, END))
        if self.reviewed:
            graph.add_node("review", AsyncNode(self.review), destinations=("run", "plan", END))
        graph.add_node("run", AsyncNode(self.arun, self.run), destinations=("plan", END))
        graph.add_edge(START, "plan")
        return graph

    # --------------------------------------------------------------------------------------- nodes

    async def plan(self, state: Update) -> Command[str]:
        """Have a plan written; an accepted answer needs no other."""
        objections = [Message.model_validate(one) for one in state.get(OBJECTIONS) or ()]
        request, before = self._request(state), _rounds(state)
        asked = request.model_copy(update={"messages": (*request.messages, *objections)})
        rejected = PlanRecord.model_validate(state[PLAN]) if objections else None
        record = await self.conductor.plan(asked, before=before, rejected=rejected, on_event=self._tell)
        if record.workflow is None:
            trace = await self.conductor.run(request, resume=(*before, Round(plan=record)))
            return self._end(self._replied(trace), trace)
        waits = self.reviewed and record.source != "continuation"
        planned = {PLAN: record.model_dump(mode="json"), ROUNDS: state.get(ROUNDS) or []}
        return Command(goto="review" if waits else "run", update=planned)

    async def review(self, state: Update) -> Command[str]:
        """Wait for a person's decision."""
        record, workflow = _planned(state)

        def check(edited: Workflow) -> object:
            return self._stepwise(state, record.model_copy(update={"source": "given", "workflow": edited}))

        match ask(record, workflow, check):
            case Edit(workflow=edited):
                given = record.model_copy(update={"source": "given", "workflow": edited})
                return Command(goto="run", update={PLAN: given.model_dump(mode="json")})
            case Reject() as decision:
                said = objection(workflow, decision).model_dump(mode="json")
                return Command(goto="plan", update={OBJECTIONS: [*(state.get(OBJECTIONS) or ()), said]})
            case Respond(message=text):
                return self._end(AIMessage(text))
            case _:
                return Command(goto="run")

    def run(self, state: Update) -> Command[str]:
        """Build the plan's graph and run it."""
        stepwise = self._stepwise(state, _planned(state)[0])
        steps = step_graph(stepwise).invoke({RESULTS: {}})
        return run_sync(self._judged(stepwise, steps))

    async def arun(self, state: Update) -> Command[str]:
        """Build the plan's graph and run it."""
        stepwise = self._stepwise(state, _planned(state)[0])
        steps = await step_graph(stepwise).ainvoke({RESULTS: {}})
        return await self._judged(stepwise, steps)

    # -------------------------------------------------------------------------------------- between

    async def _judged(self, stepwise: Stepwise, steps: Update) -> Command[str]:
        trace = stepwise.finish(results_in(steps))
        if not stepwise.may_continue:
            return self._end(self._replied(trace), trace)
        done = [one.model_dump(mode="json") for one in trace.rounds]
        return Command(goto="plan", update={ROUNDS: done, OBJECTIONS: []})

    def _end(self, answer: AIMessage, trace: Trace | None = None) -> Command[str]:
        said: Any = answer.text
        if self.output_key in (MESSAGES, self.input_key):
            drafts = _drafts(trace) if self.drafts and trace else []
            said = [*drafts, answer]
        return Command(goto=END, update={self.output_key: said, ROUNDS: [], OBJECTIONS: []})

    def _replied(self, trace: Trace) -> AIMessage:
        assert trace.completion is not None
        return lc_reply(trace.completion.message, **facts(self.conductor, trace.completion, trace))

    def _stepwise(self, state: Update, record: PlanRecord) -> Stepwise:
        return self.conductor.stepwise(self._request(state), record, before=_rounds(state), on_event=self._tell)

    def _tell(self, event: Event) -> None:
        """Pass what happens on to tracers, and to whoever streams in the modes `custom` and `messages`."""
        note(event)
        if announced := announcement(event):
            write_custom(announced)
        if isinstance(event, StepFinished) and event.result.text and not self._streams(event.result.step.worker):
            push_message(_draft(event.result), state_key=None)

    def _streams(self, worker: str) -> bool:
        """Whether LangGraph hears of this worker's replies without us."""
        return isinstance(unreported(self.conductor.pool[worker].model), ChatModel | RunnableModel)

    def _request(self, state: Update) -> Request:
        if self.input_key not in state:
            raise ConfigError(f"the state has no {self.input_key!r}; write input_key=, the key that holds the question")
        asked = state[self.input_key]
        messages = convert_to_messages(asked if isinstance(asked, list) else [asked])
        return Request(messages=core_messages(messages), tools=self.tools)


def _kind(key: str) -> Any:
    """What LangGraph and its tools are told that a key of the state holds."""
    return list[AnyMessage] if key == MESSAGES else Any


def _planned(state: Update) -> tuple[PlanRecord, Workflow]:
    record = PlanRecord.model_validate(state[PLAN])
    assert record.workflow is not None
    return record, record.workflow


def _rounds(state: Update) -> list[Round]:
    return [Round.model_validate(one) for one in state.get(ROUNDS) or ()]


def _draft(result: StepResult) -> AIMessage:
    return AIMessage(result.text, name=result.step.worker, id=str(uuid4()))


def _drafts(trace: Trace) -> list[AIMessage]:
    """What workers wrote on the way to the answer, each under its worker's name."""
    answer = trace.answer
    return [
        _draft(result)
        for number, one in enumerate(trace.rounds)
        for result in one.results
        if result.text and answer and (number, result.index) != (answer.round, answer.step)
    ]
