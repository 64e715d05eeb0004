"""A second round, as far as it takes no model: what is told, what came of plans, what they are worth."""

from __future__ import annotations

import pytest

from core.runs import ACCEPT, down, evidence_of, plan, pool_of
from rl_conductor import Conductor, Limits, ScriptedModel, WorkerPool
from rl_conductor.grammar import constraint
from rl_conductor.plan import Form
from rl_conductor.planner import Planner
from rl_conductor.tasks.base import Sample
from rl_conductor.tasks.scorers import exact
from rl_conductor.train.config import PlanEntry, RewardEntry
from rl_conductor.train.diagnostics import diagnostics
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.outcomes import Drawn, Examiner, Outcome
from rl_conductor.train.rewards import over_rounds
from train_outcomes import FAILED, INVALID, RIGHT, WRONG, outcome

EXAMINER = Examiner(exact, retries=0)
SAMPLE = Sample(id="1", question="What is the capital of France?", answer="Paris")
TWO = plan((0, "look it up", []), (1, "answer", ["all"]))
LINES = '{"subtask": "look it up", "worker": 0, "access": []}\n{"subtask": "answer", "worker": 1, "access": [0]}'
KEPT = Outcome(text="an empty plan", accepts=True, score=1.0)


async def judged(pool: WorkerPool, entry: PlanEntry | None = None, text: str = TWO) -> tuple[Exercise, Outcome]:
    """A second round and what came of the first."""
    one = Exercise(SAMPLE, pool, entry or PlanEntry())
    found = await EXAMINER.outcome(one, text)
    assert found.round is not None
    return one.after(found.round), found


# ---------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize(
    ("form", "access", "text", "accept"),
    [("lists", "binary", TWO, ACCEPT), ("lines", "positional", LINES, 'Good.\n{"accept": true}')],
)
async def test_the_prompt_and_the_grammar_are_those_of_serving(form: Form, access: str, text: str, accept: str) -> None:
    pool = pool_of(ada=["Paris"] * 2, bob=["<think>hm</think>Rome"] * 2)
    entry = PlanEntry.model_validate({"form": form, "access": access, "examples": 2})
    again, _ = await judged(pool, entry, text)
    model = ScriptedModel([text, accept])
    planner = Planner(model=model, form=form, roster=entry.roster, examples=2)
    trace = await Conductor(planner, pool, access=entry.access).run(SAMPLE.question, limits=Limits(rounds=2))
    served = Exercise(SAMPLE, pool, entry, key=trace.fence_key).after(trace.rounds[0])
    assert model.requests[1].messages == served.messages
    assert model.requests[1].response_format == constraint(again.space, form)
    assert [one.text for one in again.messages[:-1]] == [one.text for one in served.messages[:-1]]


async def test_one_grammar_holds_for_every_second_round() -> None:
    pool = pool_of(ada=["Paris"] * 9, bob=["Rome"] * 9, cyd=["Oslo"] * 9)
    rounds = [await judged(pool, text=text) for text in (TWO, plan((2, "answer", [])))]
    assert len({constraint(again.space, "lists") for again, _ in rounds}) == 1


async def test_an_answer_is_told_in_the_same_words_each_time() -> None:
    pool = pool_of(ada=["Paris"] * 2, bob=["Rome"] * 2)
    one = Exercise(SAMPLE, pool, PlanEntry(), key="0" * 32)
    found = [await EXAMINER.outcome(one, TWO) for _ in range(2)]
    first, second = (one.after(each.round).messages for each in found if each.round)
    assert first == second


# ----------------------------------------------------------------------------- what came of plans


async def test_an_empty_plan_keeps_the_answer_and_its_score_and_asks_nobody() -> None:
    pool = pool_of(ada=["Paris"], bob=["Rome"])
    again, first = await judged(pool)
    found = await EXAMINER.outcome(again, ACCEPT, first)
    assert (found.valid, found.accepts, found.masked, found.score) == (True, True, False, 0.0)
    assert found.explanation == first.explanation
    assert found.usage.calls == 0


async def test_a_new_plan_is_run_alone_and_may_recall_the_round_before() -> None:
    last = ScriptedModel(["Rome", "Paris"])
    pool = pool_of(ada=["Paris"], bob=last)
    again, first = await judged(pool)
    found = await EXAMINER.outcome(again, plan((1, "check", ["all"])), first)
    assert (found.right, found.usage.calls, first.usage.calls) == (True, 1, 2)
    assert evidence_of(last.requests[1]) == [
        ("1 of round 1", "look it up", "Paris"),
        ("2 of round 1", "answer", "Rome"),
    ]


