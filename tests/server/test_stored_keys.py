"""API keys and administrators that are created, rotated and revoked while servers run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from core.runs import SOON
from rl_conductor_server.auth.created_keys import KeyTerms, create_key, revoke_key
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import Store, StoredKey
from rl_conductor_server.store.clock import DatabaseClock
from server.conftest import At, Serve

ASK: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
ROOT = {"authorization": "Bearer key-of-root"}
SETTINGS: Any = {
    "admins": {"admin": {"sha256": hash_key("key-of-root")}},
    "keys": {"red": {"sha256": hash_key("key-of-red")}},
}


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the database's clock forward, by seconds."""
    now = DatabaseClock.now
    return lambda seconds: monkeypatch.setattr(DatabaseClock, "now", lambda clock: now(clock) + seconds)


async def create(at: At, name: str = "blue", **terms: Any) -> str:
    reply = await at.http.post("/admin/keys", json={"name": name, **terms}, headers=ROOT)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["key"])


async def ask(at: At, key: str) -> Any:
    return await at.openai(key).chat.completions.create(**ASK)


async def test_a_created_key_works_at_once_with_its_limits_and_is_stored_as_a_hash(
    serve: Serve, tmp_path: Path
) -> None:
    at = await serve(**SETTINGS)
    key = await create(at, models=["conductor-mini"], requests_per_minute=2)
    await ask(at, key)
    with pytest.raises(openai.PermissionDeniedError):
        await at.openai(key).chat.completions.create(**ASK | {"model": "conductor-ultra"})
    with pytest.raises(openai.RateLimitError, match="limited to 2 requests"):
        await ask(at, key)
    await ask(at, "key-of-red")
    listed = {row["name"]: row for row in (await at.http.get("/admin/keys", headers=ROOT)).json()["data"]}
    assert listed.keys() == {"red", "blue"}
    assert listed["blue"]["requests_per_minute"] == 2
    await at.service.store.write_queue.flush()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*"))  # noqa: ASYNC240
    assert hash_key(key).encode() in stored
    assert key.encode() not in stored


async def test_a_budget_goes_on_when_the_key_is_rotated(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    old = await create(at, tokens=0)
    with pytest.raises(openai.RateLimitError, match="budget of 0 tokens"):
        await ask(at, old)
    new = (await at.http.post("/admin/keys/blue/rotate", json={}, headers=ROOT)).json()["key"]
    with pytest.raises(openai.AuthenticationError):
        await ask(at, old)
    with pytest.raises(openai.RateLimitError, match="budget of 0 tokens"):
        await ask(at, new)


async def test_the_old_secret_of_a_rotated_key_is_valid_for_the_time_of_grace(
    serve: Serve, advance: Callable[[float], None]
) -> None:
    at = await serve(**SETTINGS)
    old = await create(at)
    new = (await at.http.post("/admin/keys/blue/rotate", json={"grace_seconds": 600}, headers=ROOT)).json()["key"]
    assert await ask(at, old)
    assert await ask(at, new)
    advance(601)
    with pytest.raises(openai.AuthenticationError, match="has expired"):
        await ask(at, old)
    assert await ask(at, new)


async def test_a_key_expires(serve: Serve, advance: Callable[[float], None]) -> None:
    at = await serve(**SETTINGS)
    key = await create(at, expires_in_days=2)
    advance(86_400)
    assert await ask(at, key)
    advance(3 * 86_400)
    with pytest.raises(openai.AuthenticationError, match="this API key has expired"):
        await ask(at, key)


async def test_a_wrong_clock_of_the_machine_ends_neither_keys_nor_sign_ins(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve(**SETTINGS)
    key = await create(at, expires_in_days=2)
    signed_in = await at.http.post("/sign-in", data={"key": "key-of-root"}, headers={"origin": at.url})
    cookie = {"cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    monkeypatch.setattr(time, "time", lambda true_time=time.time: true_time() + 10 * 86_400)
    assert await ask(at, key)
    assert (await at.http.get("/", headers=cookie)).status_code == 200
    assert (await at.http.post("/admin/keys/blue/rotate", json={"grace_seconds": 600}, headers=ROOT)).json()["key"]
    assert await ask(at, key)


async def test_a_revoked_key_is_rejected_by_other_servers_within_seconds(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    key = await create(at)
    store = await Store.open(at.service.settings.store.url)
    await revoke_key(store, "blue")
    await store.aclose()
    async with asyncio.timeout(SOON):
        while (await at.http.get("/v1/models", headers={"x-api-key": key})).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await ask(at, "key-of-red")


async def test_a_server_whose_last_key_was_revoked_stays_closed(serve: Serve) -> None:
    at = await serve(admins={"admin": {"sha256": hash_key("key-of-root")}})
    assert await ask(at, "anything")
    await create(at)
    assert (await at.http.get("/v1/models")).status_code == 401
    assert (await at.http.delete("/admin/keys/blue", headers=ROOT)).json()["revoked"]
    assert (await at.http.get("/v1/models")).status_code == 401
    again = await serve()
    assert (await again.http.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("red", "a name of the settings"),
        ("local", "reserved"),
        ("blue", "exists, or existed and was revoked"),
        ("a b", "name"),
    ],
)
async def test_a_name_means_one_key_for_ever(serve: Serve, name: str, message: str) -> None:
    at = await serve(**SETTINGS)
    await create(at)
    await at.http.delete("/admin/keys/blue", headers=ROOT)
    reply = await at.http.post("/admin/keys", json={"name": name}, headers=ROOT)
    assert reply.status_code == 400
    assert message in reply.text


@pytest.mark.parametrize("name", ["green", "red"])
async def test_a_key_that_the_store_has_not_is_not_found(serve: Serve, name: str) -> None:
    at = await serve(**SETTINGS)
    revoked = await at.http.delete(f"/admin/keys/{name}", headers=ROOT)
    rotated = await at.http.post(f"/admin/keys/{name}/rotate", json={}, headers=ROOT)
    for reply in (revoked, rotated):
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "key_not_found"
        assert f"the store has no valid key '{name}'" in reply.json()["error"]["message"]


async def test_a_key_that_is_refused_at_admin_endpoints_hears_why(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    blue, ann = await create(at), await create(at, "ann", admin=True)
    await at.http.delete("/admin/keys/ann", headers=ROOT)

    async def refusal(**headers: str) -> str:
        refused = await at.http.get("/admin/keys", headers=headers)
        assert refused.status_code == 401
        return str(refused.json()["error"]["message"])

    for key in (blue, "key-of-red"):
        assert await refusal(authorization=f"Bearer {key}") == (
            "this is an API key, for requests; send an administrator's key"
        )
    assert await refusal(authorization=f"Bearer {ann}") == "this administrator's key was revoked"
    assert await refusal(authorization="Bearer x") == "invalid administrator key"
    assert (await refusal()).startswith("no administrator's key was sent; send one as 'Authorization: Bearer KEY'")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"usd": "1e300"}, "usd must be less than or equal to 1000000000"),
        ({"usd": "1e-300"}, "usd must have no more than 12 decimal places"),
        ({"tokens": 10**30}, "tokens must be less than or equal to"),
        ({"requests_per_minute": 10**30}, "requests_per_minute must be less than or equal to"),
        ({"cache_seconds": 10**30}, "cache_seconds must be less than or equal to"),
    ],
)
async def test_limits_of_a_key_that_could_not_be_enforced_are_rejected(
    serve: Serve, terms: dict[str, Any], message: str
) -> None:
    at = await serve(**SETTINGS)
    reply = await at.http.post("/admin/keys", json={"name": "blue", **terms}, headers=ROOT)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(terms)))
    assert message in reply.text


