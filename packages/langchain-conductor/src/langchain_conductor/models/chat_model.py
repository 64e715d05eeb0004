"""`ChatModel`: a LangChain chat model as a `Model` of the core.

It is called the ordinary way: its callbacks, cache, rate limiter and retries stay in force, and it shows in traces as
always.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from langchain_conductor.models.chat_wrappers import convert_chat_models, find_chat_models
from langchain_conductor.models.errors import check_stream, translate_errors
from langchain_conductor.models.invocation import invoke, stream
from langchain_conductor.models.json_replies import (
    JsonPieces,
    join_chunks,
    json_reply,
    request_json,
    schema_options,
    truncated_reply,
    with_text,
)
from langchain_conductor.models.prices import price_of_chat
from langchain_conductor.models.replies import core_completion, reasoning_text
from langchain_conductor.models.sampling import apply_sampling
from langchain_conductor.models.vendors.messages import adapt_messages, is_anthropic, with_called_tools
from langchain_conductor.models.vendors.state import messages_for, with_vendor_state
from langchain_conductor.tools import lc_tool
from rl_conductor.errors import ConfigError
from rl_conductor.integration import PLAN_FORMAT_NAME, checked, redacted_repr, require, vendor_safe_name, within
from rl_conductor.models import Capabilities
from rl_conductor.types import Completion, Delta, JsonFormat, Price, Request, Tool

TOOL_OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
"""Bound options that are replaced when a request has tools or a format."""
FUNCTION_KEYS = ("function", "input_schema", "parameters", "function_declarations", "toolSpec")
"""The keys, in any vendor's form, of a bound tool that is a function; others, such as web search, are the vendor's."""


class ChatModel:
    """A LangChain chat model as a `Model`, also one with `.bind()`, `.with_config()`, retries or fallbacks."""

    def __init__(
        self,
        chat: Runnable[Any, AIMessage],
        *,
        name: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        """Wraps a chat model.

        Args:
            chat: the model, with its keys, addresses and defaults.
            name: `provider:model`; by default the name that `chat` reports to tracers.
            price: by default the current price of the provider's model of that name, if it is known.
            capabilities: by default those in its profile, or those that most chat models have; with fallbacks, those
                that all have.

        Raises:
            ConfigError: `chat` is not a chat model.
        """
        models = find_chat_models(chat)
        if not models:
            raise ConfigError(
                f"chat is {redacted_repr(chat)}; write a chat model, or RunnableModel(...) for other runnables"
            )
        # LangChain's only common way to read provider and model name.
        params = [model._get_ls_params(**kwargs) for model, kwargs in models]  # noqa: SLF001
        provider = params[0].get("ls_provider", "langchain")
        model_name = params[0].get("ls_model_name", type(models[0][0]).__name__)
        self.chat = chat
        self._providers = {entry.get("ls_provider", "langchain") for entry in params}
        self.name = name or f"{provider}:{model_name}"
        self.price = price or price_of_chat(params[0])
        capabilities = capabilities or _common_capabilities([_read_capabilities(model) for model, _ in models])
        thinking_tokens = max(_thinking_tokens(model, kwargs) for model, kwargs in models)
        self.capabilities = capabilities.model_copy(update={"thinking_tokens": thinking_tokens})
        max_tokens = [entry.get("ls_max_tokens") or -1 for entry in params]  # Ollama also writes no limit as -1
        self.max_tokens: int | None = max(max_tokens) if min(max_tokens) > 0 else None
        """The model's own maximum number of tokens of a reply; with fallbacks, the largest."""
        limits = [(model.profile or {}).get("max_input_tokens") for model, _ in models]
        self.max_input_tokens: int | None = min(filter(None, limits), default=None)
        """The context limit in the model's profile; with fallbacks, the smallest."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def cache_key(self) -> str:
        """A text that distinguishes models of the same name by their settings, with those of the current config."""
        keys: list[str] = []

        def add_key(chat: BaseChatModel, kwargs: dict[str, Any]) -> Runnable[Any, AIMessage]:
            keys.append(chat._get_llm_string(**kwargs))  # noqa: SLF001
            return chat

        convert_chat_models(self.chat, add_key)
        return "\n".join(keys)

    async def complete(self, request: Request) -> Completion:
        """Returns the whole reply."""
        require(self, request)
        with translate_errors(self.name, self.chat):
            async with asyncio.timeout(request.timeout):
                if isinstance(request.response_format, JsonFormat):
                    reply = await self._complete_json(request, request.response_format)
                else:
                    reply = await invoke(self._prepare(request), self._messages(request))
        return self._to_completion(reply, request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply; JSON that is requested beside tools comes as one piece."""
        require(self, request)
        if isinstance(request.response_format, JsonFormat):
            deltas = self._stream_json(request, request.response_format)
        else:
            deltas = self._stream_text(request)
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta

    async def _stream_text(self, request: Request) -> AsyncGenerator[Delta, None]:
        messages: list[AIMessage] = []
        async for message in self._stream(self._prepare(request), request):
            messages.append(message)
            yield Delta(text=str(message.text), reasoning=reasoning_text(message))
        yield Delta(completion=self._to_completion(join_chunks(messages), request))

    async def _stream_json(self, request: Request, response_format: JsonFormat) -> AsyncGenerator[Delta, None]:
        if request.tools and request.tool_choice != "none":
            completion = await self.complete(request)
            yield Delta(text=completion.text, reasoning=completion.message.reasoning, completion=completion)
            return
        outputs: list[Any] = []
        pieces = JsonPieces()
        async for output in self._stream(self._prepare_json(request, response_format), request):
            outputs.append(output)
            yield Delta(text=pieces.add(output), reasoning=reasoning_text(output))
        reply = self._json_reply(join_chunks(outputs), response_format)
        completion = self._to_completion(with_text(reply, pieces.text) if pieces.text else reply, request)
        yield Delta(text="" if pieces.text else completion.text, completion=completion)

    async def _stream(self, chat: Runnable[Any, Any], request: Request) -> AsyncGenerator[Any, None]:
        with translate_errors(self.name, self.chat):
            outputs = stream(chat, self._messages(request))
            async with aclosing(within(request.timeout, outputs)) as outputs_in_time:
                has_chunks = False
                try:
                    async for output in outputs_in_time:
                        yield output
                        has_chunks = True
                except Exception as error:
                    reply = truncated_reply(error)
                    if reply is None and not has_chunks:
                        check_stream(error, self.name)
                    if reply is None:
                        raise
                    if not has_chunks:
                        yield reply

    def _json_reply(self, output: Any, response_format: JsonFormat) -> AIMessage:
        return json_reply(output, response_format, model=self.name, price=self.price)

    def _to_completion(self, reply: AIMessage, request: Request) -> Completion:
        with translate_errors(self.name, self.chat):
            completion = checked(core_completion(reply, model=self.name, price=self.price), request)
        message = with_vendor_state(completion.message, reply, owner=self._state_owner)
        return completion.model_copy(update={"message": message})

    async def aclose(self) -> None:
        """Does nothing: the connections belong to the code that created the chat model."""

    def _messages(self, request: Request) -> list[BaseMessage]:
        return messages_for(self._state_owner, adapt_messages(request.messages, self._providers))

    def _state_owner(self) -> str:
        return hashlib.sha256(self.cache_key.encode()).hexdigest()[:16]

    def _prepare(self, request: Request) -> Runnable[Any, AIMessage]:
        return convert_chat_models(self.chat, partial(_apply, request))

    def _prepare_json(self, request: Request, response_format: JsonFormat) -> Runnable[Any, Any]:
        def prepare(chat: BaseChatModel, kwargs: dict[str, Any]) -> Runnable[Any, Any]:
            chat, options = apply_sampling(chat, request.sampling, kwargs)
            if response_format.name == PLAN_FORMAT_NAME:
                options = {**options, "tools": ()}  # a plan needs no search
            return _bind_unreplaced(request_json(chat, response_format), options)

        return convert_chat_models(self.chat, prepare)

    async def _complete_json(self, request: Request, response_format: JsonFormat) -> AIMessage:
        if request.tools and request.tool_choice != "none":
            return await self._call_tool_or_answer_json(request, response_format)
        try:
            output = await invoke(self._prepare_json(request, response_format), self._messages(request))
        except Exception as error:
            if (output := truncated_reply(error)) is None:
                raise
        return self._json_reply(output, response_format)

    async def _call_tool_or_answer_json(self, request: Request, response_format: JsonFormat) -> AIMessage:
        """Offers the answer's schema as one more tool, since few vendors accept tools and a schema together."""
        schema = response_format.json_schema or {"type": "object"}
        name = vendor_safe_name(f"answer_{response_format.name}")
        answer = Tool(name=name, description="Gives the whole answer.", parameters=schema)
        with_answer = request
        if request.tool_choice == "auto":
            with_answer = request.model_copy(update={"tools": (*request.tools, answer), "tool_choice": "required"})

        def prepare(chat: BaseChatModel, kwargs: dict[str, Any]) -> Runnable[Any, AIMessage]:
            if options := schema_options(chat, response_format):
                return _apply(request, chat, kwargs).bind(**options)
            return _apply(with_answer, chat, kwargs)

        reply: AIMessage = await invoke(convert_chat_models(self.chat, prepare), self._messages(request))
        calls = [call for call in reply.tool_calls if call["name"] != answer.name]
        if calls:  # an answer in the same reply was written before the results of these calls were known
            return reply.model_copy(update={"tool_calls": calls})
        return self._json_reply(reply, response_format)


