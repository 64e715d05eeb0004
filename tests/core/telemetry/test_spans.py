from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from opentelemetry import trace as opentelemetry_trace
from opentelemetry.trace import SpanKind, StatusCode

from core.runs import ACCEPT, SOON, Gated, Paced, busy, down, forever, plan, pool_of, reply, rows, worker
from rl_conductor import Conductor, Limits, Message, RunError, ScriptedModel, Worker
from rl_conductor.errors import ModelError
from rl_conductor.models import Capabilities
from rl_conductor.planning.planner import Planner
from rl_conductor.trace.trace import Call, Round
from rl_conductor.types import Price, Sampling, ToolCall, Usage

from .conftest import Recorded

SIDE_BY_SIDE = plan((0, "Draft it.", []), (1, "Draft it otherwise.", []), (0, "Join them.", ["all"]))
ONE = plan((0, "Say it.", []))
TWO_STEPS = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
SECRET = "the secret question"
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def conductor(script: object = SIDE_BY_SIDE, **workers: object) -> Conductor:
    planner = script if isinstance(script, Planner) else ScriptedModel(script, name="planner")  # type: ignore[arg-type]
    return Conductor(planner, pool_of(**(workers or {"a": "from a", "b": "from b"})), name="house")


async def test_a_run_is_a_workflow_with_its_plan_its_steps_and_their_attempts(recorded: Recorded) -> None:
    trace = await conductor().run("Say something.")
    assert recorded.tree() == [
        "invoke_workflow house",
        "  plan house",
        "    chat planner",
        "  invoke_agent a",
        "    chat a",
        "  invoke_agent b",
        "    chat b",
        "  invoke_agent a",
        "    chat a",
    ]
    said = recorded.said("invoke_workflow house")
    assert said["gen_ai.operation.name"] == "invoke_workflow"
    assert said["gen_ai.workflow.name"] == "house"
    assert said["rl_conductor.run.id"] == trace.id
    assert said["rl_conductor.answer.source"] == "final"
    assert recorded.said("plan house")["rl_conductor.plan.steps"] == 3
    assert all(span.status.status_code is StatusCode.UNSET for span in recorded.spans())


async def test_a_call_tells_its_model_tokens_and_cost(recorded: Recorded) -> None:
    used = Usage(input_tokens=7, cached_tokens=2, output_tokens=3, reasoning_tokens=1, calls=1, cost=Decimal("0.01"))
    model = ScriptedModel([reply("from a", usage=used)], name="a", price=CENT)
    await conductor(ONE, a=worker("a", model, sampling=Sampling(temperature=0.5, seed=3, max_tokens=100))).run(
        "Say something."
    )
    span = recorded.span("chat a")
    assert span.kind is SpanKind.CLIENT
    said = dict(span.attributes or {})
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "a",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.seed": 3,
        "gen_ai.response.model": "vendor",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "rl_conductor.cost": 0.01,
        "rl_conductor.attempt": 1,
    }


async def test_steps_are_linked_to_what_they_read(recorded: Recorded) -> None:
    await conductor().run("Say something.")
    first, second, last = [span for span in recorded.spans() if span.name.startswith("invoke_agent")]
    assert (first.links, second.links) == ((), ())
    assert [link.context.span_id for link in last.links] == [one.context.span_id for one in (first, second)]
    assert dict(last.attributes or {})["rl_conductor.step.access"] == (0, 1)


async def test_runs_side_by_side_stand_below_their_own_callers(recorded: Recorded) -> None:
    made = conductor()

    async def ask(caller: str) -> None:
        with recorded.tracer.start_as_current_span(caller):
            await made.run("Say something.")

    await asyncio.gather(*(ask(f"caller {number}") for number in range(5)))
    tree = recorded.tree()
    assert sorted(name for name in tree if not name.startswith(" ")) == [f"caller {number}" for number in range(5)]
    assert [name for name in tree if name.startswith("  ") and name[2] != " "] == ["  invoke_workflow house"] * 5
    assert len({span.context.trace_id for span in recorded.spans() if span.context}) == 5


