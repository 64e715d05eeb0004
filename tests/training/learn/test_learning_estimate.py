"""The estimate of a learning run, and what the run then spends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from rl_conductor import Conductor, Limits, ScriptedModel, WorkerPool
from rl_conductor.errors import LimitError
from rl_conductor.scoring import Sample, Score
from rl_conductor.types import Price, Request, Usage, prompt_in
from rl_conductor_training.learn import LearnRecord, LearnSettings, learn
from rl_conductor_training.learn.budget import RunSpending
from rl_conductor_training.learn.data import split_task
from rl_conductor_training.learn.estimate import REPLY_TOKENS, estimate_cost
from rl_conductor_training.learn.experience import Experience, ExperienceRow, ScoreTable
from rl_conductor_training.learn.learners.base import SearchNeeds
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.candidates import single_workers
from rl_conductor_training.spending import CostEstimate
from rl_conductor_training.tasks import Task
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.workers.cached_model import stored_usage
from training.learn import skills
from training.learn.skills import build_planner, build_pool, build_task

ESTIMATE = CostEstimate(calls=100, tokens=20_000, usd=Decimal("0.5"), minutes=4.0)


def explaining(skill: Callable[[Request], str]) -> Callable[[Request], str]:
    """Makes a worker explain its answer, each time in other words."""

    def reply(request: Request) -> str:
        digest = sha256(prompt_in(request.messages).encode()).hexdigest()
        words = " ".join(f"{digest[number % 50 :][:5]}{number}" for number in range(REPLY_TOKENS))
        return f"{words}\n{skill(request)}"

    return reply


def build_explaining_pool(*names: str) -> WorkerPool:
    price = Price(input=1, output=4)
    models = {name: ScriptedModel(explaining(getattr(skills, name)), name=name, price=price) for name in names}
    return WorkerPool(models)


def explained_task(kinds: str) -> Task:
    async def score_last_line(sample: Sample, text: str) -> Score:
        answer = text.splitlines()[-1]
        return Score(value=float(answer == sample.answer), answer=answer)

    return replace(build_task(kinds), scorer=score_last_line)


async def learn_with_estimate(
    folder: Path, task: Task, pool: WorkerPool, budget: Limits | None = None
) -> tuple[LearnRecord, CostEstimate]:
    estimates: list[CostEstimate] = []
    record = await learn(task, pool, planner=build_planner(), out=folder, budget=budget, on_estimate=estimates.append)
    return record, estimates[0]


@pytest.mark.parametrize("kinds", ["direction chain", "chain"])
@pytest.mark.parametrize("names", [("atlas", "speller"), ("atlas", "speller", "pointer")])
async def test_the_spending_is_between_half_and_twice_the_estimate(
    tmp_path: Path, kinds: str, names: tuple[str, ...]
) -> None:
    record, estimate = await learn_with_estimate(tmp_path, explained_task(kinds), build_explaining_pool(*names))
    assert estimate.usd is not None
    assert 0.5 <= record.calls / estimate.calls <= 2
    assert 0.5 <= record.tokens / estimate.tokens <= 2
    assert 0.5 <= record.usd / estimate.usd <= 2


async def test_neither_the_estimate_nor_the_spending_is_above_a_cap(tmp_path: Path) -> None:
    cap = Decimal("0.12")
    task, pool = explained_task("direction chain"), build_explaining_pool("atlas", "speller", "pointer")
    record, estimate = await learn_with_estimate(tmp_path, task, pool, Limits(usd=cap))
    assert estimate.usd is not None
    assert estimate.usd <= cap
    assert record.usd <= cap
    assert record.usd >= estimate.usd / 2


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (Limits(), 1),
        (Limits(calls=200, usd=1), 1),
        (Limits(calls=50, usd=1), 0.5),
        (Limits(tokens=5_000, calls=50), 0.25),
        (Limits(seconds=24), 0.1),
    ],
)
def test_the_tightest_cap_makes_the_estimate_smaller(limits: Limits, share: float) -> None:
    within = ESTIMATE.within(limits)
    assert (within.calls, within.tokens, within.minutes) == (100 * share, 20_000 * share, 4 * share)
    assert within.usd == Decimal("0.5") * Decimal(str(share))
    assert ESTIMATE.model_copy(update={"usd": None}).within(limits).usd is None


async def test_the_caps_that_an_error_names_leave_room_for_a_call_of_the_dearest_worker(tmp_path: Path) -> None:
    pool = {**build_pool(), "atlas": build_pool(Price(input=1, output=8))["atlas"]}  # reserves $0.03 for each call
    run = partial(learn, build_task(), pool, planner=build_planner(), settings=LearnSettings(max_steps=2))
    with pytest.raises(LimitError, match="to compare the workers on a single question: the dollars ran out") as caught:
        await run(out=tmp_path, budget=Limits(usd="0.02"))
    named = re.search(r"takes about \$([\d.]+), or more", str(caught.value))
    assert named is not None
    assert caught.value.needed <= float(named[1])
    record = await run(out=tmp_path, budget=Limits(usd=named[1]))
    assert record.proof is not None
    assert record.proof.questions == record.questions["held-out"]


async def test_after_a_change_of_the_workers_the_caps_are_for_what_is_spent_from_then_on(tmp_path: Path) -> None:
    run = partial(learn, build_task("direction"), out=tmp_path, settings=LearnSettings(max_steps=1))
    price = Price(input=0, output=0, per_call=Decimal("0.0005"))
    pool = build_pool(price)
    first = await run(pool, planner=build_planner())
    others = WorkerPool(replace(worker, instructions="Be brief.") for worker in pool.values())
    second, again = [await run(others, planner=build_planner(), budget=Limits(usd=first.usd * 2)) for _ in range(2)]
    assert second.usd > first.usd / 2
    assert stored_usage(tmp_path / "replies.sqlite").cost == first.usd + second.usd
    assert (again.usd, again.calls) == (second.usd, second.calls)


def test_a_run_that_goes_on_after_one_with_other_workers_counts_what_it_had_spent(tmp_path: Path) -> None:
    experience = Experience(tmp_path / "experience.jsonl")
    row = ExperienceRow(key="", sample="", question="?", system="workflow", workflow=None, score=0)
    for number, (workers, calls, spent) in enumerate([("a", 1, 0), ("b", 2, 0), ("a", 4, 1), ("a", 8, 5), ("b", 0, 2)]):
        spending = RunSpending(tmp_path, experience, workers)
        assert (spending.amount.calls, spending.unpriced_calls) == (spent, spent)
        usage = Usage(calls=calls, unpriced_calls=calls)
        experience.append(row.model_copy(update={"key": str(number), "scoring": usage}))


async def test_the_same_reply_to_a_question_is_scored_once_also_by_a_later_process(tmp_path: Path) -> None:
    scored: list[tuple[str, str]] = []

    async def judge(sample: Sample, text: str) -> Score:
        scored.append((sample.id, text))
        await asyncio.sleep(0.001)
        return await exact(sample, text)

    task, planner = replace(build_task(), scorer=judge), build_planner()
    counts = []
    for steps in (1, 2):
        await learn(task, build_pool(), planner=planner, out=tmp_path, settings=LearnSettings(max_steps=steps))
        counts.append(len(scored))
    assert counts[0] < counts[1]
    assert len(scored) == len(set(scored))


async def test_questions_with_other_ids_or_groups_are_not_asked_and_scored_again(tmp_path: Path) -> None:
    scored: list[str] = []

    def count(sample: Sample, _text: str) -> Score:
        scored.append(sample.id)
        return Score(value=1)

    task = replace(build_task(), scorer=count)
    renamed = [
        sample.model_copy(update={"id": f"new-{sample.id}", "domain": "new", "depth": 3, "details": {"group": "new"}})
        for sample in task.samples
    ]
    workflows = single_workers(["atlas", "pointer"])
    conductor = Conductor(build_planner(), build_pool())
    for samples in (task.samples, renamed):
        runner = Runner(replace(task, samples=tuple(samples)), conductor, Experience(tmp_path / "rows.jsonl"), {})
        await runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
        planned = await runner.run_conductor(samples, "prompted planner", conductor)
        assert [row.sample for row in planned] == [sample.id for sample in samples]
        table = ScoreTable(runner.workflow_rows(samples), samples)
        assert [table.scores(workflow) for workflow in workflows] == [[1] * 20] * 2
    assert not runner.added
    assert len(runner.reused) == 60
    assert {name for name in scored if name.startswith("new")} == set()


async def test_copies_of_a_question_share_their_runs(tmp_path: Path) -> None:
    first = build_task("direction").samples[0]
    samples = [first, first.model_copy(update={"id": "copy"})]
    workflows = single_workers(["pointer"])
    conductor = Conductor(build_planner(), build_pool())
    runner = Runner(Task("copies", tuple(samples), exact), conductor, Experience(tmp_path / "rows.jsonl"), {})
    await runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
    assert ScoreTable(runner.workflow_rows(samples), samples).scores(workflows[0]) == [1, 1]


def test_more_steps_cost_more_and_an_unknown_price_makes_the_dollars_unknown(tmp_path: Path) -> None:
    data = split_task(build_task(), seed=0, opening_file=tmp_path / "heldout.json")
    conductor = Conductor(build_planner(), build_pool())
    short, longer = (
        estimate_cost(data, conductor, LearnSettings(max_steps=n), SearchNeeds(), Limits()) for n in (1, 3)
    )
    assert longer.calls > short.calls > 50
    assert longer.usd is not None
    assert longer.usd > 0
    unpriced = conductor.replaced(pool=WorkerPool({"free": ScriptedModel("?", price=None)}))
    assert estimate_cost(data, unpriced, LearnSettings(), SearchNeeds(), Limits()).usd is None


def test_a_cap_on_the_time_shortens_the_training_and_not_the_calls_in_proportion(tmp_path: Path) -> None:
    data = split_task(build_task(), seed=0, opening_file=tmp_path / "heldout.json")
    estimate = partial(estimate_cost, data, Conductor(build_planner(), build_pool()), LearnSettings())
    training = SearchNeeds(seconds=3600)
    thorough, capped = estimate(training, Limits()), estimate(training, Limits(seconds=2400))
    assert thorough.minutes > 60
    assert capped.minutes <= 40
    assert capped.calls == thorough.calls


def test_a_cap_on_the_tokens_does_not_shorten_the_training(tmp_path: Path) -> None:
    data = split_task(build_task(), seed=0, opening_file=tmp_path / "heldout.json")
    estimate = partial(estimate_cost, data, Conductor(build_planner(), build_pool()), LearnSettings())
    training = SearchNeeds(seconds=3600)
    tokens = estimate(training, Limits()).tokens * 3 // 4
    capped = estimate(training, Limits(tokens=tokens))
    assert tokens / 2 < capped.tokens <= tokens
    assert capped.minutes > 60


async def test_the_estimate_includes_the_judge(tmp_path: Path) -> None:
    task = build_task()
    judged = tuple(sample.model_copy(update={"details": {"judge": "judge"}}) for sample in task.samples)
    estimates: list[CostEstimate] = []
    for questions in (task, replace(task, samples=judged, judge_price=Price(input=3, output=12))):
        await learn(
            questions, build_pool(), planner=build_planner(), out=tmp_path / "out", on_estimate=estimates.append
        )
    plain, with_judge = estimates
    assert with_judge.calls > plain.calls * 1.5
    assert with_judge.usd is not None
    assert plain.usd is not None
    assert with_judge.usd > plain.usd * 2
    data = split_task(replace(task, samples=judged), seed=0, opening_file=tmp_path / "heldout.json")
    conductor = Conductor(build_planner(), build_pool())
    assert estimate_cost(data, conductor, LearnSettings(), SearchNeeds(), Limits()).usd is None
