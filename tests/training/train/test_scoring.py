from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest

from rl_conductor import ConfigError, ModelError, ScriptedModel, WorkerPool
from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.models.scripted import Scripted
from rl_conductor.scoring import Sample, Score, Task
from rl_conductor.types import Completion, Message, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS
from rl_conductor_training.tasks.scorers.judge import Judge
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.budget import TrainingBudget
from rl_conductor_training.train.config import PlanSettings
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rollouts.scoring import LoggedPlan, RolloutScorer, ScoredPlan
from rl_conductor_training.workers.cached_model import CachedModel

SCORER = RolloutScorer(exact, retries=0)
SAMPLE = Sample(id="1", question="What is the capital of France?", answer="Paris")


def over(**replies: Scripted) -> PromptInstance:
    return PromptInstance(
        SAMPLE, WorkerPool({name: ScriptedModel([reply]) for name, reply in replies.items()}), PlanSettings()
    )


def plan(*workers: int, access: str = "[]") -> str:
    lists = ", ".join(["[]", *[access] * (len(workers) - 1)])
    subtasks = ", ".join(['"Answer."'] * len(workers))
    return f"model_id = {list(workers)}\nsubtasks = [{subtasks}]\naccess_list = [{lists}]"


async def test_a_right_plan_is_scored() -> None:
    scored = await SCORER.score_plan(over(good="Paris", bad="Rome"), plan(0))
    assert (scored.valid, scored.right, scored.masked, scored.score) == (True, True, False, 1.0)
    assert scored.usage.calls == 1


async def test_a_wrong_plan_is_scored() -> None:
    scored = await SCORER.score_plan(over(good="Paris", bad="Rome"), plan(1))
    assert (scored.valid, scored.right, scored.masked, scored.score) == (True, False, False, 0.0)
    assert "Paris" in scored.explanation


async def test_plans_are_parsed_strictly() -> None:
    for text in (f"```\n{plan(0)}\n```", plan(0).replace("=", ":"), plan(7), plan(0, 0, access='[["all"]]'), "Paris"):
        scored = await SCORER.score_plan(over(good="Paris"), text)
        assert (scored.valid, scored.masked, scored.score) == (False, False, None), text
        assert scored.explanation
        assert scored.usage.calls == 0


async def test_a_failed_call_masks_the_plan_even_if_another_worker_takes_over() -> None:
    broken = ModelError("the vendor is down", model="scripted:broken")
    scored = await SCORER.score_plan(over(broken=broken, good="Paris"), plan(0))
    assert (scored.valid, scored.masked, scored.score) == (True, True, None)
    assert "the vendor is down" in scored.explanation
    alone = await SCORER.score_plan(over(broken=broken), plan(0))
    assert alone.masked


def reasoning_only(_: Request) -> Completion:
    """A reply that used up `max_tokens` before any answer."""
    return Completion(message=Message.assistant(), finish_reason="length", model="scripted:a")


async def test_a_worker_that_spends_its_cap_on_reasoning_is_wrong_and_not_masked() -> None:
    alone = {"a": ScriptedModel(reasoning_only)}
    for models in (alone, {**alone, "b": ScriptedModel("Paris")}):
        instance = PromptInstance(SAMPLE, WorkerPool(models), PlanSettings())
        scored = await SCORER.score_plan(instance, plan(0))
        assert (scored.valid, scored.masked, scored.score, scored.round) == (True, False, 0.0, None)
        assert "ran out of output tokens" in scored.explanation
        assert scored.finishes["a"].keys() == {"length"}


async def test_a_vendors_failure_beside_it_still_masks_the_plan() -> None:
    down = ScriptedModel(lambda _: ModelError("the vendor is down", model="scripted:b"))
    pool = WorkerPool({"a": ScriptedModel(reasoning_only), "b": down})
    scored = await SCORER.score_plan(PromptInstance(SAMPLE, pool, PlanSettings()), plan(0, 1, access='["all"]'))
    assert scored.masked


async def test_a_successful_retry_is_not_a_failure() -> None:
    broken = ModelError("busy", model="scripted:a", retryable=True)
    pool = WorkerPool({"a": ScriptedModel([broken, "Paris"])})
    scored = await RolloutScorer(exact, retries=1).score_plan(PromptInstance(SAMPLE, pool, PlanSettings()), plan(0))
    assert scored.right


async def test_a_failed_judge_masks_the_plan() -> None:
    broken = ModelError("the vendor is down", model="scripted:judge")
    scored = await RolloutScorer(Judge(ScriptedModel([broken, broken]))).score_plan(over(good="Paris"), plan(0))
    assert (scored.valid, scored.masked, scored.score, scored.round) == (True, True, None, None)
    assert "could not be scored: the vendor is down" in scored.explanation
    assert scored.usage.calls == 1


async def test_a_cached_reply_counts_with_its_original_latency(tmp_path: Path) -> None:
    cached = CachedModel(ScriptedModel("Paris", delay=0.2), tmp_path / "replies.sqlite")
    instance = PromptInstance(SAMPLE, WorkerPool({"a": cached}), PlanSettings())
    first, again = [await SCORER.score_plan(instance, plan(0)) for _ in range(2)]
    assert again.usage.cached_calls == 1
    assert min(first.seconds, again.seconds) >= 0.2


