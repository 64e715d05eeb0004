"""Records of conductors and agents inside of a call: complete, bounded, and without counting usage twice."""

from __future__ import annotations

import asyncio
import json
import threading
from decimal import Decimal
from io import StringIO

import pytest
from rich.console import Console

from core.runs import SOON, Gated, down, forever, plan, pool_of
from core.scripted_guardrails import Check
from rl_conductor import Conductor, Limits, Message, Price, Request, RunError, ScriptedModel, Trace, Worker
from rl_conductor.calls.nested_records import MAX_NESTED_CHARS, MAX_TEXT_CHARS
from rl_conductor.cli.output import report
from rl_conductor.guardrails.base import Content, Verdict
from rl_conductor.trace.events import Event, Finished
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Round
from rl_conductor.types import FREE, Completion, Sampling, ToolCall, Usage, prompt_in

TWO_STEPS = plan((0, "Draft it.", []), (1, "Finish it.", ["all"]))
ONE = plan((0, "Ask the team.", []))


def team(*, reply: object = "from b", name: str = "team") -> Conductor:
    planner = ScriptedModel([TWO_STEPS], name="inner-planner")
    return Conductor(planner, pool_of(a="from a", b=reply), limits=Limits(depth=3), name=name)


async def run_outer(worker: object) -> Trace:
    return await Conductor(ScriptedModel([ONE], name="planner"), pool_of(team=worker)).run("Say something.")


def nested_call_count(trace: Trace) -> int:
    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    return sum(len(round_.calls) for run in call.nested.runs for round_ in run.rounds)


async def test_rounds_and_steps_of_a_conductor_in_the_pool_are_in_the_trace() -> None:
    trace = await run_outer(team())

    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    (run,) = call.nested.runs
    assert run.planner == "scripted:inner-planner"
    assert [result.step.subtask for result in run.rounds[0].results] == ["Draft it.", "Finish it."]
    assert [result.text for result in run.rounds[0].results] == ["from a", "from b"]
    assert 0 <= call.started <= run.started <= run.started + run.seconds <= call.started + call.seconds
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


async def test_their_usage_counts_once() -> None:
    trace = await run_outer(team())
    assert nested_call_count(trace) == 3
    assert trace.usage.calls == 4
    assert trace.usage_by_worker["team"].calls == 3


async def test_a_failed_conductor_shows_how_far_it_came() -> None:
    worker = Worker.of("team", Conductor(ScriptedModel([TWO_STEPS]), pool_of(a=down, b=down), name="team"))
    made = Conductor(ScriptedModel([plan((0, "x", []), (1, "y", ["all"]))]), pool_of(team=worker, b="answer"))
    trace = await made.run("Say something.")

    (call, *_) = trace.rounds[0].results[0].calls
    assert call.outcome == "error"
    assert call.nested is not None
    assert call.nested.runs[0].error
    assert call.usage.calls == sum(inner.usage.calls for inner in call.nested.runs[0].rounds[0].calls)


async def test_conductors_nest_in_one_another() -> None:
    deep = Limits(depth=3)
    middle = Conductor(ScriptedModel([ONE]), pool_of(team=team()), limits=deep, name="middle")
    trace = await Conductor(ScriptedModel([ONE]), pool_of(middle=middle), limits=deep).run("Say something.")

    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    (inner_call,) = call.nested.runs[0].rounds[0].results[0].calls
    assert inner_call.nested is not None
    assert inner_call.nested.runs[0].rounds[0].results[1].text == "from b"
    assert trace.usage.calls == 5


async def test_rounds_that_a_host_runs_one_by_one_inside_of_a_call_count_once() -> None:
    inner = Conductor(ScriptedModel([TWO_STEPS] * 2), pool_of(a="from a", b="from b"), limits=Limits(rounds=2))

    async def host(subtask: str) -> str:
        rounds: tuple[Round, ...] = ()
        for _ in range(2):
            record = await inner.plan(subtask, previous_rounds=rounds)
            stepwise = inner.stepwise(subtask, record, previous_rounds=rounds)
            first = await stepwise.step(0)
            rounds = stepwise.finish([first, await stepwise.step(1, [first])]).rounds
        return "done"

    trace = await Conductor(ScriptedModel([ONE]), {"team": host}).run("Say something.")
    assert trace.usage_by_worker["team"].calls == 2 * 3
    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    assert [len(run.rounds) for run in call.nested.runs] == [2]


async def test_nested_records_are_bounded() -> None:
    trace = await run_outer(team(reply="long " * 100_000))
    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    reply = call.nested.runs[0].rounds[0].results[1].text
    assert len(reply) < 1.1 * MAX_TEXT_CHARS
    assert "characters left out" in reply
    inner_calls = call.nested.runs[0].rounds[0].calls
    assert all(inner.request is None and len(inner.request_fingerprint) == 64 for inner in inner_calls)
    assert len(call.nested.model_dump_json()) < MAX_NESTED_CHARS
    assert trace.text.startswith("long long"), "only the record is cut"


