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
from rl_conductor_server.api.anthropic_messages.adapter import format_usage as messages_usage
from rl_conductor_server.api.openai_chat.adapter import format_usage as chat_usage
from rl_conductor_server.api.openai_responses.response import format_usage as responses_usage
from rl_conductor_server.api.results import Results
from rl_conductor_server.store.column_types import Dollars

TOKENS = st.integers(0, 1_000_000)
DIALECT = sqlite.dialect()
PRICE = Price(input=Decimal("0.15"), cached_input=Decimal("0.075"), cache_write=Decimal("0.19"), output=Decimal("0.6"))


class Billing(ScriptedModel):
    """A scripted model that records the usage of its calls."""

    def __init__(self, replies: Any, **options: Any) -> None:
        super().__init__(replies, **options)
        self.charged: list[Usage] = []

    async def stream(self, request: Request) -> Any:
        """Streams the next reply."""
        async for delta in super().stream(request):
            if delta.completion is not None:
                self.charged.append(delta.completion.usage)
            yield delta


@st.composite
def replies(draw: st.DrawFn, text: str) -> Any:
    """Generates a reply with arbitrary usage, or a failure."""
    if draw(st.integers(0, 4)) == 0:
        return BadRequestError("no", model="x", status=400)
    input_tokens, output_tokens = draw(TOKENS), draw(TOKENS)
    cached = draw(st.integers(0, input_tokens))
    cache_writes = draw(st.integers(0, input_tokens - cached))
    counts = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": cached,
        "cache_write_tokens": cache_writes,
    }
    priced = Usage(**counts, calls=1, cost=PRICE.cost(**counts))
    return Completion(message=Message.assistant(text), usage=priced, model="vendor")


PLANS = [
    plan((0, "Say it.", [])),
    plan((0, "Draft.", []), (1, "Say it.", ["all"])),
    plan((0, "Draft.", []), (1, "Draft.", []), (2, "Join.", ["all"])),
]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Trace, list[Usage]]:
    """Generates a run over workers with arbitrary failures and usage, and the usage of all calls."""
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
def test_the_usage_of_a_response_is_the_sum_of_all_model_calls(run: tuple[Trace, list[Usage]]) -> None:
    trace, charged = run
    expected = total(charged)
    results = Results([trace])
    breakdown = results.breakdown
    parts = [breakdown["planning"], *breakdown["workers"].values()]
    for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
        assert breakdown["total"][name] == sum(part[name] for part in parts) == getattr(expected, name)
    assert Decimal(breakdown["total"]["cost"]) == sum(Decimal(part["cost"]) for part in parts) == expected.cost
    assert Decimal(results.headers["x-conductor-cost-usd"]) == expected.cost
    summary = Summary.of(trace)
    usages = [usage for round_ in summary.rounds for usage in (round_.plan.usage, *(s.usage for s in round_.steps))]
    assert total(usages) == summary.usage
    assert summary.usage.cost == expected.cost
    assert (
        Dollars().process_result_value(Dollars().process_bind_param(expected.cost, DIALECT), DIALECT) == expected.cost
    )


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_all_apis_report_the_same_totals(run: tuple[Trace, list[Usage]]) -> None:
    trace, charged = run
    expected = total(charged)
    results = Results([trace])
    chat, responses, messages = chat_usage(results), responses_usage(results), messages_usage(results)
    input_tokens = sum(
        messages[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    assert chat["prompt_tokens"] == responses["input_tokens"] == input_tokens == expected.input_tokens
    assert (
        chat["completion_tokens"] == responses["output_tokens"] == messages["output_tokens"] == expected.output_tokens
    )
    writes = responses["input_tokens_details"]["cache_write_tokens"]
    assert writes == messages["cache_creation_input_tokens"] == expected.cache_write_tokens
    assert chat["total_tokens"] == expected.total_tokens
    orchestration = results.orchestration
    assert 0 <= orchestration.output_tokens <= expected.output_tokens
    if trace.answer is not None:
        assert orchestration.calls == expected.calls - 1 + sum(call.outcome != "ok" for call in trace.calls)


@given(costs=st.lists(st.decimals(0, 1000, places=12), max_size=20))
def test_dollars_are_stored_and_summed_exactly(costs: list[Decimal]) -> None:
    stored = [Dollars().process_bind_param(cost, DIALECT) for cost in costs]
    loaded = Dollars().process_result_value(sum(value or 0 for value in stored), DIALECT)
    assert loaded == sum(costs, Decimal(0))
