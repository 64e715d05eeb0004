"""Feedback on runs: over the API, on the pages, in the store and in the audit record."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import httpx
from markupsafe import escape

from rl_conductor.trace.feedback import Feedback
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import NewRun, Search, Store
from rl_conductor_server.store.audit import Chain
from rl_conductor_server.store.runs.feedback import MAX_KEYS
from server.conftest import At, Serve
from server.pages import ADMIN, GUARDED, NASTY, ask

RED = {"authorization": "Bearer red-key"}
BLUE = {"authorization": "Bearer blue-key"}
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
TWO_KEYS: Any = GUARDED | {"keys": GUARDED["keys"] | {"blue": {"sha256": hash_key("blue-key")}}}
OURS = {"sec-fetch-site": "same-origin"}


async def rate(at: At, run: str, headers: dict[str, str] = RED, path: str = "/v1", **body: Any) -> httpx.Response:
    return await at.http.post(f"{path}/runs/{run}/feedback", json=body, headers=headers)


async def listed(at: At, run: str) -> list[dict[str, Any]]:
    reply = await at.http.get(f"/v1/runs/{run}/feedback", headers=RED)
    assert reply.status_code == 200, reply.text
    data: list[dict[str, Any]] = reply.json()["data"]
    return data


async def audited(store: Store) -> list[dict[str, Any]]:
    chain = Chain()
    lines = [json.loads(line) async for line in store.audit_lines(chain)]
    assert chain.broken is None
    return [line for line in lines if line.get("event") == "feedback"]


# ------------------------------------------------------------------------------------------------- API


async def test_a_run_is_rated_by_a_score_or_a_thumb(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    created = await rate(at, run, score=0.25, key="correctness", comment="Nearly.")
    assert (created.status_code, created.json()["object"], created.json()["run"]) == (200, "feedback", run)
    assert (await rate(at, run, thumb="up")).status_code == 200
    entries = [(each["author"], each["key"], each["score"], each["comment"]) for each in await listed(at, run)]
    assert entries == [("red", "correctness", 0.25, "Nearly."), ("red", "user_score", 1.0, "")]


async def test_the_same_author_and_key_replace_the_rating_and_a_repetition_changes_nothing(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    for body in ({"thumb": "up"}, {"thumb": "up"}, {"score": 1}, {"thumb": "down", "comment": "No."}):
        assert (await rate(at, run, **body)).status_code == 200
    (entry,) = await listed(at, run)
    assert (entry["score"], entry["comment"]) == (0.0, "No.")
    records = await audited(at.service.store)
    assert [(record["run"], record["author"], record["score"]) for record in records] == [
        (run, "red", 1.0),
        (run, "red", 0.0),
    ]
    assert "No." not in json.dumps(records)


async def test_only_the_runs_own_key_or_the_administrator_rates_it(serve: Serve) -> None:
    at = await serve(**TWO_KEYS)
    run = await ask(at)
    assert (await rate(at, run, BLUE, thumb="down")).status_code == 404
    assert (await at.http.get(f"/v1/runs/{run}/feedback", headers=BLUE)).status_code == 404
    assert (await rate(at, run, {}, thumb="down")).status_code == 401
    assert (await rate(at, run, RED, "/admin", thumb="down")).status_code == 401
    assert (await rate(at, run, AS_ADMIN, "/admin", score=0.5)).status_code == 200
    assert (await rate(at, run, thumb="up")).status_code == 200
    assert [each["author"] for each in await listed(at, run)] == ["@administrator", "red"]
    seen = await at.http.get(f"/admin/runs/{run}/feedback", headers=AS_ADMIN)
    assert len(seen.json()["data"]) == 2


INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, 'the body needs either "score", from 0 to 1, or "thumb"'),
    ({"score": 1, "thumb": "up"}, "needs either"),
    ({"score": 1.5}, "score must be less than or equal to 1"),
    ({"score": -1}, "score must be greater than or equal to 0"),
    ({"score": "good"}, "score must be a"),
    ({"thumb": "sideways"}, "thumb must be 'up' or 'down'"),
    ({"score": True}, "score must be a number"),
    ({"score": "1"}, "score must be a number"),
    ({"score": 1, "key": "a b"}, "key"),
    ({"score": 1, "comment": "x" * 2_001}, "comment may have at most 2000 characters"),
    ({"score": 1, "author": "blue"}, "author is an unknown parameter"),
]


async def test_an_invalid_rating_is_rejected_with_the_field(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    for body, message in INVALID:
        refused = await rate(at, run, **body)
        assert (refused.status_code, message in refused.json()["error"]["message"]) == (400, True), body
    assert await listed(at, run) == []


async def test_a_rating_of_an_unknown_run_is_rejected(serve: Serve) -> None:
    at = await serve(**GUARDED)
    for run in ("none", "run-0123456789abcdef"):
        assert (await rate(at, run, thumb="up")).status_code == 404


async def test_an_author_has_a_limited_number_of_keys(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    codes = [(await rate(at, run, score=1, key=f"k{number}")).status_code for number in range(MAX_KEYS + 1)]
    assert codes == [200] * MAX_KEYS + [409]
    assert (await rate(at, run, score=0, key="k0")).status_code == 200


async def test_ratings_count_towards_the_rate_limit(serve: Serve) -> None:
    limited: Any = {"keys": {"red": {"sha256": hash_key("red-key"), "requests_per_minute": 2}}}
    at = await serve(**limited)
    run = await ask(at)
    assert [(await rate(at, run, thumb="up")).status_code for _ in range(2)] == [200, 429]


# ----------------------------------------------------------------------------------------------- pages


async def test_the_page_shows_feedback_and_takes_thumbs(serve: Serve) -> None:
    at = await serve()
    run = await ask(at)
    for thumb, comment in (("up", "Good."), ("down", "A\r\nB")):
        sent = await at.http.post(f"/runs/{run}/feedback", data={"thumb": thumb, "comment": comment}, headers=OURS)
        assert (sent.status_code, sent.headers["location"]) == (303, f"/runs/{run}#feedback")
    text = (await at.http.get(f"/runs/{run}")).text
    assert 'value="down" aria-pressed="true"' in text
    assert 'value="up" aria-pressed="false"' in text
    assert "A\nB</p>" in text
    assert "from administrator" in text
    for body in ({"comment": "no thumb"}, {"thumb": "sideways"}, {"thumb": "up", "comment": "x" * 2_001}):
        refused = await at.http.post(f"/runs/{run}/feedback", data=body, headers=OURS)
        assert (refused.status_code, "Choose thumbs up or thumbs down" in refused.text) == (400, True)


async def test_only_our_own_pages_and_the_administrator_send_the_form(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    send = {"thumb": "up"}
    signed_out = await at.http.post(f"/runs/{run}/feedback", data=send, headers=OURS)
    assert signed_out.status_code == 401
    await at.http.post("/sign-in", data={"key": ADMIN}, headers=OURS)
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {"origin": "http://["}):
        foreign = await at.http.post(f"/runs/{run}/feedback", data=send, headers=headers)
        assert foreign.status_code == 403
    assert await listed(at, run) == []
    assert (await at.http.post(f"/runs/{run}/feedback", data=send, headers=OURS)).status_code == 303
    assert (await at.http.post("/runs/none/feedback", data=send, headers=OURS)).status_code == 404


async def test_a_comment_never_becomes_markup(serve: Serve) -> None:
    at = await serve()
    run = await ask(at)
    for number, nasty in enumerate(NASTY):
        assert (await rate(at, run, score=1, key=f"k{number}", comment=nasty)).status_code == 200
    text = (await at.http.get(f"/runs/{run}")).text
    for nasty in NASTY:
        assert escape(nasty) in text
        assert nasty not in text


async def test_the_list_is_filtered_by_feedback(serve: Serve) -> None:
    at = await serve()
    liked, disliked, unrated = [await ask(at, f"Question {number}?") for number in range(3)]
    await rate(at, liked, thumb="up")
    await rate(at, disliked, score=0.4)
    for value, run in {"positive": liked, "negative": disliked, "none": unrated}.items():
        text = (await at.http.get(f"/?feedback={value}")).text
        assert [name for name in (liked, disliked, unrated) if f'<tr id="{name}"' in text] == [run]
    assert (await at.http.get("/?feedback=other")).status_code == 400


# ----------------------------------------------------------------------------------------------- store


async def test_feedback_is_stored_with_its_run_and_deleted_with_it(store: Store) -> None:
    store.begin_run(NewRun(id="run-1", key="red", digest="d", api="chat", model="m", created=time.time()))
    store.abandon_run("run-1")
    entry = Feedback(author="red", score=0.75, comment="a \0 b", updated=datetime.now(UTC))
    assert await store.feedback.put("run-1", entry) == entry
    (read,) = await store.feedback.list("run-1")
    assert (read.score, read.comment, read.key) == (0.75, "a  b", "user_score")
    assert abs((read.updated - entry.updated).total_seconds()) < 0.001
    assert [row.id for row in await store.list_runs(Search(feedback="positive"))] == ["run-1"]
    assert await store.prune(before=time.time() + 1e6) == 1
    assert await store.feedback.list("run-1") == []
    assert await store.feedback.put("run-1", entry) is None
    assert [record["run"] for record in await audited(store)][-1:] == ["run-1"]
