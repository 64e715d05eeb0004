"""What sends simple requests to one call: its file, its decision, and the run that comes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from core.capitals import question, tiers
from core.runs import down, plan, pool_of
from rl_conductor import Conductor, ConfigError, Limits, Policy, RunError, ScriptedModel, Trace
from rl_conductor.config.discovery import discover
from rl_conductor.planning.routing.features import MAX_CHARS, word_features
from rl_conductor.planning.routing.router import Router
from rl_conductor.replay import differences, replay
from rl_conductor.trace.trace import Round
from rl_conductor.types import ImagePart, JsonFormat, Message, Request, Tool
from rl_conductor.workflow.workflow import Step, Workflow

SIMPLE = "What is the capital of France?"
OTHER = "Write a parser for TOML."
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


def conductor(pool: Any = None, **options: Any) -> Conductor:
    workers = pool or pool_of(a="from a", b="from b")
    return Conductor(ScriptedModel([TWO] * 4, name="p"), workers, **{"tiers": tiers()} | options)


# ---------------------------------------------------------------------------------------- decision


async def test_a_simple_request_is_one_call_of_one_worker_and_the_trace_says_why() -> None:
    trace = await conductor().run(SIMPLE)

    plan_made = trace.rounds[0].plan
    assert trace.text == "from a"
    assert [call.worker for call in trace.calls] == ["a"]
    assert plan_made.source == "tier"
    assert plan_made.tier is not None
    assert plan_made.tier.tier == "single"
    assert plan_made.tier.probability is not None
    assert plan_made.tier.probability >= plan_made.tier.threshold == 0.9
    assert plan_made.tier.classifier == tiers().sha256
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


async def test_another_request_is_planned_and_the_trace_says_why() -> None:
    trace = await conductor().run(OTHER)

    made = trace.rounds[0].plan
    assert trace.text == "from b"
    assert made.source == "planner"
    assert made.tier is not None
    assert (made.tier.tier, made.tier.because) == ("conductor", "")
    assert made.tier.probability is not None
    assert made.tier.probability < 0.9


async def test_without_tiers_nothing_is_decided() -> None:
    assert (await conductor(tiers=None).run(SIMPLE)).rounds[0].plan.tier is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(messages=(Message.user(SIMPLE, ImagePart(url="https://x")),)), "images"),
        (question(SIMPLE, tools=(Tool(name="look"),)), "tools"),
        (question(SIMPLE, response_format=JsonFormat()), "a format of the answer"),
        (Request(messages=(Message.user("Hi"), Message.assistant("Yes?"), Message.user(SIMPLE))), "earlier turns"),
        (question(SIMPLE + " " * 200 + "!"), "longer than 200"),
        (question("  "), "no text"),
    ],
)
def test_what_it_has_not_learned_from_goes_to_the_conductor(request_: Request, why: str) -> None:
    decision = tiers().decide(request_)

    assert (decision.tier, decision.probability) == ("conductor", None)
    assert why in decision.because


def test_what_it_has_learned_from_may_be_one_call() -> None:
    knows = tiers(trained_features={"earlier turns"}, request_weights={"earlier turns": 0.5})
    turns = Request(messages=(Message.user("Hi"), Message.assistant("Yes?"), Message.user(SIMPLE)))

    assert knows.decide(turns).tier == "single"
    assert knows.probability(turns) > knows.probability(question(SIMPLE))


def test_a_decision_takes_less_than_five_milliseconds() -> None:
    known = tiers(max_chars=100_000)
    long = question("the capital of a thing " * 4_000)
    assert len(long.messages[0].text) > MAX_CHARS
    known.decide(long)
    began = time.process_time()
    for _ in range(20):
        known.decide(long)
    assert (time.process_time() - began) / 20 < 0.005


def test_equal_words_are_equal_in_every_process() -> None:
    source = "from rl_conductor.planning.routing.features import word_features"
    code = f"{source}; print(sorted(word_features({SIMPLE!r}).items()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(sorted(word_features(SIMPLE).items()))


# ---------------------------------------------------------------------------- the policy stays the law


@pytest.mark.parametrize(
    "policy",
    [Policy(deny=frozenset({"a"})), Policy(final="b"), Policy(verifier="b"), Policy(allow=frozenset({"b"}))],
)
async def test_a_worker_that_the_policy_forbids_is_never_chosen(policy: Policy) -> None:
    plans = [plan((1, "Say it.", [])), TWO]
    made = Conductor(ScriptedModel(plans, name="p"), pool_of(a="from a", b="from b"), tiers=tiers(), policy=policy)

    trace = await made.run(SIMPLE)

    assert trace.text == "from b"
    decision = trace.rounds[0].plan.tier
    assert decision is not None
    assert decision.tier == "conductor"
    assert decision.because
    assert decision.probability is not None


async def test_the_kill_switch_leaves_nothing_to_decide() -> None:
    trace = await conductor(policy=Policy(single="b")).run(SIMPLE)

    assert (trace.text, trace.rounds[0].plan.source, trace.rounds[0].plan.tier) == ("from b", "single", None)


async def test_budgets_hold_for_the_one_call() -> None:
    with pytest.raises(RunError, match=r"limits\.tokens"):
        await conductor(limits=Limits(tokens=1)).run(SIMPLE)


async def test_when_its_worker_is_down_another_one_answers() -> None:
    trace = await conductor(pool_of(a=down, b="from b")).run(SIMPLE)

    assert trace.text == "from b"
    assert trace.rounds[0].results[0].planned_worker == "a"


async def test_no_further_round_follows_one_call() -> None:
    trace = await conductor(limits=Limits(rounds=2)).run(SIMPLE)

    assert len(trace.rounds) == 1


async def test_what_follows_a_round_is_the_conductors_to_plan() -> None:
    drafted = Workflow(steps=(Step(subtask="Draft it.", worker="b"),))

    trace = await conductor(limits=Limits(rounds=2)).run(SIMPLE, workflow=drafted)

    assert [one.plan.source for one in trace.rounds] == ["given", "planner"]
    assert [one.plan.tier for one in trace.rounds] == [None, None]


# ------------------------------------------------------------------------------- replay and resume


async def test_a_replay_makes_the_same_one_call() -> None:
    recorded = await conductor().run(SIMPLE)

    again = await replay(Trace.model_validate_json(recorded.model_dump_json()))

    assert differences(recorded, again) == ()
    assert again.rounds[0].plan == recorded.rounds[0].plan


async def test_a_run_that_was_cut_short_keeps_its_decision() -> None:
    made = conductor()
    record = await made.plan(SIMPLE)
    assert record.source == "tier"

    trace = await made.run(SIMPLE, resume=[Round(plan=record)])

    assert trace.rounds[0].plan == record
    assert trace.text == "from a"


# ---------------------------------------------------------------------------------------- the file


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    tiers().write(tmp_path / "tiers.json")

    assert Router.read(tmp_path / "tiers.json") == tiers()
    assert json.loads((tmp_path / "tiers.json").read_text())["sha256"] == tiers().sha256


def test_files_keep_their_field_names_and_checksums() -> None:
    learned = {"source": "a test", "requests": 100, "right": 50, "risk": 0.05, "made": "2026-11-21"}
    stored = {"format": 1, "worker": "a", "model": "scripted:a", "threshold": 0.9, "longest": 200, "seen": ["tools"]}
    stored |= {"bias": -5.0, "length": 0.5, "held": {"tools": 0.25}, "words": {"2726": -40.0}, "learned": learned}

    router = Router.model_validate(stored)

    assert router.model_dump(mode="json") == stored
    assert router.sha256 == "48ecdf8d37a8ce51f874c19d48638997d7c74ec904485ea7eb0e2fa2a8b938e2"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda kept: kept["tiers"].update(threshold=0.1), "was modified after"),
        (lambda kept: kept["tiers"].update(worker="b"), "was modified after"),
        (lambda kept: kept.update(sha256="0" * 64), "was modified after"),
        (lambda kept: kept["tiers"].update(format=2), "format"),
        (lambda kept: kept["tiers"].update(bias=float("nan")), "bias"),
        (lambda kept: kept["tiers"].update(words={"9999": 1.0}), "words"),
        (lambda kept: kept["tiers"].update(more=1), "more"),
        (lambda kept: kept.pop("tiers"), "tiers"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    file = tmp_path / "tiers.json"
    tiers().write(file)
    kept = json.loads(file.read_text())
    change(kept)
    file.write_text(json.dumps(kept))

    with pytest.raises(ConfigError, match=rf"(?s)tiers\.json.*{why}"):
        Conductor(ScriptedModel(""), pool_of(a=""), tiers=file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a tiers file"),
        (b"{}", "is not a tiers file"),
        (b"[1]", "is not a tiers file"),
        (b"\x80\x04pickled", "it is not text in UTF-8"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "tiers.json").write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        Router.read(tmp_path / "tiers.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        Router.read(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="can't write"):
        tiers().write(tmp_path / "no" / "tiers.json")


def test_tiers_of_another_pool_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a', but the pool has b"):
        Conductor(ScriptedModel(""), pool_of(b=""), tiers=tiers())
    with pytest.raises(ConfigError, match="now it is scripted:a"):
        Conductor(ScriptedModel(""), pool_of(a=""), tiers=tiers(model="openai:older"))


def test_a_pool_file_names_its_tiers_beside_it(tmp_path: Path) -> None:
    tiers("b", model="openai:b").write(tmp_path / "tiers.json")
    pool = tmp_path / "pool.toml"
    pool.write_text('tiers = "tiers.json"\n[workers.b]\nmodel = "ollama:b"\n')

    found = discover(pool_file=pool)

    assert found.tiers is not None
    assert found.tiers.worker == "b"
    (tmp_path / "tiers.json").unlink()
    with pytest.raises(ConfigError, match=r"can't read '.*tiers\.json'"):
        discover(pool_file=pool)
