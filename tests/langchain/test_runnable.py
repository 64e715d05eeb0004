"""The Conductor as a runnable that returns traces: config, callbacks, retries, fallbacks and batches work."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from conductor_graphs import ANSWER, asked, conductor, told
from core.runs import down, plan
from langchain_conductor.chat import ChatConductor
from langchain_conductor.runnable import Planned, RunnableConductor
from rl_conductor import (
    Conductor,
    Limits,
    Policy,
    Request,
    RunError,
    ScriptedModel,
    Step,
    Trace,
    Workflow,
    WorkflowError,
)

ONE = plan((0, "one", []))


class Runs(BaseCallbackHandler):
    """The names of runs, each with that of its parent."""

    def __init__(self) -> None:
        self.names: dict[UUID, str] = {}
        self.seen: list[tuple[str | None, str]] = []

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.names[run_id] = kwargs["name"]
        self.seen.append((self.names.get(kwargs["parent_run_id"]), kwargs["name"]))


@pytest.mark.parametrize(
    "question", ["q", [HumanMessage("q")], [("human", "q")], ChatPromptTemplate.from_template("q").invoke({})]
)
def test_questions_may_have_every_input_type_of_chat_models(question: Any) -> None:
    trace = RunnableConductor(conductor()).invoke(question)
    assert [message.text for message in trace.request.messages] == ["q"]
    assert trace.text == ANSWER


async def test_it_can_be_awaited_and_stands_in_chains() -> None:
    chain = ChatPromptTemplate.from_template("{x}") | RunnableConductor(conductor()) | (lambda trace: trace.text)
    assert await chain.ainvoke({"x": "q"}) == ANSWER


def test_code_may_change_the_plan_before_it_runs() -> None:
    def without_counting(planned: Planned) -> Planned:
        look, _, join, tell = planned.workflow.steps
        fewer = (look, join.model_copy(update={"access": {0}}), tell.model_copy(update={"access": {1}}))
        return planned.with_workflow(Workflow(steps=fewer))

    runnable = RunnableConductor(conductor())
    trace = (runnable.plan | without_counting | runnable.execute).invoke("q")
    assert trace.text == "tell(join(look()))"
    assert trace.rounds[0].plan.source == "given"
    assert trace.planning.calls == 1


def test_planning_alone_runs_nothing() -> None:
    solver = conductor()
    planned = RunnableConductor(solver).plan.invoke("q")
    assert [step.subtask for step in planned.workflow.steps] == ["look", "count", "join", "tell"]
    assert asked(solver) == []


async def test_a_plan_may_wait_as_json() -> None:
    planned = await RunnableConductor(conductor()).plan.ainvoke("q")
    restored = Planned.model_validate_json(planned.model_dump_json())
    elsewhere = RunnableConductor(Conductor(ScriptedModel([]), conductor().pool, access="positional"))
    assert (await elsewhere.execute.ainvoke(restored)).text == ANSWER


def test_a_changed_plan_that_may_not_run_is_refused() -> None:
    runnable = RunnableConductor(conductor())
    planned = runnable.plan.invoke("q").with_workflow(Workflow(steps=(Step(subtask="x", worker="nobody"),)))
    with pytest.raises(WorkflowError, match="there is no worker 'nobody'"):
        runnable.execute.invoke(planned)


def test_further_rounds_may_follow_an_edited_plan() -> None:
    runnable = RunnableConductor(conductor(ONE, plan((1, "better", [])), limits=Limits(rounds=2)))
    assert runnable.execute.invoke(runnable.plan.invoke("q")).text == "better()"


def test_policy_and_limits_may_be_bound_or_given_for_one_call() -> None:
    assert RunnableConductor(conductor()).bind(policy=Policy(single="b")).invoke("q").rounds[0].plan.source == "single"
    unpriced = RunnableConductor(conductor(ONE, workers={"a": ScriptedModel("x", price=None)}))
    with pytest.raises(RunError, match="price of scripted:scripted is unknown"):
        unpriced.invoke("q", limits=Limits(usd=Decimal(1)))


def test_a_retry_runs_it_anew() -> None:
    failures = iter([down])

    def flaky(request: Request) -> Any:
        return next(failures, told)(request)

    solver = conductor(ONE, ONE, workers={"a": flaky})
    assert RunnableConductor(solver).with_retry(retry_if_exception_type=(RunError,)).invoke("q").text == "one()"


async def test_a_fallback_answers_when_it_can_not() -> None:
    broken = RunnableConductor(conductor(ONE, workers={"a": down}))
    assert (await broken.with_fallbacks([RunnableConductor(conductor())]).ainvoke("q")).text == ANSWER


def test_a_batch_keeps_its_order_and_its_failures() -> None:
    def work(request: Any) -> Any:
        return down(request) if request.messages[0].text.startswith("bad") else request.messages[0].text

    runnable = RunnableConductor(ChatConductor(workers={"a": ScriptedModel(work, name="a")}, policy=Policy(single="a")))
    first, second, third = runnable.batch(["x", "bad", "y"], config={"max_concurrency": 2}, return_exceptions=True)
    assert (first.text, third.text) == ("x", "y")
    assert isinstance(second, RunError)


def test_its_parts_publish_input_and_output_types() -> None:
    runnable = RunnableConductor(conductor())
    assert (runnable.InputType, runnable.OutputType) == (runnable.plan.InputType, runnable.execute.OutputType)
    assert (runnable.OutputType, runnable.plan.OutputType, runnable.execute.InputType) == (Trace, Planned, Planned)
    assert runnable.get_output_jsonschema()["properties"].keys() == Trace.model_json_schema()["properties"].keys()
    assert repr(runnable) == "RunnableConductor('conductor')"


@pytest.mark.parametrize("awaited", [True, False])
async def test_handlers_see_the_plan_and_the_steps_inside_of_its_run(awaited: bool) -> None:
    runnable, runs = RunnableConductor(conductor()), Runs()
    if awaited:
        await runnable.ainvoke("q", config={"callbacks": [runs], "run_name": "mine"})
    else:
        runnable.invoke("q", config={"callbacks": [runs], "run_name": "mine"})
    steps = {("mine", f"step {step}: {worker}") for step, worker in ((1, "a"), (2, "b"), (3, "a"), (4, "b"))}
    assert set(runs.seen) == {(None, "mine"), ("mine", "planner"), *steps}


def test_its_parts_are_named_in_traces() -> None:
    runnable, runs = RunnableConductor(conductor()), Runs()
    (runnable.plan | RunnableLambda(lambda planned: planned, name="look") | runnable.execute).invoke(
        "q", {"callbacks": [runs]}
    )
    assert [name for parent, name in runs.seen if parent == "RunnableSequence"] == ["plan", "look", "execute"]
