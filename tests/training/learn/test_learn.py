"""`learn` from the task to the folder, with workers of known skills."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_conductor import (
    Conductor,
    ConfigError,
    LimitError,
    Limits,
    ModelError,
    Planner,
    ScriptedModel,
    Worker,
    WorkerPool,
)
from rl_conductor._internal.formatting import dollars
from rl_conductor.calls.budget import Amount
from rl_conductor.config.learned_folder import read_conductor_file
from rl_conductor.models import PROVIDERS
from rl_conductor.scoring import Score
from rl_conductor.types import FREE, Completion, Message, Price, Request, Sampling, prompt_in
from rl_conductor_training.cut_off_replies import cut_off_table
from rl_conductor_training.learn import LearnProgress, LearnRecord, LearnSettings, pipeline, report
from rl_conductor_training.learn import learn as run_learn
from rl_conductor_training.learn.data import split_task
from rl_conductor_training.learn.evaluation.validation import validate_learners
from rl_conductor_training.learn.experience import Experience, ExperienceRow
from rl_conductor_training.learn.learn_run import LearnRun
from rl_conductor_training.learn.search.stages import PILOT
from rl_conductor_training.tasks import Sample, Task, load_task
from rl_conductor_training.tasks.groups import hash_question
from rl_conductor_training.tasks.scorers.judge import Judge
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.workers.cached_model import stored_usage
from training.learn import skills
from training.learn.skills import build_planner, build_pool, build_task, count_calls

learn = partial(run_learn, settings=LearnSettings(max_steps=2))


CALL = Decimal("0.0005")
PER_CALL = Price(input=0, output=0, per_call=CALL)


def summaries(record: LearnRecord) -> dict[str, float]:
    assert record.proof is not None
    return {system.name: system.right.value for system in record.proof.systems}


async def test_it_finds_the_workflow_of_each_kind_of_question(tmp_path: Path) -> None:
    record = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    right = summaries(record)
    assert right["oracle"] == right["linear"] == 1
    assert right["best single"] < 0.7
    assert right["best fixed"] < 0.7
    assert record.recommended == "linear"
    assert any(name.startswith("atlas → speller") for name in record.portfolio)
    comparisons = {(row.system, row.baseline): row for row in record.proof.comparisons} if record.proof else {}
    assert comparisons["linear", "best single"].difference.value > 0.3

    fixed = record.gate.fixed
    assert len(record.wrong_answers) == fixed.n - round(fixed.value * fixed.n)
    wrong = record.wrong_answers[0]
    assert wrong.expected != wrong.answer
    assert f"<td>{wrong.question}</td><td>{wrong.expected}</td>" in (tmp_path / "report.html").read_text()

    conductor = Conductor.load(tmp_path, pool=build_pool(), planner=build_planner())
    chain = await conductor.run("Spell backwards the population of the city of Oslo.")
    single = await conductor.run("After tour 3, where do we go if we walk towards the east?")
    assert (chain.text, single.text) == ("0pop", "east")
    workers = [[result.step.worker for result in trace.results] for trace in (chain, single)]
    assert workers == [["atlas", "speller"], ["pointer"]]
    assert chain.rounds[0].plan.source == "learned"


async def test_partial_scores_are_learned_from_and_noted(tmp_path: Path) -> None:
    async def nine_tenths(sample: Sample, text: str) -> Score:
        return Score(value=0.9 * (await exact(sample, text)).value)

    task = replace(build_task(), scorer=nine_tenths)
    record = await learn(task, build_pool(), planner=build_planner(), out=tmp_path)
    right = summaries(record)
    assert right["oracle"] == right["linear"] == pytest.approx(0.9)
    assert right["best fixed"] < 0.7
    assert 'there are scores between 0 and 1: "right" is the mean score' in record.notes


async def test_replies_without_a_clear_verdict_are_counted(tmp_path: Path) -> None:
    def reply(request: Request) -> str:
        return "hard to say" if "east" in request.messages[-1].text else skills.judge(request)

    task = replace(build_task("direction", 12), scorer=Judge(ScriptedModel(reply, name="judge")))
    record = await learn(task, build_pool(), planner=build_planner(), out=tmp_path)
    (note,) = [note for note in record.notes if "no clear verdict" in note]
    assert note.startswith("the judge gave no clear verdict on ")
    again = await learn(task, build_pool(), planner=build_planner(), out=tmp_path)
    assert note in again.notes


@pytest.mark.parametrize(("verdict", "found"), [("yes", "right"), ("no", "wrong")])
async def test_a_judge_that_always_says_the_same_is_reported(tmp_path: Path, verdict: str, found: str) -> None:
    task = replace(build_task("direction", 12), scorer=Judge(ScriptedModel(verdict, name="judge")))
    record = await learn(task, build_pool(), planner=build_planner(), out=tmp_path)
    (note,) = [note for note in record.notes if note.startswith("the judge found all ")]
    assert f" different replies {found}: read some of them" in note


async def test_a_judge_without_any_clear_verdict_ends_learning_after_the_first_replies(tmp_path: Path) -> None:
    vague = ScriptedModel("hard to say", name="judge")
    task, pool = replace(build_task("direction", 12), scorer=Judge(vague)), build_pool()
    problem = r"the judge gave no clear verdict on any of the first \d+ different replies: .*; name another judge"
    with pytest.raises(ConfigError, match=problem):
        await learn(task, pool, planner=build_planner(), out=tmp_path)
    assert count_calls(pool) == PILOT * len(pool)


async def test_a_judge_that_can_not_be_called_names_the_question_and_what_to_do(tmp_path: Path) -> None:
    def fail(_: Request) -> str:
        raise ModelError("no such model", model="judge")

    task = replace(build_task("direction", 12), scorer=Judge(ScriptedModel(fail, name="judge")))
    problem = r"the judge failed on a reply to question 'direction-\d+' \('After tour.*: no such model; what was scored"
    with pytest.raises(ModelError, match=problem):
        await learn(task, build_pool(), planner=build_planner(), out=tmp_path)


async def test_copies_of_questions_are_noted_before_and_after(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = build_task("direction", 12)
    copies = tuple(sample.model_copy(update={"id": f"copy-{sample.id}"}) for sample in task.samples[:3])
    task = replace(task, samples=(*task.samples, *copies))
    record = await learn(task, build_pool(), planner=build_planner(), out=tmp_path)
    note = "of the 15 questions, only 12 are different: each copy counts"
    assert note in record.notes
    html = (tmp_path / "report.html").read_text()
    assert re.search(
        r"<h2>Notes</h2>\s*<ul>\s*<li>Of the 15 questions, only 12 are different: each copy counts\.</li>", html
    )
    assert html.count(record.gate.reason[1:]) == 1
    assert note in caplog.messages


async def test_the_folder_has_the_record_the_report_and_the_opening_of_the_heldout_questions(tmp_path: Path) -> None:
    record = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    assert LearnRecord.model_validate_json((tmp_path / "record.json").read_text()) == record
    report = (tmp_path / "report.html").read_text()
    assert "Recommended: <strong>linear</strong>" in report
    assert record.proof is not None
    opening = json.loads((tmp_path / "heldout.json").read_text())
    assert opening["questions"] == record.questions["held-out"] == record.proof.questions
    hashes = {hash_question(sample.question) for sample in build_task().samples}
    assert read_conductor_file(tmp_path).questions == hashes - set(opening["hashes"])
    again = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    assert again.proof is not None
    assert again.proof.opening == record.proof.opening


async def test_a_run_with_other_workers_on_the_same_heldout_questions_is_noted(tmp_path: Path) -> None:
    first = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    pool = WorkerPool([*build_pool().values(), Worker.of("spare", ScriptedModel(lambda _: "I can't say.", price=FREE))])
    notes = [(await learn(build_task(), pool, planner=build_planner(), out=tmp_path)).notes for _ in range(2)]
    remark = "1 other run with other workers, planners, learners or answers had these held-out questions"
    assert [sum(remark in note for note in each) for each in (first.notes, *notes)] == [0, 1, 1]


async def test_examples_are_the_right_plans_of_the_nearest_questions(tmp_path: Path) -> None:
    planner = build_planner()
    await learn(build_task(), build_pool(), planner=planner, out=tmp_path)
    shown = [
        request.messages
        for request in planner.model.requests  # type: ignore[attr-defined]
        if "Spell backwards" in request.messages[-1].text and "Spell backwards" in request.messages[-3].text
    ]
    assert shown
    assert [line[:2] for line in shown[-1][-2].text.splitlines()] == ["[0", "[1"]


async def test_nothing_to_learn_is_said_and_the_heldout_questions_stay_closed(tmp_path: Path) -> None:
    record = await learn(build_task("direction", 40), build_pool(), planner=build_planner(), out=tmp_path)
    assert not record.gate.is_open
    assert record.gate.reason.startswith("there is nothing to learn")
    assert (record.proof, record.recommended) == (None, "best single")
    assert not (tmp_path / "heldout.json").exists()
    trace = await Conductor.load(tmp_path, pool=build_pool()).run("Where, if we walk towards the west?")
    assert trace.text == "west"


async def test_a_worker_that_is_right_nearly_as_often_and_costs_less_is_recommended(tmp_path: Path) -> None:
    task = build_task("direction", 100)
    missed = task.samples[0].question

    def fast(request: Request) -> str:
        return "?" if missed in prompt_in(request.messages) else skills.pointer(request)

    prices = {"strong": Price(input=5, output=20), "fast": Price(input="0.1", output="0.4")}
    workers = {
        "strong": ScriptedModel(skills.pointer, name="strong", price=prices["strong"]),
        "fast": ScriptedModel(fast, name="fast", price=prices["fast"]),
    }
    seed = next(seed for seed in range(9) if missed not in heldout_questions(task, seed, tmp_path))
    settings = LearnSettings(max_steps=1, seed=seed)
    record = await run_learn(task, workers, planner=build_planner(), out=tmp_path / "out", settings=settings)
    assert (record.gate.best_single, record.gate.cheapest_single) == ("strong", "fast")
    assert record.recommended == "cheapest single"
    assert read_conductor_file(tmp_path / "out").method == "cheapest single"
    trace = await Conductor.load(tmp_path / "out", pool=workers).run("Where, if we walk towards the west?")
    assert [result.step.worker for result in trace.results] == ["fast"]
    strong, cheap = record.workers
    assert (strong.name, strong.right.value, cheap.name) == ("strong", 1, "fast")
    assert 0.98 < cheap.right.value < 1
    assert cheap.usd < strong.usd / 40
    assert "Single workers" in (tmp_path / "out" / "report.html").read_text()


async def test_a_selector_that_asks_the_dear_worker_only_where_needed_is_recommended(tmp_path: Path) -> None:
    def strong(request: Request) -> str:
        place, city = skills.pointer(request), skills.atlas(request)
        return city if place == "?" else place

    workers = {
        "strong": ScriptedModel(strong, name="strong", price=Price(input=5, output=20)),
        "fast": ScriptedModel(skills.pointer, name="fast", price=Price(input="0.1", output="0.4")),
    }
    settings = LearnSettings(max_steps=1)
    record = await run_learn(build_wordings(), workers, planner=build_planner(), out=tmp_path, settings=settings)
    assert not record.gate.is_open
    assert record.gate.saving > 0.5
    assert report.gate_table(record).rows[-1][0] == "cheapest right workflow: dollars saved"
    assert record.proof is not None
    costs = {system.name: system.usd for system in record.proof.systems}
    assert costs["linear"] < costs["best single"]
    assert record.recommended == "linear"


def heldout_questions(task: Task, seed: int, folder: Path) -> set[str]:
    data = split_task(task, seed=seed, opening_file=folder / "heldout.json")
    return {sample.question for sample in data.heldout.task.samples}


async def test_a_chain_that_answers_everything_is_the_fixed_workflow(tmp_path: Path) -> None:
    record = await learn(build_task("chain"), build_pool(), planner=build_planner(), out=tmp_path)
    assert record.gate.best_fixed.startswith("atlas → speller")
    assert not record.gate.is_open
    assert record.gate.reason.startswith("a gain from choosing a workflow for each question is not shown with 7 groups")
    assert record.recommended == "best fixed"
    assert record.proof is not None
    rights = {system.name: system.right.value for system in record.proof.systems}
    assert (rights["best single"], rights["best fixed"]) == (0, 1)
    assert "examples" not in rights


def build_wordings() -> Task:
    """Builds a task of 36 questions in 12 groups: 8 of them need the pointer, and 4 the atlas."""
    openings = ("Where are we", "Who is there", "What happens", "How is it")
    wordings = [
        *(("direction", f"{opening} if we walk towards the {{}}?") for opening in openings),
        *(("direction", f"{opening} as soon as we walk towards the {{}}?") for opening in openings),
        *(("city", f"{opening} in the city of {{}}?") for opening in openings),
    ]
    samples = [
        Sample(
            id=f"{group}-{place}",
            question=wording.format(place),
            answer=place if kind == "direction" else f"pop{skills.CITIES.index(place)}",
            details={"group": str(group)},
        )
        for group, (kind, wording) in enumerate(wordings)
        for place in (skills.PLACES if kind == "direction" else skills.CITIES)[:3]
    ]
    return Task("wordings", tuple(samples), exact)


async def test_the_selector_is_evaluated_where_few_groups_leave_a_wide_interval(tmp_path: Path) -> None:
    record = await learn(build_wordings(), build_pool(), planner=build_planner(), out=tmp_path)
    room = record.gate.oracle_over_fixed
    assert not record.gate.is_open
    assert room.low < 0 < 0.3 < room.value
    assert f"is not shown with {room.groups} groups of questions" in record.gate.reason
    assert record.gate.reason.endswith("give more kinds of questions, or your own `group`")
    assert summaries(record)["linear"] == 1
    assert summaries(record)["best single"] < 0.8
    assert record.recommended == "linear"
    assert record.proof is not None
    assert record.proof.size in record.proof.reason
    assert re.fullmatch(r"n = \d+ in 4 groups", record.proof.size)
    assert (
        "4 groups of held-out questions can't show a gain or a loss, however large it is: 6 comparisons need at least "
        "8 held-out groups"
    ) in record.notes


async def test_all_learners_are_compared_without_room_if_none_is_required(tmp_path: Path) -> None:
    settings = LearnSettings(max_steps=2, requires_room=False)
    record = await run_learn(
        build_task("chain"), build_pool(), planner=build_planner(), out=tmp_path, settings=settings
    )
    assert not record.gate.is_open
    assert "examples" in {row.name for row in record.validation}
    assert record.proof is not None
    assert record.recommended == "best fixed"


def kill_after(rows: int) -> Callable[[LearnProgress], None]:
    """Returns a progress function that ends the run after some rows."""
    count = 0

    def on_progress(progress: LearnProgress) -> None:
        nonlocal count
        count += progress.row is not None
        if count >= rows:
            raise RuntimeError("killed")

    return on_progress


async def test_a_run_that_is_killed_three_times_ends_in_the_same_folder(tmp_path: Path) -> None:
    whole = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path / "whole")
    pool = build_pool()
    for rows in (5, 40, 40):
        with pytest.raises(ExceptionGroup):
            await learn(
                build_task(), pool, planner=build_planner(), out=tmp_path / "killed", on_progress=kill_after(rows)
            )
    with (tmp_path / "killed" / "experience.jsonl").open("a") as file:
        file.write('{"key": "half of a r')
    resumed = await learn(build_task(), pool, planner=build_planner(), out=tmp_path / "killed")
    assert resumed.proof is not None
    assert whole.proof is not None
    volatile = {"seconds"}
    assert [system.model_dump(exclude=volatile) for system in resumed.proof.systems] == [
        system.model_dump(exclude=volatile) for system in whole.proof.systems
    ]
    assert (resumed.gate, resumed.portfolio) == (whole.gate, whole.portfolio)
    for name in ("conductor.toml", "selector.json"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()


async def test_nothing_is_paid_twice(tmp_path: Path) -> None:
    pool = build_pool()
    first = await learn(build_task(), pool, planner=build_planner(), out=tmp_path)
    calls = count_calls(pool)
    second = await learn(build_task(), pool, planner=build_planner(), out=tmp_path)
    assert count_calls(pool) == calls
    assert (first.reused, second.reused) == (0, second.runs)
    assert second.portfolio == first.portfolio


async def test_replies_from_the_cache_are_counted_in_the_table_and_not_in_the_spending(tmp_path: Path) -> None:
    record = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    lines = (tmp_path / "experience.jsonl").read_text().splitlines()
    rows = [ExperienceRow.model_validate_json(line) for line in lines]
    spent = stored_usage(tmp_path / "replies.sqlite")
    assert (record.usd, record.tokens) == (spent.cost, spent.total_tokens)
    assert sum(row.tokens for row in rows) > 1.1 * spent.total_tokens  # workflows share steps
    again = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    assert (again.usd, again.tokens) == (record.usd, record.tokens)


async def test_a_cap_gives_a_smaller_search_with_a_whole_proof(tmp_path: Path) -> None:
    whole = await learn(build_task(), build_pool(PER_CALL), planner=build_planner(), out=tmp_path / "whole")
    cap = whole.usd * Decimal("0.8")
    pool = build_pool(PER_CALL)
    record = await learn(build_task(), pool, planner=build_planner(), out=tmp_path / "capped", budget=Limits(usd=cap))
    assert record.usd <= cap
    assert record.calls < whole.calls
    assert record.proof is not None
    assert record.proof.questions == record.questions["held-out"]
    assert any("smaller search" in note and "a thorough one takes about" in note for note in record.notes)
    assert summaries(record)["linear"] == 1


async def test_a_capped_run_that_is_killed_spends_no_more_and_ends_in_the_same_folder(tmp_path: Path) -> None:
    budget = Limits(usd=Decimal("0.15"))
    whole = await learn(
        build_task(), build_pool(PER_CALL), planner=build_planner(), out=tmp_path / "whole", budget=budget
    )
    assert whole.proof is not None
    pool = build_pool(PER_CALL)
    for rows in (2, 15, 40):  # in the first measurements, and in the search
        with pytest.raises(ExceptionGroup):
            await learn(
                build_task(),
                pool,
                planner=build_planner(),
                out=tmp_path / "killed",
                budget=budget,
                on_progress=kill_after(rows),
            )
    resumed = await learn(build_task(), pool, planner=build_planner(), out=tmp_path / "killed", budget=budget)
    assert (resumed.gate, resumed.portfolio, resumed.recommended) == (whole.gate, whole.portfolio, whole.recommended)
    for name in ("conductor.toml", "selector.json"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    in_flight = 3 * LearnSettings().concurrency
    assert CALL * (count_calls(pool) - in_flight) <= resumed.usd <= Decimal("0.15")


async def test_seconds_do_not_include_the_wait_for_a_worker(tmp_path: Path) -> None:
    worker = Worker.of("slow", ScriptedModel("?", name="slow", delay=0.05, price=FREE), concurrency=1)
    started = time.monotonic()
    await run_learn(
        build_task(),
        WorkerPool([worker]),
        planner=build_planner(),
        out=tmp_path,
        settings=LearnSettings(max_steps=1),
    )
    elapsed = time.monotonic() - started
    rows = [
        ExperienceRow.model_validate_json(line) for line in (tmp_path / "experience.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 14
    assert 14 * 0.05 <= sum(row.seconds for row in rows) <= elapsed  # one call at a time


@pytest.mark.parametrize("cap", [Decimal("0.02"), Decimal("0.1")])
async def test_a_cap_in_dollars_is_never_passed(tmp_path: Path, cap: Decimal) -> None:
    pool = build_pool(Price(input=1, output=1, per_call=Decimal("0.0005")))
    budget = Limits(usd=cap)
    try:
        record = await learn(build_task(), pool, planner=build_planner(), out=tmp_path, budget=budget)
        assert any("cap" in note for note in record.notes)
        assert record.usd <= cap
    except LimitError as error:
        assert "the caps" in str(error)  # noqa: PT017  either end is right
    paid = Decimal("0.0005") * count_calls(pool)
    assert paid <= cap
    assert stored_usage(tmp_path / "replies.sqlite").cost <= cap


async def test_a_cap_in_tokens_is_never_passed(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match=r"the caps are too low to ask the workers a single question"):
        await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path, budget=Limits(tokens=300))
    assert stored_usage(tmp_path / "replies.sqlite").total_tokens <= 300


async def test_the_caps_that_an_error_names_suffice_although_a_dear_worker_was_not_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def dear_pool() -> WorkerPool:
        dear = ScriptedModel(skills.speller, name="dear", price=Price(input=100, output=100))
        speller = Worker.of("speller", dear, description="speller", sampling=Sampling(max_tokens=40))
        return WorkerPool([speller, *(worker for worker in build_pool().values() if worker.name != "speller")])

    with pytest.raises(LimitError, match="raise the caps") as caught:
        await learn(
            build_task(), dear_pool(), planner=build_planner(), out=tmp_path, budget=Limits(usd=Decimal("0.015"))
        )
    (warning,) = [message for message in caplog.messages if "can't be measured" in message]
    assert warning.startswith("speller can't be measured: each call reserves $0.0")
    assert "lower its max_tokens (now 40), or raise the caps to $0.0" in warning

    caplog.clear()
    enough = Limits(usd=Decimal(str(caught.value.needed)))
    record = await learn(build_task(), dear_pool(), planner=build_planner(), out=tmp_path, budget=enough)
    assert not any("cap" in note for note in record.notes)
    assert "can't be measured" not in caplog.text


async def test_a_search_that_a_cap_ended_says_what_a_thorough_one_takes(tmp_path: Path) -> None:
    pool = WorkerPool(
        replace(worker, sampling=Sampling(max_tokens=16)) for worker in build_pool(Price(input=10, output=10)).values()
    )
    budget = Limits(usd=Decimal("0.08"))
    record = await learn(build_task(), pool, planner=build_planner(), out=tmp_path, budget=budget)
    assert any(note.startswith("a cap ended exploration early") for note in record.notes)
    (note,) = [note for note in record.notes if "a thorough one takes about $" in note]
    assert note.startswith("the caps left room for a smaller search only; ")  # the planned search was the whole one


async def test_a_cap_that_leaves_nothing_for_the_proof_is_named_and_the_heldout_questions_stay_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use_up(run: LearnRun, *arguments: Any) -> Any:
        run.budget.total.charge(Amount(tokens=10**6 - run.budget.total.spent.tokens))
        return await validate_learners(run, *arguments)

    monkeypatch.setattr(pipeline, "validate_learners", use_up)
    with pytest.raises(
        LimitError, match=r"to ask every system a single held-out question: the tokens ran out"
    ) as caught:
        await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path, budget=Limits(tokens=10**6))
    assert caught.value.limit == "tokens"
    assert not (tmp_path / "heldout.json").exists()
    with pytest.raises(ConfigError, match=r"learning did not finish; run the same .* with higher caps if one ended it"):
        Conductor.load(tmp_path)


async def test_a_cap_that_no_call_fits_is_named_beside_a_long_time(tmp_path: Path) -> None:
    budget = Limits(usd=Decimal("0.000001"), seconds=600)
    with pytest.raises(LimitError, match="to ask the workers a single question: the dollars ran out"):
        await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path, budget=budget)


async def test_a_cap_in_minutes_ends_the_run_and_leaves_no_half_results(tmp_path: Path) -> None:
    slow = ScriptedModel("?", name="slow", delay=30, price=FREE)
    started = time.monotonic()
    with pytest.raises(LimitError, match="the caps are too low"):
        await learn(build_task(), {"slow": slow}, planner=build_planner(), out=tmp_path, budget=Limits(seconds=1.0))
    assert time.monotonic() - started < 20
    assert not len(Experience(tmp_path / "experience.jsonl"))


async def test_functions_that_see_no_question_are_noted_and_do_not_plan(tmp_path: Path) -> None:
    def blind(subtask: str) -> str:
        """Repeats its part."""
        return subtask

    def seeing(question: str) -> str:
        """Repeats the question."""
        return question

    workers: dict[str, Any] = {"blind": blind, "seeing": seeing, "model": ScriptedModel("?", name="model", price=FREE)}
    record = await learn(build_task(), workers, out=tmp_path)
    assert "blind can't see the question in a chain; give the function a parameter called 'question'" in record.notes
    assert read_conductor_file(tmp_path).planner == "scripted:model"
    assert Conductor.load(tmp_path, pool=workers).pool.keys() == workers.keys()


async def test_failures_are_rows_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Request) -> Exception:
        return ModelError("out of order", model="broken")

    workers = {"atlas": ScriptedModel(skills.atlas, price=FREE), "broken": ScriptedModel(fail, price=FREE)}
    filters = [*logging.getLogger("rl_conductor.run").filters]
    record = await learn(build_task(), workers, planner=build_planner(), out=tmp_path)
    assert any(note.startswith("broken failed on all of") for note in record.notes)
    calls = [row for row in Experience(tmp_path / "experience.jsonl").rows(build_task().samples) if row.error]
    assert len(calls) == PILOT  # it is not asked again
    assert "out of order" not in caplog.text
    assert logging.getLogger("rl_conductor.run").filters == filters  # runs of others are logged again


async def test_a_worker_that_fails_at_times_is_reported_with_its_most_frequent_reason(tmp_path: Path) -> None:
    tries: list[Request] = []

    def flaky(request: Request) -> str:
        tries.append(request)
        if len(tries) % 2:
            return skills.atlas(request)
        raise ModelError("overloaded" if len(tries) % 8 else "no such route", model="flaky")

    workers = {**{name: worker.model for name, worker in build_pool().items()}, "atlas": ScriptedModel(flaky)}
    record = await learn(build_task(), workers, planner=build_planner(), out=tmp_path)
    (failures,) = record.failures
    assert (failures.worker, failures.failed, failures.calls) == ("atlas", len(tries) // 2, len(tries))
    row = ("atlas", "overloaded", f"{len(tries) // 2} of {len(tries)}")
    assert report.failure_table(record).rows == (row,)
    assert "Calls that failed" in (tmp_path / "report.html").read_text()


async def test_a_planner_whose_calls_fail_is_reported_as_one(tmp_path: Path) -> None:
    def fail(_: Request) -> Exception:
        return ModelError("no such model", model="planner")

    planner = Planner(model=ScriptedModel(fail, name="planner", price=FREE))
    record = await learn(build_task(), build_pool(), planner=planner, out=tmp_path)
    (failures,) = record.failures
    assert (failures.worker, failures.failed, failures.reason) == ("the planner", failures.calls, "no such model")
    assert record.proof is not None
    note = f"prompted planner: there was no valid plan for {_all_questions(record)}, so the fallback plan was run"
    assert f"{note}: no such model" in record.notes


async def test_a_planner_that_writes_no_valid_plan_is_reported(tmp_path: Path) -> None:
    planner = Planner(model=ScriptedModel("I would ask the atlas.", name="planner", price=FREE))
    record = await learn(build_task(), build_pool(), planner=planner, out=tmp_path)
    assert not record.failures
    (note,) = (note for note in record.notes if note.startswith("prompted planner"))
    assert note.startswith(f"prompted planner: there was no valid plan for {_all_questions(record)}, so the fallback")


def _all_questions(record: LearnRecord) -> str:
    assert record.proof is not None
    return f"{record.proof.questions} of {record.proof.questions} held-out questions"


async def test_a_worker_whose_replies_are_cut_off_is_reported_with_their_share(tmp_path: Path) -> None:
    def cut_off(request: Request) -> Completion | str:
        text = skills.atlas(request)
        if text == "?":
            return text
        return Completion(message=Message.assistant(text[:1]), finish_reason="length", model="atlas")

    workers = {**{name: worker.model for name, worker in build_pool().items()}, "atlas": ScriptedModel(cut_off)}
    record = await learn(build_task(), workers, planner=build_planner(), out=tmp_path)
    (row,) = record.cut_off
    assert (row.worker, row.reason) == ("atlas", "length")
    assert 0 < row.cut_off < row.replies
    ((worker, remedy, share),) = cut_off_table(record.cut_off).rows
    assert (worker, remedy) == ("atlas", "max_tokens was reached: raise it for this model")
    assert share.startswith(f"{row.cut_off} of {row.replies} (")
    assert remedy in (tmp_path / "report.html").read_text()
    assert not record.failures

    resumed = await learn(build_task(), workers, planner=build_planner(), out=tmp_path)
    assert resumed.cut_off == record.cut_off


async def test_a_report_without_failed_calls_does_not_mention_them(tmp_path: Path) -> None:
    record = await learn(build_task(), build_pool(), planner=build_planner(), out=tmp_path)
    assert not record.failures
    html = (tmp_path / "report.html").read_text()
    assert "Calls that failed" not in html
    assert "Replies that were cut off" not in html


async def test_a_cap_in_dollars_needs_prices(tmp_path: Path) -> None:
    pool = build_pool()
    pool["atlas"].model.price = None  # type: ignore[misc]
    with pytest.raises(ConfigError, match="the price of worker"):
        await learn(
            build_task(),
            {name: worker.model for name, worker in pool.items()},
            planner=build_planner(),
            out=tmp_path,
            budget=Limits(usd=1),
        )


async def test_a_cost_of_which_a_part_is_unknown_is_shown_as_a_lower_bound(tmp_path: Path) -> None:
    pool = build_pool()
    for worker in pool.values():
        worker.model.price = None  # type: ignore[misc]
    workers = {name: worker.model for name, worker in pool.items()}
    record = await learn(build_task(), workers, planner=build_planner(), out=tmp_path)
    assert record.proof is not None
    costs = {row[0].removesuffix(" *"): row[3] for row in report.system_table(record.proof).rows}
    assert costs["best fixed"] == "?"
    assert costs["prompted planner"].startswith("≥ $0.")
    assert re.match(r"at least \$0\.\d+ \(\d+ calls unpriced\), ", report.describe_spending(record))
    assert "calls unpriced" in (tmp_path / "report.html").read_text()


async def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learning needs at least 10 groups"):
        await learn(build_task(count=4), build_pool(), planner=build_planner(), out=tmp_path)


async def test_a_worker_is_not_credited_with_the_answers_of_its_replacement(tmp_path: Path) -> None:
    pool = WorkerPool([Worker.of("dead", dead_model("model not found")), *build_pool().values()])
    result = await learn(build_task(), pool, planner=build_planner(), out=tmp_path)
    rows = Experience(tmp_path / "experience.jsonl").rows(build_task().samples)
    alone = [row for row in rows if row.workflow is not None and [s.worker for s in row.workflow.steps] == ["dead"]]
    assert alone
    assert all(row.score == 0 and row.error and "model not found" in row.error for row in alone)
    assert any("dead failed on all of" in note and "model not found" in note for note in result.notes)


def dead_model(message: str) -> ScriptedModel:
    def fail(_: object) -> str:
        raise ModelError(message, model="dead", status=404)

    return ScriptedModel(fail, price=FREE)


async def test_nothing_is_learned_if_every_worker_fails(tmp_path: Path) -> None:
    dead = dead_model("can't reach it")
    with pytest.raises(ConfigError, match=r"no worker gave an answer, so nothing can be learned: .*can't reach it"):
        await learn(build_task(), {"dead": dead}, planner=build_planner(), out=tmp_path)


async def test_replies_around_the_right_answer_are_a_warning_at_the_start_and_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [
        {"question": f"What is {n} plus {n} in {city}?", "answer": str(2 * n)} for n in range(10, 20) for city in "ab"
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def reply(request: Request) -> str:
        number = re.findall(r"What is (\d+)", prompt_in(request.messages))[0]
        return f"That would be {2 * int(number)} then.\n\nDo you have another question?"

    chatty = ScriptedModel(reply, name="chatty", price=FREE)
    record = await learn(tmp_path / "q.jsonl", {"chatty": chatty}, planner=build_planner(), out=tmp_path / "out")
    remark = "different replies that count as wrong contain the right answer, such as 'That would be"
    assert [sum(remark in text for text in texts) for texts in (caplog.messages, record.notes)] == [1, 1]


async def test_a_failing_scorer_is_named_with_its_question(tmp_path: Path) -> None:
    async def fail(_sample: Sample, _text: str) -> Score:
        raise ValueError("oops")

    task = replace(build_task(), scorer=fail)
    with pytest.raises(ConfigError, match=r"the scorer of 'skills' failed on question '\w+-\d+' .*: ValueError: oops"):
        await learn(task, build_pool(), planner=build_planner(), out=tmp_path)


def judged_task(folder: Path, price: Price | None) -> Task:
    judge = ScriptedModel(skills.judge, name="judge", price=price)
    lines = [
        {"question": sample.question, "answer": sample.answer, "scoring": "judge", "group": sample.id}
        for sample in build_task().samples
    ]
    (folder / "judged.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return load_task(f"jsonl:{folder / 'judged.jsonl'}", judge=judge)


async def test_the_cost_of_a_judge_is_spent_but_is_not_that_of_a_system(tmp_path: Path) -> None:
    task, out = judged_task(tmp_path, PER_CALL), tmp_path / "out"
    record = await learn(task, build_pool(FREE), planner=build_planner(), out=out)
    assert record.proof is not None
    costs = {system.name: system.usd for system in record.proof.systems if not system.planner_calls}
    assert costs == dict.fromkeys(("best single", "best fixed", "linear", "oracle"), 0)
    experience = Experience(out / "experience.jsonl")
    assert experience.scoring_usage().cost > 0
    assert record.usd == experience.scoring_usage().cost + stored_usage(out / "replies.sqlite").cost


async def test_calls_that_left_no_result_before_an_interruption_count_in_the_process_that_goes_on(
    tmp_path: Path,
) -> None:
    """A worker's call that failed, and a judge's calls for answers whose rows were not written."""
    judge = ScriptedModel(skills.judge, name="judge", price=PER_CALL, delay=0.002)
    planner = Planner(model=ScriptedModel("no plan", name="planner", price=FREE))
    task = replace(build_task(), scorer=Judge(judge), judge_price=PER_CALL)
    pool = build_pool(PER_CALL)
    failures = [ModelError("down", model="atlas", status=500)] * 2

    def atlas(request: Request) -> str | Exception:
        return failures.pop() if failures else skills.atlas(request)

    broken = ScriptedModel(atlas, name="atlas", price=PER_CALL)
    pool = WorkerPool(replace(pool[name], model=broken) if name == "atlas" else pool[name] for name in pool)
    for rows in (3, 20):
        with pytest.raises(ExceptionGroup):
            await learn(task, pool, planner=planner, out=tmp_path, on_progress=kill_after(rows))
    record = await learn(task, pool, planner=planner, out=tmp_path)
    billed = CALL * (count_calls(pool) + len(judge.requests))
    in_flight = 2 * 2 * LearnSettings().concurrency  # of two processes, with two calls of the judge for each answer
    assert billed <= record.usd <= billed + CALL * in_flight
    answered = stored_usage(tmp_path / "replies.sqlite") + Experience(tmp_path / "experience.jsonl").scoring_usage()
    assert record.unanswered_usd == record.usd - answered.cost > 0
    unanswered = f"(of this, {dollars(record.unanswered_usd)}"
    assert unanswered in report.describe_spending(record)
    assert "the most that failed and interrupted calls can have taken)" in (tmp_path / "report.html").read_text()


async def test_without_failed_calls_no_part_of_the_spending_is_an_upper_bound(tmp_path: Path) -> None:
    pool = build_pool(PER_CALL)
    record = await learn(build_task(), pool, planner=build_planner(), out=tmp_path, budget=Limits(tokens=10**6))
    assert record.unanswered_usd == record.unanswered_tokens == 0
    assert "of this" not in report.describe_spending(record)


async def test_a_judge_without_a_price_is_refused_under_a_cap_in_dollars(tmp_path: Path) -> None:
    task = judged_task(tmp_path, None)
    with pytest.raises(ConfigError, match=r"usd=5 can't be enforced: the price of the judge scripted:judge is unknown"):
        await learn(task, build_pool(), planner=build_planner(), out=tmp_path / "out", budget=Limits(usd=5))


async def test_functions_need_only_the_name_of_a_planner_and_the_path_of_the_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "skill", skills.PROVIDER)
    questions = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} plus {n}?", "answer": str(2 * n), "group": str(n)} for n in range(12)]
    questions.write_text("\n".join(map(json.dumps, rows)))

    def double(question: str) -> str:
        """Doubles numbers."""
        return str(2 * int(question.split()[2]))

    record = await learn(questions, {"double": double}, planner="skill:pointer", out=tmp_path / "out")
    assert record.recommended == "best single"
    conductor = Conductor.load(tmp_path / "out", pool={"double": double}, planner="skill:pointer")
    assert (await conductor.run("What is 21 plus 21?")).text == "42"
