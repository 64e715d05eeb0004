"""LangChain's chat models and other runnables as `Model`s, so that they can plan and work for a Conductor.

They are called the ordinary way: their callbacks, caches, rate limiters and retries stay in force, and they show in
traces as they always do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, get_type_hints, is_typeddict

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables import Runnable
from langchain_core.tracers.context import register_configure_hook
from langchain_core.utils.json import parse_json_markdown
from pydantic_core import to_json

from langchain_conductor.budget import budgeted, leave_to_the_conductor
from langchain_conductor.failures import translated
from langchain_conductor.hosts import called
from langchain_conductor.invoking import invoke, is_async_only, stream
from langchain_conductor.messages import core_completion, lc_messages, lc_tool, plain_name
from langchain_conductor.tuning import stop_option, tuned
from rl_conductor.errors import BadResponseError, ConfigError
from rl_conductor.models.base import Capabilities, checked, require, within
from rl_conductor.models.prices import price_of
from rl_conductor.planning.prompts import prompt_in
from rl_conductor.types import Completion, Delta, JsonFormat, Price, Request, Tool

PRICE_PROVIDERS = {"google_genai": "google", "google_vertexai": "google"}
"""Providers that LangChain and the price data name differently."""


class Counter(UsageMetadataCallbackHandler):
    """Adds up what the chat models in a runnable report."""


_counter: ContextVar[Counter | None] = ContextVar("conductor_counter", default=None)
register_configure_hook(_counter, inheritable=True)


def stop_counting() -> None:
    """Leave the calls of this context to whoever adds them up itself, such as a conductor."""
    _counter.set(None)
    leave_to_the_conductor()


class ChatModel:
    """A LangChain chat model as a `Model`."""

    def __init__(
        self,
        chat: BaseChatModel,
        *,
        name: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        """Wrap `chat`.

        Args:
            chat: the model, with its keys, addresses and defaults.
            name: `provider:model`; else what it tells tracers.
            price: else today's price of the provider's model of that name, if it is known.
            capabilities: else what its profile says, and where that says nothing, what most chat models can.
        """
        told = chat._get_ls_params()  # noqa: SLF001 (LangChain's only common way to ask a model who it is)
        provider, model = told.get("ls_provider", "langchain"), told.get("ls_model_name", type(chat).__name__)
        self.chat = chat
        self.name = name or f"{provider}:{model}"
        self.price = price or price_of(PRICE_PROVIDERS.get(provider, provider), model)
        self.capabilities = capabilities or _abilities(chat)
        self.max_tokens: int | None = told.get("ls_max_tokens")
        """Of its own, for a reply."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def settings(self) -> str:
        """What tells it from others of its name."""
        return self.chat._get_llm_string()  # noqa: SLF001 (what LangChain's own caches go by)

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        with translated(self.name, self.chat):
            async with asyncio.timeout(request.timeout):
                if isinstance(request.response_format, JsonFormat):
                    reply = await self._as_json(request, request.response_format)
                else:
                    reply = await invoke(self._bound(request), lc_messages(request.messages), **self._stop(request))
            return checked(core_completion(reply, model=self.name, price=self.price))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made; one of a given JSON schema comes as one piece."""
        require(self, request)
        if isinstance(request.response_format, JsonFormat):
            completion = await self.complete(request)
            yield Delta(text=completion.text, completion=completion)
            return
        pieces: list[AIMessage] = []
        with translated(self.name, self.chat):
            arriving = stream(self._bound(request), lc_messages(request.messages), **self._stop(request))
            async with aclosing(within(request.timeout, arriving)) as replies:
                async for piece in replies:
                    pieces.append(piece)
                    if piece.text:
                        yield Delta(text=str(piece.text))
            chunks = [piece for piece in pieces if isinstance(piece, AIMessageChunk)]
            reply = chunks[0] + chunks[1:] if chunks else pieces[-1]  # a model that can't stream sends one `AIMessage`
            completion = checked(core_completion(reply, model=self.name, price=self.price))
        yield Delta(completion=completion)

    async def aclose(self) -> None:
        """Nothing: the connections belong to whoever made the chat model."""

    def _stop(self, request: Request) -> dict[str, Any]:
        return stop_option(self.chat, request.sampling)

    def _bound(self, request: Request) -> Runnable[Any, AIMessage]:
        chat = tuned(self.chat, request.sampling)
        if not request.tools:
            return chat
        choice = {"required": "any"}.get(request.tool_choice, request.tool_choice)
        options: dict[str, Any] = {} if choice == "auto" else {"tool_choice": choice}
        if not request.parallel_tool_calls:
            options["parallel_tool_calls"] = False
        return chat.bind_tools([lc_tool(tool) for tool in request.tools], **options)

    async def _as_json(self, request: Request, form: JsonFormat) -> AIMessage:
        if request.tools and request.tool_choice != "none":
            return await self._called_or_json(request, form)
        chat, messages = tuned(self.chat, request.sampling), lc_messages(request.messages)
        if form.json_schema is None:  # for which not every chat model has a switch; the conversation asks for it
            reply = await invoke(chat, messages, **self._stop(request))
            return _json_reply(parse_json_markdown(str(reply.text)), reply)
        schema = {**form.json_schema, "title": plain_name(form.name)}
        made = await invoke(chat.with_structured_output(schema, include_raw=True), messages)
        if made["parsed"] is None:
            why = made["parsing_error"] or "it does not fit the schema"
            raise BadResponseError(f"{self.name}: the reply is not the JSON asked for: {why}", model=self.name)
        return _json_reply(made["parsed"], made["raw"])

    async def _called_or_json(self, request: Request, form: JsonFormat) -> AIMessage:
        """A call of a tool, or the answer in its form, which to the model is one tool more: few vendors take both."""
        schema = form.json_schema or {"type": "object"}
        answer = Tool(name=plain_name(f"answer_{form.name}"), description="Gives the whole answer.", parameters=schema)
        if request.tool_choice == "auto":
            request = request.model_copy(update={"tools": (*request.tools, answer), "tool_choice": "required"})
        reply: AIMessage = await invoke(self._bound(request), lc_messages(request.messages), **self._stop(request))
        calls = [call for call in reply.tool_calls if call["name"] != answer.name]
        if calls:  # an answer beside them was written before their results are known
            return reply.model_copy(update={"tool_calls": calls})
        made = reply.tool_calls[0]["args"] if reply.tool_calls else parse_json_markdown(str(reply.text))
        return _json_reply(made, reply)


class RunnableModel:
    """Any other runnable, such as a compiled graph, an agent or a chain, as a `Model`.

    It gets the whole conversation if it takes messages, else the last user's turn as text: that holds the task, the
    replies that the step may read, and the subtask.
    """

    def __init__(
        self,
        runnable: Runnable[Any, Any],
        *,
        name: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        """Wrap `runnable`.

        Args:
            runnable: what works; it replies with text, a message, a state with `messages`, or anything JSON can hold.
            name: else its own.
            price: of the tokens that the chat models in it report.
            capabilities: else none: it has its own tools, and takes text.

        Raises:
            ConfigError: it takes several fields, so it has to be told which is the conversation.
        """
        self.runnable = runnable
        self.name = name or f"langchain:{runnable.get_name()}"
        self.price = price
        self.capabilities = capabilities or Capabilities()
        self._field = _field_for_input(runnable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        with translated(self.name, self.runnable), _counting() as counted, budgeted(self.name, self.price):
            async with asyncio.timeout(request.timeout):
                made = await called(self.runnable, self._input(request), async_only=self._async_only)
        return self._completion(made, counted)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made, where it is text from the first; else as one piece."""
        require(self, request)
        if self._field == MESSAGES:  # such a graph streams its state, not its answer
            completion = await self.complete(request)
            yield Delta(text=completion.text, completion=completion)
            return
        made: Any = None
        said = ""
        with translated(self.name, self.runnable), _counting() as counted, budgeted(self.name, self.price):
            arriving = stream(self.runnable, self._input(request), async_only=self._async_only)
            async with aclosing(within(request.timeout, arriving)) as pieces:
                async for piece in pieces:
                    made = piece if made is None else made + piece
                    text = _plain(piece)
                    said += text
                    if text:
                        yield Delta(text=text)
        completion = self._completion(made, counted)
        yield Delta(text=completion.text.removeprefix(said), completion=completion)

    async def aclose(self) -> None:
        """Nothing: what the runnable holds belongs to whoever made it."""

    @cached_property
    def _async_only(self) -> bool:
        return is_async_only(self.runnable)

    def _input(self, request: Request) -> Any:
        if self._field in (MESSAGES, CONVERSATION):
            messages = lc_messages(request.messages)
            return {MESSAGES: messages} if self._field == MESSAGES else messages
        text = prompt_in(request.messages)
        return {self._field: text} if self._field else text

    def _completion(self, made: Any, counted: Counter) -> Completion:
        usage: UsageMetadata | None = None
        for one in counted.usage_metadata.values():
            usage = add_usage(usage, one)
        reply = AIMessage(_text(made), usage_metadata=usage, response_metadata={"model_name": self.name})
        return checked(core_completion(reply, model=self.name, price=self.price))


