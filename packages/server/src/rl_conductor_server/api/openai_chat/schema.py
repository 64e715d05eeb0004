"""The body of a Chat Completions request, and what it means in our words. Pure translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rl_conductor.types import ContentPart, Effort, JsonFormat, Message, Request, Sampling, TextPart, Tool, ToolCall
from rl_conductor_server.api.content import document, image, json_format
from rl_conductor_server.extension import Extension
from rl_conductor_server.protocol import MOST_CHOICES, Ask, Body, MaxTokens, Seed, only

HINTS = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction")
"""They may save time or money elsewhere, and change no answer."""

# ---------------------------------------------------------------------------------------- messages


class Text(Body):
    """A part of plain text."""

    type: Literal["text"]
    text: str

    def part(self) -> ContentPart:
        """In our words."""
        return TextPart(text=self.text)


class ImageUrl(Body):
    """Where an image is."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class Image(Body):
    """A part that is an image."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def part(self) -> ContentPart:
        """In our words."""
        return image(self.image_url.url, param="image_url")


class FileContent(Body):
    """A document by its content."""

    file_data: str
    filename: str = "document.pdf"


class File(Body):
    """A part that is a document."""

    type: Literal["file"]
    file: FileContent

    def part(self) -> ContentPart:
        """In our words."""
        return document(self.file.file_data, name=self.file.filename, param="file_data")


Texts = str | tuple[Text, ...]
Part = Annotated[Text | Image | File, Field(discriminator="type")]


def parts(content: str | Sequence[Text | Image | File] | None) -> tuple[ContentPart, ...]:
    """Content in our words."""
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    return tuple(one.part() for one in content or ())


class SystemMessage(Body):
    """Instructions."""

    role: Literal["system", "developer"]
    content: Texts
    name: str | None = None

    def message(self) -> Message:
        """In our words."""
        return Message(role="system", content=parts(self.content), name=self.name)


class UserMessage(Body):
    """What the user says."""

    role: Literal["user"]
    content: str | tuple[Part, ...]
    name: str | None = None

    def message(self) -> Message:
        """In our words."""
        return Message(role="user", content=parts(self.content), name=self.name)


class Answered(Body):
    """Of an earlier answer. Clients bring back whatever any server once added to it, so that is no mistake."""

    model_config = ConfigDict(extra="ignore")


class Function(Answered):
    """Which function is called, and with what."""

    name: str
    arguments: str


class Call(Answered):
    """A tool call that comes back."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(Answered):
    """What was answered before."""

    role: Literal["assistant"]
    content: Texts | None = None
    refusal: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    name: str | None = None

    def message(self) -> Message:
        """In our words."""
        calls = tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in self.tool_calls or ()
        )
        content = parts(self.content) or parts(self.refusal)
        return Message(role="assistant", content=content, tool_calls=calls, name=self.name)


class ToolMessage(Body):
    """What a tool gave back."""

    role: Literal["tool"]
    content: Texts
    tool_call_id: str
    name: str | None = None

    def message(self) -> Message:
        """In our words."""
        return Message(role="tool", content=parts(self.content), tool_call_id=self.tool_call_id, name=self.name)


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]

# ------------------------------------------------------------------------------------ tools, formats


class FunctionTool(Body):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolEntry(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionTool

    def tool(self) -> Tool:
        """In our words."""
        given = {"parameters": self.function.parameters} if self.function.parameters is not None else {}
        return Tool(name=self.function.name, description=self.function.description or "", **given)


class Named(Body):
    """A function by its name."""

    name: str


class Choice(Body):
    """The one function that must be called."""

    type: Literal["function"]
    function: Named


class TextFormat(Body):
    """Plain text."""

    type: Literal["text"]


class AnyJson(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class Schema(Body):
    """A JSON schema and its name."""

    name: str
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: Schema


Format = Annotated[TextFormat | AnyJson | SchemaFormat, Field(discriminator="type")]


class StreamOptions(Body):
    """How a stream is told."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


# ----------------------------------------------------------------------------------------- requests


class ChatBody(Body):
    """The body of a request."""

    model: str
    messages: tuple[AnyMessage, ...] = Field(min_length=1)
    conductor: Extension = Extension()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    seed: Seed | None = None
    stop: str | tuple[str, ...] | None = None
    tools: tuple[ToolEntry, ...] | None = None
    tool_choice: Literal["auto", "none", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    reasoning_effort: Effort | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    verbosity: Annotated[str | None, only("medium")] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    frequency_penalty: Annotated[float | None, only(0)] = None
    presence_penalty: Annotated[float | None, only(0)] = None
    logit_bias: Annotated[dict[str, float] | None, only({})] = None
    logprobs: Annotated[bool | None, only(False)] = None
    top_logprobs: Annotated[int | None, only(0)] = None
    modalities: Annotated[tuple[str, ...] | None, only(("text",))] = None

    @model_validator(mode="after")
    def _chooses_a_tool_there_is(self) -> Self:
        known = {tool.function.name for tool in self.tools or ()}
        if isinstance(self.tool_choice, Choice) and self.tool_choice.function.name not in known:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is not among the tools")
        return self

    def ask(self) -> Ask:
        """In our words."""
        labels = {name: value for name in ("user", "safety_identifier") if (value := getattr(self, name))}
        return Ask(
            model=self.model,
            request=self._request(),
            choices=self.n or 1,
            effort=self.reasoning_effort,
            extension=self.conductor,
            labels=(self.metadata or {}) | labels,
            ignored=self._ignored(),
            stream=bool(self.stream),
            keep=self.store is not False,
            usage_in_stream=bool(self.stream_options and self.stream_options.include_usage),
        )

    def _ignored(self) -> tuple[str, ...]:
        hints = [name for name in HINTS if getattr(self, name) is not None]
        strict = ["tools.strict"] if any(tool.function.strict for tool in self.tools or ()) else []
        return (*hints, *strict)

    def _request(self) -> Request:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        choice = self.tool_choice or "auto"
        return Request(
            messages=tuple(message.message() for message in self.messages),
            tools=tuple(tool.tool() for tool in self.tools or ()),
            tool_choice=choice.function.name if isinstance(choice, Choice) else choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            response_format=self._format(),
            sampling=Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_completion_tokens or self.max_tokens,
                seed=self.seed,
                stop=stop,
            ),
        )

    def _format(self) -> JsonFormat | None:
        match self.response_format:
            case AnyJson():
                return JsonFormat()
            case SchemaFormat(json_schema=schema):
                return json_format(schema.name, schema.json_schema, schema.description)
            case _:
                return None
