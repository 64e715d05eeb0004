"""A person decides about a plan before it runs."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from langchain.agents.middleware.human_in_the_loop import DecisionType, EditDecision, HITLRequest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from pydantic import ValidationError

from conductor_graphs import ANSWER, DIAMOND, THREAD, around, asked, conductor
from core.runs import plan
from langchain_conductor.graph.node import create_conductor
from langchain_conductor.graph.step_graph import Graph
from rl_conductor import Conductor, Limits, ScriptedModel, Workflow

QUESTION = {"messages": [HumanMessage("q")]}
SHORT = plan((1, "short", []))


def paused(solver: Conductor, saver: Any = None) -> tuple[Graph, dict[str, Any]]:
    """Starts a graph that waits for a decision; returns it with the data for review."""
    graph = around(create_conductor(solver, interrupt_before_run=True), saver=saver or InMemorySaver())
    result = graph.invoke(QUESTION, THREAD)
    assert asked(solver) == []
    return graph, review_of(result)


def review_of(result: dict[str, Any]) -> dict[str, Any]:
    (pause,) = result["__interrupt__"]
    value: dict[str, Any] = pause.value
    return value


def decide(graph: Graph, **decision: Any) -> dict[str, Any]:
    return graph.invoke(Command(resume=decision), THREAD)


def answer_of(result: dict[str, Any]) -> str:
    return str(result["messages"][-1].text)


def test_the_plan_is_shown_drawn_and_as_data() -> None:
    _, review = paused(conductor())
    planned = Workflow.model_validate(review["workflow"])
    assert [step.subtask for step in planned.steps] == ["look", "count", "join", "tell"]
    assert review["drawing"] == planned.ascii()
    assert review["mermaid"] == planned.mermaid()


def test_the_interrupt_has_a_schema_of_the_decisions() -> None:
    solver = conductor()
    graph = around(create_conductor(solver, interrupt_before_run=True), saver=InMemorySaver())
    (pause,) = graph.invoke(QUESTION, THREAD)["__interrupt__"]
    assert set(pause.response_schema["discriminator"]["mapping"]) == {"approve", "edit", "reject", "respond"}


def test_an_approved_plan_runs() -> None:
    graph, _ = paused(conductor())
    assert answer_of(decide(graph, type="approve")) == ANSWER


async def test_decisions_reach_graphs_that_are_awaited() -> None:
    graph = around(create_conductor(conductor(), interrupt_before_run=True), saver=InMemorySaver())
    await graph.ainvoke(QUESTION, THREAD)
    assert answer_of(await graph.ainvoke(Command(resume={"type": "approve"}), THREAD)) == ANSWER


def test_an_edited_plan_runs_instead() -> None:
    solver = conductor()
    graph, review = paused(solver)
    review["workflow"]["steps"][1]["subtask"] = "estimate"
    assert answer_of(decide(graph, type="edit", workflow=review["workflow"])) == "tell(join(look(), estimate()))"
    assert "count" not in asked(solver)


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        ({"type": "edit", "workflow": {"steps": [{"subtask": "x", "worker": "z"}]}}, "there is no worker 'z'"),
        ({"type": "edit", "workflow": {"steps": []}}, "at least 1 item"),
        ({"type": "agree"}, r"write Command\(resume=.*input_value={'type': 'agree'}"),
        ("approve", r"write Command\(resume={'type': 'approve'}\)"),
    ],
)
def test_a_decision_that_can_not_be_carried_out_leaves_the_pause_in_place(decision: Any, problem: str) -> None:
    graph, _ = paused(conductor())
    with pytest.raises(ValidationError, match=problem):
        graph.invoke(Command(resume=decision), THREAD)
    assert answer_of(decide(graph, type="approve")) == ANSWER


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        ("approve", "write Command(resume={'type': 'approve'})"),
        ({"type": "respond"}, "respond.message\n  missing; write the text of the answer ["),
        ({"type": "reject", "mesage": "no"}, "reject.mesage\n  there is no such setting; did you mean 'message'? ["),
        ({"type": "edit"}, "edit.workflow\n  missing; write {'steps': [{'subtask': '...', 'worker': '...'}]} ["),
        (
            {"type": "edit", "workflow": {"steps": [{"subtask": "a", "worker": "b", "acces": []}]}},
            "edit.workflow.steps.0.acces\n  there is no such setting; did you mean 'access'? [",
        ),
    ],
)
def test_the_error_of_an_invalid_decision_says_what_to_write(decision: Any, problem: str) -> None:
    graph, _ = paused(conductor())
    with pytest.raises(ValidationError) as caught:
        graph.invoke(Command(resume=decision), THREAD)
    title, message = str(caught.value).split("\n", 1)
    assert title == "1 validation error for PlanDecision"
    assert message.strip().startswith(problem)
    assert "pydantic.dev" not in message


def test_request_and_decision_are_also_in_the_form_of_langchains_middleware() -> None:
    solver = conductor()
    graph, review = paused(solver)
    request: HITLRequest = {name: review[name] for name in HITLRequest.__annotations__}  # type: ignore[assignment]
    (action,), (config,) = request["action_requests"], request["review_configs"]
    assert action["name"] == config["action_name"]
    assert set(config["allowed_decisions"]) == set(get_args(DecisionType))
    assert action["description"] == review["drawing"]

    action["args"]["steps"][1]["subtask"] = "estimate"
    edit = EditDecision(type="edit", edited_action={"name": action["name"], "args": action["args"]})
    assert answer_of(decide(graph, decisions=[edit])) == "tell(join(look(), estimate()))"


@pytest.mark.parametrize(
    ("decisions", "answer"),
    [
        ([{"type": "approve"}], ANSWER),
        ([{"type": "respond", "message": "It is 7."}], "It is 7."),
    ],
)
def test_one_decision_in_a_list_is_carried_out(decisions: list[dict[str, str]], answer: str) -> None:
    graph, _ = paused(conductor())
    with pytest.raises(ValidationError, match=r"write Command\(resume="):
        decide(graph, decisions=decisions * 2)
    assert answer_of(decide(graph, decisions=decisions)) == answer


def test_a_rejected_plan_is_planned_again_with_the_reason_in_mind_and_waits_again() -> None:
    solver = conductor(DIAMOND, SHORT)
    graph, _ = paused(solver)
    review = review_of(decide(graph, type="reject", message="Too many steps."))
    assert [step["subtask"] for step in review["workflow"]["steps"]] == ["short"]
    planner = solver.planner.model
    assert isinstance(planner, ScriptedModel)
    prompt_text = planner.requests[-1].messages[-1].text
    assert "Too many steps." in prompt_text
    assert "join" in prompt_text
    assert answer_of(decide(graph, type="approve")) == "short()"


def test_the_cost_of_rejected_and_edited_plans_is_counted() -> None:
    graph, _ = paused(conductor(DIAMOND, SHORT))
    review = review_of(decide(graph, type="reject"))
    told = decide(graph, type="edit", workflow=review["workflow"])["messages"][-1].response_metadata["conductor"]
    assert told["planning"]["calls"] == 2


def test_plans_after_rejections_keep_to_the_limits() -> None:
    solver = conductor(*[SHORT] * 4, limits=Limits(calls=3))
    graph, _ = paused(solver)
    for _ in range(3):
        decide(graph, type="reject")
    planner = solver.planner.model
    assert isinstance(planner, ScriptedModel)
    assert len(planner.requests) == 2
    decide(graph, type="approve")  # nothing was planned again, because the last call is an answer
    assert len(asked(solver)) == 1


def test_a_person_may_answer_instead() -> None:
    solver = conductor()
    graph, _ = paused(solver)
    assert answer_of(decide(graph, type="respond", message="It is 7.")) == "It is 7."
    assert asked(solver) == []


def test_a_persons_answer_has_the_usage_of_the_rejected_plans_and_of_earlier_rounds() -> None:
    def tokens(*decisions: dict[str, str]) -> int:
        graph, _ = paused(conductor(DIAMOND, SHORT, limits=Limits(rounds=2)))
        for decision in decisions:
            decide(graph, **decision)
        usage = decide(graph, type="respond", message="It is 7.")["messages"][-1].usage_metadata
        return int(usage["total_tokens"])

    assert 0 < tokens() < tokens({"type": "reject", "message": "Shorter."}) < tokens({"type": "approve"})


def test_each_round_is_reviewed() -> None:
    graph, _ = paused(conductor(DIAMOND, SHORT, limits=Limits(rounds=2)))
    review = review_of(decide(graph, type="approve"))
    assert [step["subtask"] for step in review["workflow"]["steps"]] == ["short"]
    assert answer_of(decide(graph, type="approve")) == "short()"


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        ({"type": "approve"}, ANSWER),
        ({"type": "edit", "workflow": {"steps": [{"subtask": "mine", "worker": "a"}]}}, "mine()"),
        ({"type": "respond", "message": "No."}, "No."),
    ],
)
def test_a_decision_may_come_after_a_restart(tmp_path: Any, decision: dict[str, Any], answer: str) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        paused(conductor(), saver)
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        fresh = Conductor(ScriptedModel([]), conductor().pool, access="positional")
        graph = around(create_conductor(fresh, interrupt_before_run=True), saver=saver)
        assert answer_of(graph.invoke(Command(resume=decision), THREAD)) == answer


def test_a_rejection_may_come_after_a_restart(tmp_path: Any) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        paused(conductor(), saver)
    with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        graph = around(create_conductor(conductor(SHORT), interrupt_before_run=True), saver=saver)
        decide(graph, type="reject", message="Shorter.")
        assert answer_of(decide(graph, type="approve")) == "short()"
