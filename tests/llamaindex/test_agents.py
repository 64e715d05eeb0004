"""Agents, workflows and chat engines as workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from llama_index.core import Document, SummaryIndex, VectorStoreIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.base.llms.types import ChatMessage, CompletionResponse
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool
from llama_index.core.workflow import (
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from pydantic import BaseModel

from llama_index.llms.conductor import AgentModel, ChatEngineModel, Conductor, WorkflowModel
from llamaindex.scripts import (
    EchoLLM,
    plan,
    planner,
    request_text,
    response_text,
    tool_call_reply,
    user_messages,
    wait_until,
    weigh,
    weigh_then_answer,
)
from rl_conductor import ConfigError, Limits, Policy, Price, Request, RunError, ScriptedModel
from rl_conductor.types import TextPart

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")

ONE_STEP = plan((0, "How heavy is the Heron?", []))


def llm_of(reply: Any) -> Conductor:
    """An LLM for agents: a conductor over one scripted model, which it always calls without a plan."""
    return Conductor({"model": ScriptedModel(reply)}, policy=Policy(single="model"))


def weigher(**options: Any) -> FunctionAgent:
    tools = [FunctionTool.from_defaults(weigh)]
    return FunctionAgent(
        **{"name": "weigher", "description": "weighs kites", "llm": llm_of(weigh_then_answer), "tools": tools} | options
    )


def conductor_over(worker: Any, text: str = ONE_STEP, **options: Any) -> Conductor:
    return Conductor({"worker": worker}, planner=planner(text), **options)


# ------------------------------------------------------------------------------------------ agents


def test_an_agent_works_in_sync_calls() -> None:
    assert conductor_over(weigher()).complete("How heavy?").text == "So: Heron weighs 310 grams."


async def test_an_agent_works_in_async_calls() -> None:
    llm = conductor_over(weigher())
    assert response_text(await llm.achat(user_messages("How heavy?"))) == "So: Heron weighs 310 grams."
    assert llm.trace is not None
    (result,) = llm.trace.results
    assert result.calls[0].model == "llamaindex:worker"


class Greeting(Workflow):
    """Asks a conductor that is a global variable."""

    @step
    async def greet(self, event: StartEvent) -> StopEvent:
        return StopEvent(result=str(await PRICED.acomplete(event.text)))


HALF_A_DOLLAR = Price(input=0, output=0, per_call=Decimal("0.5"))
PRICED = Conductor({"model": ScriptedModel("Hi.", price=HALF_A_DOLLAR)}, policy=Policy(single="model"))
WORKERS_WITH_A_CONDUCTOR: dict[str, Callable[[], Any]] = {
    "agent": lambda: weigher(llm=PRICED),
    "team": lambda: AgentWorkflow(agents=[weigher(llm=PRICED)]),
    "query engine": lambda: SummaryIndex.from_documents([Document(text="Hi.")]).as_query_engine(llm=PRICED),
    "chat engine": lambda: SimpleChatEngine.from_defaults(llm=PRICED, memory=ChatMemoryBuffer.from_defaults()),
    "workflow": lambda: WorkflowModel(Greeting(), input_field="text"),
}


@pytest.mark.parametrize("create", WORKERS_WITH_A_CONDUCTOR.values(), ids=list(WORKERS_WITH_A_CONDUCTOR))
async def test_a_worker_whose_llms_are_conductors_costs_what_their_calls_cost(create: Callable[[], Any]) -> None:
    worker = create()
    llm = conductor_over(worker, limits=Limits(usd=3))
    assert response_text(await llm.achat(user_messages("Hello?"))) == "Hi."
    assert llm.trace is not None
    used = llm.trace.usage_by_worker["worker"]
    assert (used.calls, used.cost, used.unpriced_calls) == (1, Decimal("0.5"), 0)
    with pytest.raises(RunError, match=r"limits\.usd"):
        await conductor_over(worker, limits=Limits(usd="0.2")).achat(user_messages("Hello?"))


def test_the_planner_is_not_told_that_a_worker_with_a_conductor_is_free() -> None:
    scripted = planner(plan((0, "Go.", [])))
    workers = {"agent": weigher(llm=PRICED), "writer": ScriptedModel("Hi.", name="writer")}
    Conductor(workers, planner=scripted).complete("Hello?")
    assert "0 agent: weighs kites\n" in request_text(scripted.requests[0])


def test_a_worker_with_another_llm_has_no_known_price() -> None:
    agents: list[BaseWorkflowAgent] = [weigher(llm=PRICED), weigher(name="clerk", llm=MockFunctionCallingLLM())]
    with pytest.raises(RunError, match="the price of llamaindex:worker is unknown"):
        conductor_over(AgentWorkflow(agents=agents, root_agent="clerk"), limits=Limits(usd=3)).complete("Hello?")


def test_agents_in_a_list_keep_their_names_and_descriptions() -> None:
    scripted = planner(plan((2, "Go.", [])))
    team = AgentWorkflow(agents=[weigher(), weigher(name="clerk", description="writes")], root_agent="clerk")
    llm = Conductor([weigher(), team, ScriptedModel("Hi.", name="writer")], planner=scripted)
    llm.complete("Why?")
    prompt = request_text(scripted.requests[0])
    assert "0 weigher: weighs kites" in prompt
    assert "1 clerk: weigher: weighs kites; clerk: writes" in prompt


def test_a_description_in_an_entry_replaces_the_agents_own() -> None:
    scripted = planner()
    worker = {"model": weigher(), "description": "a scale"}
    Conductor({"worker": worker, "writer": ScriptedModel("Hi.")}, planner=scripted).complete("Why?")
    assert "0 worker: a scale" in request_text(scripted.requests[0])


def test_an_agent_without_a_name_needs_one() -> None:
    with pytest.raises(ConfigError, match="an agent in `workers` has no name"):
        Conductor([weigher(name="Agent"), ScriptedModel("Hi.")])


@pytest.mark.parametrize("tool_kind", [RetrieverTool, QueryEngineTool])
def test_agents_return_the_source_nodes_that_their_tools_found(
    indexes: dict[str, VectorStoreIndex], tool_kind: Any
) -> None:
    index = indexes["hr"]
    source: Any = index.as_retriever(similarity_top_k=1)
    if tool_kind is QueryEngineTool:
        source = index.as_query_engine(llm=EchoLLM(), similarity_top_k=1)
    tool = tool_kind.from_defaults(source, name="look_up", description="Looks up salaries.")

    def answer(request: Request) -> Any:
        return "5,400" if request.messages[-1].role == "tool" else tool_call_reply("look_up", input="salary of Anna")

    agent = FunctionAgent(name="clerk", description="knows salaries", tools=[tool], llm=llm_of(answer))
    response = conductor_over(agent).chat(user_messages("Why?"))
    assert [node.node.metadata["title"] for node in response.additional_kwargs["source_nodes"]] == ["salaries"]


def test_agents_hand_over_inside_one_step() -> None:
    def hand_over(_: Request) -> Any:
        return tool_call_reply("handoff", to_agent="weigher", reason="It can weigh.")

    def answers(request: Request) -> Any:
        return "So: 310 grams." if "310" in request_text(request) else tool_call_reply("weigh", kite="Heron")

    clerk = weigher(name="clerk", description="hands over", llm=llm_of(hand_over), tools=[])
    team = AgentWorkflow(agents=[clerk, weigher(llm=llm_of(answers))], root_agent="clerk")
    assert conductor_over(team).complete("How heavy?").text == "So: 310 grams."


def test_an_agent_reads_the_conversation_and_its_own_prompt() -> None:
    model = ScriptedModel("Done.")
    agent = weigher(llm=Conductor({"model": model}, policy=Policy(single="model")))
    history = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(content="I fly kites."),
        ChatMessage(role="assistant", content="Nice."),
        ChatMessage(content="How heavy?"),
    ]
    conductor_over(agent).chat(history)
    texts = request_text(model.requests[0])
    assert all(text in texts for text in ("Be brief.", "I fly kites.", "How heavy is the Heron?"))


def test_runs_of_an_agent_are_independent() -> None:
    model = ScriptedModel("Done.")
    llm = conductor_over(weigher(llm=Conductor({"model": model}, policy=Policy(single="model"))))
    llm.complete("The secret is 42.")
    llm.complete("Why?")
    assert "42" not in request_text(model.requests[-1])


def test_an_agent_with_an_output_class_replies_in_json() -> None:
    class Kite(BaseModel):
        """The weight of a kite."""

        grams: int

    def answers(request: Request) -> Any:
        return tool_call_reply("Kite", grams=310) if request.tools else "310 grams."

    agent = weigher(llm=llm_of(answers), tools=[], output_cls=Kite)
    assert json.loads(conductor_over(agent).complete("How heavy?").text) == {"grams": 310}


def test_text_before_an_agents_tool_call_is_not_streamed() -> None:
    def thinks_aloud(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return "310 grams."
        return tool_call_reply("weigh", kite="Heron").model_copy(update={"content": (TextPart(text="A DRAFT"),)})

    llm = conductor_over(weigher(llm=llm_of(thinks_aloud)))
    assert "".join(piece.delta or "" for piece in llm.stream_chat(user_messages("How heavy?"))) == "310 grams."


def test_an_agents_query_engine_tools_return_their_source_nodes(indexes: dict[str, VectorStoreIndex]) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM(), similarity_top_k=1)
    tool = QueryEngineTool.from_defaults(engine, name="hr", description="people")

    def looks_up(request: Request) -> Any:
        return "5,400" if request.messages[-1].role == "tool" else tool_call_reply("hr", input="What does Anna earn?")

    response: Any = conductor_over(weigher(llm=llm_of(looks_up), tools=[tool])).chat(user_messages("Why?"))
    assert [node["metadata"]["title"] for node in response.raw["sources"][0]["source_nodes"]] == ["salaries"]


async def test_cancelling_a_call_stops_its_agent() -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    llm = conductor_over(weigher(llm=Conductor({"model": slow}, policy=Policy(single="model"))))
    task = asyncio.create_task(llm.achat(user_messages("Why?")))
    await wait_until(lambda: slow.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: slow.in_flight == 0)


@pytest.mark.filterwarnings("ignore:is_running:DeprecationWarning")
def test_errors_of_an_agent_contain_no_keys() -> None:
    agent = ReActAgent(name="a", description="b", llm=EchoLLM(fails=True), tools=[FunctionTool.from_defaults(weigh)])
    with pytest.raises(RunError) as caught:
        conductor_over(agent).complete("Why?")
    texts = str(caught.value) + caught.value.trace.model_dump_json()
    assert "the line is down, and Bearer [secret]" in texts
    assert "sk-very-secret" not in texts


# --------------------------------------------------------------------------------------- workflows


class Question(StartEvent):
    """Start event with one required field."""

    topic: str
    volume: int = 1


class Shouting(Workflow):
    """Repeats everything in capitals."""

    @step
    async def shout(self, event: Question) -> StopEvent:
        return StopEvent(result=event.topic.upper())


class Plain(Workflow):
    """A workflow that returns an object."""

    @step
    async def answer(self, event: StartEvent) -> StopEvent:
        return StopEvent(result={"length": len(event.get("text"))})


class Asking(Workflow):
    """A workflow that asks for human input."""

    @step
    async def ask(self, _: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prefix="Your name?")

    @step
    async def answer(self, event: HumanResponseEvent) -> StopEvent:
        return StopEvent(result=event.response)


def test_a_workflow_gets_the_prompt_in_its_only_required_field() -> None:
    scripted = planner(plan((0, "Say it.", [])))
    llm = Conductor([Shouting(), ScriptedModel("Hi.", name="writer")], planner=scripted)
    assert "SAY IT." in llm.complete("Why?").text
    assert "0 Shouting: Repeats everything in capitals" in request_text(scripted.requests[0])


def test_a_workflow_with_a_plain_start_event_needs_the_field() -> None:
    with pytest.raises(ConfigError, match=r"write WorkflowModel\(workflow, input_field='...'\)"):
        conductor_over(Plain())
    text = conductor_over(WorkflowModel(Plain(), input_field="text")).complete("Why?").text
    assert json.loads(text)["length"] > 4


class Completing(Workflow):
    """Ends with the response of an LLM."""

    @step
    async def complete(self, event: Question) -> StopEvent:
        return StopEvent(result=CompletionResponse(text=event.topic.upper()))


def test_the_text_of_an_llms_response_that_a_workflow_returns_is_the_reply() -> None:
    assert conductor_over(Completing()).complete("Why?").text.startswith("THE OVERALL TASK:")


class Ending(Workflow):
    """Ends with the result that it was created with."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result

    @step
    async def end(self, _: Question) -> StopEvent:
        return StopEvent(result=self.result)


