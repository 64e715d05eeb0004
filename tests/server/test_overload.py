"""Responses when the vendors behind every worker are overloaded, or reject the request."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest

from core.runs import plan
from rl_conductor.models.base import Capabilities
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Price
from rl_conductor_server.auth.key_secrets import hash_key
from server.conftest import ONE_STEP, At, Serve, sent_events
from server.upstream import Vendor, vendor

MESSAGES: Any = [{"role": "user", "content": "Say something."}]
LONG: Any = [{"role": "user", "content": "Say something. " * 100}]
TINY = Capabilities(context=10)
LONG_WAIT = {"retry-after": "120"}
"""Longer than a run waits before a retry, so that tests are fast."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


async def serve_vendor(serve: Serve, upstream: Vendor) -> At:
    return await serve({name: OpenAIModel(name, base_url=upstream.url) for name in "ab"})


@pytest.mark.parametrize(
    ("statuses", "expected", "code"),
    [
        ((429, 429), 429, "upstream_rate_limit"),
        ((503, 503), 503, "upstream_overloaded"),
        ((429, 529), 503, "upstream_overloaded"),
        ((429, 400), 502, "upstream_error"),
        ((401, 401), 502, "upstream_error"),
    ],
)
async def test_overload_of_all_workers_is_reported_with_retry_after(
    serve: Serve, statuses: tuple[int, int], expected: int, code: str
) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = {name: (status, LONG_WAIT) for name, status in zip("ab", statuses, strict=True)}
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.APIStatusError) as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        error = caught.value
        assert (error.status_code, error.code) == (expected, code)
        is_overload = expected in (429, 503)
        assert error.response.headers["x-should-retry"] == str(is_overload).lower()
        assert error.response.headers.get("retry-after") == ("120" if is_overload else None)
        run = error.response.headers["x-conductor-run"]
        calls = (await at.service.store.get_trace(run)).calls  # type: ignore[union-attr]
        assert {(call.status, call.retry_after) for call in calls if call.worker == "a"} == {(statuses[0], 120.0)}
        assert f"(HTTP {statuses[0]})" in (await at.http.get(f"/runs/{run}")).text


async def test_overload_of_the_worker_that_answers_is_worth_a_retry_although_a_draft_succeeded(serve: Serve) -> None:
    async with vendor(b="") as upstream:
        upstream.refusals = {"b": (429, LONG_WAIT)}
        pool: Any = {"a": ScriptedModel("A draft."), "b": OpenAIModel("b", base_url=upstream.url)}
        at = await serve(pool, planner=plan((0, "Draft it.", []), (1, "Say it.", ["all"])))
        with pytest.raises(openai.RateLimitError) as caught:
            await at.openai().chat.completions.create(
                model="conductor-mini", messages=MESSAGES, extra_body={"conductor": {"policy": {"final": "b"}}}
            )
    assert caught.value.code == "upstream_rate_limit"
    assert caught.value.response.headers["retry-after"] == "120"


@pytest.mark.parametrize("limited", ["key", "request"])
async def test_overload_is_worth_a_retry_although_the_budget_has_no_room_for_another_call(
    serve: Serve, limited: str
) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = {"a": (503, LONG_WAIT)}
        prices = {"a": "0.01", "b": "0.03"}  # a replacement that the budget can't pay
        pool = {
            name: OpenAIModel(
                name, base_url=upstream.url, price=Price(input=Decimal(0), output=Decimal(0), per_call=Decimal(price))
            )
            for name, price in prices.items()
        }
        planner = ScriptedModel(ONE_STEP, price=Price(input=Decimal(0), output=Decimal(0)))
        key = {"sha256": hash_key("key-of-red")} | ({"usd": "0.02"} if limited == "key" else {})
        at = await serve(pool, planner, keys={"red": key})
        body = {"conductor": {"limits": {"usd": "0.02"}}} if limited == "request" else None
        with pytest.raises(openai.InternalServerError) as caught:
            await at.openai("key-of-red").chat.completions.create(
                model="conductor-mini", messages=MESSAGES, extra_body=body
            )
        assert (caught.value.status_code, caught.value.code) == (503, "upstream_overloaded")
        assert caught.value.response.headers["retry-after"] == "120"


async def test_a_request_that_all_vendors_reject_is_the_clients_fault(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = {"a": (400, {}), "b": (422, {})}
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.BadRequestError) as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        assert (caught.value.code, caught.value.type) == ("invalid_value", "invalid_request_error")


