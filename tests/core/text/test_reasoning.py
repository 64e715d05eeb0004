"""A reply is split into reasoning and answer, whole or piece by piece."""

from __future__ import annotations

import time
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.text.reasoning import (
    _SIGN,
    BARE_HARMONY,
    FORMATS,
    ReasoningFilter,
    ReasoningStart,
    opening_at_end,
    split_reasoning,
)

STARTS: tuple[ReasoningStart, ...] = get_args(ReasoningStart)
DELIMITERS = [text for form in FORMATS for text in (*form.openings, form.closing, *form.ends)]
PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [*DELIMITERS, "analysis", "assistantfinal", "W", "```\n", "`", '"', "\n", " ", ".", "a answer"]
        ),
        st.sampled_from(DELIMITERS).flatmap(lambda one: st.integers(1, len(one)).map(lambda size: one[:size])),
    ),
    max_size=9,
)

TAGGED = [
    ("<think>a</think>b", "a", "b"),
    (" \n<think>a\n</think>\n\nb\n", "a", "b\n"),
    ("<think>a <think>b</think> c", "a <think>b", "c"),
    ("<think>a</think>\n<think>b</think>c", "a\n\nb", "c"),
    ("<think>a</think></think>\nc", "a", "c"),
    ("<think>\n\n</think>\n\nb", "", "b"),
    ("<think>say `</think>` and '</think>'</think>b", "say `</think>` and '</think>'", "b"),
    ("<think>a</think>Part 1 <think>b</think> Part 2", "a", "Part 1 <think>b</think> Part 2"),
    ("<think>a</think>", "a", ""),
    ("<think>cut off by max_tok", "cut off by max_tok", ""),
    ("[THINK]a[/THINK]b", "a", "b"),
    ("<thought>a</thought>b", "a", "b"),
    ("<|channel>thought\na<channel|>b", "a", "b"),
    ("<seed:think>a</seed:think>b", "a", "b"),
    ("◁think▷a◁/think▷b", "a", "b"),
    ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b"),
    ("<|start|>assistant<|channel|>analysis<|message|>a<|channel|>final <|constrain|>json<|message|>{}", "a", "{}"),
    ("<|channel|>final<|message|>b<|end|>", "", "b"),
    ("<|channel|>analysis<|message|>cut off", "cut off", ""),
    ("analysisWe add.assistantfinalIt is 4.", "We add.", "It is 4."),
    ("<think>a</think> analysisWe add.assistantfinalIt is 4.", "a\n\nWe add.", "It is 4."),
]
ANSWERS = [
    "",
    " \n",
    "plain",
    "  plain \n",
    "<thin",
    "<thing> is a tag",
    "Use text.split('</think>')[1].",
    "See <think>a\n</think>\nb",
    "Reasoning ends with `</think>`.",
    "The tag </think> ends it, as does </think>.",
    'Write "</think>"\nand go on.',
    "Like this:\n```\nhm\n</think>\nanswer\n```\nThat is all.",
    "The delimiter is </think>",
    "</think>",
    "analysis of the text",
    "analysis",
    "analysisWindow = 5",
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("text", "reasoning", "answer"), TAGGED)
def test_reasoning_between_delimiters_is_no_part_of_the_answer(
    text: str, reasoning: str, answer: str, start: ReasoningStart
) -> None:
    split = split_reasoning(text, start=start)
    assert (split.reasoning, split.answer, split.closed_unopened) == (reasoning, answer, False)


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("start", ["outside", "unknown"])
def test_an_answer_that_only_mentions_a_delimiter_is_left_as_it_is(text: str, start: ReasoningStart) -> None:
    split = split_reasoning(text, start=start)
    assert (split.reasoning, split.answer, split.closed_unopened) == ("", text, False)


@pytest.mark.parametrize("start", ["inside", "unknown"])
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("opened by the template\n</think>\n\nb", "opened by the template", "b"),
        ("2 and 2 make 4.</think>It is 4.", "2 and 2 make 4.", "It is 4."),
        ("2 and 2 make 4.</think>\n\nIt is 4.", "2 and 2 make 4.", "It is 4."),
        ("Hm.\n  </think> It is 4.", "Hm.", "It is 4."),
        ("Hm.</think>**4**", "Hm.", "**4**"),
        ("Is it `</think>`?\n</think>\r\nYes.", "Is it `</think>`?", "Yes."),
        ("Code:\n```\nx\n```\nso\n</think>\nb", "Code:\n```\nx\n```\nso", "b"),
        ("\n</think>\n\nb", "", "b"),
        ("a[/THINK]b", "a", "b"),
        ("a\n</think>\n<think>b</think>c", "a\n\nb", "c"),
    ],
)
def test_reasoning_that_the_chat_template_opened_is_no_part_of_the_answer(
    text: str, reasoning: str, answer: str, start: ReasoningStart
) -> None:
    split = split_reasoning(text, start=start)
    assert (split.reasoning, split.answer, split.closed_unopened) == (reasoning, answer, True)


