"""The pages' routes: each reads what its page shows and says which template shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from rl_conductor.errors import ConductorError, RunError
from rl_conductor.server.errors import ApiError, api_error, refused
from rl_conductor.server.lookups import Shared
from rl_conductor.server.service import DAY, HOUR, Service
from rl_conductor.server.streaming import at_work
from rl_conductor.server.web import replays
from rl_conductor.server.web.charts import Chart, Measure
from rl_conductor.server.web.feed import changes
from rl_conductor.server.web.rendering import SECURITY, Page
from rl_conductor.server.web.sessions import Visited, admitted, dismissed, form, is_guarded
from rl_conductor.server.web.views import Progress, RunView
from rl_conductor.store import Search
from rl_conductor.store.searching import By
from rl_conductor.types import total

ASSETS = Path(__file__).parent / "assets"
PAGE_SIZE = 30
SPANS = {1: "a day, by the hour", 7: "7 days", 30: "30 days", 90: "90 days"}
OUTCOMES = ("running", "done", "failed", "cancelled")


class PageRoute(APIRoute):
    """Tells what went wrong as a page, and shows strangers where to sign in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint, and what is told when it fails."""
        answer = super().get_route_handler()

        async def told(http: Request) -> Response:
            try:
                return await answer(http)
            except (ConductorError, RequestValidationError) as error:
                return _refusal(http, error)

        return told


router = APIRouter(route_class=PageRoute, include_in_schema=False)


def _refusal(http: Request, error: Exception) -> Response:
    known = api_error(error) if isinstance(error, ConductorError) else refused("this can't be read; start anew")
    if known.code == "signed_out" and http.method == "GET" and http.url.path != "/feed":
        asked = f"{http.url.path}?{http.url.query}" if http.url.query else http.url.path
        return RedirectResponse(f"/sign-in?{urlencode({'next': asked})}", status_code=303, headers=SECURITY)
    return Page("refusal.html", status=known.status, headers=known.headers, error=known, guarded=False)


# --------------------------------------------------------------------------------------------- runs


@router.get("/")
async def newest(http: Request, service: Visited) -> Response:
    """The newest runs, or those that are searched for."""
    asked = {name: value for name, value in http.query_params.items() if value}
    rows = await service.store.runs(_search(asked), most=PAGE_SIZE + 1)
    older = urlencode(asked | {"before": repr(rows[PAGE_SIZE - 1].created)}) if len(rows) > PAGE_SIZE else None
    return Page(
        "runs.html",
        rows=rows[:PAGE_SIZE],
        asked=asked,
        older=older,
        workers=[name for name in await service.store.workers() if name],
        models=[served.name for served in service.catalogue],
        keys=[account.name for account in service.keys.accounts],
        outcomes=OUTCOMES,
        guarded=is_guarded(service),
    )


def _search(asked: Mapping[str, str]) -> Search:
    """What the fields of the form mean.

    Raises:
        ApiError: nothing.
    """
    try:
        return Search(
            text=asked.get("text"),
            worker=asked.get("worker"),
            model=asked.get("model"),
            key=asked.get("key"),
            status=asked.get("status"),
            since=_midnight(asked.get("since")),
            before=_earlier(asked),
        )
    except (ValidationError, ValueError):
        raise ApiError("this search can't be read; start anew", status=400, code="invalid_value") from None


def _earlier(asked: Mapping[str, str]) -> float | None:
    """Before the page at hand, if that is not the first, and before the end of the last day that is wanted."""
    ends = _midnight(asked.get("until"), days=1), float(asked["before"]) if "before" in asked else None
    return min((end for end in ends if end is not None), default=None)


def _midnight(day: str | None, *, days: int = 0) -> float | None:
    """When a day begins by UTC, or some days later."""
    if day is None:
        return None
    return (datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC) + timedelta(days=days)).timestamp()


@router.get("/runs/{run}")
async def one(run: str, service: Visited) -> Response:
    """A run, from its plan to its answer."""
    return Page("run.html", run=await view(service, run), guarded=is_guarded(service))


async def view(service: Service, run: str) -> RunView:
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


@router.post("/runs/{run}/replay")
async def replay(run: str, http: Request, service: Visited) -> Response:
    """Begin a run that differs in one decision, and show both."""
    change = replays.read_change(await form(http, service))
    first = await view(service, run)
    if first.trace is None:
        raise ApiError("What this run said is not kept, so it can't be replayed.", status=409, code="not_kept")
    live = await replays.start(service, first.row, first.trace, change)
    with suppress(RunError):  # its page tells why there is no answer
        await at_work([live])
    await service.store.journal.flush()
    return RedirectResponse(f"/runs/{run}/beside/{live.id}", status_code=303, headers=SECURITY)


@router.get("/runs/{run}/beside/{other}")
async def beside(run: str, other: str, service: Visited) -> Response:
    """Two runs side by side."""
    left, right = await view(service, run), await view(service, other)
    return Page("beside.html", left=left, right=right, guarded=is_guarded(service))


# ----------------------------------------------------------------------------------------- spending


@router.get("/spending")
async def spending(service: Visited, by: By = "worker", days: int = 7, measure: Measure | None = None) -> Response:
    """What was used by each worker, profile or key, in each hour or day."""
    if days not in SPANS:
        raise refused(f"choose one of {', '.join(map(str, SPANS))} days")
    width = HOUR if days == 1 else DAY
    end = (time.time() // width + 1) * width
    start = end - days * DAY
    spent = await service.store.spending(by, since=start, before=end, width=width)
    whole = total(one.usage for one in spent)
    shown: Measure = measure or ("cost" if whole.cost else "tokens")
    chart = Chart.of(spent, shown, start=start, spans=round((end - start) / width), width=width)
    return Page(
        "spending.html",
        chart=chart,
        whole=whole,
        by=by,
        days=days,
        spans=SPANS,
        measure=shown,
        start=start,
        end=end - width,
        guarded=is_guarded(service),
    )


# --------------------------------------------------------------------------------------------- feed


@router.get("/feed")
async def feed(service: Visited, run: str | None = None) -> Response:
    """When to look again."""
    return StreamingResponse(changes(service, run), media_type="text/event-stream", headers=SECURITY)


# -------------------------------------------------------------------------------------- who may look


@router.get("/sign-in")
async def sign_in_page(next: str = "/") -> Response:  # noqa: A002  the name of the field
    """Where the administrator's key is shown."""
    return Page("sign_in.html", next=next, refused=False, guarded=False)


@router.post("/sign-in")
async def sign_in(http: Request, service: Shared) -> Response:
    """Check the key."""
    fields = await form(http, service)
    wanted = fields.get("next", "/")
    try:
        return await admitted(http, service, fields.get("key", ""), wanted)
    except ApiError as error:
        return Page("sign_in.html", status=error.status, next=wanted, refused=True, guarded=False)


@router.post("/sign-out")
async def sign_out(http: Request, service: Shared) -> Response:
    """Forget this browser."""
    await form(http, service)
    return await dismissed(http, service)


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """A file that the pages need."""
    known = {path.name: path for path in ASSETS.iterdir()}
    if name not in known:
        raise ApiError(f"There is no {name!r}.", status=404, code="not_found")
    return FileResponse(known[name], headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"})
