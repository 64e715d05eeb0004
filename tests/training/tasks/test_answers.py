from __future__ import annotations

import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor_training.tasks.scorers.answers import (
    contains_words,
    extract_boxed,
    extract_choice,
    extract_final_answer,
    extract_final_lines,
    extract_label,
    extract_last_number,
    join_digit_groups,
    normalize_text,
    number_to_words,
    numbers_match,
    words_match,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{unclosed", None),
        ("42", None),
    ],
)
def test_extract_boxed_returns_the_last_boxed_content(text: str, expected: str | None) -> None:
    assert extract_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"The answer is 3. \boxed{4}", "4"),
        ("First 3.\nAnswer: 4", "4"),
        ("**Final answer:** 4", "4"),
        ("The final answer is: Paris", "Paris"),
        ("Answer：Paris\n(step 3)", "Paris"),
        ("Die Antwort lautet Paris\n(Schritt 3)", "Paris"),
        ("答案是北京\n（第3步）", "北京"),
        ("答え：東京\n以上", "東京"),
        ("उत्तर: दिल्ली\n3", "दिल्ली"),
        ("الجواب هو القاهرة\n3", "القاهرة"),
        ("Thinking.\nParis\n\n", "Paris"),
        ("**Answer:**\n\n* Paris", "Paris"),
        ("", ""),
    ],
)
def test_extract_final_answer_returns_the_announced_answer(text: str, expected: str) -> None:
    assert extract_final_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 apples and 1,204,000 pears", "1204000"),
        ("-2.50", "-2.50"),
        ("about 1e3.", "1000"),
        ("in 1999, 12", "12"),
        ("x \N{MINUS SIGN} 3 is \N{MINUS SIGN}7", "-7"),
        (".5", "0.5"),
        ("is -.5.", "-0.5"),
        ("section 3.5.2", "2"),
        ("1\N{NARROW NO-BREAK SPACE}204\N{NO-BREAK SPACE}000.5", "1204000.5"),
        ("117 117", "117"),
        ("It costs 3,5.", "3.5"),
        ("-0,125", "-0.125"),
        ("1.234,50 €", "1234.50"),
        ("12.001.234,5", "12001234.5"),
        ("1\N{NARROW NO-BREAK SPACE}234,50 €", "1234.50"),
        ("0,5e3", "500"),
        ("3,14159", "3.14159"),
        ("1,2,3", "3"),
        ("1,290", "1290"),
        ("1,290.5", "1290.5"),
        ("1.290", "1.290"),
        ("1.234.567 Einwohner", "1234567"),
        ("1'234'567.50 Franken", "1234567.50"),
        ("1\N{RIGHT SINGLE QUOTATION MARK}234,50", "1234.50"),
        ("12,34,567 रुपये", "1234567"),
        ("３．５", "3.5"),
        ("－１，２３４円", "-1234"),
        ("٣٫٥", "3.5"),
        ("١٬٢٣٤", "1234"),
        ("१२", "12"),
        ("none", None),
        ("1e999999999999999999999", None),
        ("1e9999999", None),
    ],
)
def test_extract_last_number_returns_the_last_number(text: str, number: str | None) -> None:
    assert extract_last_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(c)", "C"),
        ("B) because it is", "B"),
        ("I think so.\nAnswer: D", "D"),
        ("Answer: A. No, the answer is C.", "C"),
        ("**Answer**: B\n\nNote that answer A is a common mistake.", "B"),
        ("I choose answer B", "B"),
        ("答案是B。因为A不对", "B"),
        ("Answer：Ｂ", "B"),
        ("正解はBです。Aは誤り。", "B"),
        ("Die Antwort ist B, denn A ist falsch.", "B"),
        ("B。因为", "B"),
        (r"\boxed{A}", "A"),
        ("The answer is a bit subtle.\n\\boxed{C}", "C"),
        ("The answer is a bit subtle.", None),
        (r"Answer: B, so \boxed{7}", "B"),
        ("A cat would choose B", None),
        ("Answer: $C$", "C"),
        (r"Answer: \(C\)", "C"),
        (r"The answer is \textbf{C}.", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"$\boxed{\textbf{(C)}\ 12}$", "C"),
        (r"\boxed{A = 12}", None),
        ("E", None),
        ("no idea", None),
    ],
)
def test_extract_choice_returns_the_chosen_letter(text: str, letter: str | None) -> None:
    assert extract_choice(text, "ABCD") == letter


