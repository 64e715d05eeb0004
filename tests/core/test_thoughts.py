"""Thoughts are told from the answer, whole or piece by piece."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.thoughts import AnswerOnly, may_be_thoughts, without_thoughts

PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "\n", " ", "a", "answer"]), max_size=8)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        ("  plain \n", "  plain \n"),
        ("<think>a</think>b", "b"),
        (" \n<think>a\n</think>\n\nb\n", "b\n"),
        ("<think>a <think>b</think> c", "c"),
        ("opened by the template\n</think>\n\nb", "b"),
        ("<think>a</think>", "<think>a</think>"),
        ("<think>a</think> \n", "<think>a</think> \n"),
        ("<think>never closed", "<think>never closed"),
        ("Use text.split('</think>')[1].", "Use text.split('</think>')[1]."),
        ("See <think>a\n</think>\nb", "See <think>a\n</think>\nb"),
        ("", ""),
    ],
)
def test_thoughts_are_left_out_but_never_an_answer(text: str, left: str) -> None:
    assert without_thoughts(text) == left


@pytest.mark.parametrize(
    "text", ["", " ", "<", "\n<thi", "<think>", "<think>a", "<think>a</think>", "<think></think>\n"]
)
def test_a_start_that_may_be_thoughts_is_known(text: str) -> None:
    assert may_be_thoughts(text)


@pytest.mark.parametrize("text", ["a", "<b", "<thing>", "x<think>", "<think>a</think>b", "</think>"])
def test_a_start_that_is_the_answer_is_known(text: str) -> None:
    assert not may_be_thoughts(text)


@pytest.mark.parametrize(
    "hostile", ["\n" * 300_000, "<think>" * 50_000, "<think>" + " " * 300_000, " </think" * 50_000]
)
def test_hostile_thoughts_take_no_time(hostile: str) -> None:
    began = time.process_time()
    without_thoughts(hostile)
    may_be_thoughts(hostile)
    assert time.process_time() - began < 1.0


@given(pieces=PIECES)
def test_pieces_of_an_answer_are_that_answer_without_its_thoughts(pieces: list[str]) -> None:
    said: list[str] = []
    answer = AnswerOnly(said.append)
    for piece in pieces:
        answer.add(piece)
    answer.end()
    whole = "".join(pieces)
    assert all(said)
    assert "".join(said) == (without_thoughts(whole) if whole.lstrip().startswith("<think>") else whole)


def test_an_answer_is_passed_on_as_soon_as_it_is_known_to_be_one() -> None:
    said: list[str] = []
    answer = AnswerOnly(said.append)
    for piece in ("<thi", "nk>Hm.", "</think>", "\n\nIt ", "is."):
        answer.add(piece)
    assert said == ["It ", "is."]
