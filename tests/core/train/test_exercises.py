from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from rl_conductor import ConfigError, ScriptedModel, Worker, WorkerPool
from rl_conductor.calling import Caller
from rl_conductor.grammar import constraint
from rl_conductor.ledger import Ledger
from rl_conductor.limits import Limits
from rl_conductor.planner import Drafting, Planner
from rl_conductor.policy import Policy
from rl_conductor.tasks.base import Sample, Task
from rl_conductor.tasks.scorers import exact
from rl_conductor.train.config import Curriculum, PlanEntry
from rl_conductor.train.exercises import Exercise, exercises
from rl_conductor.types import Card, Message

NAMES = ("ada", "bob", "cyd", "dan")
POOL = WorkerPool(
    Worker.of(name, ScriptedModel("x"), card=Card(name=name, strengths=f"good at {name}'s things")) for name in NAMES
)
TASK = Task("t", tuple(Sample(id=str(number), question=f"question {number}?") for number in range(5)), exact)


def made(size: int, *, seed: int = 0, **curriculum: object) -> list[Exercise]:
    chosen = Curriculum.model_validate(curriculum)
    return exercises(TASK, POOL, plan=PlanEntry(), curriculum=chosen, seed=seed, size=size)


def told(exercises: list[Exercise]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.sample.id, tuple(one.pool)) for one in exercises]


def test_exercises_follow_from_the_seed_and_a_longer_list_begins_with_the_shorter() -> None:
    assert told(made(12, workers=2)) == told(made(20, workers=2))[:12]
    assert told(made(12, workers=2)) != told(made(12, workers=2, seed=1))
    assert [one.number for one in made(3)] == [0, 1, 2]


def test_the_marks_of_answers_that_are_shown_follow_from_the_seed_and_differ_between_exercises() -> None:
    keys = [one.key for one in made(12)]
    assert keys == [one.key for one in made(12)]
    assert len({*keys, *(one.key for one in made(12, seed=1))}) == 24


def test_every_question_comes_once_a_round_and_rounds_differ() -> None:
    ids = [one.sample.id for one in made(15)]
    rounds = [ids[:5], ids[5:10], ids[10:]]
    assert all(sorted(one) == list("01234") for one in rounds)
    assert rounds[0] != rounds[1]


def test_contrast_sets_stay_together_over_the_same_workers_in_every_round() -> None:
    contrasts = ("a", "", "b", "a", "", "b")
    asked = tuple(Sample(id=f"{place}{one}", question="?", contrast=one) for place, one in enumerate(contrasts))
    drawn = exercises(
        Task("t", asked, exact), POOL, plan=PlanEntry(), curriculum=Curriculum(workers=3), seed=3, size=60
    )
    orders = {tuple(one.sample.id for one in drawn[start : start + 6]) for start in range(0, 60, 6)}
    assert len(orders) > 5
    for ids in orders:
        assert sorted(ids) == ["0a", "1", "2b", "3a", "4", "5b"]
        assert [ids.index("3a") - ids.index("0a"), ids.index("5b") - ids.index("2b")] == [1, 1]
    pools = [(tuple(one.pool), one.sample.contrast) for one in drawn]
    assert all(pool == after for (pool, kin), (after, next_kin) in pairwise(pools[:6]) if kin and kin == next_kin)
    assert len({pool for pool, _ in pools}) > 10
    assert [one.number for one in drawn] == list(range(60))


def test_pools_are_drawn_for_each_question_and_all_are_drawn_alike() -> None:
    counts = Counter(name for one in made(400, workers=2) for name in one.pool)
    assert set(counts) == set(NAMES)
    assert all(abs(count - 200) < 50 for count in counts.values())
    first = Counter(next(iter(one.pool)) for one in made(400, workers=2))
    assert all(abs(count - 100) < 40 for count in first.values())


def test_a_card_has_one_of_its_wordings_each_time_and_those_without_any_keep_theirs() -> None:
    worded = made(60, cards={"ada": ["sings", "dances"]})
    counts = Counter(one.pool["ada"].card.strengths for one in worded)
    assert set(counts) == {"good at ada's things", "sings", "dances"}
    assert all("sings" in str(one.messages[0].text) for one in worded if one.pool["ada"].card.strengths == "sings")
    assert {one.pool["bob"].card.strengths for one in worded} == {"good at bob's things"}


def test_numbers_stay_where_shuffling_is_off() -> None:
    assert {tuple(one.pool) for one in made(9, shuffle=False)} == {NAMES}
    for one in made(20, workers=3, shuffle=False):
        assert list(one.pool) == [name for name in NAMES if name in one.pool]


def test_only_the_workers_drawn_are_told_of_by_their_cards_under_their_numbers() -> None:
    for one in made(6, workers=2):
        prompt = one.messages[0].text
        for number, name in enumerate(one.pool):
            assert f"Model {number}: good at {name}'s things" in prompt
        assert not any(f"good at {name}" in prompt for name in set(NAMES) - set(one.pool))


def test_one_grammar_holds_for_every_pool_of_a_size() -> None:
    assert len({constraint(one.space, one.plan.form) for one in made(30, workers=3)}) == 1


def test_more_workers_than_there_are_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"curriculum.workers is 5, but the pool has 4"):
        made(1, workers=5)


async def test_the_prompt_is_the_one_that_serving_sends() -> None:
    model = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]')
    one = Exercise(TASK.samples[0], POOL, PlanEntry(examples=2))
    draft = Drafting(
        conversation=(Message.user(one.sample.question),),
        space=Policy().space(POOL.cards),
        cards=POOL.cards,
        caller=Caller(Ledger(Limits()), retries=0),
        fence_key="0" * 32,
        emit=lambda _: None,
    )
    await Planner(model=model, roster=one.plan.roster, examples=2).plan(draft)
    assert model.requests[0].messages == one.messages
    assert one.space == draft.space
