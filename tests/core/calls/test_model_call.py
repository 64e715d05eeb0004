"""One call: attempts, records, deadlines and what each is charged."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
import traceback
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest

from core.runs import SOON, Gated, forever
from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.model_call import MAX_RETRY_AFTER, ModelCall
from rl_conductor.calls.scope import call_scope
from rl_conductor.errors import (
    BadRequestError,
    BadResponseError,
    ContextLengthError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from rl_conductor.models import Model
from rl_conductor.models.base import collect
from rl_conductor.models.replies.size import max_reply_chars
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.models.vendor_errors import status_error
from rl_conductor.trace.fingerprint import fingerprint
from rl_conductor.trace.trace import Call
from rl_conductor.types import Completion, Delta, ImagePart, Message, Price, Request, Sampling, Tool, ToolCall, Usage
from rl_conductor.workflow.limits import DEFAULT_REPLY_CHARS, Limits
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS, upper_bound

REQUEST = Request.user("x")
PRICE = Price(input=Decimal(1), output=Decimal(1))
COUNTED = Limits(calls=99)
"""Limits that count the spending; a run without any has no use for it."""


async def ask(model: Model, limits: Limits | None = None, **options: Any) -> tuple[Any, list[Call], Budget]:
    """The completion or the error, the record, and the budget."""
    run = RunContext(
        limits=limits or COUNTED, retries=options.pop("retries", 2), keep_prompts=options.pop("keep_prompts", True)
    )
    calls: list[Call] = []
    call = ModelCall(run=run, model=model, request=options.pop("request", REQUEST), calls=calls, **options)
    try:
        async with asyncio.timeout(SOON):
            outcome: Any = await call.complete()
    except (ModelError, LimitError) as error:
        outcome = error
    assert run.budget.reserved == NOTHING
    return outcome, calls, run.budget


async def test_spending_is_counted_only_where_a_limit_or_a_budget_around_the_run_needs_it() -> None:
    model, host = ScriptedModel("a reply"), Budget(Limits())

    _, _, unlimited = await ask(model, Limits(seconds=SOON, rounds=2))
    _, _, parallel = await ask(model, Limits(concurrency=1))
    with call_scope(host):
        await ask(model, Limits())

    assert unlimited.spent == NOTHING
    assert parallel.spent.calls == host.spent.calls == 1


async def test_a_call_is_recorded_with_all_that_is_known_of_it() -> None:
    model = ScriptedModel("a reply", name="m", price=PRICE)

    completion, (call,), budget = await ask(model, worker="w")

    assert (call.model, call.worker, call.outcome) == ("scripted:m", "w", "ok")
    assert (call.request, call.completion, call.fingerprint) == (REQUEST, completion, None)
    assert call.request_fingerprint == fingerprint(REQUEST)
    assert call.usage == completion.usage
    assert budget.spent == Amount(completion.usage.cost, completion.usage.total_tokens, 1)


async def test_without_prompts_only_the_fingerprint_of_a_request_is_kept() -> None:
    _, (call,), _ = await ask(ScriptedModel("ok"), keep_prompts=False)

    assert (call.request, call.fingerprint) == (None, fingerprint(REQUEST))
    assert call.request_fingerprint == call.fingerprint


async def test_what_a_model_of_ones_own_raises_is_recorded_without_its_key() -> None:
    model = ScriptedModel([OSError("Bearer sk-very-secret was refused")], name="own")
    model.api_key = "sk-very-secret"  # type: ignore[attr-defined]

    raised, (call,), _ = await ask(model)

    assert call.error == "scripted:own raised OSError: Bearer [secret] was refused"
    assert "very-secret" not in "".join(traceback.format_exception(raised))


async def test_a_traceback_tells_what_a_model_of_ones_own_raised_where_it_quotes_no_key() -> None:
    raised, _, _ = await ask(ScriptedModel([OSError("the disk is full")]))

    assert "OSError: the disk is full" in "".join(traceback.format_exception(raised.__cause__))


def test_a_fingerprint_is_that_of_the_requests_json() -> None:
    """Recordings are found by it."""
    call = ToolCall(id="c1", name="weather", arguments='{"city": "Kyïv"}')
    image = ImagePart(url="https://example.org/a.png", detail="low")
    messages = (Message.user("Grüße 🎉", image), Message.assistant(tool_calls=[call]), Message.tool("c1", "19"))
    schema = {"type": "object", "properties": {"x": {"type": "number", "default": math.nan, "maximum": math.inf}}}
    tool = Tool(name="weather", description="Says it.", parameters=schema)
    sampling = Sampling(temperature=0.3, max_tokens=9, stop=("\n",))
    request = Request(messages=messages, tools=(tool,), sampling=sampling, timeout=3.0)
    text = request.model_dump_json(exclude={"timeout"})
    assert fingerprint(request) == hashlib.sha256(text.encode()).hexdigest()


async def test_a_timeout_does_not_change_the_fingerprint() -> None:
    assert fingerprint(REQUEST) == fingerprint(REQUEST.model_copy(update={"timeout": 1.0}))
    assert fingerprint(REQUEST) != fingerprint(Request.user("y"))


@pytest.mark.parametrize(
    ("error", "unpriced"),
    [
        (ModelError("broken", model="m"), 1),
        (ModelError("no such model", model="m", status=404), 0),
        (BadRequestError("can't take images", model="m"), 0),
        (ContextLengthError("too long", model="m"), 0),
        (RateLimitError("busy", model="m"), 0),
        (status_error("overloaded", model="m", status=503, is_overload=True), 0),
        (status_error("service unavailable", model="m", status=503), 1),
        (status_error("overloaded", model="m", status=529), 0),
        (status_error("internal error", model="m", status=500), 1),
        (status_error("bad gateway", model="m", status=502), 1),
        (status_error("gateway timeout", model="m", status=504), 1),
        (OSError("anything"), 1),
    ],
)
async def test_a_failed_call_says_whether_it_may_have_been_billed(error: Exception, unpriced: int) -> None:
    failure, (call,), budget = await ask(ScriptedModel([error], price=PRICE), retries=0)

    assert isinstance(failure, ModelError)
    assert call.usage == Usage(calls=1, unpriced_calls=unpriced)
    full = upper_bound(REQUEST, PRICE)
    assert full.cost is not None
    assert budget.spent == (Amount(full.cost, full.tokens, 1) if unpriced else Amount(calls=1))


async def test_a_free_model_never_costs_anything() -> None:
    _, (call,), _ = await ask(ScriptedModel([ModelError("broken", model="m")]))

    assert call.usage.unpriced_calls == 0


@pytest.mark.parametrize("piece", ["half", ""], ids=["text", "an event without text"])
async def test_a_refusal_after_the_first_piece_may_have_been_billed(piece: str) -> None:
    pieces: list[str | Exception] = [piece, RateLimitError("overloaded", model="m", status=429)]

    _, (call,), _ = await ask(ScriptedModel([pieces], price=PRICE), retries=0, on_text=lambda _: None)

    assert call.usage.unpriced_calls == 1


async def test_an_empty_reply_costs_what_the_vendor_says() -> None:
    class Empty(ScriptedModel):
        async def complete(self, request: Request) -> Completion:
            usage = Usage(input_tokens=5, calls=1, cost=Decimal("0.25"))
            return Completion(message=Message.assistant(), usage=usage, model="m")

    failure, (call,), budget = await ask(Empty("", price=PRICE), retries=0)

    assert isinstance(failure, BadResponseError)
    assert (call.outcome, call.usage.cost, budget.spent.usd) == ("error", Decimal("0.25"), Decimal("0.25"))


async def test_a_reply_that_its_adapter_rejects_costs_what_the_vendor_says() -> None:
    usage = Usage(input_tokens=1_000, output_tokens=500)
    rejected = BadResponseError("not the requested JSON", model="m", usage=usage)

    failure, (call,), budget = await ask(ScriptedModel([rejected], price=PRICE), retries=0)

    assert failure is rejected
    cost = PRICE.cost(input_tokens=1_000, output_tokens=500)
    assert (call.usage.cost, call.usage.total_tokens, call.usage.unpriced_calls) == (cost, 1_500, 0)
    assert (budget.spent.usd, budget.spent.tokens) == (cost, 1_500)


async def test_a_failure_of_this_process_is_retried_even_without_retries() -> None:
    failure = ModelError("bound to another event loop", model="m", retryable=True)
    failure.min_retries = 1

    completion, calls, _ = await ask(ScriptedModel([failure, "a reply"]), retries=0)
    assert completion.text == "a reply"
    assert [call.outcome for call in calls] == ["error", "ok"]

    error, calls, _ = await ask(ScriptedModel([failure, failure]), retries=0)
    assert (error, len(calls)) == (failure, 2)


async def test_a_call_that_a_limit_refuses_is_never_made() -> None:
    model = ScriptedModel("never", price=PRICE)

    refused, (call,), budget = await ask(model, Limits(tokens=1))

    assert isinstance(refused, LimitError)
    assert (call.outcome, call.usage, model.requests, budget.spent) == ("refused", Usage(), [], NOTHING)


async def test_retries_count_as_calls() -> None:
    model = ScriptedModel(lambda _: RateLimitError("busy", model="m", retry_after=0.001))

    refused, calls, _ = await ask(model, Limits(calls=2), retries=9)

    assert isinstance(refused, LimitError)
    assert [call.outcome for call in calls] == ["error", "error", "refused"]
    assert len(model.requests) == 2


async def test_a_failure_without_a_wait_of_its_own_is_repeated_after_a_while() -> None:
    model = ScriptedModel([ModelError("flaky", model="m", retryable=True), "ok"])

    completion, (first, second), _ = await ask(model)

    assert completion.text == "ok"
    assert second.started - first.started >= 0.5


async def test_whoever_asks_for_a_longer_wait_than_is_sensible_is_given_up() -> None:
    model = ScriptedModel([RateLimitError("tomorrow", model="m", retry_after=MAX_RETRY_AFTER + 1)])

    failure, calls, _ = await ask(model)

    assert isinstance(failure, RateLimitError)
    assert len(calls) == 1


async def test_whoever_asks_for_a_wait_beyond_the_deadline_is_given_up_at_once() -> None:
    model = ScriptedModel([RateLimitError("later", model="m", retry_after=30)])

    failure, calls, _ = await ask(model, Limits(seconds=20))

    assert isinstance(failure, RateLimitError)
    assert len(calls) == 1


async def test_after_the_deadline_no_call_is_begun() -> None:
    model = ScriptedModel("never")
    run = RunContext(limits=Limits(seconds=0.001))
    await asyncio.sleep(0.01)
    calls: list[Call] = []

    with pytest.raises(LimitError, match=r"limits\.seconds=0\.001 was over") as late:
        await ModelCall(run=run, model=model, request=REQUEST, calls=calls).complete()

    assert (late.value.limit, model.requests, run.budget.spent) == ("seconds", [], NOTHING)
    assert [(call.outcome, call.usage) for call in calls] == [("timeout", Usage())]


async def test_a_call_is_given_up_at_its_own_timeout_and_at_the_deadline_whichever_comes_first() -> None:
    hangs = Gated("never", forever)
    quick = REQUEST.model_copy(update={"timeout": 0.01})

    own, _, _ = await ask(hangs, Limits(seconds=60), request=quick, retries=0)
    deadline, (call,), _ = await ask(hangs, Limits(seconds=0.02))

    assert isinstance(own, ModelTimeoutError)
    assert isinstance(deadline, LimitError)
    assert (call.outcome, call.usage.calls) == ("timeout", 1)
    assert hangs.held == 0


async def test_calls_at_the_same_time_end_at_their_own_timeouts_whichever_began_first() -> None:
    hangs, ended = Gated("never", forever), list[float]()

    async def give_up_after(seconds: float) -> None:
        error, _, _ = await ask(hangs, request=REQUEST.model_copy(update={"timeout": seconds}), retries=0)
        assert isinstance(error, ModelTimeoutError)
        ended.append(seconds)

    answered, *_ = await asyncio.gather(
        ask(ScriptedModel("ok"), request=REQUEST.model_copy(update={"timeout": 0.01})),
        *map(give_up_after, (0.06, 0.02, 0.04)),
    )

    assert (answered[0].text, ended) == ("ok", [0.02, 0.04, 0.06])


async def test_calls_with_timeouts_share_one_timer_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, asked = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def record(when: float, *rest: Any) -> asyncio.TimerHandle:
        asked.append(when)
        return call_at(when, *rest)

    monkeypatch.setattr(loop, "call_at", record)
    slow = REQUEST.model_copy(update={"timeout": 60.0})

    for _ in range(3):
        run = RunContext(limits=COUNTED)
        await ModelCall(run=run, model=ScriptedModel("ok"), request=slow, calls=[]).complete()

    assert len(asked) == 1


async def test_room_that_comes_free_after_the_deadline_is_not_waited_for() -> None:
    run = RunContext(limits=Limits(concurrency=1, seconds=0.03))
    call = ModelCall(run=run, model=ScriptedModel("never"), request=REQUEST, calls=[])
    async with run.budget.reserve("other", upper_bound(REQUEST, None)):
        with pytest.raises(LimitError, match="seconds"):
            await asyncio.wait_for(call.complete(), SOON)


async def test_cancelling_is_recorded_and_passed_on() -> None:
    hangs = Gated("never", forever, price=PRICE)
    run, calls = RunContext(limits=COUNTED), list[Call]()
    task = asyncio.create_task(ModelCall(run=run, model=hangs, request=REQUEST, calls=calls).complete())
    await asyncio.wait_for(hangs.asked.wait(), SOON)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(call.outcome, call.usage) for call in calls] == [("cancelled", Usage(calls=1, unpriced_calls=1))]
    assert run.budget.spent.calls == 1  # charged in full: the vendor may go on and bill it
    assert hangs.held == 0


class Stubborn(ScriptedModel):
    """Makes an error or a reply of being cancelled, as code over threads does that can't be stopped."""

    def __init__(self, made: Exception | None) -> None:
        super().__init__("")
        self.made = made
        self.asked = asyncio.Event()

    async def complete(self, request: Request) -> Completion:
        """Waits, and ends with the error or the reply when it is cancelled."""
        self.asked.set()
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            if self.made is not None:
                raise self.made from None
        return DONE


