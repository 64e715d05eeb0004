"""Encodes runs in progress as the frames of a streamed response, and heartbeats while nothing happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial

from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor.trace.events import AnswerDelta, Event, Finished
from rl_conductor_server.api.adapter import StreamEncoder
from rl_conductor_server.api.progress import progress_report
from rl_conductor_server.api.results import Results
from rl_conductor_server.api.sse import HEARTBEAT, HEARTBEAT_SECONDS, sse_comment
from rl_conductor_server.errors import to_api_error
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.runs.handle import RunHandle

log = logging.getLogger("rl_conductor_server")

START_TIMEOUT = 1.0
"""Seconds to wait for the start of a run before sending headers, so that a rejection has its own status."""

ChoiceEvents = tuple[int, Sequence[Event]]
"""The number of the choice, and the next events of its run; none are a heartbeat."""


async def wait_started(runs: Sequence[RunHandle]) -> None:
    """Waits up to `START_TIMEOUT` for the runs to start. Raises the exception of a run that failed before."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT):
            for run in runs:
                await run.wait_started()
    for run in runs:
        if run.task.done():
            await run.result()


async def encode_frames(
    parsed: ParsedRequest, encoder: StreamEncoder, runs: Sequence[RunHandle]
) -> AsyncGenerator[str, None]:
    """Yields the frames of a streamed response; the last one reports the error if a run fails."""
    for frame in encoder.start():
        yield frame
    try:
        async with aclosing(callback_to_async_iterator(partial(_merge_events, runs))) as events:
            async for choice, batch in events:
                frames = (frame for event in batch for frame in _encode(parsed, encoder, choice, event))
                if text := "".join(frames) if batch else HEARTBEAT:
                    yield text  # one packet for all that a fast model has said meanwhile
        last_frames = encoder.end(Results([await run.result() for run in runs]))
    except Exception as error:  # the status was sent already, so only the stream can report it
        converted = to_api_error(error)
        if converted.status == 500:
            log.exception("a stream broke off")
        last_frames = encoder.error(converted)
    for frame in last_frames:
        yield frame


def _encode(parsed: ParsedRequest, encoder: StreamEncoder, choice: int, event: Event) -> Iterator[str]:
    match event:
        case AnswerDelta(text=text):
            if not event.is_refusal:  # `finish` encodes it
                yield from encoder.text(choice, text)
        case Finished(trace=trace):
            if trace.completion is not None:
                yield from encoder.finish(choice, trace)
        case _:
            report = progress_report(event, choice)
            if report is not None:
                chunks = parsed.extension.progress == "chunks"
                yield from encoder.progress(report) if chunks else [sse_comment(report)]


async def _merge_events(runs: Sequence[RunHandle], emit: Callable[[ChoiceEvents], None]) -> None:
    """Emits the events of all runs as they happen, and heartbeats. The first failure ends it."""

    async def forward(choice: int, run: RunHandle) -> None:
        async with aclosing(run.event_batches()) as batches:
            async for batch in batches:
                emit((choice, batch))

    async def send_heartbeats() -> None:
        pending = {run.task for run in runs}
        while pending:
            _, pending = await asyncio.wait(pending, timeout=HEARTBEAT_SECONDS)
            if pending:
                emit((0, ()))

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(send_heartbeats())
            for choice, run in enumerate(runs):
                group.create_task(forward(choice, run))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
