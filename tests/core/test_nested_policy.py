"""A policy holds inside of nested conductors, and for earlier turns whose author is known."""

from __future__ import annotations

import pytest

from core.runs import plan
from rl_conductor.agents.delegating import BaseModelSession, DelegatingModel
from rl_conductor.conductor import Conductor
from rl_conductor.errors import PolicyError, RunError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Message, Request
from rl_conductor.workflow.policy import DataRule, Flow, Policy

ONE_STEP = plan((0, "Say it.", []))


def worker(name: str, model: ScriptedModel | Conductor, *tags: str, region: str | None = None) -> Worker:
    card = Card(name=name, description=f"the worker {name}", tags=frozenset(tags), region=region)
    return Worker.of(name, model, card=card)


def nest(
    *workers: Worker, tags: tuple[str, ...] = (), region: str | None = None, policy: Policy | None = None
) -> Conductor:
    """A conductor whose only worker is a conductor over `workers`, which may be reached with `tags`."""
    card = Card(name="planner", tags=frozenset(tags), region=region)
    inner = Conductor(Planner(model=ScriptedModel(ONE_STEP), card=card), WorkerPool(list(workers)), policy=policy)
    pool = WorkerPool(
        [worker("inner", inner, *tags, region=region), worker("spare", ScriptedModel("from spare"), "beta")]
    )
    return Conductor(Planner(model=ScriptedModel(ONE_STEP), card=card), pool)


async def test_a_worker_that_the_outer_policy_denies_is_not_called_inside_of_a_nested_conductor() -> None:
    denied, allowed = ScriptedModel("from denied"), ScriptedModel("from allowed")
    conductor = nest(worker("x", denied, "beta"), worker("y", allowed))
    assert (await conductor.run("Say something.")).text == "from denied"
    calls = len(denied.requests)
    trace = await conductor.run("Say something.", policy=Policy(deny=frozenset({"tag:beta"})))
    assert trace.text == "from allowed"
    assert len(denied.requests) == calls


async def test_an_outer_policy_reaches_conductors_two_levels_down() -> None:
    denied, allowed = ScriptedModel("from denied"), ScriptedModel("from allowed")
    middle = nest(worker("x", denied, "beta"), worker("y", allowed))
    pool = WorkerPool([worker("middle", middle), worker("spare", ScriptedModel("from spare"), "beta")])
    conductor = Conductor(ScriptedModel(ONE_STEP), pool)
    limits = conductor.limits.model_copy(update={"depth": 3})
    trace = await conductor.run("Say something.", policy=Policy(deny=frozenset({"tag:beta"})), limits=limits)
    assert trace.text == "from allowed"
    assert denied.requests == []


async def test_a_nested_conductor_without_an_allowed_worker_fails_its_step() -> None:
    denied = ScriptedModel("from denied")
    conductor = nest(worker("x", denied, "beta"))
    with pytest.raises(RunError, match="leaves no worker"):
        await conductor.run("Say something.", policy=Policy(deny=frozenset({"tag:beta"})))
    assert denied.requests == []


@pytest.mark.parametrize("own", [None, Policy(data_class="x", data_rules={"x": DataRule()})], ids=["none", "own"])
async def test_data_of_a_class_stays_with_approved_workers_inside_of_a_nested_conductor(own: Policy | None) -> None:
    abroad, at_home = ScriptedModel("from abroad"), ScriptedModel("from home")
    conductor = nest(worker("x", abroad, region="us"), worker("y", at_home, region="eu"), region="eu", policy=own)
    rules = Policy(data_class="personal", data_rules={"personal": DataRule(regions=frozenset({"eu"}))})
    assert (await conductor.run("Say something.", policy=rules)).text == "from home"
    assert abroad.requests == []


