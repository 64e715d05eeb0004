from __future__ import annotations

import pytest

from rl_conductor import ConfigError
from rl_conductor.scoring import SHARES, Sample, Score, Task, compared, mean, split_of, wrong
from rl_conductor_training.tasks import TASKS, load_task
from rl_conductor_training.tasks.scorers.text import exact

SAMPLES = tuple(Sample(id=str(number), question=f"q{number}", answer="a") for number in range(20))


def test_the_order_follows_from_the_seed_alone() -> None:
    made = Task("t", SAMPLES, exact)
    assert made.shuffled(1).samples == made.shuffled(1).samples
    assert made.shuffled(1).samples != made.shuffled(2).samples
    assert {one.id for one in made.shuffled(1).samples} == {one.id for one in SAMPLES}
    assert made.first(3).samples == SAMPLES[:3]
    assert made.where(lambda sample: sample.id == "7").samples == (SAMPLES[7],)


def test_a_task_without_samples_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="'t' has no samples"):
        Task("t", (), exact)


def test_two_samples_of_one_id_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="'t' has several samples with the id '3': give each its own"):
        Task("t", (*SAMPLES, SAMPLES[3]), exact)


def test_splits_have_their_shares_and_nothing_moves_when_samples_are_added() -> None:
    splits = [split_of(f"sample {number}") for number in range(5_000)]
    for split, share in SHARES.items():
        assert abs(splits.count(split) / 50 - share) < 3
    assert split_of("sample 7") == splits[7]


def test_a_score_says_what_was_found_and_what_is_right() -> None:
    assert compared(right=True, answer="4", expected="4") == Score(value=1, answer="4", explanation="'4' is right")
    assert compared(right=False, answer=None, expected="4").explanation == "no answer was found, but '4' is right"
    assert not wrong("5", "no").right


def test_a_mean_comes_with_its_standard_error_and_of_nothing_there_is_none() -> None:
    scores = [Score(value=value, answer="", explanation="") for value in (0, 0, 1, 1)]
    average, error = mean(scores)
    assert (average, round(error, 4)) == (0.5, 0.2887)
    assert mean(scores[:1]) == (0.0, 0.0)
    with pytest.raises(ConfigError):
        mean([])


def test_a_name_loads_a_task_and_a_wrong_one_says_what_there_is() -> None:
    made = load_task("composite:heldout", size=12, shuffle=3, limit=5)
    assert (made.name, len(made.samples)) == ("composite:heldout", 5)
    with pytest.raises(ConfigError, match=r"'quiz'.*aime25.*rlpr"):
        load_task("quiz")
    with pytest.raises(ConfigError, match="'composite': got an unexpected keyword argument 'sise'; it takes"):
        load_task("composite", sise=3)
    with pytest.raises(ConfigError, match="no split 'test': write one of train, validation, heldout"):
        load_task("composite:test")
    assert sorted(TASKS) == list(TASKS)
