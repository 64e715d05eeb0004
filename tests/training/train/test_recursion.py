"""Second rounds without a model: prompts, scored plans, rewards and metrics."""

from __future__ import annotations

import pytest

from core.runs import ACCEPT, down, evidence_of, plan, pool_of, rows
from rl_conductor import Conductor, Limits, ScriptedModel, WorkerPool
from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.planning.planner import Planner
from rl_conductor.scoring import Sample
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.config import PlanSettings, RewardSettings
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.compute import two_round_rewards
from rl_conductor_training.train.rewards.metrics import step_metrics
from rl_conductor_training.train.rollouts.scoring import LoggedPlan, RolloutScorer, ScoredPlan
from train_scored_plans import FAILED, INVALID, RIGHT, WRONG, scored_plan

SCORER = RolloutScorer(exact, retries=0)
SAMPLE = Sample(id="1", question="What is the capital of France?", answer="Paris")
TWO = plan((0, "look it up", []), (1, "answer", ["all"]))
ROWS = "".join(rows((0, "look it up", []), (1, "answer", [0])))
KEPT = ScoredPlan(text="an empty plan", accepts=True, score=1.0)


async def judged(
    pool: WorkerPool, entry: PlanSettings | None = None, text: str = TWO
) -> tuple[PromptInstance, ScoredPlan]:
    """A second-round instance and the scored plan of the first round."""
    instance = PromptInstance(SAMPLE, pool, entry or PlanSettings())
    scored = await SCORER.score_plan(instance, text)
    assert scored.round is not None
    return instance.next_round(scored.round), scored


# ------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("form", "access", "text", "accept"),
    [("lists", "binary", TWO, ACCEPT), ("rows", "positional", ROWS, "Good.\n[]")],
)
async def test_the_prompt_and_the_grammar_are_those_of_serving(form: Form, access: str, text: str, accept: str) -> None:
    pool = pool_of(ada=["Paris"] * 2, bob=["<think>hm</think>Rome"] * 2)
    entry = PlanSettings.model_validate({"form": form, "access": access, "examples": 2})
    again, _ = await judged(pool, entry, text)
    model = ScriptedModel([text, accept])
    planner = Planner(model=model, form=form, roster=entry.roster, examples=2)
    trace = await Conductor(planner, pool, access=entry.access).run(SAMPLE.question, limits=Limits(rounds=2))
    served = PromptInstance(SAMPLE, pool, entry, delimiter_key=trace.delimiter_key).next_round(trace.rounds[0])
    assert model.requests[1].messages == served.messages
    assert model.requests[1].response_format == constraint(again.space, form)
    assert [instance.text for instance in again.messages[:-1]] == [instance.text for instance in served.messages[:-1]]


async def test_second_rounds_share_a_grammar() -> None:
    pool = pool_of(ada=["Paris"] * 9, bob=["Rome"] * 9, cyd=["Oslo"] * 9)
    rounds = [await judged(pool, text=text) for text in (TWO, plan((2, "answer", [])))]
    assert len({constraint(again.space, "lists") for again, _ in rounds}) == 1


async def test_the_prompt_of_a_second_round_is_reproducible() -> None:
    pool = pool_of(ada=["Paris"] * 2, bob=["Rome"] * 2)
    instance = PromptInstance(SAMPLE, pool, PlanSettings(), delimiter_key="0" * 32)
    scored = [await SCORER.score_plan(instance, TWO) for _ in range(2)]
    first, second = (instance.next_round(each.round).messages for each in scored if each.round)
    assert first == second


# -------------------------------------------------------------------------------- scored plans


async def test_an_empty_plan_keeps_the_answer_and_its_score_without_calls() -> None:
    pool = pool_of(ada=["Paris"], bob=["Rome"])
    again, first = await judged(pool)
    scored = await SCORER.score_plan(again, ACCEPT, first)
    assert (scored.valid, scored.accepts, scored.masked, scored.score) == (True, True, False, 0.0)
    assert scored.explanation == first.explanation
    assert scored.usage.calls == 0


async def test_a_new_plan_runs_alone_and_may_recall_the_previous_round() -> None:
    last = ScriptedModel(["Rome", "Paris"])
    pool = pool_of(ada=["Paris"], bob=last)
    again, first = await judged(pool)
    scored = await SCORER.score_plan(again, plan((1, "check", ["all"])), first)
    assert (scored.right, scored.usage.calls, first.usage.calls) == (True, 1, 2)
    assert evidence_of(last.requests[1]) == [
        ("1 of round 1", "look it up", "Paris"),
        ("2 of round 1", "answer", "Rome"),
    ]


