"""`LLMModel`: a LlamaIndex LLM as a `Model` of the core, for workers and planners.

Errors of an LLM are not retried, because its integration does that, unless its client is bound to another event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from json import JSONEncoder
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ThinkingBlock,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms import LLM
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import BaseTool, ToolMetadata, ToolOutput
from pydantic import BaseModel
from typing_extensions import override

from llama_index.llms.conductor.messages import core_reasoning
from rl_conductor import Capabilities, Completion, Message, Price, Request, Tool
from rl_conductor.integration import (
    call_async_or_sync,
    checked,
    in_thread,
    iterate_in_thread,
    move_attachments,
    parse_finish_reason,
    price_of,
    priced,
    require,
    stream_async_or_sync,
)
from rl_conductor.types import Delta, JsonFormat, TextPart, ToolCall

from .async_support import inherits_method
from .errors import translate_errors
from .replies import finish_reason, has_usual_price, refusal_text, reply_usage
from .response_formats import format_keywords, has_response_format, is_openai
from .sampling import apply_sampling, class_names, own_max_tokens, thinking_tokens
from .vendor_state import messages_for, with_vendor_state

PRICE_PROVIDERS = {"azure_openai": "azure", "google_genai": "google", "mistralai": "mistral", "bedrock_converse": "aws"}
"""Vendors that LlamaIndex's packages and the price data name differently."""

SCHEMA_KEYS = frozenset({"type", "properties", "required", "definitions", "$defs"})
"""Keywords of a tool's schema that LlamaIndex keeps; Google's package fails at others, such as `$schema`."""


_to_json = JSONEncoder(ensure_ascii=False).encode


class LLMModel:
    """Any LlamaIndex LLM. It keeps its own settings, except for sampling parameters that the caller sets."""

    def __init__(self, llm: LLM, *, price: Price | None = None, capabilities: Capabilities | None = None) -> None:
        """Wraps an LLM.

        Args:
            llm: the LLM, with its own settings.
            price: by default the current price of the vendor's model of that name, if it is known.
            capabilities: by default those that most LLMs of this kind have: every chat model counts as one that reads
                images and files, because LlamaIndex does not say which ones do.
        """
        # The Conductor reports the call to LlamaIndex's callback handlers; a handler of both would count it twice.
        silent = CallbackManager()
        silent.set_handlers([])  # a new one starts with the handlers of `Settings`
        self.llm: LLM = llm.model_copy(update={"callback_manager": silent})
        metadata = llm.metadata
        vendor = _vendor(llm)
        self.price = price or price_of(PRICE_PROVIDERS.get(vendor, vendor), metadata.model_name)
        self.name = f"llamaindex:{metadata.model_name}"
        self.max_tokens = own_max_tokens(llm)
        """The LLM's own maximum number of tokens of a reply, if it sends one."""
        usual = Capabilities(
            tools=isinstance(llm, FunctionCallingLLM) and metadata.is_function_calling_model,
            images=metadata.is_chat_model,
            files=metadata.is_chat_model,
            context=_known_context(llm),
            json_schema=has_response_format(llm),
        )
        self.capabilities = (capabilities or usual).model_copy(update={"thinking_tokens": thinking_tokens(llm)})

    async def complete(self, request: Request) -> Completion:
        require(self, request)
        messages = self._messages(request)
        with translate_errors(self.name, self.llm):
            response = await self._response(request, messages)
            return self._completion(request, messages, response, finish_reason(response))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        require(self, request)
        messages = self._messages(request)
        last, reason, text = ChatResponse(message=ChatMessage()), "", ""
        with translate_errors(self.name, self.llm):
            async with aclosing(self._responses(request, messages)) as responses:
                async for last in responses:
                    reason = finish_reason(last) or reason  # not always on the last chunk, which may have the usage
                    reasoning = last.additional_kwargs.get("thinking_delta") or ""
                    text += last.delta or ""
                    yield Delta(text=last.delta or "", reasoning=reasoning)
        if not last.message.blocks:  # as after a reply of OpenAI's Responses API that was cut off
            last = last.model_copy(update={"message": ChatMessage(role="assistant", content=text)})
        yield Delta(completion=self._completion(request, messages, last, reason))

    async def aclose(self) -> None:
        """Closes nothing: the LLM belongs to the caller."""

    def _messages(self, request: Request) -> list[ChatMessage]:
        # Integrations send images of messages of the user; of tool results, most send only the text.
        messages = messages_for(self.name, tuple(move_attachments(request.messages, accepting=("user",))))
        system_prompt = self.llm.system_prompt
        return [ChatMessage(role="system", content=system_prompt), *messages] if system_prompt else messages

    def _prepare(self, request: Request) -> tuple[LLM, dict[str, Any]]:
        """Returns the LLM with the sampling parameters of `request`, and the keywords of its calls."""
        llm, keywords = apply_sampling(self.llm, request.sampling, model=self.name)
        if isinstance(request.response_format, JsonFormat):
            keywords |= format_keywords(llm, request.response_format, model=self.name)
        return llm, keywords

    async def _response(self, request: Request, messages: list[ChatMessage]) -> ChatResponse:
        llm, keywords = self._prepare(request)
        if tools := _offered_tools(request):
            assert isinstance(llm, FunctionCallingLLM)
            options = {"chat_history": messages, **keywords, **_choice_keywords(request)}
            with_tools = partial(llm.chat_with_tools, tools, **options)
            return await call_async_or_sync(partial(llm.achat_with_tools, tools, **options), with_tools)
        chat = partial(llm.chat, messages, **keywords)
        if inherits_method(llm, "achat", CustomLLM):
            return await in_thread(chat)
        return await call_async_or_sync(partial(llm.achat, messages, **keywords), chat)

    def _responses(self, request: Request, messages: list[ChatMessage]) -> AsyncGenerator[ChatResponse, None]:
        llm, keywords = self._prepare(request)
        if is_openai(llm):  # reports the usage of a stream only if asked; users' `additional_kwargs` take precedence
            keywords["stream_options"] = {"include_usage": True}
        if tools := _offered_tools(request):
            assert isinstance(llm, FunctionCallingLLM)
            options = {"chat_history": messages, **keywords, **_choice_keywords(request)}
            with_tools = partial(llm.stream_chat_with_tools, tools, **options)
            return stream_async_or_sync(
                partial(_stream_from, llm.astream_chat_with_tools, tools, **options), with_tools
            )
        chat = partial(llm.stream_chat, messages, **keywords)
        if inherits_method(llm, "astream_chat", CustomLLM):
            return iterate_in_thread(chat)
        return stream_async_or_sync(partial(_stream_from, llm.astream_chat, messages, **keywords), chat)

    def _completion(
        self, request: Request, messages: list[ChatMessage], response: ChatResponse, reason: str
    ) -> Completion:
        message, refusal = self._message(response), refusal_text(response)
        reason = "content_filter" if refusal else reason
        price = self.price if has_usual_price(response) else None
        return checked(
            Completion(
                message=message,
                usage=priced(reply_usage(messages, response), price),
                finish_reason=parse_finish_reason(reason, tool_calls=bool(message.tool_calls)),
                is_refusal=bool(refusal) and message.text == refusal,
                model=self.name,
            ),
            request,
        )

    def _message(self, response: ChatResponse) -> Message:
        message = response.message
        thinking = [
            part for block in message.blocks if isinstance(block, ThinkingBlock) for part in core_reasoning(block)
        ]
        content = message.content or refusal_text(response)
        text = [TextPart(text=content)] if content else []
        calls: list[ToolCall] = []
        if isinstance(self.llm, FunctionCallingLLM):
            for call in self.llm.get_tool_calls_from_response(response, error_on_no_tool_call=False):
                # Some integrations have no ids and return an empty one, or the tool's name.
                used_ids = {"", call.tool_name, *(other.id for other in calls)}
                call_id = f"call_{uuid4().hex[:12]}" if call.tool_id in used_ids else call.tool_id
                calls.append(ToolCall(id=call_id, name=call.tool_name, arguments=_to_json(call.tool_kwargs)))
        reply = Message(role="assistant", content=(*thinking, *text), tool_calls=tuple(calls))
        return with_vendor_state(reply, message, owner=self.name)


