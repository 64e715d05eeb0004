"""Messages of a conversation: text, images, files, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from rl_conductor.types.value import Names, Text, Value

ERROR_PREFIX = "error: "
"""Prefix of a failed tool's result in protocols without a field for the failure."""


class TextPart(Value):
    """A part of a message that is plain text."""

    type: Literal["text"] = "text"
    text: Text


ImageDetail = Literal["auto", "low", "high", "original"]
"""The resolution at which OpenAI's models read an image."""


class ImagePart(Value):
    """An image, by URL or by content."""

    type: Literal["image"] = "image"
    media_type: str = "image/png"
    """The MIME type of `data`."""
    url: str | None = None
    """An `https:` URL that the vendor fetches; otherwise `data` is set."""
    data: str | None = None
    """Base64 content; otherwise `url` is set."""
    detail: ImageDetail | None = Field(default=None, exclude_if=lambda detail: detail is None)
    """The resolution at which OpenAI's models read the image; others ignore it."""


class FilePart(Value):
    """A document such as a PDF, by content."""

    type: Literal["file"] = "file"
    media_type: str = "application/pdf"
    """The MIME type of the content."""
    name: str = "document.pdf"
    """The file's name, which models may quote."""
    data: str
    """Base64 content."""


class ReasoningPart(Value):
    """Reasoning that a model wrote before its answer; never part of the answer."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    """The vendor's signature, which is sent back unchanged with the reasoning (Anthropic, Google)."""


ContentPart = Annotated[TextPart | ImagePart | FilePart | ReasoningPart, Field(discriminator="type")]
"""A part of a message."""


class ToolCall(Value):
    """A model's request to call one of the caller's tools."""

    id: Text
    """Identifies the call; the message with its result repeats it."""
    name: Text
    """The name of the tool."""
    arguments: Text
    """The JSON text as the model wrote it: untrusted, and not always valid JSON."""


class Continuation(Value):
    """State to continue with the same worker, without planning again, once tool results arrive.

    It is part of the assistant message with the tool calls, so the server stays stateless.
    """

    worker: str
    """The worker that made the tool calls."""
    prompt: Text | None = None
    """The last user message as that worker saw it: delimited evidence, then the worker's own subtask; `None` if it saw
    the message as it is."""
    sources: Names | None = None
    """The workers whose replies are in the prompt, directly or indirectly; `None` when not recorded."""
    inputs: Names | None = Field(default=None, exclude_if=lambda inputs: inputs is None)
    """The user's earlier turns and attachments that the worker saw; `None` means all of them."""
    subject: str | None = Field(default=None, exclude_if=lambda subject: subject is None)
    """SHA-256 of the system messages and the last user message of the request, without notes to tool results; `None`
    when not recorded."""


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    return content


