"""Tests of the sign-in at an OpenID Connect provider, which runs on the loopback interface."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import AsyncGenerator
from html import unescape
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest
from pydantic import ValidationError

from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.auth.id_token import find_claim
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.settings import OidcEntry, PeopleEntry
from rl_conductor_server.web.sign_in import COOKIE, LOGIN_COOKIE
from server.chat_requests import post
from server.conftest import At, Serve
from server.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    KEY,
    NEXT_KEY,
    OTHER_KEY,
    UNSIGNED,
    Provider,
    provider_running,
)
from server.pages import ADMIN, GUARDED, ask

BROWSER = {"accept": "text/html,*/*"}
OURS = {"sec-fetch-site": "same-origin"}
KEYS: Any = {"red": {"sha256": hash_key("red-key")}, "blue": {"sha256": hash_key("blue-key")}}
ANN = {"emails": ["Ann@example.com"]}


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Provider, None]:
    monkeypatch.setenv("OIDC_CLIENT_SECRET", CLIENT_SECRET)
    async with provider_running() as running:
        yield running


def oidc(provider: Provider, **more: Any) -> dict[str, Any]:
    return {"issuer": provider.issuer, "client_id": CLIENT_ID, "admins": ANN} | more


async def at_provider(at: At, next_page: str = "/") -> str:
    """Begins a sign-in, and returns the address with which the provider sends the browser back."""
    begun = await at.http.get("/sign-in/provider", params={"next": next_page})
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as client:
        back = await client.get(begun.headers["location"])
    return str(back.headers["location"])


async def sign_in(at: At, next_page: str = "/") -> httpx.Response:
    return await at.http.get(await at_provider(at, next_page))


async def test_an_administrator_signs_in_and_out(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    run = await ask(at)
    assert (await at.http.get(f"/runs/{run}", headers=BROWSER)).headers["location"].startswith("/sign-in?")
    assert "Sign in with your account" in (await at.http.get("/sign-in")).text
    done = await sign_in(at, f"/runs/{run}")
    assert done.status_code == 200
    assert f'content="0; url=/runs/{run}"' in done.text
    text = (await at.http.get(f"/runs/{run}")).text
    assert "Say something." in text
    assert "ann@example.com" in text
    for path in ("/spending", "/experiments", "/sessions"):
        assert (await at.http.get(path)).status_code == 200
    stolen = dict(at.http.cookies)
    await at.http.post("/sign-out", data={"": ""}, headers=OURS)
    at.http.cookies.update(stolen)
    assert (await at.http.get("/")).status_code == 401


async def test_both_cookies_have_the_flags_that_protect_them(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider, public_url="https://conductor.example"))
    begun = await at.http.get("/sign-in/provider")
    sent = parse_qs(urlsplit(begun.headers["location"]).query)
    assert sent["redirect_uri"] == ["https://conductor.example/sign-in/callback"]
    assert sent["code_challenge_method"] == ["S256"]
    assert {"Secure", "HttpOnly", "SameSite=lax", "Path=/sign-in", "Max-Age=600"} <= flags(begun, LOGIN_COOKIE)
    cookie = at.http.cookies.get(LOGIN_COOKIE) or begun.headers["set-cookie"].split(";")[0].partition("=")[2]
    async with httpx.AsyncClient() as client:
        back = urlsplit(str((await client.get(begun.headers["location"])).headers["location"]))
    done = await at.http.get(f"{back.path}?{back.query}", headers={"cookie": f"{LOGIN_COOKIE}={cookie}"})
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= flags(done, COOKIE)


def flags(reply: httpx.Response, cookie: str) -> set[str]:
    (header,) = [value for value in reply.headers.get_list("set-cookie") if value.startswith(f"{cookie}=")]
    return set(header.split("; ")[1:])


async def test_a_reader_sees_the_runs_of_one_key_and_changes_nothing(serve: Serve, provider: Provider) -> None:
    provider.claims = {"groups": ["staff", "team-red"]}
    readers = {"red": {"groups": ["team-red"]}}
    at = await serve(keys=KEYS, oidc=oidc(provider, readers=readers))
    metadata: Any = {"metadata": {"session_id": "s"}}
    mine = await ask(at, "Mine?", **metadata)
    theirs = (
        await post(
            at, {"authorization": "Bearer blue-key"}, messages=[{"role": "user", "content": "Theirs?"}], **metadata
        )
    ).headers["x-conductor-run"]
    await at.service.store.write_queue.flush()
    assert (await sign_in(at)).status_code == 200
    for path in ("/", "/?key=blue", "/sessions/turns?key=blue&session=s"):
        text = (await at.http.get(path)).text
        assert "Theirs?" not in text, path
        assert "Mine?" in text or path == "/?key=blue"
    assert "blue" not in (await at.http.get("/sessions")).text
    shown = (await at.http.get(f"/runs/{mine}")).text
    assert "Mine?" in shown
    assert "Replay with" not in shown
    assert "feedback-form" not in shown
    for path in (f"/runs/{theirs}", f"/runs/{theirs}/download", f"/runs/{mine}/beside/{theirs}"):
        assert (await at.http.get(path)).status_code == 404, path
    async with at.http.stream("GET", f"/feed?run={theirs}") as feed:
        assert "event: change" not in "".join([chunk async for chunk in feed.aiter_text()])
    for path in ("/experiments", "/spending"):
        assert (await at.http.get(path)).status_code == 403, path
    fields = {"round": "0", "step": "0", "worker": "a", "subtask": "x", "thumb": "up"}
    for path in (f"/runs/{mine}/replay", f"/runs/{mine}/feedback"):
        assert (await at.http.post(path, data=fields, headers=OURS)).status_code == 403, path


async def test_a_reader_does_not_see_what_a_vendor_says_of_the_servers_key(serve: Serve, provider: Provider) -> None:
    provider.claims = {"groups": ["team-red"]}
    denied = ScriptedModel(lambda _: ModelError("org-77 has no access", model="a", status=403))
    readers = {"red": {"groups": ["team-red"]}}
    at = await serve({"a": denied, "b": "from b"}, keys=KEYS, oidc=oidc(provider, readers=readers))
    run = await ask(at)
    await at.service.store.write_queue.flush()
    await sign_in(at)
    for path in (f"/runs/{run}", f"/runs/{run}/download"):
        shown = unescape((await at.http.get(path)).text)
        assert "the server's access to scripted:scripted failed" in shown
        assert "org-77" not in shown


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "eve@example.com", "email_verified": True},
        {"email": "ann@example.com", "email_verified": False},
        {"email": "ann@example.com"},
        {"email": "ann@example.com.evil.example", "email_verified": True},
        {"groups": "team-red"},
        {},
    ],
)
async def test_others_are_refused(serve: Serve, provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    at = await serve(keys=KEYS, oidc=oidc(provider, readers={"red": {"groups": ["team-red"]}}))
    refused = await sign_in(at)
    assert refused.status_code == 403
    assert "may not open these pages" in refused.text
    assert COOKIE not in refused.cookies
    assert (await at.http.get("/")).status_code == 401


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"iss": "https://evil.example"}, "names another issuer; issuer in [oidc] must be"),
        ({"aud": "another-client"}, "is for another application; client_id in [oidc] must be"),
        ({"aud": [CLIENT_ID, "another"], "azp": "another"}, "is for another application; client_id in [oidc] must be"),
        ({"nonce": "another"}, "belongs to another sign-in"),
        ({"nonce": None}, "lacks nonce"),
        ({"exp": int(time.time()) - 3600}, "has expired: the clock of the provider and that of this server's store"),
        ({"iat": int(time.time()) + 3600}, "is from the future: the clock of the provider and that"),
        ({"nbf": int(time.time()) + 3600}, "is not valid yet: the clock of the provider and that"),
        ({"exp": None}, "lacks exp"),
        ({"exp": "soon"}, "has an invalid exp"),
        ({"sub": None}, "lacks sub"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused_with_the_reason(
    serve: Serve, provider: Provider, changed: dict[str, Any], says: str
) -> None:
    provider.changed = changed
    at = await serve(keys=KEYS, oidc=oidc(provider))
    refused = await sign_in(at)
    assert refused.status_code == 401
    assert COOKIE not in refused.cookies
    assert f"The sign-in failed: the provider's token {says}" in unescape(refused.text)
    assert CLIENT_SECRET not in refused.text


@pytest.mark.parametrize(("key", "algorithm"), [(OTHER_KEY, "RS256"), (KEY, UNSIGNED), (KEY, "HS256")])
async def test_a_token_without_a_signature_of_the_provider_is_refused(
    serve: Serve, provider: Provider, key: Any, algorithm: str
) -> None:
    provider.key, provider.algorithm = key, algorithm
    at = await serve(keys=KEYS, oidc=oidc(provider))
    refused = await sign_in(at)
    assert refused.status_code == 401
    assert COOKIE not in refused.cookies
    assert "the provider's token is not signed with a key that the provider publishes" in unescape(refused.text)


async def test_new_keys_of_the_provider_are_read_when_they_are_needed(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    assert (await sign_in(at)).status_code == 200
    provider.key, provider.published_keys = NEXT_KEY, [NEXT_KEY, KEY]
    assert (await sign_in(at)).status_code == 200


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["platform"]}}),
        ("resource_access.rl.conductor.roles", {"resource_access": {"rl.conductor": {"roles": ["platform"]}}}),
        ("https://example.com/roles", {"https://example.com/roles": ["platform"]}),
        ("app.roles", {"app.roles": ["platform"], "app": {"roles": ["staff"]}}),
    ],
)
async def test_groups_may_be_in_a_claim_with_dots_or_at_a_path(
    serve: Serve, provider: Provider, name: str, claims: dict[str, Any]
) -> None:
    provider.claims, provider.info = claims, {"sub": "user-1"}
    at = await serve(keys=KEYS, oidc=oidc(provider, groups_claim=name, admins={"groups": ["platform"]}))
    assert (await sign_in(at)).status_code == 200
    provider.claims, provider.info = {}, {"sub": "user-1"} | claims
    assert (await sign_in(at)).status_code == 200


@pytest.mark.parametrize("claims", [{}, {"a": {}}, {"a": ["b"]}, {"a": {"c": ["x"]}}, {"b": ["x"]}])
def test_a_path_that_leads_nowhere_finds_no_claim(claims: dict[str, Any]) -> None:
    assert find_claim(claims, "a.b") is None


async def test_signing_out_also_ends_the_session_at_the_provider(serve: Serve, provider: Provider) -> None:
    provider.can_sign_out = True
    at = await serve(keys=KEYS, oidc=oidc(provider, public_url="https://conductor.example"))
    assert (await sign_in_with(at, at.url)).status_code == 200
    done = await at.http.post("/sign-out", data={"": ""}, headers=OURS)
    assert (await at.http.get("/")).status_code == 401
    (address,) = re.findall(r'content="0; url=([^"]+)"', done.text)
    sent = dict(parse_qsl(urlsplit(unescape(address)).query))
    assert unescape(address).startswith(f"{provider.issuer}/logout?")
    assert sent.pop("id_token_hint").count(".") == 2
    back = "https://conductor.example/sign-in/callback"
    assert sent == {"realm": "main", "client_id": CLIENT_ID, "post_logout_redirect_uri": back}
    returned = await at.http.get("/sign-in/callback")
    assert (returned.status_code, returned.headers["location"]) == (303, "/sign-in")


async def sign_in_with(at: At, url: str) -> httpx.Response:
    """Signs in at a server that browsers reach by another address, without the `Secure` cookies of that."""
    begun = await at.http.get("/sign-in/provider")
    login = begun.headers["set-cookie"].split(";")[0]
    async with httpx.AsyncClient() as client:
        back = urlsplit(str((await client.get(begun.headers["location"])).headers["location"]))
    done = await at.http.get(f"{url}{back.path}?{back.query}", headers={"cookie": login})
    at.http.cookies.set(COOKIE, done.headers["set-cookie"].partition("=")[2].partition(";")[0])
    return done


@pytest.mark.parametrize("reason", ["the provider can't end sessions", "it is down", "an administrator's key"])
async def test_signing_out_works_without_the_provider(serve: Serve, provider: Provider, reason: str) -> None:
    provider.can_sign_out = reason != "the provider can't end sessions"
    at = await serve(**GUARDED, oidc=oidc(provider))
    if reason == "an administrator's key":
        await at.http.post("/sign-in", data={"key": ADMIN}, headers=OURS)
    else:
        await sign_in(at)
    if reason == "it is down":
        assert at.service.oidc is not None
        at.service.oidc._metadata, provider.is_down = {}, True
    done = await at.http.post("/sign-out", data={"": ""}, headers=OURS)
    assert (done.status_code, done.headers["location"]) == (303, "/sign-in")
    assert (await at.http.get("/")).status_code == 401


async def test_an_id_token_that_is_too_long_for_an_address_is_left_out(serve: Serve, provider: Provider) -> None:
    provider.can_sign_out = True
    provider.claims |= {"groups": [f"a group with a long name {number}" for number in range(200)]}
    at = await serve(keys=KEYS, oidc=oidc(provider))
    await sign_in(at)
    done = await at.http.post("/sign-out", data={"": ""}, headers=OURS)
    assert "client_id=conductor" in done.text
    assert "id_token_hint" not in done.text


async def test_an_answer_to_another_sign_in_is_refused(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    back = await at_provider(at)
    other_state = re.sub(r"state=[^&]+", "state=another", back)
    for address, cookies in ((other_state, True), (re.sub(r"state=[^&]+", "", back), True), (back, False)):
        if not cookies:
            at.http.cookies.clear()
        refused = await at.http.get(address)
        assert refused.status_code == 401, address
        assert COOKIE not in refused.cookies


async def test_an_answer_is_accepted_once(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    back = await at_provider(at)
    login = at.http.cookies[LOGIN_COOKIE]
    assert (await at.http.get(back)).status_code == 200
    at.http.cookies.clear()
    again = await at.http.get(back, headers={"cookie": f"{LOGIN_COOKIE}={login}"})
    assert again.status_code == 401
    forged = await at.http.get(back, headers={"cookie": f"{LOGIN_COOKIE}={login[:-4]}AAAA"})
    assert forged.status_code == 401


async def test_a_refusal_of_the_provider_is_shown(serve: Serve, provider: Provider) -> None:
    provider.error = "access_denied"
    at = await serve(keys=KEYS, oidc=oidc(provider))
    refused = await sign_in(at)
    assert refused.status_code == 401
    assert "the provider refused it (access_denied: Ann is not assigned to this application)" in refused.text


@pytest.mark.parametrize("method", [None, "client_secret_basic", "client_secret_post"])
async def test_a_secret_with_reserved_characters_reaches_the_provider(
    serve: Serve, provider: Provider, monkeypatch: pytest.MonkeyPatch, method: str | None
) -> None:
    provider.secret, provider.auth_method = "a+b%41/c=:d e", method
    monkeypatch.setenv("OIDC_CLIENT_SECRET", provider.secret)
    at = await serve(keys=KEYS, oidc=oidc(provider))
    assert (await sign_in(at)).status_code == 200


async def test_a_wrong_secret_is_named_on_the_page_and_in_the_log(
    serve: Serve, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.secret = "another"
    at = await serve(keys=KEYS, oidc=oidc(provider))
    assert "invalid_client: wrong client secret" in (await sign_in(at)).text
    assert "invalid_client: wrong client secret" in caplog.text
    assert CLIENT_SECRET not in caplog.text


async def test_the_log_says_who_signed_in_and_who_was_refused(
    serve: Serve, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rl_conductor_server")
    at = await serve(**GUARDED, oidc=oidc(provider))
    await sign_in(at)
    provider.claims = {"email": "eve@example.com", "email_verified": True}
    await sign_in(at)
    await at.http.post("/sign-in", data={"key": ADMIN}, headers=OURS)
    await at.http.post("/sign-in", data={"key": "wrong"}, headers=OURS)
    assert "ann@example.com signed in" in caplog.messages
    (refused,) = [message for message in caplog.messages if "refused" in message]
    assert "eve@example.com may not open these pages" in refused
    assert "groups of eve@example.com in the claim 'groups': none" in caplog.messages
    fields = [(vars(line).get("cause"), vars(line).get("administrator")) for line in caplog.records]
    assert [each for each in fields if any(each)] == [
        ("not_allowed", None),
        (None, "admin"),
        ("invalid_api_key", None),
    ]


@pytest.mark.parametrize("page", ["https://evil.example/", "//evil.example", "/\\evil.example", "/%2fevil.example"])
async def test_signing_in_never_leads_to_another_site(serve: Serve, provider: Provider, page: str) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    done = await sign_in(at, page)
    assert 'content="0; url=/"' in done.text
    assert "evil" not in done.text


async def test_a_right_that_was_taken_away_ends_the_session(serve: Serve, provider: Provider) -> None:
    at = await serve(keys=KEYS, oidc=oidc(provider))
    await sign_in(at)
    cookies = {"cookie": f"{COOKIE}={at.http.cookies[COOKIE]}"}
    other = await serve(keys=KEYS, oidc=oidc(provider, admins={"emails": ["bob@example.com"]}))  # over the same store
    none = await serve(**GUARDED)
    assert (await at.http.get("/", headers=cookies)).status_code == 200
    assert (await other.http.get("/", headers=cookies)).status_code == 401
    assert (await none.http.get("/", headers=cookies)).status_code == 401


async def test_the_user_info_is_read_if_the_token_has_no_email(serve: Serve, provider: Provider) -> None:
    provider.claims, provider.info = {}, {"sub": "user-1", "email": "ann@example.com", "email_verified": True}
    at = await serve(keys=KEYS, oidc=oidc(provider))
    assert (await sign_in(at)).status_code == 200
    provider.info = provider.info | {"sub": "user-2"}
    assert (await sign_in(at)).status_code == 401


async def test_an_email_counts_only_if_the_provider_verified_this_one(serve: Serve, provider: Provider) -> None:
    provider.claims = {"email": "ann@example.com"}
    provider.info = {"sub": "user-1", "email": "eve@example.com", "email_verified": True}
    at = await serve(keys=KEYS, oidc=oidc(provider))
    assert (await sign_in(at)).status_code == 403
    provider.info = {"sub": "user-1", "email": "ann@example.com", "email_verified": True}
    assert (await sign_in(at)).status_code == 200


async def test_groups_that_only_the_user_info_has_count(serve: Serve, provider: Provider) -> None:
    provider.info = {"sub": "user-1", "groups": ["platform"]}
    at = await serve(keys=KEYS, oidc=oidc(provider, admins={"groups": ["platform"]}))
    assert (await sign_in(at)).status_code == 200
    assert (await at.http.get("/spending")).status_code == 200


async def test_administrators_keys_work_beside_the_provider(serve: Serve, provider: Provider) -> None:
    at = await serve(**GUARDED, oidc=oidc(provider))
    signed_in = await at.http.post("/sign-in", data={"key": ADMIN}, headers=OURS)
    assert signed_in.status_code == 303
    assert (await at.http.get("/spending")).status_code == 200


async def test_a_provider_that_does_not_answer_is_an_error_page(serve: Serve, provider: Provider) -> None:
    wrong = {"issuer": f"{provider.issuer}/nothing"}
    at = await serve(keys=KEYS, oidc=oidc(provider) | wrong)
    failed = await at.http.get("/sign-in/provider")
    assert failed.status_code == 502
    assert "does not answer as expected" in failed.text


async def test_a_missing_secret_is_an_error_at_the_start(serve: Serve, provider: Provider) -> None:
    with pytest.raises(ConfigError, match="set NO_SUCH_VARIABLE to the client secret"):
        await serve(keys=KEYS, oidc=oidc(provider, client_secret_env="NO_SUCH_VARIABLE"))


@pytest.mark.parametrize(
    "issuer", ["http://idp.example", "https://idp.example?x=1", "ftp://idp.example", "http://localhost.evil.example"]
)
def test_an_issuer_needs_https(issuer: str) -> None:
    with pytest.raises(ValidationError):
        OidcEntry(issuer=issuer, client_id="x")


def test_an_administrator_who_is_also_a_reader_sees_everything() -> None:
    people = PeopleEntry(groups=frozenset({"staff"}))
    entry = OidcEntry(issuer="https://idp.example", client_id="x", admins=people, readers={"red": people})
    assert entry.role_of(None, {"staff"}) == (True, None)
    assert entry.role_of("staff", ()) == (False, None)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "rl_conductor_server.auth.oidc", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'rl-conductor-server\[oidc\]'"):
        import_module("rl_conductor_server.auth.oidc")
