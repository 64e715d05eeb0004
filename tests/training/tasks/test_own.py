"""Tasks that users write in Python, by the names of their modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor_training.tasks import Task, TaskEntry, load_task

MODULE = """
from rl_conductor.scoring import Sample, Score, Task

QUESTIONS = {"Capital of Peru?": "Lima", "Capital of Cuba?": "Havana"}

def contains(sample, text):
    return Score(value=float(sample.answer in text))

def capitals(first=2):
    names = list(QUESTIONS.items())[:first]
    return Task("capitals", tuple(Sample(id=q, question=q, answer=a) for q, a in names), contains)

whole = capitals()
number = 3

def nothing():
    return None

async def later():
    return whole
"""
Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the user's module anew, in the current folder, as another process would find it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(text: str) -> None:
        sys.modules.pop("tasks_of_ann", None)
        (tmp_path / "tasks_of_ann.py").write_text(text)

    write_module(MODULE)
    return write_module


async def rights(task: Task, text: str) -> list[bool]:
    return [(await task.score(sample, text)).right for sample in task.samples]


async def test_a_function_or_a_task_is_loaded_by_its_name(write: Write) -> None:
    assert await rights(load_task("tasks_of_ann:whole"), "It is Lima.") == [True, False]
    assert await rights(load_task("tasks_of_ann:capitals", first=1), "It is Lima.") == [True]
    entry = TaskEntry(name="tasks_of_ann:capitals", options={"first": 2}, limit=1).resolve_paths(Path("elsewhere"))
    assert await rights(entry.build(), "It is Havana.") == [False]


def test_a_changed_module_changes_the_samples_so_that_stored_scores_are_not_reused(write: Write) -> None:
    before = load_task("tasks_of_ann:whole").samples
    assert load_task("tasks_of_ann:whole").samples == before
    write(MODULE.replace("in text", "in text.title()"))
    after = load_task("tasks_of_ann:whole").samples
    assert [sample.question for sample in after] == [sample.question for sample in before]
    assert after != before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tasks_of_ann:nothing", "returned NoneType instead of a Task"),
        ("tasks_of_ann:later", "returned coroutine instead of a Task"),
        ("tasks_of_ann:number", "is neither a Task nor a function"),
        ("tasks_of_ann:missing", "module 'tasks_of_ann' has no 'missing'"),
        ("tasks_of_nobody:all", "No module named 'tasks_of_nobody'"),
        ("nonsense", "no task 'nonsense': write one of aime25.* or 'module:function' for your own"),
    ],
)
def test_the_error_says_what_is_wrong(write: Write, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_task(name)


def test_the_name_of_a_file_says_whether_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no task 'questions\.jsonl': there is no such file"):
        load_task("questions.jsonl")
    (tmp_path / "questions.jsonl").touch()
    with pytest.raises(ConfigError, match=r"no task 'questions\.jsonl': write 'jsonl:questions\.jsonl' for the file"):
        load_task("questions.jsonl")


def test_unknown_options_are_reported_with_those_of_the_function(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'most'; it takes \(first=2\)"):
        load_task("tasks_of_ann:capitals", most=1)
