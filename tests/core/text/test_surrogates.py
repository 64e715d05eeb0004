"""Halves of surrogate pairs are joined."""

from __future__ import annotations

import pytest

from rl_conductor.text.surrogates import SurrogateJoiner, join_surrogates


@pytest.mark.parametrize(
    ("pieces", "joined"),
    [
        (["a\ud83d", "\ude00b"], ["a", "😀b"]),
        (["\ud83d", "", "\ude00"], ["", "", "😀"]),
        (["\ud83d\ude00"], ["😀"]),
        (["a\ud83d", "b"], ["a", "\ud83db"]),
        (["a\ud83d"], ["a\ud83d"]),
        (["a", "b"], ["a", "b"]),
        (["\ude00", "ü"], ["\ude00", "ü"]),
    ],
    ids=ascii,
)
def test_the_halves_of_a_pair_are_joined_across_pieces_and_lone_ones_stay(pieces: list[str], joined: list[str]) -> None:
    joiner = SurrogateJoiner()
    assert [joiner.add(piece, is_last=number == len(pieces)) for number, piece in enumerate(pieces, 1)] == joined


def test_text_without_surrogates_is_the_same() -> None:
    assert join_surrogates("Grüße 😀") == "Grüße 😀"
