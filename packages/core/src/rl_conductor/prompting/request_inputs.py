"""Names the parts of the user's input that a step may see or not, and removes those that it may not see. Pure.

    turn 2     an earlier message of the user's, with the replies to it
    image 1    an image, and `file 1` a document, of any message
    text 1     a long text part of the last message after its first one, such as an attached text file

The system prompt, the rest of the last message and what follows it, such as tool results, are shown to every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rl_conductor.types import FilePart, ImagePart, Message, TextPart, last_user_index
from rl_conductor.types.messages import join_texts

LONG_CHARS = 4_000
"""Length from which an earlier turn or a text part is worth being left out."""
MAX_OFFERED = 16
"""Maximum number of inputs that plans may name, the newest ones."""
HIDDEN_INPUTS = "[not shown to this step: {names}]\n\n"
"""Note at the beginning of a worker's prompt about the inputs that its step does not see."""
HIDDEN_TEXT = "[{name} is not shown to this step]"
"""Placeholder for a text part that a step does not see."""


@dataclass(frozen=True)
class InputPart:
    """A part of a conversation with a name."""

    name: str
    message_index: int
    """Position of its message; of a turn, the user's."""
    content_index: int | None
    """Position in the content of the message; `None` for a turn."""
    is_long: bool = False


def input_parts(messages: Sequence[Message]) -> tuple[InputPart, ...]:
    """Lists the parts of a conversation that steps may name, oldest first."""
    if len(messages) == 1 and len(messages[0].content) == 1 and isinstance(messages[0].content[0], TextPart):
        return ()
    last, counts, parts = last_user_index(messages), Counter[str](), list[InputPart]()
    for index, message in enumerate(messages if last is None else messages[: last + 1]):
        if message.role == "user" and index != last:
            counts["turn"] += 1
            size = sum(len(messages[i].text) for i in _turn(messages, index))
            parts.append(InputPart(f"turn {counts['turn']}", index, None, size >= LONG_CHARS))
        for position, part in enumerate(message.content):
            is_text = isinstance(part, TextPart) and index == last and position > 0 and len(part.text) >= LONG_CHARS
            if is_text or isinstance(part, ImagePart | FilePart):
                counts[part.type] += 1
                parts.append(InputPart(f"{part.type} {counts[part.type]}", index, position, is_text))
    return tuple(parts)


def offered_inputs(parts: Sequence[InputPart]) -> tuple[str, ...]:
    """Returns the names that plans may use: of several attachments, or of any with long texts; otherwise none."""
    worthwhile = [part for part in parts if part.content_index is not None or part.is_long]
    if len(worthwhile) < 2 and not any(part.content_index is None for part in worthwhile):
        return ()
    return tuple(part.name for part in worthwhile[-MAX_OFFERED:])


def select_question(messages: Sequence[Message], names: Collection[str] | None) -> str:
    """Returns the text of the last user message, with placeholders for text parts that `names` does not contain.

    Names of images and files mark their places if some are between texts, because prompts have them after the text.
    """
    last = last_user_index(messages)
    if last is None:
        return ""
    message = messages[last]
    if len(message.content) == 1:
        return message.text
    own_names = {part.content_index: part.name for part in input_parts(messages) if part.message_index == last}
    placeholders = {
        position: HIDDEN_TEXT.format(name=name)
        for position, name in own_names.items()
        if names is not None and name not in names and isinstance(message.content[position or 0], TextPart)
    }
    return marked_text(message, own_names, placeholders)


def marked_text(message: Message, names: Mapping[int | None, str], replaced: Mapping[int | None, str]) -> str:
    """Joins the text parts of a user's message; if images or files are between them, names in brackets mark the places.

    Args:
        message: the message.
        names: names of its parts by position.
        replaced: texts that replace those of parts, by position.
    """
    content = message.content
    texts = [position for position, part in enumerate(content) if isinstance(part, TextPart)]
    is_marked = bool(texts) and any(isinstance(part, ImagePart | FilePart) for part in content[texts[0] : texts[-1]])
    pieces: list[str] = []
    for position, part in enumerate(content[: texts[-1] + 1] if texts else ()):
        if isinstance(part, TextPart):
            pieces.append(replaced.get(position, part.text))
        elif is_marked and isinstance(part, ImagePart | FilePart):
            pieces.append(f"[{names.get(position, part.type)}]")
    return join_texts(pieces)


def select_inputs(messages: Sequence[Message], names: Collection[str] | None) -> tuple[Message, ...]:
    """Removes the turns and attachments that `names` does not contain, and says so in the last user message.

    Args:
        messages: a conversation whose last user message is the prompt of a worker.
        names: the inputs to keep; `None` keeps all. An attachment of a removed turn moves to the last user message.
    """
    if names is None or (last := last_user_index(messages)) is None:
        return tuple(messages)
    parts = [part for part in input_parts(messages) if not isinstance(_content(messages, part), TextPart)]
    hidden = [part for part in parts if part.name not in names]
    if not hidden:
        return tuple(messages)
    removed = {i for part in hidden if part.content_index is None for i in _turn(messages, part.message_index)}
    hidden_parts = {(part.message_index, part.content_index) for part in hidden}
    moved = [_content(messages, part) for part in parts if part.message_index in removed and part not in hidden]
    note = TextPart(text=HIDDEN_INPUTS.format(names=", ".join(part.name for part in hidden)))
    selected = []
    for index, message in enumerate(messages):
        content = [part for position, part in enumerate(message.content) if (index, position) not in hidden_parts]
        if index == last:
            content = [note, *content, *(part for part in moved if part is not None)]
        if index not in removed:
            selected.append(message.model_copy(update={"content": tuple(content)}))
    return tuple(selected)


def _content(messages: Sequence[Message], part: InputPart) -> TextPart | ImagePart | FilePart | None:
    content = None if part.content_index is None else messages[part.message_index].content[part.content_index]
    return content if isinstance(content, TextPart | ImagePart | FilePart) else None


def _turn(messages: Sequence[Message], start: int) -> range:
    """Returns the indices of a user message and of the replies to it."""
    following = (i for i in range(start + 1, len(messages)) if messages[i].role in ("user", "system"))
    return range(start, next(following, len(messages)))
