from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from core.runs import ACCEPT, SOON, Gated, forever
from rl_conductor.errors import BadRequestError, ModelError
from rl_conductor.models import Model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Price, Sampling
from rl_conductor_server.auth.key_secrets import hash_key
from server.chat_requests import BODY, gate, post
from server.conftest import ONE_STEP, TWO_STEPS, At, Serve, hang_up, until

NAMED = {"idempotency-key": "order-7"}


KEY_OF_RED = {"authorization": "Bearer key-of-red"}
RED = {"red": {"sha256": hash_key("key-of-red"), "usd": "1", "per": "ever"}}
CENT_A_CALL = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def brief(**models: Model) -> WorkerPool:
    """Workers that say little, so that a budget knows how much that is at most."""
    return WorkerPool([Worker.of(name, model, sampling=Sampling(max_tokens=1)) for name, model in models.items()])


async def spent(at: At) -> Decimal:
    """Returns the spending of the key `red`, as far as this server knows."""
    budget = await at.service.keys.find("red").current(at.service.store.now())
    assert budget is not None
    return budget.spent_in_total.usd


async def test_two_requests_of_one_name_at_once_are_one_run(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a})
    asking = [asyncio.create_task(post(at, NAMED, stream=stream)) for stream in (False, False, True)]
    await a.asked.wait()
    await asyncio.sleep(0.05)
    opened.set()
    whole, other, streamed = await asyncio.gather(*asking)
    assert whole.json() == other.json()
    assert "from" in streamed.text
    assert len(a.requests) == 1
    assert {reply.headers["x-conductor-run"] for reply in (whole, other, streamed)} == {
        whole.headers["x-conductor-run"]
    }


async def test_a_retry_gets_the_very_same_reply_and_pays_nothing(serve: Serve) -> None:
    a = ScriptedModel("from a")
    at = await serve({"a": a})
    first, second = await post(at, NAMED), await post(at, NAMED)
    assert first.json() == second.json()
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert len(a.requests) == 1


async def test_a_name_that_stood_for_another_request_is_refused(serve: Serve) -> None:
    at = await serve()
    await post(at, NAMED)
    client = at.openai(max_retries=2)
    with pytest.raises(openai.UnprocessableEntityError, match="use a new one"):
        await client.chat.completions.create(**BODY, seed=3, extra_headers=NAMED)


async def test_a_named_request_whose_caller_hangs_up_is_answered_at_the_retry(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a})
    await hang_up(at.openai().chat.completions.create(**BODY, extra_headers=NAMED), once=a.asked)
    opened.set()
    assert (await post(at, NAMED)).json()["choices"][0]["message"]["content"] == "from a"
    assert len(a.requests) == 1


async def test_a_failed_request_asked_again_pays_only_for_what_failed(serve: Serve) -> None:
    a = ScriptedModel(["a draft"])
    b = ScriptedModel([ModelError("out of order", model="b"), "from b"])
    planner = ScriptedModel([TWO_STEPS])
    at = await serve({"a": a, "b": b}, planner)
    only: Any = {"policy": {"final": "b"}}
    assert (await post(at, NAMED, conductor=only)).status_code == 502
    again = await post(at, NAMED, conductor=only)
    assert again.json()["choices"][0]["message"]["content"] == "from b"
    for model in (a, b, planner):
        model.assert_complete()
    assert again.json()["usage"]["conductor"]["total"]["calls"] == 4


async def test_a_failed_request_asked_again_costs_its_key_nothing_twice(serve: Serve) -> None:
    planner = ScriptedModel([ONE_STEP], price=CENT_A_CALL)
    a = ScriptedModel([BadRequestError("no", model="a", status=400)] * 3, price=CENT_A_CALL)
    at = await serve(brief(a=a), planner, keys=RED)
    assert [(await post(at, NAMED | KEY_OF_RED)).status_code for _ in range(3)] == [400] * 3
    a.assert_complete()
    assert await spent(at) == Decimal("0.01")


async def test_a_call_that_broke_off_counts_in_full_in_every_process(serve: Serve) -> None:
    planner = ScriptedModel([ONE_STEP], price=CENT_A_CALL)
    a = ScriptedModel([ModelError("gone", model="a")], price=CENT_A_CALL)
    at, other = await serve(brief(a=a), planner, keys=RED), await serve(keys=RED)
    assert (await post(at, KEY_OF_RED)).status_code == 502
    await at.service.store.write_queue.flush()
    assert await spent(at) == Decimal("0.02")
    assert await spent(other) == Decimal("0.02")


