"""Tests of router training: the threshold, the minimum number of examples, and the command."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from core.capitals import drawn, question
from core.runs import ACCEPT, plan, pool_of
from rl_conductor import Conductor, ConfigError, Limits, ScriptedModel, Trace
from rl_conductor._internal.jsonl import write_lines
from rl_conductor.cli.main import app
from rl_conductor.planning.routing.router import Router
from rl_conductor.types import Message, Request, Tool
from rl_conductor_training.cli import router as cli
from rl_conductor_training.routing.router import select_threshold, train_router
from rl_conductor_training.routing.router_examples import RouterExample, TraceExamples
from training.bench import toys

WHO: Any = {"worker": "a", "model": "scripted:a", "source": "a test"}
ONE = plan((0, "Say it.", []))
TWO = plan((0, "Draft it.", []), (0, "Say it.", ["all"]))


def examples(number: int, *, seed: int = 0, noise: float = 0.0) -> list[RouterExample]:
    return [RouterExample(question(text), right) for text, right in drawn(number, seed=seed, noise=noise)]


# ---------------------------------------------------------------------------------------- learning


def test_a_router_learns_and_keeps_its_risk_on_unseen_questions() -> None:
    router, report = train_router(examples(300, noise=0.04), risk=0.05, **WHO)

    assert router is not None
    held_out = drawn(1_000, seed=1, noise=0.04)
    likely = [(router.probability(question(text)), right) for text, right in held_out]
    base = max(np.mean([right for _, right in held_out]), np.mean([not right for _, right in held_out]))
    accuracy = np.mean([(p >= 0.5) == right for p, right in likely])
    sent = [right for p, right in likely if p >= router.threshold]
    assert base < 0.6
    assert accuracy > 0.9
    assert len(sent) > 300
    assert 1 - np.mean(sent) <= 0.05
    assert report.accuracy.low <= accuracy <= report.accuracy.high + 0.02
    assert report.brier < report.brier_baseline / 2
    assert report.wrong is not None
    assert 1 - np.mean(sent) <= report.wrong.high
    assert report.sent.value == pytest.approx(len(sent) / 1_000, abs=0.15)


def test_a_router_decides_the_same_after_being_written_and_read(tmp_path: Path) -> None:
    router, _ = train_router(examples(200), risk=0.05, **WHO)
    assert router is not None
    router.write(tmp_path / "router.json")

    again = Router.read(tmp_path / "router.json")

    assert again.decide(question("What is the capital of Peru?")) == router.decide(
        question("What is the capital of Peru?")
    )
    assert again.learned.requests == 200


def test_nothing_is_sent_where_labels_are_random() -> None:
    router, report = train_router(examples(300, noise=1.0), risk=0.05, **WHO)

    assert router is None
    assert report.wrong is None or report.sent.value < 0.1
    assert report.brier > 0.2


def test_only_frequent_features_are_handled() -> None:
    tool = (Tool(name="look"),)
    plain = examples(200)
    with_tools = [RouterExample(question(text, tools=tool), right) for text, right in drawn(30, seed=2)]
    with_turns = [
        RouterExample(Request(messages=(Message.user("Hi"), Message.assistant("Yes"), Message.user(text))), right)
        for text, right in drawn(3, seed=3)
    ]

    router, _ = train_router([*plain, *with_tools, *with_turns], risk=0.05, **WHO)

    assert router is not None
    assert router.trained_features == {"tools"}
    assert router.decide(question("What is the capital of Peru?", tools=tool)).route == "single"


def test_a_repeated_request_counts_once_and_as_wrong_if_it_ever_was() -> None:
    once = examples(200)
    shaky = question("What is the capital of Nowhere?")
    many = [RouterExample(shaky, right=False)] + [RouterExample(shaky, right=True)] * 500

    router, report = train_router([*once, *many], risk=0.05, **WHO)

    assert router is not None
    assert report.right.n == 201
    assert router.learned.right == sum(example.right for example in once)


@pytest.mark.parametrize(
    ("training_examples", "needed"),
    [
        (examples(40), "40 different requests.*at least 60 are needed"),
        (
            [RouterExample(question(f"What is {n}?"), right=True) for n in range(100)],
            "100 right and 0 wrong.*policy.single",
        ),
        (
            [RouterExample(question(f"What is {n}?"), right=n < 5) for n in range(100)],
            "5 right and 95 wrong.*20 of them",
        ),
    ],
)
def test_too_few_examples_are_rejected_with_the_required_number(
    training_examples: list[RouterExample], needed: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s)too little to train a router on.*{needed}"):
        train_router(training_examples, risk=0.05, **WHO)


def test_a_smaller_risk_needs_more_examples() -> None:
    with pytest.raises(ConfigError, match="1000 of them right"):
        train_router(examples(100), risk=0.001, **WHO)


# --------------------------------------------------------------------------------------- threshold

scored = st.lists(st.tuples(st.sampled_from([0.01 * n for n in range(101)]), st.booleans()), max_size=120)


@given(scored, st.sampled_from([0.02, 0.05, 0.1, 0.3]))
@settings(deadline=None)
def test_the_threshold_keeps_the_risk_with_one_more_wrong_answer(
    labelled: list[tuple[float, bool]], risk: float
) -> None:
    likely = np.array([p for p, _ in labelled])
    right = np.array([was for _, was in labelled], dtype=bool)

    threshold = select_threshold(likely, right, risk)

    if threshold is None:
        return
    sent = [was for p, was in labelled if p >= threshold]
    assert sent
    assert threshold >= 0.5
    assert (sent.count(False) + 1) / (len(sent) + 1) <= risk


@given(scored, st.sampled_from([0.05, 0.1, 0.3]), st.randoms())
@settings(deadline=None)
def test_the_threshold_does_not_depend_on_the_order_of_the_examples(
    labelled: list[tuple[float, bool]], risk: float, draw: Any
) -> None:
    def of(each: list[tuple[float, bool]]) -> float | None:
        return select_threshold(np.array([p for p, _ in each]), np.array([was for _, was in each], dtype=bool), risk)

    shuffled = list(labelled)
    draw.shuffle(shuffled)
    assert of(labelled) == of(shuffled)


@given(scored)
@settings(deadline=None)
def test_a_larger_risk_never_sends_less(labelled: list[tuple[float, bool]]) -> None:
    likely = np.array([p for p, _ in labelled])
    right = np.array([was for _, was in labelled], dtype=bool)
    small, large = select_threshold(likely, right, 0.05), select_threshold(likely, right, 0.3)

    assert small is None or (large is not None and large <= small)


# ------------------------------------------------------------------------------ runs that were judged


async def run(*plans: str, pool: Any = None, rounds: int = 2, text: str = "What?") -> Any:
    conductor = Conductor(
        ScriptedModel(list(plans)), pool or pool_of(a="from a", b="from b"), limits=Limits(rounds=rounds)
    )
    return await conductor.run(text)


async def test_runs_are_labelled_by_the_conductors_verdict() -> None:
    traces = TraceExamples()
    traces.add_trace(await run(ONE, ACCEPT, text="accepted"))
    traces.add_trace(await run(ONE, TWO, text="planned anew"))
    traces.add_trace(await run(TWO, ACCEPT, text="several steps"))
    traces.add_trace(await run(ONE, rounds=1, text="never judged"))
    traces.add_trace(await run(plan((1, "Say it.", [])), ACCEPT, text="by another"))

    labels = {example.request.messages[0].text: example.right for example in traces.examples("a", "scripted:a")}

    assert labels == {"accepted": True, "planned anew": False, "several steps": False}
    assert traces.skipped == 1
    assert traces.most_accepted_worker == "a"
    assert traces.examples("a", "openai:newer") == traces.examples("c", "scripted:c")


# ------------------------------------------------------------------------------------- the command

POOL = '[workers.adder]\nmodel = "toy:adder"\n[workers.speller]\nmodel = "toy:speller"\n'


@pytest.fixture
def pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    rows = [{"id": f"a{n}", "question": f"add {n // 10} {n % 10}", "answer": str(n // 10 + n % 10)} for n in range(60)]
    rows += [{"id": f"s{n}", "question": f"please spell it with {n} letters", "answer": "never"} for n in range(40)]
    (folder / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pool.toml").write_text(POOL)
    return folder / "pool.toml"


def calibrate(pool: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", str(pool), *more])


def test_calibrate_writes_cards_and_a_router_and_prints_its_quality(pool: Path) -> None:
    file = pool.parent / "router.json"
    result = calibrate(pool, "--task", f"jsonl:{pool.parent / 'many.jsonl'}", "--router", str(file))

    assert result.exit_code == 0, result.output
    router = Router.read(file)
    assert (router.worker, router.model) == ("adder", "scripted:adder")
    assert router.decide(question("add 7 7")).route == "single"
    assert router.decide(question("please spell it with 9 letters")).route == "conductor"
    assert "answers 60.0% (50.2% to 69.1%) of 100 requests" in result.stdout
    assert re.search(r"at most 5\.0% wrong +one call from probability 0\.\d+ on", result.stdout)
    assert re.search(r"of these wrong +0\.0% \(0\.0% to \d", result.stdout)
    assert 'write router = "router.json"' in result.stderr
    assert "accuracy" in pool.read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "write either --task TASK"),
        (["--task", "TASK", "--runs", "DIR/x.jsonl", "--router", "ROUTER"], "write either --task TASK"),
        (["--runs", "DIR/x.jsonl"], "--runs is for training a router: add --router FILE"),
        (["--task", "TASK", "--worker", "adder"], "--worker is for training a router: add --router FILE"),
        (["--task", "TASK", "--router", "ROUTER", "--limit", "30"], "too little to train a router on: 30 different"),
        (["--task", "TASK", "--router", "ROUTER", "--worker", "nobody"], "no worker 'nobody'"),
        (["--task", "TASK", "--router", "ROUTER", "--worker", "speller"], "too little to train.*'speller' alone"),
        (["--runs", "DIR/none.jsonl", "--router", "ROUTER"], "can't read 'nowhere/none.jsonl'"),
    ],
)
def test_unsuitable_training_data_is_reported(pool: Path, options: list[str], why: str) -> None:
    names = {"TASK": f"jsonl:{pool.parent / 'many.jsonl'}", "ROUTER": str(pool.parent / "t.json"), "DIR": "nowhere"}
    for name, value in names.items():
        options = [option.replace(name, value) for option in options]

    result = calibrate(pool, *options)

    assert result.exit_code == 2
    assert re.search(why, " ".join(result.stderr.split()))
    assert not (pool.parent / "t.json").exists()


def test_a_worker_that_the_pool_lacks_is_an_error_before_any_call(pool: Path) -> None:
    calls = toys.calls()
    task, file = f"jsonl:{pool.parent / 'many.jsonl'}", str(pool.parent / "t.json")
    assert calibrate(pool, "--task", task, "--router", file, "--worker", "nobody").exit_code == 2
    assert toys.calls() == calls


def export_runs(file: Path, number: int, *, rounds: int = 2) -> Path:
    """A file of runs that accepted one call for every capital, and took two steps for all else."""

    async def run() -> list[Trace]:
        traces = []
        for text, easy in drawn(number, seed=0):
            plans = [ONE, ACCEPT] if easy else [TWO, ACCEPT]
            conductor = Conductor(ScriptedModel(plans), pool_of(adder="it"), limits=Limits(rounds=rounds))
            traces.append(await conductor.run(text))
        return traces

    write_lines(file, asyncio.run(run()))
    return file


def test_a_router_is_trained_on_exported_runs(pool: Path) -> None:
    runs = export_runs(pool.parent / "runs.jsonl", 120)
    file = pool.parent / "router.json"

    result = calibrate(pool, "--runs", str(runs), "--router", str(file))

    assert result.exit_code == 0, result.output
    router = Router.read(file)
    assert router.decide(question("What is the capital of place 1 a?")).route == "single"
    assert router.decide(question("Prove that place 1 a is not compact.")).route == "conductor"
    assert router.learned.source == "exported runs"


def test_runs_without_labels_are_rejected_with_a_hint(pool: Path) -> None:
    runs = export_runs(pool.parent / "runs.jsonl", 6, rounds=1)

    result = calibrate(pool, "--runs", str(runs), "--router", str(pool.parent / "router.json"))

    assert result.exit_code == 2
    assert "no run shows whether one call was enough" in " ".join(result.stderr.split())


def test_an_unattainable_risk_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    training_examples = cli.RouterExamples(examples(300, noise=1.0), "a", "scripted:a", "a test")

    with pytest.raises(ConfigError, match=r"no request can be sent to a single call of 'a' at a risk of 0\.05"):
        cli.train_router(training_examples, risk=0.05, to=tmp_path / "router.json")

    assert not list(tmp_path.iterdir())
