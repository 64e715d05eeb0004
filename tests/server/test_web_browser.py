"""The pages in a real browser: live, by keyboard, on a telephone, in the dark, for screen readers, and under attack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from browser import browser
from core.runs import ACCEPT, Gated, busy
from rl_conductor.models.scripted import ScriptedModel
from server.conftest import ONE_STEP, TWO_STEPS, At, Serve
from server.test_runs import gate
from server.test_web import ADMIN, CENT, FOUR, GUARDED, NASTY, ask

__all__ = ["browser"]

Look = Callable[..., Awaitable[Page]]
TELEPHONE: Any = {"viewport": {"width": 375, "height": 812}}
WIDE: Any = {}
expect.set_options(timeout=20_000)

OPEN = "all => all.forEach(details => details.open = true)"
HEIGHT = "drawn => drawn.getBoundingClientRect().height"
SIGHTS: list[Any] = [{"color_scheme": scheme} | screen for scheme in ("light", "dark") for screen in (TELEPHONE, WIDE)]


@pytest.fixture
async def look(browser: Browser) -> AsyncGenerator[Look, None]:
    """Opens pages; at the end, none of them may have reported a problem, shown a dialog or left the server."""
    problems: list[str] = []

    async def open_page(at: At, path: str = "/", **options: Any) -> Page:
        page = await browser.new_page(base_url=at.url, **options)
        page.set_default_timeout(10_000)
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda sent: None if sent.url.startswith(at.url) else problems.append(sent.url))
        await page.goto(path)
        return page

    yield open_page
    assert problems == []


async def every_page(at: At) -> list[str]:
    """Paths of all kinds of pages, with something on each."""
    run, other = await ask(at, model="conductor-ultra"), await ask(at, "Again?")
    return ["/", f"/runs/{run}", f"/runs/{run}/beside/{other}", "/routes", "/spending", "/sign-in", "/runs/none"]


# ------------------------------------------------------------------------------------------------ live


async def test_a_run_appears_and_ends_while_one_watches(serve: Serve, look: Look) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    page = await look(at)
    await expect(page.get_by_text("No runs yet")).to_be_visible()
    asking = asyncio.create_task(ask(at, "Are you there?"))
    row = page.get_by_role("row", name="Are you there?")
    await expect(row.get_by_text("running")).to_be_visible()
    opened.set()
    await expect(row.get_by_text("done")).to_be_visible()
    await asking


async def test_a_run_is_drawn_as_it_goes_on_and_what_is_open_stays_open(serve: Serve, look: Look) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    await at.service.store.journal.flush()
    (row,) = await at.service.store.runs()
    page = await look(at, f"/runs/{row.id}")
    await expect(page.get_by_role("status")).to_have_text("1 of 2 steps done, b at work")
    plan = page.locator("#plan-1")
    await plan.locator("summary").click()
    opened.set()
    await expect(page.get_by_role("heading", name="Answer")).to_be_visible()
    await expect(page.locator(".answer")).to_have_text("from b")
    await expect(page.get_by_role("status")).to_have_count(0)
    await expect(plan).to_have_attribute("open", "")
    await asking


# ------------------------------------------------------------------------------------------ what one does


async def test_runs_are_found_by_the_form(serve: Serve, look: Look) -> None:
    at = await serve()
    await ask(at, "Where is the tea?")
    await ask(at, "Where is the cake?")
    page = await look(at)
    await page.get_by_label("Words").fill("CAKE")
    await page.get_by_text("By outcome").click()
    await page.get_by_label("Outcome").select_option("done")
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Search").press("Enter")
    await expect(page.get_by_role("link", name="cake")).to_be_visible()
    await expect(page.get_by_role("link", name="tea")).to_have_count(0)
    await page.get_by_role("link", name="Show all").click()
    await expect(page.get_by_role("link", name="tea")).to_be_visible()


async def test_the_keyboard_alone_leads_to_a_step(serve: Serve, look: Look) -> None:
    at = await serve(planner=TWO_STEPS)
    await ask(at, "By keyboard?")
    page = await look(at)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="By keyboard?").focus()
    await page.keyboard.press("Enter")
    box = page.get_by_role("link", name="Draft it.").first
    await box.focus()
    await page.keyboard.press("Enter")
    assert page.url.endswith("#round-1-step-1")
    await expect(page.locator("#round-1-step-1")).to_be_in_viewport()


async def test_a_step_given_to_another_worker_is_replayed_beside_the_first_run(serve: Serve, look: Look) -> None:
    at = await serve({"a": "from a", "b": "from b"}, FOUR)
    run = await ask(at, model="conductor-ultra", conductor={"limits": {"rounds": 1}})
    page = await look(at, f"/runs/{run}")
    step = page.locator("#round-1-step-4")
    await step.get_by_text("Replay with this step changed").click()
    await step.get_by_label("Worker").select_option("a")
    await step.get_by_label("Subtask").fill("Say <b>goodbye</b>.")
    await step.get_by_role("button", name="Replay").click()
    first, second = page.get_by_role("region", name="First run"), page.get_by_role("region", name="Replay")
    await expect(first.locator(".answer")).to_have_text("from b")
    await expect(second.locator(".answer")).to_have_text("from a")
    await expect(second.get_by_role("listitem").get_by_text("kept")).to_have_count(3)
    await expect(second.get_by_role("listitem").last).to_contain_text("Say <b>goodbye</b>.")


async def test_one_signs_in_and_no_script_can_read_the_cookie(serve: Serve, look: Look) -> None:
    at = await serve(**GUARDED)
    run = await ask(at)
    page = await look(at, f"/runs/{run}")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.get_by_label("Administrator's key").fill(ADMIN)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Say something.")).to_be_visible()
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_spending_is_drawn_and_told_in_a_table(serve: Serve, look: Look) -> None:
    at = await serve({name: ScriptedModel(f"from {name}", price=CENT) for name in "ab"}, TWO_STEPS)
    await ask(at)
    page = await look(at, "/spending?days=1")
    await expect(page.locator(".chart rect")).to_have_count(2)
    heights = [await one.evaluate(HEIGHT) for one in await page.locator(".chart rect").all()]
    assert heights[0] == pytest.approx(heights[1], abs=1)
    assert heights[0] > 20
    await page.locator("[name=by]").select_option("key")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("row", name="local")).to_contain_text("100%")


# ------------------------------------------------------------------------------------------- for everybody


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
async def test_no_page_shuts_anybody_out(serve: Serve, look: Look, sight: dict[str, Any]) -> None:
    """Checked by axe: names, roles, contrast, order of headings, and what a keyboard can reach."""
    at = await serve({"a": ScriptedModel(busy), "b": "from b"}, [TWO_STEPS, ACCEPT, ONE_STEP])
    for path in (await every_page(at))[:5]:
        page = await look(at, path, reduced_motion="reduce", **sight)
        await page.locator("main details").evaluate_all(OPEN)
        found = await Axe().run(page, options={"resultTypes": ["violations"]})
        told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]]
        assert told == [], (path, json.dumps(told, indent=1))
        await page.close()


async def test_nothing_is_wider_than_a_telephone(serve: Serve, look: Look) -> None:
    at = await serve({"a": "x" * 500, "b": "from b " * 300}, [FOUR, ACCEPT, ONE_STEP])
    for path in (await every_page(at))[:5]:
        page = await look(at, path, **TELEPHONE)
        await page.locator("main details").evaluate_all(OPEN)
        assert await page.evaluate("document.documentElement.scrollWidth") == 375, path
        await page.close()


async def test_the_drawing_stands_upright_on_a_telephone(serve: Serve, look: Look) -> None:
    at = await serve(planner=TWO_STEPS)
    run = await ask(at)
    for screen, seen, hidden in ((WIDE, "wide", "tall"), (TELEPHONE, "tall", "wide")):
        page = await look(at, f"/runs/{run}", **screen)
        await expect(page.locator(f".graph.{seen}")).to_be_visible()
        await expect(page.locator(f".graph.{hidden}")).to_be_hidden()


@pytest.mark.parametrize(("wish", "moves"), [("reduce", "none"), ("no-preference", "breathe")])
async def test_nothing_moves_for_those_who_do_not_want_it(serve: Serve, look: Look, wish: Any, moves: str) -> None:
    opened, wait = gate()
    b = Gated("from b", wait)
    at = await serve({"a": "from a", "b": b}, TWO_STEPS)
    asking = asyncio.create_task(ask(at))
    await b.asked.wait()
    page = await look(at, reduced_motion=wish)
    style = "running => getComputedStyle(running, '::before').animationName"
    assert await page.locator(".state.running").evaluate(style) == moves
    opened.set()
    await asking


# -------------------------------------------------------------------------------------------- untrusted text


async def test_nothing_that_was_said_runs(serve: Serve, look: Look) -> None:
    name = NASTY[1]
    says = iter(NASTY)
    at = await serve({name: lambda _: next(says)}, ONE_STEP)
    for nasty in NASTY:
        run = await ask(at, nasty, metadata={"said": nasty})
        page = await look(at, f"/runs/{run}")
        assert (await page.locator("h1").inner_text()).strip() == " ".join(nasty.split())
        await page.close()
    page = await look(at)
    assert await page.locator("main :is(script, img, iframe, form[action^=http])").count() == 0


async def test_a_script_that_got_into_a_page_would_not_run(serve: Serve, browser: Browser) -> None:
    at = await serve()
    page = await browser.new_page(base_url=at.url)  # not by `look`: this page has problems to report
    await page.goto("/sign-in")
    blocked = await page.evaluate("""async () => {
      const seen = [];
      document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
      const script = document.createElement("script");
      try { script.textContent = "window.ran = true"; } catch (error) { seen.push(error.name); }
      const image = document.createElement("img");
      image.setAttribute("src", "http://192.0.2.1/");
      document.body.append(script, image);
      await new Promise((done) => setTimeout(done, 100));
      return [seen, window.ran];
    }""")
    assert blocked[1] is None
    assert {"TypeError", "img-src"} <= set(blocked[0])
