"""Numbers and text that databases can't store: rejected or cleaned in requests, and safe to write in any case."""

from __future__ import annotations

import asyncio
import secrets
import time
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest

from core.runs import plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Usage
from rl_conductor_server.store import BudgetPeriod, NewRun, Search, Store
from rl_conductor_server.store.audit import Chain
from server.conftest import Serve, usage_of_key
from server.upstream import vendor

MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
HUGE = 10**19
PRICE = Price(input=Decimal(1), output=Decimal(2))
LONE = "half \ud83d of a pair"


# ----------------------------------------------------------------------------------- request bodies


@pytest.mark.parametrize("value", [True, "10"])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        *(("chat/completions", field) for field in ("max_tokens", "max_completion_tokens", "n", "seed")),
        ("responses", "max_output_tokens"),
        ("messages", "max_tokens"),
    ],
)
async def test_an_integer_of_a_request_is_no_boolean_and_no_text(
    serve: Serve, path: str, field: str, value: object
) -> None:
    at = await serve()
    content = {"input": "Hello"} if path == "responses" else {"messages": MESSAGES, "max_tokens": 10}
    reply = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **content, field: value})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, f"{field} must be an integer")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": HUGE}, "max_tokens"),
        ({"max_completion_tokens": 10**7 + 1}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(10**30)}, "seed"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"team": "x" * 513}}, "metadata.team"),
        ({"user": "x" * 513}, "user"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"conductor": {"policy": {"forbid": [{"reader": "a", "source": "b"}] * 257}}}, "conductor.policy.forbid"),
        ({"conductor": {"policy": {"data_rules": {str(n): {} for n in range(257)}}}}, "conductor.policy.data_rules"),
        ({"safety_identifier": "x" * 513}, "safety_identifier"),
        ({"conductor": {"limits": {"tokens": HUGE}}}, "conductor.limits.tokens"),
        ({"conductor": {"limits": {"calls": HUGE}}}, "conductor.limits.calls"),
        ({"conductor": {"limits": {"seconds": 1e300}}}, "conductor.limits.seconds"),
    ],
)
async def test_the_error_for_a_value_too_large_in_a_chat_request_names_its_field(
    serve: Serve, body: dict[str, Any], param: str
) -> None:
    at = await serve()
    with pytest.raises(openai.BadRequestError) as caught:
        await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES, extra_body=body)
    assert caught.value.param == param
    assert await at.service.store.list_runs() == []


async def test_the_error_for_a_number_too_large_in_other_apis_names_its_field(serve: Serve) -> None:
    at = await serve()
    with pytest.raises(openai.BadRequestError, match="less than or equal to 10000000") as caught:
        await at.openai().responses.create(model="conductor-mini", input="Say it.", max_output_tokens=HUGE)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="metadata may have at most 16 entries"):
        await at.openai().responses.create(
            model="conductor-mini", input="Say it.", metadata={str(number): "" for number in range(17)}
        )
    with pytest.raises(anthropic.BadRequestError, match="user_id must have at most 512 characters"):
        await at.anthropic().messages.create(
            model="conductor-mini", messages=MESSAGES, max_tokens=1, metadata={"user_id": "x" * 513}
        )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be less than or equal to 10000000"):
        async with at.anthropic().messages.stream(model="conductor-mini", messages=MESSAGES, max_tokens=HUGE):
            pass


# ----------------------------------------------------------------------------------- vendors' replies


@pytest.mark.parametrize(
    "reply", [{"usage": {"prompt_tokens": 2**62, "completion_tokens": 2**64, "total_tokens": 1}}, {"model": LONE}]
)
async def test_absurd_values_from_a_vendor_affect_only_their_run(
    serve: Serve, reply: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    async with vendor(liar="from the liar") as upstream:
        upstream.replies["liar"] = reply
        liar = OpenAIModel("liar", base_url=upstream.url, price=PRICE)
        at = await serve({"a": "from a", "b": liar})
        client = at.openai()

        async def ask(worker: str) -> str:
            extra = {"conductor": {"policy": {"single": worker}}}
            reply = await client.chat.completions.create(model="conductor-mini", messages=MESSAGES, extra_body=extra)
            return reply.choices[0].message.content or ""

        answers = await asyncio.gather(*(ask("b" if number == 7 else "a") for number in range(20)))
        assert sorted(answers) == ["from a"] * 19 + ["from the liar"]
        store = at.service.store
        assert [row.status for row in await store.list_runs()] == ["done"] * 20
        assert len([line async for line in store.audit_lines(Chain())]) == 20
        assert (await usage_of_key(store, "local")).calls == 20


# ----------------------------------------------------------------------------------------- the store


def new_run(run: str, **changes: Any) -> NewRun:
    values = {"id": run, "key": "red", "digest": "d", "api": "chat", "model": "m", "created": time.time()}
    return NewRun.model_validate(values | changes)


async def run_one_step() -> Trace:
    conductor = Conductor(ScriptedModel(plan((0, "Say it.", []))), pool_of(a="from a"))
    return await conductor.run("Say something.")


async def test_text_is_stored_without_the_characters_that_databases_reject(store: Store) -> None:
    trace = Trace.model_validate(dict(await run_one_step()) | {"error": f"it \0 says {LONE}"})
    labels = {"user": f"ada \0 {LONE}"}
    store.begin_run(new_run("bound-1", question=f"\0Say {LONE}.", labels=labels, model="m" * 500))
    store.finish_run("bound-1", trace, "failed", charged=Amount())
    (row,) = await store.list_runs(Search(text="\0Say half", key="red\0"))
    assert (row.question, row.error) == ("Say half ? of a pair.", "it  says half ? of a pair")
    assert row.model_dump_json()


async def test_numbers_too_large_for_a_column_break_neither_a_run_nor_the_sums_of_its_key(
    store: Store, url: str
) -> None:
    trace, key = await run_one_step(), secrets.token_hex(8)
    huge = Usage(calls=1, input_tokens=2**70, output_tokens=2**70, cost=Decimal(10) ** 30)
    calls = tuple(call.model_copy(update={"usage": huge}) for call in trace.rounds[0].plan.calls)
    first = trace.rounds[0].model_copy(update={"plan": trace.rounds[0].plan.model_copy(update={"calls": calls})})
    trace = trace.model_copy(update={"rounds": (first,)})
    for number in range(12):
        store.begin_run(new_run(f"bound-{number}", key=key))
        store.finish_run(f"bound-{number}", trace, "done", charged=Amount(usd=Decimal(10) ** 30, tokens=2**70))
    assert [row.status for row in await store.list_runs()] == ["done"] * 12
    assert (await usage_of_key(store, key)).cost >= 10**7
    other = await Store.open(url)
    assert (await other.read_budget(BudgetPeriod(key, 0, None, None))).charged_elsewhere.usd >= 10**7
    await other.aclose()
    spending = await store.spending.list_usage("worker", since=0, before=9e9, width=10**9)
    assert sum(row.usage.cost for row in spending) >= 10**7
    assert await store.prune(before=time.time() + 1e6) == 12
    assert (await usage_of_key(store, key)).cost >= 10**6
