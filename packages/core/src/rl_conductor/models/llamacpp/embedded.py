"""The models that come with the package: pinned weights by name, run in process by llama.cpp."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rl_conductor.models.base import Capabilities, collect, require
from rl_conductor.models.llamacpp.adapter import CONTEXT, LlamaCppModel
from rl_conductor.models.llamacpp.downloads import Progress, Weights
from rl_conductor.models.llamacpp.weights import adapter_of, fetch, pinned
from rl_conductor.types import FREE, Completion, Delta, Price, Request


class EmbeddedModel:
    """A small open model whose weights are downloaded for its first request, unless they are on this machine."""

    def __init__(self, weights: str | Weights, *, progress: Progress | None = None, **options: Any) -> None:
        """Nothing is read or downloaded yet.

        Args:
            weights: a name such as `qwen2.5-coder-0.5b`, or an entry of your own.
            progress: is told of the download, on another thread: bytes here, bytes in all.
            options: those of `LlamaCppModel`.

        Raises:
            ConfigError: no such weights, or a library is missing.
        """
        self._weights = pinned(weights) if isinstance(weights, str) else weights
        self.name = f"embedded:{self._weights.name}"
        self.capabilities = Capabilities(
            tools=self._weights.tools,
            json_schema=True,
            array_bounds=True,
            grammar=True,
            context=options.get("context", CONTEXT),
        )
        self.price: Price | None = options.get("price", FREE)
        self._progress = progress
        self._options = options
        self._model: LlamaCppModel | None = None

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with aclosing(self.stream(request)) as deltas:
            return await collect(deltas)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made. The first waits for the weights; its timeout counts from when they are here."""
        require(self, request)
        if self._model is None:
            file = await self._file()
            self._model = self._model or self._made(file)  # another first request may have been as slow
        async with aclosing(self._model.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Give the engine back; the last model to do so frees its memory."""
        if self._model is not None:
            await self._model.aclose()

    def _made(self, file: Path) -> LlamaCppModel:
        own = {"name": self.name, "lora": adapter_of(self._weights)}
        return LlamaCppModel(file, **(own | self._options))

    async def _file(self) -> Path:
        cancelled = threading.Event()

        def report(done: int, total: int) -> None:
            if cancelled.is_set():
                raise asyncio.CancelledError  # ends the download; what is here stays for the next try
            if self._progress is not None:
                self._progress(done, total)

        try:
            return await asyncio.to_thread(fetch, self._weights, progress=report)
        finally:
            cancelled.set()
