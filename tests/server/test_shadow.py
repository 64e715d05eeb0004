from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from core.runs import SOON
from rl_conductor.models import PROVIDERS, Capabilities
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Message, Price, Request, Sampling, ToolCall
from rl_conductor_server.auth.keys import hashed
from rl_conductor_server.experiments import shadow
from rl_conductor_server.experiments.shadow import OF, drawn
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import Pair, RunRow, Search, Store
from rl_conductor_training.tasks import Sample, Score
from server.conftest import ONE_STEP, At, Serve, served, until
from server.upstream import Vendor, vendor

QUESTION: list[Any] = [{"role": "user", "content": "What is 17 * 23?"}]
ASK: Any = {"model": "assistant", "messages": QUESTION}
KEYS = {"red": {"sha256": hashed("key-of-red"), "usd": "1"}}
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def prefers(wanted: str) -> Callable[[dict[str, Any]], str]:
    """A judge who finds the answer with these words better, wherever it stands."""

    def judge(body: dict[str, Any]) -> str:
        first, second = answers_in(body)
        better = "neither" if (wanted in first) == (wanted in second) else "first" if wanted in first else "second"
        return json.dumps({"reason": "It is right.", "better": better})

    return judge


def answers_in(body: dict[str, Any]) -> list[str]:
    """The two answers that a judge is shown."""
    text = body["messages"][-1]["content"]
    return [part.partition(">\n")[2].partition("\n</reply")[0] for part in text.split("<reply ")[1:]]


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Vendor, None]:
    """The vendor of the old model and of a judge who likes what `a` says."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-vendor")
    async with vendor(old="It is 390.", judge=prefers("391")) as made:
        yield made


def at_vendor(upstream: Vendor, name: str, **options: Any) -> dict[str, Any]:
    price = {"input": "0", "output": "0", "per_call": "0.01"}
    sampling = {"max_tokens": 100}
    return {
        "model": f"openai:{name}",
        "options": {"base_url": upstream.url},
        "price": price,
        "sampling": sampling,
    } | options


def route(upstream: Vendor, *, canary: dict[str, Any] | None = None, **shadow: Any) -> dict[str, Any]:
    """A route of which every answer is compared."""
    judge = {name: value for name, value in at_vendor(upstream, "judge").items() if name != "sampling"}
    return {
        "released": "2026-11-01",
        "incumbent": at_vendor(upstream, "old"),
        "conductor": "conductor-mini",
        "shadow": {"share": 1, "usd": "1", "judge": judge, "concurrency": 2} | shadow,
        "canary": canary or {},
    }


def conducting(answer: Any = "It is 391.") -> dict[str, Any]:
    """A pool and a planner, of which each call costs a cent."""
    a = answer if isinstance(answer, ScriptedModel) else ScriptedModel(answer, price=CENT)
    worker = Worker.of("a", a, sampling=Sampling(max_tokens=1))
    return {"pool": WorkerPool([worker]), "planner": ScriptedModel(ONE_STEP, price=CENT)}


async def pairs(at: At, n: int) -> list[Pair]:
    """The first pairs, once there are so many."""
    async with asyncio.timeout(SOON):
        while len(found := list(await at.service.store.trials.pairs())) < n:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def beside(at: At, run: str) -> list[RunRow]:
    return [row for row in await at.service.store.runs(Search()) if row.labels.get(OF) == run]


async def test_the_old_model_answers_and_the_conductor_is_compared_with_it(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    raw = await at.openai().chat.completions.with_raw_response.create(**ASK)
    assert raw.parse().choices[0].message.content == "It is 390."
    assert raw.headers["x-conductor-side"] == "incumbent"
    assert raw.headers["x-conductor-cost-usd"] == "0.01"
    (pair,) = await pairs(at, 1)
    assert (pair.run, pair.answered, pair.verdict) == (raw.headers["x-conductor-run"], "incumbent", "win")
    assert pair.reason == "It is right."
    assert (pair.incumbent_cost, pair.conductor_cost) == (Decimal("0.01"), Decimal("0.02"))
    assert pair.incumbent_seconds > 0 < pair.conductor_seconds
    assert upstream.asked == {"old": 1, "judge": 2}


async def test_runs_beside_are_listed_and_marked(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    raw = await at.openai().chat.completions.with_raw_response.create(**ASK)
    (pair,) = await pairs(at, 1)
    rows = await beside(at, raw.headers["x-conductor-run"])
    assert sorted((row.api, row.side, row.key) for row in rows if row.side) == [
        ("shadow", "conductor", "shadow:assistant")
    ]
    assert [row.api for row in rows if not row.side] == ["judge", "judge"]
    trace = await at.service.store.trace(pair.shadow)
    assert trace is not None
    assert trace.text == "It is 391."
    asked = await at.service.store.run(pair.run)
    assert asked is not None
    assert (asked.side, asked.model) == ("incumbent", "assistant-2026-11-01")


async def test_a_route_streams_and_calls_tools_as_the_old_model_does(serve: Serve, upstream: Vendor) -> None:
    upstream.says["old"] = "It is 390, word by word."
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    async with at.openai().chat.completions.stream(**ASK) as stream:
        said = (await stream.get_final_completion()).choices[0].message.content
    assert said == "It is 390, word by word."
    message = await at.anthropic().messages.create(model="assistant", max_tokens=10, messages=QUESTION)
    assert message.model_dump()["content"][0]["text"] == said
    assert len(await pairs(at, 2)) == 2


async def test_a_route_is_listed_among_the_models(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    listed = [model.id async for model in at.openai().models.list()]
    assert {"assistant", "assistant-2026-11-01"} < set(listed)


async def test_a_shadow_that_hangs_delays_no_answer(serve: Serve, upstream: Vendor) -> None:
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    at = await serve(**conducting(hanging), routes={"assistant": route(upstream)})
    async with asyncio.timeout(SOON):
        for _ in range(2 + 3):
            assert (await at.openai().chat.completions.create(**ASK)).choices[0].message.content == "It is 390."
        await until(lambda: hanging.in_flight == 2)
    assert await at.service.store.trials.pairs() == []


async def test_what_comes_beside_a_full_queue_is_answered_and_counted(
    serve: Serve, upstream: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow, "WAITING", 3)  # or, on a busy machine, shadows end before there are so many
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    at = await serve(**conducting(hanging), routes={"assistant": route(upstream)})
    for number in range(2 + 3 + 2):
        assert (await at.openai().chat.completions.create(**ASK)).choices
        if number == 2 - 1:
            await until(lambda: hanging.in_flight == 2)
    assert 'conductor_shadows_total{outcome="busy",route="assistant"} 2.0' in (await at.http.get("/metrics")).text


async def test_a_stopping_server_ends_its_shadows_at_once(upstream: Vendor, tmp_path: Path) -> None:
    hanging = ScriptedModel("It is 391.", delay=600, price=CENT)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    written = {"port": 0, "store": {"url": url}, "routes": {"assistant": route(upstream)}}
    async with asyncio.timeout(SOON):
        async with served(**conducting(hanging), settings=Settings.model_validate(written)) as at:
            await at.openai().chat.completions.create(**ASK)
            await until(lambda: hanging.in_flight == 1)
    assert hanging.in_flight == 0
    store = await Store.open(url)
    (row,) = [row for row in await store.runs(Search()) if row.api == "shadow"]
    await store.aclose()
    assert (row.status, row.usage.cost, row.usage.unpriced_calls) == ("cancelled", Decimal("0.01"), 1)


async def test_a_shadow_is_not_charged_to_the_key(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)}, keys=KEYS)
    await at.openai("key-of-red").chat.completions.create(**ASK)
    await pairs(at, 1)
    store = at.service.store
    assert (await store.spent("red", since=0)).cost == Decimal("0.01")
    assert (await store.spent("shadow:assistant", since=0)).cost == Decimal("0.04")
    account = at.service.keys.named("red")
    budget = await account.budget()
    assert budget is not None
    assert budget.spent.usd == Decimal("0.01")


async def test_a_shadow_stops_before_its_budget_is_overspent(serve: Serve, upstream: Vendor) -> None:
    """A pair costs four cents; of five, the second pair may only be planned."""
    a = ScriptedModel("It is 391.", price=CENT)
    at = await serve(**conducting(a), routes={"assistant": route(upstream, usd="0.05")})
    for number in (1, 2, 3):
        await at.openai().chat.completions.create(**ASK)
        if number == 1:
            await pairs(at, 1)
    metric = 'conductor_shadows_total{outcome="budget",route="assistant"} 2.0'
    await found_in_metrics(at, metric)
    assert (await at.service.store.spent("shadow:assistant", since=0)).cost == Decimal("0.05")
    assert len(a.requests) == 1
    assert upstream.asked == {"old": 3, "judge": 2}


async def test_a_budget_of_tokens_holds_as_well(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream, usd=None, tokens=10)})
    await at.openai().chat.completions.create(**ASK)
    await found_in_metrics(at, 'conductor_shadows_total{outcome="budget",route="assistant"} 1.0')
    assert (await at.service.store.spent("shadow:assistant", since=0)).total_tokens == 0


async def test_what_was_spent_before_a_restart_counts(serve: Serve, upstream: Vendor) -> None:
    before = await serve(**conducting(), routes={"assistant": route(upstream, usd="0.04")})
    await before.openai().chat.completions.create(**ASK)
    await pairs(before, 1)
    a = ScriptedModel("It is 391.", price=CENT)
    after = await serve(**conducting(a), routes={"assistant": route(upstream, usd="0.04")})
    await after.openai().chat.completions.create(**ASK)
    await found_in_metrics(after, 'conductor_shadows_total{outcome="budget",route="assistant"} 1.0')
    assert a.requests == []


async def test_a_judge_who_talks_nonsense_gives_no_verdict(serve: Serve, upstream: Vendor) -> None:
    upstream.says["judge"] = "I am the best judge."
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK)
    await found_in_metrics(at, 'conductor_shadows_total{outcome="unclear",route="assistant"} 1.0')
    assert await at.service.store.trials.pairs() == []


async def test_a_judge_is_held_to_a_form_and_reads_both_orders_without_a_hint(serve: Serve, upstream: Vendor) -> None:
    bodies: list[dict[str, Any]] = []

    def judge(body: dict[str, Any]) -> str:
        bodies.append(body)
        return prefers("391")(body)

    upstream.says["judge"] = judge
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK)
    await pairs(at, 1)
    orders = [["is 390" in answer for answer in answers_in(body)] for body in bodies]
    assert sorted(orders) == [[False, True], [True, False]]
    for body in bodies:
        assert body["response_format"]["type"] == "json_schema"
        said = json.dumps(body["messages"]).lower()
        assert not [hint for hint in ("incumbent", "conductor", "shadow", "old", "openai") if hint in said]


def unheld(name: str, **options: Any) -> ScriptedModel:
    """A judge that takes no JSON schema."""

    def judge(request: Request) -> str:
        return prefers("391")({"messages": [{"content": request.messages[-1].text}]})

    return ScriptedModel(judge, name=name, capabilities=Capabilities(), **options)


async def test_a_judge_who_can_not_be_held_to_a_form_is_asked_without_one(
    serve: Serve, upstream: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "unheld", "server.test_shadow:unheld")
    judge = {"model": "unheld:judge", "price": {"input": "0", "output": "0"}}
    at = await serve(**conducting(), routes={"assistant": route(upstream, judge=judge)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("win", "It is right.")


async def test_a_scorer_decides_before_the_judge(serve: Serve, upstream: Vendor) -> None:
    shadow = route(upstream, scorer="server.test_shadow:right")
    at = await serve(**conducting(), routes={"assistant": shadow})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert pair.verdict == "win"
    assert "the scorer gave 1 to the conductor and 0 to the incumbent" in pair.reason
    assert upstream.asked["judge"] == 0


async def right(sample: Sample, text: str) -> Score:
    """Whether it is 391."""
    assert sample.question == "What is 17 * 23?"
    return Score(value=float("391" in text), answer=text, explanation="17 * 23 is 391")


async def test_a_conductor_without_an_answer_loses(serve: Serve, upstream: Vendor) -> None:
    def down(_: Any) -> Exception:
        return RuntimeError("out of order")

    at = await serve(**conducting(ScriptedModel(down, price=CENT)), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("loss", "no answer by the conductor")
    assert upstream.asked["judge"] == 0


async def test_nothing_that_was_said_is_kept_of_a_request_that_is_not_to_be(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().responses.create(model="assistant", input="What is 17 * 23?", store=False)
    (pair,) = await pairs(at, 1)
    assert (pair.verdict, pair.reason) == ("win", "")
    rows = await at.service.store.runs(Search())
    assert len(rows) == 4
    for row in rows:
        assert not row.question
        assert await at.service.store.trace(row.id) is None


async def test_only_a_share_is_drawn(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream, share=0.5)})
    runs = [
        (await at.openai().chat.completions.with_raw_response.create(**ASK)).headers["x-conductor-run"]
        for _ in range(20)
    ]
    wanted = {run for run in runs if drawn(run) < 0.5}
    assert {pair.run for pair in await pairs(at, len(wanted))} == wanted


async def test_a_retried_request_has_one_shadow(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    for _ in range(3):
        await at.openai().chat.completions.create(**ASK, extra_headers={"idempotency-key": "1"})
    await pairs(at, 1)
    assert upstream.asked == {"old": 1, "judge": 2}


async def test_the_effort_that_is_asked_for_reaches_the_old_model(serve: Serve, upstream: Vendor) -> None:
    efforts: list[Any] = []

    def old(body: dict[str, Any]) -> str:
        efforts.append(body.get("reasoning_effort"))
        return "It is 390."

    upstream.says["old"] = old
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK, reasoning_effort="low")
    assert efforts == ["low"]


async def found_in_metrics(at: At, line: str) -> None:
    async with asyncio.timeout(SOON):
        while line not in (await at.http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_pairs_are_forgotten_with_their_runs(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK)
    (pair,) = await pairs(at, 1)
    store: Store = at.service.store
    await store.prune(before=pair.created + 1)
    assert await store.trials.pairs() == []


async def test_a_page_shows_the_trial_of_each_route(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    assert "No two answers have been compared yet." in (await at.http.get("/routes")).text
    for question in ("What is 17 * 23?", "And now?"):
        await at.openai().chat.completions.create(model="assistant", messages=[{"role": "user", "content": question}])
    await pairs(at, 2)
    page = " ".join(re.sub("<[^>]+>", " ", (await at.http.get("/routes")).text).split())
    assert "is better 100% 34% to 100%" in page
    assert "The conductor costs +$0.0100 an answer +$0.0100 to +$0.0100" in page
    listed = (await at.http.get("/")).text
    assert "assistant-2026-11-01 · conductor · shadow · key shadow:assistant" in listed


async def test_of_several_choices_one_is_compared(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    await at.openai().chat.completions.create(**ASK, n=2)
    await pairs(at, 1)
    await at.service.store.journal.flush()
    assert upstream.asked == {"old": 2, "judge": 2}


async def test_a_judge_sees_only_data_that_it_may_see(serve: Serve, upstream: Vendor) -> None:
    """What the old model and the only worker, which needs no plan, are tagged to see."""
    entry = route(upstream) | {"conductor": "house"}
    entry["incumbent"] |= {"tags": ["house"]}
    house = {"released": "2026-11-01", "limits": {"steps": 1}}
    card = Card(name="a", tags=frozenset({"house"}))
    a = ScriptedModel("It is 391.", price=CENT)
    pool = WorkerPool([Worker.of("a", a, card=card, sampling=Sampling(max_tokens=1))])
    at = await serve(pool, ScriptedModel([], price=CENT), profiles={"house": house}, routes={"assistant": entry})
    policy = {"data_class": "patients", "data_rules": {"patients": {"tags": ["house"]}}}
    await at.openai().chat.completions.create(**ASK, extra_body={"conductor": {"policy": policy}})
    await found_in_metrics(at, 'conductor_shadows_total{outcome="refused",route="assistant"} 1.0')
    assert upstream.asked == {"old": 1}
    assert len(a.requests) == 1


async def test_tool_calls_of_a_shadow_are_not_kept_for_a_turn_that_never_comes(serve: Serve, upstream: Vendor) -> None:
    call = ToolCall(id="1", name="add", arguments="{}")
    calling = ScriptedModel([Message(role="assistant", content=(), tool_calls=(call,))], price=CENT)
    at = await serve(**conducting(calling), routes={"assistant": route(upstream)})
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
    await at.openai().responses.create(model="assistant", input="What is 17 * 23?", tools=[tool], store=False)
    (pair,) = await pairs(at, 1)
    assert await at.service.store.trace(pair.shadow) is None


async def test_runs_beside_an_answer_are_kept_alive_like_all_others(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), routes={"assistant": route(upstream)})
    upstream.held.add("judge")
    await at.openai().chat.completions.create(**ASK)
    await until(lambda: upstream.asked["judge"] == 2)
    under_way = {row.id for row in await at.service.store.runs(Search(status="running"))}
    assert len(under_way) == 2
    assert under_way == set(at.service.living)