STUBBORN = [ValueError("already executing"), ModelError("busy", model="m", retryable=True), None]


@pytest.mark.parametrize("made", STUBBORN, ids=str)
async def test_a_model_that_does_not_heed_its_cancellation_is_cancelled_all_the_same(made: Exception | None) -> None:
    model, calls = Stubborn(made), list[Call]()
    task = asyncio.create_task(ModelCall(run=RunContext(), model=model, request=REQUEST, calls=calls).complete())
    await asyncio.wait_for(model.asked.wait(), SOON)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.outcome for call in calls] == ["cancelled"]


async def test_who_was_cancelled_before_may_still_ask() -> None:
    async def says_goodbye() -> Completion:
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            call = ModelCall(run=RunContext(), model=ScriptedModel("goodbye"), request=REQUEST, calls=[])
            return await call.complete()
        raise AssertionError

    task = asyncio.create_task(says_goodbye())
    await asyncio.sleep(0)
    task.cancel()

    assert (await task).text == "goodbye"


@pytest.mark.parametrize("made", STUBBORN[:2], ids=str)
async def test_what_a_model_makes_of_its_timeout_is_a_timeout(made: Exception) -> None:
    quick = REQUEST.model_copy(update={"timeout": 0.01})

    own, (call,), _ = await ask(Stubborn(made), request=quick, retries=0)
    deadline, _, _ = await ask(Stubborn(made), Limits(seconds=0.02))

    assert isinstance(own, ModelTimeoutError)
    assert call.outcome == "timeout"
    assert isinstance(deadline, LimitError)


