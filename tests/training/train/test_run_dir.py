from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import ConfigError, ScriptedModel, Worker, WorkerPool
from rl_conductor._internal.jsonl import read_lines, read_value
from rl_conductor.scoring import Sample
from rl_conductor_training.train.config import CheckpointSettings, Reporter, TrainConfig
from rl_conductor_training.train.rollouts.scoring import LoggedPlan
from rl_conductor_training.train.run_dir import COMPLETE, RunDir, RunRecord, Spending
from rl_conductor_training.workers.pool_settings import PoolSource

CONFIG = TrainConfig.model_validate({"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}})


def begun(path: Path) -> RunDir:
    """The directory of a run in which a worker was called."""
    folder = RunDir.open(path, CONFIG)
    folder.write_spending(Spending(calls=1))
    return folder


def test_a_run_directory_belongs_to_one_configuration(tmp_path: Path) -> None:
    assert begun(tmp_path / "run") == RunDir.open(tmp_path / "run", CONFIG)
    with pytest.raises(ConfigError, match="other settings of seed, grpo"):
        RunDir.open(
            tmp_path / "run", CONFIG.model_copy(update={"seed": 1, "grpo": CONFIG.grpo.model_copy(update={"steps": 9})})
        )


def test_a_run_that_has_not_begun_takes_other_settings_questions_and_workers(tmp_path: Path) -> None:
    sample = Sample(id="1", question="What is 1 + 1?", answer="2")
    for number in range(2):
        folder = RunDir.open(tmp_path, CONFIG.model_copy(update={"seed": number}))
        workers, questions = WorkerPool([worker(f"worker-{number}")]), [sample] * number
        folder.ensure_same_workers(workers, {})
        folder.ensure_same_questions(questions, [])
        folder.write_workers(workers, {})
        folder.write_questions(questions, [])
        folder.write_spending(Spending())
    assert read_value(tmp_path / "config.json", TrainConfig).seed == 1
    (tmp_path / "warm_start").mkdir()
    with pytest.raises(ConfigError, match="other settings of seed"):
        RunDir.open(tmp_path, CONFIG)


def test_checkpoint_settings_may_change_when_a_run_resumes(tmp_path: Path) -> None:
    changed = CONFIG.model_copy(update={"keep": CheckpointSettings(every=3, report_to=(Reporter.WANDB,))})
    begun(tmp_path)
    RunDir.open(tmp_path, changed)
    assert read_value(tmp_path / "config.json", TrainConfig) == changed


def test_a_run_resumes_only_with_the_same_questions(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    questions = [Sample(id=str(number), question=f"What is {number} + 1?", answer="2") for number in range(3)]
    folder.write_questions(questions[:2], questions[2:])
    folder.ensure_same_questions(questions[:2], questions[2:])
    answered_otherwise = [questions[0], questions[1].model_copy(update={"answer": "3"})]
    for task, validation in ((questions, questions[2:]), (answered_otherwise, questions[2:]), (questions[:2], [])):
        with pytest.raises(ConfigError, match="a run with other questions or another scoring"):
            folder.ensure_same_questions(task, validation)


def worker(name: str, *, model: str = "small", description: str = "", instructions: str = "") -> Worker:
    return Worker.of(name, ScriptedModel("x", name=model), description=description, instructions=instructions)


@pytest.mark.parametrize(
    ("workers", "change"),
    [
        ([worker("clerk"), worker("rates")], "their order was rates, clerk"),
        ([worker("rates"), worker("mechanic")], "'clerk' is missing, 'mechanic' is new"),
        ([worker("rates", model="large"), worker("clerk")], "'rates' has another model"),
        (
            [worker("rates"), worker("clerk", description="greets", instructions="Be brief.")],
            "'clerk' has another card and instructions",
        ),
    ],
)
def test_a_run_resumes_only_with_the_same_workers(tmp_path: Path, workers: list[Worker], change: str) -> None:
    folder = begun(tmp_path)
    folder.write_workers(WorkerPool([worker("rates"), worker("clerk")]), {})
    folder.ensure_same_workers(WorkerPool([worker("rates"), worker("clerk")]), {})
    with pytest.raises(ConfigError, match=rf"has a run with other workers: {change}\. A run resumes only"):
        folder.ensure_same_workers(WorkerPool(workers), {})


def test_a_run_resumes_only_with_the_same_options_of_its_workers(tmp_path: Path) -> None:
    def source(**options: object) -> PoolSource:
        entry = {"model": "openai:small", "options": {"headers": {"X-Key": "secret"}, **options}}
        return PoolSource.model_validate({"workers": {"rates": entry}})

    folder, pool = begun(tmp_path), WorkerPool([worker("rates")])
    options = source(base_url="http://127.0.0.1:1/v1").reply_options
    folder.write_workers(pool, options)
    folder.ensure_same_workers(pool, options)
    assert "secret" not in (tmp_path / "workers.json").read_text()
    with pytest.raises(ConfigError, match=r"has a run with other workers: 'rates' has another set of options\. A run"):
        folder.ensure_same_workers(pool, source(base_url="http://127.0.0.1:2/v1").reply_options)


@pytest.mark.parametrize("exists", [False, True])
def test_an_unwritable_run_directory_is_reported_at_the_start(tmp_path: Path, exists: bool) -> None:
    if exists:
        RunDir.open(tmp_path / "run", CONFIG)
        (tmp_path / "run" / "config.json.half").mkdir()  # a read-only folder would not keep out root
    else:
        (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"can't write '.*config.json'"):
        RunDir.open(tmp_path / "run", CONFIG)


def test_incomplete_checkpoints_are_skipped(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    assert folder.latest_checkpoint() is None
    for number, complete in ((2, True), (10, True), (12, False)):
        (tmp_path / f"checkpoint-{number}").mkdir()
        if complete:
            (tmp_path / f"checkpoint-{number}" / COMPLETE).touch()
    assert folder.latest_checkpoint() == tmp_path / "checkpoint-10"


def test_a_repeated_step_overwrites_its_plans(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    plan = LoggedPlan(step=7, question="q", text="t", workflow=None, score=None, reward=0.0, explanation="no plan")
    folder.write_plans(7, [plan, plan])
    folder.write_plans(7, [plan])
    assert read_lines(tmp_path / "plans" / "00007.jsonl", LoggedPlan) == [plan]


def test_the_record_can_be_read_once_written(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    assert folder.read_record() is None
    record = RunRecord(config=CONFIG.model_dump(mode="json"), versions={}, machine="a laptop", step=3)
    folder.write_record(record)
    assert folder.read_record() == record


def test_an_invalid_line_is_reported_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text('\n{"step": "one"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 2 of .*plans.jsonl' is wrong: step:"):
        read_lines(file, LoggedPlan)


@pytest.mark.parametrize("text", ["", '{"step": 3}', '{"step": 3, "of another": "release"}'])
@pytest.mark.parametrize("name", ["config.json", "record.json"])
def test_a_truncated_file_or_one_of_another_release_is_reported(tmp_path: Path, name: str, text: str) -> None:
    begun(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{name}' is wrong: .*\. It was cut short or is of another release"):
        RunDir.open(tmp_path, CONFIG).read_record()


def test_a_failed_write_leaves_the_file_unchanged(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    record = RunRecord(config={}, versions={}, machine="a laptop", step=3)
    folder.write_record(record)
    (tmp_path / "record.json.half").mkdir()  # nothing can be written there
    with pytest.raises(ConfigError, match=r"can't write '.*record.json': Is a directory"):
        folder.write_record(record.model_copy(update={"step": 4}))
    assert folder.read_record() == record


def test_texts_may_contain_any_character(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    texts = ["line\u2028separator", "next\u0085line", "\v\f\x1c\r\n"]
    plans = [
        LoggedPlan(step=7, question=text, text=text, workflow=None, score=None, reward=None, explanation="")
        for text in texts
    ]
    folder.write_plans(7, plans)
    assert read_lines(tmp_path / "plans" / "00007.jsonl", LoggedPlan) == plans
