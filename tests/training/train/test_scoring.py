from __future__ import annotations

from pathlib import Path

from rl_conductor import ModelError, ScriptedModel, WorkerPool
from rl_conductor.models.cached import CachedModel
from rl_conductor.models.scripted import Scripted
from rl_conductor.scoring import Sample
from rl_conductor.types import Request
from rl_conductor_training.tasks.scorers.judge import Judge
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.config import PlanSettings
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rollouts.scoring import LoggedPlan, RolloutScorer, ScoredPlan

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


async def test_a_plan_that_is_right() -> None:
    scored = await SCORER.score_plan(over(good="Paris", bad="Rome"), plan(0))
    assert (scored.valid, scored.right, scored.masked, scored.score) == (True, True, False, 1.0)
    assert scored.usage.calls == 1


async def test_a_plan_that_is_wrong() -> None:
    scored = await SCORER.score_plan(over(good="Paris", bad="Rome"), plan(1))
    assert (scored.valid, scored.right, scored.masked, scored.score) == (True, False, False, 0.0)
    assert "Paris" in scored.explanation


async def test_plans_are_read_strictly() -> None:
    for text in (f"```\n{plan(0)}\n```", plan(0).replace("=", ":"), plan(7), plan(0, 0, access='[["all"]]'), "Paris"):
        scored = await SCORER.score_plan(over(good="Paris"), text)
        assert (scored.valid, scored.masked, scored.score) == (False, False, None), text
        assert scored.explanation
        assert scored.usage.calls == 0


async def test_a_failed_call_says_nothing_of_the_plan_even_if_another_worker_steps_in() -> None:
    broken = ModelError("the vendor is down", model="scripted:broken")
    scored = await SCORER.score_plan(over(broken=broken, good="Paris"), plan(0))
    assert (scored.valid, scored.masked, scored.score) == (True, True, None)
    assert "the vendor is down" in scored.explanation
    alone = await SCORER.score_plan(over(broken=broken), plan(0))
    assert alone.masked


async def test_a_call_that_is_repeated_with_success_is_no_failure() -> None:
    broken = ModelError("busy", model="scripted:a", retryable=True)
    pool = WorkerPool({"a": ScriptedModel([broken, "Paris"])})
    scored = await RolloutScorer(exact, retries=1).score_plan(PromptInstance(SAMPLE, pool, PlanSettings()), plan(0))
    assert scored.right


async def test_a_judge_that_gives_no_reply_says_nothing_of_the_plan() -> None:
    broken = ModelError("the vendor is down", model="scripted:judge")
    scored = await RolloutScorer(Judge(ScriptedModel([broken, broken]))).score_plan(over(good="Paris"), plan(0))
    assert (scored.valid, scored.masked, scored.score, scored.round) == (True, True, None, None)
    assert "could not be scored: the vendor is down" in scored.explanation
    assert scored.usage.calls == 1


async def test_a_cached_reply_took_as_long_as_it_first_did(tmp_path: Path) -> None:
    cached = CachedModel(ScriptedModel("Paris", delay=0.2), tmp_path / "replies.sqlite")
    instance = PromptInstance(SAMPLE, WorkerPool({"a": cached}), PlanSettings())
    first, again = [await SCORER.score_plan(instance, plan(0)) for _ in range(2)]
    assert again.usage.cached_calls == 1
    assert min(first.seconds, again.seconds) >= 0.2


async def test_scored_plans_have_the_order_of_their_texts() -> None:
    def echo(request: Request) -> str:
        return "Paris" if "first" in request.messages[-1].text else "Rome"

    instance = PromptInstance(SAMPLE, WorkerPool({"a": ScriptedModel(echo, delay=0.001)}), PlanSettings())
    texts = [plan(0).replace("Answer", word) for word in ("first", "second", "first")]
    scored = await RolloutScorer(exact, concurrency=1).score_plans([instance] * 3, texts)
    assert [each.right for each in scored] == [True, False, True]


async def test_the_log_line_of_a_plan() -> None:
    instance = over(good="Paris")
    scored = await SCORER.score_plan(instance, plan(0))
    logged = LoggedPlan.from_scored(3, instance, scored, 1.0)
    assert (logged.step, logged.question, logged.score, logged.reward) == (3, SAMPLE.question, 1.0, 1.0)
    assert LoggedPlan.model_validate_json(logged.model_dump_json()) == logged
    assert LoggedPlan.from_scored(3, instance, ScoredPlan(text="?"), 0.0).workflow is None
