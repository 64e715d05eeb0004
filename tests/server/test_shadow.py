from __future__ import annotations

import asyncio
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from core.runs import SOON
from core.scripted_guardrails import HIDDEN, SECRET, Hide
from rl_conductor.models import PROVIDERS, Capabilities
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Message, Request, Sampling, ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.experiments import shadow
from rl_conductor_server.experiments.sampling import hash_to_fraction
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import RunRow, Search, Store
from rl_conductor_server.store.models import SHADOW_OF
from rl_conductor_training.tasks import Sample, Score
from server.conftest import At, Serve, served, until, usage_of_key
from server.experiments import (
    ASK,
    CENT,
    QUESTION,
    answers_in,
    conducting,
    experiment,
    found_in_metrics,
    pairs,
    prefers,
    upstream,
)
from server.upstream import Vendor

__all__ = ["upstream"]

KEYS = {"red": {"sha256": hash_key("key-of-red"), "usd": "1"}}


async def shadow_rows(at: At, run: str) -> list[RunRow]:
    return [row for row in await at.service.store.list_runs(Search()) if row.labels.get(SHADOW_OF) == run]


async def test_the_baseline_answers_and_the_conductor_is_compared_with_it(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    raw = await at.openai().chat.completions.with_raw_response.create(**ASK)
    assert raw.parse().choices[0].message.content == "It is 390."
    assert raw.headers["x-conductor-arm"] == "baseline"
    assert raw.headers["x-conductor-cost-usd"] == "0.01"
    (pair,) = await pairs(at, 1)
    assert (pair.run, pair.arm, pair.verdict) == (raw.headers["x-conductor-run"], "baseline", "win")
    assert pair.reason == "It is right."
    assert (pair.baseline_cost, pair.conductor_cost) == (Decimal("0.01"), Decimal("0.02"))
    assert pair.baseline_seconds > 0 < pair.conductor_seconds
    assert upstream.asked == {"old": 1, "judge": 2}


async def test_shadow_and_judge_runs_are_listed_and_marked(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    raw = await at.openai().chat.completions.with_raw_response.create(**ASK)
    (pair,) = await pairs(at, 1)
    rows = await shadow_rows(at, raw.headers["x-conductor-run"])
    assert sorted((row.api, row.arm, row.key) for row in rows if row.arm) == [
        ("shadow", "conductor", "shadow:assistant")
    ]
    assert [row.api for row in rows if not row.arm] == ["judge", "judge"]
    trace = await at.service.store.get_trace(pair.shadow)
    assert trace is not None
    assert trace.text == "It is 391."
    row = await at.service.store.get_run(pair.run)
    assert row is not None
    assert (row.arm, row.model) == ("baseline", "assistant-2026-11-01")


async def test_the_baseline_streams_and_answers_in_every_api(serve: Serve, upstream: Vendor) -> None:
    upstream.says["old"] = "It is 390, word by word."
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    async with at.openai().chat.completions.stream(**ASK) as stream:
        text = (await stream.get_final_completion()).choices[0].message.content
    assert text == "It is 390, word by word."
    message = await at.anthropic().messages.create(model="assistant", max_tokens=10, messages=QUESTION)
    assert message.model_dump()["content"][0]["text"] == text
    assert len(await pairs(at, 2)) == 2


async def test_an_experiment_is_listed_among_the_models(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    models = [model.id async for model in at.openai().models.list()]
    assert {"assistant", "assistant-2026-11-01"} < set(models)


async def test_a_hanging_shadow_run_delays_no_answer(serve: Serve, upstream: Vendor) -> None:
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    at = await serve(**conducting(hanging), experiments={"assistant": experiment(upstream)})
    async with asyncio.timeout(SOON):
        for _ in range(2 + 3):
            assert (await at.openai().chat.completions.create(**ASK)).choices[0].message.content == "It is 390."
        await until(lambda: hanging.in_flight == 2)
    assert await at.service.store.experiments.list_pairs() == []


async def test_answers_that_find_a_full_queue_are_counted_but_not_compared(
    serve: Serve, upstream: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "QUEUE_SIZE", 3)  # so that the queue fills up quickly
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    at = await serve(**conducting(hanging), experiments={"assistant": experiment(upstream)})
    for number in range(2 + 3 + 2):
        assert (await at.openai().chat.completions.create(**ASK)).choices
        if number == 2 - 1:
            await until(lambda: hanging.in_flight == 2)
    assert 'conductor_shadows_total{experiment="assistant",outcome="busy"} 2.0' in (await at.http.get("/metrics")).text


async def test_a_stopping_server_cancels_its_shadow_runs(upstream: Vendor, tmp_path: Path) -> None:
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    settings = {"port": 0, "store": {"url": url}, "experiments": {"assistant": experiment(upstream)}}
    async with asyncio.timeout(SOON):
        async with served(**conducting(hanging), settings=Settings.model_validate(settings)) as at:
            await at.openai().chat.completions.create(**ASK)
            await until(lambda: hanging.in_flight == 1)
    assert hanging.in_flight == 0
    store = await Store.open(url)
    (row,) = [row for row in await store.list_runs(Search()) if row.api == "shadow"]
    await store.aclose()
    assert (row.status, row.usage.cost, row.usage.unpriced_calls) == ("cancelled", Decimal("0.01"), 1)


async def test_shadow_runs_are_not_charged_to_the_api_key(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)}, keys=KEYS)
    await at.openai("key-of-red").chat.completions.create(**ASK)
    await pairs(at, 1)
    store = at.service.store
    assert (await usage_of_key(store, "red")).cost == Decimal("0.01")
    assert (await usage_of_key(store, "shadow:assistant")).cost == Decimal("0.04")
    account = at.service.keys.find("red")
    budget = await account.current(at.service.store.now())
    assert budget is not None
    assert budget.spent.usd == Decimal("0.01")


async def test_shadow_runs_stop_before_their_budget_is_exceeded(serve: Serve, upstream: Vendor) -> None:
    """A pair costs four cents; with five, the second pair can only be planned."""
    a = ScriptedModel("It is 391.", price=CENT)
    at = await serve(**conducting(a), experiments={"assistant": experiment(upstream, usd="0.05")})
    for number in (1, 2, 3):
        await at.openai().chat.completions.create(**ASK)
        if number == 1:
            await pairs(at, 1)
    metric = 'conductor_shadows_total{experiment="assistant",outcome="budget"} 2.0'
    await found_in_metrics(at, metric)
    assert (await usage_of_key(at.service.store, "shadow:assistant")).cost == Decimal("0.05")
    assert len(a.requests) == 1
    assert upstream.asked == {"old": 3, "judge": 2}


async def test_the_shadow_budget_may_be_in_tokens(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream, usd=None, tokens=10)})
    await at.openai().chat.completions.create(**ASK)
    await found_in_metrics(at, 'conductor_shadows_total{experiment="assistant",outcome="budget"} 1.0')
    assert (await usage_of_key(at.service.store, "shadow:assistant")).total_tokens == 0


