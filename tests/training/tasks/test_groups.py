from __future__ import annotations

import time

import pytest

from rl_conductor_training.tasks.groups import hash_question, template


@pytest.mark.parametrize("same", [" How old is  the café?\n", "HOW OLD IS THE CAFÉ?", "How old is the cafe\u0301?"])
def test_blanks_case_and_the_form_of_unicode_make_no_other_question(same: str) -> None:
    assert hash_question(same) == hash_question("How old is the café?")
    assert hash_question(same) != hash_question("How old is the cafe?")


def test_quotes_are_masked_and_many_that_never_close_take_no_time() -> None:
    assert template('Who said “yes” and "no" here?') == "who said <quote> and <quote> here"
    started = time.process_time()
    assert template("“a" * 50_000).startswith("“a“a")
    assert time.process_time() - started < 2


@pytest.mark.parametrize("other", ["How do I reset it", "how do I reset it ?", "How do I reset it?!"])
def test_punctuation_at_the_end_makes_no_other_template(other: str) -> None:
    assert template(other) == template("How do I reset it?")


def test_a_question_of_punctuation_only_has_a_template_of_its_own() -> None:
    assert [template(question) for question in ("?", "...")] == ["?", "..."]