async def test_scored_plans_keep_the_order_of_their_texts() -> None:
    def echo(request: Request) -> str:
        return "Paris" if "first" in request.messages[-1].text else "Rome"

    instance = PromptInstance(SAMPLE, WorkerPool({"a": ScriptedModel(echo, delay=0.001)}), PlanSettings())
    texts = [plan(0).replace("Answer", word) for word in ("first", "second", "first")]
    scored = await RolloutScorer(exact, concurrency=1).score_plans([instance] * 3, texts)
    assert [each.right for each in scored] == [True, False, True]


async def test_a_failing_scorer_cancels_the_other_plans_and_keeps_its_cause() -> None:
    def fail(_sample: Sample, _text: str) -> Score:
        raise KeyError("Rome")

    task = Task("capitals", (SAMPLE,), fail)
    pool = WorkerPool({"a": ScriptedModel("Rome"), "slow": ScriptedModel("Paris", delay=60)})
    instance = PromptInstance(SAMPLE, pool, PlanSettings())
    with pytest.raises(ConfigError, match=r"the scorer of 'capitals' failed on question '1' .*KeyError") as failed:
        await RolloutScorer(task.score).score_plans([instance] * 2, [plan(0), plan(1)])
    assert isinstance(failed.value.__cause__, KeyError)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_logged_plan_has_score_and_reward() -> None:
    instance = over(good="Paris")
    scored = await SCORER.score_plan(instance, plan(0))
    logged = LoggedPlan.from_scored(3, instance, scored, 1.0)
    assert (logged.step, logged.question, logged.score, logged.reward) == (3, SAMPLE.question, 1.0, 1.0)
    assert LoggedPlan.model_validate_json(logged.model_dump_json()) == logged
    assert LoggedPlan.from_scored(3, instance, ScoredPlan(text="?"), 0.0).workflow is None


PRICED = Limits(tokens=DEFAULT_OUTPUT_TOKENS * 2)


async def test_a_cap_masks_the_plans_that_no_longer_fit_and_reports_it() -> None:
    budget = TrainingBudget(PRICED, Amount(tokens=DEFAULT_OUTPUT_TOKENS))
    scorer = RolloutScorer(exact, retries=0, budget=budget)
    scored = await scorer.score_plan(over(good="Paris", bad="Rome"), plan(0))
    assert (scored.valid, scored.masked, scored.usage.calls) == (True, True, 0)
    assert budget.is_over
    assert budget.spending == NOTHING
    again = await scorer.score_plan(over(good="Paris", bad="Rome"), plan(0))
    assert again.explanation == "a cap of the training run is used up"


async def test_a_cap_counts_what_plans_have_used() -> None:
    budget = TrainingBudget(PRICED)
    scored = await RolloutScorer(exact, retries=0, budget=budget).score_plan(over(good="Paris"), plan(0))
    assert scored.right
    assert not budget.is_over
    assert budget.spending.tokens == scored.usage.total_tokens > 0


async def test_the_spending_says_which_part_is_the_upper_bound_of_a_call_that_failed() -> None:
    budget = TrainingBudget(Limits(tokens=DEFAULT_OUTPUT_TOKENS * 4))
    scorer = RolloutScorer(exact, retries=0, budget=budget)
    await scorer.score_plan(over(good="Paris"), plan(0))
    assert budget.unanswered == NOTHING
    answered = budget.spending.tokens
    await scorer.score_plan(over(good=ModelError("the vendor is down", model="scripted:broken")), plan(0))
    assert budget.unanswered.tokens == budget.spending.tokens - answered > DEFAULT_OUTPUT_TOKENS


async def test_cached_replies_are_free_under_a_cap(tmp_path: Path) -> None:
    budget = TrainingBudget(PRICED)
    scorer = RolloutScorer(exact, retries=0, budget=budget)
    cached = CachedModel(ScriptedModel(["Paris"]), tmp_path / "replies.sqlite")
    instance = PromptInstance(SAMPLE, WorkerPool({"good": cached}), PlanSettings())
    first = await scorer.score_plan(instance, plan(0))
    again = await scorer.score_plan(instance, plan(0))
    await cached.aclose()
    assert again.usage.cached_calls == 1
    assert budget.spending == Amount(tokens=first.usage.total_tokens, calls=1)


async def test_each_scored_plan_is_counted() -> None:
    counted: list[ScoredPlan] = []
    scorer = RolloutScorer(exact, retries=0, on_plan=counted.append)
    scored = await scorer.score_plans([over(good="Paris"), over(good="Paris")], [plan(0), "no plan"])
    assert sorted(map(repr, counted)) == sorted(map(repr, scored))


def test_processes_share_the_caps_evenly() -> None:
    budget = TrainingBudget(Limits(usd=3, tokens=1_000), Amount(usd=Decimal(1), tokens=200), share=2)
    assert budget.calls.limits.usd == 1
    assert budget.calls.limits.tokens == 400
    used_up = TrainingBudget(Limits(usd=3), Amount(usd=Decimal(5)))
    assert used_up.calls.limits.usd == 0
