"""`Exchange`: the path of a request for an answer through the server, from its body to the response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from typing import Self

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.frames import encode_frames, wait_started
from rl_conductor_server.api.openai_responses.state.history import HistoryContext, add_history, end_turn
from rl_conductor_server.api.openai_responses.state.recording import record
from rl_conductor_server.api.openai_responses.state.references import resolve_references
from rl_conductor_server.api.response_headers import http_headers, response_header
from rl_conductor_server.api.results import Results
from rl_conductor_server.auth.keys import ApiKey
from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.counts import check_counts
from rl_conductor_server.request_validation.tool_results import check_tool_results
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.request import AdmittedRequest, admit
from rl_conductor_server.service import Service
from rl_conductor_server.threads import MAX_INLINE_BYTES, run_by_size
from rl_conductor_server.transport.body import read_json
from rl_conductor_server.transport.disconnect import run_until_disconnect
from rl_conductor_server.transport.request_headers import read_idempotency_key, wants_cached
from rl_conductor_server.transport.streams import EventStream, in_pieces


async def answer(service: Service, http: Request, adapter: ApiAdapter) -> Response:
    """Answers a request, in one response or as a stream.

    Raises:
        ConductorError: the request is rejected, or there is no answer.
        ClientDisconnect: the client has disconnected.
    """
    key = service.authenticate(http)
    key.check_rate()
    body = await _read_body(service, http, key)
    with Exchange(service, adapter, key, read_idempotency_key(http)) as exchange:
        exchange.reserve(len(body))
        parsed = await exchange.add_history(await exchange.parse(body))
        admitted = await exchange.admit(parsed, reads_cache=wants_cached(http))
        if parsed.is_background and admitted[0].is_checked:
            raise invalid_request(
                "background can't be combined with the guardrails of this model: the request may not be stored before "
                "they have checked it",
                param="background",
            )
        return await run_until_disconnect(http.receive, exchange.respond(admitted))


async def read_request(service: Service, http: Request, adapter: ApiAdapter, key: ApiKey) -> ParsedRequest:
    """Reads and parses a request that is answered without a run. Raises `ApiError`."""
    body = await _read_body(service, http, key)
    with Exchange(service, adapter, key) as exchange:
        exchange.reserve(len(body))
        return await exchange.parse(body)


async def _read_body(service: Service, http: Request, key: ApiKey) -> bytes:
    """Reads a body. Reserves memory for the part that has arrived: a client may never send all that it announces."""
    intake = service.settings.intake
    with service.reserve_body(0, key.name) as reserve:
        return await read_json(http, max_bytes=intake.body_bytes, seconds=intake.client_seconds, on_chunk=reserve)


class Exchange:
    """One request for an answer and its response. Frees all that the request has reserved when it ends."""

    def __init__(self, service: Service, adapter: ApiAdapter, key: ApiKey, idempotency_key: str | None = None) -> None:
        self._service = service
        self._adapter = adapter
        self._key = key
        self._idempotency_key = idempotency_key
        self._resources = ExitStack()
        """Also has the subscriptions to the runs."""
        self._turn = self._resources.enter_context(ExitStack())
        """Ends the request's turn in its conversation, unless a run has begun, which does so itself."""
        self._memory = self._resources.enter_context(ExitStack())
        """The room for the body, the history, and the answer."""
        self._reserve_more = self._memory.enter_context(service.reserve_body(0, key.name))
        self._reserved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def reserve(self, size: int) -> None:
        """Reserves memory until the end. Raises `ApiError` if there is too little."""
        self._reserve_more(size)
        self._reserved += size

    async def parse(self, body: bytes) -> ParsedRequest:
        """Parses a body; a long one in a thread, so that other requests are answered meanwhile. Raises `ApiError`."""
        intake = self._service.settings.intake

        def parse() -> ParsedRequest:
            check_counts(body, intake)
            return self._adapter.parse(body, strict=intake.strict)

        return await run_by_size(len(body), parse)

    async def add_history(self, parsed: ParsedRequest) -> ParsedRequest:
        """Adds the turns before the request. Raises `ApiError`."""
        service = self._service
        context = HistoryContext(
            service.store,
            self._key.name,
            service.settings.intake,
            service.settings.conversations,
            self._idempotency_key,
            self.reserve,
        )
        parsed = await add_history(await resolve_references(parsed, context), context)
        self._turn.callback(end_turn, parsed, service.store)
        check_tool_results(parsed)
        return parsed

    async def admit(self, parsed: ParsedRequest, *, reads_cache: bool) -> list[AdmittedRequest]:
        """Selects the model, which the key must have access to, and returns an admitted request for each choice.

        Raises:
            ConductorError: the request is rejected.
        """
        admitted = admit(
            self._key,
            await self._select_model(parsed),
            self._adapter.name,
            parsed,
            idempotency_key=self._idempotency_key,
            cache_seconds=self._key.cache_seconds,
            reads_cache=reads_cache,
        )
        if len(admitted) > 1:
            self._reserve_choices(len(admitted))
        return admitted

    def _reserve_choices(self, choices: int) -> None:
        """Reserves the size of the request again for each further choice: its run has prompts and a trace of its own.

        Raises:
            ApiError: there is too little, now or whatever else is in progress.
        """
        size, limit = self._reserved * choices, self._service.max_body_bytes
        if size > limit:
            message = f"{choices} choices of this request take {size:,} bytes; at most {limit:,} are allowed"
            raise ApiError(message, status=413, code="too_large")
        self.reserve(size - self._reserved)

    async def _select_model(self, parsed: ParsedRequest) -> ServedModel:
        """Selects the arm of an experiment; a repeated idempotency key stays with the arm of its first use."""
        service = self._service
        model = self._key.find_model(service.catalog, parsed.model)
        experiment = service.experiments.get(model.name)
        if experiment is None:
            return model
        arm = None
        if self._idempotency_key is not None:
            arm = await service.store.idempotency.find_arm(self._key.name, self._idempotency_key)
        return experiment.arms[arm or service.canaries.assign_arm(experiment, self._key.name, parsed)]

    async def start(self, request: AdmittedRequest) -> RunHandle:
        """Starts the run of an admitted request. Raises `ApiError`."""
        run = await self._service.runs.start(request, reserve=self.reserve)
        record(request.parsed, run, self._service.store, key=self._key.name, is_checked=request.is_checked)
        self._turn.pop_all()  # the run ends it
        if request.continues_alone and self._service.runs.executes(request):
            self._keep_memory(run.task)
        return run

    def _keep_memory(self, task: asyncio.Task[Trace]) -> None:
        """Keeps the memory until a run has ended, too, because it goes on without the client."""
        memory = self._memory.pop_all()
        self._memory.callback(task.add_done_callback, lambda _: memory.close())

    async def respond(self, admitted: Sequence[AdmittedRequest]) -> Response:
        """Starts the runs, and returns their answers in one response or as a stream.

        Raises:
            ConductorError: there is no answer.
        """
        runs = []
        for request in admitted:
            run = await self.start(request)
            self._resources.enter_context(run.subscribe())
            runs.append(run)
        parsed, model = admitted[0].parsed, admitted[0].model
        header = response_header(runs, model)
        headers = http_headers(runs, parsed, model.arm)
        if admitted[0].cache_digest is not None:
            headers["x-conductor-cache"] = "hit" if all(run.is_cached for run in runs) else "miss"
        is_new_background = parsed.is_background and not runs[0].is_replayed
        if is_new_background:  # whoever learns its id may ask any server for it
            await self._service.store.write_queue.flush()
        if parsed.stream:
            await wait_started(runs)
            return self._stream(runs, encode_frames(parsed, self._adapter.stream(parsed, header), runs), headers)
        if is_new_background:
            await runs[0].check_admitted()
            return JSONResponse(self._adapter.response(parsed, header, Results(())), headers=headers)
        results = Results(await asyncio.gather(*(run.result() for run in runs)))
        size = sum(map(_answer_size, results.traces))

        def encode() -> JSONResponse:
            body = self._adapter.response(parsed, header, results)
            return JSONResponse(body, headers=headers | results.headers)

        return self._send(await run_by_size(size, encode))

    def _stream(
        self, runs: Sequence[RunHandle], frames: AsyncGenerator[str, None], headers: dict[str, str]
    ) -> Response:
        """Streams the answers. Those that have ended are counted as memory until the client has read them."""
        resources = self._resources.pop_all()

        def hold(task: asyncio.Task[Trace]) -> None:
            if not task.cancelled() and task.exception() is None:
                resources.enter_context(self._service.bodies.hold(_answer_size(task.result()), key=self._key.name))

        for run in runs:
            run.task.add_done_callback(hold)
            resources.callback(run.task.remove_done_callback, hold)
        timeout = self._service.settings.intake.client_seconds
        return EventStream(frames, timeout=timeout, on_close=resources.close, headers=headers)

    def _send(self, response: JSONResponse) -> Response:
        """Sends a long answer in pieces, and counts it as memory until the client has read it."""
        size = len(response.body)
        if size <= MAX_INLINE_BYTES:
            return response
        memory = ExitStack()
        memory.enter_context(self._service.bodies.hold(size, key=self._key.name))
        return in_pieces(response, timeout=self._service.settings.intake.client_seconds, on_close=memory.close)


def _answer_size(trace: Trace) -> int:
    """Returns the number of characters of all replies of a run."""
    return sum(len(result.text) for round_ in trace.rounds for result in round_.results)
