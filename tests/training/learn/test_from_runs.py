"""`learn --from-runs`: production runs with feedback become questions, experience and examples."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rl_conductor import (
    Conductor,
    ConfigError,
    Limits,
    Message,
    Planner,
    Request,
    RunError,
    ScriptedModel,
    Step,
    Workflow,
)
from rl_conductor.cli.main import app
from rl_conductor.models import PROVIDERS
from rl_conductor.planning.fallback import single_step
from rl_conductor.trace import Feedback, Trace
from rl_conductor.types import JsonFormat, Tool
from rl_conductor_training.learn import FeedbackLearnRecord, LearnRecord, LearnSettings
from rl_conductor_training.learn import learn_from_runs as run_learn_from_runs
from rl_conductor_training.learn.data import HeldOutOpening
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.learners.base import Lessons
from rl_conductor_training.learn.learners.examples import NearestExamples
from rl_conductor_training.learn.learners.fixed import BestWorker, BestWorkflow
from rl_conductor_training.learn.production.stored_runs import read_stored_runs, request_text, stored_run
from rl_conductor_training.learn.report import feedback_table
from rl_conductor_training.learn.search.plan import SearchPlan
from rl_conductor_training.workers.cached_model import stored_usage
from training.learn import skills
from training.learn.skills import CITIES, PLACES, build_planner, build_pool, count_calls, pointer

learn_from_runs = partial(run_learn_from_runs, settings=LearnSettings(max_steps=2))
WORDS = ("red", "tall", "long", "mild", "loud", "calm", "grey", "brief", "warm", "late", "plain", "round")
"""Each makes a question a group of its own."""
CHAIN = Workflow(
    steps=(
        Step(subtask="Find the population.", worker="atlas"),
        Step(subtask="Spell it backwards.", worker="speller", access=frozenset({0})),
    )
)
POINT = Workflow(steps=(Step(subtask="Answer.", worker="pointer"),))


def rating(score: float, author: str = "red", key: str = "user_score") -> Feedback:
    return Feedback(author=author, key=key, score=score, updated=datetime(2026, 11, 1, tzinfo=UTC))


def run(question: str | Request, workflow: Workflow, *ratings: Feedback, **workers: Any) -> Trace:
    """Returns the trace of a production run with its feedback."""
    pool = workers or build_pool()
    try:
        trace = asyncio.run(Conductor(ScriptedModel("-"), pool).run(question, workflow=workflow))
    except RunError as error:
        trace = error.trace
    return trace.model_copy(update={"feedback": ratings})


def chain_question(number: int) -> str:
    return f"Spell backwards the population of the city of {CITIES[number]} for my {WORDS[number]} essay."


def point_question(number: int) -> str:
    return f"After the {WORDS[number]} tour, where do we go if we walk towards the {PLACES[number % 4]}?"


def production(count: int = 10, first: int = 0, *, rated: bool = True) -> list[Trace]:
    """Returns runs of two kinds of questions; the right worker or chain answered each."""
    feedback = [rating(1)] if rated else []
    return [
        run(question(number), workflow, *feedback)
        for number in range(first, first + count)
        for question, workflow in ((chain_question, CHAIN), (point_question, POINT))
    ]


def export(path: Path, traces: Sequence[Trace]) -> Path:
    """Writes the traces as `runs --export` does."""
    path.write_text("".join(f"{trace.model_dump_json()}\n" for trace in traces))
    return path


def judge_reply(request: Request) -> str:
    """Compares two replies; a reply alone is right if it is no question mark."""
    replies = re.findall(r"<reply[^>]*>\n(.*?)\n</reply", request.messages[-1].text, re.DOTALL)
    return "yes" if len(set(replies)) == 1 and replies[0] != "?" else "no"


# --------------------------------------------------------------------------------- feedback alone


async def test_liked_plans_become_examples_and_no_worker_is_called(tmp_path: Path) -> None:
    traces = await asyncio.to_thread(production, 3)
    pool, planner, seen = build_pool(), build_planner(), list[str]()
    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", traces), pool, out=tmp_path / "out", planner=planner, on_counts=seen.append
    )
    assert isinstance(record, FeedbackLearnRecord)
    assert seen == ["6 runs: 6 rated"]
    assert (record.questions, record.examples) == (6, 6)
    assert {shape.workflow: shape.score.value for shape in record.shapes} == {"atlas → speller": 1.0, "pointer": 1.0}
    assert count_calls(pool) == 0
    assert not planner.model.requests  # type: ignore[attr-defined]

    reply = "model_id = [0, 1]\nsubtasks = ['Find.', 'Spell.']\naccess_list = [[], ['all']]"
    loaded = Conductor.load(tmp_path / "out", pool=build_pool(), planner=Planner(model=ScriptedModel(reply)))
    trace = await loaded.run(chain_question(5))
    assert trace.text == "5pop"
    prompt = trace.rounds[0].plan.calls[0].request
    assert prompt is not None
    assert prompt.messages[-3].text.startswith("Question:\nSpell backwards")
    assert "[0, " in prompt.messages[-2].text


async def test_an_unknown_price_of_a_production_run_is_shown_as_unknown(tmp_path: Path) -> None:
    models = {name: worker.model for name, worker in build_pool().items()} | {
        "pointer": ScriptedModel(pointer, price=None)
    }
    traces = [
        await asyncio.to_thread(partial(run, question, workflow, rating(1), **models))
        for question, workflow in ((chain_question(0), CHAIN), (point_question(0), POINT))
    ]
    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", traces), models, out=tmp_path / "out", planner=build_planner()
    )
    assert isinstance(record, FeedbackLearnRecord)
    costs = {row[0]: row[3] for row in feedback_table(record.shapes).rows}
    assert costs["atlas → speller"].startswith("$0.")
    assert costs["pointer"] == "?"


async def test_a_file_without_liked_runs_of_this_pool_teaches_nothing(tmp_path: Path) -> None:
    disliked = await asyncio.to_thread(run, point_question(0), POINT, rating(0))
    unrated = await asyncio.to_thread(run, point_question(1), POINT)
    for traces in ([disliked], [unrated]):
        path = export(tmp_path / "runs.jsonl", traces)
        with pytest.raises(ConfigError, match="no run with positive feedback"):
            await learn_from_runs(path, build_pool(), out=tmp_path / traces[0].id, planner=build_planner())
    liked = await asyncio.to_thread(run, point_question(0), POINT, rating(1))
    path = export(tmp_path / "runs.jsonl", [liked])
    with pytest.raises(ConfigError, match="used the workers of this pool"):
        await learn_from_runs(path, {"other": ScriptedModel("hi")}, out=tmp_path / "out")


async def test_a_worker_with_another_model_is_another_worker(tmp_path: Path) -> None:
    liked = await asyncio.to_thread(run, point_question(0), POINT, rating(1))
    stored = read_stored_runs(export(tmp_path / "runs.jsonl", [liked]))
    assert len(stored.rated_workflows(build_pool())) == 1
    pool = Conductor(ScriptedModel("-"), {"pointer": ScriptedModel("north", name="newer")}).pool
    assert stored.rated_workflows(pool) == []
    assert stored.report(pool) == "1 runs: 1 rated, 1 with workers that the pool lacks"


# ----------------------------------------------------------------------------------- what is used


def test_each_run_is_used_once_or_counted(tmp_path: Path) -> None:
    question = point_question(0)
    both = Workflow(steps=(CHAIN.steps[0], Step(subtask="Answer.", worker="pointer", access=frozenset({0}))))
    broken = {"pointer": lambda _request: 1 / 0}
    tool = Tool(name="look")
    traces = [
        run(question, POINT, rating(1), rating(0.5, author="blue", key="tone")),
        run(question, POINT),
        run(question, POINT, rating(1), rating(0, author="@administrator")),
        run(question, POINT, rating(1), **broken),
        run(Request(messages=(Message.user(question),), tools=(tool,)), POINT, rating(1)),
        run("x" * 20_000, POINT, rating(1)),
        run(question, both, rating(0)),
    ]
    stored = read_stored_runs(export(tmp_path / "runs.jsonl", traces))
    assert dict(stored.counts) == {
        "rated": 2,
        "without feedback": 1,
        "with contradictory feedback": 1,
        "without an answer": 1,
        "with tools, images or files": 1,
        "too long": 1,
    }
    assert len(stored.runs) == 5
    (sample,) = stored.samples(only_rated=False)
    assert (sample.question, sample.answer) == (question, "")
    assert sorted(rated.score for rated in stored.rated_workflows(build_pool())) == [0.0, 0.75]
    only_tone = read_stored_runs(tmp_path / "runs.jsonl", feedback_key="tone")
    assert [rated.score for rated in only_tone.rated_workflows(build_pool())] == [0.5]


def test_several_ratings_of_one_workflow_on_one_question_are_averaged(tmp_path: Path) -> None:
    traces = [run(point_question(0), POINT, rating(score)) for score in (1, 1, 0)]
    stored = read_stored_runs(export(tmp_path / "runs.jsonl", [*traces, traces[0]]))
    (rated,) = stored.rated_workflows(build_pool())
    assert rated.score == pytest.approx(2 / 3)
    assert stored.counts == {"rated": 3}


def test_the_costs_are_those_of_the_steps_without_planning() -> None:
    trace = run(chain_question(3), CHAIN, rating(1))
    row = stored_run(trace)
    assert (row.usd, row.tokens, row.calls) == (trace.usage.cost, trace.usage.total_tokens, 2)
    assert row.usd > 0


def test_the_last_question_is_learned_and_the_conversation_is_kept(tmp_path: Path) -> None:
    turns = (Message.system("Be short."), Message.user("Hi."), Message.assistant("Hello."), Message.user("Where to?"))
    form = JsonFormat(name="answer", json_schema={"type": "object"})
    talk = run(Request(messages=turns), POINT, rating(1))
    stored = read_stored_runs(export(tmp_path / "runs.jsonl", [talk]))
    (sample,) = stored.samples(only_rated=True)
    assert sample.question == "Where to?"
    assert request_text(sample) == "system: Be short.\n\nuser: Hi.\n\nassistant: Hello.\n\nuser: Where to?"
    alone = stored_run(run("Where to?", POINT, rating(1)))
    shaped = talk.model_copy(update={"request": Request(messages=turns[-1:], response_format=form)})
    assert len({run_.sample_id for run_ in (stored_run(talk), alone, stored_run(shaped))}) == 3


def test_a_file_that_holds_no_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="contains no runs"):
        read_stored_runs(tmp_path / "empty.jsonl")
    (tmp_path / "other.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(ConfigError, match="line 1 of"):
        read_stored_runs(tmp_path / "other.jsonl")


# ----------------------------------------------------------------------------------- with a judge


async def test_a_judge_makes_the_questions_a_task_and_the_runs_experience(tmp_path: Path) -> None:
    traces = await asyncio.to_thread(production)
    judge = ScriptedModel(judge_reply, name="judge")
    out = tmp_path / "out"
    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", traces), build_pool(), out=out, planner=build_planner(), judge=judge
    )
    assert isinstance(record, LearnRecord)
    assert record.recommended == "linear"
    experience = Experience(out / "experience.jsonl")
    assert (out / "experience.jsonl").read_text().count('"source":"production"') == 20
    replies, scoring = stored_usage(out / "replies.sqlite"), experience.scoring_usage()
    assert record.usd == replies.cost + scoring.cost  # production cost nothing here
    conductor = Conductor.load(out, pool=build_pool(), planner=build_planner())
    assert [(await conductor.run(question(7))).text for question in (chain_question, point_question)] == [
        "7pop",
        PLACES[3],
    ]


async def test_ratings_of_users_teach_but_replace_no_run_that_is_compared_or_proved(tmp_path: Path) -> None:
    def rated_runs() -> list[Trace]:
        return [
            run(question(number), workflow, rating(1))
            for number in range(10)
            for question, workflow in ((chain_question, CHAIN), (point_question, single_step("pointer")))
        ]

    fitted: list[Lessons] = []

    class Observed(NearestExamples):
        def fit(self, lessons: Lessons) -> None:
            fitted.append(lessons)
            super().fit(lessons)

    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", await asyncio.to_thread(rated_runs)),
        build_pool(),
        out=tmp_path / "out",
        planner=build_planner(),
        judge=ScriptedModel("no", name="judge"),
        settings=LearnSettings(max_steps=1, requires_room=False, learners=(BestWorker, BestWorkflow, Observed)),
    )
    assert isinstance(record, LearnRecord)
    assert record.proof is not None
    assert record.gate.oracle.value == 0
    assert {system.right.value for system in record.proof.systems} == {0}
    tables = [lessons.table for lessons in fitted]
    right = [row for table in tables for sample in table.samples for row in table.best_rows(sample)]
    assert {(row.source, row.workflow) for row in right} == {("production", CHAIN)}


async def test_runs_without_feedback_are_questions_for_the_judge(tmp_path: Path) -> None:
    traces = await asyncio.to_thread(partial(production, rated=False))
    judge = ScriptedModel(judge_reply, name="judge")
    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", traces),
        build_pool(),
        out=tmp_path / "out",
        planner=build_planner(),
        judge=judge,
    )
    assert isinstance(record, LearnRecord)
    assert sum(record.questions.values()) == 20
    assert any("a reply stand between fences" in request.messages[-1].text for request in judge.requests)


async def test_a_cap_holds_for_the_judge_as_well(tmp_path: Path) -> None:
    traces = await asyncio.to_thread(production)
    judge = ScriptedModel(judge_reply, name="judge", price=build_pool()["atlas"].model.price)
    record = await learn_from_runs(
        export(tmp_path / "runs.jsonl", traces),
        build_pool(),
        out=tmp_path / "out",
        planner=build_planner(),
        judge=judge,
        budget=Limits(tokens=20_000),
    )
    assert isinstance(record, LearnRecord)
    assert record.tokens <= 20_000
    assert any("a cap ended" in note for note in record.notes)


async def test_an_update_goes_on_from_the_folder_and_trains_on_what_was_held_out(tmp_path: Path) -> None:
    traces = await asyncio.to_thread(production, 12)
    judge, out = ScriptedModel(judge_reply, name="judge"), tmp_path / "out"
    learn = partial(learn_from_runs, planner=build_planner(), out=out, judge=judge)
    first = await learn(export(tmp_path / "a.jsonl", traces[:20]), build_pool())
    assert isinstance(first, LearnRecord)
    opened = HeldOutOpening.model_validate_json((out / "heldout.json").read_text())
    with pytest.raises(ConfigError, match="was learned from other runs; add --update"):
        await learn(export(tmp_path / "b.jsonl", traces[20:]), build_pool())

    pool = build_pool()
    second = await learn(tmp_path / "b.jsonl", pool, update=True)
    assert isinstance(second, LearnRecord)
    assert sum(second.questions.values()) == 24
    archived = HeldOutOpening.model_validate_json((out / "heldout-1.json").read_text())
    reopened = HeldOutOpening.model_validate_json((out / "heldout.json").read_text())
    assert archived == opened
    assert len(opened.samples) == first.questions["held-out"]
    assert not set(reopened.samples) & set(opened.samples)
    plan = SearchPlan.model_validate_json((out / "plan.json").read_text())
    assert plan.rounds[-1].questions == second.questions["training"] > first.questions["training"]
    calls = count_calls(pool)
    assert await learn(tmp_path / "b.jsonl", pool, update=True)
    assert count_calls(pool) == calls
    assert not (out / "heldout-2.json").exists()


async def test_an_update_that_can_not_begin_adds_no_runs_to_the_folder(tmp_path: Path) -> None:
    traces, out = await asyncio.to_thread(production, 12), tmp_path / "out"
    judge = ScriptedModel(judge_reply, name="judge", price=None)
    learn = partial(learn_from_runs, planner=build_planner(), out=out, judge=judge)
    await learn(export(tmp_path / "a.jsonl", traces[:20]), build_pool())
    stored = {path.name: path.read_text() for path in (out / "runs.jsonl", out / "heldout.json")}
    with pytest.raises(ConfigError, match="the price of the judge"):
        await learn(export(tmp_path / "b.jsonl", traces[20:]), build_pool(), update=True, budget=Limits(usd=1))
    assert {name: (out / name).read_text() for name in stored} == stored
    assert not (out / "heldout-1.json").exists()


async def test_changed_feedback_replaces_the_earlier_one_in_an_update(tmp_path: Path) -> None:
    liked = await asyncio.to_thread(run, point_question(0), POINT, rating(1))
    other = await asyncio.to_thread(run, point_question(1), POINT, rating(1))
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="nothing to update"):
        await learn_from_runs(export(tmp_path / "a.jsonl", [liked]), build_pool(), out=out, update=True)
    first = await learn_from_runs(export(tmp_path / "a.jsonl", [liked, other]), build_pool(), out=out)
    disliked = liked.model_copy(update={"feedback": (rating(0),)})
    second = await learn_from_runs(export(tmp_path / "b.jsonl", [disliked]), build_pool(), out=out, update=True)
    assert isinstance(first, FeedbackLearnRecord)
    assert isinstance(second, FeedbackLearnRecord)
    assert (first.examples, second.examples, second.questions) == (2, 1, 2)


async def test_a_proved_conductor_is_not_replaced_without_a_judge(tmp_path: Path) -> None:
    liked = await asyncio.to_thread(run, point_question(0), POINT, rating(1))
    path, out = export(tmp_path / "a.jsonl", [liked]), tmp_path / "out"
    out.mkdir()
    (out / "heldout.json").write_text('{"opened": "2026-01-01T00:00:00Z", "questions": 1, "seed": 0}')
    with pytest.raises(ConfigError, match=r"evaluated on held-out questions.*name a judge, or another folder"):
        await learn_from_runs(path, build_pool(), out=out)
    assert [file.name for file in out.iterdir()] == ["heldout.json"]


# ---------------------------------------------------------------------------------------- command


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["learn", *map(str, arguments)])


def test_the_command_learns_from_runs_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "skill", skills.PROVIDER)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "pool.toml").write_text(skills.POOL)
    hostile = run("\x1b]0;owned\x07 [red]walk towards the north[/red]", POINT, rating(1))
    path = export(tmp_path / "runs.jsonl", [*production(2), hostile, run(point_question(9), POINT)])
    options = ("--pool", tmp_path / "pool.toml", "--out", tmp_path / "out")
    result = invoke("--from-runs", path, *options)
    assert result.exit_code == 0, result.output
    assert "6 runs: 5 rated, 1 without feedback" in result.output
    assert "atlas → speller" in result.output
    assert "5 liked plans for the planner. Nothing was evaluated." in result.output
    assert "\x1b]0" not in result.output
    for arguments, message in (
        (options, "write either a TASK"),
        (("questions.jsonl", "--from-runs", path, *options), "write either a TASK"),
        (("questions.jsonl", "--update", *options), "--update belongs to --from-runs FILE"),
        (("--from-runs", tmp_path / "pool.toml", *options), "a file of questions is a TASK"),
        (("--from-runs", path, "--usd", "1", *options), "caps need --judge MODEL"),
        (("--from-runs", path, "--weights", *options), "weights need --judge MODEL"),
    ):
        refused = invoke(*arguments)
        assert (refused.exit_code, message in refused.output) == (2, True)


def test_the_estimate_of_an_update_adds_no_runs_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "skill", skills.PROVIDER)
    (tmp_path / "pool.toml").write_text(skills.POOL)
    options = ("--pool", tmp_path / "pool.toml", "--out", tmp_path / "out")
    assert invoke("--from-runs", export(tmp_path / "a.jsonl", production(2)), *options).exit_code == 0
    stored = (tmp_path / "out" / "runs.jsonl").read_text()
    export(tmp_path / "b.jsonl", production(2, first=5))
    for judge in ((), ("--judge", "skill:judge")):
        invoke("--from-runs", tmp_path / "b.jsonl", "--update", "--estimate", *judge, *options)
        assert (tmp_path / "out" / "runs.jsonl").read_text() == stored
