"""`/admin`: runs and experiments, for the administrators."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from rl_conductor_server.auth.keys import ADMINISTRATOR
from rl_conductor_server.endpoints.bodies import read_as
from rl_conductor_server.endpoints.dependencies import ADMIN_ONLY, Administrator, RunId, ServiceDependency, json_body
from rl_conductor_server.endpoints.runs import erase_run, run_body, run_response
from rl_conductor_server.experiments.results import load_results
from rl_conductor_server.request_validation.parsing import Body
from rl_conductor_server.store import Search
from rl_conductor_server.store.models import SearchText

log = logging.getLogger("rl_conductor_server.admin")
router = APIRouter(prefix="/admin", dependencies=ADMIN_ONLY)


class CanaryBody(Body):
    """The body of `PUT /admin/experiments/NAME/canary`."""

    percent: float = Field(ge=0, le=100)


class RunQuery(Search):
    """The parameters of `GET /admin/runs`: a search, and how many runs to return."""

    model_config = ConfigDict(defer_build=False)  # FastAPI can't complete a parameter's model

    limit: int = Field(default=50, ge=1, le=500)


class UserQuery(BaseModel):
    """The parameters of `DELETE /admin/runs`: a user, and the API key of the user's runs, by default any."""

    model_config = ConfigDict(extra="forbid", frozen=True)  # or a misspelled condition would delete more

    user: Annotated[SearchText, Field(min_length=1)]
    key: SearchText | None = None


@router.get("/runs")
async def list_runs(
    service: ServiceDependency,
    query: Annotated[RunQuery, Query()],
) -> dict[str, Any]:
    """Lists the newest runs that match all parameters."""
    search = Search.model_validate(query.model_dump(exclude={"limit"}))
    rows = await service.store.list_runs(search, limit=query.limit)
    return {"object": "list", "data": [run_body(row) for row in rows]}


@router.get("/runs/{run}", response_model=dict[str, Any])
async def get_run(run: RunId, service: ServiceDependency) -> Response:
    """Returns the run of any key, with its trace once it has ended."""
    return await run_response(service, run)


@router.delete("/runs/{run}")
async def delete_run(run: RunId, service: ServiceDependency, administrator: Administrator) -> dict[str, Any]:
    """Erases the content and the user of a run of any key."""
    return await erase_run(service, run, by=f"{ADMINISTRATOR} {administrator}")


@router.delete("/runs")
async def delete_runs_of_user(
    service: ServiceDependency, query: Annotated[UserQuery, Query()], administrator: Administrator
) -> dict[str, Any]:
    """Erases the runs of a user that have ended, and the user's conversations."""
    by = f"{ADMINISTRATOR} {administrator}"
    result = await service.store.erasure.erase_user(query.user, by=by, key=query.key)
    log.info("runs of a user erased", extra={"runs": result.erased, "administrator": administrator})
    return {"object": "list", "deleted": result.erased, "in_progress": result.in_progress}


@router.get("/experiments")
async def list_experiments(service: ServiceDependency) -> dict[str, Any]:
    """Lists all experiments with their canaries and results."""
    data = [
        {"object": "experiment", "name": experiment.name, **result.model_dump(mode="json")}
        for experiment in service.experiments.values()
        for result in await load_results(service.store, experiment.pinned)
    ]
    return {"object": "list", "data": data}


@router.put("/experiments/{name}/canary", openapi_extra=json_body(CanaryBody))
async def set_canary(name: str, http: Request, service: ServiceDependency) -> dict[str, Any]:
    """Sets the percentage of an experiment's requests that the conductor answers."""
    experiment = service.experiments.find(name)
    body = await read_as(CanaryBody, http, service)
    canary = await service.canaries.set_percent(experiment, body.percent, "set by the administrator")
    return {"object": "canary", **canary.model_dump(mode="json")}
