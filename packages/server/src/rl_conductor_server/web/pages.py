"""The pages: each reads its data and renders a template."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from rl_conductor.errors import RunError
from rl_conductor.types import total
from rl_conductor_server.access_errors import without_access_errors
from rl_conductor_server.api.frames import wait_started
from rl_conductor_server.auth.keys import ADMINISTRATOR
from rl_conductor_server.endpoints.dependencies import RunId
from rl_conductor_server.endpoints.feedback import check_run, store_feedback
from rl_conductor_server.endpoints.runs import erase_run, run_response
from rl_conductor_server.errors import ApiError, invalid_request, run_not_found
from rl_conductor_server.experiments.results import load_results
from rl_conductor_server.service import HOUR
from rl_conductor_server.store import FeedbackFilter, Search
from rl_conductor_server.store.models import SpendingGroup, Status
from rl_conductor_server.store.tables import DAY
from rl_conductor_server.transport.streams import EventStream
from rl_conductor_server.web.change_events import change_events
from rl_conductor_server.web.charts import Chart, Measure
from rl_conductor_server.web.comparison import compare_runs
from rl_conductor_server.web.feedback import FeedbackView, parse_feedback
from rl_conductor_server.web.forms import Form
from rl_conductor_server.web.rendering import SECURITY_HEADERS, Page, Visitor
from rl_conductor_server.web.replays import parse_change, start_replay
from rl_conductor_server.web.routing import page_router, see_other
from rl_conductor_server.web.run_view import Progress, RunView
from rl_conductor_server.web.search_form import parse_search
from rl_conductor_server.web.sign_in import AdministratorPage, SignedIn
from rl_conductor_server.web.sign_in import router as sign_in

ASSETS = {path.name: path for path in (Path(__file__).parent / "assets").iterdir()}
PAGE_SIZE = 30
MAX_TURNS = 200
PERIODS = {1: "24 hours", 7: "7 days", 30: "30 days", 90: "90 days"}

router = page_router()
router.include_router(sign_in)


@router.get("/")
async def list_runs(http: Request, visitor: SignedIn) -> Response:
    """Lists the newest runs that match the search."""
    filters = {name: value.replace("\0", "") for name, value in http.query_params.items() if value}
    service = visitor.service
    search = parse_search(filters | ({} if visitor.key is None else {"key": visitor.key}))
    rows = await service.store.list_runs(search, limit=PAGE_SIZE + 1)
    has_older = len(rows) > PAGE_SIZE
    rows = rows[:PAGE_SIZE]
    first_page = {name: value for name, value in filters.items() if name != "before"}
    return Page(
        "runs.html",
        rows=rows,
        filters=filters,
        newest=urlencode(first_page),
        older=urlencode(first_page | {"before": repr(rows[-1].created)}) if has_older else None,
        workers=[name for name in await service.store.list_workers() if name] if visitor.is_admin else [],
        models=[model.name for model in visitor.service.catalog],
        keys=[key.name for key in service.keys if visitor.key in (None, key.name)],
        statuses=get_args(Status),
        feedback=get_args(FeedbackFilter),
        visitor=visitor,
    )


@router.get("/runs/{run}")
async def show_run(run: RunId, visitor: SignedIn) -> Response:
    view, feedback = await _run_view(visitor, run), FeedbackView(await visitor.service.store.feedback.list(run))
    return await asyncio.to_thread(Page, "run.html", run=view, feedback=feedback, visitor=visitor)


@router.get("/runs/{run}/download")
async def download_run(run: RunId, visitor: SignedIn) -> Response:
    """Returns a run with its trace and feedback as a JSON file."""
    headers = SECURITY_HEADERS | {"content-disposition": f'attachment; filename="{run}.json"'}
    return await run_response(visitor.service, run, key=visitor.key, headers=headers, feedback=True)


async def _run_view(visitor: Visitor, run: str) -> RunView:
    """Loads a run that is over, in progress in this process, or in progress in another one.

    Raises:
        ApiError: there is no such run.
    """
    service = visitor.service
    row = await service.store.get_run(run, key=visitor.key)
    if row is None:
        raise run_not_found(run)
    trace = await service.store.get_trace(run)
    if trace is not None:
        seen = trace if visitor.is_admin else without_access_errors(trace, trace.calls)
        return RunView.of(row, seen, Progress())
    handle = service.runs.get(run)
    progress = (
        Progress.from_events(handle.events_so_far) if handle else Progress(rounds=await service.store.get_rounds(run))
    )
    if not visitor.is_admin:
        rounds = tuple(without_access_errors(round_, round_.calls) for round_ in progress.rounds)
        progress = replace(progress, rounds=rounds)
    return RunView.of(row, None, progress)


@router.get("/feed")
async def feed(visitor: SignedIn, run: str | None = None) -> Response:
    """Streams server-sent events that tell an open page to reload."""
    service = visitor.service
    with ExitStack() as resources:
        resources.enter_context(service.streams.reserve(visitor.key or ADMINISTRATOR))
        return EventStream(
            change_events(service, run, key=visitor.key),
            timeout=service.settings.intake.client_seconds,
            on_close=resources.pop_all().close,
            headers=SECURITY_HEADERS,
        )


@router.post("/runs/{run}/feedback")
async def rate(run: RunId, visitor: AdministratorPage, form: Form) -> Response:
    """Stores the administrator's feedback and redirects to the run."""
    entry = parse_feedback(form)
    await check_run(visitor.service, run)
    await store_feedback(visitor.service, run, entry)
    return see_other(f"/runs/{run}#feedback")


