from __future__ import annotations

import random
from pathlib import Path

import pytest

import toy_training
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.tasks import TaskEntry
from rl_conductor_training.train.config import CurriculumSettings, PlanSettings, ValidationSettings, WarmStartSettings
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.warm_start.sft import Demonstrations, build_examples
from rl_conductor_training.train.warm_start.sft_data import (
    Demonstration,
    collect_demonstrations,
    random_workflow,
    select_shortest,
)


def plan(question: str, *workers: str, score: float | None = 1.0) -> Demonstration:
    steps = tuple(Step(subtask="Solve it.", worker=name) for name in workers)
    return Demonstration(question=question, workflow=Workflow(steps=steps), score=score)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    return TrainingSetup(toy_training.config(tmp_path_factory.mktemp("toy")), toy_training.pool())


@pytest.fixture(scope="module")
def loaded(setup: TrainingSetup) -> LoadedModel:
    return load_model(setup.config.model, dtype="float32")


def test_the_shortest_right_plans_of_a_question_are_selected() -> None:
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
    assert select_shortest(plans) == [plan("q", "right"), plan("q", "other"), plan("p", "right", "other")]


def test_random_workflows_are_valid() -> None:
    space = PlanSpace(roster=("a", "b", "c"), allowed=frozenset("ab"), max_steps=3)
    chance = random.Random(0)
    workflows = [random_workflow(space, ("Look.", "Count."), chance) for _ in range(200)]
    assert not any(space.violations(workflow) for workflow in workflows)
    assert {len(workflow.steps) for workflow in workflows} == {1, 2, 3}
    assert {step.worker for workflow in workflows for step in workflow.steps} == {"a", "b"}


def test_right_random_plans_become_demonstrations(setup: TrainingSetup, loaded: LoadedModel) -> None:
    demonstrations = collect_demonstrations(setup, WarmStartSettings(questions=1, samples=12), loaded)
    assert [each.workflow.steps[0].worker for each in demonstrations if each.workflow] == ["right"]


def test_a_warm_start_without_a_right_plan_is_rejected(
    setup: TrainingSetup, loaded: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text(plan("q", "right", score=0.0).model_dump_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match="no plan with a right answer"):
        collect_demonstrations(setup, WarmStartSettings(plans=file), loaded)


def test_a_warm_start_whose_workers_all_fail_says_so(setup: TrainingSetup, loaded: LoadedModel) -> None:
    down = ModelError("the vendor is down", model="scripted:scripted")
    pool = WorkerPool({name: ScriptedModel(lambda _: down) for name in setup.pool})
    with pytest.raises(ConfigError, match=r"no plan with a right answer: .*; 4 plans left out, .* the vendor is down"):
        collect_demonstrations(TrainingSetup(setup.config, pool), WarmStartSettings(questions=1, samples=4), loaded)


@pytest.mark.parametrize(
    ("demonstration", "changed", "problem"),
    [
        (plan("q", "right", "right"), {}, "2 steps, but 1 to 1 are allowed"),
        (plan("q", "gone"), {}, "no worker 'gone'"),
        (
            plan("q", "right", "wrong"),
            {"plan": PlanSettings(max_steps=2), "curriculum": CurriculumSettings(workers=1)},
            "it needs 2 workers, but curriculum.workers is 1",
        ),
        (plan("q", "right").model_copy(update={"reasoning": "Well.\nNow."}), {}, "reasoning has more than one line"),
        (plan("q", "right"), {"plan": PlanSettings(context=900)}, "its prompt has .* but the context is 900"),
    ],
)
def test_a_demonstration_that_the_policy_can_not_write_is_rejected(
    setup: TrainingSetup,
    loaded: LoadedModel,
    tmp_path: Path,
    demonstration: Demonstration,
    changed: dict[str, object],
    problem: str,
) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text(demonstration.model_dump_json(), encoding="utf-8")
    other = TrainingSetup(setup.config.model_copy(update=changed), setup.pool)
    with pytest.raises(ConfigError, match=f"plan for 'q' does not fit: .*{problem}"):
        collect_demonstrations(other, WarmStartSettings(plans=file), loaded)


def test_a_demonstration_for_a_validation_question_is_rejected(
    setup: TrainingSetup, loaded: LoadedModel, tmp_path: Path
) -> None:
    file, questions = tmp_path / "plans.jsonl", tmp_path / "validation.jsonl"
    file.write_text(plan("what is  5 * 7?", "right").model_dump_json(), encoding="utf-8")
    questions.write_text('{"question": "What is 5 * 7?", "answer": "35"}\n', encoding="utf-8")
    validation = ValidationSettings(task=TaskEntry(name=f"jsonl:{questions}"))
    other = TrainingSetup(setup.config.model_copy(update={"validation": validation}), setup.pool)
    with pytest.raises(ConfigError, match=r"1 plan for validation questions, such as 'what is  5 \* 7\?': remove"):
        collect_demonstrations(other, WarmStartSettings(plans=file), loaded)


def test_an_example_has_the_prompt_of_serving_and_ends_with_the_end_token(
    setup: TrainingSetup, loaded: LoadedModel
) -> None:
    examples = build_examples(
        setup, WarmStartSettings(steps=2, batch=3), loaded, Demonstrations([plan("What is 6 * 7?", "right")], [])
    )
    assert len(examples) == 6
    for row in examples:
        assert loaded.tokenizer.decode(row.prompt).count("What is 6 * 7?") == 1
        assert row.plan[-1] == loaded.end_tokens[0]
        text = loaded.tokenizer.decode(row.plan[:-1])
        assert text == 'model_id = [1]\nsubtasks = ["Solve it."]\naccess_list = [[]]'


def test_each_example_has_its_own_worker_order(setup: TrainingSetup, loaded: LoadedModel) -> None:
    shuffled = TrainingSetup(
        setup.config.model_copy(update={"curriculum": CurriculumSettings(shuffle=True)}), setup.pool
    )
    examples = build_examples(
        shuffled, WarmStartSettings(steps=4, batch=4), loaded, Demonstrations([plan("What is 6 * 7?", "right")], [])
    )
    numbers = [loaded.tokenizer.decode(row.plan).partition("]")[0] for row in examples]
    assert set(numbers) == {"model_id = [0", "model_id = [1"}
    assert len(set(numbers[:4])) == 2  # within one step


def test_the_reasoning_lists_all_roles_and_then_those_of_the_plan(setup: TrainingSetup, loaded: LoadedModel) -> None:
    roles = {"wrong": "guess", "right": "solve"}
    examples = build_examples(
        setup,
        WarmStartSettings(steps=1, batch=1, roles=roles),
        loaded,
        Demonstrations([plan("q", "right", "wrong")], []),
    )
    assert loaded.tokenizer.decode(examples[0].plan).startswith("0 guess, 1 solve: solve 1, guess 0\nmodel_id = [1, 0]")
