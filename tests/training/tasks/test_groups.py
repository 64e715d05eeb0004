from __future__ import annotations

import pytest

from rl_conductor_training.tasks.groups import hash_question


@pytest.mark.parametrize("same", [" How old is  the café?\n", "HOW OLD IS THE CAFÉ?", "How old is the cafe\u0301?"])
def test_blanks_case_and_the_form_of_unicode_make_no_other_question(same: str) -> None:
    assert hash_question(same) == hash_question("How old is the café?")
    assert hash_question(same) != hash_question("How old is the cafe?")
