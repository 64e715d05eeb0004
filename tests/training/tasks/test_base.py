from __future__ import annotations

import pytest

from rl_conductor import ConfigError
from rl_conductor.scoring import SHARES, Sample, Score, Task, compared, mean, split_of, wrong
from rl_conductor_training.tasks import TASKS, load_task
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
