"""Tests of the pages over HTTP; `test_web_browser` tests them in a browser."""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from urllib.parse import unquote, urlencode

import httpx
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from sqlalchemy.exc import OperationalError

from core.runs import SOON, Gated, busy, forever, plan
from rl_conductor import Conductor, Message, Worker
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor.types import ToolCall
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.auth.rate_limit import MAX_FAILURES
from rl_conductor_server.store import RunRow
from rl_conductor_server.web.sign_in import same_site_page
from server.chat_requests import gate
from server.conftest import ONE_STEP, TWO_STEPS, At, Serve, until, usage_of_key
from server.pages import ADMIN, CENT, FOUR, GUARDED, NASTY, ask

BROWSER = {"accept": "text/html,*/*"}
OURS = {"sec-fetch-site": "same-origin"}


async def page(at: At, path: str, status: int = 200) -> str:
    reply = await at.http.get(path)
    assert reply.status_code == status, reply.text
    return reply.text


async def sign_in(at: At, key: str = ADMIN, next: str = "/", **headers: str) -> httpx.Response:  # noqa: A002
    return await at.http.post("/sign-in", data={"key": key, "next": next}, headers=OURS | headers)


async def sign_out(at: At) -> httpx.Response:
    return await at.http.post("/sign-out", data={"": ""}, headers=OURS)


# ------------------------------------------------------------------------------------------- contents


async def test_runs_are_listed_newest_first(serve: Serve) -> None:
    at = await serve()
    first, second = await ask(at, "The first?"), await ask(at, "The second?")
    text = await page(at, "/")
    assert text.index(second) < text.index(first)
    assert "The first?" in text


async def test_a_page_shows_the_steps_of_a_conductor_and_the_tools_of_an_agent(serve: Serve) -> None:
    def look() -> str:
        """Looks."""
        return "<b>seen</b>"

    call = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    inner_workers = {"deep": Worker.of("deep", ScriptedModel([call, "from the depth"]), tools=[look])}
    team = Conductor(ScriptedModel([plan((0, "Dig.", []))], name="inner-planner"), inner_workers)
    at = await serve({"a": team, "b": "from b"})

    text = await page(at, f"/runs/{await ask(at)}")

    assert "planned by scripted:inner-planner" in text
    assert "Dig." in text
    assert "from the depth" in text
    assert "Tool <code>look</code>" in text
    assert "&lt;b&gt;seen&lt;/b&gt;" in text


async def test_a_search_lists_only_matching_runs(serve: Serve) -> None:
    at = await serve(planner=lambda request: TWO_STEPS if "both" in request.messages[-1].text else ONE_STEP)
    alone, both = await ask(at, "Ask one."), await ask(at, "Ask both.")
    for query, matches in {
        "text=ASK+ONE": {alone},
        "worker=b": {both},
        "status=done": {alone, both},
        "status=failed": set(),
        "model=conductor-mini&key=local": {alone, both},
        "model=conductor-ultra": set(),
        "since=2020-01-01&until=2099-01-01": {alone, both},
        "until=2020-01-01": set(),
    }.items():
        assert set(re.findall(r'<tr id="(.*?)"', await page(at, f"/?{query}"))) == matches, query


async def test_an_invalid_search_is_rejected(serve: Serve) -> None:
    at = await serve()
    for query in ("status=nonsense", "since=yesterday", "before=x", "until=9999-12-31"):
        assert "invalid filter" in await page(at, f"/?{query}", status=400)
    assert "text: write at most 1000 characters" in await page(at, f"/?text={'x' * 1_001}", status=400)