def test_a_reply_that_is_known_to_begin_outside_of_reasoning_keeps_all_its_text() -> None:
    text = "A delimiter on its own line:\n</think>\nThat was it."
    assert split_reasoning(text, start="outside").answer == text


def test_a_reply_that_is_known_to_begin_inside_of_reasoning_is_split_wherever_the_delimiter_stands() -> None:
    assert split_reasoning("Hm. </think> It is 4.", start="inside").answer == "It is 4."


def test_a_whole_reply_without_reasoning_is_the_answer_even_where_reasoning_was_expected() -> None:
    assert split_reasoning(" It is 4.", start="inside").answer == " It is 4."
    assert split_reasoning("<thi", start="inside").answer == "<thi"


@pytest.mark.parametrize("text", ["We add", "<think>We add", "We add </think", "We add</think>", "<thi"])
def test_a_reply_that_is_cut_off_in_its_reasoning_has_no_answer(text: str) -> None:
    split = split_reasoning(text, start="inside", truncated=True)
    assert split.reasoning
    assert split.answer == ""
    cut = split_reasoning("We add\n</think>\n", start="unknown", truncated=True)
    assert (cut.reasoning, cut.answer) == ("We add", "")


@given(pieces=PIECES, start=st.sampled_from(STARTS), truncated=st.booleans(), data=st.data())
def test_a_reply_cut_into_any_pieces_is_split_as_the_whole(
    pieces: list[str], start: ReasoningStart, truncated: bool, data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    reply = ReasoningFilter(start)
    said = [reply.add(text[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    answer = "".join(said) + reply.end(truncated=truncated)
    whole = split_reasoning(text, start=start, truncated=truncated)
    assert (reply.reasoning, answer, reply.closed_unopened) == (whole.reasoning, whole.answer, whole.closed_unopened)


@given(pieces=PIECES, start=st.sampled_from(STARTS), truncated=st.booleans())
def test_nothing_is_lost_and_an_answer_has_nothing_left_to_split(
    pieces: list[str], start: ReasoningStart, truncated: bool
) -> None:
    text = "".join(pieces)
    split = split_reasoning(text, start=start, truncated=truncated)
    assert split.answer in text
    if "a answer" in text:
        assert "a answer" in split.answer + split.reasoning
    if not split.answer.endswith(("<|end|>", "<|return|>")):
        assert split_reasoning(split.answer, start="outside").answer == split.answer


def test_an_answer_is_passed_on_as_soon_as_it_is_certain_to_be_one() -> None:
    reply = ReasoningFilter()
    assert [reply.add(piece) for piece in ("<thi", "nk>Hm.", "</think>", "\n\nIt ", "is.")] == [
        "",
        "",
        "",
        "It ",
        "is.",
    ]
    plain = ReasoningFilter()
    assert [plain.add(piece) for piece in (" ", "It ", "is.")] == ["", " It ", "is."]


@pytest.mark.timed
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "hostile",
    [
        "\n" * 300_000,
        "<think>" * 50_000,
        "<think></think>" * 30_000,
        "</think>\n" * 30_000,
        "<think>" + " " * 300_000,
        " </think" * 50_000,
        "x </think> ." * 30_000,
        "`</think>`" * 30_000,
        "</think>" + " " * 300_000 + "x",
        "<|channel|>" * 30_000,
        "```\n" * 50_000,
        "analysisA" * 30_000,
    ],
)
def test_hostile_replies_take_no_time(hostile: str, start: ReasoningStart) -> None:
    began = time.process_time()
    split_reasoning(hostile, start=start)
    assert time.process_time() - began < 5.0


@pytest.mark.timed
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("hostile", ["\n" * 300_000, "<think>" + "hm " * 100_000, "</think> ." * 30_000])
def test_replies_that_come_letter_by_letter_take_time_in_proportion(hostile: str, start: ReasoningStart) -> None:
    began = time.process_time()
    reply = ReasoningFilter(start)
    for letter in hostile:
        reply.add(letter)
    reply.end(truncated=False)
    assert time.process_time() - began < 10.0  # it is a fraction of a second; what is quadratic takes half a minute


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<|im_start|>assistant\n", ""),
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|turn>model\n<|channel>thought\n", "<|channel>thought"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
        ("a short analysis", ""),
    ],
)
def test_the_opening_that_a_template_writes_is_found(prompt: str, opening: str) -> None:
    assert opening_at_end(prompt) == opening


def test_every_delimiter_has_the_sign_without_which_a_reply_is_all_answer() -> None:
    delimiters = [text for form in (*FORMATS, BARE_HARMONY) for text in (*form.openings, form.closing) if text]
    assert all(_SIGN.search(delimiter) for delimiter in delimiters if delimiter != BARE_HARMONY.closing)