async def test_the_callers_own_span_is_current_again_afterwards(recorded: Recorded) -> None:
    with recorded.tracer.start_as_current_span("caller") as caller:
        await conductor().run("Say something.")
        assert opentelemetry_trace.get_current_span() is caller
        with pytest.raises(RunError):
            await conductor(ONE, a=down).run("Say something.")
        assert opentelemetry_trace.get_current_span() is caller


async def test_what_a_model_does_inside_of_a_call_stands_below_that_call(recorded: Recorded) -> None:
    def vendor(name: str) -> ScriptedModel:
        def answer(_: object) -> str:
            with recorded.tracer.start_as_current_span(f"POST to {name}"):
                return f"from {name}"

        return ScriptedModel(answer, name=name)

    await conductor(a=vendor("a"), b=vendor("b")).run("Say something.")
    tree = recorded.tree()
    for name in "ab":
        assert tree[tree.index(f"      POST to {name}") - 1] == f"    chat {name}"


async def test_a_conductor_in_the_pool_stands_below_the_call_that_asks_it(recorded: Recorded) -> None:
    inner = Conductor(ScriptedModel(ONE, name="planner"), pool_of(c="from c"), name="inner")
    await conductor(plan((1, "Ask it.", []), (0, "Say it.", ["all"])), a="from a", b=inner).run("Say something.")
    assert recorded.tree()[3:] == [
        "  invoke_agent b",
        "    chat inner",
        "      invoke_workflow inner",
        "        plan inner",
        "          chat planner",
        "        invoke_agent c",
        "          chat c",
        "  invoke_agent a",
        "    chat a",
    ]


