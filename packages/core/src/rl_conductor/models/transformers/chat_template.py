"""Prompts by the chat template that comes with a checkpoint: turns, tools and images, made safe to quote.

Nothing here knows torch, transformers or vLLM; it is imported without any of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rl_conductor.errors import BadRequestError, ContextLengthError
from rl_conductor.models.base import Capabilities, Model, arguments_of, require
from rl_conductor.models.tool_emulation import CLOSING, OPENING, form_with_tools, offered, telling
from rl_conductor.text.reasoning import SPECIAL_TOKENS, opening_at_end
from rl_conductor.types import ImagePart, Message, Request, TextPart, Tool, ToolCall

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
MARKUP = (OPENING, CLOSING, "<tool_response>", "</tool_response>")
"""What tells calls and results from text, though to many tokenizers it is not special."""

PROBE = Tool(
    name="look",
    description="Looks somewhere.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
PROBE_CALL = ToolCall(id="123456789", name="look", arguments='{"at": "home"}')
PROBE_READ = re.compile(r'"(?:arguments|parameters)":\s*\{"at":\s*"home"\}')


class Renderer(Protocol):
    """What renders a conversation: a Hugging Face tokenizer, or the processor that it is part of."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """The conversation as the model was trained to read it."""


class Tokenizer(Renderer, Protocol):
    """What we need of a Hugging Face tokenizer."""

    @property
    def all_special_tokens(self) -> Sequence[str]:
        """Those with a role in its settings, such as the one that ends a reply."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """All that were added, with their `content` and whether they are `special`, even if only templates use them."""


def silent_tokens(tokenizer: Tokenizer) -> set[int]:
    """The special tokens, which are no part of a reply; not so the marks of a call."""
    added = tokenizer.added_tokens_decoder.items()
    return {place for place, token in added if token.special and token.content not in MARKUP}


class ChatTemplate:
    """The chat template of a checkpoint, and what it can take."""

    def __init__(self, tokenizer: Tokenizer, *, parts: bool, processor: Renderer | None = None) -> None:
        """Ask the template what it can take.

        Args:
            tokenizer: whose special tokens no text may hold.
            parts: the model sees images, and its template wants the content of a turn as a list of parts.
            processor: what renders in place of the tokenizer, and prepares images, too.
        """
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.silent = silent_tokens(tokenizer)
        self.hidden = {
            i
            for i, token in tokenizer.added_tokens_decoder.items()
            if i in self.silent and token.content not in SPECIAL_TOKENS
        }
        """The special tokens that are left out of a reply's text. Those that delimit reasoning stay in it."""
        self.has_special_delimiters = not {OPENING, *SPECIAL_TOKENS}.isdisjoint(added)
        """The tokenizer would leave delimiters of calls or of reasoning out of the text, as other special tokens."""
        self._special = tuple(dict.fromkeys((*tokenizer.all_special_tokens, *added, *MARKUP)))
        self._renderer = processor or tokenizer
        self._parts = parts
        self._reasoning_opening = opening_at_end(self._shown(Message.user("Hello."), add_generation_prompt=True))
        self.capabilities = able(tools=self._knows_tools(), images=parts)

    def render(self, request: Request, images: Sequence[Any], *, model: str, **options: Any) -> Any:
        """The tokens of the conversation and its tools, ready for a reply, and what else a processor makes.

        Args:
            request: the conversation, and the tools it offers.
            images: those of the conversation, in order.
            model: its name, for errors.
            options: what is passed on to the tokenizer or processor.

        Raises:
            BadRequestError: there is no template, or it refuses this order of roles.
        """
        pictures = iter(images)
        turns = [self._turn(message, pictures) for message in telling(request).messages]
        tools = [self._told(tool) for tool in offered(request)] or None
        try:
            return self._renderer.apply_chat_template(
                turns, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True, **options
            )
        except Exception as refused:  # a template is code from the model's author and raises what it likes
            raise BadRequestError(
                f"{model}: its chat template refuses the conversation: {refused}", model=model
            ) from refused

    def begun(self, request: Request) -> str:
        """The delimiter by which the template opens the reply's reasoning; empty when it opens none.

        Also empty where the reply is held to a form, for then the model can't close the reasoning.
        """
        return self._reasoning_opening if form_with_tools(request) is None else ""

    def _knows_tools(self) -> bool:
        """Whether it tells of tools, and writes calls in a form that `json_calls` reads back."""
        call = Message.assistant(tool_calls=[PROBE_CALL])
        shown = self._shown(Message.user("Where?"), call, tools=[self._told(PROBE)])
        return PROBE.description in shown and PROBE_READ.search(shown) is not None

    def _shown(self, *messages: Message, tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
        """What it makes of `messages`; nothing, where it refuses them."""
        turns = [self._turn(message, iter(())) for message in messages]
        try:
            shown: str = self._renderer.apply_chat_template(turns, tools=tools, tokenize=False, **options)
        except Exception:  # as above
            return ""
        return shown

    def _turn(self, message: Message, images: Iterator[Any]) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": message.role}
        if self._parts:
            turn["content"] = list(self._parts_of(message, images))
        else:
            turn["content"] = self._defused(message.text)
        if message.tool_calls:
            turn["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            turn["name"] = self._defused(message.name)
        return turn

    def _parts_of(self, message: Message, images: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for part in message.content:
            if isinstance(part, ImagePart):
                yield {"type": "image", "image": next(images)}
            elif isinstance(part, TextPart):
                yield {"type": "text", "text": self._defused(part.text)}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = arguments_of(call.model_copy(update={"arguments": self._defused(call.arguments)}))
        function = {"name": self._defused(call.name), "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _told(self, tool: Tool) -> dict[str, Any]:
        return {"type": "function", "function": json.loads(self._defused(json.dumps(dict(tool), ensure_ascii=False)))}

    def _defused(self, text: str) -> str:
        """`text` in which no special token is left: else a reply could end its own turn and forge the next one."""
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + ZERO_WIDTH_SPACE + token[1:])
        return text


# ------------------------------------------------------------------------------------------ checks


def able(*, tools: bool, images: bool) -> Capabilities:
    """What a model in process can take: its replies can always be held to a format.

    They begin outside of reasoning, because what the template has opened is put back; see `ChatTemplate.begun`.
    """
    return Capabilities(
        tools=tools,
        images=images,
        json_schema=True,
        array_bounds=True,
        grammar=True,
        lengths="check",
        reasoning_start="outside",
    )


def require_able(model: Model, request: Request) -> None:
    """Raise `BadRequestError` when `request` asks for what `model`, or its chat template, can't do."""
    names = [tool.name for tool in request.tools]
    if names and not model.capabilities.tools:
        raise BadRequestError(
            f"the chat template of model {model.name!r} can't take tools, or does not write calls as JSON: take a "
            "checkpoint whose template does, or a vllm-server that was started with a --tool-call-parser for this one",
            model=model.name,
        )
    if request.tool_choice not in ("auto", "none") and not offered(request):
        why = f"{model.name}: tool_choice is {request.tool_choice!r} and the tools are {names}: name one of them"
        raise BadRequestError(why, model=model.name)
    require(model, request)


def require_room(tokens: int, *, limit: int, model: str) -> None:
    """Raise `ContextLengthError` when no token of reply fits behind a prompt of `tokens`."""
    if tokens >= limit:
        raise ContextLengthError(
            f"{model}: the conversation is {tokens} tokens long and the model reads at most {limit - 1}", model=model
        )
