from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import random_model
from rl_conductor import Conductor, Message, Planner, ScriptedModel, Step, Workflow
from rl_conductor.models.scripted import ScriptedModel as Scripted
from rl_conductor_training.train.reward_table.objectives import group_loss, question_loss, raft_loss
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import ScoredWorkflow, TableQuestion, TableSettings
from rl_conductor_training.train.reward_table.training import SUPERVISED, TableData, TableTraining, train_on_table

WORKERS = ("north", "south")


def conductor() -> Conductor:
    pool = {name: {"model": ScriptedModel("?"), "description": f"knows the {name}"} for name in WORKERS}
    return Conductor(Planner(model=Scripted("?", name="planner"), form="lists", examples=0), pool)


def workflow(*names: str) -> Workflow:
    return Workflow(steps=tuple(Step(subtask="Answer.", worker=name) for name in names))


RIGHT = ("south",)


def question(number: int) -> TableQuestion:
    """Builds a question for which three plans were scored."""
    plans = [("north",), RIGHT, ("north", "south")]
    return TableQuestion(
        id=str(number),
        conversation=(Message.user(f"Case {number}: what is in the south?"),),
        plans=tuple(ScoredWorkflow(workflow=workflow(*names), score=float(names == RIGHT)) for names in plans),
    )


def data(train: int = 4, validation: int = 2) -> TableData:
    questions = [question(number) for number in range(train + validation)]
    return TableData(questions[:train], questions[train:], PlanPrompt.of(conductor()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_model.make(tmp_path_factory.mktemp("tiny")))


def settings(model: str, **changed: Any) -> TableSettings:
    defaults: dict[str, Any] = {
        "model": model,
        "supervised_steps": 2,
        "supervised_batch": 2,
        "supervised_rate": 1e-3,
        "steps": 12,
        "batch": 2,
        "learning_rate": 5e-3,
        "evaluate_every": 6,
    }
    return TableSettings.model_validate(defaults | changed)


def expected(training: TableTraining, stage: str) -> float:
    return [point.validation.expected for point in training.curve if point.stage == stage][-1]


@pytest.mark.parametrize("method", ["expectation", "groups", "raft"])
def test_right_plans_become_more_probable_than_after_supervision(model: str, method: str, tmp_path: Path) -> None:
    training = train_on_table(data(), settings(model, method=method), tmp_path)
    print(method, [(p.stage, p.step, p.validation.greedy, p.validation.expected, p.validation.support) for p in training.curve])
    assert expected(training, method) > expected(training, SUPERVISED) + 0.1
