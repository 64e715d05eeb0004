"""Learned conductors in LangChain and LangGraph: by folder, or loaded."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from learned_folder import PROVIDER, QUESTION, write_learned_folder
from rl_conductor import Conductor, ConfigError, ScriptedModel
from rl_conductor.models import PROVIDERS

ANSWER = "There are 7 words."
EXAMPLE = Path(__file__).parents[2] / "examples" / "wiki" / "ask_langchain.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(PROVIDERS, *PROVIDER.copy().popitem())
    return write_learned_folder(tmp_path)


async def test_a_chat_model_runs_the_learned_workflow(folder: Path) -> None:
    for source in (str(folder), folder, Conductor.load(folder)):
        chat = ChatConductor(conductor=source)
        reply = await chat.ainvoke(QUESTION)
        assert reply.text == ANSWER
        assert chat.conductor.config.selector is not None


async def test_nodes_and_runnables_accept_the_folder(folder: Path) -> None:
    trace = await RunnableConductor(str(folder)).ainvoke(QUESTION)
    assert [result.step.worker for result in trace.results] == ["counter", "writer"]
    assert trace.rounds[0].plan.source == "learned"
    state = await create_conductor(folder).ainvoke({"messages": [("user", QUESTION)]})
    assert state["messages"][-1].text == ANSWER


async def test_other_workers_of_the_same_names_replace_those_of_the_folder(folder: Path) -> None:
    workers = {"counter": ScriptedModel("7"), "writer": ScriptedModel("Seven.")}
    reply = await ChatConductor(workers, conductor=folder).ainvoke(QUESTION)
    assert reply.text == "Seven."


def test_mistakes_say_what_to_write(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a learned conductor"):
        ChatConductor(conductor=tmp_path)
    with pytest.raises(ConfigError, match="conductor is a dict; write"):
        ChatConductor(conductor={})
    with pytest.raises(ConfigError, match="pass one of them"):
        ChatConductor({"a": ScriptedModel("a")}, conductor=Conductor.load(folder))


def test_a_conductor_can_be_replaced_by_another_folder(folder: Path) -> None:
    chat = ChatConductor({"a": ScriptedModel("a")})
    copy = chat.model_copy(update={"conductor": folder, "workers": None})
    assert copy.invoke(QUESTION).text == ANSWER
    chat = ChatConductor(conductor=Conductor(ScriptedModel("no plan"), {"a": ScriptedModel("a")}))
    chat.conductor = folder
    assert chat.invoke(QUESTION).text == ANSWER


def test_the_example_answers(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ask", str(folder), QUESTION])
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out == f"{ANSWER}\n"
