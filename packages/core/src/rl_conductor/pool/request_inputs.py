"""Names the parts of the user's input that a step may see or not, and removes those that it may not see. Pure.

    turn 2     an earlier message of the user's, with the replies to it
    image 1    an image, and `file 1` a document, of any message
    text 1     a long text part of the last message after its first one, such as an attached text file

The system prompt and the rest of the last message are shown to every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rl_conductor.pool.worker_prompt import last_user
from rl_conductor.types import FilePart, ImagePart, Message, TextPart

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
    message: int
    """Index of its message; of a turn, the user's."""
    part: int | None
    """Index in the content of the message; `None` for a turn."""
    is_long: bool = False


def input_parts(messages: Sequence[Message]) -> tuple[InputPart, ...]:
    """Lists the parts of a conversation that steps may name, oldest first."""
    if len(messages) == 1 and len(messages[0].content) == 1 and isinstance(messages[0].content[0], TextPart):
        return ()
    last, counts, parts = last_user(messages), Counter[str](), list[InputPart]()
    for index, message in enumerate(messages):
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
    worthwhile = [part for part in parts if part.part is not None or part.is_long]
    if len(worthwhile) < 2 and not any(part.part is None for part in worthwhile):
        return ()
    return tuple(part.name for part in worthwhile[-MAX_OFFERED:])


def select_question(messages: Sequence[Message], names: Collection[str] | None) -> str:
    """Returns the text of the last user message, with placeholders for text parts that `names` does not contain."""
    last = last_user(messages)
    if last is None:
        return ""
    if names is None:
        return messages[last].text
    hidden = {part.part: part.name for part in input_parts(messages) if part.message == last and part.name not in names}
    return "".join(
        HIDDEN_TEXT.format(name=hidden[position]) if position in hidden else part.text
        for position, part in enumerate(messages[last].content)
        if isinstance(part, TextPart)
    )


def select_inputs(messages: Sequence[Message], names: Collection[str] | None) -> tuple[Message, ...]:
    """Removes the turns and attachments that `names` does not contain, and says so in the last user message.

    Args:
        messages: a conversation whose last user message is the prompt of a worker.
        names: the inputs to keep; `None` keeps all. An attachment of a removed turn moves to the last user message.
    """
    if names is None or (last := last_user(messages)) is None:
        return tuple(messages)
    parts = [part for part in input_parts(messages) if not isinstance(_content(messages, part), TextPart)]
    hidden = [part for part in parts if part.name not in names]
    if not hidden:
        return tuple(messages)
    removed = {i for part in hidden if part.part is None for i in _turn(messages, part.message)}
    hidden_parts = {(part.message, part.part) for part in hidden}
    moved = [_content(messages, part) for part in parts if part.message in removed and part not in hidden]
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
    content = None if part.part is None else messages[part.message].content[part.part]
    return content if isinstance(content, TextPart | ImagePart | FilePart) else None


def _turn(messages: Sequence[Message], start: int) -> range:
    """Returns the indices of a user message and of the replies to it."""
    following = (i for i in range(start + 1, len(messages)) if messages[i].role in ("user", "system"))
    return range(start, next(following, len(messages)))