async def test_a_store_that_is_away_is_a_page_in_a_browser(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    at = await serve()

    async def fail(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", None, Exception("gone"))

    monkeypatch.setattr(at.service.store, "list_runs", fail)
    assert "The store does not answer" in await page(at, "/?text=a", status=503)


async def test_paging_lists_every_run_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_conductor_server.web.pages.PAGE_SIZE", 2)
    at = await serve()
    run_ids = [await ask(at, f"Question {number}") for number in range(5)]
    listed, path = [], "/?text=question"
    while path:
        text = await page(at, path)
        listed += re.findall(r'<tr id="(.*?)"', text)
        older = re.search(r'<a href="(/\?[^"]*)" rel="next"', text)
        path = older[1].replace("&amp;", "&") if older else ""
    assert listed == run_ids[::-1]


async def test_a_run_shows_each_step_with_its_worker_and_prompt(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    text = await page(at, f"/runs/{await ask(at)}")
    assert text.count('class="box ok') == 4  # two steps, each for a wide and for a narrow screen
    for expected in ("Draft it.", "from a", "from b", "scripted:scripted", "critical path", "overall task"):
        assert expected in text, expected


async def test_a_limit_of_zero_is_shown(serve: Serve) -> None:
    at = await serve()
    text = await page(at, f"/runs/{await ask(at, conductor={'limits': {'usd': '0', 'seconds': 9}})}")
    limits = dict(re.findall(r"<dt>Max (.*?)</dt><dd>(.*?)</dd>", text))
    assert (limits["US dollars"], limits["seconds"], limits["characters of a reply"]) == ("0", "9.0", "16,777,216")


async def test_attempts_and_replaced_workers_are_shown(serve: Serve) -> None:
    a = ScriptedModel(busy)
    at = await serve({"a": a, "b": "from b"})
    text = await page(at, f"/runs/{await ask(at)}")
    assert "reassigned from a, which failed" in text
    assert "4 attempts" in text
    assert "busy" in text


async def test_rejected_plans_are_shown_with_the_reason(serve: Serve) -> None:
    at = await serve(planner=ScriptedModel([plan((9, "Ask nobody.", [])), ONE_STEP]))
    text = await page(at, f"/runs/{await ask(at)}")
    assert "Rejected plan: the plan may not run: step 1: there is no worker 9; there are 0 to 1" in text


async def test_without_a_plan_the_page_says_who_answers_and_why(serve: Serve) -> None:
    at = await serve(planner=ScriptedModel(["no plan at all"] * 9))
    assert "No valid plan, so the best worker answers alone; " in await page(at, f"/runs/{await ask(at)}")
    text = await page(at, f"/runs/{await ask(at, conductor={'limits': {'calls': 1}})}")
    assert "Nothing was planned, so the best worker answers alone." in text
    assert "Reason: limits.calls=1 leaves 1 call" in text


async def test_an_interrupted_planning_is_shown_as_such(serve: Serve) -> None:
    planner = Gated(ONE_STEP, forever)
    at = await serve(planner=planner)
    asking = asyncio.create_task(ask(at))
    await planner.asked.wait()
    asking.cancel()
    (run,) = re.findall(r'<tr id="(.*?)"', await page(at, "/"))
    await until(lambda: run not in at.service.runs.active_ids)
    text = await page(at, f"/runs/{run}")
    assert "Planning was interrupted" in text
    assert "It accepts the previous" not in text
    assert "Rejected plan" not in text


async def test_a_run_in_progress_shows_its_progress(serve: Serve) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.write_queue.flush()
    (run,) = re.findall(r'<tr id="(.*?)"', await page(at, "/"))
    text = await page(at, f"/runs/{run}")
    assert "1 of 2 steps done, b running" in text
    assert f'data-feed="/feed?run={run}"' in text
    opened.set()
    await asking
    assert "data-feed" not in await page(at, f"/runs/{run}")


async def test_a_run_in_another_process_is_shown_from_the_store(serve: Serve) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    other = await serve()
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.write_queue.flush()
    (run,) = re.findall(r'<tr id="(.*?)"', await page(other, "/"))
    assert "1 of 2 steps done" in await page(other, f"/runs/{run}")
    opened.set()
    await asking


async def test_a_conversation_that_is_not_stored_is_not_shown(serve: Serve) -> None:
    at = await serve()
    run = await ask(at, "A secret?", store=False)
    for path in ("/", f"/runs/{run}"):
        text = await page(at, path)
        assert "onversation not stored" in text
        assert "secret" not in text


async def test_an_unknown_run_gives_a_404_page(serve: Serve) -> None:
    at = await serve()
    assert "no run" in await page(at, "/runs/run-0", status=404)
    assert "no-such-file" in await page(at, "/assets/no-such-file", status=404)


async def test_a_run_stored_by_another_release_gives_an_error_page(serve: Serve) -> None:
    at = await serve()
    run = await ask(at)
    forget = sqlalchemy.text("UPDATE runs SET trace = '{}'")
    at.service.store.write_queue.add(lambda connection: connection.execute(forget))
    assert "was stored by another release of rl-conductor" in await page(at, f"/runs/{run}", status=409)


# -------------------------------------------------------------------------------------------- sign-in


async def test_pages_redirect_to_sign_in_and_back(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    redirected = await at.http.get(f"/runs/{run}?x=1", headers=BROWSER)
    assert (redirected.status_code, redirected.headers["location"]) == (
        303,
        f"/sign-in?next=%2Fruns%2F{run}%3Fx%3D1",
    )
    signed_in = await sign_in(at, next=f"/runs/{run}")
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, f"/runs/{run}")
    cookie = signed_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Say something." in await page(at, f"/runs/{run}")
    await sign_out(at)
    assert (await at.http.get("/", headers=BROWSER)).status_code == 303


async def test_a_new_administrators_key_revokes_all_sessions(serve: Serve) -> None:
    at = await serve(**GUARDED)
    cookie = (await sign_in(at)).headers["set-cookie"].partition(";")[0]
    other = await serve(**GUARDED | {"admins": {"admin": {"sha256": hash_key("another-key")}}})  # over the same store
    for server, status in ((at, 200), (other, 401)):
        assert (await server.http.get("/", headers={"cookie": cookie})).status_code == status


async def test_signing_out_revokes_the_cookie(serve: Serve) -> None:
    at = await serve(**GUARDED)
    await sign_in(at)
    stolen = dict(at.http.cookies)
    await sign_out(at)
    at.http.cookies.update(stolen)
    assert (await at.http.get("/", headers=BROWSER)).status_code == 303


async def test_only_the_administrators_key_opens_the_pages(serve: Serve) -> None:
    at = await serve(**GUARDED)
    for key in ("red-key", "", "the-administrators-ke"):
        refused = await sign_in(at, key)
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers
    for header in ({"cookie": "rl_conductor_session="}, {"cookie": "rl_conductor_session=guess"}):
        assert (await at.http.get("/", headers=header)).status_code == 401
    assert (await at.http.get("/feed")).status_code == 401


async def test_failed_sign_ins_are_rate_limited(serve: Serve) -> None:
    at = await serve(**GUARDED)
    for guess in range(MAX_FAILURES):
        refused = await sign_in(at, str(guess))
        assert "Invalid administrator key." in refused.text
    refused = await sign_in(at)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "Too many invalid keys from this address" in refused.text
    assert "set-cookie" not in refused.headers


async def test_without_an_administrators_key_the_pages_give_404(serve: Serve) -> None:
    at = await serve(keys=GUARDED["keys"])
    assert "keys create NAME --admin" in await page(at, "/", status=404)


async def test_the_cookie_is_secure_over_https(serve: Serve) -> None:
    at = await serve(**GUARDED)
    assert "Secure" in (await sign_in(at, origin="https://conductor.example")).headers["set-cookie"]


OTHER_SITES = [
    "https://evil.example/",
    "https:evil.example",
    "//evil.example",
    "///evil.example",
    "////evil.example/runs",
    "/\\evil.example",
    "\\/evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "/\r\n\\evil.example",
    "\t//evil.example",
    " //evil.example",
    "\x00//evil.example",
    "/\x0b/evil.example",
    "/%2fevil.example",
    "/%2F%2Fevil.example",
    "/%5cevil.example",
    "/%09/evil.example",
    "/%252fevil.example",
    "%2f%2fevil.example",
    "/runs//evil.example",
    "/.//evil.example",
    "/\u2028/evil.example",
    "evil.example",
    "@evil.example",
    "?next=//evil.example",
    "javascript:alert(1)",
    "java\tscript:alert(1)",
    "data:text/html,x",
    "",
]


@pytest.mark.parametrize("page", OTHER_SITES)
def test_an_address_of_another_site_is_not_a_redirect_target(page: str) -> None:
    assert same_site_page(page) == "/"


@pytest.mark.parametrize(
    "page",
    ["/", "/runs/run-1", "/runs/run-1?x=1", "/?q=a%2Fb//c&d=https://x.example", "/usage#days", "/runs/a b", "/?ü"],
)
def test_a_path_of_this_site_is_a_redirect_target(page: str) -> None:
    assert same_site_page(page) == page


def host_in_browser(address: str) -> str:
    """Returns the host that a browser would request, by WHATWG's URL rules; `ours` is this site."""
    address = re.sub(r"[\t\n\r]", "", address.strip("".join(map(chr, range(33)))))
    before, mark, after = re.fullmatch(r"([^?#]*)([?#]?)(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    address = before.replace("\\", "/") + mark + after
    if re.match(r"[a-z][a-z0-9+.-]*:", address, re.IGNORECASE):
        return "another scheme"
    return "another host" if address.startswith("//") else "ours"


@given(
    st.lists(st.sampled_from([*"/\\:?#%@.\t\n\r \x00e", "%2f", "%5C", "%25", "https:", "evil.example"])).map("".join)
)
def test_no_redirect_target_leads_to_another_site_however_often_it_is_decoded(page: str) -> None:
    target = same_site_page(page)
    for _ in range(4):
        assert host_in_browser(target) == "ours"
        target = unquote(target)


@pytest.mark.parametrize("page", ["https://evil.example/", "///evil.example", "/\t/evil.example", "/%2fevil.example"])
async def test_signing_in_never_redirects_to_another_site(serve: Serve, page: str) -> None:
    at = await serve(**GUARDED)
    assert "evil" not in (await at.http.get("/sign-in", params={"next": page})).text
    assert "evil" not in (await sign_in(at, "a-wrong-key", next=page)).text
    assert (await sign_in(at, next=page)).headers["location"] == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {},
    ],
)
async def test_a_form_from_another_site_is_rejected(serve: Serve, headers: dict[str, str]) -> None:
    at = await serve(**GUARDED)
    refused = await at.http.post("/sign-in", data={"key": ADMIN}, headers=headers)
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers


async def test_the_origin_header_suffices_for_old_browsers(serve: Serve) -> None:
    at = await serve(**GUARDED)
    signed_in = await at.http.post("/sign-in", data={"key": ADMIN}, headers={"origin": at.url})
    assert signed_in.status_code == 303


async def test_an_invalid_form_is_rejected(serve: Serve) -> None:
    at = await serve(**GUARDED)
    assert (await at.http.post("/sign-in", json={"key": ADMIN}, headers=OURS)).status_code == 415
    assert (await at.http.post("/sign-in", data={"key": "x" * 70_000}, headers=OURS)).status_code == 413
    many = await at.http.post("/sign-in", data={f"field-{i}": "" for i in range(20)}, headers=OURS)
    assert many.status_code == 400


# ---------------------------------------------------------------------------------------- untrusted text


@pytest.mark.parametrize("nasty", NASTY)
async def test_untrusted_text_never_becomes_markup(serve: Serve, nasty: str) -> None:
    worker = "".join(filter(str.isprintable, f"w {nasty}"))  # other names are refused
    at = await serve({worker: nasty}, plan((0, f"Do {nasty}", [])))
    run = await ask(at, nasty, metadata={"said": nasty})
    for path in ("/", f"/?{urlencode({'text': nasty})}", f"/runs/{run}", f"/runs/{run}/beside/{run}"):
        text = await page(at, path)
        assert escape(nasty) in text, path
        assert nasty not in text, path


async def test_every_page_forbids_inline_and_foreign_scripts(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    signed_out = [await at.http.get(path) for path in ("/", "/sign-in", "/assets/none")]
    await sign_in(at)
    for reply in (*signed_out, *[await at.http.get(path) for path in ("/", f"/runs/{run}", "/runs/none")]):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert reply.headers["cache-control"] == "no-store"
        assert not re.search(
            r"<style|\bstyle=|\bon\w+=|<script(?! type=\"module\" src=\"/assets/pages.js\")", reply.text
        )


# --------------------------------------------------------------------------------------------- the feed


async def test_the_feed_reports_changes_and_ends_with_its_run(serve: Serve) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.write_queue.flush()
    (row,) = await at.service.store.list_runs()
    async with at.http.stream("GET", f"/feed?run={row.id}") as feed:
        chunks = feed.aiter_text()
        assert "retry" in await anext(chunks)  # from now on, it reports changes
        opened.set()
        events = "".join([chunk async for chunk in chunks])
    assert events.index("event: change") < events.index("event: over")
    await asking


async def test_feeds_end_when_the_server_stops(serve: Serve) -> None:
    at = await serve(intake={"drain_seconds": 2 * SOON})
    async with at.http.stream("GET", "/feed") as feed:
        chunks = feed.aiter_text()
        assert "retry" in await anext(chunks)
        at.service.stopping.set()
        async with asyncio.timeout(SOON):
            assert [chunk async for chunk in chunks] == []


# ----------------------------------------------------------------------------------------------- replays


async def replay(at: At, run: str, step: int = 0, worker: str = "a", subtask: str = "Draft.") -> httpx.Response:
    fields = {"round": "0", "step": str(step), "worker": worker, "subtask": subtask}
    return await at.http.post(f"/runs/{run}/replay", data=fields, headers=OURS)


async def replayed(at: At, reply: httpx.Response) -> tuple[RunRow, Trace]:
    assert reply.status_code == 303, reply.text
    run = reply.headers["location"].rpartition("/")[2]
    if live := at.service.runs.get(run):
        await live.result()
    await at.service.store.write_queue.flush()
    row, trace = await at.service.store.get_run(run), await at.service.store.get_trace(run)
    assert row
    assert trace
    return row, trace


@pytest.mark.parametrize(
    ("step", "subtasks"),
    [(0, ["Draft again.", "Join.", "Check."]), (2, ["Draft again.", "Check."]), (3, ["Draft again."])],
)
async def test_a_replay_runs_only_the_changed_step_and_its_dependents(
    serve: Serve, step: int, subtasks: list[str]
) -> None:
    a, b = ScriptedModel("from a", price=CENT), ScriptedModel("from b", price=CENT)
    at = await serve({"a": a, "b": b}, FOUR)
    run = await ask(at, model="conductor-ultra", conductor={"limits": {"rounds": 1}})
    before = len(a.requests) + len(b.requests)
    row, trace = await replayed(at, await replay(at, run, step, "b", "Draft again."))
    assert len(a.requests) + len(b.requests) - before == len(subtasks)
    assert row.usage.cost == CENT.per_call * len(subtasks)
    assert row.labels == {"replay_of": run, "changed": row.labels["changed"]}
    (only_round,) = trace.rounds
    assert only_round.plan.source == "given"
    assert only_round.results[step].step.subtask == "Draft again."
    assert trace.text == "from b"
    both = await page(at, f"/runs/{run}/beside/{row.id}")
    assert both.count('<span class="state reused">') == 2 * (4 - len(subtasks))


async def test_a_replay_of_a_later_round_reuses_the_previous_rounds(serve: Serve) -> None:
    planner = ScriptedModel([ONE_STEP, plan((0, "Say it better.", []))])
    at = await serve({"a": ScriptedModel(["first", "second", "third"])}, planner)
    run = await ask(at, model="conductor-ultra")
    fields = {"round": "1", "step": "0", "worker": "a", "subtask": "Say it best."}
    _, trace = await replayed(at, await at.http.post(f"/runs/{run}/replay", data=fields, headers=OURS))
    assert [round_.results[0].text for round_ in trace.rounds] == ["first", "third"]


async def test_reused_replies_are_not_counted_again(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    run = await ask(at)
    await replayed(at, await replay(at, run, step=1, worker="b", subtask="Say it again."))
    text = (await at.http.get("/metrics")).text
    counted = {name: float(count) for name, count in re.findall(r'calls_total{outcome="ok",worker="(\w+)"} (.*)', text)}
    assert counted == {"planner": 1, "a": 1, "b": 2}


async def test_a_replay_spends_from_the_budget_of_the_original_key(serve: Serve) -> None:
    keys = {"red": {"sha256": hash_key("red-key"), "usd": "0.025", "per": "ever"}}
    at = await serve({"a": ScriptedModel("from a", price=CENT)}, ScriptedModel(ONE_STEP), **GUARDED | {"keys": keys})
    run = await ask(at)
    await sign_in(at)
    await replayed(at, await replay(at, run, subtask="Once more."))
    assert (await usage_of_key(at.service.store, "red")).cost == Decimal("0.02")
    refused = await replay(at, run, subtask="And again.")
    assert refused.status_code == 429
    assert "left of this key" in refused.text


async def test_a_replay_obeys_the_policy_of_the_original_run(serve: Serve) -> None:
    at = await serve(planner=lambda _: ONE_STEP)
    run = await ask(at, conductor={"policy": {"deny": ["b"]}})
    refused = await replay(at, run, worker="b")
    assert refused.status_code == 400
    assert "not allowed" in refused.text


async def test_a_replay_waits_for_admission_like_any_run(serve: Serve) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS, intake={"running": 1, "waiting": 0})
    opened.set()
    run = await ask(at)
    opened.clear()
    busy_with = asyncio.create_task(ask(at))
    await until(lambda: bool(b.held))
    fields = {"round": "0", "step": "0", "worker": "a", "subtask": "Say it."}
    refused = await at.http.post(f"/runs/{run}/replay", data=fields, headers=OURS)
    assert refused.status_code == 429
    opened.set()
    await busy_with


async def test_invalid_replays_are_rejected(serve: Serve) -> None:
    at = await serve(planner=ONE_STEP)
    run, not_stored = await ask(at), await ask(at, store=False)
    assert (await replay(at, run, step=1)).status_code == 404
    assert (await replay(at, run, worker="")).status_code == 400
    assert (await replay(at, run, worker="c")).status_code == 400
    assert (await replay(at, not_stored)).status_code == 409
    assert (await replay(at, "run-0")).status_code == 404
    assert (await at.http.post(f"/runs/{run}/replay", data={"round": "0"})).status_code == 403


async def test_a_replay_needs_a_session(serve: Serve) -> None:
    a = ScriptedModel("from a")
    at = await serve({"a": a}, ONE_STEP, **GUARDED)
    run = await ask(at)
    assert (await replay(at, run)).status_code == 401
    assert len(a.requests) == 1


# ---------------------------------------------------------------------------------------------- spending


async def test_spending_adds_up_by_worker_model_and_key(serve: Serve) -> None:
    workers = {name: ScriptedModel(f"from {name}", price=CENT) for name in "ab"}
    at = await serve(workers, TWO_STEPS)
    for _ in range(3):
        await ask(at)
    for by, names in {"worker": ["a", "b"], "model": ["conductor-mini-"], "key": ["local"]}.items():
        for days in (1, 7, 30, 90):
            text = await page(at, f"/spending?by={by}&days={days}")
            assert all(name in text for name in names)
            assert "$0.0600" in text.partition("<tfoot>")[2]
    assert (await at.http.get("/spending?by=moon")).status_code == 400
    assert (await at.http.get("/spending?days=8")).status_code == 400


async def test_tokens_are_shown_where_nothing_costs_money(serve: Serve) -> None:
    at = await serve()
    assert "No spending in this period" in await page(at, "/spending")
    await ask(at)
    assert 'value="tokens" selected' in await page(at, "/spending")
