"""`create_conductor`: a LangGraph node that plans, and then builds and runs a graph for the plan.

It is a compiled graph, as `create_agent` returns one, so that LangGraph provides drawings, `get_state(subgraphs=True)`,
streams and checkpoints of its inside. In it, `plan` writes the plan to the state, `review` waits for a person if
requested, and `run` builds the plan's own graph and runs it. The plan must be in the state before `run` begins, since a
resumed node starts from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages, push_message
from langgraph.types import Command, Overwrite
from typing_extensions import TypedDict

from langchain_conductor.call_defaults import CallDefaults
from langchain_conductor.chat.run import answer_message
from langchain_conductor.conductors import ConductorSource, to_conductor
from langchain_conductor.custom_events import custom_data, write_custom
from langchain_conductor.graph.plan_review import Edit, Reject, Respond, rejection_message, request_decision
from langchain_conductor.graph.signals import is_subgraph
from langchain_conductor.graph.step_graph import RESULTS, AsyncNode, Graph, Update, build_step_graph, read_results
from langchain_conductor.messages import core_messages, lc_usage
from langchain_conductor.models import ChatModel, RunnableModel
from langchain_conductor.tools import AnyTool, core_tool
from langchain_conductor.tracing import hide_tokens, track_event, untraced
from rl_conductor import Conductor, ConfigError, Trace
from rl_conductor.integration import Stepwise, run_sync
from rl_conductor.trace import Event, PlanRecord, Round, StepFinished, StepResult
from rl_conductor.types import Message, Request, Tool, total
from rl_conductor.workflow import Workflow

DEFAULT_NAME = "conductor"
OUTPUT_MODES = ("last_message", "full_history")
MESSAGES = "messages"
PLAN, ROUNDS, REJECTIONS = "conductor_plan", "conductor_rounds", "conductor_rejections"
"""Keys of the node's own state. The surrounding graph gets the plan if its state has that key, and never the others."""
SECONDS = "conductor_seconds"
"""One more key: the seconds that planning and earlier rounds took, which count towards the timeout."""


def create_conductor(
    conductor: ConductorSource | None = None,
    *,
    input_key: str = MESSAGES,
    output_key: str = MESSAGES,
    output_as_list: bool = False,
    output_mode: Literal["last_message", "full_history"] = "last_message",
    tools: Sequence[AnyTool] = (),
    interrupt_before_run: bool = False,
    instructions: str = "",
    name: str | None = None,
) -> Graph:
    """Creates a node that plans and runs the plan as a subgraph; add it with `builder.add_node("solve", ...)`.

    Args:
        conductor: a `ChatConductor` or `Conductor` with the workers, policy and limits, the folder of a learned
            conductor, or a dict of workers; by default the models found on this machine.
        input_key: the key of your state that contains the question: messages, one message, or plain text.
        output_key: the key for the answer. A key of messages (`messages`, or `input_key`) gets messages, any other key
            the answer's text.
        output_as_list: writes the text as a list with one item, for a key such as `Annotated[list[str], operator.add]`
            that collects the answers of several nodes.
        output_mode: `last_message` adds only the answer to your state's messages; `full_history` also adds the workers'
            drafts.
        tools: tools for the worker of the last step; your graph runs the calls and returns with the results.
        interrupt_before_run: whether to pause before each plan runs, until a `Command(resume=...)` decides about it;
            see `graph.plan_review`.
        instructions: your own instructions for plans; they replace those of `conductor`.
        name: the graph's name in drawings and traces, `conductor` by default; if set, also the name of its messages.

    Raises:
        ConfigError: `output_mode` does not exist, an item of `tools` is not a tool, or `output_key` takes no calls.
    """
    _check_output(output_mode, output_key, takes_calls=not tools or output_key in (MESSAGES, input_key))
    core_conductor, call_defaults = to_conductor(conductor)
    if instructions:
        core_conductor = core_conductor.replaced(planner=core_conductor.planner.with_instructions(instructions))
    node = _Node(
        conductor=core_conductor,
        call_defaults=call_defaults,
        input_key=input_key,
        output_key=output_key,
        output_as_list=output_as_list,
        include_drafts=output_mode == "full_history",
        tools=tuple(core_tool(tool) for tool in tools),
        review_plans=interrupt_before_run,
        message_name=name,
    )
    return node.graph().compile(name=name or DEFAULT_NAME)


