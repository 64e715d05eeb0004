"""Reads the replies of engines: incremental decoding, completions, and deltas passed between threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from rl_conductor._internal.streams import within
from rl_conductor.errors import ModelTimeoutError
from rl_conductor.models.base import Model
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.tool_emulation import ToolCallReader
from rl_conductor.text.reasoning import unfinished_length
from rl_conductor.types import Completion, Delta, FinishReason, Message, Request, Usage

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


# -------------------------------------------------------------------------------------------- text


class IncrementalDecoder:
    """Decodes tokens one at a time and stops before the first stop string.

    Text that may be part of an incomplete character or stop string is buffered.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.stopped = False
        """Whether a stop string was found."""
        self._decode = decode
        self._stop = tuple(filter(None, stop))
        self._pending = ""
        self._start = 0
        self._read = 0

    def add(self, token: int) -> str:
        """Adds a token and returns the text that is complete now."""
        self.tokens.append(token)
        new_text = self._new_text()
        if not new_text or new_text.endswith(REPLACEMENT):  # an incomplete character
            return ""
        self._start, self._read = self._read, len(self.tokens)
        return self._emit(self._pending + new_text)

    def end(self) -> str:
        """Returns the buffered text at the end of the reply."""
        rest = self._pending + self._new_text()
        self._read = len(self.tokens)
        return "" if self.stopped else self._emit(rest, is_last=True)

    def _new_text(self) -> str:
        # The text of a token depends on the previous one (spaces, multi-byte characters), so decode both.
        already_decoded = self._decode(self.tokens[self._start : self._read])
        return self._decode(self.tokens[self._start :])[len(already_decoded) :]

    def _emit(self, text: str, *, is_last: bool = False) -> str:
        stop_positions = [text.find(stop) for stop in self._stop if stop in text]
        self.stopped = bool(stop_positions)
        end = min(stop_positions, default=len(text) - (0 if is_last else unfinished_length(text, self._stop)))
        self._pending = "" if stop_positions else text[end:]
        self.text += text[:end]
        return text[:end]


# ----------------------------------------------------------------------------------------- replies


def build_completion(
    reply: ToolCallReader, request: Request, *, finish: FinishReason, usage: Usage, model: Model
) -> Completion:
    """Builds the completion from a reply that was read to its end."""
    return checked(
        Completion(
            message=Message.assistant(reply.text, tool_calls=reply.calls),
            usage=priced(usage, model.price),
            finish_reason="tool_calls" if reply.calls else finish,
            model=model.name,
        ),
        request,
    )


# ------------------------------------------------------------------------------------------ threads


class TokenStream:
    """Passes deltas from an engine's thread to the caller's event loop."""

    def __init__(self, *, model: str, timeout: float | None) -> None:
        """Binds to the running event loop; `timeout` is in seconds."""
        self.abandoned = threading.Event()
        """Set when the caller stops reading; the engine must then stop."""
        self._model = model
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Delta | Exception] = asyncio.Queue()

    def put(self, item: Delta | Exception) -> None:
        """Adds a delta, or the error that ends the reply, from any thread; empty deltas are dropped."""
        if item != Delta() and not self.abandoned.is_set():
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yields deltas until the one with the completion; raises an error that was put in."""
        try:
            async with aclosing(within(self._timeout, self._read())) as deltas:
                async for delta in deltas:
                    yield delta
        except TimeoutError as error:
            raise ModelTimeoutError(f"{self._model}: no answer within {self._timeout} s", model=self._model) from error
        finally:
            self.abandoned.set()

    async def _read(self) -> AsyncGenerator[Delta, None]:
        is_finished = False
        while not is_finished:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            yield item
            is_finished = item.completion is not None
