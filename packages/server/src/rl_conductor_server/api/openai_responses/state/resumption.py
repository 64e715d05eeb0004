"""Resumes the streams of stored responses: those in progress in this process, at other servers, and those that ended.

The events are encoded again from the first one, and those that the client has are left out. So a sequence number stands
for the same event in each stream of a response.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress

from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.api.frames import encode_frames
from rl_conductor_server.api.openai_responses.schema import StoredParameters
from rl_conductor_server.api.openai_responses.state.stored_body import response_body
from rl_conductor_server.api.openai_responses.stream import ResponseStream
from rl_conductor_server.api.sse import HEARTBEAT, HEARTBEAT_SECONDS
from rl_conductor_server.errors import to_api_error
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.runs.request import AdmittedRequest
from rl_conductor_server.shutdown import ShutdownEvent
from rl_conductor_server.store import RunRow, Store, StoredResponse, StreamPiece, decode

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""Interval at which the store is read for a response that another server runs; it doubles while nothing is new."""


def resume_stream(
    stored: StoredResponse,
    row: RunRow,
    store: Store,
    stopping: ShutdownEvent,
    *,
    after: int | None,
) -> AsyncGenerator[str, None]:
    """Returns the frames of a stored response's stream that follow an event.

    Args:
        stored: the response.
        row: its run.
        store: where its pieces are read.
        stopping: ends the stream of a response that another server runs.
        after: the sequence number of the last event that the client has; `None` if it has none.

    Raises:
        ConfigError: another release stored it in a format that this one can't read.
    """
    parsed = decode(StoredParameters, stored.parameters, run=stored.run).to_request()
    header = ResponseHeader(stored.run, int(stored.created), row.model, fingerprint="")
    encoder = ResponseStream(parsed, header, skipped=0 if after is None else after + 1)
    return _without_empty(_follow(stored, encoder, store, stopping))


def follow_run(request: AdmittedRequest, handle: RunHandle, *, after: int | None) -> AsyncGenerator[str, None]:
    """Returns the rest of the stream of a response that is in progress in this process."""
    header = ResponseHeader(handle.id, int(handle.created), request.model.pinned, fingerprint="")
    encoder = ResponseStream(request.parsed, header, skipped=0 if after is None else after + 1)
    return _without_empty(encode_frames(request.parsed, encoder, [handle]))


async def _without_empty(frames: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(frames):
        async for frame in frames:
            if frame:
                yield frame


async def _follow(
    stored: StoredResponse, encoder: ResponseStream, store: Store, stopping: ShutdownEvent
) -> AsyncGenerator[str, None]:
    """Yields the frames of a response from the store, as they arrive there."""
    for frame in encoder.start():
        yield frame
    position, delay, last_frame = 0, MIN_POLL_SECONDS, time.monotonic()
    while True:
        row = await store.get_run(stored.run, key=stored.key)  # before its pieces: the last ones precede its end
        pieces = await store.responses.list_pieces(stored.run, after=position)
        for frame in _encode(encoder, pieces):
            yield frame
        if row is None or stopping.is_set():
            return
        if row.status != "running":
            break
        if pieces:
            position, delay, last_frame = position + len(pieces), MIN_POLL_SECONDS, time.monotonic()
        elif time.monotonic() - last_frame > HEARTBEAT_SECONDS:
            yield HEARTBEAT
            last_frame = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await stopping.wait()
        delay = min(2 * delay, MAX_POLL_SECONDS)
    for frame in await _encode_end(stored, row, encoder, store):
        yield frame


def _encode(encoder: ResponseStream, pieces: list[StreamPiece]) -> Iterator[str]:
    for piece in pieces:
        yield from encoder.text(0, piece) if isinstance(piece, str) else encoder.progress(piece)


async def _encode_end(stored: StoredResponse, row: RunRow, encoder: ResponseStream, store: Store) -> Iterator[str]:
    try:
        trace = await store.get_trace(stored.run, key=stored.key)
        if trace is not None and trace.completion is not None:
            return encoder.finish(0, trace)
        current = await store.responses.get(stored.run, key=stored.key)  # somebody may have cancelled it meanwhile
        return encoder.failed(response_body(current or stored, row, trace))
    except Exception as error:  # the status was sent already, so only the stream can report it
        return encoder.error(to_api_error(error))
