"""Requests of browsers, for pages of websites that `[web] origins` lists."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from core.runs import Gated, forever
from rl_conductor.errors import ConfigError
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.settings import read_settings
from server.chat_requests import BODY, post
from server.conftest import Serve, until

KEYS: Any = {"red": {"sha256": hash_key("key-of-red")}}
RED = {"authorization": "Bearer key-of-red"}
SITE, OTHER_SITE = "https://app.example.com", "https://evil.example"
WEB = {"origins": [SITE]}
CHAT = "/v1/chat/completions"


def preflight(origin: str, headers: str, method: str = "POST") -> dict[str, str]:
    """The headers of the request that a browser sends first."""
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": headers,
        "sec-fetch-site": "cross-site",
    }


@pytest.mark.parametrize(
    "headers", ["authorization,content-type,idempotency-key", "x-api-key,anthropic-version,x-stainless-lang"]
)
async def test_a_preflight_of_a_listed_website_allows_the_headers_of_clients(serve: Serve, headers: str) -> None:
    at = await serve(keys=KEYS, web=WEB)
    reply = await at.http.options(CHAT, headers=preflight(SITE, headers))
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, SITE)
    assert reply.headers["access-control-allow-headers"] == headers
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in reply.headers


async def test_pages_of_a_listed_website_can_read_answers_errors_and_their_headers(serve: Serve) -> None:
    at = await serve(keys=KEYS, web=WEB)
    for headers, status in ((RED, 200), ({}, 401)):
        reply = await post(at, headers | {"origin": SITE})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (status, SITE)
        assert reply.headers["access-control-expose-headers"] == "*"
        assert "Origin" in reply.headers["vary"]
    async with at.http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=RED | {"origin": SITE}) as stream:
        assert stream.headers["access-control-allow-origin"] == SITE


async def test_pages_of_a_listed_website_can_read_that_the_server_is_busy(serve: Serve) -> None:
    a = Gated("late", forever)
    at = await serve({"a": a}, keys=KEYS, web=WEB, intake={"connections": 4})
    asking = [asyncio.create_task(post(at, RED)) for _ in range(3)]
    await until(lambda: a.held == 3)
    assert (await at.http.options(CHAT, headers=preflight(SITE, "authorization"))).status_code == 200
    reply = await post(at, RED | {"origin": SITE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (503, SITE)
    for task in asking:
        task.cancel()


async def test_pages_of_other_websites_can_read_nothing(serve: Serve) -> None:
    at = await serve(keys=KEYS, web=WEB)
    assert (await at.http.options(CHAT, headers=preflight(OTHER_SITE, "authorization"))).status_code == 400
    reply = await post(at, RED | {"origin": OTHER_SITE})
    assert "access-control-allow-origin" not in reply.headers


async def test_without_origins_no_website_can_read_anything(serve: Serve) -> None:
    at = await serve(keys=KEYS)
    first = await at.http.options(CHAT, headers=preflight(SITE, "authorization"))
    for reply in (first, await post(at, RED | {"origin": SITE})):
        assert "access-control-allow-origin" not in reply.headers


async def test_without_keys_a_listed_website_can_use_the_api_but_not_the_pages(serve: Serve) -> None:
    at = await serve(web=WEB)
    from_site = {"origin": SITE, "sec-fetch-site": "cross-site"}
    paths = ("/v1/models", "/openapi.json", "/", "/runs", "/metrics", "/admin/keys")
    replies = {path: await at.http.get(path, headers=from_site) for path in paths}
    readable = {path for path, reply in replies.items() if "access-control-allow-origin" in reply.headers}
    assert readable == {"/v1/models", "/openapi.json"}
    assert (await at.http.post("/sign-in", headers=from_site)).status_code == 403


async def test_without_keys_only_listed_websites_may_send_requests(serve: Serve) -> None:
    at = await serve(web=WEB)
    replies = [await post(at, {"origin": origin, "sec-fetch-site": "cross-site"}) for origin in (SITE, OTHER_SITE)]
    assert [reply.status_code for reply in replies] == [200, 403]


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "app.example.com",
        f"{SITE}/",
        f"{SITE}/app",
        "https://App.example.com",
        f"{SITE}:443",
        "http://a:80",
    ],
)
def test_an_origin_that_no_browser_sends_is_rejected(tmp_path: Path, origin: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'[web]\norigins = ["{origin}"]\n')
    with pytest.raises(ConfigError, match=r"web\.origins.*is no origin; write scheme://host"):
        read_settings(path)


@pytest.mark.parametrize(
    "origin", [SITE, "http://localhost:3000", "http://[::1]:5173", "https://a:80", "tauri://localhost"]
)
def test_an_origin_may_have_a_port_and_any_scheme(tmp_path: Path, origin: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'[web]\norigins = ["{origin}"]\n')
    assert read_settings(path).web.origins == (origin,)
