"""The body of an OpenAI Responses request, and what it means in our words. Pure translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from rl_conductor.types import ContentPart, Effort, JsonFormat, Message, Request, Sampling, TextPart, Tool, ToolCall
from rl_conductor_server.api.content import document, image, json_format, tool_result
from rl_conductor_server.extension import Extension
from rl_conductor_server.protocol import Ask, Body, MaxTokens, only

HINTS = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
"""They may save time or money elsewhere, and change no answer."""

# ------------------------------------------------------------------------------------------- input


class InputText(Body):
    """Text that is asked."""

    type: Literal["input_text"]
    text: str

    def part(self) -> ContentPart:
        """In our words."""
        return TextPart(text=self.text)


class OutputText(Body):
    """Text that was answered before, with whatever any server once added to it."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["output_text"]
    text: str

    def part(self) -> ContentPart:
        """In our words."""
        return TextPart(text=self.text)


class Refusal(Body):
    """What was refused before."""

    type: Literal["refusal"]
    refusal: str

    def part(self) -> ContentPart:
        """In our words."""
        return TextPart(text=self.refusal)


class InputImage(Body):
    """An image."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] = "auto"

    def part(self) -> ContentPart:
        """In our words."""
        return image(self.image_url, param="image_url")


class InputFile(Body):
    """A document by its content."""

    type: Literal["input_file"]
    file_data: str
    filename: str = "document.pdf"

    def part(self) -> ContentPart:
        """In our words."""
        return document(self.file_data, name=self.filename, param="file_data")


Given = Annotated[InputText | InputImage | InputFile, Field(discriminator="type")]
Part = Annotated[InputText | OutputText | Refusal | InputImage | InputFile, Field(discriminator="type")]


class Said(Body):
    """A message of any role."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[Part, ...]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def message(self) -> Message:
        """In our words."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        return Message(role=role, content=content if isinstance(content, str) else tuple(one.part() for one in content))


class Called(Body):
    """A tool call that comes back."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def message(self) -> Message:
        """In our words."""
        return Message.assistant(tool_calls=[ToolCall(id=self.call_id, name=self.name, arguments=self.arguments)])


class CallOutput(Body):
    """What a tool gave back."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | tuple[Given, ...]
    id: str | None = None
    status: str | None = None

    def message(self) -> Message:
        """In our words."""
        output = self.output
        return tool_result(self.call_id, output if isinstance(output, str) else [one.part() for one in output])


class Thought(Body):
    """What another model thought, for its vendor's eyes only."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]


def _kind(item: Any) -> str:
    found = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return str(found)


Item = Annotated[
    Annotated[Said, Tag("message")]
    | Annotated[Called, Tag("function_call")]
    | Annotated[CallOutput, Tag("function_call_output")]
    | Annotated[Thought, Tag("reasoning")],
    Discriminator(_kind),
]


def conversation(items: Iterable[Said | Called | CallOutput | Thought]) -> Iterator[Message]:
    """The turns of these items; what one turn of the assistant said and called is one message."""
    messages = [item.message() for item in items if not isinstance(item, Thought)]
    for role, turns in groupby(messages, key=lambda message: message.role):
        if role != "assistant":
            yield from turns
            continue
        together = list(turns)
        content = tuple(part for turn in together for part in turn.content)
        yield Message(role="assistant", content=content, tool_calls=tuple(c for t in together for c in t.tool_calls))


# ----------------------------------------------------------------------------------------- the rest


class ToolEntry(Body):
    """A function that may be called."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """In our words."""
        given = {} if self.parameters is None else {"parameters": self.parameters}
        return Tool(name=self.name, description=self.description or "", **given)


class Choice(Body):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Body):
    """Plain text."""

    type: Literal["text"]


class AnyJson(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class Text(Body):
    """In which form to answer."""

    format: Annotated[TextFormat | AnyJson | SchemaFormat, Field(discriminator="type")] = TextFormat(type="text")
    verbosity: Annotated[str | None, only("medium")] = None


class Reasoning(Body):
    """How hard to try."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: Annotated[str | None, only()] = None


class StreamOptions(Body):
    """How a stream is told."""

    include_obfuscation: Annotated[bool | None, only(False)] = None


class ResponsesBody(Body):
    """The body of a request."""

    model: str
    input: str | tuple[Item, ...] = Field(min_length=1)
    conductor: Extension = Extension()
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: tuple[ToolEntry, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | Choice = "auto"
    parallel_tool_calls: bool | None = None
    text: Text = Text()
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None

    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    include: tuple[Literal["reasoning.encrypted_content"], ...] | None = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    truncation: Annotated[str | None, only("disabled")] = None
    background: Annotated[bool | None, only(False)] = None
    previous_response_id: Annotated[str | None, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    max_tool_calls: Annotated[int | None, only()] = None
    top_logprobs: Annotated[int | None, only(0)] = None

    def ask(self) -> Ask:
        """In our words."""
        labels = {name: value for name in ("user", "safety_identifier") if (value := getattr(self, name))}
        return Ask(
            model=self.model,
            request=self._request(),
            effort=self.reasoning.effort if self.reasoning else None,
            extension=self.conductor,
            labels=(self.metadata or {}) | labels,
            ignored=tuple(self._ignored()),
            stream=bool(self.stream),
            keep=self.store is not False,
        )

    def _ignored(self) -> Iterator[str]:
        yield from (name for name in HINTS if getattr(self, name) is not None)
        yield from self.include or ()
        if self.reasoning and self.reasoning.summary:
            yield "reasoning.summary"
        if any(tool.strict for tool in self.tools):
            yield "tools.strict"

    def _request(self) -> Request:
        said = (Message.user(self.input),) if isinstance(self.input, str) else tuple(conversation(self.input))
        before = (Message.system(self.instructions),) if self.instructions else ()
        return Request(
            messages=before + said,
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
            case SchemaFormat() as form:
                return json_format(form.name, form.json_schema, form.description)
            case _:
                return None
