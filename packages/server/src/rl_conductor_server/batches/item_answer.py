"""Answers the requests of batches, for which no client waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.response_headers import response_header
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import invalid_request
from rl_conductor_server.exchange import Exchange
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.request import AdmittedRequest
from rl_conductor_server.service import Service
from rl_conductor_server.store import ClaimedItem


@dataclass(frozen=True)
class ItemAnswer:
    """The answer to a request of a batch."""

    run: str
    """The id of the (first) run."""
    body: dict[str, Any]


async def answer_item(service: Service, item: ClaimedItem, adapter: ApiAdapter) -> ItemAnswer:
    """Answers a request under its key. If this is cancelled, so are its runs.

    Raises:
        ConductorError: the request is rejected, or there is no answer.
    """
    body, key = item.body.encode(), await service.keys.load(item.key)
    with Exchange(service, adapter, key, item.idempotency_key) as exchange:
        exchange.reserve(len(body))
        await key.wait_for_rate()
        admitted = await _admit(exchange, body)
        runs = list[RunHandle]()
        try:
            for request in admitted:
                runs.append(await exchange.start(request))
            results = Results(await asyncio.gather(*(run.result() for run in runs)))
        except asyncio.CancelledError:
            tasks = [service.runs.cancel(run.id) for run in runs]
            await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
            raise
    header = response_header(runs, admitted[0].model)
    return ItemAnswer(header.run, adapter.response(admitted[0].parsed, header, results))


async def _admit(exchange: Exchange, body: bytes) -> list[AdmittedRequest]:
    parsed = await exchange.parse(body)
    for field, is_set in (("stream", parsed.stream), ("background", parsed.is_background)):
        if is_set:
            raise invalid_request(f"{field} can't be used in a batch; leave it out", param=field)
    admitted = await exchange.admit(await exchange.add_history(parsed), reads_cache=False)
    if admitted[0].is_checked:
        raise invalid_request(
            "the guardrails of this model must check a request before it is stored, as that of a batch is; send it by "
            "itself",
            param="model",
        )
    return admitted
