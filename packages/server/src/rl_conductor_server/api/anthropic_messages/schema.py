"""The schema of an Anthropic Messages request, and its conversion to a `ParsedRequest`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rl_conductor.types import (
    ContentPart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    Tool,
    ToolCall,
)
from rl_conductor_server.api.anthropic_messages.documents import Block, Document, Image, SearchResult, Text
from rl_conductor_server.api.anthropic_messages.vendor_tools import ToolReference, ToolType, VendorToolBlock
from rl_conductor_server.api.content import tool_message
from rl_conductor_server.api.efforts import NEAREST_EFFORTS, RequestedEffort, nearest_effort
from rl_conductor_server.errors import THREAD_UNSUPPORTED
from rl_conductor_server.parsed_request import (
    Extension,
    MaxTokens,
    ParsedRequest,
    StopSequences,
    UserName,
)
from rl_conductor_server.request_validation.markers import check_tools, ignorable, only, unsupported
from rl_conductor_server.request_validation.parsing import Body

NO_THREAD = "is not supported, because the server keeps no messages of this API; send the whole conversation without it"
NO_COMPACTION = "is not supported; ask for a summary of the conversation in a message, or leave it out"
NO_REGION = "is not supported; name the regions that may see the data in conductor.policy.data_rules"
CHOICES = {"auto": "auto", "any": "required", "none": "none"}

ContentBlock = Annotated[Text | Image | Document | SearchResult | ToolReference, Field(discriminator="type")]


class ToolResult(Block):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | tuple[ContentBlock, ...] = ""
    is_error: bool = False

    def message(self) -> Message:
        content = self.content if isinstance(self.content, str) else _parts(self.content)
        return tool_message(self.tool_use_id, content, is_error=self.is_error)


class ToolUse(Block):
    """A tool call of an earlier response."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def call(self) -> ToolCall:
        return ToolCall(id=self.id, name=self.name, arguments=json.dumps(self.input, ensure_ascii=False))


class Thinking(Body):
    """Reasoning of an earlier response; the signature is dropped, because only its vendor can check it."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""

    def parts(self) -> Iterator[ContentPart]:
        yield ReasoningPart(text=self.thinking)


class RedactedThinking(Body):
    """Encrypted reasoning of an earlier response, which only its vendor can read."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[Text | Image | Document | SearchResult | ToolResult, Field(discriminator="type")]
AssistantBlock = Annotated[Text | ToolUse | Thinking | RedactedThinking | VendorToolBlock, Field(discriminator="type")]


def _parts(blocks: Iterable[ContentBlock]) -> tuple[ContentPart, ...]:
    return tuple(part for block in blocks for part in block.parts())


class SystemTurn(Body):
    """Instructions among the messages."""

    role: Literal["system"]
    content: str | tuple[Text, ...]

    def messages(self) -> Iterator[Message]:
        yield Message.system(_system_text(self.content))


class UserTurn(Body):
    """A message of the user, with results of tool calls."""

    role: Literal["user"]
    content: str | tuple[UserBlock, ...]

    def messages(self) -> Iterator[Message]:
        """Converts tool results to messages of their own, followed by the rest."""
        if isinstance(self.content, str):
            yield Message.user(self.content)
            return
        parts = _parts(block for block in self.content if not isinstance(block, ToolResult))
        yield from (block.message() for block in self.content if isinstance(block, ToolResult))
        if parts:
            yield Message(role="user", content=parts)


class AssistantTurn(Body):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | tuple[AssistantBlock, ...]

    def messages(self) -> Iterator[Message]:
        if isinstance(self.content, str):
            yield Message.assistant(self.content)
            return
        parts = tuple(part for block in self.content if isinstance(block, Text | Thinking) for part in block.parts())
        calls = tuple(block.call() for block in self.content if isinstance(block, ToolUse))
        if parts or calls or not any(isinstance(block, VendorToolBlock) for block in self.content):
            yield Message(role="assistant", content=parts, tool_calls=calls)


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]


class ToolEntry(Block):
    """A tool that the model may call."""

    type: ToolType = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None

    def tool(self) -> Tool:
        return Tool(name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict)


