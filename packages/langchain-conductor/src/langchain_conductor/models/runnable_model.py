"""`RunnableModel`: any runnable, such as an agent, a compiled graph or a chain, as a `Model` of the core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import cached_property
from typing import Any, TypeGuard, cast, get_type_hints, is_typeddict
from uuid import uuid4

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import AddableDict, Runnable, RunnableConfig, RunnableSequence, ensure_config
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langchain_core.tools import BaseTool

from langchain_conductor.messages import lc_messages
from langchain_conductor.models.budget import BudgetCallback, enforce_budget
from langchain_conductor.models.errors import translate_errors
from langchain_conductor.models.interrupts import invoke_interruptible, paused_error
from langchain_conductor.models.invocation import (
    callers_configurable,
    has_graph,
    has_graph_without_thread,
    is_async_only,
    stream,
)
from langchain_conductor.models.prices import highest_price, prices_in
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.integration import (
    checked,
    describe_no_reply,
    priced,
    prompt_in,
    require,
    result_text,
    subtask_in,
    within,
)
from rl_conductor.models import Capabilities
from rl_conductor.types import FREE, Completion, Delta, Message, Price, Request, Usage, total

MESSAGES = "messages"
"""The field in which graphs store the conversation."""
STRUCTURED_RESPONSE = "structured_response"
"""The field in which agents with a `response_format` store their answer; their last message may only mention it."""
INTERRUPT = "__interrupt__"
"""The field in which LangGraph returns the interrupts of a paused graph."""
ROOT = "root"
"""LangChain's name of the whole input, in the schema of steps side by side without types of their inputs."""
WHOLE_INPUT = "*"
"""Marks an input that is the conversation itself."""
ADDED_PIECES = (str, BaseMessageChunk, AddableDict)
"""Pieces of streams that continue the previous one; others, such as those of JSON parsers, replace it."""


EMPTY_RESULT = "(nothing was found)"
"""Reply of a retriever or a tool that finds nothing."""


