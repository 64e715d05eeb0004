from __future__ import annotations

import asyncio
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
from rl_conductor_server.auth.keys import hashed
from rl_conductor_server.experiments.canary import asker, place
from rl_conductor_server.protocol import Ask
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import Store
from rl_conductor_server.store.database import connected
from rl_conductor_server.store.tables import metadata
from server.conftest import At, Serve, served, until
from server.test_shadow import ASK, CENT, conducting, found_in_metrics, pairs, prefers, route
from server.upstream import Vendor, vendor

ADMIN = {"authorization": "Bearer key-of-the-administrator"}
QUICK = {"least": 5, "window": 10}


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Vendor, None]:
    """The vendor of the old model, of the conductor's worker and of a judge who likes the old model."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-vendor")
    async with vendor(old="It is 390.", new="It is 391.", judge=prefers("390")) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that several servers may share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    address: str = request.getfixturevalue("postgres")
    engine = await connected(address)
    async with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            await connection.execute(table.delete())
    await engine.dispose()
    return address


def settings(upstream: Vendor, percent: float = 100, *, shadow: bool = False, **guards: Any) -> dict[str, Any]:
    """A route of which the conductor answers this share."""
    entry = route(upstream, canary={"percent": percent, "guards": QUICK | guards})
    if not shadow:
        del entry["shadow"]
    return {"routes": {"assistant": entry}, "admin_sha256": hashed("key-of-the-administrator")}


def quick(url: str) -> dict[str, Any]:
    """A store of which a server learns five times a second."""
    return {"store": {"url": url, "lease_seconds": 1}}


async def side(at: At, question: str = "What is 17 * 23?", **more: Any) -> str:
    """Who answers this question."""
    asked: Any = {"model": "assistant", "messages": [{"role": "user", "content": question}]}
    raw = await at.openai().chat.completions.with_raw_response.create(**asked, **more)
    answers = {"incumbent": "It is 390.", "conductor": "It is 391."}
    answered: str = raw.headers["x-conductor-side"]
    assert raw.parse().choices[0].message.content == answers[answered]
    return answered


async def told(at: At, percent: float) -> str:
    """Why the conductor answers this share, once it does."""
    canaries, which = at.service.canaries, at.service.routes["assistant"]
    await until(lambda: canaries.of(which).percent == percent)
    return canaries.of(which).reason


def down() -> dict[str, Any]:
    """A conductor whose only worker is out of order."""
    return conducting(ScriptedModel(lambda _: BadRequestError("out of order", model="a"), price=CENT))


async def fail(at: At, times: int = 10) -> None:
    """Have the conductor fail."""
    for number in range(times):
        reply = await at.http.post("/v1/chat/completions", json=ASK | {"user": str(number)})
        assert (reply.status_code, reply.headers["x-conductor-run"][:4]) == (502, "run-")


@pytest.mark.parametrize(("percent", "expected"), [(0, "incumbent"), (100, "conductor")])
async def test_the_percentage_says_who_answers(serve: Serve, upstream: Vendor, percent: float, expected: str) -> None:
    at = await serve(**conducting(), **settings(upstream, percent))
    assert {await side(at, str(number)) for number in range(5)} == {expected}


@pytest.mark.parametrize("percent", [0, 100])
async def test_a_policy_may_name_either_side_whoever_answers(serve: Serve, upstream: Vendor, percent: float) -> None:
    at = await serve(**conducting(), **settings(upstream, percent))
    other = "a" if percent == 0 else "incumbent"
    policy = {"allow": ["a", "incumbent"], "deny": [other], "forbid": [{"reader": other, "source": other}]}
    assert await side(at, extra_body={"conductor": {"policy": policy}}) == ("conductor" if percent else "incumbent")


async def test_a_conversation_stays_with_whoever_began_it(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream, 50))
    for number in range(6):
        said: list[Any] = [{"role": "user", "content": f"Question {number}"}]
        sides = set()
        for _ in range(3):
            raw = await at.openai().chat.completions.with_raw_response.create(model="assistant", messages=said)
            sides.add(raw.headers["x-conductor-side"])
            said += [{"role": "assistant", "content": "So it is."}, {"role": "user", "content": "And then?"}]
        assert len(sides) == 1


async def test_a_user_stays_on_one_side_whatever_is_asked(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream, 50))
    for user in ("ann", "bob", "cai"):
        assert len({await side(at, str(number), user=user) for number in range(4)}) == 1
    assert len({await side(at, str(number)) for number in range(16)}) == 2


@given(percent=st.floats(1, 99), salt=st.text(max_size=5))
def test_the_share_that_is_assigned_is_the_percentage(percent: float, salt: str) -> None:
    people = 2_000
    chosen = sum(place("assistant", f"{salt} {number}") < percent for number in range(people))
    spread = (people * percent / 100 * (1 - percent / 100)) ** 0.5
    assert abs(chosen - people * percent / 100) < 6 * spread + 1


@given(who=st.text(), less=st.floats(0, 100), more=st.floats(0, 100))
def test_a_larger_percentage_keeps_whom_a_smaller_one_had(who: str, less: float, more: float) -> None:
    less, more = sorted((less, more))
    assert 0 <= place("r", who) < 100
    assert place("r", who) >= less or place("r", who) < more or less == more


def test_the_same_words_to_two_keys_are_two_conversations() -> None:
    ask = Ask(model="assistant", request=Request(messages=(Message.system("s"), Message.user("hi"))))
    changed = ask.model_copy(update={"request": Request(messages=(Message.system("new"), Message.user("hi")))})
    assert asker("red", ask) == asker("red", changed)
    assert asker("red", ask) != asker("blue", ask)
    assert asker("red", ask.model_copy(update={"labels": {"user": "ann"}})) != asker("red", ask)


async def test_a_broken_guard_ends_the_canary_and_says_so(
    serve: Serve, upstream: Vendor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = await serve(**down(), **settings(upstream), **quick(f"sqlite:///{tmp_path / 'runs.db'}"))
    await fail(at, 5)
    assert (await told(at, 0)) == "rolled back: errors=0.05 is broken: 5 of 5"
    assert await side(at) == "incumbent"
    assert [one.levelname for one in caplog.records if "ends at 100 %" in one.message] == ["ERROR"]
    await found_in_metrics(at, 'conductor_canary_rollbacks_total{route="assistant"} 1.0')
    await found_in_metrics(at, 'conductor_canary_percent{route="assistant"} 0.0')


async def test_answers_that_the_judge_finds_worse_end_it_too(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    written = settings(upstream, shadow=True, losses=0.3)
    at = await serve(**conducting(), **written, **quick(f"sqlite:///{tmp_path / 'runs.db'}"))
    for number in range(5):
        assert await side(at, str(number)) == "conductor"
    assert (await told(at, 0)).startswith("rolled back: losses=0.3 is broken: ")
    assert {(pair.answered, pair.verdict) for pair in await pairs(at, 5)} == {("conductor", "loss")}


async def test_answers_that_cost_too_much_end_it_too(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    at = await serve(**conducting(), **settings(upstream, usd=0.015), **quick(f"sqlite:///{tmp_path / 'runs.db'}"))
    for number in range(5):
        assert await side(at, str(number)) == "conductor"
    assert (await told(at, 0)) == "rolled back: usd=0.015 is broken: $0.0200 an answer, of 5"


async def test_good_answers_go_on_being_given(serve: Serve, upstream: Vendor, tmp_path: Path) -> None:
    at = await serve(**conducting(), **settings(upstream, usd=0.03), **quick(f"sqlite:///{tmp_path / 'runs.db'}"))
    for number in range(12):
        assert await side(at, str(number)) == "conductor"
    await at.service.canaries.refresh()
    assert await side(at) == "conductor"


async def test_an_ended_canary_stays_ended_after_a_restart(serve: Serve, upstream: Vendor, url: str) -> None:
    async with served(**down(), settings=Settings.model_validate({"port": 0} | settings(upstream) | quick(url))) as at:
        await fail(at)
        reason = await told(at, 0)
    again = await serve(**conducting(), **settings(upstream), **quick(url))
    assert await side(again) == "incumbent"
    assert await told(again, 0) == reason


async def test_every_replica_learns_of_the_end_and_one_alone_made_it(serve: Serve, upstream: Vendor, url: str) -> None:
    one = await serve(**down(), **settings(upstream), **quick(url))
    other = await serve(**conducting(), **settings(upstream), **quick(url))
    assert await side(other) == "conductor"
    await fail(one)
    assert await told(one, 0) == await told(other, 0) != ""
    assert await side(other) == "incumbent"
    texts = [(await at.http.get("/metrics")).text for at in (one, other)]
    assert sum('conductor_canary_rollbacks_total{route="assistant"} 1.0' in text for text in texts) == 1


async def test_an_administrator_starts_it_again_and_old_failures_are_forgiven(
    serve: Serve, upstream: Vendor, tmp_path: Path
) -> None:
    at = await serve(**down(), **settings(upstream), **quick(f"sqlite:///{tmp_path / 'runs.db'}"))
    await fail(at)
    await told(at, 0)
    reply = await at.http.put("/admin/routes/assistant/canary", json={"percent": 20}, headers=ADMIN)
    assert reply.json() | {"since": 0} == {
        "object": "canary",
        "route": "assistant-2026-11-01",
        "percent": 20,
        "since": 0,
        "reason": "set by the administrator",
    }
    await asyncio.sleep(0.5)
    assert await told(at, 20) == "set by the administrator"
    (listed,) = (await at.http.get("/admin/routes", headers=ADMIN)).json()["data"]
    assert (listed["name"], listed["canary"]["percent"], listed["pairs"]) == ("assistant", 20, 0)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("nothing", {"percent": 5}, 404),
        ("assistant", {"percent": 101}, 400),
        ("assistant", {"percent": -1}, 400),
        ("assistant", {"percent": 5, "why": "?"}, 400),
        ("assistant", {}, 400),
    ],
)
async def test_a_canary_is_set_to_nothing_that_makes_no_sense(
    serve: Serve, upstream: Vendor, path: str, body: dict[str, Any], status: int
) -> None:
    at = await serve(**conducting(), **settings(upstream, 7))
    reply = await at.http.put(f"/admin/routes/{path}/canary", json=body, headers=ADMIN)
    assert reply.status_code == status
    assert (await at.http.put("/admin/routes/assistant/canary", json={"percent": 5})).status_code == 401
    assert await told(at, 7) == "the settings say so"


async def test_another_percentage_in_the_settings_goes_before_what_was_made_of_the_last(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}")
    await store.trials.configure("r-2026-01-01", 5)
    await store.trials.set("r-2026-01-01", 0, "rolled back")
    await store.trials.configure("r-2026-01-01", 5)
    (canary,) = await store.trials.canaries()
    assert (canary.percent, canary.reason) == (0, "rolled back")
    await store.trials.configure("r-2026-01-01", 10)
    (canary,) = await store.trials.canaries("r")
    assert (canary.percent, canary.reason) == (10, "the settings say so")
    await store.aclose()


async def test_a_request_that_the_conductor_can_not_take_stays_with_the_old_model(
    serve: Serve, upstream: Vendor
) -> None:
    plain = ScriptedModel("It is 391.", price=CENT, capabilities=Capabilities())
    at = await serve(**conducting(plain), **settings(upstream))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    assert await side(at, tools=[tool]) == "incumbent"
    assert await side(at) == "conductor"


async def test_what_the_conductor_began_it_ends_whatever_became_of_the_canary(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(), **settings(upstream))
    named: Any = {"extra_headers": {"idempotency-key": "1"}}
    assert await side(at, **named) == "conductor"
    await at.service.canaries.set(at.service.routes["assistant"], 0, "a test needs it")
    assert await side(at, **named) == "conductor"
    assert await side(at) == "incumbent"


async def test_of_several_who_would_end_a_canary_one_is_first_and_none_after_it_was_set_anew(url: str) -> None:
    one, other = await Store.open(url), await Store.open(url)
    await one.trials.configure("r-2026-01-01", 5)
    (canary,) = await other.trials.canaries("r")
    ended = await asyncio.gather(*(store.trials.roll_back(canary, "broken") for store in (one, other)))
    assert [found.percent for found in ended if found] == [0]
    await one.trials.set("r-2026-01-01", 20, "set by hand")
    assert await other.trials.roll_back(canary, "broken") is None
    assert [found.percent for found in await other.trials.canaries()] == [20]
    for store in (one, other):
        await store.aclose()


async def test_what_was_read_before_a_canary_was_set_anew_does_not_undo_that(serve: Serve, upstream: Vendor) -> None:
    at = await serve(**conducting(ScriptedModel("It is 391.", price=CENT)), **settings(upstream))
    canaries, route = at.service.canaries, at.service.routes["assistant"]
    before = canaries.of(route)
    await canaries.set(route, 0, "by hand")
    canaries._learn(before)  # as a look at the store does that began earlier

    assert canaries.of(route).percent == 0


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "is ended between"])
async def test_a_tool_call_is_answered_whatever_becomes_of_the_canary(
    serve: Serve, upstream: Vendor, goes_on: bool
) -> None:
    call = Message(role="assistant", content=(), tool_calls=(ToolCall(id="1", name="add", arguments="{}"),))
    at = await serve(**conducting(ScriptedModel([call, "It is 391."], price=CENT)), **settings(upstream))
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    said: list[Any] = [{"role": "user", "content": "What is 17 * 23?"}]
    asked: Any = {"model": "assistant", "messages": said, "tools": [tool]}
    message = (await at.openai().chat.completions.create(**asked)).choices[0].message
    assert message.tool_calls
    said += [message.model_dump(exclude_none=True)]
    said += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "391"}]
    if not goes_on:
        await at.service.canaries.set(at.service.routes["assistant"], 0, "a test needs it")
    raw = await at.openai().chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-conductor-side"] == ("conductor" if goes_on else "incumbent")
    assert raw.parse().choices[0].message.content == ("It is 391." if goes_on else "It is 390.")
