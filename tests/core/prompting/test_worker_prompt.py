from __future__ import annotations

from rl_conductor.prompting.worker_prompt import hide_attachments, with_prompt
from rl_conductor.types import FilePart, ImagePart, Message

IMAGE = ImagePart(url="https://image")


def test_the_prompt_replaces_the_text_of_the_last_user_message_and_keeps_its_images() -> None:
    first, reply = Message.user("Hi"), Message.assistant("Hello")
    messages = with_prompt([first, reply, Message.user("What is it?", IMAGE)], "Your part.")
    assert messages == (first, reply, Message.user("Your part.", IMAGE))


def test_a_conversation_without_a_user_message_gets_the_prompt_as_one() -> None:
    system = Message.system("Be brief.")
    assert with_prompt([system], "Your part.") == (system, Message.user("Your part."))


def test_a_note_takes_the_place_of_an_attachment_that_the_model_can_not_read() -> None:
    document = FilePart(data="")
    plain, question = Message.user("Hi"), Message.user("What is it?", IMAGE, document)
    assert hide_attachments([plain, question], images=True, files=True) == (plain, question)
    hidden = hide_attachments([plain, question], images=False, files=True)
    assert hidden[0] == plain
    assert hidden[1].text.startswith("[image attached; not shown to this model]")
    assert hidden[1].content[1:] == (*question.content[:1], document)
