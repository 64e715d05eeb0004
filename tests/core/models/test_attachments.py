"""Attachments in messages in which a vendor's API does not accept them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from rl_conductor.models.anthropic.wire import body_of as anthropic_body
from rl_conductor.models.attachments import move_attachments
from rl_conductor.models.google.wire import body_of as google_body
from rl_conductor.types import FilePart, ImagePart, Message, Request, TextPart, ToolCall

IMAGE, FILE = ImagePart(data="aGk="), FilePart(data="aGk=")
CALLS = Message.assistant(tool_calls=[ToolCall(id=name, name="look", arguments="{}") for name in "ab"])


def result(call_id: str, *parts: ImagePart | FilePart) -> Message:
    return Message(role="tool", tool_call_id=call_id, content=(TextPart(text="done"), *parts))


def outline(messages: Iterable[Message], *, accepting: Collection[str] = ("user",)) -> list[tuple[str, list[str]]]:
    """Returns the roles of messages, and their texts or the types of their other parts."""
    return [
        (message.role, [getattr(part, "text", part.type) for part in message.content])
        for message in move_attachments(messages, accepting=accepting)
    ]


def test_attachments_of_tool_results_follow_all_results_in_one_message_of_the_user() -> None:
    assert outline([CALLS, result("a", IMAGE), result("b", IMAGE, FILE)]) == [
        ("assistant", []),
        ("tool", ["done", "[image: attachment 1 in the user's next message]"]),
        (
            "tool",
            [
                "done",
                "[image: attachment 2 in the user's next message]",
                "[file: attachment 3 in the user's next message]",
            ],
        ),
        (
            "user",
            [
                "[attachment 1, of the tool message above:]",
                "image",
                "[attachment 2, of the tool message above:]",
                "image",
                "[attachment 3, of the tool message above:]",
                "file",
            ],
        ),
    ]


def test_attachments_of_a_reply_come_first_in_the_next_message_of_the_user() -> None:
    drawn = Message(role="assistant", content=(TextPart(text="Here."), IMAGE))
    assert outline([Message.user("Draw."), drawn, Message.user("What is it?", IMAGE)])[1:] == [
        ("assistant", ["Here.", "[image: attachment 1 in the user's next message]"]),
        ("user", ["[attachment 1, of the assistant message above:]", "image", "What is it?", "image"]),
    ]


def test_attachments_of_tool_results_precede_the_reply_to_them() -> None:
    conversation = [CALLS, result("a", IMAGE), Message.assistant("A cat."), Message.user("Sure?")]
    assert [role for role, _ in outline(conversation)] == ["assistant", "tool", "user", "assistant", "user"]


def test_a_conversation_that_the_vendor_accepts_is_unchanged() -> None:
    conversation = [Message.user("Look.", IMAGE), CALLS, result("a", IMAGE), result("b"), Message.user("So?")]
    assert list(move_attachments(conversation, accepting=("user", "tool"))) == conversation


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_anthropic_gets_images_in_turns_of_the_user_only(role: str) -> None:
    message = Message.model_validate({"role": role, "content": [TextPart(text="Look."), IMAGE]})
    body = anthropic_body(Request(messages=(message, Message.user("What is it?"))), model="anthropic:m")
    blocks = {turn["role"]: [block["type"] for block in turn["content"]] for turn in body["messages"]}  # type: ignore[index]
    assert blocks["user"] == ["text", "image", "text"]
    assert blocks.get("assistant", ["text", "text"]) == ["text", "text"]


def test_google_gets_images_of_the_system_prompt() -> None:
    message = Message(role="system", content=(TextPart(text="Look."), IMAGE))
    body = google_body(Request(messages=(message, Message.user("What is it?"))), model="google:m")
    (turn,) = body["contents"]
    assert [next(iter(part)) for part in turn["parts"]] == ["text", "inlineData", "text"]
