"""The schema of an OpenAI Responses request, and its conversion to a `ParsedRequest`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, model_validator

from rl_conductor.types import JsonFormat, Message, Request, Sampling, Tool, ToolCall
from rl_conductor_server.api.content import (
    json_format,
    tool_message,
)
from rl_conductor_server.api.efforts import NEAREST_EFFORTS, RequestedEffort, nearest_effort
from rl_conductor_server.api.openai_body import AnyJson, OpenAIBody, StreamOptions, TextFormat
from rl_conductor_server.api.openai_responses.ids import MAX_ID_CHARS, run_of_response
from rl_conductor_server.api.openai_responses.input_parts import InputPart, Part
from rl_conductor_server.api.openai_responses.vendor_items import (
    VENDOR_ITEM_TYPES,
    CustomCall,
    CustomCallOutput,
    VendorItem,
)
from rl_conductor_server.parsed_request import (
    MaxTokens,
    ParsedRequest,
    ResponseState,
)
from rl_conductor_server.request_validation.markers import check_tools, ignorable, invalid_field, only, tool_type
from rl_conductor_server.request_validation.parsing import Body

VENDOR_ITEM = "_vendor_item"
"""The tag of all types of `VendorItem`; errors don't show it, see `SENTENCES`."""
ANY = re.compile(r".*", re.DOTALL)

# ------------------------------------------------------------------------------------------- input


class MessageItem(Body):
    """A message of any role."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[Part, ...]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def message(self) -> Message:
        role = "system" if self.role == "developer" else self.role
        content = self.content
        return Message(role=role, content=content if isinstance(content, str) else tuple(p.part() for p in content))


class FunctionCall(Body):
    """A tool call of an earlier response."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def message(self) -> Message:
        return Message.assistant(tool_calls=[ToolCall(id=self.call_id, name=self.name, arguments=self.arguments)])


class CallOutput(Body):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | tuple[InputPart, ...]
    id: str | None = None
    status: str | None = None

    def message(self) -> Message:
        output = self.output
        return tool_message(self.call_id, output if isinstance(output, str) else [part.part() for part in output])


class ReasoningItem(Body):
    """Encrypted reasoning of an earlier response, which only its vendor can read."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]


class ItemReference(Body):
    """A reference to a stored item of the same API key, by its id."""

    type: Literal["item_reference"] | None = None
    id: str = Field(min_length=1, max_length=MAX_ID_CHARS)


def _kind(item: Any) -> str:
    kind = str(item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message"))
    return VENDOR_ITEM if kind in VENDOR_ITEM_TYPES else kind


def _input_kind(item: Any) -> str:
    if isinstance(item, ItemReference):
        return "item_reference"
    is_untyped = isinstance(item, dict) and item.get("type") is None
    return "item_reference" if is_untyped and "id" in item and item.keys() <= {"type", "id"} else _kind(item)


StoredItem = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[CallOutput, Tag("function_call_output")]
    | Annotated[CustomCall, Tag("custom_tool_call")]
    | Annotated[CustomCallOutput, Tag("custom_tool_call_output")]
    | Annotated[VendorItem, Tag(VENDOR_ITEM)]
    | Annotated[ReasoningItem, Tag("reasoning")]
)
Item = Annotated[StoredItem, Discriminator(_kind)]
"""An item that can be stored."""
InputItem = Annotated[StoredItem | Annotated[ItemReference, Tag("item_reference")], Discriminator(_input_kind)]
"""An item of a request's input."""
INPUT: TypeAdapter[str | tuple[InputItem, ...]] = TypeAdapter(str | tuple[InputItem, ...])


def to_messages(items: Iterable[InputItem]) -> Iterator[Message]:
    """Converts items to messages, but for references; consecutive items of the assistant become one message."""
    unread = ReasoningItem | ItemReference | VendorItem
    return merge_turns(item.message() for item in items if not isinstance(item, unread))


def merge_turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Merges consecutive messages of the assistant."""
    for role, group in groupby(messages, key=lambda message: message.role):
        if role != "assistant":
            yield from group
            continue
        turn = list(group)
        content = tuple(part for message in turn for part in message.content)
        calls = tuple(call for message in turn for call in message.tool_calls)
        yield Message(role="assistant", content=content, tool_calls=calls)


# ----------------------------------------------------------------------------------------- the rest


class ToolEntry(Body):
    """A function that the model may call; tools that run at the vendor can't be called here and are ignored."""

    type: Annotated[Literal["function"], tool_type("function", ignored=ANY)]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        parameters = {} if self.parameters is None else {"parameters": self.parameters}
        return Tool(name=self.name, description=self.description or "", strict=self.strict, **parameters)


