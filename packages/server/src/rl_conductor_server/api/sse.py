"""A streamed reply: runs as they happen, in one protocol's frames, at the pace of whoever reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor.trace.events import AnswerDelta, Event, Finished
from rl_conductor.trace.summary import progress
from rl_conductor_server.errors import api_error
from rl_conductor_server.protocol import Ask, Stream, comment
from rl_conductor_server.runs.handle import Live

log = logging.getLogger("rl_conductor_server")

SILENCE = 10.0
"""Seconds from one comment to the next, which keep the connection alive while models are silent."""
HOLD = 1.0
"""Seconds that a stream waits for a first sign of work: what is refused is refused at once, and so with a status."""

News = tuple[int, Event | None]
"""Which of the runs, and what happened; `None` says that it is still at work."""


async def at_work(lives: Sequence[Live]) -> None:
    """Wait a little for the first signs of work; raise what a run raised before it gave any."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD):
            for live in lives:
                await live.begun()
    for live in lives:
        if live.task.done():
            await live.result()


async def frames(ask: Ask, stream: Stream, lives: Sequence[Live]) -> AsyncGenerator[str, None]:
    """The whole reply, frame by frame; an error in its midst is told as the protocol does."""
    for frame in stream.start():
        yield frame
    try:
        async with aclosing(callback_to_async_iterator(partial(_listened, lives))) as news:
            async for choice, event in news:
                for frame in _frames(ask, stream, choice, event):
                    yield frame
        ending = stream.end([await live.result() for live in lives])
    except Exception as error:  # the status is sent already: whatever it is, it must be told in the stream
        known = api_error(error)
        if known.status == 500:
            log.exception("a stream broke off")
        ending = stream.fail(known)
    for frame in ending:
        yield frame


def _frames(ask: Ask, stream: Stream, choice: int, event: Event | None) -> Iterator[str]:
    match event:
        case None:
            yield ": still at work\n\n"
        case AnswerDelta(text=text):
            yield from stream.text(choice, text)
        case Finished(trace=trace):
            if trace.completion is not None:
                yield from stream.finish(choice, trace)
        case _:
            told = progress(event)
            if told is not None:
                told = {"choice": choice, **told}
                yield from stream.note(told) if ask.extension.progress == "chunks" else [comment(told)]


async def _listened(lives: Sequence[Live], tell: Callable[[News], None]) -> None:
    """Tell what happens to each of the runs, as it happens, and now and then that they are still at work.

    The first to fail ends it for all.
    """

    async def listen(choice: int, live: Live) -> None:
        async with aclosing(live.events()) as events:
            async for event in events:
                tell((choice, event))

    async def tick() -> None:
        working = {live.task for live in lives}
        while working:
            _, working = await asyncio.wait(working, timeout=SILENCE)
            if working:
                tell((0, None))

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(tick())
            for choice, live in enumerate(lives):
                group.create_task(listen(choice, live))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class EventStream(StreamingResponse):
    """Server-sent events for a reader who must keep up."""

    media_type = "text/event-stream"

    def __init__(
        self, content: AsyncGenerator[str, None], *, patience: float, leave: Callable[[], None], headers: dict[str, str]
    ) -> None:
        """`patience` is the seconds a reader may take for a frame; `leave` is called at the end, whatever that is."""
        super().__init__(content, headers=headers | {"cache-control": "no-store", "x-accel-buffering": "no"})
        self._patience = patience
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or as much as is read."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()

    async def stream_response(self, send: Send) -> None:
        """Send frame by frame, and hang up on a reader who is too slow."""

        async def patiently(message: Message) -> None:
            async with asyncio.timeout(self._patience):
                await send(message)

        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            try:
                await super().stream_response(patiently)
            except TimeoutError:
                log.warning("a reader took more than %g s for a frame; its stream is cut off", self._patience)
