"""The router, which sends simple requests to one call: its file, its decisions, its runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from core.capitals import capital_router, question
from core.runs import down, plan, pool_of
from rl_conductor import Conductor, ConfigError, Limits, Policy, RunError, ScriptedModel, Trace
from rl_conductor.config.discovery import discover
from rl_conductor.planning.routing.router import Router
from rl_conductor.replay import differences, replay
from rl_conductor.text.features import MAX_CHARS
from rl_conductor.trace.trace import Round
from rl_conductor.types import ImagePart, JsonFormat, Message, Request, Tool
from rl_conductor.workflow.workflow import Step, Workflow

SIMPLE = "What is the capital of France?"
OTHER = "Write a parser for TOML."
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


def conductor(pool: Any = None, **options: Any) -> Conductor:
    workers = pool or pool_of(a="from a", b="from b")
    return Conductor(ScriptedModel([TWO] * 4, name="p"), workers, **{"router": capital_router()} | options)


# ---------------------------------------------------------------------------------------- decision


async def test_a_simple_request_is_one_call_of_one_worker_and_the_trace_says_why() -> None:
    trace = await conductor().run(SIMPLE)

    plan_made = trace.rounds[0].plan
    assert trace.text == "from a"
    assert [call.worker for call in trace.calls] == ["a"]
    assert plan_made.source == "router"
    assert plan_made.routing is not None
    assert plan_made.routing.route == "single"
    assert plan_made.routing.probability is not None
    assert plan_made.routing.probability >= plan_made.routing.threshold == 0.9
    assert plan_made.routing.classifier == capital_router().sha256
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


async def test_another_request_is_planned_and_the_trace_says_why() -> None:
    trace = await conductor().run(OTHER)

    made = trace.rounds[0].plan
    assert trace.text == "from b"
    assert made.source == "planner"
    assert made.routing is not None
    assert (made.routing.route, made.routing.reason) == ("conductor", "")
    assert made.routing.probability is not None
    assert made.routing.probability < 0.9


async def test_without_a_router_nothing_is_decided() -> None:
    assert (await conductor(router=None).run(SIMPLE)).rounds[0].plan.routing is None


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
    decision = capital_router().decide(request_)

    assert (decision.route, decision.probability) == ("conductor", None)
    assert why in decision.reason


def test_what_it_has_learned_from_may_be_one_call() -> None:
    knows = capital_router(trained_features={"earlier turns"}, request_weights={"earlier turns": 0.5})
    turns = Request(messages=(Message.user("Hi"), Message.assistant("Yes?"), Message.user(SIMPLE)))

    assert knows.decide(turns).route == "single"
    assert knows.probability(turns) > knows.probability(question(SIMPLE))


def test_a_decision_takes_less_than_five_milliseconds() -> None:
    known = capital_router(max_chars=100_000)
    long = question("the capital of a thing " * 4_000)
    assert len(long.messages[0].text) > MAX_CHARS
    known.decide(long)
    began = time.process_time()
    for _ in range(20):
        known.decide(long)
    assert (time.process_time() - began) / 20 < 0.005


# ---------------------------------------------------------------------------- the policy stays the law


@pytest.mark.parametrize(
    "policy",
    [Policy(deny=frozenset({"a"})), Policy(final="b"), Policy(verifier="b"), Policy(allow=frozenset({"b"}))],
)
async def test_a_worker_that_the_policy_forbids_is_never_chosen(policy: Policy) -> None:
    plans = [plan((1, "Say it.", [])), TWO]
    made = Conductor(
        ScriptedModel(plans, name="p"), pool_of(a="from a", b="from b"), router=capital_router(), policy=policy
    )

    trace = await made.run(SIMPLE)

    assert trace.text == "from b"
    decision = trace.rounds[0].plan.routing
    assert decision is not None
    assert decision.route == "conductor"
    assert decision.reason
    assert decision.probability is not None


async def test_the_kill_switch_leaves_nothing_to_decide() -> None:
    trace = await conductor(policy=Policy(single="b")).run(SIMPLE)

    assert (trace.text, trace.rounds[0].plan.source, trace.rounds[0].plan.routing) == ("from b", "single", None)


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
    assert [one.plan.routing for one in trace.rounds] == [None, None]


# ------------------------------------------------------------------------------- replay and resume


async def test_a_replay_makes_the_same_one_call() -> None:
    recorded = await conductor().run(SIMPLE)

    again = await replay(Trace.model_validate_json(recorded.model_dump_json()))

    assert differences(recorded, again) == ()
    assert again.rounds[0].plan == recorded.rounds[0].plan


async def test_a_run_that_was_cut_short_keeps_its_decision() -> None:
    made = conductor()
    record = await made.plan(SIMPLE)
    assert record.source == "router"

    trace = await made.run(SIMPLE, resume=[Round(plan=record)])

    assert trace.rounds[0].plan == record
    assert trace.text == "from a"


# ---------------------------------------------------------------------------------------- the file


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    capital_router().write(tmp_path / "router.json")

    assert Router.read(tmp_path / "router.json") == capital_router()
    assert json.loads((tmp_path / "router.json").read_text())["sha256"] == capital_router().sha256


def test_files_keep_their_field_names_and_checksums() -> None:
    learned = {"source": "a test", "requests": 100, "right": 50, "risk": 0.05, "trained_on": "2026-11-21"}
    stored = {"format": 1, "worker": "a", "model": "scripted:a", "threshold": 0.9, "max_chars": 200, "bias": -5.0}
    stored |= {"trained_features": ["tools"], "request_weights": {"tools": 0.25}, "length_weight": 0.5}
    stored |= {"word_weights": {"2726": -40.0}, "learned": learned}

    router = Router.model_validate(stored)

    assert router.model_dump(mode="json") == stored
    assert router.sha256 == "9277ac1303dabe30ea9a49fd1b7c07f25434f6868781811f12db2dc2ffa5bdb5"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda kept: kept["router"].update(threshold=0.1), "was modified after"),
        (lambda kept: kept["router"].update(worker="b"), "was modified after"),
        (lambda kept: kept.update(sha256="0" * 64), "was modified after"),
        (lambda kept: kept["router"].update(format=2), "format"),
        (lambda kept: kept["router"].update(bias=float("nan")), "bias"),
        (lambda kept: kept["router"].update(word_weights={"9999": 1.0}), "word_weights"),
        (lambda kept: kept["router"].update(more=1), "more"),
        (lambda kept: kept.pop("router"), "router"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    file = tmp_path / "router.json"
    capital_router().write(file)
    kept = json.loads(file.read_text())
    change(kept)
    file.write_text(json.dumps(kept))

    with pytest.raises(ConfigError, match=rf"(?s)router\.json.*{why}"):
        Conductor(ScriptedModel(""), pool_of(a=""), router=file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a router file"),
        (b"{}", "is not a router file"),
        (b"[1]", "is not a router file"),
        (b"\x80\x04pickled", "it is not text in UTF-8"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "router.json").write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        Router.read(tmp_path / "router.json")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        Router.read(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="can't write"):
        capital_router().write(tmp_path / "no" / "router.json")


def test_a_router_of_another_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="'a', but the pool has b"):
        Conductor(ScriptedModel(""), pool_of(b=""), router=capital_router())
    with pytest.raises(ConfigError, match="now it is scripted:a"):
        Conductor(ScriptedModel(""), pool_of(a=""), router=capital_router(model="openai:older"))


def test_a_pool_file_names_its_router_beside_it(tmp_path: Path) -> None:
    capital_router("b", model="openai:b").write(tmp_path / "router.json")
    pool = tmp_path / "pool.toml"
    pool.write_text('router = "router.json"\n[workers.b]\nmodel = "ollama:b"\n')

    found = discover(pool_file=pool)

    assert found.router is not None
    assert found.router.worker == "b"
    (tmp_path / "router.json").unlink()
    with pytest.raises(ConfigError, match=r"can't read '.*router\.json'"):
        discover(pool_file=pool)
