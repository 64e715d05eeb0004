"""The pages' routes: each reads what its page shows and says which template shows it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from rl_conductor.errors import RunError
from rl_conductor.types import total
from rl_conductor_server.api.sse import at_work
from rl_conductor_server.endpoints.lookups import RunId
from rl_conductor_server.errors import ApiError, refused
from rl_conductor_server.experiments.results import trials
from rl_conductor_server.service import DAY, HOUR, Service
from rl_conductor_server.store.queries import By
from rl_conductor_server.web.charts import Chart, Measure
from rl_conductor_server.web.feed import changes
from rl_conductor_server.web.forms import Form
from rl_conductor_server.web.rendering import SECURITY, Page
from rl_conductor_server.web.replays import begin, read_change
from rl_conductor_server.web.routing import page_router, see_other
from rl_conductor_server.web.search import read_search
from rl_conductor_server.web.sessions import Visited, is_guarded
from rl_conductor_server.web.sessions import router as sessions
from rl_conductor_server.web.views import Progress, RunView

ASSETS = {path.name: path for path in (Path(__file__).parent / "assets").iterdir()}
PAGE_SIZE = 30
SPANS = {1: "a day, by the hour", 7: "7 days", 30: "30 days", 90: "90 days"}
OUTCOMES = ("running", "done", "failed", "cancelled")

router = page_router()
router.include_router(sessions)


@router.get("/")
async def newest(http: Request, service: Visited) -> Response:
    """The newest runs, or those that are searched for."""
    asked = {name: value.replace("\0", "") for name, value in http.query_params.items() if value}
    rows = await service.store.runs(read_search(asked), most=PAGE_SIZE + 1)
    there_are_more = len(rows) > PAGE_SIZE
    rows = rows[:PAGE_SIZE]
    first = {name: value for name, value in asked.items() if name != "before"}
    return Page(
        "runs.html",
        rows=rows,
        asked=asked,
        first=urlencode(first),
        older=urlencode(first | {"before": repr(rows[-1].created)}) if there_are_more else None,
        workers=[name for name in await service.store.workers() if name],
        models=[served.name for served in service.catalogue],
        keys=[account.name for account in service.keys.accounts],
        outcomes=OUTCOMES,
        guarded=is_guarded(service),
    )


@router.get("/runs/{run}")
async def show_run(run: RunId, service: Visited) -> Response:
    """A run, from its plan to its answer."""
    return Page("run.html", run=await _view(service, run), guarded=is_guarded(service))


async def _view(service: Service, run: str) -> RunView:
    """What there is to show of a run.

    Raises:
        ApiError: there is no such run.
    """
    row = await service.store.run(run)
    if row is None:
        raise ApiError(f"There is no run {run!r}, or no longer.", status=404, code="run_not_found")
    trace = await service.store.trace(run)
    if trace is not None:
        return RunView.of(row, trace, Progress())
    live = service.runs.live(run)
    progress = Progress.of(live.so_far) if live else Progress(rounds=await service.store.so_far(run))
    return RunView.of(row, None, progress)


@router.get("/feed")
async def feed(service: Visited, run: str | None = None) -> Response:
    """When to look at a page again."""
    return StreamingResponse(changes(service, run), media_type="text/event-stream", headers=SECURITY)


# ------------------------------------------------------------------------------------------ replays


@router.post("/runs/{run}/replay")
async def replay(run: RunId, service: Visited, form: Form) -> Response:
    """Begin a run that differs in one decision, and show both."""
    change = read_change(form)
    first = await _view(service, run)
    if first.trace is None:
        raise ApiError("What this run said is not kept, so it can't be replayed.", status=409, code="not_kept")
    live = await begin(service, first.row, first.trace, change)
    with suppress(RunError):  # its page tells why there is no answer
        await at_work([live])
    await service.store.journal.flush()
    return see_other(f"/runs/{run}/beside/{live.id}")


@router.get("/runs/{run}/beside/{other}")
async def beside(run: RunId, other: RunId, service: Visited) -> Response:
    """Two runs side by side."""
    left, right = await _view(service, run), await _view(service, other)
    return Page("beside.html", left=left, right=right, guarded=is_guarded(service))


# ------------------------------------------------------------------------------------------- routes


@router.get("/routes")
async def routes(service: Visited) -> Response:
    """Whose answers were better on each route, what they cost, and how far each canary is."""
    return Page("routes.html", trials=await trials(service.store), guarded=is_guarded(service))


# ----------------------------------------------------------------------------------------- spending


@router.get("/spending")
async def spending(service: Visited, by: By = "worker", days: int = 7, measure: Measure | None = None) -> Response:
    """What was used by each worker, profile or key, in each hour or day."""
    if days not in SPANS:
        raise refused(f"There are {', '.join(map(str, SPANS))} days to choose from.")
    width = HOUR if days == 1 else DAY
    end = (time.time() // width + 1) * width
    start = end - days * DAY
    spent = await service.store.spending(by, since=start, before=end, width=width)
    whole = total(one.usage for one in spent)
    shown: Measure = measure or ("cost" if whole.cost else "tokens")
    return Page(
        "spending.html",
        chart=Chart.of(spent, shown, start=start, spans=round((end - start) / width), width=width),
        whole=whole,
        by=by,
        days=days,
        spans=SPANS,
        measure=shown,
        start=start,
        end=end - width,
        guarded=is_guarded(service),
    )


# ------------------------------------------------------------------------------------------- assets


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """A file that the pages need."""
    if name not in ASSETS:
        raise ApiError(f"There is no {name!r}.", status=404, code="not_found")
    return FileResponse(ASSETS[name], headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"})