class Message(Value):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    """The author; `tool` for the result of a tool call."""
    content: Annotated[tuple[ContentPart, ...], BeforeValidator(_as_parts)] = ()
    """Texts, images and files; a plain text is accepted, too."""
    tool_calls: tuple[ToolCall, ...] = ()
    """On an `assistant` message: the calls of tools."""
    tool_call_id: str | None = None
    """On a `tool` message: the id of the call that it answers."""
    is_error: bool = Field(default=False, exclude_if=not_)
    """On a `tool` message: whether the tool failed, so that the text is an error."""
    name: str | None = None
    """The author; the name of a worker marks a text as its reply, for policies."""
    continuation: Continuation | None = None
    """On an `assistant` message with tool calls: how to continue when their results arrive."""
    is_developer: bool = Field(default=False, exclude_if=not_)
    """Whether a system message had OpenAI's role `developer`. As few servers accept that role, only workers whose own
    client can send it do so."""

    @classmethod
    def system(cls, text: str) -> Self:
        """Creates a system message."""
        return cls(role="system", content=(TextPart(text=text),))

    @classmethod
    def user(cls, text: str, *parts: ContentPart) -> Self:
        """Creates a user message: text, then images or files."""
        return cls(role="user", content=(TextPart(text=text), *parts))

    @classmethod
    def assistant(cls, text: str = "", *, tool_calls: Iterable[ToolCall] = ()) -> Self:
        """Creates an assistant message with text, tool calls or both."""
        return cls(role="assistant", content=_as_parts(text), tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, call_id: str, text: str, *, is_error: bool = False) -> Self:
        """Creates the message with the result of a tool call, or with its error."""
        return cls(role="tool", content=_as_parts(text), tool_call_id=call_id, is_error=is_error)

    def with_error_as_text(self) -> Self:
        """Returns the message with its `is_error` written into the text, for protocols without such a field."""
        if not self.is_error:
            return self
        is_marked = self.text[: len(ERROR_PREFIX)].lower() == ERROR_PREFIX
        content = self.content if is_marked else (TextPart(text=ERROR_PREFIX), *self.content)
        return self.model_copy(update={"content": content, "is_error": False})

    @property
    def reasoning(self) -> str:
        """The text of the reasoning parts, joined."""
        return "".join(part.text for part in self.content if isinstance(part, ReasoningPart))

    @property
    def text(self) -> str:
        """The text parts, joined; images, files and reasoning are left out.

        Those of a reply are pieces of one text. Those of other messages are separate texts, so no words run together.
        """
        content = self.content
        if len(content) == 1 and isinstance(content[0], TextPart):
            return content[0].text
        texts = [part.text for part in content if isinstance(part, TextPart)]
        return "".join(texts) if self.role == "assistant" else join_texts(texts)

    def with_joined_texts(self) -> Self:
        """Joins adjacent text parts like `text`, for receivers that join them in another way."""
        content: list[ContentPart] = []
        for is_text, parts in groupby(self.content, key=lambda part: isinstance(part, TextPart)):
            adjacent = tuple(parts)
            text = self.model_copy(update={"content": adjacent}).text
            content += _as_parts(text) if is_text else adjacent
        return self.model_copy(update={"content": tuple(content)})


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Parses the arguments of a tool call into an object; invalid JSON is returned under the key `invalid_json`."""
    try:
        arguments = from_json(call.arguments or "{}", allow_inf_nan=False)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"invalid_json": call.arguments}


def labelled_text(kind: str, text: str, title: str | None, **details: str | None) -> TextPart:
    """Marks the beginning and the end of a document within a message, and names its title and other details."""
    lines = [f"[{kind.capitalize()}: {title}]" if title else f"[{kind.capitalize()}]"]
    lines += [f"[{name}: {detail}]" for name, detail in details.items() if detail]
    return TextPart(text="\n".join((*lines, text, f"[End of the {kind}]\n")))


def join_texts(texts: Iterable[str]) -> str:
    """Joins separate texts, with a line break between two that no white space separates."""
    joined = ""
    for text in texts:
        is_separated = not joined or not text or joined[-1].isspace() or text[0].isspace()
        joined += text if is_separated else f"\n{text}"
    return joined


def last_user_index(conversation: Sequence[Message]) -> int | None:
    """Returns the index of the last user message, if there is one; notes count only if there is nothing else."""
    in_turn = last = None
    for index in reversed(range(len(conversation))):
        role = conversation[index].role
        if role == "user":
            in_turn = index if in_turn is None else in_turn
        elif role == "tool":  # what followed it are notes
            last, in_turn = in_turn if last is None else last, None
        elif role == "assistant" and in_turn is not None:
            break
    return last if in_turn is None else in_turn


def notes_to_results(conversation: Sequence[Message]) -> frozenset[int]:
    """Returns the indices of messages of the user and the system that follow tool results in the same turn.

    Clients add reminders, or images that a tool returned, in this way: they are no new questions.
    """
    notes, after_results = set[int](), False
    for index, message in enumerate(conversation):
        if message.role in ("assistant", "tool"):
            after_results = message.role == "tool"
        elif after_results:
            notes.add(index)
    return frozenset(notes)


def prompt_in(conversation: Sequence[Message]) -> str:
    """Returns the text of the last user message, which is the prompt of a worker; empty if there is none."""
    last = last_user_index(conversation)
    return "" if last is None else conversation[last].text
