"""The workers of a large pool whose cards the planner reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core.runs import pool_of, workflow
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.card_ranking import MAX_CARDS, MAX_FINAL_WORKERS, offered_space
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Message
from rl_conductor.workflow.plan_space import AttachmentRule, PlanSpace
from rl_conductor.workflow.policy import Policy

SKILLS = ("translates Finnish", "writes SQL queries", "knows tax law", "paints pictures", "reviews contracts")
CARDS = [
    Card(name=f"w{i}", description=f"Worker {i} {SKILLS[i % 5]} in region {i}.", accuracy={"all": i / 1000})
    for i in range(200)
]
SPACE = Policy().space(CARDS, max_steps=5)


def offered(question: str, space: PlanSpace = SPACE, cards: Sequence[Card] = CARDS) -> list[int]:
    names = offered_space(space, cards, (Message.user(question),)).allowed
    return sorted(int(name[1:]) for name in names)


def test_a_pool_that_fits_is_offered_whole() -> None:
    cards = CARDS[:MAX_CARDS]
    space = Policy().space(cards, max_steps=5)

    assert offered_space(space, cards, (Message.user("Anything."),)) is space


@pytest.mark.parametrize(
    ("question", "kind"), [("Is this tax deductible?", 2), ("Review my contract!", 4), ("A query in SQL, please", 1)]
)
def test_of_a_large_pool_mostly_those_are_offered_whose_cards_have_the_words_of_the_question(
    question: str, kind: int
) -> None:
    numbers = offered(question)

    assert len(numbers) == MAX_CARDS
    assert sum(number % 5 == kind for number in numbers) >= MAX_CARDS / 2


def test_a_worker_that_the_question_describes_best_is_offered() -> None:
    assert 117 in offered("Translate this to Finnish... no: the tax law of region, worker w117")


def test_without_a_word_in_common_measured_accuracy_decides() -> None:
    assert {199, 198, 197, 196, 195} <= set(offered("?"))


def test_rules_about_the_last_step_and_attachments_can_be_kept() -> None:
    space = SPACE.model_copy(
        update={
            "last": frozenset({"w7", "w8", "w9", "w10"}),
            "attachments": (AttachmentRule(kind="images", readers=frozenset({"w3"})),),
        }
    )
    numbers = set(offered("Is this tax deductible?", space))

    assert 3 in numbers
    assert len(numbers & {7, 8, 9, 10}) >= MAX_FINAL_WORKERS


def test_a_forbidden_worker_is_never_offered() -> None:
    space = SPACE.model_copy(update={"allowed": SPACE.allowed - {"w2", "w7"}})

    assert not {2, 7} & set(offered("Is this tax deductible?", space))


async def test_the_planner_is_shown_the_offered_workers_only_and_can_plan_with_no_other() -> None:
    cards = CARDS[:40]
    pool = [Worker.of(card.name, ScriptedModel(lambda _: "An answer."), card=card) for card in cards]
    space = Policy().space(cards, max_steps=5)
    question = "Is this tax deductible?"
    shown = offered(question, space, cards)
    hidden = next(number for number in range(40) if number not in shown)
    planner = ScriptedModel([f'[{hidden}, "Answer.", []]', f'[{shown[0]}, "Answer.", []]'])

    trace = await Conductor(Planner(model=planner), WorkerPool(pool), policy=Policy()).run(question)

    assert trace.rounds[0].workflow == workflow((f"w{shown[0]}", "Answer.", ()))
    assert f"'w{hidden}' is not allowed" in trace.rounds[0].plan.errors[0]
    prompt = planner.requests[0].messages[-1].text
    listed = [int(line.split()[0]) for line in prompt.partition("The models")[2].splitlines()[1:]]
    assert listed == shown


async def test_a_trained_planner_is_shown_every_worker() -> None:
    planner = ScriptedModel(lambda _: '[0, "Answer.", []]')
    pool = pool_of(**{f"w{i}": ScriptedModel(lambda _: "An answer.") for i in range(30)})

    await Conductor(Planner(model=planner, roster="anonymous"), pool).run("Is this tax deductible?")

    assert planner.requests[0].messages[0].text.count("Model ") == 30
