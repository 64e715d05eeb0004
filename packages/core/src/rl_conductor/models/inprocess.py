"""What the engines that run inside this process share: chat templates, text made of tokens, and a bridge of threads.

Nothing here knows torch, transformers or vLLM; it is imported without any of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from rl_conductor.errors import BadRequestError, ContextLengthError, ModelTimeoutError
from rl_conductor.models.base import arguments_of, within
from rl_conductor.types import Delta, Message, ToolCall

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"


class Tokenizer(Protocol):
    """What we need of a Hugging Face tokenizer."""

    @property
    def all_special_tokens(self) -> Sequence[str]:
        """Such as `<|im_end|>`."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """The conversation as the model was trained to read it."""


# ------------------------------------------------------------------------------------------ prompts


def prompt_tokens(tokenizer: Tokenizer, messages: Iterable[Message], *, model: str, limit: int) -> list[int]:
    """The conversation as token ids, by the tokenizer's own chat template.

    Raises:
        BadRequestError: there is no template, or it refuses this order of roles.
        ContextLengthError: with one token of reply it would be longer than `limit`.
    """
    turns = [_turn(message, tokenizer.all_special_tokens) for message in messages]
    try:
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    except Exception as refused:  # a template is code from the model's author and raises what it likes
        raise BadRequestError(
            f"{model}: its chat template refuses the conversation: {refused}", model=model
        ) from refused
    tokens: list[int] = rendered["input_ids"]
    if len(tokens) >= limit:
        raise ContextLengthError(
            f"{model}: the conversation is {len(tokens)} tokens long and the model reads at most {limit - 1}",
            model=model,
        )
    return tokens


def _turn(message: Message, special: Sequence[str]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": _defused(message.text, special)}
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, special) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _call(call: ToolCall, special: Sequence[str]) -> dict[str, Any]:
    arguments = arguments_of(call.model_copy(update={"arguments": _defused(call.arguments, special)}))
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _defused(text: str, special: Sequence[str]) -> str:
    """`text` in which no special token is left: else a reply could end its own turn and forge the next one."""
    for token in special:
        if token in text:
            text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
    return text


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
