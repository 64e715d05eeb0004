"""Tests of the pages that find a user's run, follow a session, and show and compare what was asked and answered."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

from core.runs import Gated, busy, plan
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.store import Search
from rl_conductor_server.web.comparison import MAX_LINES, MAX_WORDS, diff
from rl_conductor_server.web.markdown import MAX_CHARS, TAGS, render_markdown
from server.chat_requests import gate
from server.conftest import ONE_STEP, TWO_STEPS, At, Serve
from server.pages import GUARDED, NASTY, ask

BROWSER = {"accept": "text/html,*/*"}


async def page(at: At, path: str, status: int = 200) -> str:
    reply = await at.http.get(path, headers=BROWSER)
    assert reply.status_code == status, reply.text
    return reply.text


def listed(text: str) -> set[str]:
    return set(re.findall(r'<tr id="(.*?)"', text))


# ------------------------------------------------------------------------------------------- finding


async def test_a_run_is_found_by_its_user_metadata_and_session(serve: Serve) -> None:
    at = await serve()
    ann = await ask(at, "One?", user="Ann", metadata={"team": "red", "session_id": "s-1"})
    bob = await ask(at, "Two?", safety_identifier="bob 100%", metadata={"team": "blue", "note": '"user": "Ann"'})
    for search, found in {
        ("user", "ann"): {ann},
        ("user", "bob 100%"): {bob},
        ("user", "an"): set(),
        ("metadata", "team=red"): {ann},
        ("metadata", "team = BLUE"): {bob},
        ("metadata", "user=Ann"): {ann},
        ("metadata", "team=re"): set(),
        ("metadata", "blu"): {bob},
        ("metadata", "team=%"): set(),
        ("session", "s-1"): {ann},
        ("session", "s"): set(),
    }.items():
        assert listed(await page(at, f"/?{urlencode([search])}")) == found, search


async def test_a_session_shows_its_turns_in_order(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel(["**one**", "two", "three", "four"])})
    label: Any = {"metadata": {"session_id": "s <1>"}}
    first, second = await ask(at, "First?", **label), await ask(at, "Second?", **label)
    await ask(at, "Alone?")
    sessions = await page(at, "/sessions")
    assert "s &lt;1&gt;" in sessions
    assert '<td class="number" data-unit="turns">2</td>' in sessions
    (link,) = set(re.findall(r'href="(/sessions/turns\?[^"]*)"', sessions))
    turns = await page(at, link.replace("&amp;", "&"))
    assert re.findall(r'<li id="(.*?)"', turns) == [first, second]
    assert "<strong>one</strong>" in turns
    assert link in await page(at, f"/runs/{first}")
    assert "no such session" in await page(at, "/sessions/turns?key=local&session=s", status=404)


async def test_responses_that_continue_each_other_are_a_session(serve: Serve) -> None:
    at = await serve()
    client = at.openai()
    first = await client.responses.create(model="conductor-mini", input="One?")
    for _ in range(2):
        last = await client.responses.create(model="conductor-mini", input="On.", previous_response_id=first.id)
    root = first.id.replace("resp_", "run-")
    turns = await page(at, f"/sessions/turns?key=local&session={root}")
    assert re.findall(r'<li id="(.*?)"', turns)[0] == root
    assert last.id.replace("resp_", "run-") in turns
    (session,) = await at.service.store.list_sessions()
    assert (session.session, session.turns) == (root, 3)


async def test_sessions_of_two_keys_with_one_name_are_separate(serve: Serve) -> None:
    keys = {name: {"sha256": hash_key(name)} for name in ("red", "blue")}
    at = await serve(keys=keys)
    for name in keys:
        reply = await at.openai(name).chat.completions.create(
            model="conductor-mini", messages=[{"role": "user", "content": name}], metadata={"session_id": "s"}
        )
        assert reply.choices
    assert {(s.key, s.turns) for s in await at.service.store.list_sessions()} == {("red", 1), ("blue", 1)}
    (row,) = await at.service.store.list_runs(Search(key="red", session="s"))
    assert row.question == "red"


# ------------------------------------------------------------------------------------- what is shown


async def test_a_run_shows_its_whole_input_and_the_prompt_of_the_planner(serve: Serve) -> None:
    at = await serve()
    messages = [
        {"role": "system", "content": "Answer like a pirate."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "Arr."},
        {"role": "user", "content": "Second?"},
    ]
    tool = {"type": "function", "function": {"name": "look", "description": "Looks <b>."}}
    run = await ask(at, messages=messages, tools=[tool])
    text = await page(at, f"/runs/{run}")
    shown = text[text.index('id="input"') :]
    assert shown.index("Answer like a pirate.") < shown.index("First?") < shown.index("Arr.")
    assert "4 messages, 1 tool" in shown
    assert "Looks &lt;b&gt;." in shown
    planning = shown[shown.index('id="plan-1-calls"') :].partition("</section>")[0]
    assert "1 planning call with prompts" in planning
    trace = await at.service.store.get_trace(run)
    assert trace is not None
    request = trace.rounds[0].plan.calls[0].request
    assert request is not None
    assert request.messages[0].text.splitlines()[0] in planning


async def test_each_attempt_is_folded(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel(busy), "b": "from b"})
    text = await page(at, f"/runs/{await ask(at)}")
    attempts = re.findall(r'<details class="call" id="round-1-step-1-call-(\d)">', text)
    assert attempts == ["1", "2", "3", "4"]


async def test_a_run_is_downloaded_as_json(serve: Serve) -> None:
    at = await serve()
    run = await ask(at, user="ann")
    await at.http.post(f"/v1/runs/{run}/feedback", json={"score": 1})
    reply = await at.http.get(f"/runs/{run}/download")
    assert reply.headers["content-disposition"] == f'attachment; filename="{run}.json"'
    body = reply.json()
    assert (body["id"], body["labels"], body["trace"]["id"]) == (run, {"user": "ann"}, run)
    assert [entry["score"] for entry in body["feedback"]] == [1]
    assert (await at.http.get("/runs/none/download")).status_code == 404


async def test_a_download_needs_a_session(serve: Serve) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    for path in (
        f"/runs/{run}/download",
        "/sessions",
        f"/sessions/turns?key=red&session={run}",
        "/compare?run=a&run=b",
    ):
        assert (await at.http.get(path)).status_code == 401, path


@pytest.mark.parametrize("path", ["/nothing", "/runs", "/sessions/nothing/at/all", "/favicon.ico"])
async def test_an_unknown_path_is_a_page_in_a_browser_and_json_elsewhere(serve: Serve, path: str) -> None:
    at = await serve()
    text = await page(at, path, status=404)
    assert f"There is no page {path}." in text
    assert 'href="/"' in text
    assert (await at.http.get(path)).json()["error"]["code"] == "unknown_url"
    api = await at.http.get("/v1/nothing", headers=BROWSER)
    assert api.json()["error"]["message"] == "there is no GET /v1/nothing"


async def test_a_run_in_progress_has_a_clock(serve: Serve) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.write_queue.flush()
    (row,) = await at.service.store.list_runs()
    for path in ("/", f"/runs/{row.id}"):
        assert re.search(r'<span data-elapsed="\d+">\d+:\d\d</span>', await page(at, path)), path
    opened.set()
    await asking
    assert "data-elapsed" not in await page(at, f"/runs/{row.id}")


# ---------------------------------------------------------------------------------------- comparison


async def test_any_two_runs_are_compared_word_by_word(serve: Serve) -> None:
    a = ScriptedModel(["The sea is blue <today>.", "The sea is green <today>."])
    at = await serve({"a": a})
    first, second = await ask(at, "A colour?"), await ask(at, "A colour?")
    chosen = await at.http.get(f"/compare?run={first}&run={second}")
    assert (chosen.status_code, chosen.headers["location"]) == (303, f"/runs/{first}/beside/{second}")
    text = await page(at, chosen.headers["location"])
    assert "The sea is <del>blue</del><ins>green</ins> &lt;today&gt;." in text
    assert text.count("The same in both runs.") == 2  # question and plan
    assert "Select two runs to compare; 1 are selected." in await page(at, f"/compare?run={first}", status=400)
    assert "Select two runs to compare; 0 are selected." in await page(at, "/compare", status=400)
    await page(at, "/compare?run=//evil&run=x", status=400)


async def test_a_run_without_an_answer_yet_is_compared_by_its_question(serve: Serve) -> None:
    opened, wait = gate()
    opened.set()
    worker = Gated("from a", wait)
    at = await serve({"a": worker})
    first = await ask(at, "A colour?")
    opened.clear()
    worker.asked.clear()
    asking = asyncio.create_task(ask(at, "A colour?"))
    await worker.asked.wait()
    await at.service.store.write_queue.flush()
    second = next(row.id for row in await at.service.store.list_runs() if row.id != first)
    text = await page(at, f"/runs/{first}/beside/{second}")
    opened.set()
    await asking
    assert "The same in both runs." in text
    assert "<del>" not in text


def test_a_difference_keeps_both_texts() -> None:
    old, new = "one two three\nfour", "one 2 three\n\nfour five"
    changes = diff(old, new)
    assert changes is not None
    assert "".join(change.text for change in changes if change.kind != "added") == old
    assert "".join(change.text for change in changes if change.kind != "removed") == new


def test_long_texts_are_compared_by_line_and_very_long_ones_not_at_all() -> None:
    long = "word word\n" * MAX_WORDS
    changes = diff(long[: 10 * (MAX_LINES - 1)], long[: 10 * (MAX_LINES - 1)] + "one more\n")
    assert changes is not None
    assert [change.text for change in changes if change.kind != "same"] == ["one more\n"]
    assert diff("x\n" * (MAX_LINES + 1), "") is None


# ------------------------------------------------------------------------------------------ Markdown


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_markdown_is_rendered() -> None:
    html = render_markdown("# Title\n\n- **bold**\n- `code`\n\n|a|b|\n|-|-|\n|1|2|\n\n[site](https://example.com)")
    for expected in ("<h3>Title</h3>", "<strong>bold</strong>", "<code>code</code>", "<td>1</td>"):
        assert expected in html
    assert '<a href="https://example.com" rel="noopener noreferrer nofollow">site</a>' in html


def test_headings_are_below_those_of_the_page_without_gaps() -> None:
    html = render_markdown("## Two\n\n#### Four\n\n###### Six")
    assert re.findall(r"<h(\d)>", html) == ["3", "4", "5"]


HOSTILE = [
    *NASTY,
    "![x](http://192.0.2.1/pixel.png)",
    '![x](http://192.0.2.1/pixel.png "onerror=alert(1)")',
    "![a\n](data:image/svg+xml;base64,PHN2Zy8+)",
    "[x](javascript:alert(1))",
    "[x](JaVa&#x53;cript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](vbscript:x)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](//192.0.2.1)",
    "[x](/sign-out)",
    "<javascript:alert(1)>",
    "[r]\n\n[r]: javascript:alert(1)",
    "<style>body{display:none}</style>",
    "<link rel=stylesheet href=http://192.0.2.1>",
    '<a href="https://x" onclick="alert(1)">x</a>',
    '[x](https://x "\\" onmouseover=alert(1)")',
    "```<script>\nalert(1)\n```",
    "<base href=http://192.0.2.1><form><input name=key><button>Sign in</button></form>",
    "<svg><animate onbegin=alert(1)>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "# <img src=x onerror=alert(1)>\n\n| <script> |\n|-|\n| ![](http://192.0.2.1) |",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_neither_runs_nor_loads_anything(text: str) -> None:
    for tag, attributes in Elements(render_markdown(text)).found:
        assert tag in TAGS
        assert attributes.keys() <= {"href", "rel", "title", "start", "align"}
        href = attributes.get("href")
        assert href is None or re.match(r"(https?://|mailto:)", href), href


def test_an_image_is_a_link_that_loads_nothing() -> None:
    html = render_markdown("![a *chart*](https://example.com/x.png)")
    assert "<img" not in html
    assert '<a href="https://example.com/x.png" rel="noopener noreferrer nofollow">[image: a chart]</a>' in html


def test_very_long_markdown_is_shown_as_it_is() -> None:
    assert render_markdown("*" * (MAX_CHARS + 1)) == f"<pre>{'*' * (MAX_CHARS + 1)}</pre>"


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_hostile_reply_is_harmless_on_every_page(serve: Serve, text: str) -> None:
    at = await serve({"a": text}, lambda _: ONE_STEP)
    run = await ask(at, text, metadata={"session_id": "s"})
    for path in (f"/runs/{run}", f"/runs/{run}/beside/{run}", "/sessions/turns?key=local&session=s"):
        for tag, attributes in Elements((await page(at, path)).partition("<main")[2]).found:
            assert tag not in ("script", "style", "iframe", "img", "link", "base", "object", "embed", "math"), tag
            assert not any(name.startswith("on") or name == "style" for name in attributes)
            href = attributes.get("href") or "/"
            assert re.match(r"(https?://|mailto:|/|#)", href), href
            assert not href.startswith("//")


async def test_replies_of_steps_are_rendered_and_prompts_are_not(serve: Serve) -> None:
    at = await serve({"a": "**bold**", "b": "done"}, plan((0, "Write *it*.", []), (1, "Check.", ["all"])))
    text = await page(at, f"/runs/{await ask(at, 'Say **so**.')}")
    assert "<strong>bold</strong>" in text
    assert "<strong>so</strong>" not in text
    assert "<em>it</em>" not in text


async def test_the_json_of_a_page_and_of_the_api_agree(serve: Serve) -> None:
    at = await serve()
    run = await ask(at)
    downloaded = json.loads((await at.http.get(f"/runs/{run}/download")).text)
    del downloaded["feedback"]
    assert downloaded == (await at.http.get(f"/v1/runs/{run}")).json()
