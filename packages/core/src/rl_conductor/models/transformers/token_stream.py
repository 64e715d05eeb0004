"""What the engines that run inside this process share: text made of tokens, replies, and a bridge of threads.

Nothing here knows torch, transformers or vLLM; it is imported without any of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from rl_conductor.errors import ModelTimeoutError
from rl_conductor.models.base import Model, checked, priced, within
from rl_conductor.models.tool_emulation import Reader
from rl_conductor.types import Completion, Delta, FinishReason, Message, Usage

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


# -------------------------------------------------------------------------------------------- text


class Text:
    """A reply that grows a token at a time; it ends before the first stop string.

    What may yet turn out to be part of a character or of a stop string is held back.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self.tokens: list[int] = []
        self.shown = ""
        self.stopped = False
        """A stop string was met."""
        self._decode = decode
        self._stop = tuple(filter(None, stop))
        self._held = ""
        self._start = 0
        self._read = 0

    def add(self, token: int) -> str:
        """Take a token; the piece of text that is certain now."""
        self.tokens.append(token)
        fresh = self._fresh()
        if not fresh or fresh.endswith(REPLACEMENT):  # in the middle of a character
            return ""
        self._start, self._read = self._read, len(self.tokens)
        return self._show(self._held + fresh)

    def end(self) -> str:
        """No more tokens; the piece that was held back."""
        rest = self._held + self._fresh()
        self._read = len(self.tokens)
        return "" if self.stopped else self._show(rest, last=True)

    def _fresh(self) -> str:
        # A token's text depends on its neighbour (spaces, characters of many bytes): decode with one token before it.
        known = self._decode(self.tokens[self._start : self._read])
        return self._decode(self.tokens[self._start :])[len(known) :]

    def _show(self, text: str, *, last: bool = False) -> str:
        cuts = [text.find(stop) for stop in self._stop if stop in text]
        self.stopped = bool(cuts)
        cut = min(cuts) if cuts else len(text) - (0 if last else self._open(text))
        self._held = "" if cuts else text[cut:]
        self.shown += text[:cut]
        return text[:cut]

    def _open(self, text: str) -> int:
        """How many of the last characters could begin a stop string."""
        sizes = (size for stop in self._stop for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return max(sizes, default=0)


# ----------------------------------------------------------------------------------------- replies


def completed(reply: Reader, *, finish: FinishReason, usage: Usage, model: Model) -> Completion:
    """The completion that a reply, read to its end, makes."""
    return checked(
        Completion(
            message=Message.assistant(reply.text, tool_calls=reply.calls),
            usage=priced(usage, model.price),
            finish_reason="tool_calls" if reply.calls else finish,
            model=model.name,
        )
    )


# ------------------------------------------------------------------------------------------ threads


class Feed:
    """Deltas that an engine makes on its own thread, read in the caller's event loop."""

    def __init__(self, *, model: str, timeout: float | None) -> None:
        """Belongs to the running loop; `timeout` is in seconds."""
        self.abandoned = threading.Event()
        """Nobody reads any more; the engine must stop."""
        self._model = model
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Delta | Exception] = asyncio.Queue()

    def put(self, item: Delta | Exception) -> None:
        """Pass on a delta that says something, or the error that ends the reply; from any thread."""
        if item != Delta() and not self.abandoned.is_set():
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What was put in, until the delta with the completion or an error."""
        try:
            async with aclosing(within(self._timeout, self._read())) as deltas:
                async for delta in deltas:
                    yield delta
        except TimeoutError as late:
            raise ModelTimeoutError(f"{self._model}: no answer within {self._timeout} s", model=self._model) from late
        finally:
            self.abandoned.set()

    async def _read(self) -> AsyncGenerator[Delta, None]:
        ended = False
        while not ended:
            item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            yield item
            ended = item.completion is not None
