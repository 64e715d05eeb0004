"""Tests of the pages in a browser: live updates, keyboard, phones, dark mode, accessibility and hostile text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from browser import browser
from core.runs import ACCEPT, Gated, busy
from rl_conductor.models.scripted import ScriptedModel
from server.chat_requests import gate
from server.conftest import ONE_STEP, TWO_STEPS, At, Serve, serving
from server.oidc_provider import CLIENT_ID, CLIENT_SECRET, provider_running
from server.pages import ADMIN, CENT, FOUR, GUARDED, NASTY, ask

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

OpenPage = Callable[..., Awaitable[Page]]
PHONE: Any = {"viewport": {"width": 375, "height": 812}}
WIDE: Any = {}
SESSION = "a-long-session-name-" * 4
expect.set_options(timeout=20_000)

OPEN_ALL = "all => all.forEach(details => details.open = true)"
HEIGHT = "element => element.getBoundingClientRect().height"
SCREENS: list[Any] = [{"color_scheme": scheme} | screen for scheme in ("light", "dark") for screen in (PHONE, WIDE)]


@pytest_asyncio.fixture(loop_scope="module")
async def serve(tmp_path: Path, empty_store: Path) -> AsyncGenerator[Serve, None]:
    """Starts servers on the event loop of the browser."""
    async with serving(tmp_path, empty_store) as start:
        yield start


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser: Browser) -> AsyncGenerator[OpenPage, None]:
    """Opens pages; fails at the end if any logged a problem, showed a dialog or requested another site."""
    problems: list[str] = []

    async def open_(at: At, path: str = "/", **options: Any) -> Page:
        page = await browser.new_page(base_url=at.url, **options)
        page.set_default_timeout(10_000)
        page.on("console", lambda entry: problems.append(entry.text) if entry.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(at.url) else problems.append(request.url))
        await page.goto(path)
        return page

    yield open_
    for context in browser.contexts:
        await context.close()
    assert problems == []


async def every_page(at: At) -> list[str]:
    """Returns a path of each kind of page, with content on each."""
    label: Any = {"metadata": {"session_id": SESSION}, "user": "ann"}
    run, other = await ask(at, model="conductor-ultra", **label), await ask(at, "Again?", **label)
    await at.http.post(f"/v1/runs/{run}/feedback", json={"score": 1, "comment": "x" * 300})
    shown = ["/", f"/runs/{run}", f"/runs/{run}/beside/{other}", "/experiments", "/spending", "/sessions"]
    return [*shown, f"/sessions/turns?key=local&session={SESSION}", "/runs/none", "/sign-in"]


# ---------------------------------------------------------------------------------------- live updates


async def test_the_list_shows_a_run_while_it_starts_and_ends(serve: Serve, open_page: OpenPage) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    page = await open_page(at)
    await expect(page.get_by_text("No runs yet")).to_be_visible()
    asking = asyncio.create_task(ask(at, "Are you there?"))
    row = page.get_by_role("row", name="Are you there?")
    await expect(row.get_by_text("running")).to_be_visible()
    opened.set()
    await expect(row.get_by_text("done")).to_be_visible()
    await asking


async def test_a_run_page_updates_and_open_details_stay_open(serve: Serve, open_page: OpenPage) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.write_queue.flush()
    (row,) = await at.service.store.list_runs()
    page = await open_page(at, f"/runs/{row.id}")
    await expect(page.get_by_role("status")).to_have_text("1 of 2 steps done, b running")
    plan = page.locator("#plan-1")
    await plan.locator("summary").click()
    opened.set()
    await expect(page.get_by_role("heading", name="Answer")).to_be_visible()
    await expect(page.locator(".answer")).to_have_text("from b")
    await expect(page.get_by_role("status")).to_have_count(0)
    await expect(plan).to_have_attribute("open", "")
    await asking


# ---------------------------------------------------------------------------------------- interactions


async def test_the_search_form_filters_runs(serve: Serve, open_page: OpenPage) -> None:
    at = await serve()
    await ask(at, "Where is the tea?")
    await ask(at, "Where is the cake?")
    page = await open_page(at)
    await page.get_by_label("Text in question").fill("CAKE")
    await page.get_by_text("More filters").click()
    await page.get_by_label("Status").select_option("done")
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Search").press("Enter")
    await expect(page.get_by_role("link", name="cake")).to_be_visible()
    await expect(page.get_by_role("link", name="tea")).to_have_count(0)
    await page.get_by_role("link", name="Clear filters").click()
    await expect(page.get_by_role("link", name="tea")).to_be_visible()


async def test_two_selected_runs_are_compared_although_the_list_is_updated_meanwhile(
    serve: Serve, open_page: OpenPage
) -> None:
    at = await serve({"a": ScriptedModel(["It is blue.", "It is green.", "It is red."])})
    await ask(at, "A colour?")
    page = await open_page(at)
    await page.get_by_role("checkbox", name="Select A colour?").check()
    await ask(at, "Another colour?")
    await page.get_by_role("checkbox", name="Select Another colour?").check()
    await page.get_by_role("button", name="Compare the two selected runs").click()
    await expect(page.get_by_role("region", name="Differences").locator(".diff").last).to_have_text("It is green.blue.")


async def test_the_clock_of_a_run_counts_and_stops(serve: Serve, open_page: OpenPage) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    page = await open_page(at)
    clock = page.locator("[data-elapsed]")
    started = await clock.inner_text()
    await expect(clock).not_to_have_text(started)
    opened.set()
    await asking
    await expect(clock).to_have_count(0)


async def test_the_keyboard_alone_reaches_a_step(serve: Serve, open_page: OpenPage) -> None:
    at = await serve(planner=TWO_STEPS)
    await ask(at, "By keyboard?")
    page = await open_page(at)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to main content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="By keyboard?").focus()
    await page.keyboard.press("Enter")
    box = page.get_by_role("link", name="Draft it.").first
    await box.focus()
    await page.keyboard.press("Enter")
    assert page.url.endswith("#round-1-step-1")
    await expect(page.locator("#round-1-step-1")).to_be_in_viewport()


async def test_a_replay_with_another_worker_is_shown_beside_the_original(serve: Serve, open_page: OpenPage) -> None:
    at = await serve({"a": "from a", "b": "from b"}, FOUR)
    run = await ask(at, model="conductor-ultra", conductor={"limits": {"rounds": 1}})
    page = await open_page(at, f"/runs/{run}")
    step = page.locator("#round-1-step-4")
    await step.get_by_text("Replay with a changed step").click()
    await step.get_by_label("Worker").select_option("a")
    await step.get_by_label("Subtask").fill("Say <b>goodbye</b>.")
    await step.get_by_role("button", name="Replay").click()
    first, second = page.get_by_role("region", name="Original run"), page.get_by_role("region", name="Replay")
    await expect(first.locator(".answer")).to_have_text("from b")
    await expect(second.locator(".answer")).to_have_text("from a")
    await expect(second.get_by_role("listitem").get_by_text("reused")).to_have_count(3)
    await expect(second.get_by_role("listitem").last).to_contain_text("Say <b>goodbye</b>.")


async def test_a_thumb_and_a_comment_rate_a_run(serve: Serve, open_page: OpenPage) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    page = await open_page(at, f"/runs/{run}")
    await page.get_by_label("Administrator's key").fill(ADMIN)
    await page.keyboard.press("Enter")
    await page.get_by_label("Comment").fill("Too <b>short</b>.")
    await page.get_by_role("button", name="Bad answer").press("Enter")
    await expect(page.get_by_role("button", name="Bad answer", pressed=True)).to_be_visible()
    await expect(page.locator(".feedback .comment")).to_have_text("Too <b>short</b>.")
    await page.get_by_role("button", name="Good answer").click()
    await expect(page.get_by_role("button", name="Good answer", pressed=True)).to_be_visible()
    await expect(page.locator(".feedback li")).to_have_count(1)


async def test_signing_in_sets_a_cookie_that_scripts_cannot_read(serve: Serve, open_page: OpenPage) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    page = await open_page(at, f"/runs/{run}")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.get_by_label("Administrator's key").fill(ADMIN)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_browser_comes_back_signed_in_from_a_provider_on_another_site(
    serve: Serve, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OIDC_CLIENT_SECRET", CLIENT_SECRET)
    async with provider_running("localhost") as provider:  # another site than 127.0.0.1
        oidc = {"issuer": provider.issuer, "client_id": CLIENT_ID, "admins": {"emails": ["ann@example.com"]}}
        at = await serve(**GUARDED, oidc=oidc)
        run = await ask(at)
        page = await browser.new_page(base_url=at.url)  # not by `open_page`: it requests another site
        await page.goto(f"/runs/{run}")
        await page.get_by_role("link", name="Sign in with your account").click()
        await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
        assert await page.evaluate("document.cookie") == ""
        provider.can_sign_out = True
        assert at.service.oidc is not None
        at.service.oidc._metadata = {}  # as after an hour
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert [request["client_id"] for request in provider.signed_out] == [CLIENT_ID]
        await page.context.close()


async def test_spending_is_shown_as_a_chart_and_a_table(serve: Serve, open_page: OpenPage) -> None:
    at = await serve({name: ScriptedModel(f"from {name}", price=CENT) for name in "ab"}, TWO_STEPS)
    await ask(at)
    page = await open_page(at, "/spending?days=1")
    await expect(page.locator(".chart rect")).to_have_count(2)
    heights = [await rect.evaluate(HEIGHT) for rect in await page.locator(".chart rect").all()]
    assert heights[0] == pytest.approx(heights[1], abs=1)
    assert heights[0] > 20
    await page.locator("[name=by]").select_option("key")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.get_by_role("row", name="local")).to_contain_text("100%")


# --------------------------------------------------------------------------------------- accessibility


@pytest.mark.parametrize(
    "screen", [SCREENS[0], *(pytest.param(screen, marks=pytest.mark.slow) for screen in SCREENS[1:])], ids=str
)
async def test_pages_are_accessible(serve: Serve, open_page: OpenPage, screen: dict[str, Any]) -> None:
    """Checks names, roles, contrast, heading order and keyboard access with axe."""
    at = await serve({"a": ScriptedModel(busy), "b": "from b"}, [TWO_STEPS, ACCEPT, ONE_STEP])
    page = await open_page(at, reduced_motion="reduce", **screen)
    for path in (await every_page(at))[:7]:
        await page.goto(path)
        await page.locator("main details").evaluate_all(OPEN_ALL)
        results = await Axe().run(page, options={"resultTypes": ["violations"]})
        violations = {rule["id"]: [node["html"] for node in rule["nodes"]] for rule in results.response["violations"]}
        assert violations == {}, (path, json.dumps(violations, indent=1))


async def test_nothing_is_wider_than_a_phone(serve: Serve, open_page: OpenPage) -> None:
    at = await serve({"a": "x" * 500, "b": "from b " * 300}, [FOUR, ACCEPT, ONE_STEP])
    page = await open_page(at, **PHONE)
    for path in (await every_page(at))[:7]:
        await page.goto(path)
        await page.locator("main details").evaluate_all(OPEN_ALL)
        assert await page.evaluate("document.documentElement.scrollWidth") == 375, path


@pytest.mark.parametrize("width", [280, 320, 360])
async def test_the_names_of_the_pages_stay_whole_on_a_narrow_phone(
    serve: Serve, open_page: OpenPage, width: int
) -> None:
    page = await open_page(await serve(), viewport={"width": width, "height": 640})
    heights = await page.locator(".site-header nav a").evaluate_all("all => all.map(link => link.clientHeight)")
    assert len(heights) == 4
    assert max(heights) < 40, "a name takes two lines"
    assert await page.evaluate("document.documentElement.scrollWidth") == width


async def test_a_name_that_turns_the_direction_of_text_leaves_the_rest_of_the_line_as_it_is(
    serve: Serve, open_page: OpenPage
) -> None:
    at = await serve()
    run = await ask(at, user="\u202eann", metadata={"session_id": "\u202es"})
    page = await open_page(at)
    name, session = page.locator("td.question bdi"), page.locator("td.question p a")
    assert (await _left(name)) < (await _left(session))
    await page.goto(f"/runs/{run}")
    assert (await _left(page.locator("p.muted bdi").first)) < (await _left(page.get_by_text("Download as JSON")))


async def _left(element: Locator) -> float:
    box = await element.bounding_box()
    assert box is not None
    return float(box["x"])


async def test_a_question_in_arabic_is_written_from_right_to_left(serve: Serve, open_page: OpenPage) -> None:
    at = await serve({"a": "\u0646\u0639\u0645!", "b": "from b"})
    run = await ask(at, "\u0645\u0627 \u0647\u064a RL?")
    page = await open_page(at, f"/runs/{run}")
    for text in (page.locator(".run-title"), page.locator(".answer.markdown p")):
        assert await text.evaluate("text => getComputedStyle(text).unicodeBidi") == "plaintext"


async def test_the_graph_is_vertical_on_a_phone(serve: Serve, open_page: OpenPage) -> None:
    at = await serve(planner=TWO_STEPS)
    run = await ask(at)
    for screen, visible, hidden in ((WIDE, "wide", "tall"), (PHONE, "tall", "wide")):
        page = await open_page(at, f"/runs/{run}", **screen)
        await expect(page.locator(f".graph.{visible}")).to_be_visible()
        await expect(page.locator(f".graph.{hidden}")).to_be_hidden()


@pytest.mark.parametrize(("preference", "animation"), [("reduce", "none"), ("no-preference", "breathe")])
async def test_reduced_motion_stops_animations(
    serve: Serve, open_page: OpenPage, preference: Any, animation: str
) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    page = await open_page(at, reduced_motion=preference)
    style = "running => getComputedStyle(running, '::before').animationName"
    assert await page.locator(".state.running").evaluate(style) == animation
    opened.set()
    await asking


# -------------------------------------------------------------------------------------------- untrusted text


async def test_untrusted_text_never_runs(serve: Serve, open_page: OpenPage) -> None:
    name = NASTY[1]
    replies = iter(NASTY)
    at = await serve({name: lambda _: next(replies)}, ONE_STEP)
    page = await open_page(at)
    for nasty in NASTY:
        run = await ask(at, nasty, metadata={"said": nasty})
        await page.goto(f"/runs/{run}")
        assert (await page.locator("h1").inner_text()).strip() == " ".join(nasty.split())
    await page.goto("/")
    assert await page.locator("main :is(script, img, iframe, form[action^=http])").count() == 0


async def test_an_image_in_a_reply_is_not_loaded(serve: Serve, open_page: OpenPage) -> None:
    at = await serve({"a": "![a chart](http://192.0.2.1/pixel.png) and [a link](https://example.com)"})
    page = await open_page(at, f"/runs/{await ask(at)}")  # it fails if another site is requested
    await expect(page.locator(".answer")).to_have_text("[image: a chart] and a link")
    await page.wait_for_load_state("networkidle")
    assert await page.locator("main img").count() == 0


async def test_an_injected_script_does_not_run(serve: Serve, browser: Browser) -> None:
    at = await serve()
    page = await browser.new_page(base_url=at.url)  # not by `open_page`: the violations are logged
    await page.goto("/sign-in")
    blocked = await page.evaluate("""async () => {
      const violations = [];
      document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
      const script = document.createElement("script");
      try { script.textContent = "window.ran = true"; } catch (error) { violations.push(error.name); }
      const image = document.createElement("img");
      image.setAttribute("src", "http://192.0.2.1/");
      document.body.append(script, image);
      await new Promise((resolve) => setTimeout(resolve, 100));
      return [violations, window.ran];
    }""")
    await page.context.close()
    assert blocked[1] is None
    assert {"TypeError", "img-src"} <= set(blocked[0])
