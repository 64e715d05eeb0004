"""A process is killed between two steps; a fresh one goes on with the thread, and no finished step is paid twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import StateSnapshot, interrupt

from conductor_graphs import ANSWER, THREAD, around, asked, conductor, told
from core.runs import SOON, Gated, forever, plan, subtask_of
from forks import start_fork
from interrupted_graph import ASYNC, built, opened, run
from langchain_conductor.graph.node import PLAN, create_conductor
from langchain_conductor.graph.progress import Progress, aget_progress, get_progress
from langchain_conductor.graph.step_graph import Graph
from postgres import postgres, postgres_server  # noqa: F401 (fixtures)
from rl_conductor import Conductor, ConfigError, Limits, ModelError, Policy, Request, RunError
from rl_conductor.errors import WorkflowError

PATIENCE = 60.0
"""Seconds within which a process must have come as far as the test wants, however busy the machine is."""
NOTHING = "nothing"
CHAIN = plan((0, "look", []), (0, "read", [0]), (1, "ask", [1]), (0, "tell", [2]))
OUT_OF_ORDER = ModelError("out of order", model="b")


def killed_once(store: str, calls: Path, hang: str, is_done: Callable[[], bool]) -> None:
    running = start_fork(run, store, calls, hang, environment=os.environ)
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert running.is_alive(), "the process ended by itself"
        assert time.monotonic() < deadline, f"it never came so far: {started_calls(calls)}"
        time.sleep(0.05)
    running.kill()
    running.join()
    assert running.exitcode == -signal.SIGKILL


def finished(store: str, calls: Path) -> str:
    """Goes on in this process, which knows of the run only what the killed one has stored."""
    return run(store, calls, NOTHING)


def started_calls(calls: Path) -> list[str]:
    return calls.read_text().split() if calls.exists() else []


def progress(store: str, calls: Path) -> list[Progress]:
    with opened(store) as saver:
        return get_progress(built(saver, calls, NOTHING), THREAD)


def finished_steps(store: str, calls: Path) -> list[int]:
    return [result.index for item in progress(store, calls) for result in item.results]


def is_not_paid_twice(store: str, calls: Path) -> None:
    """Killed while `join` runs: the steps before it are kept."""
    killed_once(store, calls, "join", lambda: "join" in started_calls(calls))
    assert sorted(started_calls(calls)) == ["count", "join", "look", "plan"]
    assert finished_steps(store, calls) == [0, 1]
    calls.unlink()
    assert finished(store, calls) == ANSWER
    assert started_calls(calls) == ["join", "tell"]


@pytest.mark.parametrize("prefix", ["", ASYNC])
def test_steps_done_before_a_kill_are_not_paid_again_with_sqlite(tmp_path: Path, prefix: str) -> None:
    is_not_paid_twice(f"{prefix}{tmp_path / 'db'}", tmp_path / "calls")


def test_steps_done_before_a_kill_are_not_paid_again_with_postgres(tmp_path: Path, postgres: str) -> None:  # noqa: F811
    is_not_paid_twice(postgres, tmp_path / "calls")


def test_a_finished_step_parallel_to_an_unfinished_one_is_not_paid_again(tmp_path: Path) -> None:
    store, calls = str(tmp_path / "db"), tmp_path / "calls"
    killed_once(store, calls, "count", lambda: "count" in started_calls(calls) and finished_steps(store, calls) == [0])
    calls.unlink()
    assert finished(store, calls) == ANSWER
    assert started_calls(calls) == ["count", "join", "tell"]


async def interrupted(solver: Conductor, has_begun: asyncio.Event) -> Graph:
    """Runs a graph and cancels it once the step has begun."""
    graph = around(create_conductor(solver), saver=InMemorySaver())
    running = asyncio.create_task(graph.ainvoke({"messages": "q"}, THREAD))
    await asyncio.wait_for(has_begun.wait(), SOON)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return graph


async def test_limits_count_the_usage_before_the_interruption() -> None:
    gated = Gated(told, forever)
    graph = await interrupted(conductor(CHAIN, workers={"a": told, "b": gated}), gated.asked)
    fresh = conductor("never asked for", limits=Limits(calls=4))
    result = await around(create_conductor(fresh), saver=graph.checkpointer).ainvoke(None, THREAD)
    assert asked(fresh) == ["ask"]
    assert result["messages"][-1].text == "ask(read(look()))"


async def test_a_thread_is_not_resumed_with_a_reply_that_the_policy_has_come_to_deny() -> None:
    gated = Gated(told, forever)
    graph = await interrupted(conductor(CHAIN, workers={"a": told, "b": gated}), gated.asked)
    fresh = conductor(workers={"a": told, "b": told}, policy=Policy(deny=frozenset({"a"})))
    graph = around(create_conductor(fresh), saver=graph.checkpointer)
    with pytest.raises(WorkflowError, match=r"'a': policy\.deny names it"):
        await graph.ainvoke(None, THREAD)
    assert asked(fresh) == []


async def test_a_thread_is_not_resumed_with_a_reply_of_a_replacement_that_is_denied_now() -> None:
    gated = Gated(told, forever)
    steps = plan((0, "look", []), (2, "tell", [0]))
    graph = await interrupted(
        conductor(steps, workers={"a": [OUT_OF_ORDER], "bad": "forbidden", "b": gated}), gated.asked
    )
    fresh = conductor(workers={"a": told, "bad": told, "b": told}, policy=Policy(deny=frozenset({"bad"})))
    with pytest.raises(WorkflowError, match=r"step 1 runs again.*'bad': policy\.deny names it"):
        await around(create_conductor(fresh), saver=graph.checkpointer).ainvoke(None, THREAD)
    assert asked(fresh) == []


@pytest.mark.parametrize("replies", [[], ["look"]], ids=["the only step", "the last step"])
def test_a_run_that_failed_tries_its_last_step_again_when_it_is_resumed(replies: list[str]) -> None:
    steps: list[Any] = [(0, subtask, []) for subtask in replies]
    solver = conductor(
        plan(*steps, (1, "tell", list(range(len(replies))))),
        workers={"a": told, "b": [OUT_OF_ORDER, "Seven."]},
        policy=Policy(final="b"),
    )
    graph = around(create_conductor(solver), saver=InMemorySaver())
    with pytest.raises(RunError, match="out of order"):
        graph.invoke({"messages": "q"}, THREAD)
    assert [failed.remaining for failed in get_progress(graph, THREAD)] == [[len(replies)]]
    assert graph.invoke(None, THREAD)["messages"][-1].text == "Seven."
    assert asked(solver) == [*replies, "tell", "tell"]


@pytest.fixture(params=["sync", "async"])
def invoke(request: pytest.FixtureRequest) -> Callable[[Graph, Any], dict[str, Any]]:
    """Runs the graph in the thread `THREAD`."""
    if request.param == "sync":
        return lambda graph, state: graph.invoke(state, THREAD)
    return lambda graph, state: asyncio.run(graph.ainvoke(state, THREAD))


def outage_of(*failing: str) -> tuple[Callable[[Request], str | Exception], Callable[[], None]]:
    """A worker whose steps with these subtasks fail until the returned function ends the outage."""
    subtasks = set(failing)

    def reply(request: Request) -> str | Exception:
        return OUT_OF_ORDER if subtask_of(request) in subtasks else told(request)

    return reply, subtasks.clear


def test_a_run_that_failed_tries_failed_steps_again_that_its_last_step_reads(
    invoke: Callable[[Graph, Any], dict[str, Any]],
) -> None:
    reply, end_outage = outage_of("look", "read", "tell")
    steps = plan((0, "look", []), (0, "read", [0]), (0, "tell", [1]))
    solver = conductor(steps, workers={"a": reply})
    graph = around(create_conductor(solver), saver=InMemorySaver())
    with pytest.raises(RunError, match="out of order"):
        invoke(graph, {"messages": "q"})
    end_outage()
    answer = invoke(graph, None)["messages"][-1]
    assert answer.text == "tell(read(look()))"
    assert asked(solver) == ["look", "read", "tell"] * 2
    assert answer.response_metadata["conductor"]["workers"]["a"]["calls"] == 6


def test_a_failed_step_that_only_finished_steps_read_stays_failed(
    invoke: Callable[[Graph, Any], dict[str, Any]],
) -> None:
    reply, end_outage = outage_of("look", "tell")
    steps = plan((0, "look", []), (0, "read", [0]), (1, "tell", [1]))
    solver = conductor(steps, workers={"a": reply, "b": reply}, policy=Policy(final="b"))
    graph = around(create_conductor(solver), saver=InMemorySaver())
    with pytest.raises(RunError, match="out of order"):
        invoke(graph, {"messages": "q"})
    end_outage()
    assert invoke(graph, None)["messages"][-1].text == "tell(read((no reply: this step failed)))"
    assert asked(solver).count("look") == 2  # worker a, and b in its place


# ---------------------------------------------------------------------------------------- progress


async def test_the_plan_shows_in_langgraphs_own_state() -> None:
    gated = Gated(told, forever)
    graph = await interrupted(conductor(CHAIN, workers={"a": told, "b": gated}), gated.asked)
    (task,) = (await graph.aget_state(THREAD, subgraphs=True)).tasks
    assert isinstance(task.state, StateSnapshot)
    assert task.state.values[PLAN]["text"] == CHAIN


async def test_an_interrupted_run_shows_its_steps() -> None:
    gated = Gated(told, forever)
    graph = await interrupted(conductor(CHAIN, workers={"a": told, "b": gated}), gated.asked)
    (paused,) = await aget_progress(graph, THREAD)
    assert str(paused).splitlines() == [
        "✓    1 a  look",
        "✓    2 a  read ⟵ 1",
        "     3 b  ask ⟵ 2",
        "  ─▶ 4 a  tell ⟵ 3",
    ]
    assert paused.remaining == [2, 3]
    assert [result.text for result in paused.results] == ["look()", "read(look())"]


async def test_steps_in_a_part_of_their_own_show_too() -> None:
    gated = Gated(told, forever)
    uneven = plan((0, "look", []), (1, "read", [0]), (0, "slow", []), (0, "tell", [0, 1, 2]))
    graph = await interrupted(conductor(uneven, workers={"a": told, "b": gated}), gated.asked)
    (paused,) = get_progress(graph, THREAD)
    assert paused.remaining == [1, 3]


async def test_a_step_that_failed_on_the_way_is_not_shown_as_done() -> None:
    telling = asyncio.Event()

    async def wait(request: Request) -> None:
        if subtask_of(request) == "tell":
            telling.set()
            await forever(request)

    solver = conductor(plan((0, "look", []), (0, "tell", [0])), workers={"a": Gated([OUT_OF_ORDER], wait)})
    (paused,) = await aget_progress(await interrupted(solver, telling), THREAD)
    assert str(paused).splitlines() == ["✗    1 a  look", "  ─▶ 2 a  tell ⟵ 1"]
    assert paused.remaining == [1]


@pytest.mark.parametrize("name", ["review", "run"])
@pytest.mark.parametrize("stored_plan", [None, {}])
def test_a_waiting_node_of_the_user_is_not_a_plan(name: str, stored_plan: Any) -> None:
    class WithPlan(MessagesState):
        conductor_plan: Any

    builder = StateGraph(WithPlan)
    builder.add_node(name, lambda _: interrupt("Well?"))
    builder.add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.invoke({"messages": [], "conductor_plan": stored_plan}, THREAD)
    assert get_progress(graph, THREAD) == []


async def test_a_plan_under_review_shows_no_steps_done() -> None:
    graph = around(create_conductor(conductor(), interrupt_before_run=True), saver=InMemorySaver())
    await graph.ainvoke({"messages": "q"}, THREAD)
    (paused,) = await aget_progress(graph, THREAD)
    assert (paused.results, paused.remaining) == ((), [0, 1, 2, 3])


async def test_an_unneeded_step_is_neither_left_nor_done() -> None:
    aside = plan((0, "look", []), (1, "tell", []))
    graph = around(create_conductor(conductor(aside), interrupt_before_run=True), saver=InMemorySaver())
    await graph.ainvoke({"messages": "q"}, THREAD)
    (paused,) = await aget_progress(graph, THREAD)
    assert paused.remaining == [1]
    assert "✓" not in str(paused)


async def test_a_run_that_is_over_has_none() -> None:
    graph = around(create_conductor(conductor()), saver=InMemorySaver())
    await graph.ainvoke({"messages": "q"}, THREAD)
    assert await aget_progress(graph, THREAD) == get_progress(graph, THREAD) == []


def test_without_a_checkpointer_there_is_nothing_to_tell() -> None:
    with pytest.raises(ConfigError, match="checkpointer"):
        get_progress(around(create_conductor(conductor())), THREAD)