def _apply(request: Request, chat: BaseChatModel, kwargs: dict[str, Any]) -> Runnable[Any, AIMessage]:
    """Applies the sampling and the tools of `request` to `chat`; they replace the functions bound in `kwargs`."""
    chat, options = apply_sampling(chat, request.sampling, kwargs)
    if is_anthropic(chat):
        request = with_called_tools(request)
    if not request.tools:
        return chat.bind(**options) if options else chat
    tools = [lc_tool(tool) for tool in request.tools]
    with_tools = chat.bind_tools(tools, **_choice_option(chat, request), **_tool_options(chat, request))
    return _bind_unreplaced(with_tools, options)


def _choice_option(chat: BaseChatModel, request: Request) -> dict[str, Any]:
    match request.tool_choice:
        case "auto":
            return {}
        case "required":
            return {"tool_choice": "any"}
        case "none" if is_anthropic(chat):  # the package would take the text as the name of a tool
            return {"tool_choice": {"type": "none"}}
        case choice:
            return {"tool_choice": choice}


def _bind_unreplaced(prepared: Runnable[Any, Any], options: Mapping[str, Any]) -> Runnable[Any, Any]:
    """Binds the options of a model that a request does not replace, and the tools that run on its vendor's server."""
    models = find_chat_models(prepared)
    if not models:  # a model with a `with_structured_output` of its own
        return prepared
    unreplaced = {name: value for name, value in options.items() if name not in TOOL_OPTIONS}
    if vendor_tools := [tool for tool in options.get("tools") or () if _is_vendor_tool(tool)]:
        _, bound = models[0]
        unreplaced["tools"] = [*vendor_tools, *bound.get("tools", ())]
    return prepared.bind(**unreplaced) if unreplaced else prepared