# ------------------------------------------------------------------------------------ what it takes

MESSAGES = "messages"
"""The field in which graphs keep the conversation."""
CONVERSATION = "*"
"""Stands for an input that is the conversation itself."""


def _field_for_input(runnable: Runnable[Any, Any]) -> str:
    """The field of the input that takes the question; empty when the input is text."""
    schema = _input_schema(runnable)
    fields, needed = list(schema.get("properties", ())), list(schema.get("required", ()))
    if schema.get("type") == "string":
        return ""
    if not fields:
        return CONVERSATION
    if MESSAGES in fields:
        return MESSAGES
    if len(fields) == 1 or len(needed) == 1:
        return str((needed or fields)[0])
    raise ConfigError(
        f"worker {runnable.get_name()!r} takes {', '.join(fields)}: say what a conversation becomes, as in "
        f"RunnableLambda(lambda messages: {{{fields[0]!r}: messages[-1].text, ...}}) | worker"
    )


def _input_schema(runnable: Runnable[Any, Any]) -> dict[str, Any]:
    """The JSON schema of its input, as far as it tells."""
    try:
        kind = runnable.InputType
    except TypeError:  # it is not typed
        return {}
    if is_typeddict(kind):  # of which pydantic reads only some before Python 3.12
        return {"type": "object", "properties": get_type_hints(kind), "required": kind.__required_keys__}
    return runnable.get_input_jsonschema()