def _known_context(llm: LLM) -> int | None:
    """Returns the context window; `None` for LlamaIndex's default, which LLMs of servers have that don't know theirs.

    LLMs in this process set the same default as their real context window.
    """
    metadata = llm.metadata
    is_unset = is_openai(llm) or "context_window" not in metadata.model_fields_set
    return None if is_unset and metadata.context_window == DEFAULT_CONTEXT_WINDOW else metadata.context_window


def _vendor(llm: LLM) -> str:
    """Returns the vendor as LlamaIndex's package names it, such as `google_genai`; empty for other classes."""
    return next((name.partition(".")[0] for name in class_names(llm)), "")


# ------------------------------------------------------------------------------------------- tools


def _offered_tools(request: Request) -> list[BaseTool]:
    """Returns the tools to offer; only the chosen one if any, because integrations spell `tool_choice` differently."""
    if request.tool_choice == "none":
        return []
    any_tool = request.tool_choice in ("auto", "required")
    return [_ToolSchema(tool) for tool in request.tools if any_tool or tool.name == request.tool_choice]


def _choice_keywords(request: Request) -> dict[str, Any]:
    required = request.tool_choice != "auto"
    return {"tool_required": required, "allow_parallel_tool_calls": request.parallel_tool_calls}


@dataclass
class _SchemaMetadata(ToolMetadata):
    """Metadata with parameters as a JSON schema, which LLMs read here or, as Google's does, from a class."""

    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fn_schema = _schema_class(self.parameters)

    def get_parameters_dict(self) -> dict[str, Any]:
        return self.parameters


def _schema_class(parameters: dict[str, Any]) -> type[BaseModel]:
    """Returns a class with these parameters as its JSON schema, in a new copy each time, as LLMs change it."""
    schema = {name: value for name, value in parameters.items() if name in SCHEMA_KEYS}

    class Parameters(BaseModel):
        @classmethod
        @override
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return deepcopy(schema)

    return Parameters


class _ToolSchema(BaseTool):
    """The schema of a tool that the caller runs."""

    def __init__(self, tool: Tool) -> None:
        self._metadata = _SchemaMetadata(description=tool.description, name=tool.name, parameters=tool.parameters)

    @property
    def metadata(self) -> ToolMetadata:
        return self._metadata

    @override
    def __call__(self, input: Any) -> ToolOutput:
        raise TypeError(f"tool {self._metadata.name!r} is only a schema; the caller runs the tool")


# ------------------------------------------------------------------------------------------ streams


async def _stream_from(
    start: Callable[..., Awaitable[ChatResponseAsyncGen]], *args: Any, **keywords: Any
) -> AsyncGenerator[ChatResponse, None]:
    async with aclosing(await start(*args, **keywords)) as responses:
        async for response in responses:
            yield response
