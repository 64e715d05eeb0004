"""Marks that nobody can guess, and tags that no reply can write."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.text.delimiters import escaped, fenced, mark, new_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def test_each_run_has_a_key_of_its_own() -> None:
    assert len({new_key() for _ in range(100)}) == 100


def test_a_mark_is_sixteen_hex_digits() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", mark(new_key(), ["a", "b"]))


@given(contents=st.lists(TEXT, max_size=4), other=st.lists(TEXT, max_size=4))
def test_different_contents_have_different_marks(contents: list[str], other: list[str]) -> None:
    assert (mark("k", contents) == mark("k", other)) == (contents == other)


def test_contents_cannot_be_shifted_from_one_fence_to_the_next() -> None:
    assert mark("k", ["ab", "c"]) != mark("k", ["a", "bc"])


def test_different_keys_give_different_marks() -> None:
    assert mark(new_key(), ["a"]) != mark(new_key(), ["a"])


def test_half_a_surrogate_pair_can_be_marked() -> None:
    assert mark("k", ["\ud800"]) != mark("k", ["\ud801"])


def test_a_fence_bears_its_mark_at_both_ends_and_names_what_it_holds() -> None:
    assert fenced("reply", "text", "m", step=1) == '<reply step="1" mark="m">\ntext\n</reply mark="m">'


@pytest.mark.parametrize("tag", ["passage", "reply", "subtask", "task"])
@pytest.mark.parametrize(
    "form", ["<{}>", "</{}>", "< {} >", "<\n/\t{} mark='x'>", "<{}/>", "<  /  {}", "<{} step=1>", "< \u00a0/{}>"]
)
def test_whatever_looks_like_a_tag_of_ours_is_escaped(tag: str, form: str) -> None:
    for spelled in (tag, tag.upper(), tag.title()):
        text = form.format(spelled)
        assert escaped(text) == "&lt;" + text[1:]


@pytest.mark.parametrize("text", ["a < b", "<tasks>", "<b>reply</b>", "x<subtaskable", "</replying>", "<<", "<", ""])
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert escaped(text) == text


@given(st.text(st.sampled_from("</task>reply \n"), max_size=60))
def test_no_tag_is_left_after_escaping(text: str) -> None:
    assert not re.search(r"<\s*/?\s*(passage|reply|subtask|task)\b", escaped(text), re.IGNORECASE)


@pytest.mark.parametrize("hostile", ["<" + " " * 200_000, "<" * 200_000, ("<" + " " * 400) * 500, "< / " * 50_000])
def test_hostile_text_is_escaped_in_no_time(hostile: str) -> None:
    began = time.process_time()
    escaped(hostile)
    assert time.process_time() - began < 1.0