async def test_calls_and_tools_of_a_worker_stand_below_its_call(recorded: Recorded) -> None:
    def count(number: int) -> int:
        """Counts."""
        return 10 // number

    replies = [
        Message.assistant(tool_calls=[ToolCall(id="1", name="count", arguments=f'{{"number": {number}}}')])
        for number in (1, 0)
    ]
    model = ScriptedModel([*replies, "Done."], name="a")
    await conductor(ONE, a=Worker.of("a", model, tools=[count])).run("Say something.")

    assert recorded.tree()[3:5] == ["  invoke_agent a", "    chat a"]
    assert sorted(recorded.tree()[5:]) == ["      chat a"] * 3 + ["      execute_tool count"] * 2
    tools = [span for span in recorded.spans() if span.name == "execute_tool count"]
    assert [span.status.status_code for span in tools] == [StatusCode.UNSET, StatusCode.ERROR]
    attempt = next(span for span in recorded.spans() if "rl_conductor.attempt" in (span.attributes or {}))
    for span in tools:
        assert (attempt.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (attempt.end_time or 0)
        assert (span.attributes or {})["gen_ai.tool.name"] == "count"
        assert "gen_ai.tool.call.result" not in (span.attributes or {})


async def test_a_retried_call_is_a_span_for_each_attempt(recorded: Recorded) -> None:
    await conductor(ONE, a=[busy(None), "from a"]).run("Say something.")  # type: ignore[arg-type]
    first, second = [span for span in recorded.spans() if span.name == "chat a"]
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert dict(first.attributes or {})["error.type"] == "error"
    assert first.end_time <= second.start_time  # type: ignore[operator]
    assert recorded.span("invoke_agent a").status.status_code is StatusCode.UNSET


async def test_a_step_that_moves_to_another_worker_says_so(recorded: Recorded) -> None:
    await conductor(ONE, a=down, b="from b").run("Say something.")
    assert recorded.tree()[3:] == ["  invoke_agent b", "    chat a", "    chat b"]
    said = recorded.said("invoke_agent b")
    assert (said["gen_ai.agent.name"], said["rl_conductor.step.planned_worker"]) == ("b", "a")


async def test_a_run_without_an_answer_is_an_error_all_the_way_up(recorded: Recorded) -> None:
    with pytest.raises(RunError):
        await conductor(ONE, a=down).run("Say something.")
    kinds = {span.name: (span.attributes or {}).get("error.type") for span in recorded.spans()}
    assert kinds == {
        "invoke_workflow house": "no_answer",
        "plan house": None,
        "chat planner": None,
        "invoke_agent a": "error",
        "chat a": "error",
    }
    assert all(span.status.description is None for span in recorded.spans())


async def test_a_plan_that_nobody_could_use_is_an_error_and_the_answer_is_not(recorded: Recorded) -> None:
    await conductor(["no plan"] * 5).run("Say something.")
    assert recorded.said("plan house")["error.type"] == "no_plan"
    assert recorded.said("plan house")["rl_conductor.plan.samples"] == 5
    assert recorded.tree().count("    chat planner") == 5
    assert "error.type" not in recorded.said("invoke_workflow house")


async def test_a_cancelled_run_ends_every_span(recorded: Recorded) -> None:
    a = Gated("from a", forever, name="a")
    running = asyncio.create_task(conductor(a=a).run("Say something."))
    await a.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    kinds = {span.name: (span.attributes or {}).get("error.type") for span in recorded.spans()}
    assert kinds["invoke_workflow house"] == kinds["invoke_agent a"] == kinds["chat a"] == "cancelled"


async def test_a_run_cancelled_while_it_is_planned_ends_every_span(recorded: Recorded) -> None:
    planner = Gated(SIDE_BY_SIDE, forever, name="planner")
    running = asyncio.create_task(conductor(Planner(model=planner)).run("Say something."))
    await planner.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert recorded.tree() == ["invoke_workflow house", "  plan house", "    chat planner"]
    assert {(span.attributes or {}).get("error.type") for span in recorded.spans()} == {"cancelled"}


def ahead_of(second: tuple[int, str, list[object]], until: asyncio.Event) -> Paced:
    """A planner whose first step is under way before it writes its second."""

    async def pause(said: str) -> None:
        if said.count("\n[") == 1:
            await asyncio.wait_for(until.wait(), SOON)

    return Paced([list("".join(rows((0, "Draft it.", []), second)))], pause, name="planner")


async def test_a_step_begun_ahead_of_its_plan_gets_its_access_list_and_links_with_the_plan(recorded: Recorded) -> None:
    second = asyncio.Event()
    steps = rows((0, "Draft it.", []), (1, "Check it.", ["all"]), (0, "Say it.", ["all"]))

    async def pause(text: str) -> None:
        if text.count("\n[") == 2:
            await asyncio.wait_for(second.wait(), SOON)

    async def work(_: object) -> None:
        second.set()

    planner = Planner(model=Paced([list("".join(steps))], pause, name="planner"), form="rows")
    await conductor(planner, a="from a", b=Gated("from b", work, name="b")).run("Say something.")

    span = recorded.span("invoke_agent b")
    assert (span.attributes or {})["rl_conductor.step.access"] == (0,)
    assert len(span.links) == 1


async def test_a_step_begun_ahead_of_a_plan_that_was_thrown_away_ends_as_cancelled(recorded: Recorded) -> None:
    a = Gated("from a", forever, name="a")
    planner = ahead_of((9, "no such worker", ["all"]), a.asked)
    planner._replies.append("".join(rows((1, "Draft it.", []), (1, "Say it.", ["all"]))))
    await conductor(Planner(model=planner, form="rows", repair=False), a=a, b="from b").run("Say something.")
    assert recorded.said("invoke_agent a")["error.type"] == recorded.said("chat a")["error.type"] == "cancelled"
    assert recorded.tree()[1:] == [
        "  plan house",
        "    chat planner",
        "    chat planner",
        "  invoke_agent a",
        "    chat a",
        "  invoke_agent b",
        "    chat b",
        "  invoke_agent b",
        "    chat b",
    ]


async def test_a_step_begun_ahead_that_the_plan_has_no_use_for_ends_as_cancelled(recorded: Recorded) -> None:
    a = Gated("from a", forever, name="a")
    planner = ahead_of((1, "Say it.", []), a.asked)
    await conductor(Planner(model=planner, form="rows"), a=a, b="from b").run("Say something.")
    assert recorded.said("invoke_agent a")["error.type"] == recorded.said("chat a")["error.type"] == "cancelled"
    assert "error.type" not in recorded.said("invoke_agent b")


async def test_limits_that_leave_no_room_for_a_step_make_it_an_error(recorded: Recorded) -> None:
    await conductor(TWO_STEPS).run("Say something.", limits=Limits(calls=2))
    assert [(span.attributes or {}).get("error.type") for span in recorded.spans() if "agent" in span.name] == [
        None,
        "refused",
    ]


async def test_rounds_are_told_apart(recorded: Recorded) -> None:
    await conductor([ONE, ACCEPT]).run("Say something.", limits=Limits(rounds=2))
    rounds = [(span.attributes or {})["rl_conductor.round"] for span in recorded.spans() if span.name == "plan house"]
    assert rounds == [0, 1]


async def test_what_an_interrupted_run_had_done_is_not_told_again(recorded: Recorded) -> None:
    whole = await conductor().run("Say something.")
    recorded.exporter.clear()
    cut_short = Round(plan=whole.rounds[0].plan, results=whole.rounds[0].results[:2])
    await conductor([]).run("Say something.", resume=[cut_short])
    assert recorded.tree() == ["invoke_workflow house", "  invoke_agent a", "    chat a"]
    (run,) = [span for span in recorded.spans() if span.name == "invoke_workflow house"]
    assert run.end_time - run.start_time < 5e9  # type: ignore[operator]


async def test_the_slower_of_two_calls_ends_as_cancelled(recorded: Recorded) -> None:
    slow = Gated("from a", forever, name="a")
    made = conductor(ONE, a=worker("a", slow, hedge_after=0.01), b="from b")
    await made.run("Say something.", limits=Limits(hedges=1))
    assert recorded.said("chat a")["error.type"] == "cancelled"
    assert "error.type" not in recorded.said("chat b")


async def test_nothing_that_was_said_is_told_unless_it_is_asked_for(recorded: Recorded) -> None:
    def fails(_: object) -> Exception:
        return ModelError(f"can't answer {SECRET}", model="a")

    made = conductor(ONE, a=fails, b=SECRET)
    await made.run(SECRET)
    told = [span.to_json() for span in recorded.spans()]
    assert told
    assert SECRET not in " ".join(told)
    assert "Say it." not in " ".join(told)


async def test_a_model_whose_replies_can_not_be_held_back_is_no_obstacle(recorded: Recorded) -> None:
    plain = ScriptedModel(ONE, name="planner", capabilities=Capabilities())
    await Conductor(plain, pool_of(a="from a"), name="house").run("Say something.", stream=True)
    assert recorded.tree()[-1] == "    chat a"


async def test_a_host_that_starts_the_steps_gets_a_span_for_each_stretch_of_the_run(recorded: Recorded) -> None:
    made = conductor(TWO_STEPS)
    record = await made.plan("Say something.")
    first = await made.stepwise("Say something.", record).step(0)
    second = await made.stepwise("Say something.", record).step(1, [first])
    made.stepwise("Say something.", record).finish([first, second])
    assert recorded.tree() == [
        "invoke_workflow house",
        "  plan house",
        "    chat planner",
        "invoke_workflow house",
        "  invoke_agent a",
        "    chat a",
        "invoke_workflow house",
        "  invoke_agent b",
        "    chat b",
        "invoke_workflow house",
    ]
    assert recorded.said("invoke_agent b")["rl_conductor.step.access"] == (0,)
    assert all(span.status.status_code is StatusCode.UNSET for span in recorded.spans())


async def test_a_step_that_paused_gets_a_span_for_the_call_with_which_it_goes_on(recorded: Recorded) -> None:
    made = conductor(ONE)
    record = await made.plan("Say something.")
    before = Call(model="a", worker="a", outcome="paused", usage=Usage(calls=2), started=0, seconds=0)
    await made.stepwise("Say something.", record).step(0, calls=[before])
    assert recorded.said("chat a")["gen_ai.usage.input_tokens"]
    assert recorded.span("chat a").status.status_code is StatusCode.UNSET