@router.post("/runs/{run}/delete")
async def delete_run(run: RunId, visitor: AdministratorPage, _: Form) -> Response:
    """Erases the content and the user of a run, and redirects to its page."""
    by = ADMINISTRATOR if visitor.name is None else f"{ADMINISTRATOR} {visitor.name}"
    await erase_run(visitor.service, run, by=by)
    return see_other(f"/runs/{run}")


# ------------------------------------------------------------------------------------------ replays


@router.post("/runs/{run}/replay")
async def replay(run: RunId, visitor: AdministratorPage, form: Form) -> Response:
    """Starts a replay with one changed step and redirects to the comparison of both runs."""
    change = parse_change(form)
    original = await _run_view(visitor, run)
    if original.trace is None:
        raise ApiError("This run's trace is not stored, so it can't be replayed.", status=409, code="not_kept")
    handle = await start_replay(visitor.service, original.row, original.trace, change)
    with suppress(RunError):  # the replay's own page shows the error
        await wait_started([handle])
    await visitor.service.store.write_queue.flush()
    return see_other(f"/runs/{run}/beside/{handle.id}")


@router.get("/compare")
async def choose_runs(_: SignedIn, run: Annotated[tuple[RunId, ...], Query()] = ()) -> Response:
    """Redirects to the comparison of the two selected runs."""
    if len(run) != 2:
        raise invalid_request(f"Select two runs to compare; {len(run)} are selected.")
    return see_other(f"/runs/{run[0]}/beside/{run[1]}")


@router.get("/runs/{run}/beside/{other}")
async def show_comparison(run: RunId, other: RunId, visitor: SignedIn) -> Response:
    """Shows two runs side by side."""
    original, other_view = await _run_view(visitor, run), await _run_view(visitor, other)

    def render() -> Page:
        differences = compare_runs(original, other_view)
        return Page("compare.html", original=original, other=other_view, differences=differences, visitor=visitor)

    return await asyncio.to_thread(render)


# ----------------------------------------------------------------------------------------- sessions


@router.get("/sessions")
async def list_sessions(visitor: SignedIn, before: float | None = None) -> Response:
    """Lists conversations of several runs, the one with the newest run first."""
    entries = await visitor.service.store.list_sessions(key=visitor.key, before=before, limit=PAGE_SIZE + 1)
    listed = entries[:PAGE_SIZE]
    older = urlencode({"before": repr(listed[-1].last)}) if len(entries) > PAGE_SIZE else None
    return Page("sessions.html", sessions=listed, older=older, visitor=visitor)


@router.get("/sessions/turns")
async def show_session(key: str, session: str, visitor: SignedIn) -> Response:
    """Shows the runs of a session, oldest first."""
    key = visitor.key or key
    rows = await visitor.service.store.list_runs(
        Search(key=key, session=session.replace("\0", "")), limit=MAX_TURNS + 1
    )
    if not rows:
        raise ApiError("There is no such session. It may have been deleted.", status=404, code="session_not_found")
    turns = rows[:MAX_TURNS][::-1]
    has_more = len(rows) > MAX_TURNS
    return await asyncio.to_thread(
        Page, "session.html", key=key, session=session, rows=turns, has_more=has_more, visitor=visitor
    )


# -------------------------------------------------------------------------------------- experiments


@router.get("/experiments")
async def show_experiments(visitor: AdministratorPage) -> Response:
    """Shows the results and the canary of each experiment."""
    return Page("experiments.html", results=await load_results(visitor.service.store), visitor=visitor)


# ----------------------------------------------------------------------------------------- spending


@router.get("/spending")
async def show_spending(
    visitor: AdministratorPage, by: SpendingGroup = "worker", days: int = 7, measure: Measure | None = None
) -> Response:
    """Charts usage per worker, model or key, by hour for one day and by day otherwise."""
    if days not in PERIODS:
        raise invalid_request(f"days={days} is not available. Choose one of {', '.join(map(str, PERIODS))}.")
    width = HOUR if days == 1 else DAY
    store = visitor.service.store
    end = (store.now() // width + 1) * width
    start = end - days * DAY
    entries = await store.spending.list_usage(by, since=start, before=end, width=width)
    usage = total(entry.usage for entry in entries)
    effective_measure: Measure = measure or ("cost" if usage.cost else "tokens")
    return Page(
        "spending.html",
        chart=Chart.from_spending(
            entries, effective_measure, start=start, columns=round((end - start) / width), width=width
        ),
        total=usage,
        by=by,
        days=days,
        periods=PERIODS,
        measure=effective_measure,
        start=start,
        end=end - width,
        visitor=visitor,
    )


# ------------------------------------------------------------------------------------------- assets


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    if name not in ASSETS:
        raise ApiError(f"There is no asset {name!r}.", status=404, code="not_found")
    return FileResponse(ASSETS[name], headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"})