@pytest.mark.parametrize(("result", "wrong"), [(None, "nothing"), (object(), "an object of the type object")])
def test_a_workflow_without_a_result_that_has_a_text_fails(result: object, wrong: str) -> None:
    with pytest.raises(RunError, match=f"llamaindex:worker returned {wrong}; return a text, or data"):
        conductor_over(Ending(result)).complete("Why?")


def test_a_workflow_that_asks_a_person_fails_at_once() -> None:
    worker, other = WorkflowModel(Asking(), input_field="text", name="asking"), ScriptedModel("An answer.")
    llm = Conductor({"asking": worker, "other": other}, planner=planner(plan((0, "Ask.", []))))
    with pytest.raises(RunError, match="step 1: asking: llamaindex:asking asks for human input"):
        llm.complete("Why?")
    assert not other.requests


# ------------------------------------------------------------------------------------ chat engines


def chat_engine(model: ScriptedModel) -> SimpleChatEngine:
    llm = Conductor({"model": model}, policy=Policy(single="model"))
    return SimpleChatEngine.from_defaults(llm=llm, memory=ChatMemoryBuffer.from_defaults(llm=llm))


def test_a_chat_engine_reads_the_conversation_and_keeps_its_memory() -> None:
    model = ScriptedModel("Done.")
    engine = chat_engine(model)
    engine.chat("The secret is 42.")
    before = list(engine.chat_history)
    conductor_over(engine).chat(
        [ChatMessage(content="I fly kites."), ChatMessage(role="assistant", content="Nice."), *user_messages("Why?")]
    )
    assert "I fly kites." in request_text(model.requests[-1])
    assert "42" not in request_text(model.requests[-1])
    assert engine.chat_history == before