def _is_vendor_tool(tool: object) -> bool:
    return isinstance(tool, Mapping) and not any(tool.get(key) for key in FUNCTION_KEYS)


def _tool_options(chat: BaseChatModel, request: Request) -> dict[str, Any]:
    """Returns the options that `chat` has: `strict`, if the tools agree on it, and a limit to one call."""
    strict_values = {tool.strict for tool in request.tools}
    options = {
        "strict": strict_values.pop() if len(strict_values) == 1 else None,
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
    }
    parameters = inspect.signature(chat.bind_tools).parameters
    return {name: value for name, value in options.items() if value is not None and name in parameters}


def _thinking_tokens(chat: BaseChatModel, kwargs: Mapping[str, Any]) -> int:
    """Returns the budget for thinking in the form of Anthropic's package; 0 without one."""
    thinking = kwargs.get("thinking") or getattr(chat, "thinking", None)
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else 0


def _common_capabilities(models: Sequence[Capabilities]) -> Capabilities:
    """Returns the capabilities that all models have, since a fallback may get any request."""
    return Capabilities(
        tools=all(model.tools for model in models),
        images=all(model.images for model in models),
        files=all(model.files for model in models),
        json_schema=all(model.json_schema for model in models),
    )


def _read_capabilities(chat: BaseChatModel) -> Capabilities:
    profile = chat.profile or {}
    tools = type(chat).bind_tools is not BaseChatModel.bind_tools and profile.get("tool_calling", True)
    json_schema = tools or type(chat).with_structured_output is not BaseChatModel.with_structured_output
    return Capabilities(
        tools=tools,
        images=profile.get("image_inputs", True),
        files=profile.get("pdf_inputs", False),
        json_schema=json_schema,
    )
