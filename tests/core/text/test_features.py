from __future__ import annotations

import subprocess
import sys
from math import log1p

import pytest

from rl_conductor.text.features import BUCKETS, MAX_CHARS, dot_product, length_feature, text_features, word_features

TEXT = "What is the capital of Spain?"


def test_equal_words_are_equal_in_every_process() -> None:
    source = "from rl_conductor.text.features import word_features"
    code = f"{source}; print(sorted(word_features({TEXT!r}).items()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(sorted(word_features(TEXT).items()))


def test_a_text_is_most_similar_to_itself() -> None:
    words = word_features(TEXT)
    assert dot_product(words, words) == pytest.approx(1)
    assert dot_product(words, word_features("Who wrote the novel?")) < 1


def test_letter_sequences_follow_the_words_and_match_other_forms_of_a_word() -> None:
    singular, plural = text_features("capital"), text_features("capitals")
    words = {bucket: value for bucket, value in singular.items() if bucket < BUCKETS}
    assert words == word_features("capital")
    assert dot_product(words, plural) == 0
    assert dot_product(singular, plural) > 0


def test_numbers_are_alike() -> None:
    assert text_features("17 + 25") == text_features("31 + 80")


def test_text_after_the_limit_does_not_count() -> None:
    text = "word " * MAX_CHARS
    assert text_features(text) == text_features(text + "other")


def test_a_text_without_words_has_no_word_features() -> None:
    assert word_features(" ") == {}


def test_the_length_grows_with_the_text() -> None:
    assert length_feature("") == 0
    assert length_feature("abc") == log1p(3) / 8
