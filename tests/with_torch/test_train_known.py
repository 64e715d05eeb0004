from __future__ import annotations

import random
from pathlib import Path

import pytest

import toy_training
from rl_conductor.errors import ConfigError
from rl_conductor.train.config import Curriculum, PlanEntry, WarmStart
from rl_conductor.train.course import Course
from rl_conductor.train.known import KnownPlan, known_plans, random_workflow, shortest
from rl_conductor.train.loading import Loaded, load
from rl_conductor.train.warm_start import lessons
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
        plan("q", "judge").model_copy(update={"round": 2}),
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


@pytest.mark.parametrize(
    ("known", "changed", "problem"),
    [
        (plan("q", "right", "right"), {}, "2 steps, but 1 to 1 are allowed"),
        (plan("q", "gone"), {}, "no worker 'gone'"),
        (
            plan("q", "right", "wrong"),
            {"plan": PlanEntry(max_steps=2), "curriculum": Curriculum(workers=1)},
            "it needs 2 workers, but curriculum.workers is 1",
        ),
        (plan("q", "right").model_copy(update={"reasoning": "Well.\nNow."}), {}, "reasoning has more than one line"),
    ],
)
def test_a_plan_that_could_not_be_written_here_is_refused(
    course: Course, loaded: Loaded, tmp_path: Path, known: KnownPlan, changed: dict[str, object], problem: str
) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text(known.model_dump_json(), encoding="utf-8")
    other = Course(course.config.model_copy(update=changed), course.pool)
    with pytest.raises(ConfigError, match=f"plan for 'q' does not fit: .*{problem}"):
        known_plans(other, WarmStart(plans=file), loaded)


def test_a_plan_is_learnt_with_its_end_and_the_prompt_of_serving(course: Course, loaded: Loaded) -> None:
    made = lessons(course, WarmStart(steps=2, batch=3), loaded, [plan("What is 6 * 7?", "right")])
    assert len(made) == 6
    for row in made:
        assert loaded.tokenizer.decode(row.prompt).count("What is 6 * 7?") == 1
        assert row.plan[-1] == loaded.ends[0]
        text = loaded.tokenizer.decode(row.plan[:-1])
        assert text == 'model_id = [1]\nsubtasks = ["Solve it."]\naccess_list = [[]]'


def test_every_row_has_an_order_of_its_own_and_the_plan_follows_it(course: Course, loaded: Loaded) -> None:
    shuffled = Course(course.config.model_copy(update={"curriculum": Curriculum(shuffle=True)}), course.pool)
    made = lessons(shuffled, WarmStart(steps=4, batch=4), loaded, [plan("What is 6 * 7?", "right")])
    numbers = [loaded.tokenizer.decode(row.plan).partition("]")[0] for row in made]
    assert set(numbers) == {"model_id = [0", "model_id = [1"}
    assert len(set(numbers[:4])) == 2  # within one step


def test_a_thought_says_who_does_what_and_then_who_is_needed(course: Course, loaded: Loaded) -> None:
    does = {"wrong": "guess", "right": "solve"}
    made = lessons(course, WarmStart(steps=1, batch=1, thoughts=does), loaded, [plan("q", "right", "wrong")])
    assert loaded.tokenizer.decode(made[0].plan).startswith("0 guess, 1 solve: solve 1, guess 0\nmodel_id = [1, 0]")
