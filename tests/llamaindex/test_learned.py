"""Learned conductors as LlamaIndex LLMs: by folder, or loaded."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

import rl_conductor
from learned_folder import PROVIDER, QUESTION, write_learned_folder
from llama_index.llms.conductor import Conductor
from rl_conductor import ConfigError, ScriptedModel
from rl_conductor.models import PROVIDERS

ANSWER = "There are 7 words."
EXAMPLE = Path(__file__).parents[2] / "examples" / "wiki" / "ask_llamaindex.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(PROVIDERS, *PROVIDER.copy().popitem())
    return write_learned_folder(tmp_path)


async def test_an_llm_runs_the_learned_workflow(folder: Path) -> None:
    for source in (str(folder), folder, rl_conductor.Conductor.load(folder)):
        llm = Conductor(conductor=source)
        response = await llm.achat([ChatMessage(QUESTION)])
        assert response.message.content == ANSWER
        assert llm.trace is not None
        assert llm.trace.rounds[0].plan.source == "learned"


def test_the_folder_survives_serialisation(folder: Path) -> None:
    llm = Conductor(conductor=folder)
    again = Conductor.from_dict(llm.to_dict())
    assert again.chat([ChatMessage(QUESTION)]).message.content == ANSWER


def test_a_conductor_can_be_replaced_by_another_folder(folder: Path) -> None:
    llm = Conductor([ScriptedModel("a", name="a")])
    copy = llm.model_copy(update={"conductor": folder, "workers": None})
    llm = Conductor(conductor=rl_conductor.Conductor(ScriptedModel("no plan"), {"a": ScriptedModel("a")}))
    llm.conductor = folder
    for replaced in (copy, llm):
        assert replaced.chat([ChatMessage(QUESTION)]).message.content == ANSWER


async def test_other_workers_of_the_same_names_replace_those_of_the_folder(folder: Path) -> None:
    workers = {"counter": ScriptedModel("7"), "writer": ScriptedModel("Seven.")}
    response = await Conductor(workers, conductor=folder).achat([ChatMessage(QUESTION)])
    assert response.message.content == "Seven."


def test_mistakes_say_what_to_write(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a learned conductor"):
        Conductor(conductor=tmp_path)
    wrong: Any = Conductor(conductor=folder)
    with pytest.raises(ConfigError, match="conductor is a Conductor; write"):
        Conductor(conductor=wrong)
    with pytest.raises(ConfigError, match="pass one of them"):
        Conductor([ScriptedModel("a", name="a")], conductor=rl_conductor.Conductor.load(folder))


def test_the_example_answers(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ask", str(folder), QUESTION])
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out == f"{ANSWER}\n1. counter\n2. writer\n"
