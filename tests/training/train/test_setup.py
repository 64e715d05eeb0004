from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_conductor import ConfigError, ModelError, ScriptedModel, WorkerPool
from rl_conductor.types import Completion, Message
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.setup import TrainingSetup

POOL = WorkerPool({"reader": ScriptedModel("x"), "coder": ScriptedModel("x")})
LEAST: dict[str, Any] = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            {"curriculum": {"cards": {"codr": ["counts"]}}},
            "curriculum.cards names codr, but the pool has reader, coder",
        ),
        ({"warm_start": {"roles": {"reader": "read"}}}, "warm_start.roles has no entry for coder"),
        (
            {"warm_start": {"roles": {"reader": "read", "coder": "count", "writer": "write"}}},
            "warm_start.roles names writer, but the pool has",
        ),
    ],
)
def test_tables_by_worker_name_the_workers_of_the_pool(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrainingSetup(TrainConfig.model_validate(LEAST | table), POOL)


async def test_the_reasons_of_masked_plans_are_kept() -> None:
    down = ModelError("the vendor is down", model="scripted:reader")
    setup = TrainingSetup(TrainConfig.model_validate(LEAST), WorkerPool({"reader": ScriptedModel([down])}))
    text = 'model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]'
    scored = await replace(setup.rollout_scorer, retries=0).score_plans(setup.prompt_instances(1), [text])
    assert setup.masked_reasons == [scored[0].explanation] == ["step 1, reader: reader: the vendor is down"]


async def test_the_finish_reasons_of_all_replies_are_kept() -> None:
    cut_off = Completion(message=Message.assistant("4"), finish_reason="length", model="scripted:reader")
    setup = TrainingSetup(TrainConfig.model_validate(LEAST), WorkerPool({"reader": ScriptedModel([cut_off, "42"])}))
    text = 'model_id = [0, 0]\nsubtasks = ["Answer.", "Answer."]\naccess_list = [[], ["all"]]'
    await setup.rollout_scorer.score_plans(setup.prompt_instances(1), [text])
    assert setup.finishes == [{"reader": {"length": 1, "stop": 1}}]


def test_wordings_and_roles_are_optional() -> None:
    TrainingSetup(
        TrainConfig.model_validate(LEAST | {"curriculum": {"cards": {"coder": ["counts"]}}, "warm_start": {}}), POOL
    )


def test_validation_questions_are_not_training_questions() -> None:
    shared = {"task": {"name": "composite:train", "limit": 2}}
    setup = TrainingSetup(TrainConfig.model_validate(LEAST | {"validation": shared}), POOL)
    with pytest.raises(ConfigError, match=r"validation\.task has 2 of the training questions, such as"):
        setup.validation_instances  # noqa: B018


def test_copies_of_questions_are_counted_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    questions = {"train": ("What is it?", "what  is it?", "Who is it?"), "validation": ("Why is it?", "How is it?")}
    for name, texts in questions.items():
        lines = [json.dumps({"question": text, "answer": "x"}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    task, validation = ({"name": f"jsonl:{tmp_path / name}.jsonl"} for name in questions)
    config = TrainConfig.model_validate(LEAST | {"task": task, "validation": {"task": validation}})
    TrainingSetup(config, POOL).warn_of_copies()
    assert caplog.messages == ["task has 3 questions, but only 2 different ones: each copy counts"]


def test_a_training_question_with_other_blanks_is_no_validation_question(tmp_path: Path) -> None:
    for name, question in (("train", "What is it?"), ("validation", " what is  it?\n")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": question, "answer": "x"}) + "\n")
    tasks = [{"name": f"jsonl:{tmp_path / name}.jsonl"} for name in ("train", "validation")]
    config = TrainConfig.model_validate(LEAST | {"task": tasks[0], "validation": {"task": tasks[1]}})
    with pytest.raises(ConfigError, match=r"validation\.task has 1 of the training questions"):
        TrainingSetup(config, POOL).validation_instances  # noqa: B018


@pytest.mark.parametrize("table", ["task", "validation"])
def test_a_question_with_two_answers_is_rejected(tmp_path: Path, table: str) -> None:
    rows = [{"question": question, "answer": answer} for question, answer in (("How many?", "1"), ("how  many?", "2"))]
    (tmp_path / "twice.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    twice = {"name": f"jsonl:{tmp_path / 'twice.jsonl'}"}
    changed = {"task": twice} if table == "task" else {"validation": {"task": twice}}
    with pytest.raises(ConfigError, match=r"questions 1 and 2 of .* are the same, 'how  many\?', but have different"):
        TrainingSetup(TrainConfig.model_validate(LEAST | changed), POOL).estimate()


async def test_validation_answers_are_scored_by_the_validation_task(tmp_path: Path) -> None:
    questions = {
        "train": {"question": "What is 4 + 5?", "answer": "9", "scoring": "exact"},
        "validation": {"question": "What is 3 + 4?", "answer": "7", "scoring": "numeric"},
    }
    for name, question in questions.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(question) + "\n")
    tasks = [{"name": "mixture", "options": {"sums": {"name": f"jsonl:{tmp_path / name}.jsonl"}}} for name in questions]
    config = TrainConfig.model_validate(LEAST | {"task": tasks[0], "validation": {"task": tasks[1]}})
    setup = TrainingSetup(config, POOL)
    (instance,) = setup.validation_instances
    assert (await setup.validation_scorer.scorer(instance.sample, "It is 7.")).value == 1
    assert (await setup.rollout_scorer.scorer(setup.task.samples[0], "9")).value == 1


def test_validation_instances_are_the_same_each_time() -> None:
    table = {"validation": {"task": {"name": "composite:heldout", "limit": 3}}}
    first, again = (TrainingSetup(TrainConfig.model_validate(LEAST | table), POOL) for _ in range(2))
    assert len(first.validation_instances) == 3
    assert [instance.messages for instance in first.validation_instances] == [
        instance.messages for instance in again.validation_instances
    ]
