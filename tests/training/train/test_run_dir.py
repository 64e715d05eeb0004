from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor._internal.jsonl import read_lines, read_value
from rl_conductor_training.train.config import CheckpointSettings, Reporter, TrainConfig
from rl_conductor_training.train.rollouts.scoring import LoggedPlan
from rl_conductor_training.train.run_dir import COMPLETE, RunDir, RunRecord

CONFIG = TrainConfig.model_validate({"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}})


def test_a_folder_belongs_to_one_configuration(tmp_path: Path) -> None:
    assert RunDir.open(tmp_path / "run", CONFIG) == RunDir.open(tmp_path / "run", CONFIG)
    with pytest.raises(ConfigError, match="other settings of seed, grpo"):
        RunDir.open(
            tmp_path / "run", CONFIG.model_copy(update={"seed": 1, "grpo": CONFIG.grpo.model_copy(update={"steps": 9})})
        )


def test_what_is_kept_and_reported_may_change_as_a_run_goes_on(tmp_path: Path) -> None:
    changed = CONFIG.model_copy(update={"keep": CheckpointSettings(every=3, report_to=(Reporter.WANDB,))})
    RunDir.open(tmp_path, CONFIG)
    RunDir.open(tmp_path, changed)
    assert read_value(tmp_path / "config.json", TrainConfig) == changed


@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_that_nothing_can_be_written_to_is_told_before_anything_is_done(tmp_path: Path, begun: bool) -> None:
    if begun:
        RunDir.open(tmp_path / "run", CONFIG)
        (tmp_path / "run" / "config.json.half").mkdir()  # a read-only folder would not keep out root
    else:
        (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"can't write '.*config.json'"):
        RunDir.open(tmp_path / "run", CONFIG)


def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    assert folder.latest_checkpoint() is None
    for number, whole in ((2, True), (10, True), (12, False)):
        (tmp_path / f"checkpoint-{number}").mkdir()
        if whole:
            (tmp_path / f"checkpoint-{number}" / COMPLETE).touch()
    assert folder.latest_checkpoint() == tmp_path / "checkpoint-10"


def test_plans_of_a_step_that_is_done_again_are_written_again(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    plan = LoggedPlan(step=7, question="q", text="t", workflow=None, score=None, reward=0.0, explanation="no plan")
    folder.write_plans(7, [plan, plan])
    folder.write_plans(7, [plan])
    assert read_lines(tmp_path / "plans" / "00007.jsonl", LoggedPlan) == [plan]


def test_the_record_is_there_once_it_is_kept(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    assert folder.read_record() is None
    record = RunRecord(config=CONFIG.model_dump(mode="json"), versions={}, machine="a laptop", step=3)
    folder.write_record(record)
    assert folder.read_record() == record


def test_a_wrong_line_is_told_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "plans.jsonl"
    file.write_text('\n{"step": "one"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 2 of .*plans.jsonl' is wrong: step:"):
        read_lines(file, LoggedPlan)


@pytest.mark.parametrize("text", ["", '{"step": 3}', '{"step": 3, "of another": "release"}'])
@pytest.mark.parametrize("name", ["config.json", "record.json"])
def test_what_was_cut_short_or_is_of_another_release_is_told_in_words(tmp_path: Path, name: str, text: str) -> None:
    RunDir.open(tmp_path, CONFIG)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{name}' is wrong: .*\. It was cut short or is of another release"):
        RunDir.open(tmp_path, CONFIG).read_record()


def test_a_file_that_can_not_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    record = RunRecord(config={}, versions={}, machine="a laptop", step=3)
    folder.write_record(record)
    (tmp_path / "record.json.half").mkdir()  # nothing can be written there
    with pytest.raises(ConfigError, match=r"can't write '.*record.json': Is a directory"):
        folder.write_record(record.model_copy(update={"step": 4}))
    assert folder.read_record() == record


def test_texts_may_hold_every_character(tmp_path: Path) -> None:
    folder = RunDir.open(tmp_path, CONFIG)
    texts = ["line\u2028separator", "next\u0085line", "\v\f\x1c\r\n"]
    plans = [
        LoggedPlan(step=7, question=text, text=text, workflow=None, score=None, reward=None, explanation="")
        for text in texts
    ]
    folder.write_plans(7, plans)
    assert read_lines(tmp_path / "plans" / "00007.jsonl", LoggedPlan) == plans
