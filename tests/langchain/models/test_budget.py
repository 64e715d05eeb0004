"""Agents and chains as workers: each call that they make counts in the limits of the run, before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun, get_usage_metadata_callback
from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda

from core.runs import SOON, plan
from langchain_conductor import ChatConductor, RunnableConductor, RunnableModel
from rl_conductor import Limits, Price, RunError, ScriptedModel, Worker, WorkerPool
from rl_conductor.conductor import Conductor

LONE = plan((0, "Answer.", []))
PRICE = Price(input=Decimal(1), output=Decimal(1))


class Counted(BaseChatModel):
    """Uses a thousand tokens a call, and counts its calls."""

    calls_made: Any
    max_tokens: int = 1_000

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.calls_made.append(len(messages))
        usage = {"input_tokens": 100, "output_tokens": 900, "total_tokens": 1_000}
        message = AIMessage("Hello.", usage_metadata=usage, response_metadata={"model_name": "counted"})
        return ChatResult(generations=[ChatGeneration(message=message)])


def loop_of(calls: int, *, awaited: bool) -> tuple[RunnableModel, list[int]]:
    calls_made: list[int] = []
    model = Counted(calls_made=calls_made)

    def work(_: Any) -> str:
        return [model.invoke("again") for _ in range(calls)][-1].text

    async def work_async(_: Any) -> str:
        return [await model.ainvoke("again") for _ in range(calls)][-1].text

    return RunnableModel(RunnableLambda(work_async if awaited else work), price=PRICE), calls_made


def conductor_over(worker: RunnableModel, limits: Limits) -> Conductor:
    return Conductor(ScriptedModel(LONE), WorkerPool([Worker.of("agent", worker)]), limits=limits)


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("limits", [Limits(calls=4), Limits(tokens=10_000), Limits(usd=Decimal("0.01"))], ids=str)
async def test_an_agent_that_goes_on_and_on_is_stopped_before_the_call_that_is_too_many(
    limits: Limits, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agent, calls_made = loop_of(20, awaited=awaited)
    with pytest.raises(RunError) as ended:
        await conductor_over(agent, limits).run("Go on.")
    usage = ended.value.trace.usage
    assert 2 < len(calls_made) < 20
    assert 1_000 * len(calls_made) <= (limits.tokens or 10_000)
    assert "limits." in str(ended.value)
    assert usage.calls
    assert "BudgetCallback" not in caplog.text, "the run's error says it"


@pytest.mark.parametrize("awaited", [True, False])
async def test_calls_within_the_limits_are_made_and_charged_once(awaited: bool) -> None:
    agent, calls_made = loop_of(3, awaited=awaited)
    trace = await conductor_over(agent, Limits(calls=4, concurrency=1)).run("Go on.")
    assert trace.text == "Hello."
    assert len(calls_made) == 3
    assert trace.usage.output_tokens > 2_700


def function_of(calls: int, *, awaited: bool) -> tuple[Callable[[str], Any], list[int]]:
    runnable, calls_made = loop_of(calls, awaited=awaited)

    def work(subtask: str) -> Any:
        return runnable.runnable.invoke(subtask)

    async def work_async(subtask: str) -> Any:
        return await runnable.runnable.ainvoke(subtask)

    return work_async if awaited else work, calls_made


@pytest.mark.parametrize("awaited", [True, False])
def test_a_function_that_goes_on_and_on_is_stopped_too(awaited: bool) -> None:
    function, calls_made = function_of(20, awaited=awaited)
    chat = ChatConductor(workers={"f": function}, planner=ScriptedModel(LONE), limits=Limits(calls=4))
    with pytest.raises(RunError, match=r"limits\.calls"):
        chat.invoke("Go on.")
    assert len(calls_made) == 3


@pytest.mark.parametrize("awaited", [True, False])
def test_the_usage_of_a_function_is_that_of_its_calls(awaited: bool) -> None:
    function, _ = function_of(3, awaited=awaited)
    chat = ChatConductor(workers={"f": function}, planner=ScriptedModel(lambda _: LONE))
    with get_usage_metadata_callback() as reported:
        chat.invoke("Go on.")
    assert reported.usage_metadata["conductor"]["output_tokens"] >= 2_700
    with get_usage_metadata_callback() as reported:
        trace = RunnableConductor(chat).invoke("Go on.")
    assert trace.usage_by_worker["f"].total_tokens == reported.usage_metadata["counted"]["total_tokens"] == 3_000


@pytest.mark.parametrize(
    ("longest", "options", "question"),
    [(20_000, {}, "Well?"), (1_000, {"tools": [{"description": "x" * 20_000}]}, "Well?"), (1_000, {}, "x" * 20_000)],
    ids=["its reply", "its tools", "its question"],
)
async def test_a_call_that_may_exceed_a_limit_is_not_made(longest: int, options: dict[str, Any], question: str) -> None:
    calls_made: list[int] = []
    model = Counted(calls_made=calls_made, max_tokens=longest).bind(**options)
    agent = RunnableModel(RunnableLambda(lambda _: model.invoke(question).text), price=PRICE)
    with pytest.raises(RunError, match=r"limits\.tokens"):
        await conductor_over(agent, Limits(tokens=10_000)).run("Go on.")
    assert calls_made == []


class Hanging(Counted):
    """Gives no answer to as many calls as it is told."""

    hangs: int

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        if len(self.calls_made) < self.hangs:
            self.calls_made.append(0)
            await asyncio.Event().wait()
        return self._generate(*args, **kwargs)


@pytest.mark.parametrize("at_once", [1, 2], ids=["one at work", "one at work and one that waits for room"])
async def test_a_cancelled_agent_leaves_the_room_of_its_calls_to_the_next_attempt(at_once: int) -> None:
    model = Hanging(calls_made=[], hangs=1)

    async def work(_: Any) -> str:
        return (await asyncio.gather(*[model.ainvoke("again") for _ in range(at_once)]))[-1].text

    agent = Worker.of("agent", RunnableModel(RunnableLambda(work), price=PRICE), timeout=2)
    limits = Limits(concurrency=1, seconds=SOON)
    assert (await Conductor(ScriptedModel(LONE), WorkerPool([agent]), limits=limits).run("Go on.")).text == "Hello."
    assert len(model.calls_made) == 1 + at_once


async def test_a_conductor_within_a_chain_counts_for_itself() -> None:
    inner = ChatConductor(workers={"a": ScriptedModel("Done.")}, planner=ScriptedModel(LONE))
    chain: Runnable[Any, Any] = RunnableLambda(lambda _: [("user", "Well?")]) | inner
    limits = Limits(concurrency=1, calls=3)
    outer = ChatConductor(workers={"chain": chain}, planner=ScriptedModel(LONE), limits=limits)
    assert (await outer.ainvoke("Well?")).text == "Done."


class Refusing(Counted):
    """Fails with a status after two calls."""

    status: int

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        if len(self.calls_made) < 2:
            return super()._generate(*args, **kwargs)
        error = RuntimeError("no more")
        error.status_code = self.status  # type: ignore[attr-defined]
        raise error


@pytest.mark.parametrize(("status", "unpriced"), [(429, 0), (500, 1)], ids=["rejected", "perhaps billed"])
@pytest.mark.parametrize("recovers", [True, False])
async def test_a_failed_call_of_an_agent_counts_beside_its_other_calls(
    status: int, unpriced: int, *, recovers: bool
) -> None:
    model, other = Refusing(calls_made=[], status=status), Counted(calls_made=[])

    async def work(_: Any) -> str:
        for _ in range(2):
            await model.ainvoke("again")
        chat = model.with_fallbacks([other]) if recovers else model
        return (await chat.ainvoke("again")).text

    limits = Limits(usd=1)
    agent = RunnableModel(RunnableLambda(work), price=PRICE)
    conductor = Conductor(ScriptedModel(LONE, price=PRICE), WorkerPool([Worker.of("agent", agent)]), limits=limits)
    try:
        trace = await conductor.run("Go on.")
    except RunError as error:
        trace = error.trace
    (call, *_) = trace.rounds[0].results[0].calls
    assert (call.outcome, call.usage.calls, call.usage.unpriced_calls) == (
        ("ok", 4, unpriced) if recovers else ("error", 3, unpriced)
    )
    assert call.usage.total_tokens == (3_000 if recovers else 2_000)
    assert call.usage.cost == Decimal(call.usage.total_tokens) / 1_000_000
    charged = call.charged  # what a resumed run is charged for the call
    assert (charged is None) is not unpriced
    assert charged is None or (charged.usd > call.usage.cost and charged.tokens > call.usage.total_tokens)


class LoopBound(Counted):
    """Fails as a client does that is bound to an event loop which is closed."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise RuntimeError("Event loop is closed")


