"""`LlamaCppModel`: runs any GGUF file in process with llama.cpp; needs no compiler, server or GPU.

Models with the same file and options share one engine, which decodes `parallel` requests at once from any number of
event loops. Images and files are not supported; `Sampling.effort` affects reasoning models only.
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
from rl_conductor.models.base import StreamingModel, require
from rl_conductor.models.in_process.capabilities import in_process_capabilities
from rl_conductor.models.in_process.chat_template import ZERO_WIDTH_SPACE
from rl_conductor.models.in_process.token_stream import TokenStream
from rl_conductor.models.llamacpp.engine import Engine, EngineSetup, default_threads, engines
from rl_conductor.models.openai.dialects import DIALECTS
from rl_conductor.models.openai.wire import Reply, extra_fields, options_of
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.tool_emulation import (
    add_schema_to_prompt,
    may_become_tool_call,
    offered_tools,
    parse_tool_calls,
    response_format_with_tools,
)
from rl_conductor.types import FREE, Completion, Delta, JsonFormat, Message, Price, Request
from rl_conductor.types.messages import arguments_of

DEFAULT_CONTEXT = 4096
"""Default maximum of tokens of prompt and reply together."""

SPECIAL_TOKEN_START = re.compile(r"<(?=[|\uff5c]|(?:start|end)_of_turn>|/s>)")
"""Start of the special tokens that separate turns in common chat templates."""
STREAM_OPTIONS = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
"""Progress chunks, one per batch of the prompt, make it possible to cancel before the first token."""


class LlamaCppModel(StreamingModel):
    """A GGUF file that is loaded on first use and unloaded when the last model that uses it is closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        context: int = DEFAULT_CONTEXT,
        parallel: int = 4,
        threads: int | None = None,
        lora: str | Path | None = None,
        engine: str = "",
        price: Price | None = FREE,
    ) -> None:
        """Configures the model; the first call loads the weights.

        Args:
            path: the weights.
            name: the model's name; `llamacpp:` and the file name by default.
            context: maximum tokens of prompt and reply together.
            parallel: maximum concurrent requests; each takes memory for `context` tokens, further ones wait.
            threads: half of the cores by default; more are often slower when the machine is busy.
            lora: a LoRA adapter in GGUF format.
            engine: name of an engine of its own, shared only by models with the same name and options. Its memory and
                cached prompts are then not displaced by other models' requests.
            price: the price of a call; free by default.

        Raises:
            ConfigError: xllamacpp is not installed, or a file is missing or not GGUF.
        """
        weights = _gguf_file(path)
        self.name = name or f"llamacpp:{weights.name}"
        self.price = price
        self.capabilities = in_process_capabilities(tools=_supports_tools(weights), lengths="grammar", context=context)
        self._setup = EngineSetup(
            weights=weights,
            lora=None if lora is None else _gguf_file(lora),
            context=context,
            parallel=parallel,
            threads=threads or default_threads(),
            name=engine,
        )
        self._engine: Engine | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply. Closing the generator early, or a timeout, stops the generation."""
        require(self, request)
        stream = TokenStream(model=self.name, timeout=request.timeout)
        if self._engine is None:
            self._engine = engines.lease(self._setup)
        self._engine.submit(_ChatJob(request, stream, name=self.name, price=self.price))
        async with aclosing(stream.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Releases the engine; the last model to do so frees its memory and fails unanswered requests."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engines.release, engine)


# --------------------------------------------------------------------------------------------- files


def _gguf_file(path: str | Path) -> Path:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {str(path)!r}: give the path of a .gguf file")
    with file.open("rb") as content:
        if content.read(4) != b"GGUF":
            raise ConfigError(f"{str(path)!r} is not a GGUF file, the only format that llama.cpp reads")
    return file


def _supports_tools(weights: Path) -> bool:
    """Returns whether the chat template in the file mentions tools; other templates drop them silently."""
    key = b"tokenizer.chat_template"
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = content.find(key, 0, 2**26)
        if position < 0:
            return False
        # A GGUF string: its key, 4 bytes of type, 8 bytes of length, the text.
        start = position + len(key) + 12
        (length,) = struct.unpack("<Q", content[start - 8 : start])
        return b"tools" in content[start : start + length]


# ------------------------------------------------------------------------------------------ requests


def _body(request: Request) -> dict[str, Any]:
    messages = tuple(_with_object_arguments(message) for message in add_schema_to_prompt(request).messages)
    request = _with_tools(request.model_copy(update={"messages": messages}))
    dialect = DIALECTS["llama.cpp"]
    body = options_of(request, dialect) | extra_fields(request, dialect) | STREAM_OPTIONS
    for field in {"messages", "tools"} & set(body):
        # Otherwise quoted text could end its own turn and forge the next one.
        body[field] = json.loads(
            SPECIAL_TOKEN_START.sub("<" + ZERO_WIDTH_SPACE, json.dumps(body[field], ensure_ascii=False))
        )
    return body


def _with_object_arguments(message: Message) -> Message:
    """Makes all tool call arguments JSON objects, because templates fail on anything else."""
    calls = [
        call.model_copy(update={"arguments": json.dumps(arguments_of(call), ensure_ascii=False)})
        for call in message.tool_calls
    ]
    return message.model_copy(update={"tool_calls": tuple(calls)})


def _with_tools(request: Request) -> Request:
    """Enforces `tool_choice` by a schema: llama.cpp does so only after a marker that small models omit."""
    response_format = response_format_with_tools(request)
    if isinstance(response_format, JsonFormat) and response_format.json_schema is None:
        response_format = JsonFormat(json_schema={"type": "object"})
    return request.model_copy(
        update={"tools": offered_tools(request), "tool_choice": "auto", "response_format": response_format}
    )


# ------------------------------------------------------------------------------------------- replies


class _ChatJob:
    """A request in the engine; converts its chunks to deltas."""

    def __init__(self, request: Request, stream: TokenStream, *, name: str, price: Price | None) -> None:
        self.body = _body(request)
        self._request = request
        self._tools = offered_tools(request)
        self._stream = stream
        self._name = name
        self._price = price
        self._reply = Reply(name)
        self._error: ModelError | None = None
        self._buffer = ""
        """Text that may become a tool call."""
        self._is_buffering = bool(self._tools)

    @property
    def abandoned(self) -> bool:
        return self._stream.abandoned.is_set()

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        chunk.pop("model", None)  # it contains the path of the file
        try:
            delta = self._reply.add(chunk)
        except ModelError as error:
            self._error = error
            return True
        self._emit(delta)
        return self.abandoned

    def _emit(self, delta: Delta) -> None:
        if self._is_buffering:
            self._buffer += delta.text
            self._is_buffering = may_become_tool_call(self._buffer)
            if self._is_buffering:
                delta = Delta(reasoning=delta.reasoning)
            else:
                delta = Delta(text=self._buffer, reasoning=delta.reasoning)
        if delta.text or delta.reasoning:
            self._stream.put(delta)

    def on_end(self, error: Exception | None) -> None:
        try:
            self._stream.put(Delta(completion=self._completion(error)))
        except (ModelError, ConfigError) as failure:
            self._stream.put(failure)

    def _completion(self, error: Exception | None) -> Completion:
        if isinstance(error, ConfigError):
            raise error
        if error is not None:
            raise BadRequestError(f"{self._name}: llama.cpp rejected the request: {error}", model=self._name) from error
        if self._error is not None:
            raise self._error
        completion = self._reply.completion(self._price)
        calls = parse_tool_calls(completion.text, self._tools) if self._is_buffering else ()
        if calls:
            message = completion.message.model_copy(update={"content": (), "tool_calls": calls})
            completion = completion.model_copy(update={"message": message, "finish_reason": "tool_calls"})
        elif self._is_buffering and self._buffer:
            self._stream.put(Delta(text=self._buffer))
        return checked(completion, self._request)
