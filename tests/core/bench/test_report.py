from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rl_conductor.bench.plots import frontier
from rl_conductor.bench.report import report_of, write
from rl_conductor.bench.rows import Key, Row
from rl_conductor.bench.runner import Bench, Entrant, Section
from rl_conductor.bench.systems.base import Reply, System
from rl_conductor.bench.tables import chosen, closed, compared, line
from rl_conductor.tasks import Sample
from rl_conductor.types import Usage

Tell = Callable[..., dict[str, str]]


async def never(_: Sample, __: int) -> Reply:
    raise AssertionError("a report runs nothing")


def entrant(
    name: str, right: Sequence[int], *, valid: Sequence[bool | None] | None = None, workers: str = "a"
) -> Entrant:
    plans = valid or [None] * len(right)
    rows = [
        Row(
            key=Key(pool="p", task="t", system=name, sample=f"s{number}", repeat=0, settings=""),
            domain="sums",
            depth=1 + number % 2,
            value=value,
            valid=plan,
            steps=len(workers),
            workers=tuple(workers),
            usage=Usage(input_tokens=10, output_tokens=5, calls=1),
            seconds=float(number),
        )
        for number, (value, plan) in enumerate(zip(right, plans, strict=True))
    ]
    return Entrant(System(name=name, about=f"{name} | answers", identity=name, answer=never), tuple(rows))


def repeated(name: str, valid: list[list[float]]) -> Entrant:
    """Three repetitions of each question; those with a valid plan have these scores, the others are wrong."""
    one = entrant(name, [0] * 3 * len(valid))
    rows = []
    for number, scores in enumerate(valid):
        for repeat, row in enumerate(one.rows[:3]):
            key = row.key.model_copy(update={"sample": f"s{number}", "repeat": repeat})
            value = scores[repeat] if repeat < len(scores) else 0.0
            rows.append(row.model_copy(update={"key": key, "value": value, "valid": repeat < len(scores)}))
    return Entrant(one.system, tuple(rows))


@pytest.fixture
def tell(bench: Callable[..., Bench], tmp_path: Path) -> Tell:
    """What the report says of these systems, in each form."""

    def told(*entrants: Entrant, against: str) -> dict[str, str]:
        section = Section("t", "p", {"a": "toy:a"}, entrants)
        systems = f'[systems.{against}]\nkind = "best-single"\n'
        report = report_of(bench(systems, against=[against]), [section], command="rl-conductor bench x.toml")
        write(report, tmp_path)
        return {form: (tmp_path / f"report.{form}").read_text() for form in ("md", "html")}

    return told


def test_a_clear_difference_is_called_a_gain(tell: Tell) -> None:
    for text in tell(
        entrant("ours", [1] * 18 + [0] * 2), entrant("theirs", [0] * 16 + [1] * 4), against="theirs"
    ).values():
        assert re.search(r"\bgain\b", text)


def test_the_word_gain_is_nowhere_where_the_interval_covers_zero(tell: Tell) -> None:
    for text in tell(entrant("ours", [1, 1, 0, 1] * 5), entrant("theirs", [1, 0, 1, 1] * 5), against="theirs").values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "no difference shown" in text


def test_the_word_gain_is_nowhere_where_only_validity_moved(tell: Tell) -> None:
    ours = entrant("ours", [1, 1, 1, 0] * 5, valid=[True] * 20)
    theirs = entrant("theirs", [1, 0, 0, 0, 0] * 4, valid=[True, False, False, False, False] * 4)
    for text in tell(ours, theirs, against="theirs").values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "only more valid plans" in text


def test_the_difference_given_validity_is_that_of_the_columns_however_many_plans_of_a_question_are_valid() -> None:
    ours = repeated("ours", [[1, 1, 1], [0]])
    theirs = repeated("theirs", [[1], [0, 0, 0]])
    columns = [line(one).given_valid for one in (ours, theirs)]
    assert [column and column.value for column in columns] == [0.5, 0.5]
    found = compared(ours, theirs).given_valid
    assert found is not None
    assert found.value == 0


def test_texts_of_others_neither_break_a_table_nor_become_markup(tell: Tell) -> None:
    told = tell(entrant("<b>ours</b>", [1, 0]), entrant("theirs", [0, 1]), against="theirs")
    assert "<b>ours" not in told["html"]
    assert r"\| answers" in told["md"]


def test_percentiles_tokens_and_shares_are_those_of_the_rows(tell: Tell) -> None:
    text = tell(entrant("ours", [1, 0, 1, 0, 1], workers="aab"), entrant("theirs", [1] * 5), against="theirs")["md"]
    row = next(line for line in text.splitlines() if line.startswith("| ours |"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("ours", "0.60 ± 0.24", "–", "–", "3.0", "15", "0", "2.0 s", "3.8 s", "0"),
    ]


def test_the_frontier_joins_what_nothing_cheaper_equals() -> None:
    points = [("dear", 9.0, 0.9), ("cheap", 1.0, 0.3), ("waste", 5.0, 0.3), ("fair", 4.0, 0.6), ("same", 9.0, 0.8)]
    assert frontier(points) == ["cheap", "fair", "dear"]


def test_the_way_to_the_oracle_is_a_share_of_the_distance_from_the_best_single_worker() -> None:
    entrants = (entrant("single", [1, 0, 0, 0]), entrant("ours", [1, 1, 1, 0]), entrant("oracle", [1, 1, 1, 1]))
    section = Section("t", "p", {}, entrants)
    assert closed(section, "ours", single="single", oracle="oracle") == pytest.approx(2 / 3)
    assert closed(section, "ours", single="oracle", oracle="oracle") is None


def test_who_is_chosen_for_what_is_a_share_of_steps() -> None:
    assert chosen(entrant("ours", [1, 1], workers="aab")) == {
        "sums": {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    }
