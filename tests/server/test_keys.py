from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from sqlalchemy import event

from core.runs import Gated, forever, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Price, Sampling
from rl_conductor_server.auth.budgets import period_start
from rl_conductor_server.auth.created_keys import KeyTerms
from rl_conductor_server.auth.key_secrets import generate_key, hash_key
from rl_conductor_server.auth.keys import ApiKey
from rl_conductor_server.auth.rate_limit import MAX_ADDRESSES, MAX_FAILURES, FailedAuthLimiter
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry, Period
from rl_conductor_server.store import NewRun, Store
from server.conftest import ONE_STEP, Serve, hang_up, usage_of_key

ASKED: list[Any] = [{"role": "user", "content": "Say something."}]
ASK: Any = {"model": "conductor-mini", "messages": ASKED}
KEYS = {"red": {"sha256": hash_key("key-of-red")}, "blue": {"sha256": hash_key("key-of-blue")}}
CENT_A_CALL = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def priced(price: Price = CENT_A_CALL) -> tuple[WorkerPool, ScriptedModel]:
    """A pool of one and a planner, whose calls cost the same."""
    sampling = Sampling(max_tokens=1)
    pool = WorkerPool([Worker.of(name, ScriptedModel("said", price=price), sampling=sampling) for name in "ab"])
    return pool, ScriptedModel(ONE_STEP, price=price)