def _abilities(chat: BaseChatModel) -> Capabilities:
    profile = chat.profile or {}
    tools = type(chat).bind_tools is not BaseChatModel.bind_tools and profile.get("tool_calling", True)
    shaped = tools or type(chat).with_structured_output is not BaseChatModel.with_structured_output
    return Capabilities(
        tools=tools,
        images=profile.get("image_inputs", True),
        files=profile.get("pdf_inputs", False),
        json_schema=shaped,
    )


# ------------------------------------------------------------------------------------ what it gives


def _text(made: Any) -> str:
    """The answer in what a runnable returns."""
    if isinstance(made, Mapping) and made.get(MESSAGES):
        made = made[MESSAGES][-1]
    if isinstance(made, str | BaseMessage):
        return _plain(made)
    return to_json(made, fallback=str).decode()


def _plain(piece: Any) -> str:
    return str(piece.text) if isinstance(piece, BaseMessage) else piece if isinstance(piece, str) else ""


def _json_reply(made: Any, raw: AIMessage) -> AIMessage:
    """`raw` with JSON as its text; the call of a tool that may have brought it is a detail of the vendor's."""
    told = {name: value for name, value in raw.response_metadata.items() if name != "model_provider"}
    return AIMessage(json.dumps(made, ensure_ascii=False), usage_metadata=raw.usage_metadata, response_metadata=told)


@contextmanager
def _counting() -> Iterator[Counter]:
    token = _counter.set(counted := Counter())
    try:
        yield counted
    finally:
        _counter.reset(token)
