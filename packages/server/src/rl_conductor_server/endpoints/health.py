"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from rl_conductor_server.endpoints.dependencies import ServiceDependency
from rl_conductor_server.errors import STORE_ERRORS, store_unavailable

router = APIRouter()
READY_TIMEOUT = 3.0
"""Seconds that the store may take; less than the probe's timeout in `deploy/kubernetes`."""


@router.head("/healthz", include_in_schema=False)  # some load balancers probe without reading an answer
@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Reports that the process responds."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
async def readyz(service: ServiceDependency) -> dict[str, str]:
    """Reports that the server accepts requests: the store responds and takes writes, and no shutdown is in progress."""
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            await service.store.ping()
    except (*STORE_ERRORS, TimeoutError) as error:
        raise store_unavailable() from error
    service.runs.check_open()
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(http: Request, service: ServiceDependency) -> Response:
    """Returns metrics in Prometheus' text format, for administrators and API keys with `metrics`."""
    service.keys.check_metrics(http)
    service.update_gauges()
    return PlainTextResponse(service.metrics.render(), media_type="text/plain; version=0.0.4")
