from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import toy_training
from rl_conductor._internal.jsonl import read_lines
from rl_conductor.errors import ConfigError
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.tasks import TaskEntry
from rl_conductor_training.train.config import TrainConfig, WarmStartSettings
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model
from rl_conductor_training.train.run_dir import RunDir
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.warm_start.second_rounds import SecondRound, collect_second_rounds, endings
from rl_conductor_training.train.warm_start.sft import Demonstrations, build_examples, run_warm_start
from rl_conductor_training.train.warm_start.sft_data import Demonstration

FORTY_ONE = "What is 6 * 7 - 1?"
"""A question that only the worker `wrong` answers right."""


def single(worker: str) -> Workflow:
    return Workflow(steps=(Step(subtask="Solve it.", worker=worker),))


DEMONSTRATIONS = [
    Demonstration(question=toy_training.QUESTION, workflow=single("right")),
    Demonstration(question=FORTY_ONE, workflow=single("wrong")),
]


def config(folder: Path, **changed: object) -> TrainConfig:
    """A toy training with two questions, each of which another worker answers right."""
    made = toy_training.config(folder, recursion={"share": 1.0}, **changed)
    tasks = folder / "tasks.jsonl"
    lines = [f'{{"question": "{toy_training.QUESTION}", "answer": "42", "scoring": "numeric"}}']
    lines.append(f'{{"question": "{FORTY_ONE}", "answer": "41", "scoring": "numeric"}}')
    tasks.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "plans.jsonl").write_text("".join(f"{plan.model_dump_json()}\n" for plan in DEMONSTRATIONS), "utf-8")
    return made


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    return TrainingSetup(config(tmp_path_factory.mktemp("toy")), toy_training.pool())


@pytest.fixture(scope="module")
def loaded(setup: TrainingSetup) -> LoadedModel:
    return load_model(setup.config.model, dtype="float32")


@pytest.fixture(scope="module")
def second_rounds(setup: TrainingSetup) -> list[SecondRound]:
    return collect_second_rounds(setup, WarmStartSettings(second_rounds=1), DEMONSTRATIONS)


def test_an_ending_recalls_what_it_read_of_the_steps_before_it() -> None:
    steps = (
        Step(subtask="Look.", worker="a"),
        Step(subtask="Count.", worker="b", access=frozenset({0})),
        Step(subtask="Write.", worker="c", access=frozenset({0, 1})),
    )
    last, last_two, whole = endings(Workflow(steps=steps))
    assert last.steps == (Step(subtask="Write.", worker="c", recall=True),)
    assert last_two.steps == (
        Step(subtask="Count.", worker="b", recall=True),
        Step(subtask="Write.", worker="c", access=frozenset({0}), recall=True),
    )
    assert whole.steps == steps


def test_right_answers_are_accepted_and_wrong_ones_revised(second_rounds: list[SecondRound]) -> None:
    lessons = {
        (each.question, each.first.results[0].step.worker): each.workflow and each.workflow.steps[0].worker
        for each in second_rounds
    }
    assert lessons == {
        (toy_training.QUESTION, "right"): None,
        (toy_training.QUESTION, "wrong"): "right",
        (FORTY_ONE, "wrong"): None,
        (FORTY_ONE, "right"): "wrong",
    }


def test_second_rounds_without_the_questions_of_the_demonstrations_are_rejected(setup: TrainingSetup) -> None:
    other = [Demonstration(question="Who wrote it?", workflow=single("right"))]
    with pytest.raises(ConfigError, match=r"\[task\] has none of the questions of the demonstrations"):
        collect_second_rounds(setup, WarmStartSettings(second_rounds=1), other)


def test_the_demonstrations_may_be_of_another_task_than_that_of_reinforcement_learning(
    setup: TrainingSetup, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"question": "What is 40 + 1?", "answer": "41", "scoring": "numeric"}\n', encoding="utf-8")
    settings = WarmStartSettings(second_rounds=1, task=TaskEntry(name=f"jsonl:{other}"))
    demonstrations = [Demonstration(question="What is 40 + 1?", workflow=single("wrong"))]
    (only,) = collect_second_rounds(setup, settings, demonstrations)
    assert (only.question, only.workflow) == ("What is 40 + 1?", None)


def test_second_rounds_in_a_warm_start_without_recursion_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"warm_start.second_rounds needs \[recursion\]"):
        toy_training.config(tmp_path, warm_start={"second_rounds": 1})


def test_the_examples_of_both_rounds_take_turns_and_those_of_the_second_accept_as_often_as_they_revise(
    setup: TrainingSetup, loaded: LoadedModel, second_rounds: list[SecondRound]
) -> None:
    settings = WarmStartSettings(steps=2, batch=4, second_rounds=1)
    more_revisions = [each for each in second_rounds if each.workflow] * 3 + second_rounds
    examples = build_examples(setup, settings, loaded, Demonstrations(DEMONSTRATIONS, more_revisions))
    assert [example.is_second_round for example in examples] == [False, True] * 4
    accepts = [loaded.tokenizer.decode(each.plan).startswith("model_id = []") for each in examples[1::2]]
    assert accepts == [True, False, True, False]


def test_the_examples_of_second_rounds_are_the_same_in_each_process(
    setup: TrainingSetup, loaded: LoadedModel, second_rounds: list[SecondRound]
) -> None:
    settings = WarmStartSettings(steps=1, batch=4, second_rounds=1)
    first, again = (
        build_examples(setup, settings, loaded, Demonstrations(DEMONSTRATIONS, second_rounds)) for _ in range(2)
    )
    assert first == again


def test_the_prompt_of_a_second_round_has_the_first_plan_and_its_reply(
    setup: TrainingSetup, loaded: LoadedModel, second_rounds: list[SecondRound]
) -> None:
    roles = {"wrong": "guess", "right": "solve"}
    settings = WarmStartSettings(steps=1, batch=2, second_rounds=1, roles=roles)
    accepted = [each for each in second_rounds if each.workflow is None and each.question == toy_training.QUESTION]
    _, example = build_examples(setup, settings, loaded, Demonstrations(DEMONSTRATIONS, accepted))
    prompt, plan = (loaded.tokenizer.decode(tokens) for tokens in (example.prompt, example.plan))
    assert "0 guess, 1 solve: solve 1\nmodel_id = [1]" in prompt
    assert "42" in prompt.rpartition("model_id = [1]")[2]
    assert plan.startswith("0 guess, 1 solve: solve 1\nmodel_id = []")


def test_a_warm_start_stores_its_second_rounds_and_learns_them(tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    settings = {"plans": str(plans), "second_rounds": 1, "steps": 30, "batch": 8, "learning_rate": 1e-2}
    setup = TrainingSetup(config(tmp_path, warm_start=settings), toy_training.pool())
    assert setup.config.warm_start is not None
    run_dir = RunDir(tmp_path / "run")
    state = run_warm_start(setup, setup.config.warm_start, run_dir)
    assert (state.plans, state.second_rounds) == (2, 4)
    assert len(read_lines(run_dir.warm_start / "second_rounds.jsonl", SecondRound)) == 4
    assert state.loss < 0.5
