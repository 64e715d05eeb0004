"""The planner's view of a conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.prompting.transcript import MAX_IMAGES, attached_images, question_bytes, transcript
from rl_conductor.types import ImagePart, Message

TURN_OVERHEAD = 250
"""More characters than the heading, delimiters and notes of one turn take."""


def test_the_last_turn_comes_first_then_the_instructions_then_the_newest_turns() -> None:
    turns = (
        Message.system("Instructions. " + "s" * 400),
        *(Message.user(f"<{number}>" + "m" * 1_000) for number in range(50)),
        Message.user("The question."),
    )
    text = transcript(turns, "key", max_bytes=5_000)

    assert text.startswith("[system]\nInstructions.")
    assert "turns left out ...]" in text
    assert "<0>" not in text
    assert "<49>" in text
    assert text.endswith("[user]\nThe question.")


def test_a_conversation_that_fits_is_unchanged() -> None:
    turns = (Message.system("Be brief."), Message.user("Why?"))
    assert transcript(turns, "key", max_bytes=13) == "[system]\nBe brief.\n\n[user]\nWhy?"


def test_an_image_note_survives_the_truncation_of_its_turn() -> None:
    text = transcript((Message.user("x" * 9_999, ImagePart(url="https://x")),), "key", max_bytes=300)
    assert text.endswith("[image attached: image/png]")


@given(
    lengths=st.lists(st.integers(0, 3_000), min_size=1, max_size=30),
    role=st.sampled_from(["user", "assistant"]),
    letter=st.sampled_from("xé字🎉"),
    max_bytes=st.integers(400, 6_000),
)
def test_the_view_is_bounded_and_has_the_end_of_the_last_turn(
    lengths: list[int], role: str, letter: str, max_bytes: int
) -> None:
    turns = [Message(role=role, content=letter * length) for length in lengths]
    turns.append(Message.user(letter * 5_000 + "!"))
    text = transcript(turns, "key", max_bytes=max_bytes)
    assert "\N{REPLACEMENT CHARACTER}" not in text
    assert len(text.encode()) <= max_bytes + TURN_OVERHEAD * len(turns)
    assert text.endswith("!")


@pytest.mark.parametrize(("context", "size"), [(None, 32_000), (1_000_000, 32_000), (4_096, 8_192)])
def test_a_known_context_bounds_the_view(context: int | None, size: int) -> None:
    assert question_bytes(context) == size


def test_a_text_in_chinese_fills_no_more_of_the_context_than_one_in_english() -> None:
    chinese, english = (
        transcript((Message.user(word * 9_999),), "key", max_bytes=question_bytes(4_096)) for word in ("字", "word ")
    )
    assert len(chinese.encode()) <= len(english) + 10


def test_the_planner_sees_the_newest_images_only() -> None:
    images = [ImagePart(url=f"https://{number}") for number in range(MAX_IMAGES + 2)]
    assert attached_images([Message.user("x", *images)]) == tuple(images[2:])
