"""`EmbeddedModel`: pinned weights by name, downloaded on first use and run in process with llama.cpp."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from inspect import signature
from pathlib import Path
from typing import Any

from rl_conductor.models.base import StreamingModel, require
from rl_conductor.models.in_process.capabilities import in_process_capabilities
from rl_conductor.models.llamacpp.adapter import DEFAULT_CONTEXT, LlamaCppModel
from rl_conductor.models.llamacpp.downloads import Progress, Weights
from rl_conductor.models.llamacpp.weights import fetch, pinned, verified_adapter
from rl_conductor.types import FREE, Delta, Price, Request


class EmbeddedModel(StreamingModel):
    """A small open model; its weights are downloaded for the first request if they are not cached."""

    def __init__(self, weights: str | Weights, *, progress: Progress | None = None, **options: Any) -> None:
        """Configures the model; the first call downloads and loads the weights.

        Args:
            weights: a name such as `qwen2.5-coder-0.5b`, or a custom entry.
            progress: called during the download, on another thread, with bytes received and total bytes.
            options: passed to `LlamaCppModel`.

        Raises:
            ConfigError: the name is unknown, or a library is missing.
            TypeError: `LlamaCppModel` has no such option.
        """
        signature(LlamaCppModel).bind("", **options)
        self._weights = pinned(weights) if isinstance(weights, str) else weights
        self.name = f"embedded:{self._weights.name}"
        self.capabilities = in_process_capabilities(
            tools=self._weights.tools, lengths="grammar", context=options.get("context", DEFAULT_CONTEXT)
        )
        self.price: Price | None = options.get("price", FREE)
        self._progress = progress
        self._options = options
        self._model: LlamaCppModel | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply. The first call waits for the download, which does not count towards its timeout."""
        require(self, request)
        if self._model is None:
            file = await self._file()
            self._model = self._model or self._create_model(file)  # a concurrent request may have created it
        async with aclosing(self._model.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Releases the engine; the last model to do so frees its memory."""
        if self._model is not None:
            await self._model.aclose()

    def _create_model(self, file: Path) -> LlamaCppModel:
        defaults = {"name": self.name, "lora": verified_adapter(self._weights)}
        return LlamaCppModel(file, **(defaults | self._options))

    async def _file(self) -> Path:
        cancelled = threading.Event()

        def report(received: int, total: int) -> None:
            if cancelled.is_set():
                raise asyncio.CancelledError  # stops the download, which the next try resumes
            if self._progress is not None:
                self._progress(received, total)

        try:
            return await asyncio.to_thread(fetch, self._weights, progress=report)
        finally:
            cancelled.set()
