from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rl_conductor_training.bench.plots import pareto_frontier
from rl_conductor_training.bench.report import build_report, write_report
from rl_conductor_training.bench.runner import Bench, SystemResult
from training.bench.system_results import system_result, task_result

Tell = Callable[..., dict[str, str]]


@pytest.fixture
def tell(bench: Callable[..., Bench], tmp_path: Path) -> Tell:
    """What the report says of these systems, in each form."""

    def told(*results: SystemResult, against: str, systems: str = "") -> dict[str, str]:
        made = bench(f'[systems.{against}]\nkind = "best-single"\n{systems}', against=[against])
        report = build_report(made, [task_result(*results)], command="rl-conductor bench x.toml")
        write_report(report, tmp_path)
        return {form: (tmp_path / f"report.{form}").read_text() for form in ("md", "html")}

    return told


def test_a_clear_difference_is_called_a_gain(tell: Tell) -> None:
    for text in tell(
        system_result("ours", [1] * 18 + [0] * 2), system_result("theirs", [0] * 16 + [1] * 4), against="theirs"
    ).values():
        assert re.search(r"\bgain\b", text)


def test_a_tiny_chance_is_told_as_a_bound(tell: Tell) -> None:
    text = tell(system_result("ours", [1] * 20), system_result("theirs", [0] * 20), against="theirs")["md"]
    assert "| < 0.001 |" in text
    assert "0.000" not in text


def test_the_word_gain_is_nowhere_where_the_interval_covers_zero(tell: Tell) -> None:
    for text in tell(
        system_result("ours", [1, 1, 0, 1] * 5), system_result("theirs", [1, 0, 1, 1] * 5), against="theirs"
    ).values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "not shown" in text


def test_the_word_gain_is_nowhere_where_only_validity_moved(tell: Tell) -> None:
    ours = system_result("ours", [1, 1, 1, 0] * 5, valid=[True] * 20)
    theirs = system_result("theirs", [1, 0, 0, 0, 0] * 4, valid=[True, False, False, False, False] * 4)
    for text in tell(ours, theirs, against="theirs").values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "only more valid plans" in text


def test_texts_of_others_neither_break_a_table_nor_become_markup(tell: Tell) -> None:
    told = tell(system_result("<b>ours</b>", [1, 0]), system_result("theirs", [0, 1]), against="theirs")
    assert "<b>ours" not in told["html"]
    assert r"| theirs | theirs \| answers |" in told["md"]


def test_percentiles_tokens_and_shares_are_those_of_the_rows(tell: Tell) -> None:
    text = tell(
        system_result("ours", [1, 0, 1, 0, 1], workers="aab"), system_result("theirs", [1] * 5), against="theirs"
    )["md"]
    row = next(line for line in text.splitlines() if line.startswith("| ours |"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("ours", "0.60 ± 0.24", "–", "–", "3.0", "15", "0", "2.0 s", "3.8 s", "0"),
    ]


def test_the_frontier_joins_what_nothing_cheaper_equals() -> None:
    points = [("dear", 9.0, 0.9), ("cheap", 1.0, 0.3), ("waste", 5.0, 0.3), ("fair", 4.0, 0.6), ("same", 9.0, 0.8)]
    assert pareto_frontier(points) == ["cheap", "fair", "dear"]


def test_the_way_to_the_oracle_is_told_with_an_interval_and_only_of_a_gain(tell: Tell) -> None:
    single, ours = system_result("single", [1] * 6 + [0] * 18), system_result("ours", [1] * 18 + [0] * 6)
    oracle = system_result("oracle", [1] * 24, sees_answers=True)
    poor = system_result("poor", [1] * 9 + [0] * 15)
    text = tell(single, ours, poor, oracle, against="single", systems='[systems.oracle]\nkind = "oracle"\n')["md"]
    assert re.findall("^- .*", text, re.MULTILINE) == [
        "- ours closed 67% of the gap from single to oracle (95 % interval 44% to 88%).",
    ]


def test_how_the_comparisons_were_made_is_told(tell: Tell) -> None:
    systems = [system_result(name, [0, 1, 0]) for name in ("ours", "theirs", "others")]
    for text in tell(*systems, against="theirs").values():
        assert "corrected for the 2 comparisons of this table (Holm)" in text


def test_a_single_question_has_no_standard_error(tell: Tell) -> None:
    text = tell(system_result("ours", [1]), system_result("theirs", [0]), against="theirs")["md"]
    assert "| ours | 1.00 | " in text
    assert "±" not in text


def test_drawings_lie_beside_the_written_report_which_also_has_steps_by_depth(tell: Tell, tmp_path: Path) -> None:
    text = tell(system_result("ours", [1, 0], workers="ab"), system_result("theirs", [0, 1]), against="theirs")["md"]
    files = re.findall(r"^!\[.+\]\((.+)\)$", text, re.MULTILINE)
    assert sorted(files) == sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("plots/*"))
    assert len(files) == 4
    for file in files:
        assert ElementTree.parse(tmp_path / file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "| system | depth 1 | depth 2 |\n|---|---|---|\n| ours | 2.0 | 2.0 |\n| theirs | 1.0 | 1.0 |" in text
