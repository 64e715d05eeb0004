"""The schema of an Anthropic Messages request, and its conversion to a `ParsedRequest`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rl_conductor.types import (
    ContentPart,
    FilePart,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
)
from rl_conductor_server.api.content import image_part, tool_message
from rl_conductor_server.extension import Extension
from rl_conductor_server.protocol import (
    NEAREST_EFFORTS,
    MaxTokens,
    ParsedRequest,
    RequestedEffort,
    StopSequences,
    UserName,
    nearest_effort,
)
from rl_conductor_server.request_validation import Body, ignorable, only

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FAILED = "(the tool failed) "


class Block(Body):
    """Base of content blocks; `cache_control` is ignored."""

    cache_control: dict[str, Any] | None = None


class Text(Block):
    """A text block; extra fields of an earlier response are ignored."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str

    def part(self) -> ContentPart:
        return TextPart(text=self.text)


class Base64Source(Body):
    """Content encoded in base64."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Body):
    """Content at a URL."""

    type: Literal["url"]
    url: str


class Image(Block):
    """A content block with an image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]

    def part(self) -> ContentPart:
        if isinstance(self.source, UrlSource):
            return image_part(self.source.url, param="url")
        return ImagePart(media_type=self.source.media_type, data=self.source.data)


class Document(Block):
    """A content block with a document."""

    type: Literal["document"]
    source: Base64Source
    title: str | None = None

    def part(self) -> ContentPart:
        return FilePart(media_type=self.source.media_type, name=self.title or "document.pdf", data=self.source.data)


ContentBlock = Annotated[Text | Image | Document, Field(discriminator="type")]


class ToolResult(Block):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | tuple[ContentBlock, ...] = ""
    is_error: bool = False

    def message(self) -> Message:
        content = self.content if isinstance(self.content, str) else [block.part() for block in self.content]
        return tool_message(self.tool_use_id, content, prefix=FAILED if self.is_error else "")


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

    def part(self) -> ContentPart:
        return ReasoningPart(text=self.thinking)


class RedactedThinking(Body):
    """Encrypted reasoning of an earlier response, which only its vendor can read."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[Text | Image | Document | ToolResult, Field(discriminator="type")]
AssistantBlock = Annotated[Text | ToolUse | Thinking | RedactedThinking, Field(discriminator="type")]


class UserTurn(Body):
    """A message of the user, with results of tool calls."""

    role: Literal["user"]
    content: str | tuple[UserBlock, ...]

    def messages(self) -> Iterator[Message]:
        """Converts tool results to messages of their own, followed by the rest."""
        if isinstance(self.content, str):
            yield Message.user(self.content)
            return
        parts = [block.part() for block in self.content if not isinstance(block, ToolResult)]
        yield from (block.message() for block in self.content if isinstance(block, ToolResult))
        if parts:
            yield Message(role="user", content=tuple(parts))


class AssistantTurn(Body):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: str | tuple[AssistantBlock, ...]

    def messages(self) -> Iterator[Message]:
        if isinstance(self.content, str):
            yield Message.assistant(self.content)
            return
        parts = tuple(block.part() for block in self.content if isinstance(block, Text | Thinking))
        calls = tuple(block.call() for block in self.content if isinstance(block, ToolUse))
        yield Message(role="assistant", content=parts, tool_calls=calls)


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class ToolEntry(Block):
    """A tool that the model may call."""

    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None

    def tool(self) -> Tool:
        return Tool(name=self.name, description=self.description, parameters=self.input_schema)


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
    max_tokens: MaxTokens
    messages: tuple[Turn, ...] = Field(min_length=1)
    conductor: Extension = Extension()
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

    def to_request(self) -> ParsedRequest:
        return ParsedRequest(
            model=self.model,
            request=self._request(),
            effort=nearest_effort(self.output_config.effort),
            extension=self.conductor,
            labels={"user": self.metadata.user_id} if self.metadata.user_id else {},
            ignored=tuple(self._ignored()),
            stream=self.stream,
        )

    def _ignored(self) -> Iterator[str]:
        if self.thinking and self.thinking.get("type") != "disabled":
            yield "thinking"
        if self.output_config.effort in NEAREST_EFFORTS:
            yield "output_config.effort"
        if any(tool.strict for tool in self.tools):
            yield "tools.strict"
        blocks: list[object] = [*self.tools, *(() if isinstance(self.system, str) else self.system)]
        for turn in self.messages:
            blocks += () if isinstance(turn.content, str) else turn.content
        if self.cache_control or any(isinstance(block, Block) and block.cache_control for block in blocks):
            yield "cache_control"

    def _request(self) -> Request:
        system = self.system if isinstance(self.system, str) else "\n\n".join(block.text for block in self.system)
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


class CountTokensBody(MessagesBody):
    """The body of a request to count tokens: a Messages request, from which the rest may be left out."""

    max_tokens: MaxTokens = 1
