"""The names of the parts of a conversation, and what is left when a step sees only some of them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from rl_conductor.prompting.request_inputs import (
    LONG_CHARS,
    MAX_OFFERED,
    input_parts,
    offered_inputs,
    select_inputs,
    select_question,
)
from rl_conductor.types import FilePart, ImagePart, Message, TextPart, ToolCall

LONG = "x" * LONG_CHARS
IMAGE, OTHER, FILE = ImagePart(url="https://a"), ImagePart(url="https://b"), FilePart(data="QQ==")
CONVERSATION = (
    Message.system("Be brief."),
    Message.user("Look at this.", IMAGE),
    Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")]),
    Message.tool("1", "a cat"),
    Message.assistant("A cat."),
    Message.user("Thanks."),
    Message.assistant(LONG),
    Message.user("Compare them.", OTHER, FILE, TextPart(text=LONG), TextPart(text="short")),
    Message.assistant(tool_calls=[ToolCall(id="2", name="look", arguments="{}")]),
    Message.tool("2", "a dog"),
)


def names(messages: Collection[Message]) -> list[str]:
    return [part.name for part in input_parts(tuple(messages))]


def test_turns_attachments_and_long_texts_have_names() -> None:
    assert names(CONVERSATION) == ["turn 1", "image 1", "turn 2", "image 2", "file 1", "text 1"]
    assert names([Message.user("What?")]) == names([Message.assistant("Hello.")]) == names([]) == []
    assert names([Message.user(LONG)]) == [], "the question itself"


def test_plans_may_name_several_attachments_and_long_turns() -> None:
    def offered(*messages: Message) -> tuple[str, ...]:
        return offered_inputs(input_parts(messages))

    assert offered_inputs(input_parts(CONVERSATION)) == ("image 1", "turn 2", "image 2", "file 1", "text 1")
    assert offered(Message.user("What?", IMAGE)) == (), "there is nothing to choose"
    assert offered(Message.user("What?", IMAGE, FILE)) == ("image 1", "file 1")
    assert offered(Message.user("Hi."), Message.assistant("Hello."), Message.user("What?")) == ()
    assert offered(Message.user(LONG), Message.user("What?")) == ("turn 1",)
    assert len(offered(Message.user("What?", *[IMAGE] * 50))) == MAX_OFFERED


def test_without_a_choice_everything_stays() -> None:
    assert select_inputs(CONVERSATION, None) == CONVERSATION
    assert select_inputs(CONVERSATION, names(CONVERSATION)) == CONVERSATION
    assert select_inputs([Message.assistant("Hi.")], []) == (Message.assistant("Hi."),)
    assert select_question(CONVERSATION, None) == f"Compare them.\n[image 2]\n[file 1]\n{LONG}\nshort"
    assert select_question([Message.assistant("Hi.")], []) == ""


def test_a_turn_is_removed_with_its_replies_and_that_is_said() -> None:
    selected = select_inputs(CONVERSATION, ["turn 2", "image 2", "file 1", "text 1"])
    assert [message.role for message in selected] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert selected[1:3] == CONVERSATION[5:7]
    assert selected[3].text.startswith("[not shown to this step: turn 1, image 1]\n\nCompare them.")
    assert "a cat" not in str(selected)
    assert selected[4:] == CONVERSATION[8:], "the question's own tool calls stay"


def test_an_attachment_of_a_removed_turn_moves_to_the_question() -> None:
    selected = select_inputs(CONVERSATION, ["image 1"])
    assert [message.role for message in selected] == ["system", "user", "assistant", "tool"]
    assert [part for part in selected[1].content if not isinstance(part, TextPart)] == [IMAGE]
    assert selected[1].text.startswith("[not shown to this step: turn 1, turn 2, image 2, file 1]")


def test_an_attachment_is_removed_from_a_turn_that_stays() -> None:
    selected = select_inputs(CONVERSATION, ["turn 1", "turn 2", "file 1"])
    assert selected[1].content == (TextPart(text="Look at this."),)
    assert [part.type for part in selected[7].content] == ["text", "text", "file", "text", "text"]


@pytest.mark.parametrize(("inputs", "expected"), [(["text 1"], LONG), ([], "[text 1 is not shown to this step]")])
def test_long_texts_of_the_question_can_be_left_out(inputs: list[str], expected: str) -> None:
    assert select_question(CONVERSATION, inputs) == f"Compare them.\n[image 2]\n[file 1]\n{expected}\nshort"


def test_names_mark_the_places_of_images_between_texts() -> None:
    labels = [TextPart(text=text) for text in ("Picture A:", "Picture B:", "Which is older?")]
    message = Message(role="user", content=(labels[0], IMAGE, labels[1], OTHER, labels[2]))
    assert select_question([message], None) == "Picture A:\n[image 1]\nPicture B:\n[image 2]\nWhich is older?"
    earlier = Message.user("Look at this.", IMAGE)
    assert "[image 2]" in select_question([earlier, message], None), "names count all of the conversation"
    assert select_question([Message.user("What is it?", IMAGE)], None) == "What is it?", "it is not between texts"
    assert select_question([Message(role="user", content=(IMAGE, labels[2]))], None) == "Which is older?"


def test_texts_of_one_message_do_not_run_into_each_other() -> None:
    texts = ("First ends.", "Second starts.", " Third", "\nFourth.")
    message = Message(role="user", content=tuple(TextPart(text=text) for text in texts))
    assert select_question([message], None) == "First ends.\nSecond starts. Third\nFourth."
