"""The stages at which guardrails check a run, and the texts that reach planner, workers, events and trace."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from core.runs import ACCEPT, SOON, Gated, down, forever, plan, pool_of, worker, workflow
from core.scripted_guardrails import HIDDEN, SECRET, Check, Hide, Rewriting, always
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, PolicyError, RefusedError, RunError
from rl_conductor.execution.guarding import WITHHELD
from rl_conductor.guardrails import Allow, Content, Guardrail, Redact, Refuse, Replace, Verdict, check_messages
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.worker import Worker
from rl_conductor.replay import differences, replay
from rl_conductor.trace.checks import Stage
from rl_conductor.trace.events import AnswerDelta, Event, Finished, StepFinished
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import (
    Card,
    Continuation,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    TextPart,
    Tool,
    ToolCall,
)
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import DataRule, Policy

TWO_STEPS = plan((0, "find it", []), (1, "say it", ["all"]))
ONE_STEP = plan((0, "say it", []))
TOOL = Tool(name="dial")
DIAL = Message.assistant("calling", tool_calls=[ToolCall(id="c1", name="dial", arguments=json.dumps({"to": SECRET}))])


def conductor(*guardrails: Guardrail, planner: Any = TWO_STEPS, **options: Any) -> Conductor:
    pool = pool_of(**options.pop("pool", {"a": f"found {SECRET}", "b": "done"}))
    return Conductor(ScriptedModel(planner, name="planner"), pool, guardrails=guardrails, **options)


async def hang() -> Verdict:
    """A check that never ends."""
    await asyncio.Event().wait()
    raise AssertionError


def texts(model: Any) -> str:
    """Everything that a scripted model was sent."""
    return "\n".join(request.model_dump_json() for request in model.requests)


def outcomes(trace: Trace) -> list[tuple[str, str, str]]:
    return [(check.guardrail, check.stage, check.outcome) for check in trace.checks]


async def refused(made: Conductor, question: Any = "hello") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await made.run(question)
    return caught.value


# ------------------------------------------------------------------------------------------ input


async def test_a_redacted_question_is_all_that_planner_workers_and_trace_see() -> None:
    made = conductor(Hide(stages=("input",)), pool={"a": "found", "b": "done"})
    trace = await made.run(f"call {SECRET}")
    assert HIDDEN in texts(made.planner.model)
    for model in (made.planner.model, made.pool["a"].model, made.pool["b"].model):
        assert SECRET not in texts(model)
    assert SECRET not in trace.model_dump_json()
    assert trace.request.messages == (Message.user(f"call {HIDDEN}"),)
    assert outcomes(trace) == [("hide", "input", "redacted")]
    assert trace.rounds[0].plan.checks[0].reason == "a phone number"
    assert Summary.of(trace).rounds[0].plan.checks == trace.rounds[0].plan.checks


async def test_every_turn_of_the_conversation_is_checked() -> None:
    turns = (
        Message.system(f"system {SECRET}"),
        Message.user(f"first {SECRET}"),
        Message.assistant(tool_calls=DIAL.tool_calls),
        Message.tool("c1", f"answered by {SECRET}"),
        Message(role="user", content="last", name=SECRET),
    )
    made = conductor(Hide(stages=("input",)), pool={"a": "found", "b": "done"})
    trace = await made.run(turns)
    assert SECRET not in trace.model_dump_json()
    messages = trace.request.messages
    assert [message.text for message in messages[:2]] == [f"system {HIDDEN}", f"first {HIDDEN}"]
    assert json.loads(messages[2].tool_calls[0].arguments) == {"to": HIDDEN}
    assert messages[3].text == f"answered by {HIDDEN}"
    assert messages[4].name is None


async def test_images_are_shown_to_guardrails_and_stay_where_they_are() -> None:
    image = ImagePart(data="aGk=")
    guardrail = Hide(stages=("input",))
    made = conductor(guardrail, pool={"a": "found", "b": "done"})
    trace = await made.run([Message.user(f"look {SECRET}", image)])
    assert guardrail.seen[0].images == (image,)
    assert trace.request.messages[0].content[1] == image


async def test_a_refused_question_reaches_no_model_and_no_trace() -> None:
    made = conductor(Check(stages=("input",), verdict=always(Refuse("not allowed"))))
    error = await refused(made, f"call {SECRET}")
    assert not made.planner.model.requests  # type: ignore[attr-defined]
    assert (error.guardrail, error.stage, error.reason) == ("check", "input", "not allowed")
    assert str(error) == "there is no answer: the guardrail 'check' refused the input: not allowed"
    assert SECRET not in error.trace.model_dump_json()
    assert outcomes(error.trace) == [("check", "input", "refused")]


async def test_a_plan_alone_is_checked_as_well() -> None:
    made = conductor(Hide(stages=("input",)))
    record = await made.plan(f"call {SECRET}")
    assert SECRET not in texts(made.planner.model)
    assert [check.outcome for check in record.checks] == ["redacted"]
    made = conductor(Check(stages=("input",), verdict=always(Refuse("no"))))
    with pytest.raises(RefusedError):
        await made.plan("call")
    assert not made.planner.model.requests  # type: ignore[attr-defined]


async def test_the_trace_of_a_run_cancelled_during_its_check_does_not_contain_the_question() -> None:
    asked = asyncio.Event()

    async def wait(_: Content) -> Verdict:
        asked.set()
        return await hang()

    events: list[Event] = []
    made = conductor(Check(stages=("input",), verdict=wait))
    run = asyncio.ensure_future(made.run(f"call {SECRET}", on_event=events.append))
    await asyncio.wait_for(asked.wait(), SOON)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert events
    assert SECRET not in events[-1].model_dump_json()


async def test_guardrails_that_rewrite_run_first_and_the_others_at_the_same_time() -> None:
    meeting = asyncio.Barrier(2)

    async def meet(content: Content) -> Verdict:
        assert content.texts == (f"call {HIDDEN}",)
        async with asyncio.timeout(SOON):
            await meeting.wait()
        return Allow()

    checks = [Check(name=name, stages=("input",), verdict=meet) for name in ("one", "two")]
    made = conductor(*checks, Hide(stages=("input",)), pool={"a": "found", "b": "done"})
    trace = await made.run(f"call {SECRET}")
    assert outcomes(trace)[0] == ("hide", "input", "redacted")
    assert len(outcomes(trace)) == 3


async def test_a_refusal_cancels_the_checks_beside_it() -> None:
    cancelled = asyncio.Event()

    async def wait(_: Content) -> Verdict:
        try:
            return await hang()
        finally:
            cancelled.set()

    slow = Check(name="slow", stages=("input",), verdict=wait)
    await refused(conductor(slow, Check(stages=("input",), verdict=always(Refuse("no")))))
    assert cancelled.is_set()


# ------------------------------------------------------------------------------------------ prompt


async def test_a_redaction_can_not_split_the_delimiters_of_a_prompt() -> None:
    class Greedy(Hide):
        async def check(self, content: Content) -> Verdict:
            self.seen.append(content)
            return Redact(tuple("X" for _ in content.texts))

    guardrail = Greedy(stages=("prompt",))
    made = conductor(guardrail)
    await made.run("question")
    prompt = made.pool["b"].model.requests[0].messages[-1].text  # type: ignore[attr-defined]
    nonce = prompt.split('mark="')[1][:16]
    assert prompt.startswith(
        f'The overall task:\nX\n\n<reply step="1" mark="{nonce}">\nsubtask: "X"\nX\n</reply mark="{nonce}">'
    )
    assert guardrail.seen[-1].texts == ("question", "find it", f"found {SECRET}", "say it")


async def test_a_prompt_that_is_refused_for_one_worker_goes_to_another() -> None:
    async def check(content: Content) -> Verdict:
        assert content.worker is not None
        return Refuse("it is external") if "external" in content.worker.tags else Allow()

    pool = {"a": worker("a", "never", tags={"external"}), "b": "done"}
    made = conductor(Check(stages=("prompt",), verdict=check), pool=pool)
    trace = await made.run("hello", workflow=workflow(("a", "say it", ())))
    assert trace.text == "done"
    assert not made.pool["a"].model.requests  # type: ignore[attr-defined]
    assert trace.rounds[0].results[0].error == "a: the guardrail 'check' refused the prompt: it is external"
    assert outcomes(trace) == [("check", "prompt", "refused"), ("check", "prompt", "allowed")]


async def test_the_prompt_of_a_hedge_call_is_checked_as_well() -> None:
    guardrail = Hide(stages=("prompt",))
    slow = worker("a", Gated("slow", forever, name="a"), hedge_after=0.0)
    made = conductor(guardrail, pool={"a": slow, "b": "done"}, limits=Limits(hedges=1))
    trace = await made.run(f"call {SECRET}", workflow=workflow(("a", "say it", ())))
    assert trace.text == "done"
    assert SECRET not in texts(made.pool["b"].model)
    assert {content.worker.name for content in guardrail.seen if content.worker} == {"a", "b"}


async def test_the_stored_prompt_of_a_tool_call_is_the_redacted_one() -> None:
    made = conductor(Hide(stages=("prompt",)), pool={"a": f"found {SECRET}", "b": [DIAL, "done"]})
    request = Request(messages=(Message.user("call them"),), tools=(TOOL,))
    first = await made.run(request)
    assert first.completion is not None
    continuation = first.completion.message.continuation
    assert continuation is not None
    assert continuation.prompt is not None
    assert SECRET not in continuation.prompt
    assert HIDDEN in continuation.prompt


async def test_a_continued_prompt_is_checked_between_its_delimiters() -> None:
    prompt = f'<reply step="1" mark="0123456789012345">\n{SECRET}\n</reply mark="0123456789012345">'
    made = conductor(Hide(stages=("input",)), pool={"a": "done", "b": "done"})
    calls = DIAL.model_copy(update={"continuation": Continuation(worker="a", prompt=prompt)})
    trace = await made.run(Request(messages=(Message.user("q"), calls, Message.tool("c1", "rang")), tools=(TOOL,)))
    assert trace.rounds[0].plan.source == "continuation"
    assert prompt.replace(SECRET, HIDDEN) in made.pool["a"].model.requests[0].messages[0].text  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------- reply and answer


async def test_a_redacted_reply_is_all_that_later_steps_events_and_the_trace_see() -> None:
    events: list[Event] = []
    made = conductor(Hide(stages=("reply",)), pool={"a": f"found {SECRET}", "b": f"it is {SECRET}"})
    trace = await made.run("question", on_event=events.append, stream=True)
    assert SECRET not in texts(made.pool["b"].model)
    assert trace.text == f"it is {HIDDEN}"
    assert all(SECRET not in event.model_dump_json() for event in events)
    assert outcomes(trace) == [("hide", "reply", "redacted")] * 2


async def test_a_reply_without_the_required_format_is_withheld_from_events_and_the_trace() -> None:
    events: list[Event] = []
    made = conductor(Hide(stages=("answer",)), planner=ONE_STEP, pool={"a": f"no JSON: {SECRET}"}, retries=1)
    request = Request(messages=(Message.user("hello"),), response_format=JsonFormat())
    with pytest.raises(RunError) as failed:
        await made.run(request, on_event=events.append)
    assert [call.completion and call.completion.text for call in failed.value.trace.calls[1:]] == [WITHHELD] * 2
    assert all(SECRET not in event.model_dump_json() for event in events)


async def test_an_answer_is_not_streamed_before_it_is_checked() -> None:
    events: list[Event] = []

    async def check(_: Content) -> Verdict:
        assert not any(isinstance(event, AnswerDelta | StepFinished) for event in events)
        return Allow()

    made = conductor(Check(stages=("answer",), verdict=check), planner=ONE_STEP, pool={"a": "one two three"})
    await made.run("q", on_event=events.append, stream=True)
    assert [event.text for event in events if isinstance(event, AnswerDelta)] == ["one two three"]


async def test_an_answer_streams_past_guardrails_that_check_the_input_only() -> None:
    events: list[Event] = []
    made = conductor(Hide(stages=("input",)), planner=ONE_STEP, pool={"a": "one two three"})
    await made.run("q", on_event=events.append, stream=True)
    assert len([event for event in events if isinstance(event, AnswerDelta)]) == 3


async def test_a_refused_answer_ends_the_run_and_no_other_worker_or_step_stands_in() -> None:
    guardrail = Check(stages=("answer",), verdict=always(Refuse("unsupported")))
    made = conductor(guardrail, pool={"a": "draft", "b": f"it is {SECRET}"}, limits=Limits(rounds=2))
    error = await refused(made)
    assert error.stage == "answer"
    assert error.trace.rounds[0].results[0].status == "ok"
    assert len(made.pool["a"].model.requests) == 1  # type: ignore[attr-defined]
    assert SECRET not in error.trace.model_dump_json()
    assert len(error.trace.rounds) == 1


async def test_a_draft_does_not_stand_in_for_an_answer_that_has_to_be_checked() -> None:
    pool = {"a": "draft", "b": down}
    policy = Policy(allow=frozenset({"a", "b"}), final="b")
    assert (await conductor(pool=pool | {"b": ["never"]}).run("q")).answer is not None
    made = conductor(Check(stages=("answer",), verdict=always(Allow())), pool=pool, policy=policy)
    with pytest.raises(RunError, match="out of order"):
        await made.run("q")


async def test_a_refused_reply_of_an_earlier_step_moves_the_step_to_another_worker() -> None:
    async def check(content: Content) -> Verdict:
        assert content.reply is not None
        return Refuse("rude") if "rude" in content.reply.text else Allow()

    made = conductor(Check(stages=("reply",), verdict=check), pool={"a": "rude words", "b": "polite"})
    trace = await made.run("q")
    assert [result.step.worker for result in trace.results] == ["b", "b"]
    assert "rude words" not in trace.model_dump_json()
    assert "rude words" not in texts(made.pool["b"].model)


async def test_the_arguments_of_tool_calls_in_the_answer_are_redacted_and_stay_json() -> None:
    made = conductor(Hide(stages=("answer",)), planner=ONE_STEP, pool={"a": [DIAL]})
    trace = await made.run(Request(messages=(Message.user("q"),), tools=(TOOL,)))
    assert trace.completion is not None
    assert json.loads(trace.completion.message.tool_calls[0].arguments) == {"to": HIDDEN}
    assert SECRET not in trace.model_dump_json()


async def test_a_redacted_json_answer_stays_json() -> None:
    class Swallow(Hide):
        async def check(self, content: Content) -> Verdict:
            return Redact(tuple('"' if SECRET in text else text for text in content.texts))

    made = conductor(Swallow(stages=("answer",)), planner=ONE_STEP, pool={"a": json.dumps({"to": SECRET, "n": 4})})
    trace = await made.run(Request(messages=(Message.user("q"),), response_format=JsonFormat()))
    assert json.loads(trace.text) == {"to": '"', "n": 4}


async def test_a_replaced_answer_has_neither_tool_calls_nor_the_old_text() -> None:
    guardrail = Rewriting(stages=("answer",), verdict=always(Replace("I can't say.", "unsupported")))
    made = conductor(guardrail, planner=ONE_STEP, pool={"a": [DIAL]})
    trace = await made.run(Request(messages=(Message.user("q"),), tools=(TOOL,)))
    assert trace.completion is not None
    assert (trace.text, trace.completion.message.tool_calls) == ("I can't say.", ())
    assert trace.completion.finish_reason == "stop"
    assert SECRET not in trace.model_dump_json()


async def test_a_reply_is_checked_once_at_the_last_step() -> None:
    guardrail = Hide()
    trace = await conductor(guardrail).run("q")
    stages = [check.stage for check in trace.checks]
    assert stages == ["input", "prompt", "reply", "prompt", "answer"]


async def test_an_earlier_round_is_checked_before_the_planner_reads_it() -> None:
    made = conductor(Hide(stages=("answer",)), planner=[TWO_STEPS, ACCEPT], pool={"a": "draft", "b": f"it is {SECRET}"})
    made = made.replaced(limits=Limits(rounds=2))
    trace = await made.run("q")
    assert trace.text == f"it is {HIDDEN}"
    assert SECRET not in texts(made.planner.model)


# ------------------------------------------------------------------------------------ failing checks


async def boom(_: Content) -> Verdict:
    raise RuntimeError("disk full")


@pytest.mark.parametrize("stage", ["input", "prompt", "reply", "answer"])
async def test_a_guardrail_that_raises_fails_closed(stage: Any) -> None:
    made = conductor(Check(stages=(stage,), verdict=boom))
    with pytest.raises(
        RunError, match=f"the guardrail 'check' could not check the {stage}: RuntimeError: disk full"
    ) as e:
        await made.run(f"call {SECRET}")
    assert not isinstance(e.value, RefusedError)
    assert {check.outcome for check in e.value.trace.checks} == {"failed"}


@pytest.mark.parametrize("stage", ["input", "prompt", "reply", "answer"])
async def test_a_guardrail_may_fail_open_and_the_trace_names_it(stage: Any) -> None:
    trace = await conductor(Check(stages=(stage,), verdict=boom, fail_open=True)).run("q")
    assert trace.text == "done"
    assert {(check.outcome, check.reason) for check in trace.checks} == {("failed_open", "RuntimeError: disk full")}


async def hang_forever(_: Content) -> Verdict:
    return await hang()


async def test_a_guardrail_that_hangs_fails_when_its_timeout_is_over() -> None:
    made = conductor(Check(stages=("input",), verdict=hang_forever, timeout=0.01))
    with pytest.raises(RunError, match=r"its timeout of 0\.01 s was over"):
        await made.run("q")


async def test_a_guardrail_that_hangs_fails_at_the_deadline_of_the_run() -> None:
    made = conductor(Check(stages=("answer",), verdict=hang_forever), limits=Limits(seconds=1.0))
    with pytest.raises(RunError, match=r"limits\.seconds was over"):
        await made.run("q")


@pytest.mark.parametrize(
    ("kind", "verdict", "reason"),
    [
        (Check, Redact(("x",)), "set rewrites = True"),
        (Rewriting, Redact(("x", "y")), "it returned 2 texts for 1"),
        (Rewriting, Replace("x"), "only a whole reply can be replaced"),
        (Check, None, "it returned a NoneType"),
    ],
)
async def test_a_verdict_that_does_not_fit_counts_as_a_failure(kind: Any, verdict: Any, reason: str) -> None:
    with pytest.raises(RunError, match=reason):
        await conductor(kind(stages=("input",), verdict=always(verdict))).run("q")


# ------------------------------------------------------------------------------- budgets and nesting


def judge(model: Any) -> Any:
    async def check(content: Content) -> Verdict:
        reply = await content.call(model, Request.user(content.texts[0]))
        return Refuse("the judge said no") if reply.text == "no" else Allow()

    return check


async def test_calls_of_guardrails_are_in_the_trace_without_texts_and_on_the_budget() -> None:
    price = Price(input=1, output=1)
    model = ScriptedModel(lambda _: "yes", name="judge", price=price)
    made = conductor(Check(stages=("input", "reply", "answer"), verdict=judge(model)))
    trace = await made.run(f"call {SECRET}")
    usage = trace.usage_by_worker["guardrail:check"]
    assert usage.calls == 3
    assert usage.cost > 0
    assert trace.completion is not None
    assert trace.completion.usage.cost == trace.usage.cost == usage.cost
    checks = [call for call in trace.calls if call.is_check]
    assert all(call.request is None and call.completion is not None and not call.completion.text for call in checks)
    assert trace.planning.calls == 1


async def test_a_budget_refuses_the_call_of_a_guardrail_which_then_fails_closed() -> None:
    model = ScriptedModel(lambda _: "yes", name="judge")
    made = conductor(Check(stages=("input",), verdict=judge(model)), limits=Limits(tokens=1))
    with pytest.raises(RunError, match=r"could not check the input: LimitError: a call to scripted:judge may use"):
        await made.run("q")
    assert not model.requests


async def test_a_nested_conductor_applies_the_outer_guardrails_to_its_prompts_and_replies() -> None:
    inner = Conductor(ScriptedModel(ONE_STEP), pool_of(deep=f"deep {SECRET}"))
    guardrail = Hide(stages=("input", "prompt", "reply"))
    made = conductor(guardrail, planner=ONE_STEP, pool={"a": inner})
    trace = await made.run(f"call {SECRET}")
    assert SECRET not in texts(inner.pool["deep"].model)
    assert trace.text == f"deep {HIDDEN}"
    assert SECRET not in trace.model_dump_json()
    assert [content.stage for content in guardrail.seen].count("input") == 1
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert [check.outcome for check in nested.runs[0].rounds[0].results[0].checks] == ["allowed", "redacted"]


async def test_a_refusal_inside_a_nested_conductor_fails_its_step_and_another_worker_answers() -> None:
    inner = Conductor(
        ScriptedModel(ONE_STEP),
        pool_of(deep="deep"),
        guardrails=[Check(stages=("input",), verdict=always(Refuse("no")))],
    )
    made = conductor(pool={"a": inner, "b": "done"})
    trace = await made.run("q", workflow=workflow(("a", "say it", ())))
    assert trace.text == "done"
    assert "the guardrail 'check' refused the input: no" in (trace.rounds[0].results[0].error or "")
    assert trace.refusal is None


async def test_a_conductor_that_checks_for_a_guardrail_is_not_checked_by_it() -> None:
    inner = Conductor(ScriptedModel(ONE_STEP), pool_of(deep="yes"))
    guardrail = Check(stages=("prompt", "reply"), verdict=judge(inner))
    trace = await conductor(guardrail).run("q")
    assert len(guardrail.seen) == 4
    assert trace.text == "done"


async def test_a_policy_may_keep_data_from_the_service_of_a_guardrail() -> None:
    policy = Policy(data_class="secret", data_rules={"secret": DataRule(tags=frozenset({"internal"}))})
    planner = Planner(model=ScriptedModel(ONE_STEP), card=Card(name="planner", tags=frozenset({"internal"})))
    pool = pool_of(a=worker("a", "done", tags={"internal"}))
    external = Check(stages=("input",), verdict=always(Allow()), card=Card(name="x"))
    with pytest.raises(PolicyError, match="the guardrail 'check' may not see this request"):
        Conductor(planner, pool, guardrails=[external], policy=policy)
    with pytest.raises(PolicyError, match="the guardrail 'check' may not see this request"):
        await Conductor(planner, pool, guardrails=[external]).run("q", policy=policy)
    assert not external.seen
    assert (await Conductor(planner, pool, guardrails=[Hide()], policy=policy).run("q")).text == "done"


# ------------------------------------------------------------------------------------- other hosts


async def test_steps_that_a_host_runs_are_checked() -> None:
    made = conductor(Hide(), pool={"a": f"found {SECRET}", "b": f"it is {SECRET}"})
    record = await made.plan(f"call {SECRET}")
    steps = made.stepwise(f"call {SECRET}", record)
    first = await steps.step(0)
    last = await steps.step(1, [first])
    trace = steps.finish([first, last])
    assert SECRET not in trace.model_dump_json()
    assert trace.text == f"it is {HIDDEN}"
    elsewhere = made.stepwise(f"call {SECRET}", record)
    with pytest.raises(ConfigError, match=r"await check_input\(\) first"):
        elsewhere.finish([first, last])
    await elsewhere.check_input()
    trace = elsewhere.finish([first, last])
    assert SECRET not in trace.model_dump_json()
    assert [len(round_.results) for round_ in trace.rounds] == [2]
    assert [check.stage for check in trace.rounds[0].plan.checks] == ["input", "input"]  # of `plan`, and here
    assert not elsewhere.may_continue


async def test_a_host_can_not_run_steps_of_a_refused_question() -> None:
    record = await conductor().plan("q")
    steps = conductor(Check(stages=("input",), verdict=always(Refuse("no")))).stepwise("q", record)
    with pytest.raises(RefusedError):
        await steps.step(0)


async def test_a_resumed_run_checks_its_question_again_and_reuses_checked_replies() -> None:
    made = conductor(Hide(), pool={"a": f"found {SECRET}", "b": [f"it is {SECRET}"]})
    trace = await made.run(f"call {SECRET}")
    partial = trace.rounds[0].model_copy(update={"results": trace.rounds[0].results[:1]})
    other = conductor(Hide(), planner="none", pool={"a": [], "b": [f"it is {SECRET}"]})
    resumed = await other.run(f"call {SECRET}", resume=[partial])
    assert resumed.text == f"it is {HIDDEN}"
    assert SECRET not in resumed.model_dump_json()


async def test_a_run_with_checks_replays_unless_texts_are_missing() -> None:
    model = ScriptedModel(lambda _: "yes", name="judge")
    checks = Hide(stages=("input", "reply", "answer")), Check(stages=("input", "answer"), verdict=judge(model))
    made = conductor(*checks, pool={"a": f"found {SECRET}", "b": f"it is {SECRET}"})
    trace = await made.run(f"call {SECRET}")
    assert differences(trace, await replay(Trace.model_validate_json(trace.model_dump_json()))) == ()
    with pytest.raises(
        ConfigError, match="can't be replayed, because texts are not in it: the guardrail 'check' refused"
    ):
        await replay((await refused(conductor(Check(stages=("input",), verdict=always(Refuse("no")))))).trace)


async def test_a_conductor_without_guardrails_has_no_checks_in_its_trace() -> None:
    trace = await conductor().run("q")
    assert "checks" not in trace.model_dump_json()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Hide(stages=("output",)),  # type: ignore[arg-type]
            "stages is .'output'.; write one or more of 'input'",
        ),
        (lambda: Hide(stages=()), "write one or more of"),
        (lambda: conductor(Hide(), Hide()), "two guardrails have the name 'hide'"),
        (lambda: conductor("pii"), "write objects of subclasses of Guardrail"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_setting_says_what_to_write(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


async def test_the_records_of_an_agents_tools_are_redacted_with_its_reply() -> None:
    def look_up() -> str:
        """Looks up the number."""
        return f"it is {SECRET}"

    call = Message.assistant(f"I try {SECRET}", tool_calls=[ToolCall(id="c1", name="look_up", arguments="{}")])
    agent = Worker.of("a", ScriptedModel([call, "I know it now."]), tools=[look_up])
    trace = await conductor(Hide(stages=("reply",)), planner=ONE_STEP, pool={"a": agent}).run("q")
    assert trace.text == "I know it now."
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert nested.tools[0].result == f"it is {HIDDEN}"
    assert SECRET not in trace.model_dump_json()


@pytest.mark.parametrize("end", ["error", "empty", "timeout", "cancelled"])
async def test_the_records_of_an_agent_that_fails_are_withheld(end: str) -> None:
    """The texts of the calls and tools in its record are those that no guardrail has checked."""
    asked = asyncio.Event()

    def look_up(name: str) -> str:
        """Looks up the number."""
        asked.set()
        return f"it is {SECRET}"

    call = ToolCall(id="c1", name="look_up", arguments=json.dumps({"name": SECRET}))
    last = {"error": down, "empty": ""}.get(end, "late")
    replies: list[Any] = [Message.assistant(f"I try {SECRET}", tool_calls=[call]), last]
    slow = end in ("timeout", "cancelled")
    model = ScriptedModel(replies, delay=lambda request: SOON if slow and len(request.messages) > 2 else 0.0)
    agent = Worker.of("a", model, tools=[look_up], timeout=0.3 if end == "timeout" else None)
    events: list[Event] = []
    made = conductor(Hide(stages=("reply",)), planner=ONE_STEP, pool={"a": agent})
    run = asyncio.ensure_future(made.run("q", on_event=events.append))
    if end == "cancelled":
        await asyncio.wait_for(asked.wait(), SOON)
        run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    (trace,) = (event.trace for event in events if isinstance(event, Finished))
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert [use.result for use in nested.tools] == [WITHHELD]
    assert all(SECRET not in event.model_dump_json() for event in events)


async def test_reasoning_that_is_redacted_is_dropped_with_its_signature() -> None:
    kept, dropped = (ReasoningPart(text=text, signature="s") for text in ("fine", f"not {SECRET}"))
    reply = Message(role="assistant", content=(kept, dropped, TextPart(text="done")))
    trace = await conductor(Hide(stages=("reply",)), planner=ONE_STEP, pool={"a": [reply]}).run("q")
    assert trace.completion is not None
    assert trace.completion.message.content == (kept, TextPart(text="done"))
    assert SECRET not in trace.model_dump_json()


@pytest.mark.parametrize(
    ("arguments", "redacted"),
    [
        (f'{{"a": "{SECRET}", "a": "b"}}', f'{{"a": "{HIDDEN}", "a": "b"}}'),
        (f'{{"{SECRET}": [1, null, {{"x": "{SECRET}"}}]}}', f'{{"{HIDDEN}": [1, null, {{"x": "{HIDDEN}"}}]}}'),
        (f"not JSON {SECRET}", f"not JSON {HIDDEN}"),
        ("[" * 5000 + SECRET, "[" * 5000 + HIDDEN),
        ("[" * 300 + f'"{SECRET}"' + "]" * 300, "[" * 300 + f'"{HIDDEN}"' + "]" * 300),
    ],
)
async def test_nothing_hides_in_the_arguments_of_a_tool_call(arguments: str, redacted: str) -> None:
    calls = Message.assistant(tool_calls=[ToolCall(id="c1", name="dial", arguments=arguments)])
    checked = await check_messages([Hide()], "input", [Message.user("q"), calls])
    assert checked[1].tool_calls[0].arguments == redacted


async def test_the_trace_of_a_run_cancelled_while_its_answer_is_checked_does_not_contain_it() -> None:
    asked = asyncio.Event()

    async def wait(_: Content) -> Verdict:
        asked.set()
        return await hang()

    events: list[Event] = []
    made = conductor(Check(stages=("answer",), verdict=wait), planner=ONE_STEP, pool={"a": f"it is {SECRET}"})
    run = asyncio.ensure_future(made.run("q", on_event=events.append))
    await asyncio.wait_for(asked.wait(), SOON)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert all(SECRET not in event.model_dump_json() for event in events)


@pytest.mark.parametrize("stage", ["reply", "answer"])
async def test_replies_from_before_a_guardrail_was_added_are_not_reused(stage: Stage) -> None:
    flow = workflow(("a", "look", ()), ("b", "tell", (0,)))
    pool = pool_of(a=f"it is {SECRET}", b=f"so it is {SECRET}")
    whole = await Conductor(ScriptedModel(""), pool, access="positional").run("q", workflow=flow)
    guarded = Conductor(ScriptedModel(""), pool, access="positional", guardrails=[Hide(stages=(stage,))])
    trace = await guarded.run("q", resume=whole.rounds)
    assert SECRET not in trace.text
    assert f"not checked by the guardrail {Hide().name!r}" in "; ".join(trace.rounds[0].plan.errors)
    again = await guarded.run("q", resume=trace.rounds)
    assert again.usage == trace.usage, "no step runs again"
