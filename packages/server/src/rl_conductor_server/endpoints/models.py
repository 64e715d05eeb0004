"""`/v1/models`: the models that a key has access to, in a format that both vendors' SDKs read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.endpoints.bodies import list_body
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Lists each model of the key, by its alias and by its pinned name."""
    data = [
        _model_body(model, name)
        for model in service.catalog
        if key.may_use(model)
        for name in (model.name, model.pinned)
    ]
    return list_body(data, has_more=False)


@router.get("/v1/models/{name}")
async def get_model(name: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Returns one model, under the name of the request."""
    return _model_body(key.find_model(service.catalog, name), name)


def _model_body(model: ServedModel, name: str) -> dict[str, Any]:
    conductor = model.conductor
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": model.created,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "owned_by": "rl-conductor",
        "conductor": {
            "pinned": model.pinned,
            "fingerprint": model.fingerprint,
            "limits": conductor.limits.model_dump(mode="json", exclude_none=True),
            "workers": {worker.name: worker.model.name for worker in conductor.pool.values()},
            "planner": conductor.planner.model.name,
        },
    }
