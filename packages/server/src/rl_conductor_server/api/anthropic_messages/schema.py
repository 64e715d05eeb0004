"""The body of an Anthropic Messages request, and what it means in our words. Pure translation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rl_conductor.types import (
    ContentPart,
    Effort,
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
from rl_conductor_server.api.content import image, tool_result
from rl_conductor_server.extension import Extension
from rl_conductor_server.protocol import Ask, Body, MaxTokens, only

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FAILED = "(the tool failed) "


class Block(Body):
    """A block of content; `cache_control` is a hint that changes nothing here."""

    cache_control: dict[str, Any] | None = None


class Text(Block):
    """Plain text. What a reply once added to it comes back with it."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str

    def part(self) -> ContentPart:
        """In our words."""
        return TextPart(text=self.text)


class Base64Source(Body):
    """Content in base64."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Body):
    """Content at an address."""

    type: Literal["url"]
    url: str


class Image(Block):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]

    def part(self) -> ContentPart:
        """In our words."""
        if isinstance(self.source, UrlSource):
            return image(self.source.url, param="url")
        return ImagePart(media_type=self.source.media_type, data=self.source.data)


class Document(Block):
    """A document."""

    type: Literal["document"]
    source: Base64Source
    title: str | None = None

    def part(self) -> ContentPart:
        """In our words."""
        return FilePart(media_type=self.source.media_type, name=self.title or "document.pdf", data=self.source.data)


Given = Annotated[Text | Image | Document, Field(discriminator="type")]


class ToolResult(Block):
    """What a tool gave back."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | tuple[Given, ...] = ""
    is_error: bool = False

    def message(self) -> Message:
        """In our words."""
        content = self.content if isinstance(self.content, str) else [block.part() for block in self.content]
        return tool_result(self.tool_use_id, content, before=FAILED if self.is_error else "")


class ToolUse(Block):
    """A tool call that comes back."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def call(self) -> ToolCall:
        """In our words."""
        return ToolCall(id=self.id, name=self.name, arguments=json.dumps(self.input, ensure_ascii=False))


class Thinking(Body):
    """What another model thought; its signature is worth nothing to the worker that comes next."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""

    def part(self) -> ContentPart:
        """In our words."""
        return ReasoningPart(text=self.thinking)


class RedactedThinking(Body):
    """What another model thought, for its vendor's eyes only."""

    type: Literal["redacted_thinking"]
    data: str


UserBlock = Annotated[Text | Image | Document | ToolResult, Field(discriminator="type")]
AssistantBlock = Annotated[Text | ToolUse | Thinking | RedactedThinking, Field(discriminator="type")]


class UserTurn(Body):
    """What the user says, and what tools gave back."""

    role: Literal["user"]
    content: str | tuple[UserBlock, ...]

    def messages(self) -> Iterator[Message]:
        """In our words: results first, each a turn of its own."""
        if isinstance(self.content, str):
            yield Message.user(self.content)
            return
        parts = [block.part() for block in self.content if not isinstance(block, ToolResult)]
        yield from (block.message() for block in self.content if isinstance(block, ToolResult))
        if parts:
            yield Message(role="user", content=tuple(parts))


class AssistantTurn(Body):
    """What was answered before."""

    role: Literal["assistant"]
    content: str | tuple[AssistantBlock, ...]

    def messages(self) -> Iterator[Message]:
        """In our words."""
        if isinstance(self.content, str):
            yield Message.assistant(self.content)
            return
        parts = tuple(block.part() for block in self.content if isinstance(block, Text | Thinking))
        calls = tuple(block.call() for block in self.content if isinstance(block, ToolUse))
        yield Message(role="assistant", content=parts, tool_calls=calls)


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class ToolEntry(Block):
    """A tool that the caller runs."""

    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None

    def tool(self) -> Tool:
        """In our words."""
        return Tool(name=self.name, description=self.description, parameters=self.input_schema)


class ToolChoice(Body):
    """Whether a tool is called, and which."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class SchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How hard to try, and in which form to answer."""

    effort: Effort | None = None
    format: SchemaFormat | None = None


class Metadata(Body):
    """Who asks."""

    user_id: str | None = None


class MessagesBody(Body):
    """The body of a request."""

    model: str
    max_tokens: MaxTokens
    messages: tuple[Turn, ...] = Field(min_length=1)
    conductor: Extension = Extension()
    system: str | tuple[Text, ...] = ""
    stream: bool = False
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: tuple[ToolEntry, ...] = ()
    tool_choice: ToolChoice = ToolChoice(type="auto")
    output_config: OutputConfig = OutputConfig()
    metadata: Metadata = Metadata()

    cache_control: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    top_k: Annotated[int | None, only()] = None
    service_tier: Annotated[str | None, only("auto", "standard_only")] = None

    def ask(self) -> Ask:
        """In our words."""
        return Ask(
            model=self.model,
            request=self._request(),
            effort=self.output_config.effort,
            extension=self.conductor,
            labels={"user": self.metadata.user_id} if self.metadata.user_id else {},
            ignored=tuple(self._ignored()),
            stream=self.stream,
        )

    def _ignored(self) -> Iterator[str]:
        if self.thinking and self.thinking.get("type") != "disabled":
            yield "thinking"
        if any(tool.strict for tool in self.tools):
            yield "tools.strict"
        blocks: list[object] = [*self.tools, *(() if isinstance(self.system, str) else self.system)]
        for turn in self.messages:
            blocks += () if isinstance(turn.content, str) else turn.content
        if self.cache_control or any(isinstance(block, Block) and block.cache_control for block in blocks):
            yield "cache_control"

    def _request(self) -> Request:
        system = self.system if isinstance(self.system, str) else "\n\n".join(one.text for one in self.system)
        before = (Message.system(system),) if system else ()
        said = tuple(message for turn in self.messages for message in turn.messages())
        form = self.output_config.format
        return Request(
            messages=before + said,
            tools=tuple(tool.tool() for tool in self.tools),
            tool_choice=CHOICES.get(self.tool_choice.type) or self.tool_choice.name or "required",
            parallel_tool_calls=not self.tool_choice.disable_parallel_tool_use,
            response_format=None if form is None else JsonFormat(json_schema=form.json_schema),
            sampling=Sampling(
                temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens, stop=self.stop_sequences
            ),
        )
