from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from core.runs import ACCEPT, plan
from rl_conductor.conductor import Conductor
from rl_conductor.errors import BadRequestError, RunError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message, Price, Request, Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.api.anthropic_messages.endpoint import usage as messages_usage
from rl_conductor_server.api.metadata import breakdown, headers, orchestration
from rl_conductor_server.api.openai_chat.endpoint import usage as chat_usage
from rl_conductor_server.api.openai_responses.endpoint import usage as responses_usage
from rl_conductor_server.store.tables import Dollars

TOKENS = st.integers(0, 1_000_000)
DIALECT = sqlite.dialect()
PRICE = Price(input=Decimal("0.15"), cached_input=Decimal("0.075"), cache_write=Decimal("0.19"), output=Decimal("0.6"))


class Billing(ScriptedModel):
    """A scripted model that remembers what it charged."""

    def __init__(self, replies: Any, **options: Any) -> None:
        super().__init__(replies, **options)
        self.charged: list[Usage] = []

    async def stream(self, request: Request) -> Any:
        """The next reply."""
        async for delta in super().stream(request):
            if delta.completion is not None:
                self.charged.append(delta.completion.usage)
            yield delta


@st.composite
def replies(draw: st.DrawFn, text: str) -> Any:
    """A reply with any usage, or a failure."""
    if draw(st.integers(0, 4)) == 0:
        return BadRequestError("no", model="x", status=400)
    read, written = draw(TOKENS), draw(TOKENS)
    cached = draw(st.integers(0, read))
    kept = draw(st.integers(0, read - cached))
    counts = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached, "cache_write_tokens": kept}
    priced = Usage(**counts, calls=1, cost=PRICE.cost(**counts))
    return Completion(message=Message.assistant(text), usage=priced, model="vendor")


PLANS = [
    plan((0, "Say it.", [])),
    plan((0, "Draft.", []), (1, "Say it.", ["all"])),
    plan((0, "Draft.", []), (1, "Draft.", []), (2, "Join.", ["all"])),
]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, list[Usage]]:
    """A run over workers that fail and charge as they like, and all that they charged."""
    planner = Billing([draw(replies(draw(st.sampled_from([*PLANS, "nonsense"])))) for _ in range(9)] + [ACCEPT] * 9)
    workers = {name: Billing([draw(replies(f"from {name}")) for _ in range(9)] + ["late"] * 9) for name in "abc"}
    conductor = Conductor(planner, WorkerPool(workers), limits=Limits(rounds=draw(st.integers(1, 2))), retries=0)
    try:
        trace = asyncio.run(conductor.run("Say something."))
    except RunError as error:
        trace = error.trace
    return trace, [usage for model in (planner, *workers.values()) for usage in model.charged]


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_every_count_of_a_reply_is_what_the_models_charged(run: tuple[Trace, list[Usage]]) -> None:
    trace, charged = run
    whole = total(charged)
    told = breakdown([trace])
    each = [told["planning"], *told["workers"].values()]
    for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
        assert told["total"][name] == sum(one[name] for one in each) == getattr(whole, name)
    assert Decimal(told["total"]["cost"]) == sum(Decimal(one["cost"]) for one in each) == whole.cost
    assert Decimal(headers([trace])["x-conductor-cost-usd"]) == whole.cost
    brief = Summary.of(trace)
    parts = [used for one in brief.rounds for used in (one.plan.usage, *(step.usage for step in one.steps))]
    assert total(parts) == brief.usage
    assert brief.usage.cost == whole.cost
    assert Dollars().process_result_value(Dollars().process_bind_param(whole.cost, DIALECT), DIALECT) == whole.cost


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_the_protocols_agree_on_the_totals(run: tuple[Trace, list[Usage]]) -> None:
    trace, charged = run
    whole = total(charged)
    chat, responses, messages = chat_usage([trace]), responses_usage(trace), messages_usage([trace])
    read = sum(messages[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
    assert chat["prompt_tokens"] == responses["input_tokens"] == read == whole.input_tokens
    assert chat["completion_tokens"] == responses["output_tokens"] == messages["output_tokens"] == whole.output_tokens
    assert chat["total_tokens"] == whole.total_tokens
    beside = orchestration([trace])
    assert 0 <= beside.output_tokens <= whole.output_tokens
    if trace.answer is not None:
        assert beside.calls == whole.calls - 1 + sum(call.outcome != "ok" for call in trace.calls())


@given(costs=st.lists(st.decimals(0, 1000, places=12), max_size=20))
def test_dollars_are_kept_and_summed_exactly(costs: list[Decimal]) -> None:
    kept = [Dollars().process_bind_param(cost, DIALECT) for cost in costs]
    back = Dollars().process_result_value(sum(one or 0 for one in kept), DIALECT)
    assert back == sum(costs, Decimal(0))
