from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.text.truncation import truncate_middle, truncate_middle_bytes


def test_text_is_cut_between_characters_of_several_bytes() -> None:
    assert truncate_middle_bytes("字" * 10, 10) == "字\n[... 8 characters left out ...]\n字"


def test_text_is_cut_by_characters() -> None:
    assert truncate_middle("字" * 10, 5) == "字字\n[... 5 characters left out ...]\n字字字"


def test_text_of_the_maximum_size_is_unchanged() -> None:
    assert truncate_middle_bytes("字字", 6) == truncate_middle("字字", 2) == "字字"


@given(text=st.text(alphabet="ab\n", max_size=50), size=st.integers(1, 60))
def test_ascii_is_cut_as_by_characters(text: str, size: int) -> None:
    assert truncate_middle_bytes(text, size) == truncate_middle(text, size)


@pytest.mark.parametrize("letter", ["é", "字", "🎉"])
def test_the_note_counts_the_characters_that_are_missing(letter: str) -> None:
    text = truncate_middle_bytes(letter * 100, 50)
    assert f"[... {100 - text.count(letter)} characters left out ...]" in text
