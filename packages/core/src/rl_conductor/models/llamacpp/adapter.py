"""Any GGUF file, in process, by llama.cpp: no compiler, no server, no GPU needed.

Models of the same file and options share one engine, which decodes `parallel` requests at once on any number of
event loops. Images and files are not supported, and `Sampling.effort` means something to reasoning models only.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import re
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rl_conductor.errors import BadRequestError, ConfigError, ModelError
from rl_conductor.models.base import Capabilities, arguments_of, checked, collect, require
from rl_conductor.models.llamacpp.engine import Engine, EngineSetup, default_threads, lease, release
from rl_conductor.models.openai.wire import DIALECTS, Reply, extra_fields, options_of
from rl_conductor.models.tool_emulation import form_with_tools, may_become_call, offered, read_calls, telling
from rl_conductor.models.transformers.chat_template import ZERO_WIDTH_SPACE
from rl_conductor.models.transformers.token_stream import Feed
from rl_conductor.types import (
    FREE,
    Completion,
    Delta,
    JsonFormat,
    Message,
    Price,
    Request,
)

CONTEXT = 4096
"""Most tokens of a request, reply included, unless the user says otherwise."""

SPECIAL = re.compile(r"<(?=[|\uff5c]|(?:start|end)_of_turn>|/s>)")
"""How the special tokens begin by which the usual chat templates tell one turn from the next."""
STREAMING = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
"""Progress comes with every batch of the prompt: the chance to stop before the first token."""


class LlamaCppModel:
    """A GGUF file that llama.cpp loads on first use and keeps in memory until the last of its models is closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        context: int = CONTEXT,
        parallel: int = 4,
        threads: int | None = None,
        lora: str | Path | None = None,
        price: Price | None = FREE,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            path: the weights.
            name: what it is called; `llamacpp:` and the file's name by default.
            context: most tokens of one request, reply included.
            parallel: requests decoded at once; each takes memory for `context` tokens, further ones wait.
            threads: by default half of the cores; more are soon slower when the machine has other work.
            lora: an adapter in GGUF form, put on top.
            price: what a call is accounted as; your own hardware counts as free.

        Raises:
            ConfigError: xllamacpp is missing, or a file is not there or not GGUF.
        """
        weights = _gguf(path)
        self.name = name or f"llamacpp:{weights.name}"
        self.price = price
        self.capabilities = Capabilities(
            tools=_knows_tools(weights),
            json_schema=True,
            array_bounds=True,
            grammar=True,
            context=context,
            reasoning_start="outside",  # llama.cpp knows the template, and sends reasoning apart from the text
        )
        self._setup = EngineSetup(
            weights=weights,
            lora=None if lora is None else _gguf(lora),
            context=context,
            parallel=parallel,
            threads=threads or default_threads(),
        )
        self._engine: Engine | None = None

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with aclosing(self.stream(request)) as deltas:
            return await collect(deltas)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made. Leaving early or running out of time stops the generation."""
        require(self, request)
        feed = Feed(model=self.name, timeout=request.timeout)
        if self._engine is None:
            self._engine = lease(self._setup)
        self._engine.submit(_Answer(request, feed, name=self.name, price=self.price))
        async with aclosing(feed.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Give the engine back; the last model to do so frees its memory and fails what it has not answered."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(release, engine)


# --------------------------------------------------------------------------------------------- files


def _gguf(path: str | Path) -> Path:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {str(path)!r}: give the path of a .gguf file")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ConfigError(f"{str(path)!r} is not a GGUF file: llama.cpp reads no other kind")
    return file


def _knows_tools(weights: Path) -> bool:
    """Whether the chat template inside the file mentions tools; other templates leave them out without a word."""
    key = b"tokenizer.chat_template"
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(key, 0, 2**26)
        if found < 0:
            return False
        # A GGUF string: its key, 4 bytes of type, 8 bytes of length, the text.
        start = found + len(key) + 12
        (length,) = struct.unpack("<Q", content[start - 8 : start])
        return b"tools" in content[start : start + length]


# ------------------------------------------------------------------------------------------ requests


def _body(request: Request) -> dict[str, Any]:
    turns = tuple(_readable(message) for message in telling(request).messages)
    request = _with_tools(request.model_copy(update={"messages": turns}))
    dialect = DIALECTS["llama.cpp"]
    body = options_of(request, dialect) | extra_fields(request, dialect) | STREAMING
    for said in {"messages", "tools"} & set(body):
        # Else a reply that is shown to the model could end its own turn and forge the next one.
        body[said] = json.loads(SPECIAL.sub("<" + ZERO_WIDTH_SPACE, json.dumps(body[said], ensure_ascii=False)))
    return body


def _readable(message: Message) -> Message:
    """Templates read arguments as objects and fail on what is none."""
    calls = [call.model_copy(update={"arguments": json.dumps(arguments_of(call))}) for call in message.tool_calls]
    return message.model_copy(update={"tool_calls": tuple(calls)})


def _with_tools(request: Request) -> Request:
    """The choice among tools as a schema: llama.cpp enforces it only after a marker that small models forget."""
    form = form_with_tools(request)
    if isinstance(form, JsonFormat) and form.json_schema is None:
        form = JsonFormat(json_schema={"type": "object"})
    return request.model_copy(update={"tools": offered(request), "tool_choice": "auto", "response_format": form})


# ------------------------------------------------------------------------------------------- replies


class _Answer:
    """A request in the engine: turns its chunks into deltas."""

    def __init__(self, request: Request, feed: Feed, *, name: str, price: Price | None) -> None:
        self.body = _body(request)
        self._tools = offered(request)
        self._feed = feed
        self._name = name
        self._price = price
        self._reply = Reply(name)
        self._failed: ModelError | None = None
        self._held = ""
        """The beginning of what may become a tool call."""
        self._holding = bool(self._tools)

    @property
    def abandoned(self) -> bool:
        return self._feed.abandoned.is_set()

    def take(self, chunk: dict[str, Any]) -> bool:
        chunk.pop("model", None)  # it is the file's path, which is nobody's business
        try:
            delta = self._reply.add(chunk)
        except ModelError as failed:
            self._failed = failed
            return True
        self._pass_on(delta)
        return self.abandoned

    def _pass_on(self, delta: Delta) -> None:
        if self._holding:
            self._held += delta.text
            self._holding = may_become_call(self._held)
            if self._holding:
                delta = Delta(reasoning=delta.reasoning)
            else:
                delta = Delta(text=self._held, reasoning=delta.reasoning)
        if delta.text or delta.reasoning:
            self._feed.put(delta)

    def end(self, failed: Exception | None) -> None:
        try:
            self._feed.put(Delta(completion=self._completion(failed)))
        except (ModelError, ConfigError) as known:
            self._feed.put(known)

    def _completion(self, failed: Exception | None) -> Completion:
        if isinstance(failed, ConfigError):
            raise failed
        if failed is not None:
            why = f"{self._name}: llama.cpp refuses the request: {failed}"
            raise BadRequestError(why, model=self._name) from failed
        if self._failed is not None:
            raise self._failed
        completion = self._reply.completion(self._price)
        calls = read_calls(completion.text, self._tools) if self._holding else ()
        if calls:
            message = completion.message.model_copy(update={"content": (), "tool_calls": calls})
            completion = completion.model_copy(update={"message": message, "finish_reason": "tool_calls"})
        elif self._holding and self._held:
            self._feed.put(Delta(text=self._held))
        return checked(completion)