async def test_where_a_call_of_the_second_round_fails_nothing_is_known_though_an_answer_stands() -> None:
    again, first = await judged(pool_of(ada=["Paris"] * 2, bob=["Paris", down]))
    found = await EXAMINER.outcome(again, plan((1, "check", [])), first)
    assert first.right
    assert (found.masked, found.score, found.round) == (True, None, None)


async def test_plans_of_a_second_round_are_read_strictly() -> None:
    again, first = await judged(pool_of(ada=["Paris"], bob=["Rome"]))
    found = await EXAMINER.outcome(again, "It is Paris.", first)
    assert (found.valid, found.score) == (False, None)


async def test_there_is_nothing_to_judge_where_a_plan_was_none_or_a_call_failed() -> None:
    one = Exercise(SAMPLE, pool_of(ada=down, bob=["Rome"]), PlanEntry())
    assert (await EXAMINER.outcome(one, "Paris")).round is None
    assert (await EXAMINER.outcome(one, plan((0, "answer", [])))).round is None
    assert not (await EXAMINER.outcome(one, ACCEPT)).valid  # in a first round


async def test_what_is_kept_of_a_second_round() -> None:
    again, first = await judged(pool_of(ada=["Paris"], bob=["Rome", "Paris"]))
    found = await EXAMINER.outcome(again, plan((1, "check", [])), first)
    kept = Drawn.of(3, again, found, 1.0, before=first)
    assert (kept.round, kept.before, kept.score) == (2, 0.0, 1.0)
    assert Drawn.model_validate_json(kept.model_dump_json()) == kept


# ------------------------------------------------------------------------------ what they are worth


def test_the_second_round_counts_a_quarter_in_the_reward_of_the_first() -> None:
    first = [WRONG, WRONG, RIGHT, RIGHT, RIGHT]
    second = [RIGHT, WRONG, WRONG, KEPT, INVALID]
    mixed, later = over_rounds(first, second, RewardEntry(), discount=0.25)
    assert mixed == [0.625, 0.5, 0.875, 1.0, 0.75]
    assert later == [1.0, 0.5, 0.5, 1.0, 0.0]


def test_without_a_discount_each_round_is_worth_its_own() -> None:
    assert over_rounds([WRONG], [RIGHT], RewardEntry(), discount=0)[0] == [0.5]
    assert over_rounds([WRONG], [RIGHT], RewardEntry(), discount=1)[0] == [1.0]


def test_a_plan_without_a_second_round_is_never_rewarded_by_chance() -> None:
    mixed, later = over_rounds([INVALID, FAILED, RIGHT], [None, None, FAILED], RewardEntry(), discount=0.25)
    assert mixed == [0.0, None, None]
    assert later == [None, None, None]


def test_thrift_ranks_the_plans_of_a_round_among_each_other() -> None:
    first = [outcome(1.0, usd="0.01"), outcome(1.0, usd="0.02")]
    mixed, later = over_rounds(first, [outcome(1.0, usd="0.01"), KEPT], RewardEntry(thrift=0.4), discount=0.25)
    assert later == pytest.approx([1.0, 1.4])
    assert mixed == pytest.approx([0.75 * 1.4 + 0.25 * 1.0, 0.75 * 1.0 + 0.25 * 1.4])


# -------------------------------------------------------------------------------- what is told of it


def test_what_became_of_answers_is_told_apart() -> None:
    judged = [(RIGHT, KEPT), (RIGHT, RIGHT), (RIGHT, WRONG), (WRONG, RIGHT), (WRONG, WRONG)]
    told = diagnostics([[first for first, _ in judged]], [[]], [None], judged=judged)
    assert (told["kept"], told["repaired"], told["spoiled"]) == (1 / 5, 1 / 2, 1 / 3)


def test_second_rounds_that_say_nothing_are_left_out() -> None:
    judged = [(RIGHT, KEPT), (RIGHT, INVALID), (WRONG, FAILED), (INVALID, None)]
    told = diagnostics([[first for first, _ in judged]], [[]], [None], judged=judged)
    assert (told["second_valid"], told["kept"], told["spoiled"]) == (1 / 2, 1.0, 0.0)
    assert "repaired" not in told


def test_what_both_rounds_used_is_added_up_and_plans_are_described_by_the_first() -> None:
    first, second = outcome(0.0, usd="0.25", tokens=7), outcome(1.0, workers="ab", usd="0.5", tokens=5)
    told = diagnostics([[first]], [[]], [None], judged=[(first, second)])
    assert (told["usd"], told["tokens"], told["calls"]) == (0.75, 12, 2)
    assert (told["right"], told["steps"]) == (0, 1)
