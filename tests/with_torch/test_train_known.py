from __future__ import annotations

import random
from pathlib import Path

import pytest

import toy_training
from rl_conductor.errors import ConfigError
from rl_conductor.train.config import WarmStart
from rl_conductor.train.course import Course
from rl_conductor.train.known import KnownPlan, known_plans, random_workflow, shortest
from rl_conductor.train.loading import Loaded, load
from rl_conductor.train.warm_start import rows
from rl_conductor.workflow import PlanSpace, Step, Workflow


def plan(question: str, *workers: str, score: float | None = 1.0) -> KnownPlan:
    steps = tuple(Step(subtask="Solve it.", worker=name) for name in workers)
    return KnownPlan(question=question, workflow=Workflow(steps=steps), score=score)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return Course(toy_training.config(tmp_path_factory.mktemp("toy")), toy_training.pool())


@pytest.fixture(scope="module")
def loaded(course: Course) -> Loaded:
    return load(course.config.model, dtype="float32")


def test_of_the_right_plans_for_a_question_the_shortest_are_learnt_from() -> None:
    plans = [
        plan("q", "right", "right"),
        plan("q", "right"),
        plan("q", "wrong", score=0.0),
        plan("q", "right"),
        plan("q", "other"),
        plan("p", "right", "other"),
        plan("q", "broken", score=None),
    ]
    assert shortest(plans) == [plan("q", "right"), plan("q", "other"), plan("p", "right", "other")]


def test_chance_writes_only_what_may_run() -> None:
    space = PlanSpace(roster=("a", "b", "c"), allowed=frozenset("ab"), max_steps=3)
    chance = random.Random(0)
    drawn = [random_workflow(space, ("Look.", "Count."), chance) for _ in range(200)]
    assert not any(space.violations(one) for one in drawn)
    assert {len(one.steps) for one in drawn} == {1, 2, 3}
    assert {step.worker for one in drawn for step in one.steps} == {"a", "b"}


def test_plans_drawn_by_chance_are_kept_when_they_are_right(course: Course, loaded: Loaded) -> None:
    found = known_plans(course, WarmStart(questions=1, samples=12), loaded)
    assert [one.workflow.steps[0].worker for one in found if one.workflow] == ["right"]


def test_where_no_plan_is_right_there_is_nothing_to_learn_from(course: Course, loaded: Loaded, tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text(plan("q", "right", score=0.0).model_dump_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match="no plan that gave a right answer"):
        known_plans(course, WarmStart(plans=file), loaded)


def test_nothing_is_learnt_of_the_prompt_and_the_end_of_the_plan_is(course: Course, loaded: Loaded) -> None:
    entry = WarmStart(steps=2, batch=3)
    made = rows(course, entry, loaded, [plan("What is 6 * 7?", "right")])
    assert len(made) == 6
    for row in made:
        learnt = [token for token in row["labels"] if token != -100]
        assert row["input_ids"][-len(learnt) :] == learnt
        assert learnt[-1] == loaded.ends[0]
        text = loaded.tokenizer.decode(learnt[:-1])
        assert text == 'model_id = [1]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