class ToolChoice(Body):
    """The rule for calling tools."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class SchemaFormat(Body):
    """A JSON response that matches a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The reasoning effort and the format of the response."""

    effort: RequestedEffort | None = None
    format: SchemaFormat | None = None


class Metadata(Body):
    """Metadata of the request."""

    user_id: UserName | None = None


class MessagesBody(Body):
    """The body of a Messages request."""

    model: str
    thread: Annotated[Any, unsupported(NO_THREAD, kind=THREAD_UNSUPPORTED)] = None
    """Before `messages`, whose error would hide this one: a request that continues a thread may have no messages."""
    max_tokens: MaxTokens
    messages: tuple[Turn, ...] = Field(min_length=1)
    conductor: Extension = Extension()
    store: bool | None = None
    """Whether to store the content of the run; a field of OpenAI's APIs, which Anthropic's own lacks."""
    system: str | tuple[Text, ...] = ""
    stream: bool = False
    stop_sequences: StopSequences = ()
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: tuple[ToolEntry, ...] = ()
    tool_choice: ToolChoice = ToolChoice(type="auto")
    output_config: OutputConfig = OutputConfig()
    output_format: SchemaFormat | None = None
    """The name of `output_config.format` in older clients."""
    metadata: Metadata = Metadata()

    cache_control: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    top_k: Annotated[Any, ignorable()] = None
    mcp_servers: Annotated[Any, only([])] = None
    service_tier: Annotated[Any, ignorable("auto", "standard_only")] = None
    compaction: Annotated[Any, unsupported(NO_COMPACTION)] = None
    inference_geo: Annotated[Any, unsupported(NO_REGION, "global")] = None
    billing_policy: Annotated[Any, only({"type": "billing_policy", "bill_to": "self"})] = None

    @model_validator(mode="after")
    def _has_valid_tools(self) -> Self:
        choice = self.tool_choice
        name = choice.name if choice.type == "tool" else None
        is_required = choice.type in ("any", "tool")
        check_tools([tool.name for tool in self.tools], choice=name, is_required=is_required)
        return self

    def to_request(self) -> ParsedRequest:
        return ParsedRequest(
            model=self.model,
            request=self._request(),
            effort=nearest_effort(self.output_config.effort),
            extension=self.conductor,
            labels={"user": self.metadata.user_id} if self.metadata.user_id else {},
            ignored=tuple(self._ignored()),
            stream=self.stream,
            keep=self.store is not False,
        )

    def _ignored(self) -> Iterator[str]:
        if self.thinking and self.thinking.get("type") != "disabled":
            yield "thinking"
        if self.output_config.effort in NEAREST_EFFORTS:
            yield "output_config.effort"
        blocks: list[object] = [*self.tools, *(() if isinstance(self.system, str) else self.system)]
        for turn in self.messages:
            blocks += () if isinstance(turn.content, str) else turn.content
        yield from (f"messages.content.{block.type}" for block in blocks if isinstance(block, VendorToolBlock))
        if self.cache_control or any(isinstance(block, Block) and block.cache_control for block in blocks):
            yield "cache_control"

    def _request(self) -> Request:
        system = _system_text(self.system)
        instructions = (Message.system(system),) if system else ()
        messages = tuple(message for turn in self.messages for message in turn.messages())
        schema = self.output_config.format or self.output_format
        return Request(
            messages=instructions + messages,
            tools=tuple(tool.tool() for tool in self.tools),
            tool_choice=CHOICES.get(self.tool_choice.type) or self.tool_choice.name or "required",
            parallel_tool_calls=not self.tool_choice.disable_parallel_tool_use,
            response_format=None if schema is None else JsonFormat(json_schema=schema.json_schema),
            sampling=Sampling(
                temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens, stop=self.stop_sequences
            ),
        )


def _system_text(content: str | Sequence[Text]) -> str:
    return content if isinstance(content, str) else "\n\n".join(block.text for block in content)


class CountTokensBody(MessagesBody):
    """The body of a request to count tokens: a Messages request, from which the rest may be left out."""

    max_tokens: MaxTokens = 1
