"""The schema of a Chat Completions request, and its conversion to a `ParsedRequest`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rl_conductor.types import (
    ContentPart,
    ImageDetail,
    JsonFormat,
    Message,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
)
from rl_conductor_server.api.content import FILES_BY_CONTENT, file_part, image_part, json_format
from rl_conductor_server.api.efforts import NEAREST_EFFORTS, RequestedEffort, nearest_effort
from rl_conductor_server.api.openai_body import AnyJson, OpenAIBody, StreamOptions, TextFormat
from rl_conductor_server.parsed_request import (
    MAX_CHOICES,
    Integer,
    MaxTokens,
    ParsedRequest,
    Seed,
    StopSequences,
)
from rl_conductor_server.request_validation.markers import (
    check_tools,
    ignorable,
    only,
    replaced_by,
    tool_type,
    unsupported,
)
from rl_conductor_server.request_validation.parsing import Body

RUN_BY_VENDOR = re.compile(r"(.*:)?(web_search|web_search_preview|file_search|code_interpreter|image_generation|mcp).*")
"""Types of tools that the vendors of some models run themselves, with their versions and the names of gateways."""

# ---------------------------------------------------------------------------------------- messages


class Text(Body):
    """A content part with text."""

    type: Literal["text"]
    text: str

    def part(self) -> ContentPart:
        return TextPart(text=self.text)


class ImageUrl(Body):
    """The URL of an image."""

    url: str
    detail: ImageDetail | None = None


class Image(Body):
    """A content part with an image."""

    type: Literal["image_url"]
    image_url: ImageUrl

    def part(self) -> ContentPart:
        return image_part(self.image_url.url, detail=self.image_url.detail, param="image_url")


class FileContent(Body):
    """The content of a document."""

    file_id: Annotated[Any, unsupported(FILES_BY_CONTENT)] = None
    file_data: str
    filename: str = "document.pdf"


class File(Body):
    """A content part with a document."""

    type: Literal["file"]
    file: FileContent

    def part(self) -> ContentPart:
        return file_part(self.file.file_data, name=self.file.filename, param="file_data")


Texts = str | tuple[Text, ...]
Part = Annotated[Text | Image | File, Field(discriminator="type")]


def content_parts(content: str | Sequence[Text | Image | File] | None) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    return tuple(part.part() for part in content or ())


class SystemMessage(Body):
    """A message with instructions."""

    role: Literal["system", "developer"]
    content: Texts
    name: str | None = None

    def message(self) -> Message:
        return Message(role="system", content=content_parts(self.content), name=self.name)


class UserMessage(Body):
    """A message of the user."""

    role: Literal["user"]
    content: str | tuple[Part, ...]
    name: str | None = None

    def message(self) -> Message:
        return Message(role="user", content=content_parts(self.content), name=self.name)


class ResponsePart(Body):
    """Base of parts of an earlier response; clients return extra fields of any server, which are ignored."""

    model_config = ConfigDict(extra="ignore")


class Function(ResponsePart):
    """The name and arguments of a tool call."""

    name: str
    arguments: str


class Call(ResponsePart):
    """A tool call of an earlier response."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(ResponsePart):
    """A message of the assistant."""

    role: Literal["assistant"]
    content: Texts | None = None
    refusal: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    name: str | None = None

    def message(self) -> Message:
        calls = tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in self.tool_calls or ()
        )
        content = content_parts(self.content) or content_parts(self.refusal)
        return Message(role="assistant", content=content, tool_calls=calls, name=self.name)


class ToolMessage(Body):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Texts
    tool_call_id: str
    name: str | None = None

    def message(self) -> Message:
        return Message(role="tool", content=content_parts(self.content), tool_call_id=self.tool_call_id, name=self.name)


AnyMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]

# ------------------------------------------------------------------------------------ tools, formats


class FunctionTool(Body):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolEntry(Body):
    """A tool of the request; those that run at the vendor can't be called here and are ignored."""

    type: Annotated[Literal["function"], tool_type("function", ignored=RUN_BY_VENDOR)]
    function: FunctionTool

    def tool(self) -> Tool:
        function = self.function
        parameters = {} if function.parameters is None else {"parameters": function.parameters}
        return Tool(name=function.name, description=function.description or "", strict=function.strict, **parameters)


class FunctionName(Body):
    """A reference to a function."""

    name: str


class Choice(Body):
    """A function that the model must call."""

    type: Literal["function"]
    function: FunctionName


class Schema(Body):
    """A named JSON schema."""

    name: str
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Body):
    """A JSON response that matches a schema."""

    type: Literal["json_schema"]
    json_schema: Schema


Format = Annotated[TextFormat | AnyJson | SchemaFormat, Field(discriminator="type")]


class ChatStreamOptions(StreamOptions):
    """Options of a streamed response; without `include_usage`, it doesn't report the usage."""

    include_usage: bool | None = None


# ----------------------------------------------------------------------------------------- requests


class ChatBody(OpenAIBody):
    """The body of a Chat Completions request."""

    HINTS = (*OpenAIBody.HINTS, "prediction")

    messages: tuple[AnyMessage, ...] = Field(min_length=1)
    stream_options: ChatStreamOptions | None = None
    n: Integer | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    seed: Seed | None = None
    stop: str | StopSequences | None = None
    tools: tuple[ToolEntry, ...] | None = None
    tool_choice: Literal["auto", "none", "required"] | Choice | None = None
    response_format: Format | None = None
    reasoning_effort: RequestedEffort | None = None

    prediction: Any = None
    verbosity: Annotated[Any, ignorable("medium")] = None
    frequency_penalty: Annotated[float | None, ignorable(0)] = None
    presence_penalty: Annotated[float | None, ignorable(0)] = None
    logit_bias: Annotated[dict[str, float] | None, only({})] = None
    logprobs: Annotated[bool | None, only(False)] = None
    top_logprobs: Annotated[int | None, only(0)] = None
    modalities: Annotated[tuple[str, ...] | None, only(("text",))] = None
    functions: Annotated[Any, replaced_by("tools")] = None
    function_call: Annotated[Any, replaced_by("tool_choice")] = None

    @model_validator(mode="after")
    def _has_valid_tools(self) -> Self:
        name = self.tool_choice.function.name if isinstance(self.tool_choice, Choice) else None
        is_required = name is not None or self.tool_choice == "required"
        check_tools([tool.function.name for tool in self.tools or ()], choice=name, is_required=is_required)
        return self

    def to_request(self) -> ParsedRequest:
        return ParsedRequest(
            model=self.model,
            request=self._request(),
            choices=self.n or 1,
            effort=nearest_effort(self.reasoning_effort),
            extension=self.conductor,
            labels=self.labels,
            ignored=self._ignored(),
            stream=bool(self.stream),
            keep=self.store is not False,
            usage_in_stream=bool(self.stream_options and self.stream_options.include_usage),
        )

    def _ignored(self) -> tuple[str, ...]:
        ignored = self.ignored_hints
        if self.reasoning_effort in NEAREST_EFFORTS:
            ignored.append("reasoning_effort")
        if self.max_completion_tokens is not None and self.max_tokens not in (None, self.max_completion_tokens):
            ignored.append("max_tokens")
        return tuple(ignored)

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
                return json_format(schema.name, schema.json_schema, schema.description, strict=schema.strict)
            case _:
                return None
