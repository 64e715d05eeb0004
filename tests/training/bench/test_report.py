from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rl_conductor_training.bench.plots import pareto_frontier, plot_pareto
from rl_conductor_training.bench.report import build_report, write_report
from rl_conductor_training.bench.runner import Bench, SystemResult
from rl_conductor_training.bench.summary import summarize
from training.bench.system_results import system_result, task_result

RenderReport = Callable[..., dict[str, str]]


@pytest.fixture
def render_report(bench: Callable[..., Bench], tmp_path: Path) -> RenderReport:
    """Renders the report of these systems in each format."""

    def render(*results: SystemResult, against: str, systems: str = "") -> dict[str, str]:
        bench_run = bench(f'[systems.{against}]\nkind = "best-single"\n{systems}', against=[against])
        report = build_report(bench_run, [task_result(*results)], command="rl-conductor bench x.toml")
        write_report(report, tmp_path)
        return {suffix: (tmp_path / f"report.{suffix}").read_text() for suffix in ("md", "html")}

    return render


def test_a_clear_difference_is_called_a_gain(render_report: RenderReport) -> None:
    for text in render_report(
        system_result("ours", [1] * 18 + [0] * 2), system_result("theirs", [0] * 16 + [1] * 4), against="theirs"
    ).values():
        assert re.search(r"\bgain\b", text)


def test_a_tiny_p_value_is_reported_as_a_bound(render_report: RenderReport) -> None:
    text = render_report(system_result("ours", [1] * 20), system_result("theirs", [0] * 20), against="theirs")["md"]
    assert "| < 0.001 |" in text
    assert "0.000" not in text


def test_no_gain_is_reported_where_the_interval_covers_zero(render_report: RenderReport) -> None:
    for text in render_report(
        system_result("ours", [1, 1, 0, 1] * 5), system_result("theirs", [1, 0, 1, 1] * 5), against="theirs"
    ).values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "not shown" in text


def test_no_gain_is_reported_where_only_validity_changed(render_report: RenderReport) -> None:
    ours = system_result("ours", [1, 1, 1, 0] * 5, valid=[True] * 20)
    theirs = system_result("theirs", [1, 0, 0, 0, 0] * 4, valid=[True, False, False, False, False] * 4)
    for text in render_report(ours, theirs, against="theirs").values():
        assert not re.search(r"\bgain", text, re.IGNORECASE)
        assert "only more valid plans" in text


def test_untrusted_text_neither_breaks_a_table_nor_becomes_markup(render_report: RenderReport) -> None:
    forms = render_report(system_result("<b>ours</b>", [1, 0]), system_result("theirs", [0, 1]), against="theirs")
    assert "<b>ours" not in forms["html"]
    assert r"| theirs | theirs \| answers |" in forms["md"]


def test_percentiles_tokens_and_shares_match_the_rows(render_report: RenderReport) -> None:
    text = render_report(
        system_result("ours", [1, 0, 1, 0, 1], workers="aab"), system_result("theirs", [1] * 5), against="theirs"
    )["md"]
    row = next(line for line in text.splitlines() if line.startswith("| ours |"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("ours", "0.60 ± 0.24", "–", "–", "3.0", "15", "0", "2.0 s", "3.8 s", "0"),
    ]


def test_the_pareto_frontier_excludes_dominated_systems() -> None:
    points = [("dear", 9.0, 0.9), ("cheap", 1.0, 0.3), ("waste", 5.0, 0.3), ("fair", 4.0, 0.6), ("same", 9.0, 0.8)]
    assert pareto_frontier(points) == ["cheap", "fair", "dear"]


def test_systems_at_the_same_point_of_a_plot_share_a_label() -> None:
    rows = [summarize(system_result(name, right)) for name, right in (("a", [0, 1]), ("best", [0, 1]), ("c", [1, 1]))]
    svg = plot_pareto(rows, "tokens")
    assert [label in svg for label in (">a, best<", ">a<", ">best<", ">c<")] == [True, False, False, True]


def test_the_gap_closed_has_an_interval_and_needs_a_gain(render_report: RenderReport) -> None:
    single, ours = system_result("single", [1] * 6 + [0] * 18), system_result("ours", [1] * 18 + [0] * 6)
    oracle = system_result("oracle", [1] * 24, sees_answers=True)
    poor = system_result("poor", [1] * 9 + [0] * 15)
    text = render_report(single, ours, poor, oracle, against="single", systems='[systems.oracle]\nkind = "oracle"\n')[
        "md"
    ]
    assert re.findall("^- .*", text, re.MULTILINE) == [
        "- ours closed 67% of the gap from single to oracle (95 % interval 44% to 88%).",
    ]


def test_the_report_counts_the_replies_without_a_clear_verdict_of_the_judge(render_report: RenderReport) -> None:
    ours, theirs = system_result("ours", [0, 0, 1]), system_result("theirs", [0, 1, 1])
    unclear = [result.model_copy(update={"undecided": not result.value}) for result in ours.results]
    text = render_report(replace(ours, results=tuple(unclear)), theirs, against="theirs")["md"]
    assert "\n- The judge gave no clear verdict on 2 of 6 runs, which count as wrong: " in text
    assert "no clear verdict" not in render_report(ours, theirs, against="theirs")["md"]


def test_the_report_describes_the_tests(render_report: RenderReport) -> None:
    systems = [system_result(name, [0, 1, 0]) for name in ("ours", "theirs", "others")]
    for text in render_report(*systems, against="theirs").values():
        assert "corrected for the 2 comparisons of this table (Holm)" in text


def test_a_single_question_has_no_standard_error(render_report: RenderReport) -> None:
    text = render_report(system_result("ours", [1]), system_result("theirs", [0]), against="theirs")["md"]
    assert "| ours | 1.00 | " in text
    assert "±" not in text


def test_plots_are_written_with_the_report_which_has_steps_by_depth(
    render_report: RenderReport, tmp_path: Path
) -> None:
    text = render_report(
        system_result("ours", [1, 0], workers="ab"), system_result("theirs", [0, 1]), against="theirs"
    )["md"]
    files = re.findall(r"^!\[.+\]\((.+)\)$", text, re.MULTILINE)
    assert sorted(files) == sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("plots/*"))
    assert len(files) == 4
    for file in files:
        assert ElementTree.parse(tmp_path / file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "| system | depth 1 | depth 2 |\n|---|---|---|\n| ours | 2.0 | 2.0 |\n| theirs | 1.0 | 1.0 |" in text
