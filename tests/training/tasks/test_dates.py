from __future__ import annotations

import time
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.scoring import Sample, Score
from rl_conductor_training.tasks.scorers.dates import find_dates, is_date, same_date


async def score(reply: str, expected: str = "2026-03-05") -> Score:
    return await same_date(Sample(id="1", question="When?", answer=expected), reply)


@pytest.mark.parametrize(
    "reply",
    [
        "2026-03-05",
        "2026/3/5",
        "05.03.2026",
        "It is due on 5 March 2026.",
        "the 5th of March, 2026",
        "March 5th, 2026",
        "MAR 5 2026",
        "05-Mar-2026",
        "5. März 2026",
        "2026年3月5日",
        "２０２６年３月５日です",
        "2026-03-05T10:00:00Z",
        "Ordered on 2026-01-01.\nDue: 2026-03-05",
        "Answer: 2026-03-05\n\nThe order was of 2026-01-01.",
    ],
)
async def test_a_date_is_right_in_any_notation(reply: str) -> None:
    assert (await score(reply)).right


@pytest.mark.parametrize(
    ("reply", "explanation"),
    [
        ("2026-05-03", "'2026-05-03' was found, but '2026-03-05' is right"),
        ("3/5/2026", "the date can be read as 2026-03-05 or 2026-05-03; ask for one like 2026-03-05"),
        ("in March 2026", "no answer was found, but '2026-03-05' is right"),
        ("2026-02-30", "no answer was found, but '2026-03-05' is right"),
        ("12026-03-05", "no answer was found, but '2026-03-05' is right"),
        ("", "no answer was found, but '2026-03-05' is right"),
    ],
)
async def test_another_date_or_none_or_an_ambiguous_one_is_wrong(reply: str, explanation: str) -> None:
    result = await score(reply)
    assert (result.value, result.explanation) == (0, explanation)


async def test_slashes_are_read_where_only_one_order_is_possible() -> None:
    assert (await score("13/5/2026", "2026-05-13")).right
    assert (await score("5/13/2026", "13 May 2026")).right
    assert (await score("3/3/2026", "3.3.2026")).right


@pytest.mark.parametrize(("text", "expected"), [(" 5.3.2026 ", True), ("5/3/2026", False), ("2026-03", False)])
def test_an_answer_is_a_single_date_without_other_words(text: str, expected: bool) -> None:
    assert is_date(text) is expected
    assert not is_date(f"on {text}")


@given(st.dates(min_value=date(1000, 1, 1)))
def test_every_date_is_read_in_all_notations(day: date) -> None:
    for notation in ("%Y-%m-%d", "%d.%m.%Y", "%d %B %Y", "%B %d, %Y", "%d %b %Y", "%b %d %Y"):
        assert find_dates(f"from 1.1.1000 to {day.strftime(notation)}") == {day}


@given(st.text() | st.text(alphabet="0123456789./- MayOct,th"))
async def test_no_reply_makes_the_scorer_fail(reply: str) -> None:
    assert (await score(reply)).value in (0, 1)


@pytest.mark.parametrize(
    "part", ["1", "1.", "1/", "2026-", "May ", "1 May ", "5. ", "1.1.2026 ", "\N{SUPERSCRIPT TWO}"]
)
async def test_long_replies_take_linear_time(part: str) -> None:
    began = time.process_time()
    assert not (await score(part * (1_000_000 // len(part)))).right
    assert time.process_time() - began < 4
