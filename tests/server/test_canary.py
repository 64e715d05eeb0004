from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.errors import BadRequestError
from rl_conductor.models import Capabilities
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, Request, ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.experiments.canary import sample_percentile
from rl_conductor_server.experiments.sampling import sample_unit
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import Search, Store
from rl_conductor_server.store.models import USER_LABELS
from server.conftest import At, Serve, served, until
from server.experiments import ASK, CENT, conducting, experiment, found_in_metrics, pairs, prefers
from server.upstream import Vendor, vendor

ADMIN = {"authorization": "Bearer key-of-the-administrator"}
SMALL_WINDOW = {"min_answers": 5, "window": 10}


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Vendor, None]:
    """A vendor of the baseline model, of the conductor's worker and of a judge that prefers the baseline."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-vendor")
    async with vendor(old="It is 390.", new="It is 391.", judge=prefers("390")) as made:
        yield made


def settings(upstream: Vendor, percent: float = 100, *, shadow: bool = False, **guards: Any) -> dict[str, Any]:
    """Settings with an experiment whose conductor answers this percentage."""
    entry = experiment(upstream, canary={"percent": percent, "guards": SMALL_WINDOW | guards})
    if not shadow:
        del entry["shadow"]
    return {"experiments": {"assistant": entry}, "admins": {"admin": {"sha256": hash_key("key-of-the-administrator")}}}


def fast_refresh(url: str) -> dict[str, Any]:
    """Settings of a store from which a server reads changes five times a second."""
    return {"store": {"url": url, "lease_seconds": 1}}


async def answering_arm(at: At, question: str = "What is 17 * 23?", **options: Any) -> str:
    """Ask a question and return the arm that answered."""
    body: Any = {"model": "assistant", "messages": [{"role": "user", "content": question}]}
    raw = await at.openai().chat.completions.with_raw_response.create(**body, **options)
    answers = {"baseline": "It is 390.", "conductor": "It is 391."}
    arm: str = raw.headers["x-conductor-arm"]
    assert raw.parse().choices[0].message.content == answers[arm]
    return arm


async def wait_for_percent(at: At, percent: float) -> str:
    """Wait until the canary is at this percentage and return the reason for it."""
    canaries, experiment = at.service.canaries, at.service.experiments["assistant"]
    await until(lambda: canaries.get(experiment).percent == percent)
    return canaries.get(experiment).reason


def failing_conductor() -> dict[str, Any]:
    """A conductor whose only worker fails."""
    return conducting(ScriptedModel(lambda _: BadRequestError("out of order", model="a"), price=CENT))


async def fail(at: At, times: int = 5) -> None:
    """Send requests that the conductor fails to answer; the last makes enough answers for the guards to trip."""
    for number in range(times):
        reply = await at.http.post("/v1/chat/completions", json=ASK | {"user": str(number)})
        assert (reply.status_code, reply.headers["x-conductor-run"][:4]) == (502, "run-")


@pytest.mark.parametrize(("percent", "expected"), [(0, "baseline"), (100, "conductor")])
async def test_the_percentage_decides_which_arm_answers(
    serve: Serve, upstream: Vendor, percent: float, expected: str
) -> None:
    at = await serve(**conducting(), **settings(upstream, percent))
    assert {await answering_arm(at, str(number)) for number in range(5)} == {expected}


@pytest.mark.parametrize("percent", [0, 100])
async def test_a_policy_may_name_workers_of_either_arm(serve: Serve, upstream: Vendor, percent: float) -> None:
    at = await serve(**conducting(), **settings(upstream, percent))
    other = "a" if percent == 0 else "baseline"
    policy = {"allow": ["a", "baseline"], "deny": [other], "forbid": [{"reader": other, "source": other}]}
    assert await answering_arm(at, extra_body={"conductor": {"policy": policy}}) == (
        "conductor" if percent else "baseline"
    )


async def test_a_conversation_stays_on_its_arm(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream, 50))
    for number in range(6):
        messages: list[Any] = [{"role": "user", "content": f"Question {number}"}]
        arms = set()
        for _ in range(3):
            raw = await at.openai().chat.completions.with_raw_response.create(model="assistant", messages=messages)
            arms.add(raw.headers["x-conductor-arm"])
            messages += [{"role": "assistant", "content": "So it is."}, {"role": "user", "content": "And then?"}]
        assert len(arms) == 1


async def test_a_user_stays_on_one_arm_across_conversations(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream, 50))
    for user in ("ann", "bob", "cai"):
        assert len({await answering_arm(at, str(number), user=user) for number in range(4)}) == 1
    assert len({await answering_arm(at, str(number)) for number in range(16)}) == 2


@given(percent=st.floats(1, 99), salt=st.text(max_size=5))
def test_the_share_of_assigned_units_is_the_percentage(percent: float, salt: str) -> None:
    units = 2_000
    assigned = sum(sample_percentile("assistant", f"{salt} {number}") < percent for number in range(units))
    spread = (units * percent / 100 * (1 - percent / 100)) ** 0.5
    assert abs(assigned - units * percent / 100) < 6 * spread + 1


@given(unit=st.text(), low=st.floats(0, 100), high=st.floats(0, 100))
def test_raising_the_percentage_keeps_all_assigned_units(unit: str, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert 0 <= sample_percentile("r", unit) < 100
    assert sample_percentile("r", unit) >= low or sample_percentile("r", unit) < high or low == high


def test_the_sample_unit_depends_on_key_user_and_first_message() -> None:
    parsed = ParsedRequest(model="assistant", request=Request(messages=(Message.system("s"), Message.user("hi"))))
    changed = parsed.model_copy(update={"request": Request(messages=(Message.system("new"), Message.user("hi")))})
    assert sample_unit("red", parsed) == sample_unit("red", changed)
    assert sample_unit("red", parsed) != sample_unit("blue", parsed)
    assert sample_unit("red", parsed.model_copy(update={"labels": {"user": "ann"}})) != sample_unit("red", parsed)


@pytest.mark.parametrize("label", USER_LABELS)
def test_every_label_that_names_a_user_keeps_them_in_one_arm(label: str) -> None:
    units = {
        sample_unit(
            "red",
            ParsedRequest(model="assistant", request=Request.user(question), labels={label: "ann"}),
        )
        for question in ("What is 17 * 23?", "And 17 * 24?")
    }
    assert units == {"red user ann"}


async def test_a_tripped_guard_rolls_the_canary_back_and_logs_why(
    serve: Serve, upstream: Vendor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = await serve(**failing_conductor(), **settings(upstream), **fast_refresh(f"sqlite:///{tmp_path / 'runs.db'}"))
    await fail(at)
    assert (await wait_for_percent(at, 0)) == "rolled back: errors=0.05 exceeded: 5 of 5 answers failed"
    assert await answering_arm(at) == "baseline"
    assert [entry.levelname for entry in caplog.records if "was rolled back from 100 %" in entry.message] == ["ERROR"]
    await found_in_metrics(at, 'conductor_canary_rollbacks_total{experiment="assistant"} 1.0')
    await found_in_metrics(at, 'conductor_canary_percent{experiment="assistant"} 0.0')


async def test_lost_comparisons_roll_the_canary_back(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    at = await serve(
        **conducting(),
        **settings(upstream, shadow=True, losses=0.3),
        **fast_refresh(f"sqlite:///{tmp_path / 'runs.db'}"),
    )
    for number in range(5):
        assert await answering_arm(at, str(number)) == "conductor"
    assert (await wait_for_percent(at, 0)).startswith("rolled back: losses=0.3 exceeded: ")
    assert {(pair.arm, pair.verdict) for pair in await pairs(at, 5)} == {("conductor", "loss")}


async def test_expensive_answers_roll_the_canary_back(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    at = await serve(
        **conducting(), **settings(upstream, usd=0.015), **fast_refresh(f"sqlite:///{tmp_path / 'runs.db'}")
    )
    for number in range(5):
        assert await answering_arm(at, str(number)) == "conductor"
    assert (await wait_for_percent(at, 0)) == "rolled back: usd=0.015 exceeded: $0.0200 per answer over 5 answers"


async def test_good_answers_do_not_roll_the_canary_back(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    at = await serve(
        **conducting(), **settings(upstream, usd=0.03), **fast_refresh(f"sqlite:///{tmp_path / 'runs.db'}")
    )
    for number in range(12):
        assert await answering_arm(at, str(number)) == "conductor"
    await at.service.canaries.refresh()
    assert await answering_arm(at) == "conductor"


async def test_a_rollback_survives_a_restart(serve: Serve, upstream: Vendor, url: str) -> None:
    async with served(
        **failing_conductor(), settings=Settings.model_validate({"port": 0} | settings(upstream) | fast_refresh(url))
    ) as at:
        await fail(at)
        reason = await wait_for_percent(at, 0)
    restarted = await serve(**conducting(), **settings(upstream), **fast_refresh(url))
    assert await answering_arm(restarted) == "baseline"
    assert await wait_for_percent(restarted, 0) == reason


async def test_every_replica_applies_a_rollback_that_is_made_once(serve: Serve, upstream: Vendor, url: str) -> None:
    first = await serve(**failing_conductor(), **settings(upstream), **fast_refresh(url))
    second = await serve(**conducting(), **settings(upstream), **fast_refresh(url))
    assert await answering_arm(second) == "conductor"
    await fail(first, 4)  # with the answer of the other replica, five answers
    assert await wait_for_percent(first, 0) == await wait_for_percent(second, 0) != ""
    assert await answering_arm(second) == "baseline"
    texts = [(await at.http.get("/metrics")).text for at in (first, second)]
    assert sum('conductor_canary_rollbacks_total{experiment="assistant"} 1.0' in text for text in texts) == 1


async def test_an_administrator_restarts_a_canary_and_earlier_failures_do_not_count(
    serve: Serve, upstream: Vendor, tmp_path: Path
) -> None:
    at = await serve(**failing_conductor(), **settings(upstream), **fast_refresh(f"sqlite:///{tmp_path / 'runs.db'}"))
    await fail(at)
    await wait_for_percent(at, 0)
    reply = await at.http.put("/admin/experiments/assistant/canary", json={"percent": 20}, headers=ADMIN)
    assert reply.json() | {"since": 0} == {
        "object": "canary",
        "experiment": "assistant-2026-11-01",
        "percent": 20,
        "since": 0,
        "reason": "set by the administrator",
    }
    await asyncio.sleep(0.5)
    assert await wait_for_percent(at, 20) == "set by the administrator"
    (listed,) = (await at.http.get("/admin/experiments", headers=ADMIN)).json()["data"]
    assert (listed["name"], listed["canary"]["percent"], listed["pairs"]) == ("assistant", 20, 0)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("nothing", {"percent": 5}, 404),
        ("assistant", {"percent": 101}, 400),
        ("assistant", {"percent": -1}, 400),
        ("assistant", {"percent": 5, "reason": "?"}, 400),
        ("assistant", {}, 400),
    ],
)
async def test_invalid_canary_requests_are_rejected(
    serve: Serve, upstream: Vendor, path: str, body: dict[str, Any], status: int
) -> None:
    at = await serve(**conducting(), **settings(upstream, 7))
    reply = await at.http.put(f"/admin/experiments/{path}/canary", json=body, headers=ADMIN)
    assert reply.status_code == status
    assert (await at.http.put("/admin/experiments/assistant/canary", json={"percent": 5})).status_code == 401
    assert await wait_for_percent(at, 7) == "set by the settings file"


async def test_a_new_percentage_in_the_settings_overrides_a_rollback(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}")
    await store.experiments.configure_canary("r-2026-01-01", 5)
    await store.experiments.set_canary("r-2026-01-01", 0, "rolled back")
    await store.experiments.configure_canary("r-2026-01-01", 5)
    (canary,) = await store.experiments.list_canaries()
    assert (canary.percent, canary.reason) == (0, "rolled back")
    await store.experiments.configure_canary("r-2026-01-01", 10)
    (canary,) = await store.experiments.list_canaries("r")
    assert (canary.percent, canary.reason) == (10, "set by the settings file")
    await store.aclose()


async def test_the_baseline_answers_requests_that_the_conductor_can_not(serve: Serve, upstream: Vendor) -> None:
    without_tools = ScriptedModel("It is 391.", price=CENT, capabilities=Capabilities())
    at = await serve(**conducting(without_tools), **settings(upstream))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    assert await answering_arm(at, tools=[tool]) == "baseline"
    assert await answering_arm(at) == "conductor"


async def test_a_retried_request_stays_on_its_arm_after_the_canary_ends(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream))
    retry: Any = {"extra_headers": {"idempotency-key": "1"}}
    assert await answering_arm(at, **retry) == "conductor"
    await at.service.canaries.set_percent(at.service.experiments["assistant"], 0, "changed by a test")
    assert await answering_arm(at, **retry) == "conductor"
    assert await answering_arm(at) == "baseline"


async def test_one_of_several_rollbacks_wins_and_none_undoes_a_later_change(url: str) -> None:
    first, second = await Store.open(url), await Store.open(url)
    await first.experiments.configure_canary("r-2026-01-01", 5)
    (canary,) = await second.experiments.list_canaries("r")
    results = await asyncio.gather(
        *(store.experiments.roll_back_canary(canary, "tripped") for store in (first, second))
    )
    assert [canary.percent for canary in results if canary] == [0]
    await first.experiments.set_canary("r-2026-01-01", 20, "set again")
    assert await second.experiments.roll_back_canary(canary, "tripped") is None
    assert [canary.percent for canary in await second.experiments.list_canaries()] == [20]
    for store in (first, second):
        await store.aclose()


async def test_an_outdated_read_does_not_undo_a_change_of_the_canary(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(ScriptedModel("It is 391.", price=CENT)), **settings(upstream))
    canaries, experiment = at.service.canaries, at.service.experiments["assistant"]
    before = canaries.get(experiment)
    await canaries.set_percent(experiment, 0, "changed by a test")
    canaries._update(before)  # as a refresh that read the store earlier does
    assert canaries.get(experiment).percent == 0


@pytest.mark.parametrize("continues", [True, False], ids=["continues", "ends in between"])
async def test_a_tool_call_turn_is_answered_even_if_the_canary_ends_in_between(
    serve: Serve, upstream: Vendor, continues: bool
) -> None:
    call = Message(role="assistant", content=(), tool_calls=(ToolCall(id="1", name="add", arguments="{}"),))
    at = await serve(**conducting(ScriptedModel([call, "It is 391."], price=CENT)), **settings(upstream))
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    messages: list[Any] = [{"role": "user", "content": "What is 17 * 23?"}]
    body: Any = {"model": "assistant", "messages": messages, "tools": [tool]}
    message = (await at.openai().chat.completions.create(**body)).choices[0].message
    assert message.tool_calls
    messages += [message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "391"}]
    if not continues:
        await at.service.canaries.set_percent(at.service.experiments["assistant"], 0, "changed by a test")
    raw = await at.openai().chat.completions.with_raw_response.create(**body)
    assert raw.headers["x-conductor-arm"] == ("conductor" if continues else "baseline")
    assert raw.parse().choices[0].message.content == ("It is 391." if continues else "It is 390.")


async def test_a_server_with_a_wrong_clock_neither_forgets_recent_runs_nor_overlooks_failures(
    serve: Serve, upstream: Vendor, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 400 * 86_400)
    at = await serve(**failing_conductor(), **settings(upstream), **fast_refresh(url))
    await fail(at)
    assert "failed" in await wait_for_percent(at, 0)
    await at.service._prune()
    assert len(await at.service.store.list_runs(Search())) == 5
