"""The routes that only look: models, runs, accounts, and how the server is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from rl_conductor_server.api.body import read
from rl_conductor_server.auth.keys import Account
from rl_conductor_server.catalog import Served
from rl_conductor_server.errors import ApiError
from rl_conductor_server.experiments.results import trials
from rl_conductor_server.protocol import Body, read_body
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow, Search

router = APIRouter()


def service_of(http: Request) -> Service:
    """What the application opened when it started."""
    service: Service = http.app.state.service
    return service


Shared = Annotated[Service, Depends(service_of)]
RunId = Annotated[str, Path(pattern=r"^[\w-]{1,32}$")]


async def asking(http: Request, service: Shared) -> Account:
    """Whose request it is."""
    return service.keys.account(http)


async def administrator(http: Request, service: Shared) -> None:
    """Let nobody else pass."""
    service.keys.check_admin(http)


class Percent(Body):
    """What `PUT /admin/routes/NAME/canary` takes."""

    percent: float = Field(ge=0, le=100)


Asking = Annotated[Account, Depends(asking)]
FOR_ADMINISTRATORS = [Depends(administrator)]

# ------------------------------------------------------------------------------------------- models


@router.get("/v1/models")
async def models(service: Shared, account: Asking) -> dict[str, Any]:
    """Every model that this key may ask, by its name and by its pinned one, as both vendors list theirs."""
    data = [
        _model(served, name)
        for served in service.catalogue
        if account.may_ask(served)
        for name in (served.name, served.pinned)
    ]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": False} | ends


@router.get("/v1/models/{name}")
async def model(name: str, service: Shared, account: Asking) -> dict[str, Any]:
    """One of them."""
    served = service.catalogue.named(name)
    account.check_model(served)
    return _model(served, name)


def _model(served: Served, name: str) -> dict[str, Any]:
    made = served.conductor
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": served.created,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
        "owned_by": "rl-conductor",
        "conductor": {
            "pinned": served.pinned,
            "fingerprint": served.fingerprint,
            "limits": made.limits.model_dump(mode="json", exclude_none=True),
            "workers": {worker.name: worker.model.name for worker in made.pool.values()},
            "planner": made.planner.model.name,
        },
    }


# --------------------------------------------------------------------------------------------- runs


@router.get("/v1/runs/{run}")
async def run(run: RunId, service: Shared, account: Asking) -> dict[str, Any]:
    """A run of this key's own, with its trace once it is over."""
    return await _run(service, run, key=account.name)


@router.get("/admin/runs", dependencies=FOR_ADMINISTRATORS)
async def admin_runs(
    service: Shared, key: str | None = None, before: float | None = None, most: Annotated[int, Query(ge=1, le=500)] = 50
) -> dict[str, Any]:
    """The newest runs of a key or of all."""
    rows = await service.store.runs(Search(key=key, before=before), most=most)
    return {"object": "list", "data": [_row(row) for row in rows]}


@router.get("/admin/runs/{run}", dependencies=FOR_ADMINISTRATORS)
async def admin_run(run: RunId, service: Shared) -> dict[str, Any]:
    """Any run, with its trace once it is over."""
    return await _run(service, run)


@router.get("/admin/keys", dependencies=FOR_ADMINISTRATORS)
async def admin_keys(service: Shared) -> dict[str, Any]:
    """Every account, what it may spend and what it has spent."""
    return {"object": "list", "data": [await account.standing() for account in service.keys.accounts]}


@router.get("/admin/routes", dependencies=FOR_ADMINISTRATORS)
async def admin_routes(service: Shared) -> dict[str, Any]:
    """Every route: how far its canary is, and what its trial shows."""
    data = [
        {"object": "route", "name": route.name, **trial.model_dump(mode="json")}
        for route in service.routes.values()
        for trial in await trials(service.store, route.pinned)
    ]
    return {"object": "list", "data": data}


@router.put("/admin/routes/{name}/canary", dependencies=FOR_ADMINISTRATORS)
async def set_canary(name: str, http: Request, service: Shared) -> dict[str, Any]:
    """Let the conductor answer another share of a route's requests from now on."""
    route = service.routes.named(name)
    intake = service.settings.intake
    wanted = read_body(Percent, await read(http, most=intake.body_bytes, seconds=intake.client_seconds))
    canary = await service.canaries.set(route, wanted.percent, "set by the administrator")
    return {"object": "canary", **canary.model_dump(mode="json")}


async def _run(service: Service, run: str, *, key: str | None = None) -> dict[str, Any]:
    row = await service.store.run(run, key=key)
    if row is None:
        raise ApiError(f"no run {run!r}", status=404, code="run_not_found")
    trace = await service.store.trace(run, key=key)
    return _row(row) | {"trace": None if trace is None else trace.model_dump(mode="json")}


def _row(row: RunRow) -> dict[str, Any]:
    return {"object": "run", **row.model_dump(mode="json", exclude={"digest"})}


# ------------------------------------------------------------------------------------------- health


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: Shared) -> dict[str, str]:
    """It can do its work: the store answers, and it is not stopping."""
    try:
        await service.store.ping()
    except SQLAlchemyError as error:
        raise ApiError("the store does not answer", status=503, code="store_away", retry_after=5) from error
    service.runs.check_open()
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(http: Request, service: Shared) -> Response:
    """For Prometheus, with any key."""
    service.keys.account(http)
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")