def _check_output(output_mode: str, output_key: str, *, takes_calls: bool) -> None:
    if output_mode not in OUTPUT_MODES:
        raise ConfigError(f"output_mode is {output_mode!r}; write {' or '.join(map(repr, OUTPUT_MODES))}")
    if not takes_calls:
        raise ConfigError(f"output_key {output_key!r} gets only text, so calls of tools would be lost; omit output_key")


@dataclass(frozen=True)
class _Node:
    """The functions of the three inner nodes, and their shared settings."""

    conductor: Conductor
    call_defaults: CallDefaults
    input_key: str
    output_key: str
    output_as_list: bool
    include_drafts: bool
    tools: tuple[Tool, ...]
    review_plans: bool
    message_name: str | None

    def graph(self) -> StateGraph[Any, Any, Any, Any]:
        private = {PLAN: Update, ROUNDS: list[Update], REJECTIONS: list[Update], SECONDS: float}
        inputs, outputs = ({key: self._key_type(key)} for key in (self.input_key, self.output_key))
        state = TypedDict("ConductorState", inputs | outputs | private)  # type: ignore[misc]
        input_schema = TypedDict("ConductorInput", inputs)  # type: ignore[misc]
        output_schema = TypedDict("ConductorOutput", {**outputs, PLAN: Update})  # type: ignore[misc]
        graph = StateGraph(state, input_schema=input_schema, output_schema=output_schema)
        after_plan = "review" if self.review_plans else "run"
        graph.add_node("plan", AsyncNode(self.plan), destinations=(after_plan, END))
        if self.review_plans:
            graph.add_node("review", AsyncNode(self.review), destinations=("run", "plan", END))
        graph.add_node("run", AsyncNode(self.arun, self.run), destinations=("plan", END))
        graph.add_edge(START, "plan")
        return graph

    # --------------------------------------------------------------------------------------- nodes

    async def plan(self, state: Update) -> Command[str]:
        """Plans the next round; ends the run if the planner accepts the previous answer."""
        rejections = [Message.model_validate(message) for message in state.get(REJECTIONS) or ()]
        rounds = _read_rounds(state)
        if not (rejections or rounds):
            await self.call_defaults.wait_for_turn()
        request, start = self._request(state), time.monotonic()
        plan_request = request.model_copy(update={"messages": (*request.messages, *rejections)})
        rejected = PlanRecord.model_validate(state[PLAN]) if rejections else None
        with self.call_defaults.in_context(), hide_tokens(from_graph=True):
            record = await self.conductor.plan(
                plan_request, previous_rounds=rounds, rejected=rejected, on_event=self._emit
            )
        if record.workflow is None:  # the planner accepted the previous answer
            trace = await self.conductor.run(request, resume=(*rounds, Round(plan=record)))
            return self._end(self._reply(trace), trace)
        needs_review = self.review_plans and record.source != "continuation"
        update = {PLAN: record.model_dump(mode="json"), ROUNDS: state.get(ROUNDS) or [], **_add_seconds(state, start)}
        return Command(goto="review" if needs_review else "run", update=update)

    async def review(self, state: Update) -> Command[str]:
        """Waits for a person's decision."""
        record, workflow = _read_plan(state)

        def check(edited: Workflow) -> object:
            return self._stepwise(state, record.model_copy(update={"source": "given", "workflow": edited}))

        match request_decision(record, workflow, check):
            case Edit(workflow=edited):
                edited_record = record.model_copy(update={"source": "given", "workflow": edited})
                return Command(goto="run", update={PLAN: edited_record.model_dump(mode="json")})
            case Reject() as decision:
                rejection = rejection_message(workflow, decision).model_dump(mode="json")
                return Command(goto="plan", update={REJECTIONS: [*(state.get(REJECTIONS) or ()), rejection]})
            case Respond(message=text):
                calls = [*record.calls, *(call for round_ in _read_rounds(state) for call in round_.calls)]
                usage = lc_usage(total(call.usage for call in calls))
                return self._end(AIMessage(text, name=self.message_name, usage_metadata=usage))
            case _:
                return Command(goto="run")

    def run(self, state: Update) -> Command[str]:
        """Builds the plan's graph and runs it."""
        stepwise, start = self._stepwise(state, _read_plan(state)[0]), time.monotonic()
        with self.call_defaults.in_context():
            steps = self._step_graph(stepwise).invoke({RESULTS: {}})
        return run_sync(self._finish_round(stepwise, steps, _add_seconds(state, start)))

    async def arun(self, state: Update) -> Command[str]:
        """Builds the plan's graph and runs it."""
        stepwise, start = self._stepwise(state, _read_plan(state)[0]), time.monotonic()
        with self.call_defaults.in_context():
            steps = await self._step_graph(stepwise).ainvoke({RESULTS: {}})
        return await self._finish_round(stepwise, steps, _add_seconds(state, start))

    # ------------------------------------------------------------------------------- state and events

    def _key_type(self, key: str) -> Any:
        """Returns the type of a state key, for LangGraph and its tools; a graph of its own keeps the conversation."""
        return Annotated[list[AnyMessage], add_messages] if self._is_conversation(key) else Any

    def _is_conversation(self, key: str) -> bool:
        return key == MESSAGES or key == self.input_key == self.output_key

    async def _finish_round(self, stepwise: Stepwise, steps: Update, seconds: Update) -> Command[str]:
        await stepwise.check_input()
        trace = stepwise.finish(read_results(steps))
        if not stepwise.may_continue:
            return self._end(self._reply(trace), trace)
        rounds = [previous.model_dump(mode="json") for previous in trace.rounds]
        return Command(goto="plan", update={ROUNDS: rounds, REJECTIONS: [], **seconds})

    def _step_graph(self, stepwise: Stepwise) -> Graph:
        return build_step_graph(stepwise, stepwise.workflow.needed, stream_drafts=self.call_defaults.stream_drafts)

    def _end(self, answer: AIMessage, trace: Trace | None = None) -> Command[str]:
        output: Any = str(answer.text)
        if self._is_conversation(self.output_key):
            drafts = _drafts(trace) if self.include_drafts and trace else []
            output = [*drafts, answer]
            if is_subgraph():  # the graph around it has the conversation, and gets only what is new
                output = Overwrite(output)
        elif self.output_as_list:
            output = [output]
        return Command(goto=END, update={self.output_key: output, ROUNDS: [], REJECTIONS: [], SECONDS: 0.0})

    def _reply(self, trace: Trace) -> AIMessage:
        reply = answer_message(self.conductor, trace)
        return reply.model_copy(update={"name": self.message_name}) if self.message_name else reply

    def _stepwise(self, state: Update, record: PlanRecord) -> Stepwise:
        request, rounds = self._request(state), _read_rounds(state)
        return self.conductor.stepwise(request, record, previous_rounds=rounds, on_event=self._emit)

    def _emit(self, event: Event) -> None:
        """Reports an event to tracers, and to the stream modes `custom` and `messages`."""
        track_event(event)
        if data := custom_data(event):
            write_custom(data)
        if isinstance(event, StepFinished) and event.result.text and not self._streams_itself(event.result.step.worker):
            push_message(_draft(event.result), state_key=None)

    def _streams_itself(self, worker: str) -> bool:
        """Whether LangGraph gets this worker's replies from LangChain's callbacks."""
        return isinstance(untraced(self.conductor.pool[worker].model), ChatModel | RunnableModel)

    def _request(self, state: Update) -> Request:
        question = state.get(self.input_key)
        if not question:  # LangGraph fills a key of messages with an empty list
            raise ConfigError(
                f"the state has no question under {self.input_key!r}; set input_key to the key that contains it"
            )
        messages = convert_to_messages(question if isinstance(question, list) else [question])
        request = self.call_defaults.apply(Request(messages=core_messages(messages), tools=self.tools))
        if request.timeout is None:
            return request
        return request.within_seconds(request.timeout - (state.get(SECONDS) or 0))


def _add_seconds(state: Update, start: float) -> Update:
    """Builds the update of `SECONDS` for work that began at `start`; pauses in between don't count."""
    return {SECONDS: (state.get(SECONDS) or 0) + time.monotonic() - start}


def _read_plan(state: Update) -> tuple[PlanRecord, Workflow]:
    record = PlanRecord.model_validate(state[PLAN])
    assert record.workflow is not None
    return record, record.workflow


def _read_rounds(state: Update) -> list[Round]:
    return [Round.model_validate(value) for value in state.get(ROUNDS) or ()]


def _draft(result: StepResult) -> AIMessage:
    return AIMessage(result.text, name=result.step.worker, id=str(uuid4()))


def _drafts(trace: Trace) -> list[AIMessage]:
    """Returns the replies before the answer as messages with their workers' names."""
    answer = trace.answer
    return [
        _draft(result)
        for round_index, finished in enumerate(trace.rounds)
        for result in finished.results
        if result.text and answer and (round_index, result.index) != (answer.round, answer.step)
    ]