@pytest.mark.parametrize("limits", [Limits(usd=Decimal(1)), Limits(tokens=9_000)])
async def test_where_spending_is_limited_the_bound_that_is_reserved_is_sent(limits: Limits) -> None:
    _, (call,), _ = await ask(ScriptedModel("ok"), limits)
    _, (free,), _ = await ask(ScriptedModel("ok"), Limits(calls=1))

    assert call.request is not None
    assert free.request is not None
    assert call.request.sampling.max_tokens == DEFAULT_OUTPUT_TOKENS
    assert free.request.sampling.max_tokens is None


async def test_a_look_up_that_costs_nothing_and_uses_no_tokens_is_charged_none() -> None:
    nothing = DONE.model_copy(update={"usage": Usage(calls=1)})

    _, _, free = await ask(ScriptedModel([nothing]), Limits(tokens=9_000))
    _, _, untold = await ask(ScriptedModel([nothing], price=PRICE), Limits(tokens=9_000))

    assert free.spent == Amount(calls=1)
    assert untold.spent.tokens > DEFAULT_OUTPUT_TOKENS


async def test_calls_of_made_up_tools_are_a_reply_only_if_the_caller_can_answer_them() -> None:
    made_up, offered = (ToolCall(id=name, name=name, arguments="{}") for name in ("rm_rf", "look"))
    request = REQUEST.model_copy(update={"tools": (Tool(name="look", description="Looks.", parameters={}),)})
    both = ScriptedModel([Message.assistant(tool_calls=[made_up, offered])])

    refused, _, _ = await ask(ScriptedModel([Message.assistant(tool_calls=[made_up])]), retries=0)
    kept, _, _ = await ask(both, request=request)
    unnoticed, _, _ = await ask(ScriptedModel([Message.assistant("Yes.", tool_calls=[made_up])]))

    assert isinstance(refused, BadResponseError)
    assert str(refused) == "scripted:scripted: it called a tool although it could not, and wrote no answer"
    assert refused.retryable
    assert kept.message.tool_calls == (made_up, offered)
    assert (unnoticed.text, unnoticed.message.tool_calls, unnoticed.finish_reason) == ("Yes.", (), "stop")
    assert (kept.dropped_calls, unnoticed.dropped_calls) == (0, 1)


