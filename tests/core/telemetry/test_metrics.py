from __future__ import annotations

from decimal import Decimal

from core.runs import busy, plan, pool_of, reply, worker
from rl_conductor import Conductor, Limits, ScriptedModel
from rl_conductor.trace.trace import Round
from rl_conductor.types import FREE, Price, Usage

from .conftest import Recorded

TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
ONE = plan((0, "Say it.", []))
USED = Usage(input_tokens=7, output_tokens=3, calls=1, cost=Decimal("0.25"))


def conductor(script: object = TWO, **workers: object) -> Conductor:
    return Conductor(ScriptedModel(script, name="planner"), pool_of(**workers), name="house")  # type: ignore[arg-type]


def paid(name: str) -> ScriptedModel:
    return ScriptedModel(lambda _: reply(f"from {name}", usage=USED), name=name, price=Price(input=1, output=1))


async def test_tokens_seconds_and_dollars_are_counted_by_model(recorded: Recorded) -> None:
    trace = await conductor(a=paid("a"), b=paid("b")).run("Say something.")
    of_workers = [(said, count) for said, count in recorded.points("gen_ai.client.token.usage") if count in (3, 7)]
    known = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "gen_ai.response.model": "vendor"}
    assert of_workers == [
        ({**known, "gen_ai.request.model": name, "gen_ai.token.type": kind}, count)
        for name in "ab"
        for kind, count in (("input", 7), ("output", 3))
    ]
    seconds = recorded.points("gen_ai.client.operation.duration")
    assert [said["gen_ai.request.model"] for said, _ in seconds] == ["a", "b", "planner"]
    assert sum(dollars for _, dollars in recorded.points("rl_conductor.cost")) == float(trace.usage.cost) == 0.5
    ((said, whole),) = recorded.points("gen_ai.workflow.duration")
    assert said == {"gen_ai.workflow.name": "house"}
    assert 0 < whole <= trace.seconds


async def test_a_failed_attempt_is_counted_with_how_it_failed(recorded: Recorded) -> None:
    await conductor(ONE, a=[busy(None), "from a"]).run("Say something.")  # type: ignore[arg-type]
    kinds = [said.get("error.type") for said, _ in recorded.points("gen_ai.client.operation.duration")]
    assert sorted(map(str, kinds)) == ["None", "None", "error"]


async def test_a_conductor_in_the_pool_is_not_counted_twice(recorded: Recorded) -> None:
    inner = Conductor(ScriptedModel(ONE, name="planner"), pool_of(c=paid("c")), name="inner")
    trace = await conductor(ONE, a=inner).run("Say something.")
    models = [said["gen_ai.request.model"] for said, _ in recorded.points("gen_ai.client.operation.duration")]
    assert sorted(models) == ["c", "planner"]
    assert sum(dollars for _, dollars in recorded.points("rl_conductor.cost")) == float(trace.usage.cost) == 0.25
    names = [said["gen_ai.workflow.name"] for said, _ in recorded.points("gen_ai.workflow.duration")]
    assert sorted(names) == ["house", "inner"]


async def test_what_an_interrupted_run_had_spent_is_not_counted_again(recorded: Recorded) -> None:
    whole = await conductor(a=paid("a"), b=paid("b")).run("Say something.")
    before = recorded.points("rl_conductor.cost")
    cut_short = Round(plan=whole.rounds[0].plan, results=whole.rounds[0].results[:1])
    await conductor([], a=[], b=paid("b")).run("Say something.", resume=[cut_short])
    after = recorded.points("rl_conductor.cost")
    assert [(said["gen_ai.request.model"], count) for said, count in before] == [
        ("a", 0.25),
        ("b", 0.25),
        ("planner", 0),
    ]
    assert [(said["gen_ai.request.model"], count) for said, count in after] == [("a", 0.25), ("b", 0.5), ("planner", 0)]


async def test_calls_that_were_never_made_are_not_counted(recorded: Recorded) -> None:
    cached = Usage(input_tokens=7, output_tokens=3, calls=1, cached_calls=1)
    made = conductor(ONE, a=worker("a", ScriptedModel([reply("from a", usage=cached)], name="a", price=FREE)))
    await made.run("Say something.", limits=Limits(calls=2))
    models = [said["gen_ai.request.model"] for said, _ in recorded.points("gen_ai.client.operation.duration")]
    assert models == ["planner"]


async def test_what_a_host_runs_step_by_step_is_counted_once_however_many_rounds_it_takes(recorded: Recorded) -> None:
    made = Conductor(ScriptedModel([TWO, TWO], name="planner"), pool_of(a=paid("a"), b=paid("b")), name="house")
    rounds: tuple[Round, ...] = ()
    for _ in range(2):
        asked = {"previous_rounds": rounds, "limits": Limits(rounds=2)}
        record = await made.plan("Say something.", **asked)  # type: ignore[arg-type]
        done = [await made.stepwise("Say something.", record, **asked).step(0)]  # type: ignore[arg-type]
        done += [await made.stepwise("Say something.", record, **asked).step(1, done)]  # type: ignore[arg-type]
        trace = made.stepwise("Say something.", record, **asked).finish(done)  # type: ignore[arg-type]
        rounds = trace.rounds
    assert sum(dollars for _, dollars in recorded.points("rl_conductor.cost")) == float(trace.usage.cost) == 1.0
    used = [(said["gen_ai.request.model"], count) for said, count in recorded.points("gen_ai.client.token.usage")]
    assert [one for one in used if one[0] in ("a", "b")] == [("a", 14), ("a", 6), ("b", 14), ("b", 6)]
