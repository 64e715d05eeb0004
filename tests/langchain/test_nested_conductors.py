"""Conductors inside of a worker, such as a node of `create_conductor`, and functions and agents that call one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler

from core.runs import plan
from langchain_conductor import ChatConductor, create_conductor
from rl_conductor import ScriptedModel

LONE = plan((0, "Answer.", []))
PAIR = plan((0, "draft", []), (1, "write", ["all"]))


def team() -> ChatConductor:
    """A conductor whose plan has two steps."""
    workers = {name: {"model": ScriptedModel(f"From {name}."), "description": name} for name in ("drafter", "writer")}
    return ChatConductor(workers, planner=ScriptedModel(lambda _: PAIR))


def around(worker: Any, **options: Any) -> ChatConductor:
    """A conductor whose only worker it is, and whose plan has one step."""
    return ChatConductor({"team": worker}, planner=ScriptedModel(lambda _: LONE), **options)


class Inputs(BaseCallbackHandler):
    """Keeps the inputs of runs by their names."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.by_name[kwargs["name"]] = inputs


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_node_as_a_worker_runs_a_plan_that_is_longer_than_the_one_around_it(awaited: bool) -> None:
    chat, inputs = around(create_conductor(team())), Inputs()
    config: Any = {"callbacks": [inputs]}
    answer = await chat.ainvoke("Well?", config) if awaited else chat.invoke("Well?", config)
    assert answer.text == "From writer."
    assert inputs.by_name["step 2: writer"]["subtask"] == "write"
    assert inputs.by_name["step 1: team"]["subtask"] == "Answer."


async def test_a_conductor_in_an_agent_answers_while_events_are_streamed() -> None:
    chat = around(create_agent(team()))
    events = [event async for event in chat.astream_events("Well?", version="v2")]
    assert events[-1]["data"]["output"].text == "From writer."
    started = [event["name"] for event in events if event["event"] == "on_chain_start"]
    steps = [name for name in started if name.startswith("step")]
    assert steps == ["step 1: team", "step 1: drafter", "step 2: writer"]