async def test_shadow_spending_before_a_restart_counts(serve: Serve, upstream: Vendor) -> None:
    before = await serve(**conducting(), experiments={"assistant": experiment(upstream, usd="0.04")})
    await before.openai().chat.completions.create(**ASK)
    await pairs(before, 1)
    a = ScriptedModel("It is 391.", price=CENT)
    after = await serve(**conducting(a), experiments={"assistant": experiment(upstream, usd="0.04")})
    await after.openai().chat.completions.create(**ASK)
    await found_in_metrics(after, 'conductor_shadows_total{experiment="assistant",outcome="budget"} 1.0')
    assert a.requests == []


async def test_an_unusable_reply_of_the_judge_is_counted_as_unclear(serve: Serve, upstream: Vendor) -> None:
    upstream.says["judge"] = "I am the best judge."
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK)
    await found_in_metrics(at, 'conductor_shadows_total{experiment="assistant",outcome="unclear"} 1.0')
    assert await at.service.store.experiments.list_pairs() == []


async def test_prompts_of_the_judge_pass_the_guardrails_for_prompts(serve: Serve, upstream: Vendor) -> None:
    bodies: list[str] = []

    def judge(body: dict[str, Any]) -> str:
        bodies.append(json.dumps(body))
        return prefers("391")(body)

    upstream.says["judge"] = judge
    guard = Hide(stages=("prompt",))
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)}, guardrails=(guard,))
    question: Any = [{"role": "user", "content": f"Who has {SECRET}?"}]
    await at.openai().chat.completions.create(model="assistant", messages=question)
    await pairs(at, 1)
    assert len(bodies) == 2
    assert all(HIDDEN in body and SECRET not in body for body in bodies)