class RunnableModel:
    """A runnable that is not a chat model, such as a compiled graph, an agent or a chain, as a `Model`.

    It gets the whole conversation if it takes messages, else the last user's turn as text: that contains the task, the
    replies that the step may read, and the subtask. A retriever or a tool gets only the subtask.
    """

    def __init__(
        self,
        runnable: Runnable[Any, Any],
        *,
        name: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        """Wraps a runnable as a model of the core.

        Args:
            runnable: its output may be text, a message, a state with `messages`, or any value that JSON can represent.
            name: by default the runnable's own.
            price: of the tokens of all models in it; by default each call of a model has the price of that model, and
                the runnable the highest of the models that it holds.
            capabilities: by default none: it has its own tools, and takes text.

        Raises:
            ConfigError: the runnable takes several fields, so the one for the conversation is unknown.
        """
        self.runnable = runnable
        self.name = name or f"langchain:{runnable.get_name()}"
        self._takes_query = _find_query_taker(runnable) is not None
        prices = prices_in(runnable)
        self._found_price = FREE if self._takes_query and not prices else highest_price(prices)
        self.price = price or self._found_price
        """The highest price of the models in it; another object is the price of all of them."""
        self.capabilities = (capabilities or Capabilities()).model_copy(update={"plans": False})
        self._field = _find_input_field(runnable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def complete(self, request: Request) -> Completion:
        """Returns the whole reply."""
        require(self, request)
        with translate_errors(self.name, self.runnable), self._enforce_budget() as calls:
            async with asyncio.timeout(request.timeout):
                value = self._to_input(request)
                output = await invoke_interruptible(
                    self.runnable, value, async_only=self._async_only, config=self._call_config()
                )
        return self._to_completion(request, output, calls.usages)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply if the runnable streams text; else yields it as one piece."""
        require(self, request)
        if not self._streams_reply:
            completion = await self.complete(request)
            yield Delta(text=completion.text, completion=completion)
            return
        output: Any = None
        streamed_text = ""
        with translate_errors(self.name, self.runnable), self._enforce_budget() as calls:
            pieces = stream(self.runnable, self._to_input(request), async_only=self._async_only)
            async with aclosing(within(request.timeout, pieces)) as pieces_in_time:
                async for piece in pieces_in_time:
                    output = output + piece if output is not None and isinstance(piece, ADDED_PIECES) else piece
                    text = _text_of_piece(piece)
                    streamed_text += text
                    if text:
                        yield Delta(text=text)
        completion = self._to_completion(request, output, calls.usages)
        yield Delta(text=completion.text.removeprefix(streamed_text), completion=completion)

    async def aclose(self) -> None:
        """Does nothing: the resources of the runnable belong to the code that created it."""

    def _enforce_budget(self) -> AbstractContextManager[BudgetCallback]:
        return enforce_budget(self.name, None if self.price is self._found_price else self.price)

    def _call_config(self) -> RunnableConfig:
        """Returns the settings to pass explicitly, since a graph's own config takes precedence over its caller's.

        That is the smaller of their recursion limits, where LangChain's default counts as none, and a new thread for a
        graph that has a checkpointer, unless a thread is already set.
        """
        own, caller = getattr(self.runnable, "config", None) or {}, ensure_config()
        config: RunnableConfig = {}
        if (limit := caller["recursion_limit"]) != DEFAULT_RECURSION_LIMIT:
            config["recursion_limit"] = min(limit, own.get("recursion_limit", limit))
        has_thread = any("thread_id" in each.get("configurable", {}) for each in (own, caller))
        if self._has_graph_without_thread and not has_thread:
            config["configurable"] = {**callers_configurable(), "thread_id": str(uuid4())}
        return config

    @cached_property
    def _has_graph_without_thread(self) -> bool:
        return has_graph_without_thread(self.runnable)

    @cached_property
    def _async_only(self) -> bool:
        return is_async_only(self.runnable)

    @cached_property
    def _streams_reply(self) -> bool:
        """Whether its stream consists of parts of the reply, and not of updates of a graph's state."""
        return self._field != MESSAGES and not has_graph(self.runnable)

    def _to_input(self, request: Request) -> Any:
        if self._field in (MESSAGES, WHOLE_INPUT):
            messages = lc_messages(request.messages)
            return {MESSAGES: messages} if self._field == MESSAGES else messages
        text = prompt_in(request.messages)
        text = subtask_in(text) if self._takes_query else text
        return {self._field: text} if self._field else text

    def _to_completion(self, request: Request, output: Any, usages: Sequence[Usage]) -> Completion:
        usage = total(usages) if usages else priced(Usage(), self.price)
        if isinstance(output, Mapping) and INTERRUPT in output:
            raise paused_error(self.name, usage)
        is_empty = self._takes_query and (output is None or output == [])
        text = EMPTY_RESULT if is_empty else text_of_output(output)
        if text is None:
            raise ModelError(describe_no_reply(output, self.name), model=self.name, usage=usage)
        return checked(Completion(message=Message.assistant(text), usage=usage, model=self.name), request)


# ------------------------------------------------------------------------------------------- inputs


def _find_query_taker(runnable: Runnable[Any, Any]) -> BaseRetriever | BaseTool | None:
    """Returns the retriever or the tool that gets the input, perhaps the first one of a chain."""
    if isinstance(runnable, RunnableBindingBase):
        return _find_query_taker(runnable.bound)
    if isinstance(runnable, RunnableSequence):
        return _find_query_taker(runnable.first)
    return runnable if isinstance(runnable, BaseRetriever | BaseTool) else None


def _find_input_field(runnable: Runnable[Any, Any]) -> str:
    """Returns the field of the input that takes the question; empty if the input is text."""
    schema = _input_schema(runnable)
    fields, required = list(schema.get("properties", ())), list(schema.get("required", ()))
    if schema.get("type") == "object" and not fields and isinstance(runnable, RunnableBindingBase):
        return _find_input_field(runnable.bound)  # `with_types(input_type=dict)` names no fields
    if schema.get("type") == "string" or fields == [ROOT]:
        return ""
    if not fields:
        return WHOLE_INPUT
    if MESSAGES in fields:
        return MESSAGES
    if len(fields) == 1 or len(required) == 1:
        return str((required or fields)[0])
    raise ConfigError(
        f"worker {runnable.get_name()!r} takes several fields: {', '.join(fields)}; map the conversation to them: "
        f"RunnableLambda(lambda messages: {{{fields[0]!r}: messages[-1].text, ...}}) | worker"
    )


def _input_schema(runnable: Runnable[Any, Any]) -> dict[str, Any]:
    """Returns the JSON schema of the input; empty if it is not typed."""
    taker = _find_query_taker(runnable)
    if isinstance(taker, BaseTool) and isinstance(taker.args_schema, dict):  # as tools of MCP servers have it
        return taker.args_schema
    try:
        input_type = runnable.InputType
    except TypeError:  # it is not typed
        return {}
    if is_typeddict(input_type):  # before Python 3.12, pydantic supports only some of them
        properties, required = get_type_hints(input_type), input_type.__required_keys__
        return {"type": "object", "properties": properties, "required": required}
    schema = runnable.get_input_jsonschema()
    definition = schema.get("$ref", "").removeprefix("#/$defs/")  # as the schema of a wrapped graph is
    return cast("dict[str, Any]", schema["$defs"][definition]) if definition else schema


# ------------------------------------------------------------------------------------------ outputs


def text_of_output(output: Any) -> str | None:
    """Extracts the answer from the output of a runnable; `None` if it has none."""
    if isinstance(output, Mapping) and output.get(STRUCTURED_RESPONSE) is not None:
        output = output[STRUCTURED_RESPONSE]
    elif isinstance(output, Mapping) and output.get(MESSAGES):
        output = output[MESSAGES][-1]
    if isinstance(output, str | BaseMessage):
        return _text_of_piece(output)
    if _is_content(output):
        return "\n".join(block["text"] if _is_text(block) else f"[{block['type']} not shown]" for block in output)
    if is_passages(output):
        return "\n\n".join(map(_passage, output))
    return None if output is None else result_text(output)


def is_passages(output: object) -> TypeGuard[Sequence[Document]]:
    """Whether `output` consists of passages, as retrievers return them."""
    return isinstance(output, list | tuple) and bool(output) and all(isinstance(item, Document) for item in output)


def _is_content(output: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether `output` consists of blocks of text and data, such as images, as tools of MCP servers return them."""
    return isinstance(output, list) and bool(output) and all(_is_text(item) or _is_data(item) for item in output)


def _is_text(item: object) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "text" and isinstance(item.get("text"), str)


def _is_data(item: object) -> bool:
    return isinstance(item, Mapping) and "type" in item and "base64" in item


def _passage(document: Document) -> str:
    metadata = "\n".join(f"{key}: {value}" for key, value in document.metadata.items())
    return f"{metadata}\n\n{document.page_content}" if metadata else document.page_content


def _text_of_piece(piece: Any) -> str:
    return str(piece.text) if isinstance(piece, BaseMessage) else piece if isinstance(piece, str) else ""
