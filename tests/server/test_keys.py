from __future__ import annotations

import asyncio
import logging
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from core.runs import Gated, forever, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Price, Sampling
from rl_conductor_server.auth.budgets import period_start
from rl_conductor_server.auth.keys import Account, hashed, new_key
from rl_conductor_server.auth.rate_limit import ADDRESSES, WRONG_KEYS, Guesses
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry
from rl_conductor_server.store import NewRun, Store
from server.conftest import ONE_STEP, Serve, hang_up

ASKED: list[Any] = [{"role": "user", "content": "Say something."}]
ASK: Any = {"model": "conductor-mini", "messages": ASKED}
KEYS = {"red": {"sha256": hashed("key-of-red")}, "blue": {"sha256": hashed("key-of-blue")}}
CENT_A_CALL = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def priced(price: Price = CENT_A_CALL) -> tuple[WorkerPool, ScriptedModel]:
    """A pool of one and a planner, whose calls cost the same."""
    sampling = Sampling(max_tokens=1)
    pool = WorkerPool([Worker.of(name, ScriptedModel("said", price=price), sampling=sampling) for name in "ab"])
    return pool, ScriptedModel(ONE_STEP, price=price)


async def test_a_key_is_asked_for_in_either_vendors_manner(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    with pytest.raises(openai.AuthenticationError, match="no such API key"):
        await at.openai("wrong").chat.completions.create(**ASK)
    with pytest.raises(anthropic.AuthenticationError, match="no such API key"):
        await at.anthropic("wrong").messages.create(**ASK, max_tokens=10)
    assert (await at.openai("key-of-red").chat.completions.create(**ASK)).choices[0].message.content == "from a"
    assert (await at.anthropic("key-of-blue").messages.create(**ASK, max_tokens=10)).content
    assert (await at.http.get("/v1/models")).status_code == 401


async def test_nobody_sees_or_continues_a_run_of_another_key(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    raw = await at.openai("key-of-red").chat.completions.with_raw_response.create(**ASK)
    run = raw.headers["x-conductor-run"]
    await at.service.store.journal.flush()
    red, blue = ({"authorization": f"Bearer key-of-{name}"} for name in ("red", "blue"))
    assert (await at.http.get(f"/v1/runs/{run}", headers=red)).json()["trace"]["id"] == run
    assert (await at.http.get(f"/v1/runs/{run}", headers=blue)).status_code == 404


async def test_the_same_name_of_two_keys_is_two_requests(serve: Serve) -> None:
    a = ScriptedModel("from a")
    at = await serve({"a": a}, keys=KEYS)
    for key in ("key-of-red", "key-of-blue"):
        await at.openai(key).chat.completions.create(**ASK, extra_headers={"idempotency-key": "1"})
    assert len(a.requests) == 2


async def test_a_key_may_ask_only_its_models(serve: Serve) -> None:
    at = await serve(keys={"red": KEYS["red"] | {"models": ["conductor-mini"]}})
    client = at.openai("key-of-red")
    assert [model.id async for model in client.models.list()] == ["conductor-mini", "conductor-mini-2026-11-21"]
    with pytest.raises(openai.PermissionDeniedError, match="may not ask 'conductor-ultra'"):
        await client.chat.completions.create(**ASK | {"model": "conductor-ultra"})
    assert await client.chat.completions.create(**ASK)


async def test_who_asks_too_often_is_told_when_to_come_back(serve: Serve) -> None:
    at = await serve(keys={"red": KEYS["red"] | {"requests_per_minute": 2}})
    client = at.openai("key-of-red")
    for _ in range(2):
        await client.chat.completions.create(**ASK)
    with pytest.raises(openai.RateLimitError, match="2 times a minute") as caught:
        await client.chat.completions.create(**ASK)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30


async def test_who_guesses_keys_is_told_when_to_come_back_and_who_has_one_is_not(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    guesses = [await at.http.get("/v1/runs/x", headers={"x-api-key": f"guess-{n}"}) for n in range(WRONG_KEYS + 1)]
    assert [reply.status_code for reply in guesses] == [401] * WRONG_KEYS + [429]
    assert 1 <= int(guesses[-1].headers["retry-after"]) <= 60 / WRONG_KEYS
    assert (await at.http.get("/metrics", headers={"x-api-key": "guess"})).status_code == 429
    with pytest.raises(openai.RateLimitError, match="too many wrong keys"):
        await at.openai("wrong").chat.completions.create(**ASK)
    assert await at.openai("key-of-red").chat.completions.create(**ASK)


async def test_after_too_many_guesses_not_even_the_administrators_key_is_heard(serve: Serve) -> None:
    at = await serve(keys=KEYS, admin_sha256=hashed("admin"))
    for guess in range(WRONG_KEYS):
        assert (await at.http.get("/admin/runs", headers={"x-api-key": str(guess)})).status_code == 401
    refused = await at.http.get("/admin/runs", headers={"x-api-key": "admin"})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


def test_addresses_are_counted_apart_and_ipv6_by_its_network() -> None:
    guesses = Guesses()
    for host in range(WRONG_KEYS):
        guesses.wrong(f"2001:db8::{host:x}")
    with pytest.raises(ApiError, match="too many wrong keys"):
        guesses.check("2001:db8::ffff")
    guesses.check("2001:db8:0:1::1")
    guesses.check("10.0.0.1")


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    guesses = Guesses()
    for number in range(ADDRESSES + 5):
        guesses.wrong(f"host-{number}")
    assert len(guesses._rates) == ADDRESSES


async def test_a_used_up_budget_ends_the_service_and_not_before(serve: Serve) -> None:
    pool, planner = priced()
    at = await serve(pool, planner, keys={"red": KEYS["red"] | {"usd": "0.05"}})
    client = at.openai("key-of-red")
    raw = [await client.chat.completions.with_raw_response.create(**ASK) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match=r"\$0.00 is left of this key's budget") as caught:
        await client.chat.completions.create(**ASK)
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    await at.service.store.journal.flush()
    assert [reply.headers["x-conductor-cost-usd"] for reply in raw] == ["0.02", "0.02"]
    assert (await at.service.store.spent("red", since=0)).cost == Decimal("0.05")


async def test_a_budget_counts_what_other_processes_spent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = await Store.open(url), await Store.open(url)
    entry = KeyEntry(sha256=hashed("k"), usd=Decimal(1), per="ever")
    account = Account("red", entry, ours)
    budget = await account.budget()
    assert budget is not None
    await spend(theirs, "red", Decimal("0.4"))
    await account.refresh()
    assert budget.spent.usd == Decimal("0.4")
    await spend(theirs, "red", Decimal("0.7"))
    await account.refresh()
    with pytest.raises(ApiError, match="used up"):
        await account.budget()
    for store in (ours, theirs):
        await store.aclose()


async def test_requests_that_come_at_once_after_a_restart_all_see_what_was_spent_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = await Store.open(url), await Store.open(url)
    await spend(theirs, "red", Decimal("1.1"))
    account = Account("red", KeyEntry(sha256=hashed("k"), usd=Decimal(1), per="ever"), ours)
    outcomes = await asyncio.gather(*(account.budget() for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ApiError] * 5
    for store in (ours, theirs):
        await store.aclose()


async def spend(store: Store, key: str, usd: Decimal) -> None:
    """Put a finished run of this cost on record."""
    price = Price(input=Decimal(0), output=Decimal(0), per_call=usd)
    pool = pool_of(a=ScriptedModel("said", price=price))
    trace = await Conductor(ScriptedModel(plan((0, "Say it.", []))), pool).run("Say something.")
    run = NewRun(id=f"run-{usd}", key=key, digest="d", api="chat", model="m", created=time.time())
    store.begin(run)
    store.finish(run.id, trace, "done", charged=Amount.of(trace.usage))
    await store.journal.flush()


async def test_only_the_administrator_sees_accounts_and_all_runs(serve: Serve) -> None:
    at = await serve(keys=KEYS | {"red": KEYS["red"] | {"usd": "5"}}, admin_sha256=hashed("key-of-admin"))
    await at.openai("key-of-blue").chat.completions.create(**ASK, metadata={"team": "blue"})
    await at.service.store.journal.flush()
    admin = {"authorization": "Bearer key-of-admin"}
    for path in ("/admin/keys", "/admin/runs", "/admin/runs/run-0"):
        assert (await at.http.get(path, headers={"authorization": "Bearer key-of-red"})).status_code == 401
    accounts = (await at.http.get("/admin/keys", headers=admin)).json()["data"]
    assert [(one["name"], one["spent_usd"]) for one in accounts] == [("red", "0"), ("blue", "0")]
    assert "sha256" not in accounts[0]
    (run,) = (await at.http.get("/admin/runs?key=blue", headers=admin)).json()["data"]
    assert run["labels"] == {"team": "blue"}
    assert (await at.http.get(f"/admin/runs/{run['id']}", headers=admin)).json()["trace"]["id"] == run["id"]


async def test_without_an_administrators_key_there_is_no_such_thing(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    assert (await at.http.get("/admin/keys", headers={"authorization": "Bearer key-of-red"})).status_code == 404


async def test_no_key_is_written_to_log_trace_store_or_error(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    a = Gated("never", forever)
    at = await serve({"a": a}, keys=KEYS)
    await hang_up(at.openai("key-of-red").chat.completions.create(**ASK), once=a.asked)
    wrong = await at.http.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer key-of-red"})
    await at.service.store.aclose()
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*"))  # noqa: ASYNC240
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("rl_conductor"))
    assert b"key-of-red" not in kept
    assert "key-of-red" not in wrong.text + ours + repr(at.service.keys.__dict__)


def test_a_new_key_is_random_and_its_hash_is_its_own() -> None:
    (key, sha256), (other, _) = new_key(), new_key()
    assert key != other
    assert len(key) > 40
    assert hashed(key) == sha256


def test_periods_begin_at_midnight_and_on_the_first() -> None:
    day, month = time.gmtime(period_start("day")), time.gmtime(period_start("month"))
    assert (day.tm_hour, day.tm_min, day.tm_mday) == (0, 0, time.gmtime().tm_mday)
    assert (month.tm_mday, month.tm_hour) == (1, 0)
    assert period_start("ever") == 0