async def test_concurrent_calls_of_a_chat_engine_are_independent() -> None:
    model = ScriptedModel("Done.", delay=0.05)
    llm = conductor_over(chat_engine(model))
    await asyncio.gather(*(llm.achat(user_messages(f"Question {letter}?")) for letter in "abc"))
    assert all(
        sum(f"Question {letter}?" in request_text(request) for letter in "abc") == 1 for request in model.requests
    )


@pytest.mark.parametrize("mode", [ChatMode.CONTEXT, ChatMode.CONDENSE_QUESTION, ChatMode.CONDENSE_PLUS_CONTEXT])
def test_a_chat_engine_over_an_index_returns_its_source_nodes(
    indexes: dict[str, VectorStoreIndex], mode: ChatMode
) -> None:
    llm = llm_of("5,400 euros.")
    engine = indexes["hr"].as_chat_engine(
        chat_mode=mode, llm=llm, memory=ChatMemoryBuffer.from_defaults(llm=llm), similarity_top_k=1
    )
    response: Any = conductor_over(engine, plan((0, "What does Anna Lindqvist earn?", []))).chat(user_messages("Why?"))
    assert response_text(response) == "5,400 euros."
    assert len(response.raw["sources"][0]["source_nodes"]) == 1


def test_models_of_agents_and_chat_engines_are_public() -> None:
    assert AgentModel(weigher()).description == "weighs kites"
    assert AgentModel(FunctionAgent(llm=EchoLLM())).description == ""
    assert ChatEngineModel(chat_engine(ScriptedModel("Hi."))).name == "llamaindex:chat-engine"
