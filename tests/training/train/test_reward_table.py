from __future__ import annotations

from collections import Counter

import pytest

from rl_conductor import Conductor, Limits, Message, Planner, ScriptedModel, Step, Workflow
from rl_conductor.models.scripted import ALL
from rl_conductor.types import Roster
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import (
    ScoredWorkflow,
    TableQuestion,
    TableSettings,
    method_order,
    supervised_order,
)

PLAN = "One.\nmodel_id = [1]\nsubtasks = ['Answer.']\naccess_list = [[]]"


def workflow(*names: str) -> Workflow:
    return Workflow(steps=tuple(Step(subtask="Answer.", worker=name) for name in names))


def question(*scores: float) -> TableQuestion:
    plans = [ScoredWorkflow(workflow=workflow(*["a"] * length), score=score) for length, score in enumerate(scores, 1)]
    return TableQuestion(id=str(scores), conversation=(Message.user("Why?"),), plans=tuple(plans))


QUESTIONS = [question(0, 1), question(1, 0), question(0, 1, 1), question(0, 0), question(1, 1)]
HOPELESS, EASY = 3, 4


def test_only_questions_with_a_right_plan_are_supervised_equally_often() -> None:
    settings = TableSettings(supervised_steps=6, supervised_batch=4)
    order = supervised_order(QUESTIONS, settings)
    assert Counter(item.position for item in order) == {0: 6, 1: 6, 2: 6, EASY: 6}
    assert all(item.is_supervised for item in order)
    assert [QUESTIONS[index].demonstration for index in (0, 1, 2)] == [1, 0, 1]
    assert order != supervised_order(QUESTIONS, settings.model_copy(update={"seed": 1}))


def test_each_step_replays_the_same_share_of_solved_questions() -> None:
    settings = TableSettings(steps=5, batch=4, replay=0.25)
    order = [item.position for item in method_order(QUESTIONS, [1], settings)]
    steps = [order[start : start + 4] for start in range(0, len(order), 4)]
    assert len(steps) == 5
    assert all(step.count(1) == 1 for step in steps)
    assert not {HOPELESS, EASY} & set(order)


@pytest.mark.parametrize("solved", [[], [0, 1, 2]])
def test_without_solved_or_without_unsolved_questions_the_steps_are_full(solved: list[int]) -> None:
    settings = TableSettings(steps=3, batch=4)
    assert Counter(item.position for item in method_order(QUESTIONS, solved, settings)) == {0: 4, 1: 4, 2: 4}


def test_a_table_without_contrast_has_no_steps() -> None:
    assert not method_order([QUESTIONS[HOPELESS], QUESTIONS[EASY]], [], TableSettings())


async def test_the_prompt_and_the_plans_are_those_of_serving() -> None:
    model = ScriptedModel(PLAN)
    planner = Planner(model=model, form="lists", examples=0, instructions="Prefer b.")
    pool = {name: {"model": ScriptedModel("?"), "description": f"good at {name}"} for name in "ab"}
    conductor = Conductor(planner, pool, limits=Limits(steps=3), access="positional")
    prompt = PlanPrompt.of(conductor)
    record = await conductor.plan("Why?")
    assert prompt.messages([Message.user("Why?")]) == model.requests[0].messages
    assert record.workflow == workflow("b")
    assert PLAN.replace("One.\n", "").replace("'", '"') in prompt.text(workflow("b"))
    assert prompt.allows(workflow("a", "b", "a"))
    assert not prompt.allows(workflow("a", "b", "a", "b"))
    assert not prompt.allows(workflow("c"))
    assert prompt.gbnf is not None


@pytest.mark.parametrize("roster", ["cards", "anonymous"])
@pytest.mark.parametrize("question", ["Why?", "Why? " * 4_000])
async def test_a_model_in_this_process_is_trained_on_the_prompt_that_it_is_served(
    question: str, roster: Roster
) -> None:
    model = ScriptedModel(PLAN, capabilities=ALL.model_copy(update={"runs_in": "process", "context": 4_096}))
    planner = Planner(model=model, form="lists", roster=roster, examples=0)
    pool = {name: {"model": ScriptedModel("?"), "description": f"good at {name}"} for name in "ab"}
    conductor = Conductor(planner, pool)
    await conductor.plan(question)
    assert PlanPrompt.of(conductor).messages([Message.user(question)]) == model.requests[0].messages


async def test_a_prompt_lists_other_cards_in_another_order_and_reads_plans_by_them() -> None:
    pool = {name: {"model": ScriptedModel("?"), "description": f"good at {name}"} for name in "ab"}
    planner = Planner(model=ScriptedModel(PLAN), form="lists", roster="anonymous", examples=0)
    prompt = PlanPrompt.of(Conductor(planner, pool))
    turned = prompt.with_cards([card.model_copy(update={"strengths": "new"}) for card in reversed(prompt.cards)])
    assert turned.read(prompt.text(workflow("b"))) == workflow("a")
    assert turned.read(turned.text(workflow("b"), "b is first")) == workflow("b")
    assert "model_id = [0]" in turned.text(workflow("b"), "b is first")
    assert turned.text(workflow("b"), "b is first").startswith("b is first\n")
    assert "new" in "".join(message.text for message in turned.messages([Message.user("Why?")]))
    assert turned.gbnf == prompt.gbnf
