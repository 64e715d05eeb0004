from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from rl_conductor import Conductor, ConfigError, ScriptedModel, Worker, WorkerPool
from rl_conductor.calls.context import RunContext
from rl_conductor.models.scripted import ALL
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.planning.plan_stream import PlanRequest, read_plan
from rl_conductor.planning.planner import Planner
from rl_conductor.scoring import Sample, Task
from rl_conductor.types import Card, Message, Roster
from rl_conductor.workflow.policy import Policy
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.config import CurriculumSettings, PlanSettings
from rl_conductor_training.train.prompt_instances import PromptInstance, build_instances

NAMES = ("ada", "bob", "cyd", "dan")
POOL = WorkerPool(
    Worker.of(name, ScriptedModel("x"), card=Card(name=name, strengths=f"good at {name}'s things")) for name in NAMES
)
TASK = Task("t", tuple(Sample(id=str(number), question=f"question {number}?") for number in range(5)), exact)


def instances_of(size: int, *, seed: int = 0, **curriculum: object) -> list[PromptInstance]:
    settings = CurriculumSettings.model_validate(curriculum)
    return build_instances(TASK, POOL, plan=PlanSettings(), curriculum=settings, seed=seed, size=size)


def ids_and_pools(instances: list[PromptInstance]) -> list[tuple[str, tuple[str, ...]]]:
    return [(instance.sample.id, tuple(instance.pool)) for instance in instances]


def test_the_seed_determines_the_instances_and_a_longer_list_extends_a_shorter_one() -> None:
    assert ids_and_pools(instances_of(12, workers=2)) == ids_and_pools(instances_of(20, workers=2))[:12]
    assert ids_and_pools(instances_of(12, workers=2)) != ids_and_pools(instances_of(12, workers=2, seed=1))
    assert [instance.index for instance in instances_of(3)] == [0, 1, 2]


def test_the_seed_determines_the_delimiter_keys_which_differ_between_instances() -> None:
    keys = [instance.delimiter_key for instance in instances_of(12)]
    assert keys == [instance.delimiter_key for instance in instances_of(12)]
    assert len({*keys, *(instance.delimiter_key for instance in instances_of(12, seed=1))}) == 24


def test_every_epoch_has_each_question_once_in_another_order() -> None:
    ids = [instance.sample.id for instance in instances_of(15)]
    rounds = [ids[:5], ids[5:10], ids[10:]]
    assert all(sorted(epoch) == list("01234") for epoch in rounds)
    assert rounds[0] != rounds[1]


def test_contrast_sets_stay_together_with_the_same_workers_in_every_epoch() -> None:
    contrasts = ("a", "", "b", "a", "", "b")
    samples = tuple(Sample(id=f"{index}{name}", question="?", contrast=name) for index, name in enumerate(contrasts))
    instances = build_instances(
        Task("t", samples, exact), POOL, plan=PlanSettings(), curriculum=CurriculumSettings(workers=3), seed=3, size=60
    )
    orders = {tuple(instance.sample.id for instance in instances[start : start + 6]) for start in range(0, 60, 6)}
    assert len(orders) > 5
    for ids in orders:
        assert sorted(ids) == ["0a", "1", "2b", "3a", "4", "5b"]
        assert [ids.index("3a") - ids.index("0a"), ids.index("5b") - ids.index("2b")] == [1, 1]
    pools = [(tuple(instance.pool), instance.sample.contrast) for instance in instances]
    assert all(
        pool == after
        for (pool, contrast), (after, next_contrast) in pairwise(pools[:6])
        if contrast and contrast == next_contrast
    )
    assert len({pool for pool, _ in pools}) > 10
    assert [instance.index for instance in instances] == list(range(60))


def test_each_question_gets_a_uniformly_sampled_pool() -> None:
    counts = Counter(name for instance in instances_of(400, workers=2) for name in instance.pool)
    assert set(counts) == set(NAMES)
    assert all(abs(count - 200) < 50 for count in counts.values())
    first = Counter(next(iter(instance.pool)) for instance in instances_of(400, workers=2))
    assert all(abs(count - 100) < 40 for count in first.values())


def test_cards_sample_one_of_their_wordings() -> None:
    worded = instances_of(60, cards={"ada": ["sings", "dances"]})
    counts = Counter(instance.pool["ada"].card.strengths for instance in worded)
    assert set(counts) == {"good at ada's things", "sings", "dances"}
    assert all(
        "sings" in str(instance.messages[0].text)
        for instance in worded
        if instance.pool["ada"].card.strengths == "sings"
    )
    assert {instance.pool["bob"].card.strengths for instance in worded} == {"good at bob's things"}


def test_without_shuffling_workers_keep_their_order() -> None:
    assert {tuple(instance.pool) for instance in instances_of(9, shuffle=False)} == {NAMES}
    for instance in instances_of(20, workers=3, shuffle=False):
        assert list(instance.pool) == [name for name in NAMES if name in instance.pool]


def test_the_prompt_lists_only_the_sampled_workers_by_number() -> None:
    for instance in instances_of(6, workers=2):
        prompt = instance.messages[0].text
        for number, name in enumerate(instance.pool):
            assert f"Model {number}: good at {name}'s things" in prompt
        assert not any(f"good at {name}" in prompt for name in set(NAMES) - set(instance.pool))


def test_pools_of_the_same_size_share_a_grammar() -> None:
    assert len({constraint(instance.space, instance.plan.form) for instance in instances_of(30, workers=3)}) == 1


def test_more_workers_than_the_pool_has_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"curriculum\.workers = 5 is more than the 4 workers"):
        instances_of(1, workers=5)


async def test_the_prompt_equals_the_one_in_serving() -> None:
    model = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]')
    instance = PromptInstance(TASK.samples[0], POOL, PlanSettings(examples=2))
    draft = PlanRequest(
        conversation=(Message.user(instance.sample.question),),
        space=Policy().space(POOL.cards),
        cards=POOL.cards,
        run=RunContext(retries=0, delimiter_key="0" * 32),
    )
    await read_plan(Planner(model=model, roster=instance.plan.roster, examples=2).stream(draft))
    assert model.requests[0].messages == instance.messages
    assert instance.space == draft.space


@pytest.mark.parametrize("roster", ["cards", "anonymous"])
@pytest.mark.parametrize("question", ["Why?", "Why? " * 4_000])
async def test_the_prompt_equals_the_one_of_a_model_in_this_process(question: str, roster: Roster) -> None:
    capabilities = ALL.model_copy(update={"runs_in": "process", "context": 4_096})
    model = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]', capabilities=capabilities)
    settings = PlanSettings(roster=roster, examples=0, context=4_096)
    instance = PromptInstance(Sample(id="", question=question), POOL, settings)
    await Conductor(Planner(model=model, roster=roster, examples=0), POOL).plan(question)
    assert model.requests[0].messages == instance.messages
