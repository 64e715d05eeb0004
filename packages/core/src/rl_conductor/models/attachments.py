"""Moves images and files to messages in which a vendor's API accepts them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import count

from rl_conductor.types import ContentPart, FilePart, ImagePart, Message, TextPart

NOTE = "[{kind}: attachment {number} in the user's next message]"
"""The text in the place of an image or a file that moved to another message."""
HEADING = "[attachment {number}, of the {role} message above:]"
"""The text before an image or a file that moved from another message."""


def move_attachments(messages: Iterable[Message], *, accepting: Collection[str]) -> Iterator[Message]:
    """Moves images and files from messages of other roles than `accepting` to the next message of the user.

    It is a new one behind the last tool result if the user says nothing next. Elsewhere, APIs refuse the request, or
    models answer as if there were no image.
    """
    moved: list[ContentPart] = []
    numbers = count(1)
    for message in messages:
        if moved and message.role == "user":
            yield message.model_copy(update={"content": (*moved, *message.content)})
            moved = []
            continue
        if moved and message.role != "tool":  # the results of all calls follow the calls directly
            yield Message(role="user", content=tuple(moved))
            moved = []
        if message.role in accepting or not any(isinstance(part, ImagePart | FilePart) for part in message.content):
            yield message
        else:
            content, attachments = _split(message, numbers)
            moved += attachments
            yield message.model_copy(update={"content": tuple(content)})
    if moved:
        yield Message(role="user", content=tuple(moved))


def _split(message: Message, numbers: Iterator[int]) -> tuple[list[ContentPart], list[ContentPart]]:
    """Returns the content of a message with notes in the places of its attachments, and these with headings."""
    content: list[ContentPart] = []
    attachments: list[ContentPart] = []
    for part in message.content:
        if isinstance(part, ImagePart | FilePart):
            number = next(numbers)
            content.append(TextPart(text=NOTE.format(kind=part.type, number=number)))
            attachments += [TextPart(text=HEADING.format(number=number, role=message.role)), part]
        else:
            content.append(part)
    return content, attachments
