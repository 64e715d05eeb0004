"""Renders prompts with the chat template of a checkpoint, and escapes special tokens in quoted text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rl_conductor.errors import BadRequestError
from rl_conductor.models.in_process.capabilities import in_process_capabilities
from rl_conductor.models.tool_emulation import (
    CLOSING,
    OPENING,
    add_schema_to_prompt,
    offered_tools,
    response_format_with_tools,
)
from rl_conductor.text.reasoning import SPECIAL_TOKENS, opening_at_end
from rl_conductor.types import ImagePart, Message, Request, TextPart, Tool, ToolCall
from rl_conductor.types.messages import arguments_of

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
TOOL_DELIMITERS = (OPENING, CLOSING, "<tool_response>", "</tool_response>")
"""Delimiters of tool calls and results, which many tokenizers do not mark as special."""

PROBE = Tool(
    name="look",
    description="Looks somewhere.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
PROBE_CALL = ToolCall(id="123456789", name="look", arguments='{"at": "home"}')
PROBE_CALL_PATTERN = re.compile(r'"(?:arguments|parameters)":\s*\{"at":\s*"home"\}')


class Renderer(Protocol):
    """Renders conversations: a Hugging Face tokenizer or processor."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Renders the conversation in the format that the model was trained on."""


class Tokenizer(Renderer, Protocol):
    """The subset of the Hugging Face tokenizer interface used here."""

    @property
    def all_special_tokens(self) -> Sequence[str]:
        """Special tokens with a role in the configuration, such as the end-of-sequence token."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """All added tokens by id, with `content` and `special`, including those that only templates use."""


def silent_tokens(tokenizer: Tokenizer) -> set[int]:
    """Returns the ids of the special tokens, except the delimiters of tool calls, which are part of a reply."""
    added = tokenizer.added_tokens_decoder.items()
    return {index for index, token in added if token.special and token.content not in TOOL_DELIMITERS}


class ChatTemplate:
    """The chat template of a checkpoint and the capabilities that it implies."""

    def __init__(self, tokenizer: Tokenizer, *, parts: bool, processor: Renderer | None = None) -> None:
        """Probe the template for tool support and an opened reasoning block.

        Args:
            tokenizer: the tokenizer; its special tokens are escaped in all text.
            parts: whether the model supports images, so that its template expects content as a list of parts.
            processor: renders instead of the tokenizer and prepares images.
        """
        decoder = tokenizer.added_tokens_decoder
        added = [token.content for token in decoder.values() if token.special]
        self.silent = silent_tokens(tokenizer)
        self.hidden = {i for i in self.silent if decoder[i].content not in SPECIAL_TOKENS}
        """Special tokens to drop from the text of a reply; delimiters of reasoning are kept."""
        self.has_special_delimiters = not {OPENING, *SPECIAL_TOKENS}.isdisjoint(added)
        """Whether delimiters of tool calls or reasoning are special tokens, which decoding drops by default."""
        self._special = tuple(dict.fromkeys((*tokenizer.all_special_tokens, *added, *TOOL_DELIMITERS)))
        self._renderer = processor or tokenizer
        self._parts = parts
        self._reasoning_opening = opening_at_end(self._render_text(Message.user("Hello."), add_generation_prompt=True))
        self.capabilities = in_process_capabilities(tools=self._supports_tools(), images=parts)

    def render(self, request: Request, images: Sequence[Any], *, model: str, **options: Any) -> Any:
        """Renders the conversation and its tools to model inputs that end where the reply begins.

        Args:
            request: the conversation, and the tools it offers.
            images: the images of the conversation, in order.
            model: the name to use in errors.
            options: passed to the tokenizer or processor.

        Raises:
            BadRequestError: there is no template, or it rejects the conversation.
        """
        image_iterator = iter(images)
        turns = [self._turn(message, image_iterator) for message in add_schema_to_prompt(request).messages]
        tools = [self._tool_schema(tool) for tool in offered_tools(request)] or None
        try:
            return self._renderer.apply_chat_template(
                turns, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True, **options
            )
        except Exception as error:  # templates are code of the model's author and may raise anything
            raise BadRequestError(
                f"{model}: its chat template rejected the conversation: {error}", model=model
            ) from error

    def reasoning_prefix(self, request: Request) -> str:
        """The delimiter with which the template opens the reasoning of the reply, or an empty string.

        Empty if the reply has a response format, because then the model can't close the reasoning.
        """
        return self._reasoning_opening if response_format_with_tools(request) is None else ""

    def _supports_tools(self) -> bool:
        """Returns whether the template renders tools, and tool calls in a format that `tool_emulation` parses."""
        call = Message.assistant(tool_calls=[PROBE_CALL])
        rendered = self._render_text(Message.user("Where?"), call, tools=[self._tool_schema(PROBE)])
        return PROBE.description in rendered and PROBE_CALL_PATTERN.search(rendered) is not None

    def _render_text(self, *messages: Message, tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
        """Renders `messages` as text; empty if the template rejects them."""
        turns = [self._turn(message, iter(())) for message in messages]
        try:
            rendered: str = self._renderer.apply_chat_template(turns, tools=tools, tokenize=False, **options)
        except Exception:  # as in `render`
            return ""
        return rendered

    def _turn(self, message: Message, images: Iterator[Any]) -> dict[str, Any]:
        message = message.with_error_as_text()
        turn: dict[str, Any] = {"role": message.role}
        if self._parts:
            turn["content"] = list(self._parts_of(message, images))
        else:
            turn["content"] = self._escape(message.text)
        if message.tool_calls:
            turn["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            turn["name"] = self._escape(message.name)
        return turn

    def _parts_of(self, message: Message, images: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for part in message.with_joined_texts().content:  # templates write nothing between parts
            if isinstance(part, ImagePart):
                yield {"type": "image", "image": next(images)}
            elif isinstance(part, TextPart):
                yield {"type": "text", "text": self._escape(part.text)}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = arguments_of(call.model_copy(update={"arguments": self._escape(call.arguments)}))
        function = {"name": self._escape(call.name), "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _tool_schema(self, tool: Tool) -> dict[str, Any]:
        return {"type": "function", "function": json.loads(self._escape(json.dumps(dict(tool), ensure_ascii=False)))}

    def _escape(self, text: str) -> str:
        """Breaks up special tokens in `text`; otherwise quoted text could end its turn and forge the next one."""
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
        return text