class Choice(Body):
    """A function that the model must call."""

    type: Annotated[Literal["function"], tool_type("function")]
    name: str


class SchemaFormat(Body):
    """A JSON response that matches a schema."""

    type: Literal["json_schema"]
    name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class Text(Body):
    """The format of the response text."""

    format: Annotated[TextFormat | AnyJson | SchemaFormat, Field(discriminator="type")] = TextFormat(type="text")
    verbosity: Annotated[Any, ignorable("medium")] = None


class Reasoning(Body):
    """The effort that models spend on reasoning."""

    effort: RequestedEffort | None = None
    summary: str | None = None
    generate_summary: Annotated[Any, ignorable()] = None


class ConversationRef(Body):
    """The conversation that a request belongs to."""

    id: str = Field(min_length=1)


class ResponsesBody(OpenAIBody):
    """The body of a Responses request."""

    input: str | tuple[InputItem, ...] = Field(min_length=1)
    instructions: str | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: MaxTokens | None = None
    tools: tuple[ToolEntry, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | Choice = "auto"
    text: Text = Text()
    reasoning: Reasoning | None = None

    include: tuple[str, ...] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str, Field(min_length=1)] | ConversationRef | None = None
    prompt: Annotated[Any, only()] = None
    max_tool_calls: Annotated[Any, ignorable()] = None
    top_logprobs: Annotated[int | None, only(0)] = None

    @model_validator(mode="after")
    def _check_state(self) -> Self:
        if self.background and self.store is False:
            raise invalid_field("background", "can't be combined with store=false: the answer could not be retrieved")
        if self.conversation is not None and self.previous_response_id is not None:
            raise invalid_field("conversation", "can't be combined with previous_response_id; write one of them")
        return self

    @model_validator(mode="after")
    def _has_valid_tools(self) -> Self:
        name = self.tool_choice.name if isinstance(self.tool_choice, Choice) else None
        is_required = name is not None or self.tool_choice == "required"
        check_tools([tool.name for tool in self.tools], choice=name, is_required=is_required)
        return self

    def to_request(self) -> ParsedRequest:
        return ParsedRequest(
            model=self.model,
            request=self._request(),
            effort=nearest_effort(self.reasoning.effort) if self.reasoning else None,
            extension=self.conductor,
            labels=self.labels,
            ignored=tuple(self._ignored()),
            stream=bool(self.stream),
            keep=self.store is not False,
            state=self._state(),
        )

    def _state(self) -> ResponseState:
        return ResponseState(
            input=INPUT.dump_json(self.input, exclude_unset=True, by_alias=True).decode(),
            parameters=self.model_dump_json(exclude={"input"}, exclude_unset=True, by_alias=True),
            previous=None if self.previous_response_id is None else run_of_response(self.previous_response_id),
            background=bool(self.background),
            instructions=self.instructions,
            references=tuple(item.id for item in self.items if isinstance(item, ItemReference)),
            may_truncate=self.truncation == "auto",
            conversation=self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation,
        )

    @property
    def items(self) -> tuple[InputItem, ...]:
        """The input as items."""
        return (MessageItem(role="user", content=self.input),) if isinstance(self.input, str) else self.input

    def _ignored(self) -> Iterator[str]:
        yield from self.ignored_hints
        yield from self.include or ()
        yield from (f"input.{item.type}" for item in self.items if isinstance(item, VendorItem))
        if self.reasoning and self.reasoning.summary:
            yield "reasoning.summary"
        if self.reasoning and self.reasoning.effort in NEAREST_EFFORTS:
            yield "reasoning.effort"

    def _request(self) -> Request:
        messages = tuple(to_messages(self.items))
        instructions = (Message.system(self.instructions),) if self.instructions else ()
        return Request(
            messages=instructions + messages,
            tools=tuple(tool.tool() for tool in self.tools),
            tool_choice=self.tool_choice.name if isinstance(self.tool_choice, Choice) else self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            response_format=self._format(),
            sampling=Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_output_tokens),
        )

    def _format(self) -> JsonFormat | None:
        match self.text.format:
            case AnyJson():
                return JsonFormat()
            case SchemaFormat() as schema:
                return json_format(schema.name, schema.json_schema, schema.description, strict=schema.strict)
            case _:
                return None


class StoredParameters(ResponsesBody):
    """A stored request without its input, which may be long and is stored by itself."""

    input: str | tuple[InputItem, ...] = ()
