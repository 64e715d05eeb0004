"""`LLMModel`: a LlamaIndex LLM as a `Model` of the core, to work or to plan.

It does not retry: the LLM's own integration does. What an LLM raises is final, unless its client is bound to another
event loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen, ThinkingBlock
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.schema import EventPayload
from llama_index.core.callbacks.token_counting import get_llm_token_counts
from llama_index.core.llms import LLM
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import BaseTool, ToolMetadata, ToolOutput
from llama_index.core.utilities.token_counting import TokenCounter
from typing_extensions import override

from rl_conductor import Capabilities, Completion, Message, Price, Request, Sampling, Tool, Usage
from rl_conductor._internal.blocking import call, in_thread, iterate_in_thread, stream
from rl_conductor.models.base import checked, priced, require
from rl_conductor.types import Delta, ReasoningPart, TextPart, ToolCall

from .blocking import blocks
from .failures import translated
from .messages import chat_message


class LLMModel:
    """Any LlamaIndex LLM. Its own settings hold; only what the caller asks for goes before them."""

    def __init__(self, llm: LLM, *, price: Price | None = None) -> None:
        """`price` is what its calls cost; `None` leaves them unpriced."""
        # The Conductor reports the call to LlamaIndex's callback handlers; a handler of both would count it twice.
        silent = CallbackManager()
        silent.set_handlers([])  # without any, it would have taken those of `Settings`
        self.llm: LLM = llm.model_copy(update={"callback_manager": silent})
        self.price = price
        about = llm.metadata
        self.name = f"llamaindex:{about.model_name}"
        self.capabilities = Capabilities(
            tools=isinstance(llm, FunctionCallingLLM) and about.is_function_calling_model,
            images=about.is_chat_model,
            files=about.is_chat_model,
            context=about.context_window,
        )

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        messages = [chat_message(message) for message in request.messages]
        with translated(self.name, self.llm):
            return self._completion(messages, await self._response(request, messages))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made."""
        require(self, request)
        messages = [chat_message(message) for message in request.messages]
        last = ChatResponse(message=ChatMessage())
        with translated(self.name, self.llm):
            async with aclosing(self._responses(request, messages)) as responses:
                async for last in responses:
                    thought = last.additional_kwargs.get("thinking_delta") or ""
                    if last.delta or thought:
                        yield Delta(text=last.delta or "", reasoning=thought)
        yield Delta(completion=self._completion(messages, last))

    async def aclose(self) -> None:
        """Nothing to close: the LLM belongs to whoever made it."""

    @property
    def _caller(self) -> FunctionCallingLLM:
        assert isinstance(self.llm, FunctionCallingLLM)
        return self.llm

    async def _response(self, request: Request, messages: list[ChatMessage]) -> ChatResponse:
        keywords = _keywords(request.sampling)
        if tools := _offered(request):
            options = {"chat_history": messages, **keywords, **_choice(request)}
            with_tools = partial(self._caller.chat_with_tools, tools, **options)
            return await call(partial(self._caller.achat_with_tools, tools, **options), with_tools)
        chat = partial(self.llm.chat, messages, **keywords)
        if blocks(self.llm, "achat", CustomLLM):
            return await in_thread(chat)
        return await call(partial(self.llm.achat, messages, **keywords), chat)

    def _responses(self, request: Request, messages: list[ChatMessage]) -> AsyncGenerator[ChatResponse, None]:
        keywords = _keywords(request.sampling)
        if tools := _offered(request):
            options = {"chat_history": messages, **keywords, **_choice(request)}
            with_tools = partial(self._caller.stream_chat_with_tools, tools, **options)
            return stream(partial(_awaited, self._caller.astream_chat_with_tools, tools, **options), with_tools)
        chat = partial(self.llm.stream_chat, messages, **keywords)
        if blocks(self.llm, "astream_chat", CustomLLM):
            return iterate_in_thread(chat)
        return stream(partial(_awaited, self.llm.astream_chat, messages, **keywords), chat)

    def _completion(self, messages: list[ChatMessage], response: ChatResponse) -> Completion:
        message = self._message(response)
        return checked(
            Completion(
                message=message,
                usage=priced(_usage(messages, response), self.price),
                finish_reason="tool_calls" if message.tool_calls else "stop",
                model=self.name,
            )
        )

    def _message(self, response: ChatResponse) -> Message:
        said = response.message
        thoughts = [block.content for block in said.blocks if isinstance(block, ThinkingBlock) and block.content]
        text = [TextPart(text=said.content)] if said.content else []
        calls: list[ToolCall] = []
        if isinstance(self.llm, FunctionCallingLLM):
            for call in self.llm.get_tool_calls_from_response(response, error_on_no_tool_call=False):
                taken = {"", call.tool_name, *(other.id for other in calls)}  # some integrations know no ids
                unique = f"call_{uuid4().hex[:12]}" if call.tool_id in taken else call.tool_id
                calls.append(ToolCall(id=unique, name=call.tool_name, arguments=json.dumps(call.tool_kwargs)))
        return Message(
            role="assistant",
            content=(*(ReasoningPart(text=thought) for thought in thoughts), *text),
            tool_calls=tuple(calls),
        )


def _usage(messages: list[ChatMessage], response: ChatResponse) -> Usage:
    """What the response says it used; where it says nothing, what LlamaIndex's own token counter makes of it."""
    payload: dict[str, Any] = {EventPayload.MESSAGES: messages, EventPayload.RESPONSE: response}
    counted = get_llm_token_counts(TokenCounter(), payload)
    return Usage(input_tokens=counted.prompt_token_count, output_tokens=counted.completion_token_count)


def _keywords(sampling: Sampling) -> dict[str, Any]:
    """What was asked for, under the names that most integrations take."""
    asked = sampling.model_dump(exclude_none=True, exclude={"effort", "stop"})
    return asked | ({"stop": list(sampling.stop)} if sampling.stop else {})


# ------------------------------------------------------------------------------------------- tools


def _offered(request: Request) -> list[BaseTool]:
    """The tools that may be called: one alone where it must be that, since integrations spell choices differently."""
    if request.tool_choice == "none":
        return []
    named = request.tool_choice not in ("auto", "required")
    return [_Offered(tool) for tool in request.tools if not named or tool.name == request.tool_choice]


def _choice(request: Request) -> dict[str, Any]:
    required = request.tool_choice != "auto"
    return {"tool_required": required, "allow_parallel_tool_calls": request.parallel_tool_calls}


@dataclass
class _Schema(ToolMetadata):
    """Metadata whose parameters are a JSON schema instead of a class."""

    parameters: dict[str, Any] | None = None

    def get_parameters_dict(self) -> dict[str, Any]:
        return self.parameters or {}


class _Offered(BaseTool):
    """A tool that is only described: whoever asked for the answer calls it."""

    def __init__(self, tool: Tool) -> None:
        self._metadata = _Schema(description=tool.description, name=tool.name, parameters=tool.parameters)

    @property
    def metadata(self) -> ToolMetadata:
        return self._metadata

    @override
    def __call__(self, input: Any) -> ToolOutput:
        raise TypeError(f"the tool {self._metadata.name!r} is the caller's to call")


# ------------------------------------------------------------------------------------------ streams


async def _awaited(
    start: Callable[..., Awaitable[ChatResponseAsyncGen]], *args: Any, **keywords: Any
) -> AsyncGenerator[ChatResponse, None]:
    async with aclosing(await start(*args, **keywords)) as responses:
        async for response in responses:
            yield response