async def test_both_vendors_authentication_headers_are_accepted(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    with pytest.raises(openai.AuthenticationError, match="no such API key"):
        await at.openai("wrong").chat.completions.create(**ASK)
    with pytest.raises(anthropic.AuthenticationError, match="no such API key"):
        await at.anthropic("wrong").messages.create(**ASK, max_tokens=10)
    nothing_sent = await at.http.post("/v1/chat/completions", json=ASK)
    assert "no API key was sent" in nothing_sent.json()["error"]["message"]
    bare = await at.http.post("/v1/chat/completions", json=ASK, headers={"authorization": "key-of-red"})
    assert "does not begin with 'Bearer', so no API key was found" in bare.json()["error"]["message"]
    assert (await at.openai("key-of-red").chat.completions.create(**ASK)).choices[0].message.content == "from a"
    assert (await at.anthropic("key-of-blue").messages.create(**ASK, max_tokens=10)).content
    assert (await at.http.get("/v1/models")).status_code == 401


async def test_a_key_can_not_read_runs_of_another_key(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    raw = await at.openai("key-of-red").chat.completions.with_raw_response.create(**ASK)
    run = raw.headers["x-conductor-run"]
    await at.service.store.write_queue.flush()
    red, blue = ({"authorization": f"Bearer key-of-{name}"} for name in ("red", "blue"))
    assert (await at.http.get(f"/v1/runs/{run}", headers=red)).json()["trace"]["id"] == run
    assert (await at.http.get(f"/v1/runs/{run}", headers=blue)).status_code == 404


async def test_idempotency_keys_are_scoped_to_the_api_key(serve: Serve) -> None:
    a = ScriptedModel("from a")
    at = await serve({"a": a}, keys=KEYS)
    for key in ("key-of-red", "key-of-blue"):
        await at.openai(key).chat.completions.create(**ASK, extra_headers={"idempotency-key": "1"})
    assert len(a.requests) == 2


async def test_a_key_of_an_unknown_model_is_an_error(serve: Serve) -> None:
    with pytest.raises(ConfigError, match=r"keys\.red\.models: there is no model 'house'; write one of conductor-mini"):
        await serve(keys={"red": KEYS["red"] | {"models": ["house"]}})
    at = await serve(keys=KEYS, admins={"admin": {"sha256": hash_key("key-of-admin")}})
    body = {"name": "green", "models": ["conductor-nano"]}
    created = await at.http.post("/admin/keys", json=body, headers={"authorization": "Bearer key-of-admin"})
    assert created.status_code == 400
    assert "models: there is no model 'conductor-nano'" in created.json()["error"]["message"]


@pytest.mark.parametrize("table", ["keys", "admins"])
async def test_the_settings_can_not_name_a_key_like_the_built_in_one(serve: Serve, table: str) -> None:
    with pytest.raises(ConfigError, match=rf"{table}\.local: this name is reserved; choose another"):
        await serve(**{table: {"local": {"sha256": hash_key("key-of-red")}}})


async def test_a_key_has_access_to_its_models_only(serve: Serve) -> None:
    at = await serve(keys={"red": KEYS["red"] | {"models": ["conductor-mini"]}})
    client = at.openai("key-of-red")
    assert [model.id async for model in client.models.list()] == ["conductor-mini", "conductor-mini-2026-11-21"]
    with pytest.raises(openai.PermissionDeniedError, match="no access to model 'conductor-ultra'"):
        await client.chat.completions.create(**ASK | {"model": "conductor-ultra"})
    assert await client.chat.completions.create(**ASK)


async def test_a_request_above_the_rate_limit_gets_retry_after(serve: Serve) -> None:
    at = await serve(keys={"red": KEYS["red"] | {"requests_per_minute": 2}})
    client = at.openai("key-of-red")
    for _ in range(2):
        await client.chat.completions.create(**ASK)
    with pytest.raises(openai.RateLimitError, match="2 requests a minute") as caught:
        await client.chat.completions.create(**ASK)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30


async def test_failed_authentication_is_rate_limited_and_a_valid_key_is_not(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    guesses = [await at.http.get("/v1/runs/x", headers={"x-api-key": f"guess-{n}"}) for n in range(MAX_FAILURES + 1)]
    assert [reply.status_code for reply in guesses] == [401] * MAX_FAILURES + [429]
    assert 1 <= int(guesses[-1].headers["retry-after"]) <= 60 / MAX_FAILURES
    assert (await at.http.get("/metrics", headers={"x-api-key": "guess"})).status_code == 429
    with pytest.raises(openai.RateLimitError, match="too many invalid keys"):
        await at.openai("wrong").chat.completions.create(**ASK)
    assert await at.openai("key-of-red").chat.completions.create(**ASK)


async def test_after_too_many_failures_even_the_correct_administrator_key_is_rejected(serve: Serve) -> None:
    at = await serve(keys=KEYS, admins={"admin": {"sha256": hash_key("admin")}})
    for guess in range(MAX_FAILURES):
        assert (await at.http.get("/admin/runs", headers={"x-api-key": str(guess)})).status_code == 401
    refused = await at.http.get("/admin/runs", headers={"x-api-key": "admin"})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


def test_failures_are_counted_by_ipv4_address_and_ipv6_network() -> None:
    failures = FailedAuthLimiter()
    for host in range(MAX_FAILURES):
        failures.record_failure(f"2001:db8::{host:x}")
    with pytest.raises(ApiError, match="too many invalid keys"):
        failures.check("2001:db8::ffff")
    failures.check("2001:db8:0:1::1")
    failures.check("10.0.0.1")


def test_the_number_of_addresses_in_memory_is_bounded() -> None:
    failures = FailedAuthLimiter()
    for number in range(MAX_ADDRESSES + 5):
        failures.record_failure(f"host-{number}")
    assert len(failures._buckets) == MAX_ADDRESSES


async def test_requests_are_rejected_once_the_budget_is_used_up(serve: Serve) -> None:
    pool, planner = priced()
    at = await serve(pool, planner, keys={"red": KEYS["red"] | {"usd": "0.05"}})
    client = at.openai("key-of-red")
    raw = [await client.chat.completions.with_raw_response.create(**ASK) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match=r"\$0.00 is left of this key's budget") as caught:
        await client.chat.completions.create(**ASK)
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    await at.service.store.write_queue.flush()
    assert [reply.headers["x-conductor-cost-usd"] for reply in raw] == ["0.02", "0.02"]
    assert (await usage_of_key(at.service.store, "red")).cost == Decimal("0.05")


@pytest.mark.parametrize("limits", [{"tokens": 5}, {"usd": "0.01"}], ids=str)
async def test_a_limit_of_the_request_is_not_reported_as_the_budget_of_its_key(
    serve: Serve, limits: dict[str, Any]
) -> None:
    pool, planner = priced()
    at = await serve(pool, planner, keys={"red": KEYS["red"] | {"usd": "50"}})
    with pytest.raises(openai.BadRequestError, match=f"limits.{next(iter(limits))}") as caught:
        await at.openai("key-of-red").chat.completions.create(**ASK, extra_body={"conductor": {"limits": limits}})
    assert caught.value.code == "limit_exceeded"


async def test_the_budget_of_a_key_is_named_for_a_call_of_a_conductor_in_the_pool_too(serve: Serve) -> None:
    pool, planner = priced()
    nested = WorkerPool([Worker.of(name, Conductor(planner, pool)) for name in "ab"])
    at = await serve(nested, ScriptedModel(ONE_STEP), keys={"red": KEYS["red"] | {"usd": "0.01"}})
    with pytest.raises(openai.RateLimitError, match=r"\$0.00 is left of this key's budget") as caught:
        await at.openai("key-of-red").chat.completions.create(**ASK)
    assert caught.value.code == "insufficient_quota"


async def test_a_call_without_a_price_is_no_matter_of_a_larger_budget(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel("said", price=None)}, keys={"red": KEYS["red"] | {"usd": "5"}})
    with pytest.raises(openai.BadRequestError, match=r"in US dollars, but the price of .* is unknown") as caught:
        await at.openai("key-of-red").chat.completions.create(**ASK)
    assert caught.value.code == "price_unknown"


async def test_the_log_names_the_models_whose_calls_the_budget_of_a_key_refuses(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    workers = {"free": ScriptedModel("said"), "unknown": ScriptedModel("said", name="x", price=None)}
    planner = ScriptedModel(ONE_STEP, name="y", price=None)
    keys = {"red": KEYS["red"] | {"usd": "5"}, "blue": KEYS["blue"] | {"tokens": 5}}
    await serve(workers, planner, keys=keys)
    (warning,) = [record.message for record in caplog.records if "price" in record.message]
    assert "of red refuses the calls of unknown (scripted:x), the planner scripted:y, as their price" in warning


async def test_a_key_whose_models_all_have_a_price_leaves_no_warning(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    pool, planner = priced()
    await serve(pool, planner, keys={"red": KEYS["red"] | {"usd": "5"}})
    assert "price" not in caplog.text


async def test_the_error_of_a_key_without_budget_says_what_the_call_needs(serve: Serve) -> None:
    pool, planner = priced()
    at = await serve(pool, planner, keys={"red": KEYS["red"] | {"tokens": 5}})
    with pytest.raises(openai.RateLimitError, match="5 tokens are left of this key's budget, but the next call may"):
        await at.openai("key-of-red").chat.completions.create(**ASK)


async def test_a_budget_counts_what_other_processes_spent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = await Store.open(url), await Store.open(url)
    entry = KeyEntry(sha256=hash_key("k"), usd=Decimal(1), per="ever")
    account = ApiKey("red", entry, ours)
    budget = await account.current(ours.now())
    assert budget is not None
    await spend(theirs, "red", Decimal("0.4"))
    account.return_unused()
    assert await account.current(ours.now()) is budget
    assert budget.spent_in_total.usd == Decimal("0.4")
    await spend(theirs, "red", Decimal("0.7"))
    account.return_unused()
    with pytest.raises(ApiError, match="used up"):
        await account.current(ours.now())
    for store in (ours, theirs):
        await store.aclose()


async def test_concurrent_requests_after_a_restart_see_earlier_spending(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = await Store.open(url), await Store.open(url)
    await spend(theirs, "red", Decimal("1.1"))
    account = ApiKey("red", KeyEntry(sha256=hash_key("k"), usd=Decimal(1), per="ever"), ours)
    outcomes = await asyncio.gather(*(account.current(ours.now()) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ApiError] * 5
    for store in (ours, theirs):
        await store.aclose()


async def spend(store: Store, key: str, usd: Decimal) -> None:
    """Put a finished run of this cost on record."""
    price = Price(input=Decimal(0), output=Decimal(0), per_call=usd)
    pool = pool_of(a=ScriptedModel("said", price=price))
    trace = await Conductor(ScriptedModel(plan((0, "Say it.", []))), pool).run("Say something.")
    run = NewRun(id=f"run-{usd}", key=key, digest="d", api="chat", model="m", created=time.time())
    store.begin_run(run)
    store.finish_run(run.id, trace, "done", charged=Amount.of(trace.usage))
    await store.write_queue.flush()


async def test_only_the_administrator_sees_all_keys_and_runs(serve: Serve) -> None:
    at = await serve(
        keys=KEYS | {"red": KEYS["red"] | {"usd": "5"}}, admins={"admin": {"sha256": hash_key("key-of-admin")}}
    )
    await at.openai("key-of-blue").chat.completions.create(**ASK, metadata={"team": "blue"})
    await at.service.store.write_queue.flush()
    admin = {"authorization": "Bearer key-of-admin"}
    for path in ("/admin/keys", "/admin/runs", "/admin/runs/run-0"):
        assert (await at.http.get(path, headers={"authorization": "Bearer key-of-red"})).status_code == 401
    accounts = (await at.http.get("/admin/keys", headers=admin)).json()["data"]
    assert [(one["name"], one["spent_usd"]) for one in accounts] == [("red", "0"), ("blue", "0")]
    assert [one["charged_tokens"] > 0 for one in accounts] == [False, True]
    assert accounts[0]["charged_usd"] == "0"
    assert "sha256" not in accounts[0]
    (run,) = (await at.http.get("/admin/runs?key=blue", headers=admin)).json()["data"]
    assert (await at.http.get("/admin/runs?user=zoe", headers=admin)).json()["data"] == []
    assert (await at.http.get("/admin/runs?usr=zoe", headers=admin)).status_code == 400
    assert "cached_tokens" not in run["usage"]
    assert run["labels"] == {"team": "blue"}
    assert (await at.http.get(f"/admin/runs/{run['id']}", headers=admin)).json()["trace"]["id"] == run["id"]


async def test_the_spending_of_many_keys_is_read_at_once(serve: Serve) -> None:
    keys: dict[str, Any] = {f"key-{number}": {"sha256": hash_key(str(number)), "usd": "5"} for number in range(50)}
    keys["daily"] = {"sha256": hash_key("of-daily"), "usd": "5", "per": "day"}
    at = await serve(keys=keys, admins={"admin": {"sha256": hash_key("key-of-admin")}})
    for key in ("7", "of-daily"):
        await at.openai(key).chat.completions.create(**ASK)
    await at.service.store.write_queue.flush()
    queries: list[str] = []
    engine = at.service.store._reader._engine.sync_engine

    def count(*arguments: Any) -> None:
        queries.append(arguments[2])

    event.listen(engine, "before_cursor_execute", count)
    accounts = (await at.http.get("/admin/keys", headers={"authorization": "Bearer key-of-admin"})).json()["data"]
    event.remove(engine, "before_cursor_execute", count)
    assert len(accounts) == 51
    assert {one["name"] for one in accounts if one["charged_tokens"]} == {"key-7", "daily"}
    assert len([query for query in queries if "SELECT" in query]) <= 8


async def test_admin_endpoints_are_disabled_without_an_administrator_key(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    assert (await at.http.get("/admin/keys", headers={"authorization": "Bearer key-of-red"})).status_code == 404


async def test_no_key_appears_in_logs_traces_the_store_or_errors(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    a = Gated("never", forever)
    at = await serve({"a": a}, keys=KEYS)
    await hang_up(at.openai("key-of-red").chat.completions.create(**ASK), once=a.asked)
    wrong = await at.http.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer key-of-red"})
    await at.service.store.write_queue.flush()
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*"))  # noqa: ASYNC240
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("rl_conductor"))
    assert b"key-of-red" not in kept
    assert "key-of-red" not in wrong.text + ours + repr(at.service.keys.__dict__)


def test_generated_keys_are_random_and_match_their_hash() -> None:
    (key, sha256), (other, _) = generate_key(), generate_key()
    assert key != other
    assert len(key) > 40
    assert hash_key(key) == sha256


@pytest.mark.parametrize(
    ("per", "start"),
    [("day", "2026-11-22T00:00+00:00"), ("month", "2026-11-01T00:00+00:00"), ("ever", "1970-01-01T00:00+00:00")],
)
def test_periods_begin_at_midnight_and_on_the_first(per: Period, start: str) -> None:
    now = datetime.fromisoformat("2026-11-22T23:59:59+00:00").timestamp()
    assert period_start(per, now) == datetime.fromisoformat(start).timestamp()


async def test_an_error_lists_only_models_that_the_key_has_access_to(serve: Serve) -> None:
    keys = {"red": {"sha256": hash_key("key-of-red"), "models": ["conductor-mini"]}}
    at = await serve(keys=keys, models={"of-another-customer": {"released": "2026-01-01"}})
    client = at.openai("key-of-red")
    with pytest.raises(openai.NotFoundError, match=r"no model 'x'; available models: conductor-mini$") as caught:
        await client.models.retrieve("x")
    assert "customer" not in str(caught.value)
    with pytest.raises(openai.NotFoundError, match=r"available models: conductor-mini$"):
        await client.chat.completions.create(model="x" * 300, messages=[{"role": "user", "content": "Say it."}])


async def test_wrong_keys_from_the_address_of_a_proxy_do_not_lock_out_a_generated_admin_key(serve: Serve) -> None:
    secret, sha256 = generate_key()
    at = await serve(admins={"ada": {"sha256": sha256}, "bob": {"sha256": hash_key("weak")}})

    async def status(key: str) -> int:
        return (await at.http.get("/admin/keys", headers={"authorization": f"Bearer {key}"})).status_code

    assert [await status("guess") for _ in range(MAX_FAILURES + 1)] == [401] * MAX_FAILURES + [429]
    assert [await status(key) for key in ("weak", secret, f"rlc_{'x' * 43}")] == [429, 200, 429]


async def test_only_administrators_and_keys_for_it_read_the_metrics_of_all_keys(serve: Serve) -> None:
    scraper = {"scraper": {"sha256": hash_key("key-of-scraper"), "tokens": 0, "metrics": True}}
    at = await serve(keys=KEYS | scraper, admins={"admin": {"sha256": hash_key("the-key-of-the-admin")}})
    statuses = {
        key: (await at.http.get("/metrics", headers={"x-api-key": key})).status_code
        for key in ("key-of-red", "key-of-scraper", "the-key-of-the-admin", "wrong", "")
    }
    assert statuses == {
        "key-of-red": 403,
        "key-of-scraper": 200,
        "the-key-of-the-admin": 200,
        "wrong": 401,
        "": 401,
    }
    reply = (await at.http.get("/metrics", headers={"x-api-key": "key-of-red"})).json()["error"]
    assert reply["code"] == "metrics_not_allowed"
    assert "keys create prometheus --metrics" in reply["message"]
    assert (await at.http.get("/v1/runs/x", headers={"x-api-key": "the-key-of-the-admin"})).status_code == 401


async def test_a_key_for_metrics_is_created_at_run_time(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    secret = await at.service.keys.create("prometheus", KeyTerms(tokens=0, metrics=True))
    other = await at.service.keys.create("team", KeyTerms())
    statuses = [(await at.http.get("/metrics", headers={"x-api-key": key})).status_code for key in (secret, other)]
    assert statuses == [200, 403]