async def test_a_nested_planner_that_may_not_see_the_data_is_not_called() -> None:
    planner = ScriptedModel(ONE_STEP)
    inner = Conductor(planner, WorkerPool([worker("x", ScriptedModel("from x"), region="eu")]))
    pool = WorkerPool([worker("inner", inner, region="eu")])
    card = Card(name="planner", region="eu")
    conductor = Conductor(Planner(model=ScriptedModel(ONE_STEP), card=card), pool)
    rules = Policy(data_class="personal", data_rules={"personal": DataRule(regions=frozenset({"eu"}))})
    with pytest.raises(RunError, match="planner of a nested conductor may not see this request"):
        await conductor.run("Say something.", policy=rules)
    assert planner.requests == []


# ------------------------------------------------------------------------------------- earlier turns


def conversation(author: str | None) -> Request:
    draft = Message.assistant("a draft").model_copy(update={"name": author})
    return Request(messages=(Message.user("Say it."), draft, Message.user("Again.")))


def flow_conductor(*readers: str) -> tuple[Conductor, dict[str, ScriptedModel]]:
    models = {name: ScriptedModel(f"from {name}") for name in ("hr", "x", "y")}
    pool = WorkerPool([worker(name, model) for name, model in models.items()])
    policy = Policy(forbid=tuple(Flow(reader=reader, source="hr") for reader in readers), deny=frozenset({"hr"}))
    return Conductor(ScriptedModel(ONE_STEP), pool, policy=policy), models


@pytest.mark.parametrize(("author", "answer"), [("hr", "from y"), ("x", "from x"), (None, "from x"), ("?", "from x")])
async def test_a_worker_that_may_not_read_the_author_of_an_earlier_turn_is_left_out(
    author: str | None, answer: str
) -> None:
    conductor, models = flow_conductor("x")
    assert (await conductor.run(conversation(author))).text == answer
    assert bool(models["x"].requests) == (answer == "from x")


@pytest.mark.parametrize("readers", [("x", "y"), ("planner",)])
async def test_a_conversation_that_nobody_may_read_is_refused(readers: tuple[str, ...]) -> None:
    conductor, models = flow_conductor()
    planner = ScriptedModel(ONE_STEP)
    policy = Policy(forbid=tuple(Flow(reader=reader, source="hr") for reader in readers))
    conductor = Conductor(Planner(model=planner, card=Card(name="planner")), conductor.pool, policy=policy)
    if readers == ("planner",):
        with pytest.raises(
            PolicyError, match=r"planner .* may not see this request: policy.forbid keeps what 'hr' wrote"
        ):
            await conductor.run(conversation("hr"))
        assert planner.requests == []
    else:
        assert (await conductor.run(conversation("hr"))).text == "from hr"
        with pytest.raises(PolicyError, match="no worker may answer"):
            await conductor.run(conversation("hr"), policy=policy.model_copy(update={"deny": frozenset({"hr"})}))
    assert not models["x"].requests


@pytest.mark.parametrize("agent", ["tools", "delegating"])
async def test_an_outer_policy_reaches_the_conductor_that_an_agent_calls(agent: str) -> None:
    class Echo(DelegatingModel):
        kind = "echo"

        async def answer(self, session: BaseModelSession) -> str:
            return await session.ask(session.request.messages)

    def look() -> str:
        return "found"

    denied, allowed = ScriptedModel("from denied"), ScriptedModel("from allowed")
    inner = Conductor(ScriptedModel(ONE_STEP), WorkerPool([worker("x", denied, "beta"), worker("y", allowed)]))
    team = Worker.of("team", inner, tools=[look]) if agent == "tools" else Worker.of("team", Echo(inner))
    pool = WorkerPool([team, worker("spare", ScriptedModel("from spare"), "beta")])
    conductor = Conductor(ScriptedModel(ONE_STEP), pool)
    assert (await conductor.run("Say something.")).text == "from denied"
    trace = await conductor.run("Say something.", policy=Policy(deny=frozenset({"tag:beta"})))
    assert trace.text == "from allowed"
    assert len(denied.requests) == 1