async def test_the_judge_gets_a_json_schema_and_both_orders_but_no_hint_of_the_arms(
    serve: Serve, upstream: Vendor
) -> None:
    bodies: list[dict[str, Any]] = []

    def judge(body: dict[str, Any]) -> str:
        bodies.append(body)
        return prefers("391")(body)

    upstream.says["judge"] = judge
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK)
    await pairs(at, 1)
    orders = [["is 390" in answer for answer in answers_in(body)] for body in bodies]
    assert sorted(orders) == [[False, True], [True, False]]
    for body in bodies:
        assert body["response_format"]["type"] == "json_schema"
        text = json.dumps(body["messages"]).lower()
        assert not [hint for hint in ("baseline", "conductor", "shadow", "old", "openai") if hint in text]


def without_json_schema(name: str, **options: Any) -> ScriptedModel:
    """A judge without support for JSON schemas."""

    def judge(request: Request) -> str:
        return prefers("391")({"messages": [{"content": request.messages[-1].text}]})

    return ScriptedModel(judge, name=name, capabilities=Capabilities(), **options)


async def test_a_judge_without_structured_output_is_asked_without_a_schema(
    serve: Serve, upstream: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "no-schema", "server.test_shadow:without_json_schema")
    judge = {"model": "no-schema:judge", "price": {"input": "0", "output": "0"}}
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream, judge=judge)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("win", "It is right.")


async def test_the_scorer_decides_before_the_judge(serve: Serve, upstream: Vendor) -> None:
    shadow = experiment(upstream, scorer="server.test_shadow:right")
    at = await serve(**conducting(), experiments={"assistant": shadow})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert pair.verdict == "win"
    assert "the scorer gave the conductor 1 and the baseline 0" in pair.reason
    assert upstream.asked["judge"] == 0


async def right(sample: Sample, text: str) -> Score:
    """Score 1 if the answer is 391."""
    assert sample.question == "What is 17 * 23?"
    return Score(value=float("391" in text), answer=text, explanation="17 * 23 is 391")


