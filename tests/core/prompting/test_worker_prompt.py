from __future__ import annotations

from rl_conductor.prompting.worker_prompt import hide_attachments, prompt_after_replies, with_prompt, worker_prompt
from rl_conductor.types import FilePart, ImagePart, Message, ToolCall

IMAGE = ImagePart(url="https://image")


def test_the_prompt_replaces_the_text_of_the_last_user_message_and_keeps_its_images() -> None:
    first, reply = Message.user("Hi"), Message.assistant("Hello")
    messages = with_prompt([first, reply, Message.user("What is it?", IMAGE)], "Your part.")
    assert messages == (first, reply, Message.user("Your part.", IMAGE))


def test_a_conversation_without_a_user_message_gets_the_prompt_as_one() -> None:
    system = Message.system("Be brief.")
    assert with_prompt([system], "Your part.") == (system, Message.user("Your part."))


def test_the_prompt_comes_after_the_replies_to_its_question_and_before_its_tool_calls() -> None:
    prompt = worker_prompt("What is it?", [], "Draft.", key="k")
    said, more = Message.assistant("A cat."), Message.assistant("Or a dog.")
    calls = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    result = Message.tool("1", "a cat")

    messages = prompt_after_replies((Message.user(prompt, IMAGE), said, more, calls, result), prompt)

    assert messages == (Message.user("What is it?", IMAGE), said, more, Message.user(prompt), calls, result)


def test_a_prompt_without_replies_to_it_stays_where_it_is() -> None:
    turns = (Message.user("Hi"), Message.assistant("Hello"), Message.user("What is it?"))
    assert prompt_after_replies(turns, "What is it?") == turns
    assert prompt_after_replies(turns[1:2], "What is it?") == turns[1:2]


def test_a_question_without_text_keeps_its_image_before_the_replies() -> None:
    prompt = worker_prompt("", [], "Draft.", key="k")
    said = Message.assistant("A cat.")

    messages = prompt_after_replies((Message.user(prompt, IMAGE), said), prompt)

    assert messages == (Message(role="user", content=(IMAGE,)), said, Message.user(prompt))


def test_a_note_takes_the_place_of_an_attachment_that_the_model_can_not_read() -> None:
    document = FilePart(data="")
    plain, question = Message.user("Hi"), Message.user("What is it?", IMAGE, document)
    assert hide_attachments([plain, question], images=True, files=True) == (plain, question)
    hidden = hide_attachments([plain, question], images=False, files=True)
    assert hidden[0] == plain
    assert hidden[1].text.startswith("[image attached; not shown to this model]")
    assert hidden[1].content[1:] == (*question.content[:1], document)