@pytest.mark.parametrize(
    ("text", "other"), [("STRASSE", "Straße"), ("ＡＢ５", "ab5"), ("ｶﾞｽ", "ガス"), ("Άλφας", "ΆΛΦΑΣ")]
)
def test_normalize_text_ignores_case_and_width_in_every_script(text: str, other: str) -> None:
    assert normalize_text(text) == normalize_text(other)
    assert normalize_text("x²") != normalize_text("x2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("中国的首都是北京。", "北京"),
        ("首都はParisです", "Paris"),
        ("これはポジティブです", "ポジティブ"),
        ("เมืองหลวงคือกรุงเทพมหานคร", "กรุงเทพ"),
        ("수도는 서울입니다.", "서울"),
        ("राजधानी दिल्ली है।", "दिल्ली"),
        ("答えは5個です", "5"),
    ],
)
def test_words_are_found_in_scripts_without_spaces(text: str, words: str) -> None:
    assert contains_words(text, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("यह कमी है", "कम"),
        ("これはテストです", "スト"),
        ("답은 인천서울", "서울"),
        ("答えは15個です", "5"),
        ("Pariserは", "Paris"),
    ],
)
def test_parts_of_longer_words_are_not_found_in_any_script(text: str, words: str) -> None:
    assert not contains_words(text, words)


@pytest.mark.parametrize(
    ("reply", "label"),
    [("这条评论是正面的。", "正面"), ("不是负面，而是正面", None), ("答案：负面。", "负面")],
)
def test_extract_label_finds_chinese_labels(reply: str, label: str | None) -> None:
    assert extract_label(reply, ("正面", "负面")) == label


def test_extract_label_finds_a_letter_beside_chinese() -> None:
    assert extract_label("我选B", ("A", "B")) == "B"


def test_normalize_text_ignores_case_and_punctuation_at_the_ends() -> None:
    assert normalize_text(" The  Elbe. ") == normalize_text("the elbe")
    assert normalize_text("the elbe") != normalize_text("the oder")
    assert normalize_text(".5") != normalize_text("5.")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("東京。", "東京"),
        ("「東京」", "東京"),
        ("¡Sí!", "Sí"),
        ("« Oui »", "Oui"),
        ("„ja“", "ja"),
        ("Paris…", "Paris"),
        ("नई दिल्ली।", "नई दिल्ली"),
    ],
)
def test_normalize_text_ignores_punctuation_of_every_script_at_the_ends(text: str, bare: str) -> None:
    assert normalize_text(text) == normalize_text(bare)


@pytest.mark.parametrize(
    ("text", "other"), [("-5", "5"), ("5%", "5"), ("5‰", "5"), ("C#", "C"), ("[0, 1)", "(0, 1]"), ("５％", "５")]
)
def test_normalize_text_keeps_signs_and_brackets_at_the_ends(text: str, other: str) -> None:
    assert normalize_text(text) != normalize_text(other)


def test_normalize_text_ignores_the_encoding_of_accents() -> None:
    assert normalize_text("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == normalize_text("Cafe\N{COMBINING ACUTE ACCENT}")


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("1 000 000", "1000000"),
        ("$12 000.50.", "$12000.50."),
        ("1 234,50 €", "1234,50€"),
        ("1 000 of 2 000", "1 000 of 2 000"),
        ("10 000 0", "10 000 0"),
        ("12 3456", "12 3456"),
    ],
)
def test_join_digit_groups_joins_the_thousands_of_a_single_number(text: str, joined: str) -> None:
    assert join_digit_groups(text) == joined