async def test_what_another_process_paid_for_a_run_is_charged_to_who_takes_it_over(serve: Serve) -> None:
    planner = ScriptedModel([ONE_STEP], price=CENT_A_CALL)
    a = ScriptedModel([BadRequestError("no", model="a", status=400), "from a"], price=CENT_A_CALL)
    first, second = await serve(brief(a=a), planner, keys=RED), await serve(brief(a=a), planner, keys=RED)
    assert (await post(first, NAMED | KEY_OF_RED)).status_code == 400
    assert (await post(second, NAMED | KEY_OF_RED)).status_code == 200
    assert await spent(second) == Decimal("0.02")


async def test_a_request_that_is_refused_leaves_no_run_that_seems_to_go_on(serve: Serve) -> None:
    at = await serve()
    blank = await post(at, messages=[{"role": "user", "content": " "}])
    assert blank.status_code == 400
    assert [run.status for run in await at.service.store.list_runs()] == ["cancelled"]


async def test_a_run_whose_end_the_store_has_lost_is_run_again_once_its_lease_is_out(
    serve: Serve, tmp_path: Path
) -> None:
    at = await serve(store={"url": f"sqlite:///{tmp_path / 'runs.db'}", "lease_seconds": 1})
    assert (await post(at, NAMED)).status_code == 200
    lost = "UPDATE runs SET status = 'running', trace = NULL"
    at.service.store.write_queue.add(lambda kept: kept.execute(text(lost)))
    await at.service.store.write_queue.flush()
    again = await asyncio.wait_for(post(at, NAMED), SOON)
    assert again.json()["choices"][0]["message"]["content"] == "from a"


async def test_who_comes_too_many_is_told_when_to_come_back(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a}, intake={"running": 1, "waiting": 1})
    first = asyncio.create_task(post(at))
    await a.asked.wait()
    second = asyncio.create_task(post(at))
    await until(lambda: at.service.runs.waiting == 1)
    with pytest.raises(openai.RateLimitError, match="try again later") as caught:
        await at.openai().chat.completions.create(**BODY)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    opened.set()
    assert [(await one).status_code for one in (first, second)] == [200, 200]


async def test_a_request_that_found_no_place_may_be_asked_again_under_its_name(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("from a", wait)
    at = await serve({"a": a}, intake={"running": 1, "waiting": 0})
    first = asyncio.create_task(post(at))
    await a.asked.wait()
    assert (await post(at, NAMED)).status_code == 429
    opened.set()
    await first
    assert (await post(at, NAMED)).status_code == 200


async def test_one_of_several_choices_that_fails_ends_the_others(serve: Serve) -> None:
    a = Gated("never", forever)
    failing = ScriptedModel([ONE_STEP, ModelError("no plan", model="planner")])
    at = await serve({"a": a}, failing, intake={"running": 2})
    asked = await post(at, n=2, conductor={"limits": {"seconds": 0.5}})
    assert asked.status_code == 504
    await until(lambda: not a.held)


async def test_a_stopping_server_says_so(serve: Serve) -> None:
    at = await serve()
    await at.service.runs.drain(0)
    assert (await at.http.get("/readyz")).status_code == 503
    with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
        await at.openai().chat.completions.create(**BODY)
    assert caught.value.response.headers["x-should-retry"] == "true"


async def test_a_stopping_server_logs_how_many_runs_it_waits_for(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rl_conductor_server.runs")
    a = Gated("late", forever)
    at = await serve({"a": a})
    asking = asyncio.create_task(post(at))
    await asyncio.wait_for(a.asked.wait(), SOON)
    await at.service.runs.drain(0.1)
    assert (await asking).status_code == 503
    assert "stopping; 1 run in progress may take 0 s more" in caplog.text
    assert "1 run cancelled after drain_seconds" in caplog.text


async def test_an_accepted_second_round_is_served_like_the_first(serve: Serve) -> None:
    at = await serve(planner=ScriptedModel([TWO_STEPS, ACCEPT]))
    reply = (await post(at, model="conductor-ultra")).json()
    assert reply["choices"][0]["message"]["content"] == "from b"
    assert len(reply["conductor"]["rounds"]) == 2


async def test_metrics_count_runs_tokens_and_dollars(serve: Serve) -> None:
    at = await serve()
    await post(at)
    text = (await at.http.get("/metrics")).text
    assert 'conductor_runs_total{model="conductor-mini",outcome="final"} 1.0' in text
    assert 'conductor_requests_total{path="/v1/chat/completions",status="200"} 1.0' in text
    assert 'conductor_calls_total{outcome="ok",worker="a"} 1.0' in text
    assert 'conductor_running{model="conductor-mini"} 0.0' in text