async def test_the_largest_limits_of_a_key_can_be_enforced(serve: Serve) -> None:
    at = await serve(**SETTINGS)
    terms = {"usd": "1e9", "tokens": 10**15, "requests_per_minute": 10**6, "cache_seconds": 10**9}
    secret = (await at.http.post("/admin/keys", json={"name": "blue", **terms}, headers=ROOT)).json()["key"]
    body = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say it."}]}
    for expected in ("miss", "hit"):
        reply = await at.http.post("/v1/chat/completions", json=body, headers={"x-api-key": secret})
        assert (reply.status_code, reply.headers["x-conductor-cache"]) == (200, expected)


async def test_several_administrators_have_keys_of_their_own(serve: Serve) -> None:
    at = await serve(admins=SETTINGS["admins"] | {"ann": {"sha256": hash_key("key-of-ann")}}, keys=SETTINGS["keys"])
    bob = {"authorization": f"Bearer {await create(at, 'bob', admin=True)}"}
    listed = (await at.http.get("/admin/keys", headers=bob)).json()
    assert listed["administrators"] == ["admin", "ann", "bob"]
    assert (await at.http.get("/v1/models", headers=bob)).status_code == 401
    signed_in = await at.http.post(
        "/sign-in", data={"key": bob["authorization"].split()[1]}, headers={"origin": at.url}
    )
    assert signed_in.status_code == 303
    assert (await at.http.get("/")).status_code == 200
    ann = {"authorization": "Bearer key-of-ann"}
    assert (await at.http.delete("/admin/keys/bob", headers=ann)).status_code == 200
    assert (await at.http.get("/admin/keys", headers=bob)).status_code == 401
    assert (await at.http.get("/", headers={"accept": "text/html"})).status_code == 303


async def test_a_key_in_the_store_allows_a_server_that_others_can_reach(serve: Serve, tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}")
    key = await create_key(store, "blue", KeyTerms())
    await store.aclose()
    at = await serve()
    foreign = {"host": "conductor.example.com"}
    assert (await at.http.get("/v1/models", headers=foreign)).status_code == 401
    assert (await at.http.get("/v1/models", headers={**foreign, "x-api-key": key})).status_code == 200


async def test_a_key_with_settings_of_a_newer_release_is_rejected_and_others_are_not(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    at = await serve(**SETTINGS)
    key = await create(at)
    now = time.time()
    newer = StoredKey(sha256=hash_key("key-of-x"), name="x", admin=False, entry='{"region": "eu"}', created=now)
    assert await at.service.store.keys.add(newer)
    await at.service.keys.refresh()
    assert await ask(at, key)
    with pytest.raises(openai.AuthenticationError):
        await ask(at, "key-of-x")
    assert "the key 'x' is rejected, as its settings are of another release: region" in caplog.text
