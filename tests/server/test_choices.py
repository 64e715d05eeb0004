"""A request for several answers (`n`): its limits hold for all of them together."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import pytest
from openai import APIError, BadRequestError, InternalServerError, RateLimitError

from core.runs import pool_of
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, Message, Price, Usage
from rl_conductor_server.app import service_app
from rl_conductor_server.auth.key_secrets import hash_key
from server.conftest import ONE_STEP, At, Serve, until
from server.experiments import QUESTION, experiment, pairs, upstream
from server.upstream import Vendor

__all__ = ["upstream"]

ALONE = {"policy": {"single": "a"}}
MESSAGES: Any = [{"role": "user", "content": "Say something."}]
PRICE = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal(1))


def body(n: int, **limits: Any) -> dict[str, Any]:
    return {"model": "conductor-mini", "messages": MESSAGES, "n": n, "conductor": {**ALONE, "limits": limits}}


async def ask(at: At, n: int, **limits: Any) -> Any:
    return await at.openai().chat.completions.create(
        model="conductor-mini", messages=MESSAGES, n=n, extra_body={"conductor": {**ALONE, "limits": limits}}
    )


async def test_limits_that_suffice_for_all_choices_let_each_be_answered(serve: Serve) -> None:
    model = ScriptedModel("hello", price=PRICE)
    at = await serve(pool=pool_of(a=model, b="b"))
    reply = await ask(at, 8, calls=8, usd=8)
    assert [choice.message.content for choice in reply.choices] == ["hello"] * 8
    assert len(model.requests) == 8


@pytest.mark.parametrize(
    ("limits", "named"),
    [({"calls": 3}, r"limits\.calls=3"), ({"usd": 3}, r"limits\.usd=3"), ({"tokens": 9000}, r"limits\.tokens=9000")],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_more_is_used_than_the_request_may_whatever_the_choices(
    serve: Serve, limits: dict[str, Any], named: str, stream: bool
) -> None:
    usage = Usage(input_tokens=1000, output_tokens=1000, calls=1, cost=Decimal(1))
    model = ScriptedModel(lambda _: Completion(message=Message.assistant("hi"), usage=usage, model="m"), price=PRICE)
    at = await serve(pool=pool_of(a=model, b="b"))

    async def asked() -> None:
        created: Any = await at.openai().chat.completions.create(
            model="conductor-mini",
            messages=MESSAGES,
            n=8,
            stream=stream,
            extra_body={"conductor": {**ALONE, "limits": limits}},
        )
        async for _ in created:
            pass

    with pytest.raises(APIError, match=named) as failed:
        await asked()
    assert failed.value.code == "limit_exceeded"
    assert "all 8 choices together" in failed.value.message
    assert len(model.requests) <= 3


async def test_a_whole_request_that_comes_to_a_limit_has_a_status_of_its_own(serve: Serve) -> None:
    at = await serve(pool=pool_of(a="hello", b="b"))
    with pytest.raises(BadRequestError, match=r"all 2 choices together: .*limits\.calls=1 is used up"):
        await ask(at, 2, calls=1)
    over_asgi = httpx.ASGITransport(service_app(at.service))
    async with httpx.AsyncClient(transport=over_asgi, base_url="http://127.0.0.1") as http:
        refused = await http.post("/v1/chat/completions", json=body(2, calls=1))
        answered = await http.post("/v1/chat/completions", json=body(2, calls=2))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "limit_exceeded")
    assert len(answered.json()["choices"]) == 2


async def test_the_planners_calls_count_as_well(serve: Serve) -> None:
    planner, worker = ScriptedModel(ONE_STEP), ScriptedModel("hello")
    at = await serve(pool=pool_of(a=worker, b="b"), planner=planner)
    with pytest.raises(BadRequestError, match=r"limits\.calls=5"):
        await at.openai().chat.completions.create(
            model="conductor-mini", messages=MESSAGES, n=4, extra_body={"conductor": {"limits": {"calls": 5}}}
        )
    assert len(planner.requests) + len(worker.requests) <= 5


async def test_no_more_calls_are_in_flight_at_once_than_the_request_may_have(serve: Serve) -> None:
    model = ScriptedModel("hello", delay=0.01)
    at = await serve(pool=pool_of(a=model, b="b"))
    reply = await ask(at, 8, concurrency=2)
    assert len(reply.choices) == 8
    assert model.peak <= 2


async def test_the_time_of_one_choice_is_gone_for_the_next(serve: Serve) -> None:
    at = await serve(pool=pool_of(a=ScriptedModel("hello", delay=0.6), b="b"), intake={"running": 1})
    with pytest.raises(InternalServerError, match=r"all 2 choices together: limits\.seconds=1 was over") as failed:
        await ask(at, 2, seconds=1)
    assert (failed.value.status_code, failed.value.code) == (504, "deadline_exceeded")


async def test_a_request_for_one_answer_has_its_limits_for_itself(serve: Serve) -> None:
    at = await serve(pool=pool_of(a="hello", b="b"))
    for _ in range(2):
        assert (await ask(at, 1, calls=1)).choices[0].message.content == "hello"
    with pytest.raises(BadRequestError) as failed:
        await ask(at, 1, usd=0, tokens=0)
    assert "choices" not in failed.value.message


async def test_answers_that_are_on_record_count_towards_the_limits_of_a_retry(serve: Serve) -> None:
    model = ScriptedModel(["first", "second", *["more"] * 9])
    at = await serve(pool=pool_of(a=model, b="b"))
    named = {"idempotency-key": "order-7"}
    with pytest.raises(BadRequestError, match="choices together"):
        await at.openai(default_headers=named).chat.completions.create(
            model="conductor-mini", messages=MESSAGES, n=8, extra_body={"conductor": {**ALONE, "limits": {"calls": 2}}}
        )
    await until(lambda: not list(at.service.runs.active_ids))
    with pytest.raises(BadRequestError, match="choices together"):
        await at.openai(default_headers=named).chat.completions.create(
            model="conductor-mini", messages=MESSAGES, n=8, extra_body={"conductor": {**ALONE, "limits": {"calls": 2}}}
        )
    assert len(model.requests) == 2


async def test_a_keys_budget_holds_beside_the_limits_of_the_request(serve: Serve) -> None:
    model = ScriptedModel("hello", price=PRICE)
    at = await serve(pool=pool_of(a=model, b="b"), keys={"red": {"sha256": hash_key("key-of-red"), "usd": "3"}})
    limits = {"conductor": {**ALONE, "limits": {"usd": 100}}}
    with pytest.raises(RateLimitError, match="this key's budget"):
        await at.openai("key-of-red").chat.completions.create(
            model="conductor-mini", messages=MESSAGES, n=8, extra_body=limits
        )
    assert len(model.requests) <= 3


@pytest.mark.parametrize(("percent", "enough"), [(0, 2), (100, 4)], ids=["the old model", "the conductor"])
async def test_a_route_shares_the_limits_whoever_answers_and_its_shadow_takes_none_of_them(
    serve: Serve, upstream: Vendor, percent: int, enough: int
) -> None:
    experiments = {"assistant": experiment(upstream, canary={"percent": percent})}
    at = await serve(pool=pool_of(a="It is 391.", b="b"), experiments=experiments)

    async def answered(calls: int) -> Any:
        limits = {"conductor": {"limits": {"calls": calls}}}
        return await at.openai().chat.completions.create(model="assistant", messages=QUESTION, n=2, extra_body=limits)

    with pytest.raises(BadRequestError, match="all 2 choices together"):
        await answered(enough - 1)
    assert len((await answered(enough)).choices) == 2
    assert (await pairs(at, 1))[0].verdict
