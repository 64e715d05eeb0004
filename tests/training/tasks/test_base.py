from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rl_conductor import ConfigError, ModelError, ScriptedModel
from rl_conductor.scoring import SHARES, Sample, Score, Task, compared, mean, split_of, wrong
from rl_conductor_training.tasks import TASKS, load_task
from rl_conductor_training.tasks.scorers.judge import Judge
from rl_conductor_training.tasks.scorers.text import exact

SAMPLES = tuple(Sample(id=str(number), question=f"q{number}", answer="a") for number in range(20))


def test_the_order_depends_on_the_seed_only() -> None:
    task = Task("t", SAMPLES, exact)
    assert task.shuffled(1).samples == task.shuffled(1).samples
    assert task.shuffled(1).samples != task.shuffled(2).samples
    assert {sample.id for sample in task.shuffled(1).samples} == {sample.id for sample in SAMPLES}
    assert task.first(3).samples == SAMPLES[:3]
    assert task.where(lambda sample: sample.id == "7").samples == (SAMPLES[7],)


def test_a_task_without_samples_is_rejected() -> None:
    with pytest.raises(ConfigError, match="'t' has no samples"):
        Task("t", (), exact)


def test_duplicate_sample_ids_are_rejected() -> None:
    with pytest.raises(ConfigError, match="'t' has several samples with the id '3': give each its own"):
        Task("t", (*SAMPLES, SAMPLES[3]), exact)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (1.0, "it returned float instead of a Score; write Score(value=...), from 0 to 1"),
        (7.5, "ValidationError: value: write a number less than or equal to 1 (test_base.py, line "),
        (None, "KeyError: 'Rome' (test_base.py, line "),
    ],
)
async def test_a_scorer_that_fails_is_named_with_its_question(returned: float | None, problem: str) -> None:
    def score(_sample: Sample, text: str) -> Any:
        if returned is None:
            return {"Paris": 1.0}[text]
        return returned if returned <= 1 else Score(value=returned)

    task = Task("rates", (Sample(id="a", question="Rate of a tandem?"),), score)
    message = f"the scorer of 'rates' failed on question 'a' ('Rate of a tandem?'): {problem}"
    with pytest.raises(ConfigError, match=re.escape(message)) as failed:
        await task.score(task.samples[0], "Rome")
    assert (failed.value.__cause__ is None) == (returned == 1.0)


async def test_the_error_of_a_scorer_names_the_last_line_in_its_own_file() -> None:
    def score(_sample: Sample, text: str) -> Score:
        return Score(value=json.loads(text)["value"])

    line = score.__code__.co_firstlineno + 1
    task = Task("t", SAMPLES, score)
    with pytest.raises(ConfigError, match=rf"JSONDecodeError: .* \(test_base\.py, line {line}\)$"):
        await task.score(SAMPLES[0], "no JSON")


async def test_a_scorer_with_other_parameters_is_an_error_of_no_line() -> None:
    def score(_sample: Sample) -> Score:
        raise AssertionError

    scorer: Any = score
    with pytest.raises(ConfigError, match=r"TypeError: .* takes 1 positional argument but 2 were given$"):
        await Task("t", SAMPLES, scorer).score(SAMPLES[0], "Rome")


async def test_the_errors_of_a_judge_stay_as_they_are() -> None:
    down = ModelError("the vendor is down", model="scripted:judge")
    with pytest.raises(ModelError, match="the vendor is down"):
        await Task("t", SAMPLES, Judge(ScriptedModel([down, down]))).score(SAMPLES[0], "Rome")


def test_splits_have_their_shares_and_are_stable() -> None:
    splits = [split_of(f"sample {number}") for number in range(5_000)]
    for split, share in SHARES.items():
        assert abs(splits.count(split) / 50 - share) < 3
    assert split_of("sample 7") == splits[7]


def test_a_score_explains_the_extracted_and_the_right_answer() -> None:
    assert compared(right=True, answer="4", expected="4") == Score(value=1, answer="4", explanation="'4' is right")
    assert compared(right=False, answer=None, expected="4").explanation == "no answer was found, but '4' is right"
    assert not wrong("5", "no").right


def test_a_mean_has_a_standard_error_and_needs_a_score() -> None:
    scores = [Score(value=value, answer="", explanation="") for value in (0, 0, 1, 1)]
    average, error = mean(scores)
    assert (average, round(error, 4)) == (0.5, 0.2887)
    assert mean(scores[:1]) == (0.0, 0.0)
    with pytest.raises(ConfigError):
        mean([])


def test_a_task_is_loaded_by_name_and_an_unknown_name_lists_the_tasks() -> None:
    task = load_task("composite:heldout", size=12, shuffle=3, limit=5)
    assert (task.name, len(task.samples)) == ("composite:heldout", 5)
    with pytest.raises(ConfigError, match=r"'quiz'.*aime25.*rlpr"):
        load_task("quiz")
    with pytest.raises(ConfigError, match="'composite': got an unexpected keyword argument 'sise'; it takes"):
        load_task("composite", sise=3)
    with pytest.raises(ConfigError, match="no split 'test': write one of train, validation, heldout"):
        load_task("composite:test")
    assert sorted(TASKS) == list(TASKS)