def test_numbers_match_within_a_relative_tolerance() -> None:
    assert numbers_match(Decimal(100), Decimal("100.00001"))
    assert not numbers_match(Decimal(100), Decimal(101))
    assert numbers_match(Decimal(100), Decimal(101), tolerance=0.01)
    assert not numbers_match(Decimal("NaN"), Decimal("NaN"))


def test_numbers_are_spelled_in_words() -> None:
    assert [number_to_words(n) for n in (0, 13, 20, 42, 100, 205, 999)] == [
        *("zero", "thirteen", "twenty", "forty-two", "one hundred", "two hundred and five"),
        "nine hundred and ninety-nine",
    ]


@pytest.mark.parametrize(("reply", "same"), [("Forty-two", False), ("forty two.", True), ('"forty-two"', True)])
def test_words_match_ignores_hyphens_quotes_and_a_full_stop(reply: str, same: bool) -> None:
    assert words_match(reply, "forty-two") == same


LONG = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "answer is" + "\n" * LONG,
        "answer" + " " * LONG,
        "answer:\n" * LONG,
        "the answer is: *" + ": " * LONG,
        "answer" + "(" * LONG + "!",
        "\\boxed{" * LONG,
        "1" + ",111" * LONG,
        "1" + ".111" * LONG,
        "1," * LONG,
        "1" + " 111" * LONG + "1",
        "1e" * LONG,
        "\\text{" * LONG,
    ],
    ids=range(12),
)
def test_answers_are_extracted_in_linear_time(text: str) -> None:
    """In quadratic time, it would take minutes and be timed out."""
    extract_final_answer(text)
    extract_final_lines(text)
    extract_last_number(text)
    extract_choice(text, "ABCD")
    normalize_text(text)
    join_digit_groups(text)


TICKETS = ["billing", "technical", "billing refund"]


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("billing", "billing"),
        ("The category is: **Billing**.", "billing"),
        ("I would say that this is a billing ticket.", "billing"),
        ("It is a billing refund.", "billing refund"),
        ("Category: billing\nReason: it is about a technical invoice.", "billing"),
        ('{"category": "technical"}', "technical"),
        ("Billing or technical? The answer is technical", "technical"),
        ("technical, not billing", None),
        ("nontechnical", None),
        ("I can't say.", None),
        ("", None),
    ],
)
def test_extract_label_returns_the_only_label_that_a_reply_chooses(reply: str, label: str | None) -> None:
    assert extract_label(reply, TICKETS) == label


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("B", "B"),
        ("B) Rome", "B"),
        ("The correct option is B.", "B"),
        ("Correct option: B", "B"),
        ("A good choice is B.", "B"),
        ("It is a bird.", None),
        ("A or B", None),
    ],
)
def test_extract_label_finds_letters_that_are_no_words(reply: str, label: str | None) -> None:
    assert extract_label(reply, list("ABCD")) == label


@given(reply=st.text() | st.text(alphabet="ABCD a:.answer{}\\boxed\n"))
def test_extract_label_returns_a_label_or_none_for_any_reply(reply: str) -> None:
    for labels in (list("ABCD"), TICKETS):
        assert extract_label(reply, labels) in (None, *labels)


@pytest.mark.timed
@pytest.mark.parametrize("part", ["a", "A ", "billing ", "answer: ", "billing:", "billing\n", "\\boxed{"])
def test_extract_label_takes_linear_time(part: str) -> None:
    began = time.process_time()
    for labels in (list("ABCD"), TICKETS):
        extract_label(part * (1_000_000 // len(part)), labels)
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    ("text", "expected", "contained"),
    [
        ("It costs 30  EURO now", "30 Euro", True),
        ("It costs 130 euros", "30 Euro", False),
        ("It costs 30.5", "30", False),
        ("It costs 1,030", "030", False),
        ("It costs 30.", "30", True),
        ("3.Paris", "Paris", True),
        ("Paris", "?!", False),
    ],
)
def test_contains_words_finds_whole_words_and_numbers(text: str, expected: str, contained: bool) -> None:
    assert contains_words(text, expected) is contained
