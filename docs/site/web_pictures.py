"""Takes the pictures of the server's web pages in `docs/images`.

    python docs/site/web_pictures.py

Starts a server over scripted workers, with a store in a temporary folder, asks it questions, spreads the runs over a
week, replays one of them with a change, and takes a picture of each page in Chromium.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from PIL import Image
from playwright.async_api import Page, async_playwright
from uvicorn import Config, Server

from rl_conductor import ULTRA, Conductor, Price, Request, ScriptedModel, Step, Worker, WorkerPool, Workflow
from rl_conductor_server.app import create_app
from rl_conductor_server.settings import Settings

IMAGES = Path(__file__).parents[1] / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH: Final = 1280
DAY = 86_400

KIOSK = "Should we open a coffee kiosk at the station? We have a budget of 40,000 euros."
CODE = "Merge overlapping intervals in Python. Keep it short and state the complexity."
LETTER = "Write a friendly letter that declines an invitation to speak."
MINUTES = "Summarize the attached minutes in five bullet points."
SUM = "What is 17 * 23?"
WEEK = [
    [KIOSK, CODE, LETTER, MINUTES],
    [CODE, KIOSK, SUM],
    [KIOSK, LETTER, SUM, CODE],
    [CODE, KIOSK, MINUTES],
    [SUM, LETTER],
    [CODE, MINUTES],
    [SUM, LETTER, CODE, MINUTES, KIOSK],
]
"""The questions of each day, today last."""

PLANS = {
    KIOSK: Workflow(
        steps=(
            Step(subtask="List the fixed costs of the kiosk for the first year, month by month.", worker="atlas"),
            Step(subtask="Estimate how many cups per day a kiosk at a railway station sells.", worker="brook"),
            Step(subtask="Estimate the cost of the ingredients of one cup.", worker="cedar"),
            Step(
                subtask="Compute the break-even number of cups per day from the costs.",
                worker="atlas",
                access={0, 1, 2},
            ),
            Step(
                subtask="Write the recommendation: compare the estimate with the break-even number.",
                worker="brook",
                access={0, 1, 2, 3},
            ),
        )
    ),
    CODE: Workflow(
        steps=(
            Step(subtask="Write the function.", worker="atlas"),
            Step(subtask="Check it, and state the complexity.", worker="brook", access={0}),
        )
    ),
    LETTER: Workflow(
        steps=(
            Step(subtask="Draft the letter.", worker="brook"),
            Step(subtask="Make it friendlier.", worker="atlas", access={0}),
        )
    ),
    MINUTES: Workflow(
        steps=(
            Step(subtask="List all decisions.", worker="atlas"),
            Step(subtask="Shorten them to five points.", worker="brook", access={0}),
        )
    ),
    SUM: Workflow(steps=(Step(subtask="Multiply.", worker="cedar"),)),
}
REPLIES = {
    "List the fixed costs": "Rent 900, insurance 60, machine lease 240 and permits 50 euros per month: 1,250 euros.",
    "Estimate how many cups": "About 75 cups per working day, 60 in winter; the winter number is uncertain.",
    "Estimate the cost": "0.45 euros per cup.",
    "Compute the break-even": "At 2.30 euros per cup, 1.85 remain. 1,250 / 1.85 / 22 days is 31 cups per day.",
    "Write the recommendation": "**Open the kiosk.** It breaks even at 31 cups per day, and a station kiosk "
    "sells about 75.\n\n- The rent is the largest cost.\n"
    "- The winter estimate is the least certain: keep 6,000 euros in reserve.",
    "Write the function": "def merge(spans): ...",
    "Check it": "Correct. Sorting takes O(n log n).",
    "Draft the letter": "Dear Ms Lind, thank you for the invitation.",
    "Make it friendlier": "Dear Ms Lind, what a kind invitation! I can't come in May, but gladly another time.",
    "List all decisions": "Nine decisions, from the budget to the new printer.",
    "Shorten them": "- The budget is approved.\n- The fair is in June.\n- Ann leads the project.\n"
    "- The printer is replaced.\n- The next meeting is on 3 May.",
    "Multiply": "391",
}
"""The reply to each subtask, by its beginning."""
WORKERS = {
    "atlas": ("reasoning, mathematics, code", Price(input=Decimal(3), output=Decimal(12)), 0.03),
    "brook": ("estimates and clear writing", Price(input=Decimal("0.8"), output=Decimal(3)), 0.02),
    "cedar": ("short, simple questions", Price(input=Decimal("0.1"), output=Decimal("0.4")), 0.02),
}
"""The strengths, the price and the seconds per word of each worker."""


def plan_text(request: Request) -> str:
    """Returns the plan for the question of a request, in the form `rows`."""
    prompt = request.messages[-1].text
    workflow = next(plan for question, plan in PLANS.items() if question in prompt)
    names = list(WORKERS)
    rows = [f'[{names.index(step.worker)}, "{step.subtask}", {_access_text(step)}]' for step in workflow.steps]
    return "\n".join(["Split the question into its parts, then join them.", *rows])


def _access_text(step: Step) -> str:
    return '["all"]' if step.access else "[]"


def reply_to(request: Request) -> str:
    """Returns the reply to the subtask of a worker's prompt."""
    prompt = request.messages[-1].text
    last = max(REPLIES, key=prompt.rfind)
    return REPLIES[last]


