"""Renders the user's conversation for the planner, up to a maximum length. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rl_conductor.prompting.request_inputs import input_parts, marked_text
from rl_conductor.text.delimiters import compute_nonce, delimit
from rl_conductor.text.truncation import truncate_middle_bytes
from rl_conductor.types import FilePart, ImagePart, Message, TextPart

QUESTION_BYTES = 32_000
"""Maximum size of the conversation in the planner's prompt, in UTF-8: about 8,000 tokens in English, and in Chinese,
whose characters have three bytes. Workers get all of it."""
CONTEXT_BYTES_PER_TOKEN = 2
"""Maximum size per token of the planner's context: with about 4 bytes per token, half of the context."""
MIN_TURN_BYTES = 200
"""Turns are left out instead of being truncated to fewer bytes than this."""
MAX_IMAGES = 8
"""Maximum images that the planner sees, the newest ones."""

LEFT_OUT = "[... {count:,} turns left out ...]"


def question_bytes(context: int | None) -> int:
    """Returns the maximum size of the conversation for a planner with this context in tokens, if known."""
    return QUESTION_BYTES if context is None else min(QUESTION_BYTES, CONTEXT_BYTES_PER_TOKEN * context)


def transcript(
    conversation: Sequence[Message], key: str, *, max_bytes: int = QUESTION_BYTES, inputs: Collection[str] = ()
) -> str:
    """Renders the conversation as one text: only the question if there is nothing else.

    For trained planners; see `transcript_turns`.
    """
    if len(conversation) == 1 and conversation[0].role == "user":
        names = _names(conversation, inputs)
        return truncate_middle_bytes(_message_text(0, conversation[0], names), max_bytes)
    return "\n\n".join(transcript_turns(conversation, key, max_bytes=max_bytes, inputs=inputs))


def transcript_turns(
    conversation: Sequence[Message], key: str, *, max_bytes: int, inputs: Collection[str]
) -> list[str]:
    """Renders each turn of the conversation, so that a longer conversation begins with the same texts.

    Turns of models and tools are delimited, so that they can't be mistaken for the user's. The text has about
    `max_bytes` bytes; notes say what was left out. Turns and attachments in `inputs` are shown with their names.
    """
    names = _names(conversation, inputs)
    texts = [_message_text(index, message, names) for index, message in enumerate(conversation)]
    turns: list[str] = []
    left_out = 0
    for index, (message, size) in enumerate(zip(conversation, _allotted_bytes(texts, max_bytes), strict=True)):
        if size:
            turns += [LEFT_OUT.format(count=left_out)] if left_out else []
            name = f", {names[index, None]}" if (index, None) in names else ""
            turns.append(f"[{message.role}{name}]\n{_turn(message, truncate_middle_bytes(texts[index], size), key)}")
        left_out = 0 if size else left_out + 1
    return turns


def _names(conversation: Sequence[Message], inputs: Collection[str]) -> dict[tuple[int, int | None], str]:
    parts = input_parts(conversation) if inputs else ()
    return {(part.message_index, part.content_index): part.name for part in parts if part.name in inputs}


def attached_images(conversation: Sequence[Message]) -> tuple[ImagePart, ...]:
    """Returns the newest images of the conversation, in order."""
    images = [part for message in conversation for part in message.content if isinstance(part, ImagePart)]
    return tuple(images[-MAX_IMAGES:])


def _allotted_bytes(texts: Sequence[str], max_bytes: int) -> list[int]:
    """Returns the number of bytes to keep of each turn; 0 leaves it out.

    The last turn comes first, then the first one, which often has the instructions, then the others, newest first. Each
    gets at most half of what is left, and the last turn the rest.
    """
    lengths = [max(len(text.encode()), 1) for text in texts]
    if sum(lengths) <= max_bytes:
        return lengths
    allotted, remaining, last = [0] * len(texts), max_bytes, len(texts) - 1
    for index in dict.fromkeys((last, 0, *range(last - 1, 0, -1))):
        size = min(lengths[index], max(remaining // 2, MIN_TURN_BYTES))
        if size <= remaining:
            allotted[index] = size
            remaining -= size
    allotted[last] = min(lengths[last], allotted[last] + remaining)
    return allotted


def _turn(message: Message, text: str, key: str) -> str:
    return delimit("reply", text, compute_nonce(key, [text])) if message.role in ("assistant", "tool") else text


def _message_text(index: int, message: Message, names: Mapping[tuple[int, int | None], str]) -> str:
    attachments = [
        f"[{names.get((index, position), part.type)} attached: {part.media_type}]"
        for position, part in enumerate(message.content)
        if isinstance(part, ImagePart | FilePart)
    ]
    if message.role == "user":
        own_names = {position: name for (turn, position), name in names.items() if turn == index}
        titled: dict[int | None, str] = {
            position: f"\n[{own_names[position]}]\n{part.text}"
            for position, part in enumerate(message.content)
            if isinstance(part, TextPart) and position in own_names
        }
        text = marked_text(message, own_names, titled)
    else:
        text = message.with_error_as_text().text
    tool_calls = [f"[calls {call.name} with {call.arguments}]" for call in message.tool_calls]
    return "\n".join([text, *attachments, *tool_calls])