async def test_the_error_of_a_call_inside_reaches_the_code_that_made_it() -> None:
    errors: list[str] = []

    async def work(_: Any) -> str:
        try:
            await LoopBound(calls_made=[]).ainvoke("again")
        except RuntimeError as error:
            errors.append(str(error))
        return "Hello."

    agent = RunnableModel(RunnableLambda(work), price=PRICE)
    assert (await conductor_over(agent, Limits(calls=4)).run("Go on.")).text == "Hello."
    assert errors == ["Event loop is closed"]


class Completing(FakeListLLM):
    """A language model that is not a chat model, and counts its calls."""

    calls_made: Any

    async def _acall(self, *args: Any, **kwargs: Any) -> str:
        self.calls_made.append(1)
        return await super()._acall(*args, **kwargs)


async def test_calls_of_a_language_model_that_is_not_a_chat_model_are_limited_too() -> None:
    model = Completing(responses=["Hello."], calls_made=[])

    async def work(_: Any) -> str:
        return [await model.ainvoke("again") for _ in range(20)][-1]

    with pytest.raises(RunError, match=r"limits\.calls=4 is used up"):
        await conductor_over(RunnableModel(RunnableLambda(work), price=PRICE), Limits(calls=4)).run("Go on.")
    assert len(model.calls_made) == 3