async def test_more_records_than_fit_are_counted() -> None:
    def echo(text: str) -> str:
        """Echoes."""
        return text

    def reply(request: object) -> Message | str:
        rounds = len(model.requests)
        calls = [
            ToolCall(id=str(i), name="echo", arguments=json.dumps({"text": f"{i}" * MAX_TEXT_CHARS})) for i in range(16)
        ]
        return Message.assistant(tool_calls=calls) if rounds < 5 else "Done."

    model = ScriptedModel(reply)
    trace = await run_outer(Worker.of("team", model, tools=[echo]))

    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    assert call.nested.left_out > 10
    assert len(call.nested.calls) + len(call.nested.tools) + call.nested.left_out == 5 + 64
    assert len(call.nested.model_dump_json()) < 1.01 * MAX_NESTED_CHARS


async def test_calls_of_ordinary_models_have_no_nested_field() -> None:
    trace = await Conductor(ScriptedModel([ONE]), pool_of(a="from a")).run("Say something.")
    assert "nested" not in trace.model_dump_json()
    assert "nested" not in Summary.of(trace).model_dump_json()


async def test_summaries_show_nested_rounds_and_tools() -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    call = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    inner = Conductor(
        ScriptedModel([TWO_STEPS]), pool_of(a="from a", b=Worker.of("b", ScriptedModel([call, "ok"]), tools=[look]))
    )
    (step,) = Summary.of(await run_outer(inner)).rounds[0].steps

    (run,) = step.nested
    assert [inner.subtask for inner in run.rounds[0].steps] == ["Draft it.", "Finish it."]
    assert run.rounds[0].steps[1].tools == {"look": 1}
    assert "from a" not in step.model_dump_json(), "a summary contains no replies"


async def test_the_report_shows_the_steps_of_a_nested_run() -> None:
    trace = await run_outer(team())
    out = Console(file=StringIO(), width=100)
    out.print(report.full_report(trace))
    text = out.file.getvalue()  # type: ignore[attr-defined]

    assert "inside step 1: a conductor, 1 round" in text
    assert "planned by scripted:inner-planner" in text
    assert "Draft it." in text
    assert text.index("Ask the team.") < text.index("Draft it.") < text.index("Finish it.")


async def test_limits_of_the_outer_run_hold_inside() -> None:
    made = Conductor(ScriptedModel([ONE]), pool_of(team=team(), other="from other"), limits=Limits(calls=3))
    trace = await made.run("Say something.")
    assert trace.usage.calls <= 3


class Team(ScriptedModel):
    """A model of the user's own that asks a conductor before it replies."""

    def __init__(self, conductor: Conductor, price: Price) -> None:
        super().__init__("Done.", price=price)
        self._conductor = conductor

    async def complete(self, request: Request) -> Completion:
        await self._conductor.run("Help.")
        usage = Usage(input_tokens=1, output_tokens=100)
        return Completion(message=Message.assistant("Done."), model=self.name, usage=usage)


async def test_what_a_conductor_inside_of_a_function_costs_is_the_usage_of_the_call() -> None:
    paid = Price(input=0, output=0, per_call=Decimal("0.01"))
    inner = Conductor(ScriptedModel(ONE, price=FREE), pool_of(a=ScriptedModel("from a", price=paid)))

    async def ask(subtask: str) -> str:
        return (await inner.run(subtask)).text

    trace = await Conductor(ScriptedModel(ONE, price=FREE), {"f": ask}).run("q")
    assert (trace.usage.cost, trace.usage.calls, trace.usage.unpriced_calls) == (Decimal("0.01"), 3, 0)


async def test_a_model_of_the_users_own_is_charged_for_its_own_tokens_besides_the_conductor_that_it_asks() -> None:
    inner = Conductor(ScriptedModel(ONE, price=FREE), pool_of(a=ScriptedModel("from a", price=FREE)))
    own = Worker.of("own", Team(inner, Price(input=0, output=Decimal(800))), sampling=Sampling(max_tokens=100))
    planner = ScriptedModel(plan((0, "x", []), (0, "y", ["all"]), (0, "z", ["all"])), price=FREE)
    trace = await Conductor(planner, pool_of(own=own), limits=Limits(usd=Decimal("0.10"))).run("q")
    assert trace.usage.cost == Decimal("0.08")
    assert "leaves $0.02" in str(trace.rounds[0].results[1].error)


@pytest.mark.parametrize("kind", ["function", "model"])
@pytest.mark.parametrize("allowed", [3, 4, 5])
async def test_calls_of_a_conductor_count_instead_of_the_one_to_the_function_or_model_that_runs_it(
    kind: str, allowed: int
) -> None:
    inner = Conductor(ScriptedModel(lambda _: ONE), pool_of(a="from a"))

    async def ask(subtask: str) -> str:
        return (await inner.run(subtask)).text

    asking = Worker.of("asking", ask if kind == "function" else Team(inner, FREE))
    planner = ScriptedModel(plan((0, "x", []), (0, "y", ["all"])))
    trace = await Conductor(planner, pool_of(asking=asking), limits=Limits(calls=allowed)).run("q")
    assert [result.status for result in trace.rounds[0].results] == ["ok", "failed" if allowed == 3 else "ok"]
    assert trace.usage.calls == allowed  # with 4, the conductor in the last step answers without a plan