async def test_of_parallel_tool_calls_that_the_request_does_not_allow_the_first_is_kept() -> None:
    first, second = (ToolCall(id=name, name="look", arguments="{}") for name in "ab")
    tools = (Tool(name="look", description="Looks.", parameters={}),)
    request = REQUEST.model_copy(update={"tools": tools, "parallel_tool_calls": False})
    reply = Completion(
        message=Message.assistant(tool_calls=[first, second]), finish_reason="tool_calls", model="scripted"
    )
    completion, (call,), _ = await ask(ScriptedModel([reply]), request=request)
    assert completion.message.tool_calls == (first,)
    assert (completion.finish_reason, completion.dropped_calls) == ("tool_calls", 1)
    assert call.completion == completion


async def test_an_empty_reply_is_accepted_after_the_results_of_tools_only() -> None:
    asked = Message.assistant(tool_calls=[ToolCall(id="c1", name="send", arguments="{}")])
    request = REQUEST.model_copy(update={"messages": (*REQUEST.messages, asked, Message.tool("c1", "sent"))})
    silent, calls, _ = await ask(ScriptedModel([""]), request=request)
    assert (silent.text, [call.outcome for call in calls]) == ("", ["ok"])
    refused, _, _ = await ask(ScriptedModel([""]), retries=0)
    assert isinstance(refused, BadResponseError)