async def test_a_conductor_without_an_answer_loses(serve: Serve, upstream: Vendor) -> None:
    def down(_: Any) -> Exception:
        return RuntimeError("out of order")

    at = await serve(**conducting(ScriptedModel(down, price=CENT)), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("loss", "no answer from the conductor")
    assert upstream.asked["judge"] == 0


async def test_store_false_keeps_no_content_of_a_comparison(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().responses.create(model="assistant", input="What is 17 * 23?", store=False)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("win", "")
    rows = await at.service.store.list_runs(Search())
    assert len(rows) == 4
    for row in rows:
        assert not row.question
        assert await at.service.store.get_trace(row.id) is None


async def test_a_deleted_response_leaves_no_content_of_its_comparison(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    client = at.openai()
    other = await client.responses.create(model="assistant", input="What is 17 * 23?")
    deleted = await client.responses.create(model="assistant", input="What is 17 * 23?")
    await pairs(at, 2)
    await client.responses.delete(deleted.id)
    reasons = {pair.run: pair.reason for pair in await at.service.store.experiments.list_pairs()}
    assert sorted(reasons.values()) == ["", "It is right."]
    rows = await at.service.store.list_runs(Search())
    stored = [row for row in rows if await at.service.store.get_trace(row.id) is not None]
    assert (len(rows), len(stored)) == (8, 4)
    assert all(row.question for row in stored)
    assert all(row.usage.calls for row in rows)
    assert (await client.responses.retrieve(other.id)).output_text == "It is 390."


async def test_only_the_configured_share_is_compared(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream, share=0.5)})
    runs = [
        (await at.openai().chat.completions.with_raw_response.create(**ASK)).headers["x-conductor-run"]
        for _ in range(20)
    ]
    sampled = {run for run in runs if hash_to_fraction(run) < 0.5}
    assert {pair.run for pair in await pairs(at, len(sampled))} == sampled


async def test_a_retried_request_is_compared_once(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    for _ in range(3):
        await at.openai().chat.completions.create(**ASK, extra_headers={"idempotency-key": "1"})
    await pairs(at, 1)
    assert upstream.asked == {"old": 1, "judge": 2}


async def test_the_requested_reasoning_effort_reaches_the_baseline(serve: Serve, upstream: Vendor) -> None:
    efforts: list[Any] = []

    def baseline(body: dict[str, Any]) -> str:
        efforts.append(body.get("reasoning_effort"))
        return "It is 390."

    upstream.says["old"] = baseline
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK, reasoning_effort="low")
    assert efforts == ["low"]


async def test_pairs_are_deleted_with_their_runs(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    store: Store = at.service.store
    await store.prune(before=pair.created + 1)
    assert await store.experiments.list_pairs() == []


async def test_a_page_shows_the_results_of_each_experiment(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    assert "No answers compared yet." in (await at.http.get("/experiments")).text
    for question in ("What is 17 * 23?", "And now?"):
        await at.openai().chat.completions.create(model="assistant", messages=[{"role": "user", "content": question}])
    await pairs(at, 2)
    page = " ".join(re.sub("<[^>]+>", " ", (await at.http.get("/experiments")).text).split())
    assert "is better 100% 34% to 100%" in page
    assert "Mean difference in cost, conductor minus baseline: +$0.0100 +$0.0100 to +$0.0100" in page
    runs_page = (await at.http.get("/")).text
    assert "assistant-2026-11-01 · conductor · shadow · key shadow:assistant" in runs_page


async def test_only_the_first_of_several_choices_is_compared(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    await at.openai().chat.completions.create(**ASK, n=2)
    await pairs(at, 1)
    await at.service.store.write_queue.flush()
    assert upstream.asked == {"old": 2, "judge": 2}


async def test_the_data_class_of_a_request_applies_to_the_judge(serve: Serve, upstream: Vendor) -> None:
    """The baseline and the only worker may see the data class; the judge may not."""
    entry = experiment(upstream) | {"conductor": "house"}
    entry["baseline"] |= {"tags": ["house"]}
    house = {"released": "2026-11-01", "limits": {"steps": 1}}
    card = Card(name="a", tags=frozenset({"house"}))
    a = ScriptedModel("It is 391.", price=CENT)
    pool = WorkerPool([Worker.of("a", a, card=card, sampling=Sampling(max_tokens=1))])
    at = await serve(pool, ScriptedModel([], price=CENT), models={"house": house}, experiments={"assistant": entry})
    policy = {"data_class": "patients", "data_rules": {"patients": {"tags": ["house"]}}}
    await at.openai().chat.completions.create(**ASK, extra_body={"conductor": {"policy": policy}})
    await found_in_metrics(at, 'conductor_shadows_total{experiment="assistant",outcome="refused"} 1.0')
    assert upstream.asked == {"old": 1}
    assert len(a.requests) == 1


async def test_tool_calls_of_shadow_runs_are_not_stored_for_a_next_turn(serve: Serve, upstream: Vendor) -> None:
    call = ToolCall(id="1", name="add", arguments="{}")
    tool_caller = ScriptedModel([Message(role="assistant", content=(), tool_calls=(call,))], price=CENT)
    at = await serve(**conducting(tool_caller), experiments={"assistant": experiment(upstream)})
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    await at.openai().responses.create(model="assistant", input="What is 17 * 23?", tools=[tool], store=False)
    (pair,) = await pairs(at, 1)
    assert await at.service.store.get_trace(pair.shadow) is None


async def test_leases_of_shadow_and_judge_runs_are_renewed(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), experiments={"assistant": experiment(upstream)})
    upstream.held.add("judge")
    await at.openai().chat.completions.create(**ASK)
    await until(lambda: upstream.asked["judge"] == 2)
    running = {row.id for row in await at.service.store.list_runs(Search(status="running"))}
    assert len(running) == 2
    assert running == set(at.service.active_runs)