@pytest.mark.parametrize("ends", ["deadline", "cancellation"])
async def test_a_conductor_in_a_thread_makes_no_more_calls_when_the_run_around_it_has_ended(ends: str) -> None:
    calls: list[str] = []
    asked, go_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def reply(request: Request) -> str:
        calls.append(prompt_in(request.messages))
        return "from a"

    inner = Conductor(ScriptedModel([plan((0, "x", []), (0, "y", ["all"]))]), pool_of(a=reply))

    def ask(subtask: str) -> str:
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(SOON)
        try:
            return inner.run_sync(subtask).text
        finally:
            ended.set()

    limits = Limits(seconds=0.5) if ends == "deadline" else None
    running = asyncio.create_task(Conductor(ScriptedModel(ONE), {"f": ask}, limits=limits).run("q"))
    await asyncio.wait_for(asked.wait(), SOON)
    if ends == "cancellation":
        running.cancel()
    await asyncio.wait({running})
    assert running.cancelled() or isinstance(running.exception(), RunError)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, SOON)
    assert calls == []


@pytest.mark.parametrize("ends", ["timeout", "cancellation"])
async def test_a_conductor_in_a_thread_is_cancelled_with_the_call_and_in_its_record(ends: str) -> None:
    asked, ended = threading.Event(), threading.Event()

    async def hang(request: Request) -> None:
        asked.set()
        await forever(request)

    stuck = Gated("never", hang, price=Price(input=0, output=Decimal(1000)))
    inner = Conductor(
        ScriptedModel(ONE, price=FREE), pool_of(a=Worker.of("a", stuck, sampling=Sampling(max_tokens=100)))
    )

    def ask(subtask: str) -> str:
        try:
            return inner.run_sync(subtask).text
        finally:
            ended.set()

    events: list[Event] = []
    made = Conductor(
        ScriptedModel(ONE, price=FREE),
        pool_of(f=Worker.of("f", ask, timeout=0.5 if ends == "timeout" else None)),
        limits=Limits(usd=1, hedges=0),
        retries=0,
    )
    running = asyncio.create_task(made.run("q", on_event=events.append))
    assert await asyncio.to_thread(asked.wait, SOON)
    if ends == "cancellation":
        running.cancel()
    await asyncio.wait({running})
    assert await asyncio.to_thread(ended.wait, SOON)
    assert stuck.held == 0
    (trace,) = (event.trace for event in events if isinstance(event, Finished))
    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    assert [inner_call.outcome for inner_call in call.nested.runs[0].rounds[0].calls] == ["ok", "cancelled"]
    assert (call.usage.calls, call.usage.unpriced_calls) == (2, 1)
    assert call.charged is not None
    assert call.charged.usd == Decimal("0.1")


async def test_calls_of_a_conductor_in_a_thread_that_does_not_end_in_time_count_as_unpriced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_conductor.calls.nested_runs.CLEANUP_SECONDS", 0.05)
    asked, go_on = threading.Event(), threading.Event()

    def block(request: Request) -> str:
        asked.set()
        go_on.wait(SOON)
        return "late"

    stubborn = ScriptedModel(block, price=Price(input=0, output=Decimal(1000)))
    pool = pool_of(a=Worker.of("a", stubborn, sampling=Sampling(max_tokens=100)))
    inner = Conductor(ScriptedModel(ONE, price=FREE), pool)

    def ask(subtask: str) -> str:
        return asyncio.run(inner.run(subtask)).text

    events: list[Event] = []
    made = Conductor(ScriptedModel(ONE, price=FREE), {"f": ask}, limits=Limits(usd=1))
    running = asyncio.create_task(made.run("q", on_event=events.append))
    assert await asyncio.to_thread(asked.wait, SOON)
    running.cancel()
    await asyncio.wait({running})
    go_on.set()
    (trace,) = (event.trace for event in events if isinstance(event, Finished))
    (call,) = trace.rounds[0].results[0].calls
    assert call.usage.unpriced_calls == 2
    assert call.charged is not None
    assert call.charged.usd == Decimal("0.1")


async def test_a_conductor_that_is_cancelled_before_its_first_call_used_none() -> None:
    asked = asyncio.Event()

    async def wait(_: Content) -> Verdict:
        asked.set()
        return await asyncio.Future()

    check = Check(stages=("input",), verdict=wait)
    inner = Conductor(ScriptedModel(ONE), pool_of(a="from a"), guardrails=[check])
    events: list[Event] = []
    running = asyncio.create_task(Conductor(ScriptedModel(ONE), pool_of(team=inner)).run("q", on_event=events.append))
    await asyncio.wait_for(asked.wait(), SOON)
    running.cancel()
    await asyncio.wait({running})
    (trace,) = (event.trace for event in events if isinstance(event, Finished))
    (call,) = trace.rounds[0].results[0].calls
    assert (call.outcome, call.usage) == ("cancelled", Usage())