async def test_a_failed_call_in_the_second_round_masks_the_plan() -> None:
    again, first = await judged(pool_of(ada=["Paris"] * 2, bob=["Paris", down]))
    scored = await SCORER.score_plan(again, plan((1, "check", [])), first)
    assert first.right
    assert (scored.masked, scored.score, scored.round) == (True, None, None)


async def test_plans_of_a_second_round_are_parsed_strictly() -> None:
    again, first = await judged(pool_of(ada=["Paris"], bob=["Rome"]))
    scored = await SCORER.score_plan(again, "It is Paris.", first)
    assert (scored.valid, scored.score) == (False, None)


async def test_there_is_no_second_round_after_an_invalid_plan_or_a_failed_call() -> None:
    instance = PromptInstance(SAMPLE, pool_of(ada=down, bob=["Rome"]), PlanSettings())
    assert (await SCORER.score_plan(instance, "Paris")).round is None
    assert (await SCORER.score_plan(instance, plan((0, "answer", [])))).round is None
    assert not (await SCORER.score_plan(instance, ACCEPT)).valid  # in a first round


async def test_a_logged_plan_of_a_second_round_has_the_previous_score() -> None:
    again, first = await judged(pool_of(ada=["Paris"], bob=["Rome", "Paris"]))
    scored = await SCORER.score_plan(again, plan((1, "check", [])), first)
    logged = LoggedPlan.from_scored(3, again, scored, 1.0, previous=first)
    assert (logged.round, logged.before, logged.score) == (2, 0.0, 1.0)
    assert LoggedPlan.model_validate_json(logged.model_dump_json()) == logged


# ------------------------------------------------------------------------------------- rewards


def test_the_second_round_has_a_weight_of_a_quarter_in_the_reward_of_the_first() -> None:
    first = [WRONG, WRONG, RIGHT, RIGHT, RIGHT]
    second = [RIGHT, WRONG, WRONG, KEPT, INVALID]
    mixed, later = two_round_rewards(first, second, RewardSettings(), discount=0.25)
    assert mixed == [0.625, 0.5, 0.875, 1.0, 0.75]
    assert later == [1.0, 0.5, 0.5, 1.0, 0.0]


def test_without_a_discount_each_round_has_its_own_reward() -> None:
    assert two_round_rewards([WRONG], [RIGHT], RewardSettings(), discount=0)[0] == [0.5]
    assert two_round_rewards([WRONG], [RIGHT], RewardSettings(), discount=1)[0] == [1.0]


def test_a_plan_without_a_second_round_keeps_its_own_reward() -> None:
    mixed, later = two_round_rewards([INVALID, FAILED, RIGHT], [None, None, FAILED], RewardSettings(), discount=0.25)
    assert mixed == [0.0, None, None]
    assert later == [None, None, None]


def test_the_cost_bonus_ranks_plans_within_a_round() -> None:
    first = [scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.02")]
    mixed, later = two_round_rewards(
        first, [scored_plan(1.0, usd="0.01"), KEPT], RewardSettings(cost_bonus=0.4), discount=0.25
    )
    assert later == pytest.approx([1.0, 1.4])
    assert mixed == pytest.approx([0.75 * 1.4 + 0.25 * 1.0, 0.75 * 1.0 + 0.25 * 1.4])


# ------------------------------------------------------------------------------------- metrics


def test_kept_repaired_and_spoiled_answers_are_counted() -> None:
    judged = [(RIGHT, KEPT), (RIGHT, RIGHT), (RIGHT, WRONG), (WRONG, RIGHT), (WRONG, WRONG)]
    metrics = step_metrics([[first for first, _ in judged]], [[]], [None], round_pairs=judged)
    assert (metrics["kept"], metrics["repaired"], metrics["spoiled"]) == (1 / 5, 1 / 2, 1 / 3)


def test_masked_second_rounds_are_left_out() -> None:
    judged = [(RIGHT, KEPT), (RIGHT, INVALID), (WRONG, FAILED), (INVALID, None)]
    metrics = step_metrics([[first for first, _ in judged]], [[]], [None], round_pairs=judged)
    assert (metrics["second_valid"], metrics["kept"], metrics["spoiled"]) == (1 / 2, 1.0, 0.0)
    assert "repaired" not in metrics


def test_usage_is_summed_over_both_rounds_and_plan_metrics_use_the_first() -> None:
    first, second = scored_plan(0.0, usd="0.25", tokens=7), scored_plan(1.0, workers="ab", usd="0.5", tokens=5)
    metrics = step_metrics([[first]], [[]], [None], round_pairs=[(first, second)])
    assert (metrics["usd"], metrics["tokens"], metrics["calls"]) == (0.75, 12, 2)
    assert (metrics["right"], metrics["steps"]) == (0, 1)
