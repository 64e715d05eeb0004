from __future__ import annotations

from pathlib import Path

from rl_conductor import ModelError, ScriptedModel, WorkerPool
from rl_conductor.models.cached import CachedModel
from rl_conductor.models.scripted import Scripted
from rl_conductor.tasks.base import Sample
from rl_conductor.tasks.judging import Judge
from rl_conductor.tasks.scorers import exact
from rl_conductor.train.config import PlanEntry
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.outcomes import Drawn, Examiner, Outcome
from rl_conductor.types import Request

EXAMINER = Examiner(exact, retries=0)
SAMPLE = Sample(id="1", question="What is the capital of France?", answer="Paris")


def over(**replies: Scripted) -> Exercise:
    return Exercise(SAMPLE, WorkerPool({name: ScriptedModel([reply]) for name, reply in replies.items()}), PlanEntry())


def plan(*workers: int, access: str = "[]") -> str:
    lists = ", ".join(["[]", *[access] * (len(workers) - 1)])
    subtasks = ", ".join(['"Answer."'] * len(workers))
    return f"model_id = {list(workers)}\nsubtasks = [{subtasks}]\naccess_list = [{lists}]"


async def test_a_plan_that_is_right() -> None:
    found = await EXAMINER.outcome(over(good="Paris", bad="Rome"), plan(0))
    assert (found.valid, found.right, found.masked, found.score) == (True, True, False, 1.0)
    assert found.usage.calls == 1


async def test_a_plan_that_is_wrong() -> None:
    found = await EXAMINER.outcome(over(good="Paris", bad="Rome"), plan(1))
    assert (found.valid, found.right, found.masked, found.score) == (True, False, False, 0.0)
    assert "Paris" in found.explanation


async def test_plans_are_read_strictly() -> None:
    for text in (f"```\n{plan(0)}\n```", plan(0).replace("=", ":"), plan(7), plan(0, 0, access='[["all"]]'), "Paris"):
        found = await EXAMINER.outcome(over(good="Paris"), text)
        assert (found.valid, found.masked, found.score) == (False, False, None), text
        assert found.explanation
        assert found.usage.calls == 0


async def test_a_failed_call_says_nothing_of_the_plan_even_if_another_worker_steps_in() -> None:
    broken = ModelError("the vendor is down", model="scripted:broken")
    found = await EXAMINER.outcome(over(broken=broken, good="Paris"), plan(0))
    assert (found.valid, found.masked, found.score) == (True, True, None)
    assert "the vendor is down" in found.explanation
    alone = await EXAMINER.outcome(over(broken=broken), plan(0))
    assert alone.masked


async def test_a_call_that_is_repeated_with_success_is_no_failure() -> None:
    broken = ModelError("busy", model="scripted:a", retryable=True)
    pool = WorkerPool({"a": ScriptedModel([broken, "Paris"])})
    found = await Examiner(exact, retries=1).outcome(Exercise(SAMPLE, pool, PlanEntry()), plan(0))
    assert found.right


async def test_a_judge_that_gives_no_reply_says_nothing_of_the_plan() -> None:
    broken = ModelError("the vendor is down", model="scripted:judge")
    found = await Examiner(Judge(ScriptedModel([broken, broken]))).outcome(over(good="Paris"), plan(0))
    assert (found.valid, found.masked, found.score, found.round) == (True, True, None, None)
    assert "could not be scored: the vendor is down" in found.explanation
    assert found.usage.calls == 1


async def test_a_cached_reply_took_as_long_as_it_first_did(tmp_path: Path) -> None:
    kept = CachedModel(ScriptedModel("Paris", delay=0.2), tmp_path / "replies.sqlite")
    one = Exercise(SAMPLE, WorkerPool({"a": kept}), PlanEntry())
    first, again = [await EXAMINER.outcome(one, plan(0)) for _ in range(2)]
    assert again.usage.cached_calls == 1
    assert min(first.seconds, again.seconds) >= 0.2


async def test_outcomes_stand_in_the_order_of_their_plans() -> None:
    def echo(request: Request) -> str:
        return "Paris" if "first" in request.messages[-1].text else "Rome"

    one = Exercise(SAMPLE, WorkerPool({"a": ScriptedModel(echo, delay=0.001)}), PlanEntry())
    texts = [plan(0).replace("Answer", word) for word in ("first", "second", "first")]
    found = await Examiner(exact, concurrency=1).outcomes([one] * 3, texts)
    assert [each.right for each in found] == [True, False, True]


async def test_what_is_kept_of_a_plan() -> None:
    one = over(good="Paris")
    found = await EXAMINER.outcome(one, plan(0))
    kept = Drawn.of(3, one, found, 1.0)
    assert (kept.step, kept.question, kept.score, kept.reward) == (3, SAMPLE.question, 1.0, 1.0)
    assert Drawn.model_validate_json(kept.model_dump_json()) == kept
    assert Drawn.of(3, one, Outcome(text="?"), 0.0).workflow is None