async def test_what_a_vendor_says_of_the_servers_key_is_not_told_to_clients(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (401, {}))
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.InternalServerError, match="the server's access to openai:a failed") as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        assert "overloaded" not in str(caught.value)  # the text of the vendor


@pytest.mark.parametrize("at_planner", [False, True])
async def test_only_administrators_see_in_traces_what_a_vendor_says_of_the_servers_key(
    serve: Serve, at_planner: bool
) -> None:
    async with vendor(a="", b="from b") as upstream:
        upstream.refusals = {"a": (401, {})}
        a, b = (OpenAIModel(name, base_url=upstream.url) for name in "ab")
        plan_model = a if at_planner else ScriptedModel(ONE_STEP)
        pool = {"b": b} if at_planner else {"a": a, "b": b}
        keys = {"red": {"sha256": hash_key("key-of-red")}}
        at = await serve(pool, plan_model, keys=keys, admins={"admin": {"sha256": hash_key("key-of-root")}})
        tenant, administrator = ({"authorization": f"Bearer key-of-{name}"} for name in ("red", "root"))
        conductor = {"trace": "full", "progress": "chunks"}
        body = {"model": "conductor-ultra", "messages": MESSAGES, "conductor": conductor}
        answered = await at.http.post("/v1/chat/completions", json=body, headers=tenant)
        streamed = await at.http.post("/v1/chat/completions", json=body | {"stream": True}, headers=tenant)
        run = answered.headers["x-conductor-run"]
        stored = await at.http.get(f"/v1/runs/{run}", headers=tenant)
        for seen in (answered, streamed, stored):
            assert seen.status_code == 200
            assert "the server's access to openai:a failed" in seen.text
            assert "overloaded" not in seen.text  # the text of the vendor
        assert "overloaded" in (await at.http.get(f"/admin/runs/{run}", headers=administrator)).text


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_keys_and_accounts_in_what_a_vendor_says_are_redacted_for_clients(serve: Serve, status: int) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (status, LONG_WAIT))
        upstream.complaint = "limit reached in organization org-ACME-42 of key sk-live-0123456789abcdef"
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.APIStatusError, match="limit reached in organization") as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        stored = await at.http.get(f"/v1/runs/{caught.value.response.headers['x-conductor-run']}")
        for text in (str(caught.value), stored.text):
            assert "organization [secret] of key [secret]" in text
            assert not re.search("ACME|sk-live", text)


async def test_the_list_of_runs_names_the_model_that_the_server_has_no_access_to(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (403, {}))
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.InternalServerError):
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        (row,) = await at.service.store.list_runs()
        assert "the server's access to openai:a failed" in (row.error or "")
        assert "overloaded" not in (row.error or "")


async def test_a_request_that_is_too_long_for_every_worker_is_the_clients_to_shorten(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = {"a": (413, {})}
        at = await serve({"a": OpenAIModel("a", base_url=upstream.url), "b": ScriptedModel("", capabilities=TINY)})
        with pytest.raises(openai.BadRequestError) as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=LONG)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await at.anthropic().messages.create(model="conductor-mini", messages=LONG, max_tokens=10)


async def test_an_anthropic_client_gets_its_own_exception_for_overload(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (429, LONG_WAIT))
        at = await serve_vendor(serve, upstream)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await at.anthropic().messages.create(model="conductor-mini", messages=MESSAGES, max_tokens=10)
        assert caught.value.response.headers["retry-after"] == "120"


async def test_an_absurd_retry_after_of_a_vendor_is_not_passed_on(serve: Serve) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (503, {"retry-after": "1e30"}))
        at = await serve_vendor(serve, upstream)
        with pytest.raises(openai.InternalServerError) as caught:
            await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
        assert caught.value.response.headers["retry-after"] == "3600"


@pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (413, "context_length_exceeded")])
async def test_a_failed_response_has_the_code_of_its_failure(serve: Serve, status: int, code: str) -> None:
    async with vendor(a="", b="") as upstream:
        upstream.refusals = dict.fromkeys("ab", (status, LONG_WAIT))
        at = await serve_vendor(serve, upstream)
        client = at.openai()
        body = {"model": "conductor-mini", "input": "Go.", "stream": True}
        *_, last = sent_events(await at.http.post("/v1/responses", json=body))
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", code)
        await at.service.store.write_queue.flush()
        stored = await client.responses.retrieve(last["response"]["id"])
        assert (stored.status, stored.error and stored.error.code) == ("failed", code)