class Streams(ScriptedModel):
    """Streams whatever deltas it is given."""

    def __init__(self, *deltas: Delta) -> None:
        super().__init__("")
        self.deltas = deltas

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The deltas."""
        for delta in self.deltas:
            yield delta


DONE = Completion(message=Message.assistant("hi"), usage=Usage(calls=1), model="m")


async def test_a_stream_is_read_to_its_end() -> None:
    heard: list[str] = []
    model = Streams(Delta(text="h"), Delta(), Delta(text="i"), Delta(completion=DONE), Delta())

    completion, _, _ = await ask(model, on_text=heard.append)

    assert (completion, heard) == (DONE, ["h", "i"])


async def test_a_stream_that_ends_too_soon_is_a_failure() -> None:
    failure, _, _ = await ask(Streams(Delta(text="a")), on_text=lambda _: None)

    assert isinstance(failure, BadResponseError)
    assert "ended before" in str(failure)


class Raises(ScriptedModel):
    """Fails before it returns a stream, or, with `midway`, after the first delta."""

    def __init__(self, *, midway: bool) -> None:
        super().__init__("")
        self.midway = midway

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The stream, or the failure."""
        if not self.midway:
            raise ValueError("no stream")
        return self._broken()

    async def _broken(self) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        raise ValueError("no more")