def duration(seconds_per_word: float) -> Callable[[Request], float]:
    """Returns a function that gives a worker's seconds for a request, by the length of the reply."""
    return lambda request: seconds_per_word * len(reply_to(request).split())


def conductor() -> Conductor:
    """Builds a conductor over scripted workers, which take some time and have prices."""
    planner = ScriptedModel(
        plan_text, name="planner", delay=0.1, price=Price(input=Decimal("0.15"), output=Decimal("0.6"))
    )
    pool = WorkerPool(
        Worker.of(name, ScriptedModel(reply_to, name=name, delay=duration(pace), price=price), description=strengths)
        for name, (strengths, price, pace) in WORKERS.items()
    )
    return Conductor(planner, pool, limits=ULTRA.limits.model_copy(update={"rounds": 1}), name="team")


@asynccontextmanager
async def running_server(folder: Path) -> AsyncGenerator[tuple[str, Path], None]:
    """Runs a server in this process; yields its address and the file of its store."""
    store = folder / "runs.db"
    settings = Settings.model_validate({"store": {"url": f"sqlite:///{store}"}})
    server = Server(Config(create_app(conductor(), settings=settings), log_level="warning", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", store
        server.should_exit = True
        await task


async def ask(http: httpx.AsyncClient, question: str) -> str:
    """Asks a question and returns the id of its run."""
    body = {"model": "team", "messages": [{"role": "user", "content": question}]}
    reply = await http.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    return reply.headers["x-conductor-run"]


async def fill(http: httpx.AsyncClient, store: Path) -> str:
    """Asks the questions of a week, and returns the id of the last run."""
    run = ""
    for age, questions in reversed(list(enumerate(reversed(WEEK)))):
        runs = [run := await ask(http, question) for question in questions]
        if age:
            await wait_until_stored(http, runs)
            marks = ", ".join("?" * len(runs))
            with closing(sqlite3.connect(store)) as database, database:
                database.execute(f"UPDATE runs SET created = created - ? WHERE id IN ({marks})", (age * DAY, *runs))  # noqa: S608
    return run


async def wait_until_stored(http: httpx.AsyncClient, runs: list[str]) -> None:
    """Waits until the traces of runs are in the store."""
    for run in runs:
        while (await http.get(f"/v1/runs/{run}")).json().get("status") == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def replay(page: Page, run: str) -> None:
    """Replays a run with another worker for its fourth step, and waits for both runs side by side."""
    await page.goto(f"/runs/{run}")
    step = page.locator("#round-1-step-4")
    await step.get_by_text("Replay with a changed step").click()
    await step.get_by_label("Worker").select_option("brook")
    await step.get_by_role("button", name="Replay").click()
    await page.get_by_role("region", name="Replay").get_by_text("done").wait_for()


async def open_run(page: Page, run: str) -> None:
    """Opens the page of a run and folds its input."""
    await page.goto(f"/runs/{run}")
    await page.locator("#input-messages summary").click()
    await page.evaluate("window.scrollTo(0, 0)")


async def take(page: Page, name: str, height: int) -> None:
    """Saves the visible part of a page as `docs/images/NAME.png`, with at most 256 colours."""
    size = page.viewport_size or {"width": WIDTH}
    await page.set_viewport_size({"width": size["width"], "height": height})
    picture = Image.open(BytesIO(await page.screenshot()))
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


async def main() -> None:
    """Takes all pictures."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    with TemporaryDirectory() as folder:
        async with running_server(Path(folder)) as (url, store), async_playwright() as playwright:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                run = await fill(http, store)
            browser = await playwright.chromium.launch(executable_path=program)
            wide: Any = {"base_url": url, "viewport": {"width": WIDTH, "height": 800}}
            page = await browser.new_page(**wide)
            await replay(page, run)
            await take(page, "replay", 1700)
            for path, name in (("/", "runs"), ("/spending", "spending")):
                await page.goto(path)
                await take(page, name, 800)
            await open_run(page, run)
            await take(page, "run", 1580)
            phone: Any = {"base_url": url, "viewport": {"width": 375, "height": 1500}, "color_scheme": "dark"}
            small = await browser.new_page(**phone)
            await open_run(small, run)
            await small.get_by_role("heading", name="Plan", exact=True).evaluate(
                "heading => scrollTo(0, heading.offsetTop - 20)"
            )
            await take(small, "run-phone", 1500)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
