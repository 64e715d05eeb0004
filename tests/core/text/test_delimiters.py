"""Nonces that can't be guessed, and tags that a reply can't forge."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.text import delimiters
from rl_conductor.text.delimiters import (
    compute_nonce,
    conversation_key,
    delimit,
    escape_tags,
    new_delimiter_key,
    strip_nonces,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def test_a_conversation_has_one_key_that_follows_from_its_opening() -> None:
    key = conversation_key(["user", "Hello."])

    assert re.fullmatch(r"[0-9a-f]{32}", key)
    assert conversation_key(["user", "Hello."]) == key
    assert len({key, conversation_key(["user", "Hello. "]), conversation_key(["userHello."])}) == 3


def test_the_key_of_a_conversation_needs_the_secret_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    key = conversation_key(["user", "Hello."])
    monkeypatch.setattr(delimiters, "_SECRET", b"another")

    assert conversation_key(["user", "Hello."]) != key


def test_a_random_key_is_always_another_one() -> None:
    assert len({new_delimiter_key() for _ in range(100)}) == 100


def test_a_nonce_is_sixteen_hex_digits() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", compute_nonce(new_delimiter_key(), ["a", "b"]))


@given(contents=st.lists(TEXT, max_size=4), other=st.lists(TEXT, max_size=4))
def test_different_contents_have_different_nonces(contents: list[str], other: list[str]) -> None:
    assert (compute_nonce("k", contents) == compute_nonce("k", other)) == (contents == other)


def test_contents_cannot_be_shifted_between_blocks() -> None:
    assert compute_nonce("k", ["ab", "c"]) != compute_nonce("k", ["a", "bc"])


def test_different_keys_give_different_nonces() -> None:
    assert compute_nonce(new_delimiter_key(), ["a"]) != compute_nonce(new_delimiter_key(), ["a"])


def test_a_lone_surrogate_has_a_nonce() -> None:
    assert compute_nonce("k", ["\ud800"]) != compute_nonce("k", ["\ud801"])


def test_prompts_of_two_runs_are_equal_without_their_nonces() -> None:
    key = new_delimiter_key()
    prompts = [json.dumps({"content": delimit("reply", "text", compute_nonce(key, [run]), step=1)}) for run in "ab"]
    assert prompts[0] != prompts[1]
    assert strip_nonces(prompts[0]) == strip_nonces(prompts[1])
    assert json.loads(strip_nonces(prompts[0])) == {"content": '<reply step="1" >\ntext\n</reply >'}


def test_both_tags_carry_the_nonce() -> None:
    assert delimit("reply", "text", "m", step=1) == '<reply step="1" mark="m">\ntext\n</reply mark="m">'


@pytest.mark.parametrize("tag", ["passage", "reply", "subtask", "task"])
@pytest.mark.parametrize(
    "form", ["<{}>", "</{}>", "< {} >", "<\n/\t{} mark='x'>", "<{}/>", "<  /  {}", "<{} step=1>", "< \u00a0/{}>"]
)
def test_text_that_looks_like_a_tag_is_escaped(tag: str, form: str) -> None:
    for spelled in (tag, tag.upper(), tag.title()):
        text = form.format(spelled)
        assert escape_tags(text) == "&lt;" + text[1:]


@pytest.mark.parametrize("text", ["a < b", "<tasks>", "<b>reply</b>", "x<subtaskable", "</replying>", "<<", "<", ""])
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert escape_tags(text) == text


@given(st.text(st.sampled_from("</task>reply \n"), max_size=60))
def test_no_tag_is_left_after_escaping(text: str) -> None:
    assert not re.search(r"<\s*/?\s*(passage|reply|subtask|task)\b", escape_tags(text), re.IGNORECASE)


@pytest.mark.parametrize("hostile", ["<" + " " * 200_000, "<" * 200_000, ("<" + " " * 400) * 500, "< / " * 50_000])
def test_hostile_text_is_escaped_in_no_time(hostile: str) -> None:
    began = time.process_time()
    escape_tags(hostile)
    assert time.process_time() - began < 1.0