@pytest.mark.parametrize(("midway", "reason"), [(False, "no stream"), (True, "no more")])
async def test_a_foreign_error_of_a_stream_is_translated(midway: bool, reason: str) -> None:
    failure, (call,), _ = await ask(Raises(midway=midway), on_text=lambda _: None, reasoning=None, retries=0)

    assert isinstance(failure, ModelError)
    assert str(failure) == f"scripted:scripted raised ValueError: {reason}"
    assert call.broke_off is midway


async def test_an_error_of_a_listener_is_no_error_of_the_model() -> None:
    def refuse(text: str) -> None:
        raise ValueError(f"can't show {text!r}")

    model, run, calls = Streams(Delta(text="h"), Delta(completion=DONE)), RunContext(limits=COUNTED), list[Call]()
    with pytest.raises(ValueError, match="can't show 'h'"):
        await ModelCall(run=run, model=model, request=REQUEST, calls=calls, on_text=refuse, reasoning=None).complete()
    assert [(call.outcome, call.broke_off, call.usage.calls) for call in calls] == [("cancelled", True, 1)]
    assert run.budget.spent.calls == 1


async def test_half_a_surrogate_pair_from_a_vendor_breaks_nothing() -> None:
    lone = Completion(message=Message.assistant("a\ud83d"), usage=Usage(calls=1), model="m")

    completion, (call,), _ = await ask(Streams(Delta(text="a\ud83d"), Delta(completion=lone)), on_text=lambda _: None)

    assert completion.text == "a?"
    assert Call.model_validate_json(call.model_dump_json()) == call
    _, (call,), _ = await ask(ScriptedModel([ModelError("says \udc00", model="m")]))
    assert Call.model_validate_json(call.model_dump_json()) == call


async def test_a_call_ends_at_the_deadline_that_its_run_shares_with_others() -> None:
    shared = Budget(Limits(seconds=7), surrounds_runs=True)
    shared.deadline = time.monotonic()
    with call_scope(budget=shared):
        model = ScriptedModel("never")
        failure, (call,), _ = await ask(model, Limits(seconds=60))
        own, _, _ = await ask(ScriptedModel("never"), Limits(seconds=1e-9))
    assert isinstance(failure, LimitError)
    assert str(failure) == "limits.seconds=7 was over before scripted:scripted had answered"
    assert (call.outcome, model.requests) == ("timeout", [])
    assert "limits.seconds=7" in str(own), "it was over first"


class Endless(Model):
    """A model of the user's own whose reply never ends."""

    name = "endless"

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self.is_closed = False

    async def complete(self, request: Request) -> Completion:
        return await collect(self.stream(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            while True:
                yield self.delta
        finally:
            self.is_closed = True


@pytest.mark.parametrize("delta", [Delta(text="word "), Delta(reasoning="word ")])
async def test_an_endless_reply_ends_at_the_limit_of_its_characters_and_is_not_retried(delta: Delta) -> None:
    model, pieces = Endless(delta), list[str]()
    error, calls, _ = await ask(model, Limits(reply_chars=100), on_text=pieces.append)
    assert isinstance(error, BadResponseError)
    assert str(error) == (
        "endless: limits.reply_chars=100 is used up before the reply ended; raise it to allow longer replies"
    )
    assert not error.retryable
    assert len(calls) == 1
    assert model.is_closed
    assert len("".join(pieces)) <= 100


async def test_a_reply_as_long_as_the_limit_is_accepted() -> None:
    reply, _, _ = await ask(ScriptedModel("x" * 100), Limits(reply_chars=100), on_text=lambda _: None)
    assert reply.text == "x" * 100


@pytest.mark.parametrize("on_text", [None, lambda _: None])
async def test_the_limit_of_a_run_holds_inside_of_the_model(on_text: Any) -> None:
    limits: list[int] = []

    def reply(_: Request) -> str:
        limits.append(max_reply_chars.get())
        return "x"

    await ask(ScriptedModel(reply), Limits(reply_chars=77), on_text=on_text)
    assert limits == [77]
    assert max_reply_chars.get() == DEFAULT_REPLY_CHARS
