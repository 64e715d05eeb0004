"""Steps in parallel, what each is shown, and what happens when workers fail, dawdle or are cancelled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.runs import (
    SOON,
    Gated,
    busy,
    down,
    evidence_of,
    finished,
    forever,
    is_about,
    leftover_tasks,
    pool_of,
    started,
    subtask_of,
    worker,
    workflow,
)
from rl_conductor.calls.context import RunContext
from rl_conductor.errors import BadRequestError, ContextLengthError, ModelError, RateLimitError
from rl_conductor.execution.executor import RoundExecutor
from rl_conductor.execution.round_context import Hedges, RoundContext
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.plan_stream import PlanStream
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.subtasks import ANSWER
from rl_conductor.prompting.worker_prompt import NO_REPLY
from rl_conductor.text.delimiters import escape_tags
from rl_conductor.trace.events import AnswerDelta, Event, StepFinished
from rl_conductor.trace.trace import PlanRecord, StepResult
from rl_conductor.types import Message, Request, Sampling, Tool
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Flow, Policy
from rl_conductor.workflow.workflow import Step, Workflow

QUESTION = Request.user("What is it?")


async def whole(flow: Workflow) -> PlanStream:
    """A plan that is complete from the start."""
    yield PlanRecord(source="given", workflow=flow)


class Bench:
    """An executor with its events at hand."""

    def __init__(
        self, pool: WorkerPool, *, policy: Policy | None = None, limits: Limits | None = None, **options: Any
    ) -> None:
        self.events: list[Event] = []
        limits = limits or Limits()
        retries = options.pop("retries", 2)
        space = (policy or Policy()).space(pool.cards, max_steps=20, access="positional")
        self.round = RoundContext(
            run=RunContext(limits=limits, retries=retries, delimiter_key="key", emit=self.events.append),
            pool=pool,
            space=space,
            request=options.pop("request", QUESTION),
            hedges=Hedges(limits.hedges),
            **options,
        )
        self.executor = RoundExecutor(self.round)

    async def run(self, flow: Workflow) -> tuple[StepResult, ...]:
        async with asyncio.timeout(SOON):
            await self.executor.run(whole(flow))
        assert not leftover_tasks()
        assert self.round.run.budget.reserved.calls == 0
        return self.executor.results()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


# ------------------------------------------------------------------------------------- in parallel


async def test_independent_steps_are_in_flight_at_the_same_time() -> None:
    together = asyncio.Barrier(3)  # opens only for three calls at once
    model = Gated("ok", lambda request: together.wait() if subtask_of(request) != "join" else asyncio.sleep(0))
    flow = workflow(("a", "x", ()), ("a", "y", ()), ("a", "z", ()), ("a", "join", (0, 1, 2)))

    results = await Bench(pool_of(a=model)).run(flow)

    assert [result.status for result in results] == ["ok"] * 4


async def test_a_step_starts_as_soon_as_what_it_reads_is_there_whatever_else_is_running() -> None:
    third = asyncio.Event()

    async def wait(request: Request) -> None:
        if subtask_of(request) == "slow":
            await third.wait()  # a scheduler that works layer by layer would wait for this one for ever
        if subtask_of(request) == "reads the quick one":
            third.set()

    flow = workflow(("a", "slow", ()), ("a", "quick", ()), ("a", "reads the quick one", (1,)), ("a", "join", (0, 1, 2)))

    results = await Bench(pool_of(a=Gated("ok", wait))).run(flow)

    assert results[-1].status == "ok"


async def test_wall_time_is_the_critical_path() -> None:
    flow = workflow(*((("a", f"{i}", ())) for i in range(6)), ("a", "join", range(6)))
    model = ScriptedModel("ok", delay=0.5)

    with at_most(3.0):  # one after the other would take 3.5
        await Bench(pool_of(a=model)).run(flow)
    assert model.peak == 6


async def test_a_worker_is_never_asked_more_at_once_than_its_slots_allow() -> None:
    model = ScriptedModel("ok", delay=0.005)
    flow = workflow(*((("a", f"{i}", ())) for i in range(6)), ("a", "join", range(6)))

    await Bench(WorkerPool([worker("a", model, concurrency=2)])).run(flow)

    assert (model.peak, len(model.requests)) == (2, 7)


async def test_a_slot_is_free_while_a_call_waits_to_be_repeated() -> None:
    replies = {"first": [RateLimitError("busy", model="a", retry_after=0.5)], "second": []}

    def script(request: Request) -> Any:
        left = replies.get(subtask_of(request), [])
        return left.pop() if left else "ok"

    flow = workflow(("a", "first", ()), ("a", "second", ()), ("a", "join", (0, 1)))
    results = await Bench(WorkerPool([worker("a", script, concurrency=1)])).run(flow)

    assert results[1].calls[0].started < 0.4 < results[0].calls[1].started


async def test_steps_that_the_answer_cannot_depend_on_never_run() -> None:
    model = ScriptedModel(subtask_of)
    bench = Bench(pool_of(a=model))

    results = await bench.run(workflow(("a", "x", ()), ("a", "reads x", (0,)), ("a", "y", ()), ("a", "end", (2,))))

    assert [result.status for result in results] == ["skipped", "skipped", "ok", "ok"]
    assert [subtask_of(request) for request in model.requests] == ["y", "end"]
    assert sorted(finished(bench.events)) == [0, 1, 2, 3]  # each is reported exactly once


# ------------------------------------------------------------------------------- what each is shown


@st.composite
def any_workflow(draw: st.DrawFn) -> Workflow:
    steps = []
    for index in range(draw(st.integers(1, 6))):
        access = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append(Step(subtask=f"subtask {index}", worker=draw(st.sampled_from("abc")), access=frozenset(access)))
    return Workflow(steps=tuple(steps))


@given(flow=any_workflow(), slow=st.sets(st.integers(0, 5)))
@settings(max_examples=60, deadline=None)
def test_each_step_sees_exactly_what_its_access_list_names(flow: Workflow, slow: set[int]) -> None:
    def number(request: Request) -> int:
        return int(subtask_of(request).split()[-1])

    def wait(request: Request) -> float:
        return 0.002 if number(request) in slow else 0.0

    def named(name: str) -> ScriptedModel:
        return ScriptedModel(lambda request: f"{name} says {number(request)}", delay=wait)

    models = {name: named(name) for name in "abc"}
    asyncio.run(Bench(pool_of(**models)).run(flow))

    asked = Counter(number(request) for model in models.values() for request in model.requests)
    assert asked == Counter(flow.needed)
    for name, model in models.items():
        for request in model.requests:
            step = flow.steps[number(request)]
            assert step.worker == name
            assert evidence_of(request) == [
                (str(i + 1), flow.steps[i].subtask, f"{flow.steps[i].worker} says {i}") for i in sorted(step.access)
            ]
            assert is_about(request, "What is it?")


async def test_the_conversation_is_shown_to_every_worker_with_its_last_question_framed() -> None:
    turns = (Message.system("Be brief."), Message.user("Hi."), Message.assistant("Hello."), Message.user("And now?"))
    model = ScriptedModel("ok")

    await Bench(pool_of(a=model), request=Request(messages=turns)).run(workflow(("a", "x", ()), ("a", "end", (0,))))

    for request in model.requests:
        assert request.messages[:3] == turns[:3]
        assert is_about(request, "And now?")


async def test_a_step_that_is_the_whole_task_and_reads_nothing_gets_the_conversation_as_it_is() -> None:
    turns = (Message.user("Hi."), Message.assistant("Hello."), Message.user("And now?"))
    model = ScriptedModel("ok")

    await Bench(pool_of(a=model), request=Request(messages=turns)).run(
        workflow(("a", ANSWER, ()), ("a", "Do part of it.", ()), ("a", ANSWER, (0, 1)))
    )

    alone, part, last = model.requests
    assert alone.messages == turns
    assert (subtask_of(part), is_about(part, "And now?")) == ("Do part of it.", True)
    assert (subtask_of(last), is_about(last, "And now?"), len(evidence_of(last))) == (ANSWER, True, 2)


async def test_only_the_final_step_gets_the_callers_tools_format_and_sampling() -> None:
    asked = QUESTION.model_copy(
        update={"tools": (Tool(name="search"),), "sampling": Sampling(temperature=0.5, max_tokens=7), "timeout": 9.0}
    )
    model = ScriptedModel("ok")
    pool = WorkerPool([worker("a", model, sampling=Sampling(seed=3, temperature=1.0), timeout=None)])

    await Bench(pool, request=asked).run(workflow(("a", "x", ()), ("a", "end", (0,))))

    first, last = model.requests
    assert (first.tools, first.sampling.temperature, first.sampling.max_tokens) == ((), 1.0, 4096)
    assert (last.tools, last.timeout) == (asked.tools, 9.0)
    assert (last.sampling.temperature, last.sampling.max_tokens, last.sampling.seed) == (0.5, 7, 3)


async def test_reasoning_of_one_worker_is_not_shown_to_another() -> None:
    first = ScriptedModel("<think>secret musings</think>The reply.")
    second = ScriptedModel("ok")

    await Bench(pool_of(a=first, b=second)).run(workflow(("a", "x", ()), ("b", "end", (0,))))

    assert evidence_of(second.requests[0]) == [("1", "x", "The reply.")]


async def test_a_failed_step_is_shown_as_failed() -> None:
    last = ScriptedModel("ok")
    policy = Policy(forbid=(Flow(reader="*", source="b"),))  # so that b can't take over from a

    results = await Bench(pool_of(a=down, b=last), policy=policy).run(workflow(("a", "x", ()), ("b", "end", (0,))))

    assert results[0].status == "failed"
    assert "out of order" in (results[0].error or "")
    assert evidence_of(last.requests[0]) == [("1", "x", escape_tags(NO_REPLY))]


# ---------------------------------------------------------------------------- retries, replacement


async def test_a_call_is_repeated_when_the_vendor_says_not_before_then() -> None:
    model = ScriptedModel([RateLimitError("busy", model="a", retry_after=0.08), "ok"])
    bench = Bench(pool_of(a=model))

    (result,) = await bench.run(workflow(("a", "x", ())))

    first, second = result.calls
    assert second.started - (first.started + first.seconds) >= 0.08
    assert [call.outcome for call in result.calls] == ["error", "ok"]
    assert started(bench.events) == [(0, "a", 1), (0, "a", 2)]


async def test_a_call_is_repeated_no_more_often_than_allowed_and_then_another_worker_takes_over() -> None:
    first = ScriptedModel(busy)

    (result,) = await Bench(pool_of(a=first, b="ok"), retries=3).run(workflow(("a", "x", ())))

    assert len(first.requests) == 4
    assert (result.step.worker, result.planned_worker, result.status) == ("b", "a", "ok")
    assert [call.worker for call in result.calls] == ["a"] * 4 + ["b"]


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("too long", model="a"),
        BadRequestError("no", model="a", status=400),
        ModelError("final", model="a"),
        RateLimitError("come back tomorrow", model="a", retry_after=86_400),
        ValueError("anything a user's own model may raise"),
        TimeoutError("of a socket"),
    ],
)
async def test_what_no_repetition_can_mend_goes_to_another_worker_at_once(error: Exception) -> None:
    first = ScriptedModel([error, "never asked"])
    pool = WorkerPool([worker("a", first), worker("b", "ok")])

    with at_most(SOON):
        (result,) = await Bench(pool, retries=0).run(workflow(("a", "x", ())))

    assert (result.step.worker, result.status, len(first.requests)) == ("b", "ok", 1)
    assert str(error) in (result.calls[0].error or "")


async def test_an_empty_reply_is_a_failure() -> None:
    (result,) = await Bench(pool_of(a="  \n ", b="ok"), retries=0).run(workflow(("a", "x", ())))

    assert result.step.worker == "b"
    assert "empty" in (result.error or "")


async def test_the_best_other_worker_takes_over() -> None:
    pool = WorkerPool([worker("a", down, accuracy=0.9), worker("b", "b", accuracy=0.2), worker("c", "c", accuracy=0.8)])

    (result,) = await Bench(pool).run(workflow(("a", "x", ())))

    assert result.text == "c"


async def test_no_worker_that_the_policy_denies_takes_over() -> None:
    denied = ScriptedModel("never asked")

    (result,) = await Bench(pool_of(a=down, b=denied), policy=Policy(deny=frozenset({"b"}))).run(
        workflow(("a", "x", ()))
    )

    assert (result.status, denied.requests) == ("failed", [])


@pytest.mark.parametrize("broken", [0, 1, 2])
async def test_a_worker_that_takes_over_keeps_the_flow_rules_even_through_others(broken: int) -> None:
    """`c` may not see what `a` wrote: not itself, and not in what `b` made of it; nor may it write what `d` sees."""
    names = ["a", "b", "d"]
    models: dict[str, Any] = {name: ScriptedModel("ok") for name in "abcd"}
    models[names[broken]] = ScriptedModel(down)
    policy = Policy(forbid=(Flow(reader="c", source="a"), Flow(reader="d", source="c")))
    pool = WorkerPool([worker(name, model, accuracy=float(name == "c")) for name, model in models.items()])
    flow = workflow(("a", "x", ()), ("b", "y", (0,)), ("d", "z", (1,)))

    results = await Bench(pool, policy=policy, retries=0).run(flow)

    assert models["c"].requests == []  # though it is the best, there is no place that it may take
    assert not bench_violations(results, policy, pool)


def bench_violations(results: tuple[StepResult, ...], policy: Policy, pool: WorkerPool) -> tuple[str, ...]:
    space = policy.space(pool.cards, max_steps=20, access="positional")
    return space.violations(Workflow(steps=tuple(result.step for result in results)))


@given(flow=any_workflow(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_whoever_takes_over_the_workflow_as_run_never_breaks_the_policy(flow: Workflow, data: st.DataObject) -> None:
    pairs = [(reader, source) for reader in "abcd" for source in "abcd"]
    forbidden = data.draw(st.lists(st.sampled_from(pairs), max_size=3))
    policy = Policy(forbid=tuple(Flow(reader=reader, source=source) for reader, source in forbidden))
    broken = data.draw(st.sets(st.sampled_from("abcd")))
    pool = pool_of(**{name: down if name in broken else "ok" for name in "abcd"})
    if bench_violations(tuple(_planned(flow)), policy, pool):
        return
    results = asyncio.run(Bench(pool, policy=policy, retries=0).run(flow))
    assert not bench_violations(results, policy, pool)


def _planned(flow: Workflow) -> Iterator[StepResult]:
    for index, step in enumerate(flow.steps):
        yield StepResult(index=index, step=step, planned_worker=step.worker, status="ok")


# ---------------------------------------------------------------------------------------- streaming


async def test_the_final_reply_is_passed_on_as_it_is_made() -> None:
    bench = Bench(pool_of(a="one two three"), stream=True)

    await bench.run(workflow(("a", "x", ()), ("a", "end", (0,))))

    assert [event.text for event in bench.events if isinstance(event, AnswerDelta)] == ["one ", "two ", "three"]
    assert bench.round.streamed_text == "one two three"


async def test_nothing_is_tried_again_once_a_piece_of_the_answer_was_passed_on() -> None:
    breaks = ScriptedModel([["half an ", RateLimitError("gone", model="a", retry_after=0.001)], "whole"])
    other = ScriptedModel("other")
    bench = Bench(pool_of(a=breaks, b=other), stream=True)

    (result,) = await bench.run(workflow(("a", "x", ())))

    assert (result.status, bench.round.streamed_text) == ("failed", "half an ")
    assert (len(breaks.requests), other.requests) == (1, [])


async def test_a_stream_that_fails_before_its_first_piece_is_tried_again() -> None:
    model = ScriptedModel([[RateLimitError("busy", model="a", retry_after=0.001)], "whole"])
    bench = Bench(pool_of(a=model), stream=True)

    (result,) = await bench.run(workflow(("a", "x", ())))

    assert (result.text, bench.round.streamed_text) == ("whole", "whole")


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["<think>", "hm ", "hm", "</think>\n\n", "Yes", "."], "Yes."),
        ([" \n<th", "ink>x</thi", "nk> ", "  Yes."], "Yes."),
        (["<thin", "g> is a tag"], "<thing> is a tag"),
        (["  ", "indented"], "  indented"),
        (["Say <think>", "x</think>"], "Say <think>x</think>"),
    ],
)
async def test_reasoning_before_the_answer_is_not_passed_on(pieces: list[str | Exception], said: str) -> None:
    bench = Bench(pool_of(a=ScriptedModel([pieces])), stream=True)

    await bench.run(workflow(("a", "x", ())))

    deltas = [event.text for event in bench.events if isinstance(event, AnswerDelta)]
    assert "".join(deltas) == bench.round.streamed_text == said
    assert all(deltas)


# ------------------------------------------------------------------------------------------ hedging


def hedged(slow: ScriptedModel, other: Any, **options: Any) -> WorkerPool:
    return WorkerPool([worker("a", slow, hedge_after=0.01), worker("b", other, **options)])


async def test_a_slow_call_is_hedged_and_the_loser_is_cancelled() -> None:
    slow = Gated("late", forever)

    (result,) = await Bench(hedged(slow, "quick"), limits=Limits(hedges=1)).run(workflow(("a", "x", ())))

    assert (result.text, result.step.worker, slow.held) == ("quick", "b", 0)
    assert {call.worker: call.outcome for call in result.calls} == {"a": "cancelled", "b": "ok"}


async def test_a_quick_call_is_not_hedged() -> None:
    other = ScriptedModel("other")

    (result,) = await Bench(hedged(ScriptedModel("ok"), other), limits=Limits(hedges=1)).run(workflow(("a", "x", ())))

    assert (result.text, other.requests) == ("ok", [])


async def test_hedges_are_counted_over_the_whole_run() -> None:
    slow, other = ScriptedModel("slow", delay=0.2), ScriptedModel("other", delay=9.0)
    flow = workflow(("a", "x", ()), ("a", "y", ()), ("a", "z", ()), ("a", "end", (0, 1, 2)))

    await Bench(hedged(slow, other), limits=Limits(hedges=2)).run(flow)

    assert (len(other.requests), other.in_flight) == (2, 0)


async def test_without_a_budget_nothing_is_hedged() -> None:
    other = ScriptedModel("other")

    (result,) = await Bench(hedged(ScriptedModel("ok", delay=0.03), other)).run(workflow(("a", "x", ())))

    assert (result.text, other.requests) == ("ok", [])


async def test_when_the_first_fails_the_hedge_is_waited_for() -> None:
    slow = ScriptedModel(down, delay=0.15)

    (result,) = await Bench(hedged(slow, ScriptedModel("ok", delay=0.2)), limits=Limits(hedges=1)).run(
        workflow(("a", "x", ()))
    )

    assert (result.text, result.step.worker) == ("ok", "b")


async def test_when_both_fail_the_step_fails() -> None:
    slow = ScriptedModel(down, delay=0.15)

    (result,) = await Bench(hedged(slow, down), limits=Limits(hedges=1)).run(workflow(("a", "x", ())))

    assert (result.status, len(result.calls)) == ("failed", 2)


async def test_each_error_of_a_hedged_step_names_its_own_worker() -> None:
    def fail(name: str, delay: float) -> ScriptedModel:
        return ScriptedModel([ModelError(f"{name} is broken", model=name)], delay=delay)

    both = hedged(fail("a", 0.3), fail("b", 0.0))
    (result,) = await Bench(both, limits=Limits(hedges=1)).run(workflow(("a", "x", ())))

    assert result.error is not None
    assert "a: a is broken" in result.error
    assert "b: b is broken" in result.error


async def test_only_the_streamed_step_is_never_hedged() -> None:
    slow, other = ScriptedModel("slow", delay=0.15), ScriptedModel("other")
    bench = Bench(hedged(slow, other), limits=Limits(hedges=9), stream=True)

    first, last = await bench.run(workflow(("a", "x", ()), ("a", "end", (0,))))

    assert (first.text, last.text) == ("other", "slow")


@pytest.mark.parametrize("hedges", [0, 1])
async def test_no_reply_waits_for_the_plan_because_it_might_be_hedged(hedges: int) -> None:
    slow, reader = ScriptedModel("slow", delay=0.03), Gated("ok", lambda _: asyncio.sleep(0))
    bench = Bench(hedged(slow, reader), limits=Limits(hedges=hedges))
    flow = workflow(("a", "x", ()), ("b", "reads", (0,)), ("b", "end", (1,)))
    bench.executor.start(0, flow.steps[0])
    bench.executor.start(1, flow.steps[1])

    await asyncio.wait_for(reader.asked.wait(), SOON)

    results = await bench.run(flow)
    assert [result.text for result in results] == ["slow", "ok", "ok"]


async def test_who_was_done_while_a_hedge_waited_for_the_plan_is_not_hedged() -> None:
    enough, other = asyncio.Event(), ScriptedModel("end")
    slow = Gated("slow", lambda _: enough.wait())
    bench = Bench(hedged(slow, other), limits=Limits(hedges=1))
    flow = workflow(("a", "x", ()), ("b", "end", (0,)))
    bench.executor.start(0, flow.steps[0])  # ahead of the rest of its plan
    await asyncio.sleep(0.03)  # more than it may take before it is hedged
    enough.set()
    await asyncio.sleep(0.01)

    await bench.executor.run(whole(flow))

    assert [subtask_of(request) for request in other.requests] == ["end"]
    assert bench.round.hedges.remaining == 1


async def test_a_hedge_keeps_the_flow_rules() -> None:
    other = ScriptedModel("never asked")
    policy = Policy(forbid=(Flow(reader="b", source="c"), Flow(reader="c", source="c")))
    pool = WorkerPool([*hedged(ScriptedModel("ok", delay=0.03), other).values(), worker("c", "evidence")])

    results = await Bench(pool, policy=policy, limits=Limits(hedges=5)).run(
        workflow(("c", "x", ()), ("a", "end", (0,)))
    )

    assert (results[-1].text, other.requests) == ("ok", [])


async def test_a_hedge_that_another_steps_new_worker_rules_out_is_not_taken() -> None:
    """`b` could hedge step 1, but step 2 reads that and may not read `b`."""
    policy = Policy(forbid=(Flow(reader="c", source="b"), Flow(reader="c", source="c")))
    pool = WorkerPool([*hedged(ScriptedModel("a", delay=0.04), "b").values(), worker("c", "end")])

    results = await Bench(pool, policy=policy, limits=Limits(hedges=5)).run(
        workflow(("a", "x", ()), ("c", "end", (0,)))
    )

    assert [result.text for result in results] == ["a", "end"]


# -------------------------------------------------------------------------- cancellation, deadlines


async def test_cancelling_a_run_cancels_every_call_in_flight_and_keeps_what_is_known() -> None:
    hangs = Gated("never", forever)
    bench = Bench(pool_of(a="done", b=hangs))
    flow = workflow(("a", "x", ()), ("b", "y", ()), ("b", "z", ()), ("a", "skipped", ()), ("a", "end", (0, 1, 2)))
    task = asyncio.create_task(bench.executor.run(whole(flow)))
    await asyncio.wait_for(hangs.asked.wait(), SOON)
    await asyncio.sleep(0.01)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert hangs.held == hangs.in_flight == 0
    assert not leftover_tasks()
    results = bench.executor.results()
    assert [result.status for result in results] == ["ok", "failed", "failed", "skipped", "failed"]
    assert [call.outcome for call in results[1].calls] == ["cancelled"]
    assert results[1].error == "cancelled"
    assert results[4].calls == ()
    assert sorted(finished(bench.events)) == [0, 1, 2, 3, 4]
    assert bench.round.run.budget.reserved.calls == 0


async def test_cancelling_reaches_both_calls_of_a_hedge() -> None:
    first, second = Gated("never", forever), Gated("never", forever)
    bench = Bench(hedged(first, second), limits=Limits(hedges=1))
    task = asyncio.create_task(bench.executor.run(whole(workflow(("a", "x", ())))))
    await asyncio.wait_for(second.asked.wait(), SOON)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert first.held == second.held == 0
    assert not leftover_tasks()
    assert [call.outcome for call in bench.executor.results()[0].calls] == ["cancelled", "cancelled"]


async def test_a_call_that_still_waited_for_a_slot_when_it_was_cancelled_was_never_made() -> None:
    hangs = Gated("never", forever)
    bench = Bench(WorkerPool([worker("a", hangs, concurrency=1)]))
    task = asyncio.create_task(
        bench.executor.run(whole(workflow(("a", "x", ()), ("a", "y", ()), ("a", "end", (0, 1)))))
    )
    await asyncio.wait_for(hangs.asked.wait(), SOON)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    made = [call for result in bench.executor.results() for call in result.calls]
    assert [call.usage.calls for call in made] == [1]


async def test_the_deadline_reaches_calls_in_flight() -> None:
    hangs = Gated("never", forever)
    bench = Bench(pool_of(a="ok", b=hangs), limits=Limits(seconds=0.05))

    with at_most(SOON):
        results = await bench.run(workflow(("a", "x", ()), ("b", "end", (0,))))

    assert [result.status for result in results] == ["ok", "failed"]
    assert results[1].calls[0].outcome == "timeout"
    assert "limits.seconds=0.05" in (results[1].error or "")
    assert hangs.held == 0


async def test_the_deadline_reaches_calls_that_wait_for_a_slot() -> None:
    taken = worker("a", "ok", concurrency=1)
    assert taken.slots is not None
    async with taken.slots.get():  # by another run
        with at_most(SOON):
            (result,) = await Bench(WorkerPool([taken]), limits=Limits(seconds=0.05)).run(workflow(("a", "x", ())))

    assert result.status == "failed"
    assert [(call.outcome, call.usage.calls) for call in result.calls] == [("timeout", 0)]


async def test_the_deadline_reaches_a_call_that_waits_to_be_repeated() -> None:
    model = ScriptedModel(lambda _: ModelError("flaky", model="a", retryable=True))

    with at_most(SOON):
        (result,) = await Bench(pool_of(a=model), limits=Limits(seconds=0.6), retries=9).run(workflow(("a", "x", ())))

    assert result.status == "failed"


async def test_a_worker_that_dawdles_is_given_up_and_replaced() -> None:
    hangs = Gated("never", forever)
    pool = WorkerPool([worker("a", hangs, timeout=0.02), worker("b", "ok")])

    (result,) = await Bench(pool, retries=0).run(workflow(("a", "x", ())))

    assert (result.text, hangs.held) == ("ok", 0)
    assert result.calls[0].outcome == "timeout"
    assert "within 0.02 s" in (result.calls[0].error or "")


async def test_an_impossible_state_ends_the_run_loudly_and_leaves_nothing_behind() -> None:
    hangs = Gated("never", forever)
    bench = Bench(pool_of(a=[], b=hangs))  # an empty script that is asked raises AssertionError

    with pytest.raises(AssertionError, match="more than its script"):
        await bench.executor.run(whole(workflow(("a", "x", ()), ("b", "y", ()), ("a", "end", (0, 1)))))

    assert hangs.held == 0
    assert not leftover_tasks()


# ---------------------------------------------------------------------------------- early dispatch


async def test_a_step_started_ahead_is_kept_when_the_plan_has_it() -> None:
    model = ScriptedModel("ok")
    bench = Bench(pool_of(a=model))
    flow = workflow(("a", "x", ()), ("a", "end", (0,)))
    bench.executor.start(0, flow.steps[0])
    await asyncio.sleep(0.01)
    assert len(model.requests) == 1

    results = await bench.run(flow)

    assert [result.status for result in results] == ["ok", "ok"]
    assert (len(model.requests), bench.executor.abandoned_calls) == (2, ())


@pytest.mark.parametrize(
    "flow",
    [
        workflow(("a", "other", ()), ("a", "end", (0,))),
        workflow(("b", "x", ()), ("a", "end", (0,))),
        workflow(("a", "x", ())),  # it was asked as one step of several, not for the answer
        workflow(("a", "x", ()), ("a", "end", ())),  # the answer can't depend on it
    ],
)
@pytest.mark.parametrize("hangs", [True, False])
async def test_a_step_started_ahead_is_dropped_and_accounted_for_when_the_plan_has_no_such(
    flow: Workflow, hangs: bool
) -> None:
    model = Gated(subtask_of, forever if hangs else lambda _: asyncio.sleep(0))
    other = ScriptedModel(subtask_of)
    bench = Bench(pool_of(a=model, b=other))
    bench.executor.start(0, Step(subtask="x", worker="a"))
    await asyncio.wait_for(model.asked.wait(), SOON)
    await asyncio.sleep(0.01)
    model._wait = lambda _: asyncio.sleep(0)

    results = await bench.run(flow)

    assert results[-1].text == flow.steps[-1].subtask
    assert [call.outcome for call in bench.executor.abandoned_calls] == ["cancelled" if hangs else "ok"]
    assert [result.step for result in results] == list(flow.steps)


async def test_cancelling_a_run_while_it_drops_a_step_ends_the_other_steps_that_were_started_ahead() -> None:
    cleaning = asyncio.Event()

    async def slow_to_end(_: Request) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.sleep(0.05)

    kept, dropped = Gated("never", forever), Gated("never", slow_to_end)
    bench = Bench(pool_of(a=kept, b=dropped))
    flow = workflow(("a", "x", ()), ("a", "end", (0,)))
    bench.executor.start(0, flow.steps[0])
    bench.executor.start(1, Step(subtask="y", worker="b"))
    await asyncio.gather(kept.asked.wait(), dropped.asked.wait())
    task = asyncio.create_task(bench.executor.run(whole(flow)))
    await cleaning.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept.held == dropped.held == 0
    assert not leftover_tasks()


async def test_a_worker_that_cancels_itself_has_failed_and_another_takes_over() -> None:
    def cancel_itself(_: Request) -> BaseException:
        raise asyncio.CancelledError

    bench = Bench(pool_of(a=cancel_itself, b="from b"))
    results = await bench.run(workflow(("a", "x", ())))
    assert (results[0].step.worker, results[0].text) == ("b", "from b")
    assert "a: scripted:a raised CancelledError" in str(results[0].error)


async def test_a_step_started_ahead_finds_no_other_worker_before_the_plan_is_known() -> None:
    other = ScriptedModel("ok")
    bench = Bench(pool_of(a=down, b=other))
    flow = workflow(("a", "x", ()), ("b", "end", (0,)))
    bench.executor.start(0, flow.steps[0])
    await asyncio.sleep(0.01)
    assert other.requests == []

    results = await bench.run(flow)

    assert [result.step.worker for result in results] == ["b", "b"]


async def test_every_step_is_reported_once_with_its_result() -> None:
    bench = Bench(pool_of(a="ok"))

    results = await bench.run(workflow(("a", "x", ()), ("a", "end", (0,))))

    reported = [event.result for event in bench.events if isinstance(event, StepFinished)]
    assert sorted(reported, key=lambda result: result.index) == list(results)
